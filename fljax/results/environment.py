"""Versions and devices, on which a result may depend besides its config."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

from fljax.core.files import write

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "xarray", "fljax")


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
    """Writes the environment of this process, which starts JAX.

    Args:
      path: the file.
      resumed: whether results of an earlier process go on; if its environment was another one, "earlier" keeps it.

    Returns:
      Sentences for the user.
    """
    found = environment()
    notes: tuple[str, ...] = ()
    if resumed:
        before = read_environment(path)
        earlier = before.pop("earlier", [])
        changed = {name for name in ("versions", "devices", "platform", "x64") if before.get(name) != found[name]}
        if before and changed:
            earlier = [*earlier, before]
            notes = (f"{' and '.join(sorted(changed))} are not those of the earlier results, see {path.name}",)
        found |= {"earlier": earlier} if earlier else {}
    _write(path, found)
    return notes


def join_environments(path: pathlib.Path, parts: Mapping[int, pathlib.Path]) -> None:
    """Writes the environments of parts that ran apart, each different one once; JAX is not started.

    The file has that of the first part, with the numbers of the parts that it is of, and "others" lists the others.
    Times are not compared.

    Args:
      path: the file.
      parts: by number of the part the file of its environment.
    """
    different: list[dict[str, Any]] = []
    for number, file in parts.items():
        found = read_environment(file)
        if not found:
            continue
        same = [each for each in different if each | {"parts": 0, "time": 0} == found | {"parts": 0, "time": 0}]
        if same:
            same[0]["parts"].append(number)
        else:
            different.append(found | {"parts": [number]})
    if different:
        first, *others = different
        _write(path, first | ({"others": others} if others else {}))


def read_environment(path: pathlib.Path) -> dict[str, Any]:
    """What a file of these functions holds; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def _write(path: pathlib.Path, found: Mapping[str, Any]) -> None:
    write(path, (json.dumps(found, indent=2) + "\n").encode())
