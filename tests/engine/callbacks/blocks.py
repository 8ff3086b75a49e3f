"""Blocks without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax.engine import Block, State


def block(
    metrics: Mapping[str, Any], *, seeds: Sequence[int] = (0, 1), round: int = 4, rounds: int = 8, ran: int = 4
) -> Block:
    """A block with these metrics, ``[runs]`` or ``[runs, clients]`` each."""
    numbers: Any = np.asarray(seeds, np.uint32)
    state = State(numbers, np.full(len(seeds), round), (), (), (), np.full(len(seeds), -1))  # type: ignore[arg-type]
    return Block(round, rounds, ran, {name: np.asarray(each) for name, each in metrics.items()}, state, 2.0, ())
