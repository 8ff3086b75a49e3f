"""Memory of compiled programs, and bytes that programs read and write, by XLA's own analysis. Nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import PyTree

# XLA assigns memory before it makes machine code. So quick machine code, in half the time, has the same analysis.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}


def made_bytes(compiled: Any) -> int | None:
    """Bytes that a compiled program (``jax.stages.Compiled``) holds at once on each device, without its arguments.

    These are its results, except those that take the place of donated arguments, and all that it computes in between.
    None if XLA does not tell.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    return found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


def lane_bytes(chunk: Callable[..., PyTree], row: PyTree, *shared: PyTree) -> int:
    """Bytes that the operations of one lane read and write, each once and before any is fused; nothing is compiled.

    A loop counts as one turn. Half of the bytes of a chunk of two lanes; 0 if this XLA does not tell.

    Args:
      chunk: ``(rows [lanes, ...], *shared) -> results``, what one device computes side by side.
      row: one lane's part of ``rows``, arrays or their shapes.
      shared: what all lanes read, arrays or their shapes.
    """
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), row)
    found = jax.jit(chunk).lower(rows, *shared).cost_analysis()
    number = found.get("bytes accessed") if isinstance(found, Mapping) else None
    return math.ceil(number / 2) if isinstance(number, int | float) and number > 0 else 0
