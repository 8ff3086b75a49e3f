"""Whether two results are of one run: their configs, their version of fljax, their grid; and where they were computed.

``save_models`` changes no result, so configs that differ in it are equal for resuming. ``origin.json`` says what
checkpoints are of, with the record of ``fljax.core.sameness``. A run goes on by force where these or the data differ,
and although ``environment.json`` has other packages and devices; its results say so.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.core.files import write
from fljax.core.sameness import FORCED, Differences, code_of, compared, goes_on, named_in, record, without_later

# Keys that change no result.
WITHOUT_EFFECT = ("save_models",)
_NAMED = 6  # further keys in a sentence
# Keys with places of files; what is in the files is compared elsewhere.
_OF_THE_MACHINE = ("data.dataset", "data.folder", "model.initial", "requirement.file")
LONGEST = 60  # number of characters of a value to show
CHECKPOINTS, ORIGIN, RECORD = "checkpoints", "origin.json", "record"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "xarray", "fljax")


class Origin(NamedTuple):
    """The run that results or checkpoints are of."""

    config: str  # as TOML
    fljax: str  # its version
    grid: str | None  # of a sweep, as in the attributes of its results; None for a run
    record: str = ""  # ``record_of`` the config in the process that wrote it, as JSON; "" of an older fljax


def record_of(text: str) -> dict[str, str]:
    """The record of this process, with the codes of what a config names; a comparison has its codes in its text."""
    settings = tomllib.loads(text)
    codes = {name: code_of(value) for name, value in named_in(settings).items()}
    return record(codes | settings.get("code", {}))


def check_same_run(
    origin: Origin,
    text: str,
    grid: str | None,
    what: str,
    where: pathlib.Path,
    remedy: str | None = None,  # what a user may do if the config differs
    *,
    may_differ: bool = False,  # the run goes on for more rounds or has more algorithms: configs are not compared
    force: bool | None = False,  # None: records are not compared
) -> Differences:
    """What differs from ``what`` in ``where``; a ValueError if it is of another run, or of a fljax that is too old."""
    from fljax.core.version import __version__

    begin, place = f"expected {what} of", f"in {str(where)!r} to resume them, got those of"
    if not goes_on(origin.fljax, bool(origin.record)):
        raise ValueError(f"{begin} fljax {__version__} {place} fljax {origin.fljax}")
    if not may_differ and (changed := difference(origin.config, text)) is not None:
        hint = "" if remedy is None else f" ({remedy})"
        raise ValueError(
            f"expected the config of the {what} in {str(where)!r} to resume them, got a changed one: {changed}{hint}"
        )
    if origin.grid != grid:
        commands = {True: "fljax run", False: "fljax sweep"}
        raise ValueError(f"{begin} {commands[grid is None]} {place} another {commands[origin.grid is None]}")
    found = Differences() if force is None else compared(json.loads(origin.record or "{}"), record_of(text))
    if found.changed and not force:
        raise ValueError(
            f"expected the settings and the code of the {what} in {str(where)!r} to resume them, got others: "
            f"{' and '.join(found.changed)} (--force or force=True goes on, and the results say so)"
        )
    noted = [f"{words} ({what})" for words in found.noted if "JAX is" not in words]
    noted += [] if origin.fljax == __version__ else [f"fljax {origin.fljax} wrote the {what}"]
    return Differences(found.changed, tuple(noted))


def difference(earlier: str, now: str) -> str | None:
    """The keys in which configs differ, as "rounds is 6 there and 4 here; seeds differs, too"; None: all are equal."""
    changed = differences(earlier, now)
    if not changed:
        return None
    (key, (first, second)), *others = changed.items()
    named = [name for name, _ in others[:_NAMED]] + [f"{len(others) - _NAMED} more"] * (len(others) > _NAMED)
    verb = "differ" if len(named) > 1 else "differs"
    more = f"; {' and '.join(filter(None, [', '.join(named[:-1]), named[-1]]))} {verb}, too" if named else ""
    return f"{key} is {first} there and {second} here{more}"


def differences(earlier: str, now: str, without: Sequence[str] = WITHOUT_EFFECT) -> dict[str, tuple[str, str]]:
    """The two values, as short texts, of every key by its path in which configs differ; none of ``without``."""
    first, second = _flat(tomllib.loads(earlier)), _flat(tomllib.loads(now))
    # In the record, or the mark that an older fljax.compare gave a task.
    without = (*without, "task", *(key for key in {**first, **second} if key.startswith("code.")))
    first, second = without_later(second, first), without_later(first, second)
    keys = [key for key in {**first, **second} if key not in without and first.get(key) != second.get(key)]
    return {key: (_shown(first.get(key)), _shown(second.get(key))) for key in keys}


def labels_in(settings: Mapping[str, Any]) -> list[str]:
    """The labels of the algorithms of a config or a comparison."""
    return [str(entry.get("label", entry.get("name"))) for entry in settings.get("algorithms", [])]


def added(earlier: str, now: str) -> list[str]:
    """The labels that a config has after an earlier one's; empty if anything else that changes results differs."""
    first, second = (labels_in(tomllib.loads(text)) for text in (earlier, now))
    new = tuple(f"algorithms.{place}." for place in range(len(first), len(second)))
    if not new or any(not key.startswith(new) for key in differences(earlier, now)):
        return []
    return second[len(first) :]


def flat(text: str) -> dict[str, str]:
    """Every value of a config as text, by its dotted path, but places of files and keys that change no result."""
    # Places of files may differ by machine.
    without = (*WITHOUT_EFFECT, *_OF_THE_MACHINE)
    values = _flat(tomllib.loads(text))
    paths = [key for key, text in values.items() if text.startswith(("'", '"')) and ("/" in text or "\\\\" in text)]
    return {key: value for key, value in values.items() if key not in without and key not in paths}


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Every value as text, by its dotted path; as text, NaN equals NaN and 1 differs from True."""
    if isinstance(value, Mapping) and value:
        pairs = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
        # Paths of algorithms and scenarios have a position and a name, since their order matters.
        names = [str(entry.get("label", entry.get("name", ""))) for entry in value]
        pairs = [
            (f"{place}.{name}" if name else str(place), entry)
            for place, (name, entry) in enumerate(zip(names, value, strict=True))
        ]
    else:
        return {path: repr(value)}
    return {name: text for key, inner in pairs for name, text in _flat(inner, f"{path}.{key}" if path else key).items()}


def _shown(text: str | None) -> str:
    if text is None:
        return "not set"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def begin_checkpoints(directory: pathlib.Path, text: str, grid: str | None) -> None:
    """Makes the folder of checkpoints, which names the config and the version that they are of."""
    from fljax.core.version import __version__

    path = directory / CHECKPOINTS / ORIGIN
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"config": text, "fljax": __version__, "grid": grid, RECORD: json.dumps(record_of(text))}
        write(path, json.dumps(told).encode())


def check_checkpoints(directory: pathlib.Path, text: str, grid: str | None, force: bool = False) -> Differences:
    """Raises a ValueError if the checkpoints of a folder are of another run; removes those that name none."""
    folder = directory / CHECKPOINTS
    if not folder.is_dir():
        return Differences()
    try:
        named = json.loads((folder / ORIGIN).read_bytes())
        origin = Origin(named["config"], named["fljax"], named["grid"], named.get(RECORD, ""))
        forced = tuple(named.get(FORCED, ()))
    except (OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)  # nobody can say what they are of
        return Differences()
    remedy, grown = f"without the folder {CHECKPOINTS!r} what they have is given up", bool(added(origin.config, text))
    found = check_same_run(origin, text, grid, "checkpoints", directory, remedy, may_differ=grown, force=force)
    # What goes on by force has the record of now from then on.
    if found.changed:
        forced = tuple(dict.fromkeys((*forced, *found.changed)))
        told = named | {RECORD: json.dumps(record_of(text)), FORCED: forced}
        write(folder / ORIGIN, json.dumps(told).encode())
    return Differences(forced, found.noted)


def environment() -> dict[str, Any]:
    """Versions of the packages, the machine, its devices and the time."""
    import importlib.metadata

    import jax

    from fljax.core.version import __version__

    versions = {"python": platform.python_version(), "fljax": __version__}
    for package in PACKAGES:
        try:
            versions.setdefault(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
    return {
        "versions": versions,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": devices,
        "x64": bool(getattr(jax.config, "jax_enable_x64", False)),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_environment(path: pathlib.Path, resumed: bool) -> tuple[str, ...]:
    """Writes this process's environment, which starts JAX, and returns notes; "earlier" keeps a different one."""
    now = environment()
    notes: tuple[str, ...] = ()
    if resumed:
        before = read_environment(path)
        earlier = before.pop("earlier", [])
        changed = {name for name in ("versions", "devices", "platform") if before.get(name) != now[name]}
        if before and changed:
            earlier = [*earlier, before]
            notes = (f"{' and '.join(sorted(changed))} are not those of the earlier results, see {path.name}",)
        now |= {"earlier": earlier} if earlier else {}
    _write(path, now)
    return notes


def join_environments(path: pathlib.Path, parts: Mapping[int, pathlib.Path]) -> None:
    """Writes the environments of parts, by number, each different one once ("others"); JAX is not started."""
    different: list[dict[str, Any]] = []
    for number, file in parts.items():
        of_part = read_environment(file)
        if not of_part:
            continue
        apart = {"parts": 0, "time": 0}  # what is not compared
        same = [other for other in different if other | apart == of_part | apart]
        if same:
            same[0]["parts"].append(number)
        else:
            different.append(of_part | {"parts": [number]})
    if different:
        first, *others = different
        _write(path, first | ({"others": others} if others else {}))


def read_environment(path: pathlib.Path) -> dict[str, Any]:
    """What a file of these functions holds; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def _write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    write(path, (json.dumps(content, indent=2) + "\n").encode())
