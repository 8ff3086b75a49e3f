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
from jaxtyping import PyTree

from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, on_one
from fljax.engine.programs.program import Inputs, Spec, is_stacked
from fljax.engine.rounds.federations import with_shared, without_shared
from fljax.engine.rounds.states import State
from fljax.protocol import Labelled
from fljax.results import Reference

Program = Callable[..., Any]  # a fljax.engine.programs.jit.Program, which runs op by op here
Given = Mapping[str, Any]


def check(program: Program, given: Given, found: Any) -> None:
    """Raises an ``AlgorithmError`` if NaN appeared in a program.

    Args:
      program: one of the engine's programs.
      given: its arguments by name; a donated state is not read.
      found: what it returned.
    """
    if program.__name__ in _CHECKS:
        with eager.entered():
            _CHECKS[program.__name__](program, given, found)


def _start(program: Program, given: Given, found: State) -> None:
    for run in range(len(given["seeds"])):
        if _has_nan(trees.take((found.server, found.clients), run)):
            program(given["spec"], _one(given), single(given, run), _row(given["seeds"], run))


def _rounds(program: Program, given: Given, found: tuple[State, Any]) -> None:
    state, (first, count) = found[0], (int(given["first"]), int(given["count"]))
    for run, round in enumerate(np.asarray(state.diverged).tolist()):
        if first <= round < first + count:
            before = _row(state, run)  # frozen before that round
            program(given["spec"], _one(given), 1, single(given, run), before, jnp.int32(round), jnp.int32(1))


def _evaluation(program: Program, given: Given, found: Mapping[str, Labelled]) -> None:
    losses = [np.asarray(each.values) for name, each in found.items() if name.endswith("loss")]
    for run in range(len(given["state"].seed)):
        if any(np.isinf(each[run]).any() for each in losses):
            program(given["spec"], _one(given), single(given, run), _row(given["state"], run), given["round"])


def _standalone(program: Program, given: Given, found: Reference) -> None:
    for run in range(len(given["seeds"])):
        inputs = single(given, run)
        data = inputs.federation
        seen, unseen = (
            _undefined(clients, threshold, run)
            for clients, threshold in ((data.clients, found.threshold), (data.unseen, found.unseen_threshold))
        )
        if len(seen) or len(unseen):
            some = data._replace(
                clients=_some(data.clients, seen if len(seen) else np.arange(1)),  # a federation has seen clients
                unseen=_some(data.unseen, unseen) if len(unseen) else None,
            )
            some_inputs = inputs._replace(federation=some)
            program(given["spec"], _one(given), False, some_inputs, _row(given["seeds"], run))


# By the name of the program's function.
_CHECKS: dict[str, Callable[[Program, Given, Any], None]] = {
    "start": _start,
    "run_rounds": _rounds,
    "evaluate": _evaluation,
    "_run": _standalone,
}


def single(given: Given, run: int) -> Inputs:
    """The inputs of one of several runs."""
    spec: Spec = given["spec"]
    inputs: Inputs = given["inputs"]
    data = on_one(inputs.federation)
    if is_stacked(data):
        data = with_shared(_row(without_shared(data), run % data.clients.id.shape[0]), data)
    traced = [_row(leaf, run) if place in spec.varied else on_one(leaf) for place, leaf in enumerate(inputs.traced)]
    return Inputs(traced, _row(inputs.by_seed, run), data)


def _one(given: Given) -> Layout:
    """One client after another on one device, at the precision of the run."""
    layout: Layout = given["layout"]
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
