"""Games as workloads: every coalition retrained, or a certificate of truthfulness, call after call."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import parts

import fljax
from fljax import algorithms, data, games
from fljax.scenarios import Strategy

ROUNDS = 5
SEEDS = 5
DEVIATIONS = {"no effort": Strategy(effort=0.0), "update times 2": Strategy(own=2.0)}


class Game:
    """What a workload's ``game`` computes in one call."""

    def __init__(self, work: Any) -> None:
        meta = work.meta
        arguments = {"task": parts.task(meta), "local": parts.local(meta), "clients_per_round": None}
        self.plan = fljax.Plan(algorithms.fedavg, arguments)
        self.name = meta["game"]
        tables = parts.federation(meta, work.x, work.y, work.rows, work.extra["sizes"])
        self.federation = tables if meta["pixels"] else standardised(work)

    def go(self, count: int) -> float:
        """Plays so many times, and gives the seconds that it took."""
        began = time.perf_counter()
        for _ in range(count):
            if self.name == "coalitions":
                games.coalitions(self.plan, self.federation, rounds=ROUNDS)
            else:
                asked: Any = {"deviations": DEVIATIONS, "candidates": 0, "controls": False}
                games.certify(self.plan, self.federation, rounds=ROUNDS, tolerance=0.1, seeds=SEEDS, **asked)
        return time.perf_counter() - began


def standardised(work: Any) -> fljax.Federation:
    """The clients' rows as a table whose features are standardised where they are read."""
    rows, owner = work.rows.ravel(), np.repeat(np.arange(len(work.rows)), work.rows.shape[1])
    frame = pd.DataFrame(work.x[rows]).add_prefix("feature ").assign(label=work.y[rows], client=owner)
    table = data.dataset_from_frame(frame, label="label", client="client", standardise=True)
    return data.federations(table, "natural", seeds=1)[0]
