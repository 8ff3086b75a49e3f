"""Where a run happens: versions, devices, memory."""

from __future__ import annotations

import datetime
import os
import platform
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "xarray", "fljax")


def environment() -> dict[str, Any]:
    """What a result may depend on beside the config."""
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
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def memory() -> dict[str, str]:
    """Of the machine, and of each accelerator that tells."""
    import jax

    found = {}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        found["machine"] = f"{pages * size / 2**30:.1f} GiB"
    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit:
            found[f"{device.platform}:{device.id}"] = f"{limit / 2**30:.1f} GiB"
    return found
