"""The cells of a sweep: one config for each combination of the values of a grid."""

from __future__ import annotations

import copy
import itertools
import math
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.config.errors import ConfigError
from fljax.config.forms import MOST_CELLS, name_of_file
from fljax.config.keys import AlgorithmEntry, Config
from fljax.config.reading import assign, check, override, parse, read, toml_value
from fljax.core.names import shown
from fljax.results.sweeps import Axis

# Keys that must be equal in all cells: they determine the name or the dimensions of the results, or belong to runs of
# several cells, or to no run, as settings of metrics do.
_FIXED = ("name", "seeds", "rounds", "evaluate_every", "callbacks", "metrics", "stop", "sweep")
_LENGTHS = ("steps", "epochs")
# Names of dimensions and variables of results, which an axis must not use.
_TAKEN = frozenset({"algorithm", "seed", "round", "evaluated_round", "client", "unseen", "row", "cell", "threshold"})


class Grid(NamedTuple):
    """A sweep.

    Attributes:
      config: the experiment without the grid's values, but with the grid in ``sweep``.
      axes: the axes, in the order of the grid.
      cells: a config for each combination of values; the last axis changes fastest.
    """

    config: Config
    axes: tuple[Axis, ...]
    cells: tuple[Config, ...]


def load_grid(
    path: str | pathlib.Path, overrides: Sequence[str] = (), grid: Sequence[str] = (), *, imports: bool = True
) -> Grid:
    """Reads a config and makes the cells of its sweep.

    Args:
      path: a TOML file or the name of a shipped config, as for ``load``.
      overrides: as for ``load``.
      grid: each ``"a.b=c,d,e"``: the values of one path, separated by commas, as TOML or else text; they replace the
        values for this path in the file's ``[sweep]``.
      imports: as for ``load``.

    Raises:
      ConfigError: if the file, an override, the grid or a cell has an error, or there is no grid.
    """
    raw = read(path)
    for text in overrides:
        override(raw, text)
    return parse_grid(raw, grid, name=name_of_file(path), imports=imports)


def parse_grid(
    raw: Mapping[str, Any], grid: Sequence[str] = (), *, name: str = "experiment", imports: bool = True
) -> Grid:
    """As ``load_grid``, for a config given as nested dictionaries."""
    check(raw)
    raw = copy.deepcopy(dict(raw))
    table = raw.pop("sweep", {})
    # Check the file's sweep before adding ``grid``; each cell is checked later.
    base = parse(raw | {"sweep": table}, name=name, imports=imports)
    assert base.sweep is not None
    values_of_axes: dict[str, Any] = dict(base.sweep.grid)
    for text in grid:
        path, equals, values = text.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"expected a grid 'table.key=value,value', got {shown(text)}")
        values_of_axes[path.strip()] = _listed(values)
    if not values_of_axes:
        raise ConfigError("expected a grid to sweep over ([sweep] in the config, or --grid PATH=VALUES), got none")
    config = parse(raw | {"sweep": base.sweep.model_dump() | {"grid": values_of_axes}}, name=name, imports=imports)
    assert config.sweep is not None
    for path in values_of_axes:
        if path.split(".")[0].strip() in _FIXED:
            raise ConfigError(f"expected a grid over what may differ between cells, got {shown(path)}")
    axes = _axes(config.sweep.grid)
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_CELLS:
        raise ConfigError(f"expected a grid of at most {MOST_CELLS} cells, got {count}")
    cells = []
    for values in itertools.product(*(axis.values for axis in axes)):
        raw_cell = copy.deepcopy(raw)
        for axis, value in zip(axes, values, strict=True):
            assign(raw_cell, axis.path, value, f"{axis.path}={value}")
        cells.append(parse(raw_cell, name=name, imports=imports))
    labels = [entry.label for entry in config.algorithms]
    for cell in cells:
        if [entry.label for entry in cell.algorithms] != labels:
            raise ConfigError("expected the same labels of algorithms in every cell of a grid, got different ones")
    for axis in axes:
        for entry in (entry for cell in cells for entry in cell.algorithms):
            hidden = _hidden(entry, axis.path)
            if hidden is not None:
                path = f"algorithms.{entry.label}.local.{hidden}"
                raise ConfigError(f"{path}: expected none in a sweep over {axis.path}, got one")
    return Grid(config, axes, tuple(cells))


def _hidden(entry: AlgorithmEntry, path: str) -> str | None:
    """The key of an algorithm's own local settings that makes it ignore this path; None: it does not."""
    table, _, key = path.partition(".")
    if table.strip() != "local":
        return None
    key = key.partition(".")[0].strip()
    # An optimizer of its own also replaces the options, and one of steps and epochs the other.
    keys = {"options": ("options", "optimizer"), "steps": _LENGTHS, "epochs": _LENGTHS}.get(key, (key,))
    return next((option for option in keys if getattr(entry.local, option, None) is not None), None)


def _listed(text: str) -> list[Any]:
    """The values of ``a,b,c`` as TOML; a part that is not TOML stays text."""
    try:
        return tomllib.loads(f"values = [{text}]")["values"]
    except RecursionError:
        raise ConfigError(f"expected values, got brackets that are nested too deep: {shown(text)}") from None
    except ValueError:
        return [toml_value(word) for word in text.split(",")] if text.strip() else []


def _axes(grid: Mapping[str, tuple[Any, ...]]) -> tuple[Axis, ...]:
    last = {path: path.rpartition(".")[2].strip() for path in grid}
    names = list(last.values())
    short = {path: name for path, name in last.items() if names.count(name) == 1 and name not in _TAKEN}
    return tuple(Axis(short.get(path, path), path, values) for path, values in grid.items())
