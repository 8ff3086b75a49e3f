"""The cores of a CPU as devices, over which clients are spread."""

from __future__ import annotations

import os

import jax


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_cores(count: int | None = None) -> int:
    """Makes the CPU appear as ``count`` devices to JAX, so that ``simulate`` spreads clients over the cores.

    Call it once, at the top of a script or notebook, before anything is computed with JAX: the number of devices is
    fixed when JAX starts. ``fljax run`` does it by itself. Accelerators are not affected.

    Args:
      count: number of devices; None: one for each core that this process may run on.

    Returns:
      The number of CPU devices.

    Raises:
      ValueError: if ``count`` is not positive.
      RuntimeError: if JAX has started with another number of devices.
    """
    count = available_cores() if count is None else count
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"expected a positive number of cores, got {count!r}")
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return len(jax.devices("cpu"))  # chosen already, and JAX takes only one of the two settings
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        there = len(jax.devices("cpu"))
        if there != count:
            raise RuntimeError(
                f"expected use_cores({count}) to be called before JAX starts, got a JAX that runs with {there} CPU "
                "device(s) already; restart the notebook or script and call it first"
            ) from None
    return count
