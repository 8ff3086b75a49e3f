"""Counts what one client computes: programs traced inside ``counting`` report every gradient and every pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal, get_args

import jax
from jaxtyping import Array

# "gradient_steps": gradients of one batch. "forward_passes": inference passes of a model over all rows of a subset.
Kind = Literal["gradient_steps", "forward_passes"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_COUNTS: ContextVar[dict[str, int] | None] = ContextVar("counts", default=None)


@contextlib.contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts by kind, which grow while programs run that are traced in the block; ``jax.effects_barrier`` waits."""
    counts: dict[str, int] = dict.fromkeys(KINDS, 0)
    token = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(token)


def tally(kind: Kind, value: Array) -> None:
    """Adds 1 to a count whenever ``value`` is computed; under ``vmap`` once for each of its values."""
    counts = _COUNTS.get()
    if counts is not None:
        jax.debug.callback(functools.partial(_add, counts, kind), value)


def _add(counts: dict[str, int], kind: str, value: Any) -> None:
    counts[kind] += 1
