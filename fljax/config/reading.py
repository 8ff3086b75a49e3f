"""Reads a config from TOML, applies overrides, and writes it as TOML again; a grid gives one config for each cell.

Some configs come with fljax and have names: ``quickstart``, ``incfl/table1_fmnist`` and so on. A wheel has them in the
package; a checkout, and so an editable install, has them in the folder ``configs`` beside it. A config on a user's own
data may leave out the partition and the number of clients.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import os
import pathlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pydantic
import tomli_w
from pydantic import BaseModel

from fljax.config import name_resolution as checks
from fljax.config.forms import (
    DEEPEST_TABLE,
    LARGEST_FILE,
    MOST_BASES,
    MOST_CELLS,
    check_values,
    name_of_file,
    unseen_clients,
)
from fljax.config.keys import (
    AlgorithmEntry,
    Config,
    ConfigError,
    Data,
    Named,
    at,
    raise_all,
    sentences,
    tried,
    without_errors,
)
from fljax.config.name_resolution import with_resolved_names
from fljax.core.names import did_you_mean, has_separator, shown, unknown
from fljax.core.values import parameters_of
from fljax.results.sweeps import Axis

if TYPE_CHECKING:
    from fljax.data.partitions.assignment import Owners

_NO_CLIENTS = (
    "data: expected client, which says whose row it is, or a partition (iid, dirichlet, ...) and its number of "
    "clients, got neither"
)


def with_absolute_paths(raw: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """The config with paths of data, contributions and requirements, relative to its ``folder``, made absolute."""
    entries = raw.get("algorithms")
    if isinstance(entries, list):
        raw = {**raw, "algorithms": [_with_absolute_file(entry, "contribution", folder) for entry in entries]}
    raw = _with_absolute_grid(_with_absolute_file(raw, "requirement", folder), folder)
    data = raw.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("folder"), str):
        raw = {**raw, "data": {**data, "folder": _absolute(data["folder"], folder)}}
    name = data.get("dataset") if isinstance(data, Mapping) else None
    if not isinstance(name, str) or not (":" in name or "." in name or has_separator(name)):
        return raw  # so that reading other configs does not import JAX
    from fljax.data.registry import absolute

    return {**raw, "data": {**raw["data"], "dataset": absolute(name, folder)}}


def _with_absolute_file(table: Any, key: str, folder: pathlib.Path) -> Any:
    """The table whose entry ``key``, if it is a table with a ``file``, has this file's absolute path."""
    entry: Any = table.get(key) if isinstance(table, Mapping) else None
    file = entry.get("file") if isinstance(entry, Mapping) else None
    if not isinstance(file, str):
        return table
    return {**table, key: {**entry, "file": _absolute(file, folder)}}


def _with_absolute_grid(raw: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """The config with paths of such files among the values of its sweep's grid made absolute."""
    sweep = raw.get("sweep")
    grid: Any = sweep.get("grid") if isinstance(sweep, Mapping) else None
    if not isinstance(grid, Mapping):
        return raw
    axes = {
        path: [_absolute(value, folder) if isinstance(value, str) else value for value in values]
        if isinstance(values, list) and re.search(r"(^requirement|\.contribution)\.file$", str(path).strip())
        else values
        for path, values in grid.items()
    }
    return {**raw, "sweep": {**raw["sweep"], "grid": axes}}


def _absolute(file: str, folder: pathlib.Path) -> str:
    return os.path.normpath(folder.absolute() / os.path.expanduser(file))


def with_natural_clients(raw: dict[str, Any], imports: bool) -> dict[str, Any]:
    """The config with the partition "natural" and its number of clients, if its data are the user's own."""
    data = raw.get("data")
    name = data.get("dataset") if isinstance(data, Mapping) else None
    keys = raw["data"].keys() if isinstance(name, str) else set()
    if not isinstance(name, str) or ({"partition", "clients"} <= keys <= Data.model_fields.keys()):
        return raw
    from fljax.data.federation import federations
    from fljax.data.registry import find_source, load, own_source

    with at("data.dataset"):
        # A name that is misspelt explains more than a key that is missing.
        find_source(name, checks.registries().datasets, imports=imports)
        source = own_source(name)
    if source is None:
        return raw
    table = {"partition": "natural", **_with_options(raw["data"], parameters_of(source))}
    options = table.get("dataset_options", {})
    # Clients are counted, by reading the data set once, only if the config does not say how many.
    if table["partition"] != "natural" or "clients" in table or not isinstance(options, Mapping):
        return {**raw, "data": table}
    if "client" in parameters_of(source) and not options.get("client"):
        raise ConfigError(_NO_CLIENTS)
    options = checks.checked_source(name, options, checks.registries()._replace(imports=imports)).arguments
    folder = table.get("folder")
    text = json.dumps(options, sort_keys=True, default=str)
    owners = _owners(name, text, folder if isinstance(folder, str) else None, _stamp(name))
    seen = _count_seen(owners, table.get("unseen", 0))
    apart = {key: table[key] for key in ("unseen", "train_fraction", "test", "held_fraction") if key in table}
    apart |= dict(table.get("partition_options", {}))
    if apart.keys() - {"unseen", "train_fraction"}:  # what may leave owners without rows
        try:
            dataset, seeds = load(name, folder=folder, **options), raw.get("seeds", 1)
            made = federations(dataset, "natural", seeds=seeds, examples="host", **apart)
            seen = made[0].clients.id.shape[-1]
        except (TypeError, ValueError):
            pass  # the check of all keys, or of the data, says what is wrong
    return {**raw, "data": {**table, "clients": seen}}


def _count_seen(owners: Owners, asked: Any) -> int:
    """The number of owners that may train beside the unseen ones that a config gives."""
    from fljax.data.partitions.assignment import chosen_owners, count_seen

    everybody = len(owners.training)
    try:
        unseen = unseen_clients(asked)
    except ValueError:
        return everybody  # the check of all keys says what is wrong
    with at("data.unseen"):
        seen = count_seen(owners, unseen, chosen_owners(owners, unseen))
    if seen < 1:
        raise ConfigError(
            f"data.unseen: expected fewer than {everybody}, the number of clients in the data, got {shown(asked)}"
        )
    return seen


def _with_options(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The table ``data`` with its options of the data set in ``dataset_options``."""
    from fljax.data.arrays import advice_on_clients

    extra = [key for key in data if key not in Data.model_fields]
    for key in extra:
        if key not in names:
            advice = advice_on_clients(key, str(data.get("dataset")))
            raise ConfigError(f"data: {unknown('key', key, [*Data.model_fields, *names])}{advice}")
    options = data.get("dataset_options", {})
    if not extra or not isinstance(options, Mapping):
        return dict(data)
    both = next((key for key in extra if key in options), None)
    if both is not None:
        raise ConfigError(f"data.{both}: expected {both} here or in data.dataset_options, got both")
    keys = {key: value for key, value in data.items() if key not in extra}
    return {**keys, "dataset_options": {**options, **{key: data[key] for key in extra}}}


def _stamp(name: str) -> tuple[tuple[int, int], ...]:
    """Changes if the file does, or a file in the folder or its folders, so that another file is counted anew."""
    place = pathlib.Path(name)
    try:
        statuses = [file.stat() for file in (place, *sorted(place.glob("*")), *sorted(place.glob("*/*")))]
    except OSError:
        return ()
    return tuple((file.st_mtime_ns, file.st_size) for file in statuses)


@functools.lru_cache(maxsize=64)  # the cells of a sweep ask for the same number
def _owners(name: str, options: str, folder: str | None, stamp: tuple[tuple[int, int], ...]) -> Owners:
    from fljax.data.partitions.assignment import owners_of
    from fljax.data.registry import load

    with at("data.dataset"):
        owners = owners_of(load(name, folder=folder, **json.loads(options)))
    if not len(owners.training):
        raise ConfigError(_NO_CLIENTS)
    return owners


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
    if file == pathlib.Path(path) and not file.exists():
        name, what = pathlib.Path(path).as_posix().removesuffix(".toml"), "the shipped config "
        if question := did_you_mean(name, shipped_configs(), what):
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
    check_keys(raw)
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


def check_keys(raw: Mapping[str, Any]) -> None:
    """Raises a ConfigError if a value is invalid for every key (``fljax.config.forms``)."""
    try:
        check_values(raw)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse(raw: Mapping[str, Any], *, name: str = "experiment", imports: bool = True, needs_data: bool = True) -> Config:
    """Checks a config given as nested dictionaries, as ``load`` does; ``name`` is the default of the key ``name``."""
    check_keys(raw)
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


def about_config(path: pathlib.Path) -> str:
    """A config's description of itself: the comment at its top, in one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("#").strip() for line in lines[:top])


# Keys that must be equal in all cells: they determine the name or the dimensions of the results, or belong to runs of
# several cells, or to no run, as settings of metrics do.
_FIXED = ("name", "seeds", "rounds", "evaluate_every", "clients_per_evaluation")
_FIXED += ("callbacks", "metrics", "stop", "sweep")
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
    check_keys(raw)
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
    if any([entry.label for entry in cell.algorithms] != labels for cell in cells):
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
