"""Options with which tiny programs compile quickly, and the switch to double precision."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.experimental

# Under the name that this JAX has for it.
enable_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # type: ignore


@functools.cache
def quick_options() -> dict[str, Any] | None:
    """Compiler options with which tiny programs compile three times faster; None where XLA does not know them."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.default_backend() == "cpu":
        options["xla_cpu_use_fusion_emitters"] = False
    try:
        jax.jit(lambda x: x + 1, compiler_options=options)(0)
    except Exception:
        return None
    return options
