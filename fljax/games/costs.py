"""The cost of the runs of all coalitions, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool

from fljax.core.names import duration
from fljax.engine import Plan
from fljax.engine.whole_runs.over import client_steps
from fljax.games.tables import Cost
from fljax.protocol import Federation

_NUMBER = 8  # bytes in the table


def estimate(plan: Plan, federation: Federation, members: Bool[np.ndarray, "M N"], rounds: int, seeds: int) -> Cost:
    """``runs = M R`` and ``client_steps = R rounds sum_S min(m, |S|) mean_{i in S} tau_i``, with the cohort's size m.

    Args:
      plan: of the algorithm. Its ``local`` says the steps ``tau_i`` of each client, and ``clients_per_round`` the m.
      federation: its clients.
      members: ``[M, N]``.
      rounds: of each run.
      seeds: R.

    Returns:
      ``Cost`` without seconds. Client-steps are NaN if the plan has no ``local``, and an algorithm that trains in a way
      of its own makes others.
    """
    runs = len(members) * seeds
    size = runs * (members.shape[1] + 1) * _NUMBER
    inner = plan.arguments.get("arguments")  # of the plans of configs
    arguments: Mapping[str, Any] = inner if isinstance(inner, Mapping) else plan.arguments
    cohort = arguments.get("clients_per_round") or members.shape[1]
    per_round = client_steps(plan, federation, members, cohort)
    return Cost(runs, np.nan if per_round is None else per_round * rounds * seeds, size, np.nan)


def in_words(cost: Cost) -> str:
    """``1,024 runs, 2.05 million client-steps, 90 kB``, and the time if it is known."""
    parts = [f"{cost.runs:,} runs"]
    if np.isfinite(cost.client_steps):
        parts.append(f"{_number(cost.client_steps)} client-steps")
    parts.append(f"{_number(cost.bytes)} bytes")
    if np.isfinite(cost.seconds):
        parts.append(duration(cost.seconds))
    return ", ".join(parts)


def _number(value: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}"
