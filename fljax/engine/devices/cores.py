"""The cores of a CPU as JAX devices, to spread clients over them."""

from __future__ import annotations

import importlib.metadata
import os

import jax

from fljax.core.signatures import is_whole

# XLA ends the process when one device waits for another for more than a minute, which can happen if one device's
# clients are much larger. From jaxlib 0.10 on flags change this time; earlier versions do not start with these flags.
PATIENT = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2]) >= (0, 10)
_WAITING = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 3600,
    "xla_cpu_collective_call_terminate_timeout_seconds": 10**6,
}


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_cores(count: int | None = None) -> int:
    """Makes the CPU appear as ``count`` devices to JAX, so that ``simulate`` spreads clients over the cores.

    Call it once, at the top of a script or notebook, before anything is computed with JAX: the number of devices is
    fixed when JAX starts. ``fljax run`` calls it. Accelerators are not affected. It adds flags to XLA_FLAGS so that
    devices may wait for each other; before jaxlib 0.10 a wait of more than a minute may end the process.

    Args:
      count: number of devices; None: one for each core that this process may run on.

    Returns:
      The number of CPU devices.

    Raises:
      ValueError: if ``count`` is not positive.
      RuntimeError: if JAX has started with another number of devices, or XLA_FLAGS set another number.
    """
    count = available_cores() if count is None else count
    if not is_whole(count) or count < 1:
        raise ValueError(f"expected a positive number of cores, got {count!r}")
    if count > 1 and PATIENT:
        flags = os.environ.get("XLA_FLAGS", "")
        waiting = [f"--{name}={seconds}" for name, seconds in _WAITING.items() if name not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *waiting]).strip()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", count)
            return count
        except RuntimeError:  # JAX has started
            pass
    there = len(jax.devices("cpu"))  # chosen already
    if there != count:
        raise RuntimeError(
            f"expected use_cores({count}) to be called before JAX starts, got a JAX that runs with {there} CPU "
            "device(s) already; restart the notebook or script and call it first"
        )
    return count
