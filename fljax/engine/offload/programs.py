"""The compiled programs of a run with data on the host: parts of a round and of an evaluation, for some clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from fljax.core import trees
from fljax.engine.devices.layout import Layout, keep_everywhere, place_state
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Spec, is_stacked
from fljax.engine.rounds import evaluate
from fljax.engine.rounds.round import (
    Chosen,
    CohortClients,
    RoundOptions,
    TrainedCohort,
    able_clients,
    asked_clients,
    choose,
    close,
    new_ballots,
    train,
)
from fljax.engine.rounds.states import (
    State,
    as_vectors,
    held_data,
    initial_clients,
    initial_server,
    poll,
    with_shared,
    without_shared,
)
from fljax.metrics.scores import Predicted
from fljax.protocol import ClientData, Federation, Info, Labelled
from fljax.protocol.sums import Total

# Programs that run once or are small; level 1 compiles faster.
_QUICK = {"xla_backend_optimization_level": 1}


class ClientBlock(NamedTuple):
    """Some clients of one run."""

    id: Int[Array, " B"]  # of unseen clients, their places
    data: Federation | None  # None: their examples are in ``Inputs``, on the devices
    kept: PyTree  # the Client of each; None: they are in the states, on the devices


class Selection(NamedTuple):
    """The ballots of a round, the number of polled clients, and the cohort."""

    ballots: PyTree
    polled: Array
    chosen: Chosen


class TrainedBlocks(NamedTuple):
    """The sums over all rows of a cohort, and its blocks without their sums."""

    total: Total
    blocks: list[TrainedCohort]


def own_algorithm(spec: Spec, inputs: Inputs, run: Array, seed: Array) -> tuple[Any, Federation]:
    """What the builder makes (see ``Spec.algorithm``), and the federation of one run."""
    traced = [leaf[run] if place in spec.varied else leaf for place, leaf in enumerate(inputs.traced)]
    federation = inputs.federation
    if is_stacked(federation):
        federation_of_run = trees.take(without_shared(federation), run % federation.clients.id.shape[0])
        federation = with_shared(federation_of_run, federation)
    return spec.algorithm(traced, trees.take(inputs.by_seed, run), seed), as_vectors(federation)


def data_of(federation: Federation, some: ClientBlock) -> Federation:
    """Some seen clients as a federation of their own."""
    if some.data is None:
        return federation._replace(clients=trees.take(federation.clients, some.id), unseen=None)
    return as_vectors(some.data)


def _own(spec: Spec, inputs: Inputs, run: Array, states: State) -> tuple[State, Any, Federation]:
    """The state of one run without its clients, and its ``own_algorithm``."""
    state = trees.take(states._replace(clients=()), run)
    return state, *own_algorithm(spec, inputs, run, state.seed)


def _kept(states: State, run: Array, some: ClientBlock) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[run, some.id], states.clients) if some.kept is None else some.kept


@jit.program(static_argnames=("spec", "layout"), compiler_options=_QUICK)
def begin_server(spec: Spec, layout: Layout, inputs: Inputs, run: Array, seed: Array) -> PyTree:
    """The Server before round 0."""
    algorithm, federation = own_algorithm(spec, inputs, run, seed)
    return initial_server(algorithm, federation, seed)


@jit.program(static_argnames=("spec", "layout"), compiler_options=_QUICK)
def begin_clients(
    spec: Spec, layout: Layout, inputs: Inputs, run: Array, seed: Array, server: PyTree, some: ClientBlock
) -> PyTree:
    """The Clients of some clients before their first round."""
    algorithm, federation = own_algorithm(spec, inputs, run, seed)
    data = data_of(federation, some)
    return keep_everywhere(initial_clients(algorithm, data, seed, server, data.clients), layout)


@jit.program(static_argnames=("layout",), donate_argnames=("table",))
def put_clients(layout: Layout, table: PyTree, run: Array, id: Array, clients: PyTree) -> PyTree:
    """The Clients of all runs, with those of some clients of one run."""
    clients = jax.tree.map(lambda all, new: all.at[run, id].set(new), table, clients)
    states = State(run, run, (), clients, (), run)
    return place_state(states, layout).clients


@jit.program(static_argnames=("spec", "layout"))
def ask(spec: Spec, layout: Layout, inputs: Inputs, run: Array, states: State, some: ClientBlock) -> PyTree:
    """The ballots of some clients."""
    state, algorithm, federation = _own(spec, inputs, run, states)
    data, client_states = data_of(federation, some), _kept(states, run, some)
    return poll(algorithm, data, state.seed, state.round, state.server, client_states, layout, some.id)


@jit.program(static_argnames=("spec", "layout", "rows"))
def select(
    spec: Spec, layout: Layout, rows: int, inputs: Inputs, run: Array, states: State, answers: PyTree
) -> tuple[PyTree, Array, Chosen]:
    """The fields of a ``Selection``; the cohort is filled up with empty rows to a multiple of ``rows``."""
    state, algorithm, federation = _own(spec, inputs, run, states)
    size = federation.clients.train.size
    able = able_clients(size, None, spec.everybody)
    ballots, polled = state.ballots, jnp.zeros((), jnp.int32)
    if answers is not None:
        ballots, polled = new_ballots(algorithm, able, answers, state.ballots), asked_clients(algorithm, able)
    chosen = choose(algorithm, size, state, state.round, ballots, able)
    free = -chosen.row.shape[0] % rows

    def fill(leaf: Array) -> Array:
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (free, *leaf.shape[1:]))])

    cohort = jax.tree.map(fill, chosen.cohort)
    real = jnp.arange(cohort.present.shape[0]) < chosen.row.shape[0]
    cohort = cohort._replace(present=cohort.present & real)
    row, trains, cost = fill(chosen.row), fill(chosen.trains), jnp.where(real, fill(chosen.cost), 0)
    # The host reads who takes part.
    polled, row, trains = keep_everywhere((polled, row, trains), layout)
    return ballots, polled, chosen._replace(cohort=cohort, row=row, trains=trains, cost=cost)


@jit.program(static_argnames=("spec", "layout"))
def train_block(
    spec: Spec,
    layout: Layout,
    inputs: Inputs,
    run: Array,
    states: State,
    chosen: Chosen,
    first: Array,
    some: ClientBlock,
) -> TrainedCohort:
    """Trains the rows of the cohort from ``first`` on, whose clients are ``some``."""
    state, algorithm, federation = _own(spec, inputs, run, states)
    data, client_states = data_of(federation, some), _kept(states, run, some)
    count = some.id.shape[0]

    def part(leaf: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, first, count)

    cohort, row, trains, cost = jax.tree.map(part, (chosen.cohort, chosen.row, chosen.trains, chosen.cost))
    chosen_rows = Chosen(chosen.server, cohort, row, trains, cost, {})
    place = jnp.arange(count, dtype=jnp.int32)
    rows, options = CohortClients(place, client_states), RoundOptions(skip=True, non_finite=spec.non_finite)
    trained = train(algorithm, data, layout, state.seed, state.round, chosen_rows, rows, options)
    if some.kept is None:
        return trained
    return trained._replace(clients=keep_everywhere(trained.clients, layout))  # the host reads the states that it keeps


@jit.program(static_argnames=(), donate_argnames=("total",))
def add(total: Total, more: Total) -> Total:
    """The sums of all rows so far."""
    return trees.add(total, more)


@jit.program(static_argnames=("spec", "layout", "rows"), donate_argnames=("states",))
def finish(
    spec: Spec,
    layout: Layout,
    rows: int,
    inputs: Inputs,
    run: Array,
    states: State,
    selection: Selection,
    trained: TrainedBlocks,
) -> tuple[State, Array, Info]:
    """The states after the round of one run, which of the cohort's ``rows`` have a new Client, and Info."""
    (ballots, _, chosen), (total, blocks) = selection, trained
    state, algorithm, federation = _own(spec, inputs, run, states)

    def cut(leaf: Array) -> Array:
        return leaf[:rows]

    def joined(*leaves: Array) -> Array:
        return cut(jnp.concatenate(leaves))

    records, bad = (
        jax.tree.map(joined, *parts_of_blocks)
        for parts_of_blocks in ([t.rows for t in blocks], [t.bad for t in blocks])
    )
    broken = jnp.any(jnp.stack([block.broken for block in blocks]))
    chosen = chosen._replace(cohort=jax.tree.map(cut, chosen.cohort), row=cut(chosen.row))
    whole = TrainedCohort(total, records, None, bad, broken)
    held = held_data(federation, layout)
    after, counts, info = close(algorithm, held, state, state.round, ballots, chosen, whole, spec.non_finite)
    parts = jax.tree.map(lambda all, new: all.at[run].set(new), states._replace(clients=()), after)
    clients = states.clients
    if blocks[0].clients is not None:
        new = jax.tree.map(joined, *[block.clients for block in blocks])
        row = jnp.where(counts, chosen.row, federation.clients.id.shape[0])
        clients = jax.tree.map(lambda all, new: all.at[run, row].set(new, mode="drop"), clients, new)
    states = place_state(parts._replace(clients=clients), layout)
    return states, *keep_everywhere((counts, info), layout)


@jit.program(static_argnames=("spec", "layout"))
def judge_block(
    spec: Spec, layout: Layout, inputs: Inputs, run: Array, states: State, some: ClientBlock
) -> dict[evaluate.Judgement, Any]:
    """The scores of some seen clients."""
    judge = _judge_of_seen(spec, inputs, run, states, some)
    scope = evaluate.Scope.of(judge.algorithm, spec.valid, spec.common, spec.extra)
    return evaluate.judge_seen(judge, layout, scope, some.id)


@jit.program(static_argnames=("spec", "layout"))
def judge_unseen(
    spec: Spec, layout: Layout, inputs: Inputs, run: Array, states: State, some: ClientBlock
) -> dict[evaluate.Judgement, Any]:
    """The scores of some unseen clients."""
    judge = _judge_of_unseen(spec, inputs, run, states, some)
    scope = evaluate.Scope.of(judge.algorithm, spec.valid, spec.common, spec.extra)
    return evaluate.judge_unseen(judge, layout, scope)


@jit.program(static_argnames=("spec", "layout"))
def predict_block(
    spec: Spec, layout: Layout, inputs: Inputs, run: Array, states: State, some: ClientBlock
) -> Predicted:
    """What the models of some seen clients predict on their test rows."""
    judge = _judge_of_seen(spec, inputs, run, states, some)
    return keep_everywhere(evaluate.predict_seen(judge, layout, some.id), layout)


@jit.program(static_argnames=("spec", "layout"))
def predict_unseen_block(
    spec: Spec, layout: Layout, inputs: Inputs, run: Array, states: State, some: ClientBlock
) -> Predicted:
    """What the models of some unseen clients predict on their test rows."""
    return keep_everywhere(evaluate.predict_unseen(_judge_of_unseen(spec, inputs, run, states, some), layout), layout)


def _judge_of_seen(spec: Spec, inputs: Inputs, run: Array, states: State, some: ClientBlock) -> evaluate.Judge:
    state, algorithm, federation = _own(spec, inputs, run, states)
    block_state = state._replace(clients=_kept(states, run, some))
    return evaluate.Judge(algorithm, data_of(federation, some), block_state, state.round)


def _judge_of_unseen(spec: Spec, inputs: Inputs, run: Array, states: State, some: ClientBlock) -> evaluate.Judge:
    state, algorithm, federation = _own(spec, inputs, run, states)
    if some.data is None:
        assert federation.unseen is not None
        data = federation._replace(unseen=trees.take(federation.unseen, some.id))
    else:
        data = as_vectors(some.data)
        data = data._replace(unseen=data.clients)
    return evaluate.Judge(algorithm, data, state, state.round, known=False)


@jit.program(static_argnames=("spec", "layout"))
def judge_rest(
    spec: Spec,
    layout: Layout,
    inputs: Inputs,
    run: Array,
    states: State,
    seen: dict[evaluate.Judgement, Any],
    unseen: dict[evaluate.Judgement, Any],
    first: ClientBlock | None,
) -> dict[str, Labelled]:
    """The scores by name, with those of the server's models and of the global model."""
    # ``first`` is one client whose test rows all clients have; None: the global model is not judged once for all.
    state, algorithm, federation = _own(spec, inputs, run, states)
    scope = evaluate.Scope.of(algorithm, spec.valid, spec.common, spec.extra)
    judge = evaluate.Judge(algorithm, federation, state, state.round)
    if first is not None:
        data = data_of(federation, first)
        client: ClientData = trees.take(data.clients, 0)
        client_state = trees.take(_kept(states, run, first), 0)
        scores = evaluate.judge_once(judge._replace(federation=data), client, client_state, scope)
        seen = seen | evaluate.counted_once(judge, federation.clients, scores)
        if federation.unseen is not None:
            unseen = unseen | evaluate.counted_once(judge._replace(known=False), federation.unseen, scores)
    named = evaluate.named_scores(seen, unseen, scope)
    server = evaluate.judge_server(judge, layout)
    return keep_everywhere(named | server, layout)
