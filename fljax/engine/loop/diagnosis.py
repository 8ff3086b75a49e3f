"""Who sent values that are not finite, and where a NaN came from: a round is computed once more to find it.

The ``check_`` functions are ``jax_debug_nans`` for programs at full speed: only the run, round or evaluation whose
results have a NaN is repeated op by op. If none is found there, the run goes on: a value was infinite, never NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, on_one
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs import jit, program
from fljax.engine.programs.program import Inputs, Spec, algorithm_of, is_stacked
from fljax.engine.programs.shapes import Shapes
from fljax.engine.rounds.round import RoundOptions, one_round
from fljax.engine.rounds.states import State, as_vectors, with_shared, without_shared
from fljax.protocol import Labelled
from fljax.results import Reference, Result
from fljax.results.non_finite import Divergence, NonFinite, NotFinite


def divergences(
    spec: Spec, inputs: Inputs, layout: Layout, shapes: Shapes, state: State, seeds: Sequence[int], records: xr.Dataset
) -> tuple[Divergence, ...]:
    """The frozen seeds of one plan, with the clients that were not finite, by records or a round computed again."""
    # With "freeze" no round looks for them. The state of a frozen seed is that before the round in which it diverged.

    def computed_again(place: int, round: int) -> tuple[int, ...] | None:
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

    first = int(records["round"][0]) if records.sizes["round"] else 0
    diverged = []
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
                clients = computed_again(place, round)
        diverged.append(Divergence(int(seed), round, clients))
    return tuple(diverged)


def _named(ids: Any, marks: Any) -> tuple[int, ...]:
    return tuple(sorted({int(id) for id in np.asarray(ids)[np.asarray(marks)]}))


# Runs once: level 1 compiles faster.
@jit.program(static_argnames=("spec", "layout"), compiler_options={"xla_backend_optimization_level": 1})
def _again(spec: Spec, layout: Layout, inputs: Inputs, state: State, place: Array, round: Array) -> tuple[Array, Array]:
    """Ids of a round's cohort ``[S]``, and whether each row is not finite, for the seed at a place."""
    algorithm, federation = algorithm_of(spec, inputs, place)
    before = trees.take(state, place)._replace(round=round, diverged=jnp.full((), -1, jnp.int32))
    options = RoundOptions(spec.everybody, non_finite="stop")
    _, info = one_round(algorithm, as_vectors(federation), layout, before, round, options=options)
    ids: Any = info["cohort_id"]
    marks: Any = info["not_finite"]
    return ids.values, marks.values


def is_stopped(non_finite: NonFinite, state: State) -> bool:
    """Whether a run has to stop: some seed is frozen, and ``non_finite`` is "stop"."""
    return non_finite == "stop" and bool(np.any(np.asarray(state.diverged) >= 0))


def check_stopped(non_finite: NonFinite, results: Sequence[Result]) -> None:
    """Raises a NotFinite with the first divergence of several plans, if ``non_finite`` is "stop" and there is one."""
    stops = [
        (divergence.round, plan, divergence) for plan, result in enumerate(results) for divergence in result.divergences
    ]
    if non_finite == "stop" and stops:
        _, plan, first = min(stops, key=lambda divergence: divergence[:2])
        raise NotFinite(first, results, plan)


def is_asked() -> bool:
    """Whether ``jax_debug_nans`` is on and programs are compiled; where ``jax.jit`` is off, JAX's own check holds."""
    return eager.nans_raise() and not eager.is_on()


def check_start(spec: Spec, layout: Layout, inputs: Inputs, seeds: Array, state: State) -> None:
    """Raises an ``AlgorithmError`` if the states before round 0, of all runs, have NaN."""
    with eager.entered():
        for run in range(len(seeds)):
            if _has_nan(trees.take((state.server, state.clients), run)):
                program.start(spec, _one(layout), _inputs_of(spec, inputs, run), _row(seeds, run))


def check_rounds(spec: Spec, layout: Layout, inputs: Inputs, state: State, first: int, count: int) -> None:
    """Raises an ``AlgorithmError`` if NaN appeared in one of ``count`` rounds; ``state`` is that after them."""
    with eager.entered():
        for run, round in enumerate(np.asarray(state.diverged).tolist()):
            if first <= round < first + count:
                run_inputs, before = _inputs_of(spec, inputs, run), _row(state, run)  # frozen before that round
                program.run_rounds(spec, _one(layout), 1, run_inputs, before, jnp.int32(round), jnp.int32(1))


def check_evaluation(
    spec: Spec, layout: Layout, inputs: Inputs, state: State, done: int, scores: Mapping[str, Labelled]
) -> None:
    """Raises an ``AlgorithmError`` if NaN appeared in the evaluation after ``done`` rounds, which gave ``scores``."""
    losses = [np.asarray(values.values) for name, values in scores.items() if name.endswith("loss")]
    with eager.entered():
        for run in range(len(state.seed)):
            if any(np.isinf(loss[run]).any() for loss in losses):
                run_inputs = _inputs_of(spec, inputs, run)
                program.evaluate_runs(spec, _one(layout), run_inputs, _row(state, run), jnp.int32(done))


def check_standalone(
    train: Callable[..., Reference], spec: Spec, layout: Layout, inputs: Inputs, seeds: Array, reference: Reference
) -> None:
    """Raises an ``AlgorithmError`` if NaN appeared in standalone training; ``train`` is its program."""
    with eager.entered():
        for run in range(len(seeds)):
            run_inputs = _inputs_of(spec, inputs, run)
            data = run_inputs.federation
            seen, unseen = (
                _undefined(clients, threshold, run)
                for clients, threshold in (
                    (data.clients, reference.threshold),
                    (data.unseen, reference.unseen_threshold),
                )
            )
            if len(seen) or len(unseen):
                some = data._replace(
                    clients=_some(data.clients, seen if len(seen) else np.arange(1)),  # a federation has seen clients
                    unseen=_some(data.unseen, unseen) if len(unseen) else None,
                )
                train(spec, _one(layout), False, run_inputs._replace(federation=some), _row(seeds, run))


def _inputs_of(spec: Spec, inputs: Inputs, run: int) -> Inputs:
    """The inputs of one of several runs."""
    data = on_one(inputs.federation)
    if is_stacked(data):
        data = with_shared(_row(without_shared(data), run % data.clients.id.shape[0]), data)
    traced = [_row(leaf, run) if place in spec.varied else on_one(leaf) for place, leaf in enumerate(inputs.traced)]
    return Inputs(traced, _row(inputs.by_seed, run), data)


def _one(layout: Layout) -> Layout:
    """The layout of one client after another on one device, with the precision of ``layout``."""
    return layout._replace(clients=1, seeds=1, evaluation=1, devices=1, runs_apart=False)


def _row(tree: PyTree, run: int) -> PyTree:
    """The row of one run, ``[1, ...]``, of arrays ``[runs, ...]``; on one device."""
    return jax.tree.map(lambda leaf: leaf[run][None], on_one(tree))


def _undefined(clients: Any, threshold: Any, run: int) -> np.ndarray:
    """Positions of clients with rows whose standalone model has no finite loss; none without a population."""
    if clients is None:
        return np.arange(0)
    size = np.asarray(clients.train.size).reshape(-1)  # of one run
    return np.flatnonzero(~np.isfinite(np.asarray(threshold)[run]) & (size > 0))


def _some(clients: Any, places: np.ndarray) -> Any:
    """The clients at some places of a population of one run; the population may be stacked over seeds."""
    stacked = np.ndim(clients.id) == 2
    return jax.tree.map(lambda leaf: leaf[:, places] if stacked else leaf[places], clients)


def _has_nan(tree: PyTree) -> bool:
    floating = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return any(bool(jnp.isnan(leaf).any()) for leaf in floating)
