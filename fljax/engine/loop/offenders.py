"""Who sent values that are not finite: from the records, or by computing a round once more; and when a run stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from fljax.core import trees
from fljax.engine.devices.layout import Layout, on_one
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Spec, algorithm_of
from fljax.engine.programs.shapes import Shapes
from fljax.engine.rounds.federations import as_vectors
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import State
from fljax.results import Result
from fljax.results.non_finite import Divergence, NonFinite, NotFinite


def divergences(
    spec: Spec,
    inputs: Inputs,
    layout: Layout,
    shapes: Shapes,
    state: State,
    seeds: Sequence[int],
    records: xr.Dataset,
) -> tuple[Divergence, ...]:
    """The frozen seeds of one plan, with the clients that were not finite.

    The records of a run that stops tell the clients. With "freeze" no round looks for them. The state of a frozen seed
    is that before the round in which it diverged, so this round is computed once more, on one device.

    Args:
      spec: static part of the plan.
      inputs: traced part of the plan.
      layout: of the run.
      shapes: of the run.
      state: of all seeds, after the run.
      seeds: of the run.
      records: of the run.
    """
    first = int(records["round"][0]) if records.sizes["round"] else 0
    found = []
    for place, (seed, round) in enumerate(zip(seeds, np.asarray(state.diverged).tolist(), strict=True)):
        if round < 0:
            continue
        clients: tuple[int, ...] | None = None  # a round of an earlier run, whose plan may be another one
        if first <= round < first + records.sizes["round"]:
            row = records.isel(seed=place).sel(round=round)
            if "not_finite" in records:
                clients = _named(row["cohort_id"].values, row["not_finite"].values)
            elif "dropped" in records:
                clients = ()  # nothing else could be received
            else:
                clients = _computed_again(spec, inputs, layout, shapes, seeds, state, place, round)
        found.append(Divergence(int(seed), round, clients))
    return tuple(found)


def _named(ids: Any, marks: Any) -> tuple[int, ...]:
    return tuple(sorted({int(id) for id in np.asarray(ids)[np.asarray(marks)]}))


def _computed_again(
    spec: Spec,
    inputs: Inputs,
    layout: Layout,
    shapes: Shapes,
    seeds: Sequence[int],
    state: State,
    place: int,
    round: int,
) -> tuple[int, ...] | None:
    """The clients that are not finite in the round that a frozen seed was to do; None if memory does not suffice."""
    one = Layout(layout.clients, 1, layout.evaluation, platform=layout.platform, precision=layout.precision)
    at = state if layout.devices == 1 else on_one(state)
    try:
        if layout.is_offloaded:
            numbers = jnp.asarray(seeds, jnp.uint32)
            again = OffloadRun.of(spec._replace(non_finite="stop"), layout, 1, inputs, numbers, shapes)
            info: Any = again.again(state, place, round)
            return _named(info["cohort_id"].values, info["not_finite"].values)
        return _named(*jax.device_get(_again(spec, one, inputs, at, jnp.int32(place), jnp.int32(round))))
    except jax.errors.JaxRuntimeError:
        return None  # the run itself is sound, and its results matter more than a name


# Runs once: level 1 compiles faster.
@jit.program(static_argnames=("spec", "layout"), compiler_options={"xla_backend_optimization_level": 1})
def _again(spec: Spec, layout: Layout, inputs: Inputs, state: State, place: Array, round: Array) -> tuple[Array, Array]:
    """Ids of a round's cohort ``[S]``, and whether each row is not finite, for the seed at a place."""
    algorithm, federation = algorithm_of(spec, inputs, place)
    own = trees.take(state, place)._replace(round=round, diverged=jnp.full((), -1, jnp.int32))
    _, info = one_round(algorithm, as_vectors(federation), layout, own, round, None, spec.everybody, non_finite="stop")
    ids: Any = info["cohort_id"]
    marks: Any = info["not_finite"]
    return ids.values, marks.values


def is_stopped(non_finite: NonFinite, state: State) -> bool:
    """Whether a run has to stop: some seed is frozen, and ``non_finite`` is "stop"."""
    return non_finite == "stop" and bool(np.any(np.asarray(state.diverged) >= 0))


def check_stopped(non_finite: NonFinite, results: Sequence[Result]) -> None:
    """Raises a NotFinite with the first divergence of several plans, if ``non_finite`` is "stop" and there is one."""
    found = [(each.round, plan, each) for plan, result in enumerate(results) for each in result.divergences]
    if non_finite == "stop" and found:
        _, plan, first = min(found, key=lambda each: each[:2])
        raise NotFinite(first, results, plan)
