"""Keys that a config on a user's own data may leave out: the partition and the number of clients."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fljax.config import name_resolution as checks
from fljax.config.errors import ConfigError, at
from fljax.config.forms import unseen_clients
from fljax.config.keys import Data
from fljax.core.names import has_separator, shown, unknown
from fljax.core.signatures import parameters_of

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
