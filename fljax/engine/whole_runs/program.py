"""The program of whole runs, and the function that a run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, UInt

from fljax.core import users
from fljax.engine.devices.layout import Layout, keep_everywhere
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Spec, map_runs
from fljax.engine.rounds.evaluate import evaluate
from fljax.engine.rounds.round import AS_USUAL, RoundOptions, one_round
from fljax.engine.rounds.states import State, initial_state
from fljax.engine.whole_runs.members import among_members, rows_of_members
from fljax.protocol import Algorithm, AnyArray, Federation, Labelled


@runtime_checkable
class Measure(Protocol):
    """``(algorithm, state, scores) -> {name: array}``: what is kept of a run, computed on the device.

    ``state`` is the one after the last round. ``scores`` are the evaluation of all clients, as ``fljax.Result.metrics``
    names them: ``test_loss`` [client] and so on. An array may be ``Labelled``; others get numbered dimensions. The
    function is a static part of the program: another function is another program, also if it does the same.
    """

    def __call__(
        self, algorithm: Algorithm, state: State, scores: Mapping[str, Labelled], /
    ) -> Mapping[str, Array | Labelled]: ...


def all_scores(algorithm: Algorithm, state: State, scores: Mapping[str, Labelled]) -> Mapping[str, Array | Labelled]:
    """The ``Measure`` that keeps the scores of all clients, seen and unseen, and of the server's models."""
    return dict(scores)


class RunRows(NamedTuple):
    """The runs of one call of the program, by row."""

    seed: UInt[Array, " rows"]
    member: Any  # [rows, N] by id, who belongs to the run's federation; (): all clients
    moments: Any  # [rows, ...] of the members' training rows; (): those of the federation
    place: Int[Array, " rows"]  # of the seed among the seeds, for federations of several seeds
    cost: Int[Array, " rows"]  # 0: the row is not computed, and its results are zeros


class RunEnd(NamedTuple):
    """What leaves the device of a run: its measures, and whether its state was frozen since it was not finite."""

    measures: dict[str, Any]
    diverged: AnyArray


class _Run(NamedTuple):
    seed: UInt[Array, ""]
    member: Any
    moments: Any


@jit.program(static_argnames=("spec", "layout", "measure"))
def whole_runs(
    spec: Spec, layout: Layout, measure: Measure, inputs: Inputs, rows: RunRows, rounds: Int[Array, ""]
) -> RunEnd:
    """All runs of a block, ``[rows]``: start, ``rounds`` rounds, evaluation of all clients, measure."""

    def one(algorithm: Algorithm, data: Federation, layout: Layout, run: _Run) -> RunEnd:
        options = RoundOptions(spec.everybody, non_finite=spec.non_finite)
        data = data._replace(moments=run.moments) if run.moments else data
        state = final_state(algorithm, data, layout, run.seed, run.member, rounds, options)
        judged = algorithm if isinstance(run.member, tuple) else among_members(algorithm, run.member)
        scores = evaluate(judged, data, layout, state, rounds, spec.valid, spec.common)
        found: Any = users.call("measure", "(algorithm, state, scores)", measure, algorithm, state, scores)
        if not isinstance(found, Mapping):
            raise users.refused("measure", measure, "arrays by name", found)
        for name, entry in found.items():
            values = entry.values if isinstance(entry, Labelled) else entry
            users.numbers("measure", measure, f"an array of numbers as {name!r}", values, (...,))
        return RunEnd(dict(found), state.diverged >= 0)

    own = _Run(rows.seed, rows.member, rows.moments)
    return keep_everywhere(map_runs(spec, layout, inputs, own, one, rows.place, rows.cost), layout)


def final_state(
    algorithm: Algorithm,
    data: Federation,
    layout: Layout,
    seed: UInt[Array, ""],
    member: PyTree,
    rounds: int | Int[Array, ""],
    options: RoundOptions = AS_USUAL,
) -> State:
    """The state of one run after its rounds; ``data`` of one seed, by id, with the members' moments (``Scales``)."""
    # ``member`` is ``[N]`` by id; ``()``: all clients.
    if not isinstance(member, tuple):
        algorithm, data = among_members(algorithm, member), rows_of_members(data, member)
        options = options._replace(everybody=False)
    state = initial_state(algorithm, data, seed)
    # Weakly typed leaves (from Python numbers) become strongly typed, as in every later state.
    state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)

    def one(round: Int[Array, ""], state: State) -> State:
        return one_round(algorithm, data, layout, state, round, options=options)[0]

    return jax.lax.fori_loop(jnp.zeros((), jnp.int32), jnp.asarray(rounds, jnp.int32), jax.jit(one), state)
