"""Memory of compiled programs, by XLA's own analysis. Nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jaxtyping import PyTree

# XLA assigns memory before it makes machine code. So quick machine code, in half the time, has the same analysis.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
# The two numbers of lanes whose programs are compiled for ``lane_bytes``.
FITTED = (2, 4)


def made_bytes(compiled: Any) -> int | None:
    """Bytes that a compiled program (``jax.stages.Compiled``) holds at once on each device, without its arguments.

    These are its results, except those that take the place of donated arguments, and all that it computes in between.
    None if XLA does not tell.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    return found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


def lane_bytes(chunk: Callable[..., PyTree], row: PyTree, *shared: PyTree, enough: int = 0) -> int:
    """Bytes that one more lane adds to a chunk: the slope of a line through two compiled numbers of lanes.

    Args:
      chunk: ``(rows [lanes, ...], *shared) -> results``, what one device computes side by side.
      row: one lane's part of ``rows``, arrays or their shapes.
      shared: what all lanes read, arrays or their shapes.
      enough: bytes of one lane up to which the exact number does not matter. A program before compilation never holds
        more than it reads and writes; if this bound is at most ``enough``, it is returned and nothing is compiled.

    Returns:
      The bytes, at least 1. If the device has no memory for so few lanes, a number larger than any memory.
    """

    def lowered(lanes: int) -> jax.stages.Lowered:
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((lanes, *leaf.shape), leaf.dtype), row)
        return jax.jit(chunk).lower(rows, *shared)

    programs = [lowered(FITTED[0])]
    bound = _traffic(programs[0])
    if bound is not None and bound <= enough * FITTED[0]:
        return max(1, math.ceil(bound / FITTED[0]))
    programs += [lowered(lanes) for lanes in FITTED[1:]]
    with ThreadPoolExecutor(len(FITTED)) as pool:
        jobs = [pool.submit(each.compile, QUICK) for each in programs]
        try:
            few, more = (made_bytes(job.result()) for job in jobs)
        except jax.errors.JaxRuntimeError:
            return 2**62
    if few is None or more is None:
        return 1
    return max(1, (more - few) // (FITTED[1] - FITTED[0]))


def _traffic(lowered: jax.stages.Lowered) -> float | None:
    """Bytes that the operations of a program read and write, each once and before any is fused; None if unknown."""
    found = lowered.cost_analysis()
    number = found.get("bytes accessed") if isinstance(found, Mapping) else None
    return number if isinstance(number, int | float) and number > 0 else None
