"""Versions and devices, on which a result may depend besides its config."""

from __future__ import annotations

import datetime
import os
import platform
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "xarray", "fljax")


def environment() -> dict[str, Any]:
    """Versions of the packages, the machine, its devices and the time."""
    import importlib.metadata

    import jax

    from fljax import __version__

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
