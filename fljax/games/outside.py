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
from fljax.engine.whole_runs.members import by_themselves
from fljax.engine.whole_runs.over import local_of
from fljax.games.strategic.deviations import played_by
from fljax.games.strategic.payoff_tables import as_precise_as
from fljax.games.strategic.utilities import (
    Utility,
    UtilityFunction,
    earnings_of,
    efforts_of,
    rounds_trained,
    steps_of_round,
    utilities_of,
    utilities_of_runs,
    without_tokens,
)
from fljax.games.values import algorithm_of
from fljax.protocol import Federation
from fljax.results import Reference
from fljax.scenarios import Strategy
from fljax.training import Local

# Standalone models, trained here or a Reference; the mechanism with one member; numbers; None: not known.
Outside = Literal["standalone", "mechanism"] | Reference | Numbers | bool | None
KINDS = ("standalone", "mechanism")


def checked_outside(outside: Outside, clients: int, seeds: int, utility: Utility | UtilityFunction) -> Outside:
    """What is outside, with numbers as an array ``[seeds, N]``; raises a ValueError for anything else."""
    if isinstance(outside, bool) or outside is None:
        return "standalone" if outside else None
    if isinstance(outside, str):
        if outside not in KINDS:
            raise ValueError(unknown("outside option", outside, KINDS))
        return outside
    is_reference = isinstance(outside, Reference)
    if is_reference and not isinstance(utility, Utility):
        raise ValueError("expected outside options of a utility function as an array or a name, got a Reference")
    values = np.asarray(outside.test_loss if is_reference else outside)
    if values.dtype.kind not in "iuf" or values.shape not in ((clients,), (seeds, clients)):
        raise ValueError(
            f"expected outside options of {clients} clients, or of {seeds} seeds by {clients} clients, got "
            f"{values.dtype} of shape {list(values.shape)}"
        )
    if not is_reference and not np.isfinite(values).all():
        raise ValueError("expected finite outside options, got some that are not")
    return outside if is_reference else np.broadcast_to(values.astype(float), (seeds, clients))


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
    """What clients get outside, of ``checked_outside``: from the mechanism with one member, or standalone models."""
    if outside is None or isinstance(outside, np.ndarray):
        return outside
    local = local_of(plan) if standalone is None else standalone
    base, over, length = plan, Over(member=np.eye(federation.clients.id.shape[-1], dtype=bool)), rounds
    if kind_of(outside) == "standalone":
        if local is None and isinstance(outside, str):
            raise ValueError(
                "expected standalone=, how clients train alone, for an algorithm without an argument local, got None; "
                'outside= may also be "mechanism", a Reference, an array or None'
            )
        base, over = Plan(algorithms.standalone, {"task": algorithm_of(plan).task, "local": local}), Over()
        length = rounds if standalone is None else 1
        federation = by_themselves(federation)
    free, steps = without_tokens(utility), steps_of_round(base, federation)
    if isinstance(outside, Reference):
        assert isinstance(free, Utility)
        judged = outside.test_accuracy is not None and free.metric != "test_loss"
        earned = np.asarray(outside.test_accuracy if judged else -outside.test_loss, float)
        effort = efforts_of(length * steps, plan, federation, rounds)[:, 0]
        return as_precise_as(utilities_of(earned, effort, None, free), earned)
    alone = played_by(base, {}, {"played": Strategy()})
    measured = runs(alone, federation, over, rounds=length, seeds=seeds, measure=earnings_of(free), **of_runs)
    effort = efforts_of(rounds_trained(measured) * steps, plan, federation, rounds)
    found = utilities_of_runs(measured, effort, free)
    return np.diagonal(found, axis1=1, axis2=2) if outside == "mechanism" else found[:, 0]


def runs_outside(outside: Outside, clients: int) -> int:
    """How many runs of a seed the outside options take."""
    return {"mechanism": clients, "standalone": 1}[outside] if isinstance(outside, str) else 0


def kind_of(outside: Outside) -> str:
    """What ``PayoffTable.outside_is`` says, of ``checked_outside``."""
    if isinstance(outside, str | None):
        return outside or ""
    return "standalone" if isinstance(outside, Reference) else "given"
