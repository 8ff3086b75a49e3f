"""Reads a config from TOML, applies overrides, and writes it as TOML again.

Some configs come with fljax and have names: ``quickstart``, ``incfl/table1_fmnist`` and so on. A wheel has them in the
package; a checkout, and so an editable install, has them in the folder ``configs`` beside it.

The cells of a sweep: one config for each combination of the values of a grid.
"""

from __future__ import annotations

import copy
import itertools
import math
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pydantic
import tomli_w
from pydantic import BaseModel

from fljax.config.errors import ConfigError, raise_all, sentences, tried, without_errors
from fljax.config.forms import DEEPEST_TABLE, LARGEST_FILE, MOST_BASES, MOST_CELLS, check_values, name_of_file
from fljax.config.keys import AlgorithmEntry, Config, Named
from fljax.config.name_resolution import with_resolved_names
from fljax.config.own_data import with_absolute_paths, with_natural_clients
from fljax.core.names import nearest, shown, unknown
from fljax.results.sweeps import Axis


def load(
    path: str | pathlib.Path, overrides: Sequence[str] = (), *, imports: bool = True, needs_data: bool = True
) -> Config:
    """Reads, overrides and checks a config.

    A file may extend another file: ``base = "other.toml"`` (relative to the file's own folder). Tables are merged key
    by key; all other values, including lists of algorithms, replace the values of the base.

    Args:
      path: a TOML file, or the name of a config that comes with fljax (``fljax list configs``). A file of this path
        counts first.
      overrides: each ``"a.b=c"``, where c is a TOML value, or else text. ``algorithms.<label>.key=c`` selects the
        algorithm by its label (by its name if it has no label).
      imports: False refuses import paths (``"module:name"``), so that the config runs only fljax's code. The
        environment variable FLJAX_NO_IMPORT refuses import paths everywhere.
      needs_data: False reads the config of a finished run: its data need not be there, and their options are taken as
        they are.

    Returns:
      The config with all defaults. ``name`` defaults to the name of the file.

    Raises:
      ConfigError: if the file cannot be read, or the file or an override has an error.
    """
    raw = read(path)
    for text in overrides:
        override(raw, text)
    return parse(raw, name=name_of_file(path), imports=imports, needs_data=needs_data)


def read(path: str | pathlib.Path) -> dict[str, Any]:
    """Reads a TOML file or a shipped config, merged with its bases, as dictionaries; checks limits on values alone."""
    file = find_config(path)
    if file == pathlib.Path(path) and not file.exists() and (question := suggestion(path)):
        raise ConfigError(f"expected a config file, got {shown(str(path))}{question}")
    return _read(file)


def _read(path: pathlib.Path, above: tuple[pathlib.Path, ...] = ()) -> dict[str, Any]:
    """Reads a file and merges it with its base; ``above`` has the files that extend this one."""
    try:
        absolute = path.resolve()
        if absolute in above:
            raise ConfigError(f"expected bases that end, got {str(path)!r} as a base of itself")
        if len(above) > MOST_BASES:
            raise ConfigError(f"expected at most {MOST_BASES} configs under one another, got {str(path)!r} as one more")
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"expected a config file, got {shown(str(path))} ({error.strerror})") from None
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        # A cycle of links, or an invalid path.
        raise ConfigError(f"expected a config file, got {shown(str(path))}") from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"expected a config file of at most {LARGEST_FILE} bytes, got {str(path)!r}, which is larger")
    try:
        raw = tomllib.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise ConfigError(f"expected valid TOML in {str(path)!r}, got: {error}") from None
    except RecursionError:
        raise ConfigError(f"expected valid TOML in {str(path)!r}, got brackets that are nested too deep") from None
    check(raw)
    raw = with_absolute_paths(raw, path.parent)
    base = raw.pop("base", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise ConfigError(f"base: expected the path of a config file, got {base!r}")
    return _joined(_read(path.parent / base, (*above, absolute)), raw)


def _joined(base: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in raw.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        merged[key] = _joined(base[key], value) if both else value
    return merged


def check(raw: Mapping[str, Any]) -> None:
    """Raises a ConfigError if a value is invalid for every key (``fljax.config.forms``)."""
    try:
        check_values(raw)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse(raw: Mapping[str, Any], *, name: str = "experiment", imports: bool = True, needs_data: bool = True) -> Config:
    """Checks a config given as nested dictionaries, as ``load`` does; ``name`` is the default of the key ``name``."""
    check(raw)
    raw = with_absolute_paths(dict(raw), pathlib.Path())
    errors: list[ConfigError] = []
    if needs_data:
        raw = tried(errors, with_natural_clients, raw, imports) or raw
    broken = frozenset({"data"} if errors else ())
    raw = {"name": name, **raw}
    try:
        config = Config.model_validate(raw)
    except pydantic.ValidationError as error:
        if told := sentences(error, raw, broken):
            errors.append(ConfigError(*told))
        config, broken = without_errors(raw, error, broken)
    checked = None if config is None else tried(errors, with_resolved_names, config, imports, needs_data, broken)
    raise_all(errors)
    assert checked is not None
    return checked


def override(raw: dict[str, Any], text: str) -> None:
    """Applies one ``"a.b=c"`` in place."""
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"expected an override 'table.key=value', got {shown(text)}")
    assign(raw, path, toml_value(value), text)


def toml_value(text: str) -> Any:
    """The value of a piece of TOML; the text itself if it is not TOML."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise ConfigError(f"expected a value, got brackets that are nested too deep: {shown(text)}") from None
    except ValueError:
        parsed = {}
    return parsed["value"] if set(parsed) == {"value"} else text.strip()


def assign(raw: dict[str, Any], path: str, value: Any, text: str) -> None:
    """Sets the key at a dotted path in place; ``text`` is the user's override, for error messages."""
    keys = [key.strip() for key in path.split(".")]
    if not all(keys) or len(keys) > DEEPEST_TABLE:
        raise ConfigError(f"expected an override 'table.key=value', got {shown(text)}")
    table: Any = raw
    if keys[0] in ("algorithms", "scenarios") and len(keys) > 1:
        table, keys = _entry(raw, keys[0], path.strip())
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"expected {key!r} in the override {shown(text)} to be a table, got {shown(table)}")
    table[keys[-1]] = value


def _entry(raw: Mapping[str, Any], kind: str, path: str) -> tuple[Any, list[str]]:
    """The table of the algorithm or scenario in a path such as ``algorithms.incfl.eps``, and the remaining keys."""
    rest = path.removeprefix(f"{kind}.")
    entries = raw.get(kind, [])
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    labels = {str(entry.get("label", entry.get("name"))): entry for entry in entries}
    for label in sorted(labels, key=len, reverse=True):  # a label may contain dots
        if rest.startswith(f"{label}.") and len(rest) > len(label) + 1:
            return labels[label], rest[len(label) + 1 :].split(".")
    label, _, key = rest.partition(".")
    if label in labels and not key:
        raise ConfigError(f"expected an override '{kind}.{label}.key=value', got {path!r} without a key")
    raise ConfigError(f"{kind}: {unknown('label', label, labels)}")


def dumps(config: Config) -> str:
    """The config as TOML; ``load`` reads an equal config from this text."""
    return tomli_w.dumps(_plain(config))


def _plain(value: Any) -> Any:
    """Converts tables to dictionaries, puts options beside the table's own keys, and omits None."""
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        options = fields.pop("options") if isinstance(value, Named) else {}
        plain = {key: _plain(inner) for key, inner in fields.items()}
        # An empty table is the default, except where None is.
        kinds = type(value).model_fields
        chosen = {key: inner for key, inner in plain.items() if inner != {} or kinds[key].default is None}
        return {key: inner for key, inner in {**chosen, **_plain(options)}.items() if inner is not None}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


_PACKAGE = pathlib.Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def shipped_configs() -> dict[str, pathlib.Path]:
    """The files of all shipped configs by name, sorted."""
    folder = next((place for place in _FOLDERS if (place / "quickstart.toml").is_file()), None)
    if folder is None:
        return {}
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def find_config(config: str | pathlib.Path) -> pathlib.Path:
    """The file of a config: the given path, or else the shipped config of this name (with or without ``.toml``)."""
    path = pathlib.Path(config)
    try:
        if path.exists() and not path.is_dir():
            return path
    except (OSError, ValueError):  # a path that no file can have
        return path
    return shipped_configs().get(path.as_posix().removesuffix(".toml"), path)


def suggestion(config: str | pathlib.Path) -> str:
    """A question that names the shipped config with the most similar name; "" if none is similar."""
    close = nearest(pathlib.Path(config).as_posix().removesuffix(".toml"), shipped_configs())
    return "" if close is None else f" (did you mean the shipped config {close!r}?)"


def about_config(path: pathlib.Path) -> str:
    """A config's description of itself: the comment at its top, in one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("#").strip() for line in lines[:top])


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
