"""One round of any algorithm, as a pure function of the protocol, and scans of rounds for use inside other JAX code."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, PyTree

from fljax.core import trees
from fljax.engine.devices.client_mapping import fold_lanes
from fljax.engine.devices.layout import Layout, shardings
from fljax.engine.rounds.errors import wrapped
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.states import (
    Purpose,
    State,
    as_vectors,
    by_id,
    client_key,
    held_data,
    initial_state,
    local_data,
    own_server,
    poll,
    round_key,
)
from fljax.protocol import (
    Algorithm,
    Available,
    ClientData,
    Cohort,
    Federation,
    Held,
    Info,
    Round,
    Seat,
    along,
    messages,
    seen_from,
    unlabelled,
)
from fljax.protocol.sums import Part, Total, add_up, as_streamed
from fljax.results.non_finite import NonFinite


class RoundOptions(NamedTuple):
    """How a round is computed, and what happens to values that are not finite (static).

    Attributes:
      everybody: whether all clients are known to have training samples; the check is then skipped.
      skip: whether chunks of clients without work are skipped; reverse mode cannot differentiate this. None: True if
        seeds are not batched.
      rematerialise: whether reverse mode recomputes each chunk of clients instead of storing its intermediate results.
      non_finite: what happens to clients whose message or new state is not finite (see ``is_not_finite`` below).
        "freeze": nothing else. "drop": they are absent for the aggregation and keep their state; Info has ``dropped``
        [S] and their number ``dropped_messages``. "stop": the state before the round is kept; Info has
        ``not_finite`` [S].
    """

    everybody: bool = False
    skip: bool | None = None
    rematerialise: bool = False
    non_finite: NonFinite = "freeze"


AS_USUAL = RoundOptions()


def one_round(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    state: State,
    round: Int[Array, ""] | None = None,
    available: Bool[Array, " N"] | None = None,
    options: RoundOptions = AS_USUAL,
) -> tuple[State, Info]:
    """Poll, select, train, aggregate.

    Args:
      algorithm: any value of the protocol.
      federation: stored by id (see ``by_id``).
      layout: how many clients run side by side (see ``resolve``).
      state: the state before the round.
      round: equals ``state.round``. A separate argument when states of several seeds are batched, so that the decision
        to poll is not batched.
      available: ``[N]`` by id, the clients that could take part; clients without training samples never do. None: all.
      options: how the round is computed.

    Returns:
      The state after the round, and Info: that of select and aggregate, with ``cohort_id``, ``cohort_slot``,
      ``cohort_present`` [S] and ``polled``, the number of polled clients. A dropped client is present in the cohort: it
      has trained and sent its message. If a NaN or infinity appears in the server or in a client's state, the state
      before the round is kept and ``diverged`` holds the round; later records are meaningless.
    """
    round = state.round if round is None else round
    size = federation.clients.train.size
    able = able_clients(size, available, options.everybody)
    ballots, polled = state.ballots, jnp.zeros((), jnp.int32)
    if algorithm.poll is not None:

        def ask() -> PyTree:
            answers = poll(algorithm, federation, state.seed, round, state.server, state.clients, layout)
            return new_ballots(algorithm, able, answers, state.ballots)

        due = round % algorithm.poll.every == 0
        ballots = ask() if algorithm.poll.every == 1 else jax.lax.cond(due, ask, lambda: state.ballots)
        polled = jnp.where(due, asked_clients(algorithm, able), 0)

    chosen = choose(algorithm, size, state, round, ballots, able)
    if options.rematerialise:
        # What is the same in all rounds, reverse mode computes before the first one and keeps, for each client.
        places = chosen.cohort, chosen.row, chosen.trains, chosen.cost
        (cohort, row, trains, cost), _ = jax.lax.optimization_barrier((places, round))
        chosen = chosen._replace(cohort=cohort, row=row, trains=trains, cost=cost)
    rows = CohortClients(chosen.trains, trees.take(state.clients, chosen.trains))
    if options.skip is None:
        options = options._replace(skip=layout.seeds == 1)
    trained = train(algorithm, federation, layout, state.seed, round, chosen, rows, options)
    held = held_data(federation, layout)
    after, counts, info = close(algorithm, held, state, round, ballots, chosen, trained, options.non_finite)
    after = after._replace(clients=trees.set_rows(state.clients, chosen.row, counts, trained.clients))
    if layout.devices > 1:
        after = jax.lax.with_sharding_constraint(after, shardings(after, layout.devices, 1))
    return after, {**info, "polled": polled}


class Chosen(NamedTuple):
    """The cohort of a round, before it trains."""

    server: PyTree  # after ``select``
    cohort: Cohort
    row: Int[Array, " S"]  # ids of the cohort; those of empty rows lie in 0..N-1, too
    trains: Int[Array, " S"]  # ids of the clients that rows train
    cost: Int[Array, " S"]  # training samples of a present client, at least 1; 0 for an empty row
    info: Info  # of ``select``


class CohortClients(NamedTuple):
    """The clients ``Chosen.trains`` that the rows of a cohort train."""

    place: Int[Array, " S"]  # in the federation
    states: PyTree  # the Client of each, stacked


class TrainedCohort(NamedTuple):
    """The results of training a cohort, or some of its rows."""

    # An empty row adds nothing, its record is zeros, and its Client must be discarded; a dropped row's is the old one.

    total: Total
    rows: PyTree  # each row's record
    clients: PyTree  # each row's new Client
    bad: Any  # [S], who is not finite; () with "freeze", which does not look who it is
    broken: Bool[Array, ""]  # whether a NaN or infinity appeared in a Client


def able_clients(size: Int[Array, " N"], available: Bool[Array, " N"] | None, everybody: bool) -> Available:
    """The clients with training samples (``everybody``: all are known to) that are ``available`` (None: all)."""
    able = Available(size.shape[0], available)
    return able if everybody else able.only(size > 0)


def new_ballots(algorithm: Algorithm, able: Available, answers: PyTree, before: PyTree) -> PyTree:
    """The ballots after a poll that gave ``answers``, by id; who was not asked keeps the one before."""
    asked = _asked(algorithm, able)
    return answers if asked.among is None else trees.where_rows(asked.among, answers, before)


def asked_clients(algorithm: Algorithm, able: Available) -> Int[Array, ""]:
    """The number of clients that a poll asks."""
    return jnp.sum(_asked(algorithm, able).mask(), dtype=jnp.int32)


def _asked(algorithm: Algorithm, able: Available) -> Available:
    assert algorithm.poll is not None
    return able if algorithm.poll.shown else Available(able.population)


def choose(
    algorithm: Algorithm, size: Int[Array, " N"], state: State, round: Array, ballots: PyTree, able: Available
) -> Chosen:
    """Selects the cohort; ``size`` has the training samples of clients by id."""
    key = round_key(state.seed, Purpose.SELECT, round)
    server, cohort, info = algorithm.select(key, round, state.server, ballots, able)
    row = jnp.clip(cohort.id, 0, size.shape[0] - 1)
    # An empty row trains the smallest present client, and its result is discarded. So a NaN of an absent client cannot
    # reach a gradient.
    sizes = size[row]
    trains = jnp.where(
        cohort.present, row, row[jnp.argmin(jnp.where(cohort.present, sizes, jnp.iinfo(sizes.dtype).max))]
    )
    # The cost of a client is its number of samples; an empty row costs 0.
    cost = jnp.where(cohort.present, jnp.maximum(size[trains], 1), 0)
    return Chosen(server, cohort, row, trains, cost, info)


def close(
    algorithm: Algorithm,
    held: Held,
    state: State,
    round: Array,
    ballots: PyTree,
    chosen: Chosen,
    trained: TrainedCohort,
    non_finite: NonFinite,
) -> tuple[State, Bool[Array, " S"], Info]:
    """The state after the server's step, with the clients before it; which rows have a new Client ``[S]``; Info."""
    cohort, bad = chosen.cohort, trained.bad
    counted = cohort._replace(present=cohort.present & ~bad) if non_finite == "drop" else cohort
    key = round_key(state.seed, Purpose.AGGREGATE, round)
    finish = as_streamed(algorithm.aggregate).finish
    server, aggregated = finish(chosen.server, trained.total, trained.rows, Round(key, round, counted, held))
    if differs := trees.difference(state.server, server, exact=False):
        raise ValueError(f"a round must leave a server like that of init_server: {differs}")

    broken = trees.any_new_nonfinite(server, state.server) | trained.broken
    broken = broken | jnp.any(bad) if non_finite == "stop" else broken
    sound = (state.diverged < 0) & ~broken
    after = state._replace(
        round=state.round + 1,
        server=trees.where(sound, server, state.server),
        ballots=trees.where(sound, ballots, state.ballots),
        diverged=jnp.where((state.diverged < 0) & broken, round, state.diverged),
    )
    about = along("row", cohort_id=cohort.id, cohort_slot=cohort.slot, cohort_present=cohort.present)
    info = {**chosen.info, **aggregated, **about}
    if odd := sorted(name for name in info if "/" in name or name in ("", ".", "..")):
        raise ValueError(f"expected names of records without '/', as files have, got {odd[0]!r}")
    if non_finite != "freeze":
        bad = bad & (state.diverged < 0)  # later rounds of a frozen seed are none of its run
        info |= along("row", **{"dropped" if non_finite == "drop" else "not_finite": bad})
    if non_finite == "drop":
        info |= {"dropped_messages": jnp.sum(bad, dtype=jnp.int32)}
    return after, counted.present & sound, info


def train(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    seed: Array,
    round: Array,
    chosen: Chosen,
    clients: CohortClients,
    options: RoundOptions,
) -> TrainedCohort:
    """Trains the cohort, or some of its rows."""
    non_finite = options.non_finite
    aggregate = as_streamed(algorithm.aggregate)
    seats = Seat(round, chosen.trains, chosen.cohort.slot)
    server_rows, server_of = own_server(algorithm, chosen.server, layout.devices, seats)

    def one(row: tuple[Array, Array, Array, PyTree, Any]) -> tuple[tuple[Part, Array], tuple[PyTree, PyTree, Any]]:
        place, slot, present, state, server_row = row
        client, server = trees.take(federation.clients, place), server_of(server_row)
        up, new = train_one(algorithm, federation, seed, round, server, client, slot, state)
        bad: Any = () if non_finite == "freeze" else present & is_not_finite(up, new, state)
        present = present & ~bad if non_finite == "drop" else present
        seat = Seat(round, client.id, slot)
        part, record = aggregate.contribute(seen_from(server, seat), seat, up)
        record = trees.where(present, record, trees.zeros_like(record))
        return (part, present), (record, trees.where(present, new, state), bad)

    def sums(summands: tuple[Part, Array], real: Array) -> Total:
        parts, present = summands
        return add_up(parts, present & real)

    xs = (clients.place, chosen.cohort.slot, chosen.cohort.present, clients.states, server_rows)
    # One chunk on each device is computed without a loop.
    skip = options.skip and layout.clients * layout.devices < len(chosen.cost)
    how: dict[str, Any] = {"skip": skip, "rematerialise": options.rematerialise}
    total, (rows, trained, bad) = fold_lanes(one, sums, xs, layout.clients, layout.devices, chosen.cost, **how)
    return TrainedCohort(total, rows, trained, bad, trees.any_new_nonfinite(trained, clients.states))


def is_not_finite(up: PyTree, new: PyTree, before: PyTree) -> Bool[Array, ""]:
    """Whether a client's message is not finite (as ``fljax.protocol.messages`` says), or its state has become so."""
    return messages.is_not_finite(up) | trees.any_new_nonfinite(new, before)


def train_one(
    algorithm: Algorithm,
    federation: Federation,
    seed: Array,
    round: Array,
    server: PyTree,
    client: ClientData,
    slot: Array,
    client_state: PyTree,
) -> tuple[PyTree, PyTree]:
    """(Up, Client) after the training of one client."""
    key = round_key(seed, Purpose.TRAIN, round)
    seat = Seat(round, client.id, slot)
    down = algorithm.down(server, seat)
    result: Any = algorithm.train(
        client_key(key, client.id, slot), seat, down, client_state, local_data(federation, client)
    )
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(f"expected train to return a message and the client's state, got {type(result).__name__}")
    # A float that is stored in an array of whole numbers would be rounded, in silence.
    if differs := trees.difference(client_state, result[1], exact=False):
        raise ValueError(f"train must return a client's state like that of init_client: {differs}")
    return result


def rollout(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    seed: int | Integer[Array, ""] = 0,
    initial: State | None = None,
    clients: int | None = None,
    rematerialise: bool = False,
) -> tuple[State, dict[str, Array]]:
    """The state after some rounds, and the records: a scan of rounds.

    It may be called under ``jit``, ``vmap`` and ``grad``. Reverse-mode gradients with respect to floats of the
    algorithm (a learning rate, INCFL's thresholds) go through all rounds. They are gradients of the computation itself:
    rounding, ranks and discrete choices have derivative zero. An algorithm's ``Entry.differentiable`` and
    ``Entry.flat`` list its parameters of each kind. Two loops have no static bound, so JAX refuses their gradients:
    ``mwfed`` in its mode "pooled", and the models that unseen clients of ``standalone`` deploy.

    The precision of matrix products and convolutions is the one that ``jax.default_matmul_precision`` sets.

    Args:
      algorithm: built with concrete or traced hyper-parameters.
      federation: a federation of one seed; ``fljax.data.choose`` gives one of several, also under ``vmap``.
      rounds: number of rounds; 0 gives the state before round 0.
      seed: of the run. The same seed gives the same run as ``simulate``, up to rounding.
      initial: a state of one run, to continue that run with its seed. None: the state before round 0.
      clients: how many clients train side by side; None: all of the cohort.
      rematerialise: whether reverse mode recomputes each chunk of clients instead of storing its intermediate results.
        With ``clients=1`` a gradient then holds one client's training, and the state of every round.

    Returns:
      The state, and the records ``[rounds, ...]`` by name, as in ``Result.records``.

    Raises:
      ValueError: if a count is out of range, if the federation or the state is of several seeds, or if the table of a
        scenario has fewer rows than there are rounds.
    """
    if rounds < 0:
        raise ValueError(f"expected a number of rounds of at least 0, got {rounds}")
    _check_single(federation, initial, clients)
    for name, length, *_ in algorithm.scenarios:
        if length is not None and rounds > length:
            raise ValueError(f"expected at most {length} rounds, for which the table of {name} has rows, got {rounds}")
    algorithm = wrapped(algorithm, seed=seed)
    federation = as_vectors(by_id(federation))
    population = federation.clients.id.shape[0]
    state = initial_state(algorithm, federation, jnp.asarray(seed, jnp.uint32)) if initial is None else initial
    layout = Layout(clients or population, 1, population)
    options = RoundOptions(skip=False, rematerialise=rematerialise)

    def step(state: State, _: None) -> tuple[State, dict[str, Array]]:
        state, info = one_round(algorithm, federation, layout, state, options=options)
        return state, unlabelled(info)

    return jax.lax.scan(step, state, None, length=rounds)


def evaluate_clients(
    algorithm: Algorithm, federation: Federation, state: State, *, clients: int | None = None
) -> dict[str, Array]:
    """Losses and accuracies of the models that clients would use, on their test rows and validation rows.

    It may be called under ``jit``, ``vmap`` and ``grad``, like ``rollout``, which gives the state.

    Args:
      algorithm: the algorithm that made the state.
      federation: a federation of one seed, as for ``rollout``.
      state: of one run.
      clients: how many clients are evaluated side by side; None: all of them.

    Returns:
      ``test_loss`` and, if the task has a score, ``test_accuracy`` ``[N]`` by client id; ``valid_loss`` and
      ``valid_accuracy`` if some client has validation rows or the federation is traced; and what else
      ``evaluate_state`` in ``engine.rounds.evaluate`` lists. NaN for clients without training rows, without rows of
      the split, or not counted by the algorithm. A NaN loss becomes infinite.

    Raises:
      ValueError: if ``clients`` is not positive, or if the federation or the state is of several seeds.
    """
    _check_single(federation, state, clients)
    algorithm = wrapped(algorithm, seed=state.seed)
    federation = as_vectors(by_id(federation))
    population = federation.clients.id.shape[0]
    layout = Layout(population, 1, clients or population)
    sizes = federation.clients.valid.size
    try:
        valid = bool(np.any(np.asarray(sizes) > 0))
    except jax.errors.TracerArrayConversionError:
        valid = True
    return unlabelled(evaluate_state(algorithm, federation, layout, state, state.round, valid))


def _check_single(federation: Federation, state: State | None, clients: int | None) -> None:
    """Raises a ValueError unless federation and state are of one run, and ``clients`` is a positive number or None."""
    if clients is not None and clients < 1:
        raise ValueError(f"expected a positive number of clients, got {clients}")
    if np.ndim(federation.clients.id) != 1:
        raise ValueError(
            f"expected the federation of one seed, got one of {np.shape(federation.clients.id)[0]} seeds, of which "
            "fljax.data.choose(federation, place) gives one"
        )
    if state is not None and np.ndim(state.round):
        raise ValueError(f"expected the state of one run, got one of {np.shape(state.round)[0]} runs")
