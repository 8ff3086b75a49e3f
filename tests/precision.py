"""The switch to double precision, under the name that this JAX has for it."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental

enable_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # type: ignore
