"""Outside options: what a client gets if it does not take part in a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from fljax import algorithms
from fljax.contributions.coalitions import Numbers
from fljax.core.names import unknown
from fljax.engine import Over, Plan, runs
from fljax.engine.whole_runs.over import local_of
from fljax.games.strategic.payoff_tables import as_precise_as
from fljax.games.strategic.utilities import (
    Utility,
    UtilityFunction,
    earnings_of,
    efforts_of,
    steps_of_round,
    utilities_of,
    utilities_of_runs,
    without_tokens,
)
from fljax.games.values import algorithm_of
from fljax.protocol import Federation
from fljax.results import Reference
from fljax.training import Local

# Standalone models, trained here or a Reference; the mechanism with one member; numbers; None: not known.
Outside = Literal["standalone", "mechanism"] | Reference | Numbers | bool | None
KINDS = ("standalone", "mechanism")


def checked_outside(
    outside: Outside, clients: int, seeds: int, utility: Utility | UtilityFunction, *, needed: bool = False
) -> Outside:
    """What is outside, with numbers as an array ``[seeds, N]``; raises a ValueError for anything else."""
    if isinstance(outside, bool) or outside is None:
        return "standalone" if outside or needed else None
    if isinstance(outside, str):
        if outside not in KINDS:
            raise ValueError(unknown("outside option", outside, KINDS))
        return outside
    if isinstance(outside, Reference):
        if not isinstance(utility, Utility):
            raise ValueError("expected outside options of a utility function as an array or a name, got a Reference")
        if utility.metric == "test_accuracy" and outside.test_accuracy is None:
            raise ValueError('expected standalone models with the metric "test_accuracy", got a Reference without it')
    values = np.asarray(outside.test_loss if isinstance(outside, Reference) else outside)
    if values.dtype.kind not in "iuf" or values.shape not in ((clients,), (seeds, clients)):
        raise ValueError(
            f"expected outside options of {clients} clients, or of {seeds} seeds by {clients} clients, got "
            f"{values.dtype} of shape {list(values.shape)}"
        )
    if not np.isfinite(values).all():
        raise ValueError("expected finite outside options, got some that are not")
    return outside if isinstance(outside, Reference) else np.broadcast_to(values.astype(float), (seeds, clients))


def outside_options(
    outside: Outside,
    standalone: Local | None,
    plan: Plan,
    federation: Federation,
    utility: Utility | UtilityFunction,
    *,
    rounds: int,
    seeds: Sequence[int],
    **of_runs: Any,
) -> Float[np.ndarray, "seed client"] | None:
    """What clients get outside, of ``checked_outside``; None where it is not played, or by the mechanism itself."""
    if isinstance(outside, np.ndarray):
        return outside
    if kind_of(outside) != "standalone":
        return None
    local = local_of(plan) if standalone is None else standalone
    if local is None and isinstance(outside, str):
        raise ValueError(
            "expected standalone=, how clients train alone, for an algorithm without an argument local, got None; "
            'outside= may also be "mechanism", a Reference, an array or None'
        )
    length = rounds if standalone is None else 1
    alone = Plan(algorithms.standalone, {"task": algorithm_of(plan).task, "local": local})
    known = alone if local_of(plan) is None else plan
    effort = efforts_of(
        length * steps_of_round(alone, federation), known, federation, rounds if known is plan else length
    )
    free = without_tokens(utility)
    if isinstance(outside, Reference):
        assert isinstance(free, Utility)
        judged = outside.test_accuracy is not None and free.metric != "test_loss"
        earned = np.asarray(outside.test_accuracy if judged else -outside.test_loss, float)
        earned = np.broadcast_to(earned, (len(seeds), earned.shape[-1]))
        return as_precise_as(utilities_of(earned, effort[:, 0], None, free), earned)
    measured = runs(alone, federation, Over(), rounds=length, seeds=seeds, measure=earnings_of(free), **of_runs)
    return utilities_of_runs(measured, effort, free)[:, 0]


def runs_outside(outside: Outside, clients: int) -> int:
    """How many runs of a seed the outside options take."""
    return {"mechanism": clients, "standalone": 1}[outside] if isinstance(outside, str) else 0


def kind_of(outside: Outside) -> str:
    """What ``PayoffTable.outside_is`` says, of ``checked_outside``."""
    if isinstance(outside, str | None):
        return outside or ""
    return "standalone" if isinstance(outside, Reference) else "given"
