"""``jax_debug_nans`` in compiled programs: a program in which NaN appeared is repeated op by op, to find the place.

Programs run at full speed. What they return tells where to look: a run that diverged keeps its state from before that
round, and a loss that is NaN becomes infinite. Only that run, round or evaluation is repeated, with JAX's own check in
the functions of the algorithm. If nothing is found there, the run goes on: a value was infinite, and never NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, on_one
from fljax.engine.programs import program
from fljax.engine.programs.program import Inputs, Spec, is_stacked
from fljax.engine.rounds.federations import with_shared, without_shared
from fljax.engine.rounds.states import State
from fljax.protocol import Labelled
from fljax.results import Reference


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
                own, before = _inputs_of(spec, inputs, run), _row(state, run)  # frozen before that round
                program.run_rounds(spec, _one(layout), 1, own, before, jnp.int32(round), jnp.int32(1))


def check_evaluation(
    spec: Spec, layout: Layout, inputs: Inputs, state: State, done: int, scores: Mapping[str, Labelled]
) -> None:
    """Raises an ``AlgorithmError`` if NaN appeared in the evaluation after ``done`` rounds, which gave ``scores``."""
    losses = [np.asarray(values.values) for name, values in scores.items() if name.endswith("loss")]
    with eager.entered():
        for run in range(len(state.seed)):
            if any(np.isinf(loss[run]).any() for loss in losses):
                own = _inputs_of(spec, inputs, run)
                program.evaluate(spec, _one(layout), own, _row(state, run), jnp.int32(done))


def check_standalone(
    train: Callable[..., Reference], spec: Spec, layout: Layout, inputs: Inputs, seeds: Array, reference: Reference
) -> None:
    """Raises an ``AlgorithmError`` if NaN appeared in standalone training; ``train`` is its program."""
    with eager.entered():
        for run in range(len(seeds)):
            own = _inputs_of(spec, inputs, run)
            data = own.federation
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
                train(spec, _one(layout), False, own._replace(federation=some), _row(seeds, run))


def _inputs_of(spec: Spec, inputs: Inputs, run: int) -> Inputs:
    """The inputs of one of several runs."""
    data = on_one(inputs.federation)
    if is_stacked(data):
        data = with_shared(_row(without_shared(data), run % data.clients.id.shape[0]), data)
    traced = [_row(leaf, run) if place in spec.varied else on_one(leaf) for place, leaf in enumerate(inputs.traced)]
    return Inputs(traced, _row(inputs.by_seed, run), data)


def _one(layout: Layout) -> Layout:
    """One client after another on one device, at the precision of the run."""
    return layout._replace(clients=1, seeds=1, evaluation=1, devices=1, runs_apart=False)


def _row(tree: PyTree, run: int) -> PyTree:
    """One run of ``[runs, ...]`` as ``[1, ...]``, on one device."""
    return jax.tree.map(lambda leaf: leaf[run][None], on_one(tree))


def _undefined(clients: Any, threshold: Any, run: int) -> np.ndarray:
    """Positions of clients with rows whose standalone model has no finite loss; none without a population."""
    if clients is None:
        return np.arange(0)
    size = np.asarray(clients.train.size).reshape(-1)  # of one run
    return np.flatnonzero(~np.isfinite(np.asarray(threshold)[run]) & (size > 0))


def _some(clients: Any, places: np.ndarray) -> Any:
    """Some clients of a population of one run, which may be stacked."""
    stacked = np.ndim(clients.id) == 2
    return jax.tree.map(lambda leaf: leaf[:, places] if stacked else leaf[places], clients)


def _has_nan(tree: PyTree) -> bool:
    floating = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return any(bool(jnp.isnan(leaf).any()) for leaf in floating)
