"""The laws that every algorithm obeys, each a function of a ``Bench``, and comparisons of pytrees.

They raise an AssertionError, which names the leaf that differs.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import engine
from fljax.core import trees
from fljax.core.trees import numbers_of
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.round import RoundOptions, train_one
from fljax.engine.rounds.states import State, by_id, initial_state
from fljax.protocol import Algorithm, Cohort, Federation, Seat, seen_from, unlabelled
from fljax.protocol.algorithm import is_per_client
from fljax.protocol.sums import Streamed, as_streamed
from fljax.scenarios import opting_out
from fljax.testing.bench import LOCAL, POPULATION, ROUNDS, TASK, Bench, enable_x64, federation, quick_options
from fljax.testing.federation import (
    change_client,
    logistic_regression,
    pad_with_nan,
    spoil_client,
    store_in_order,
    tiny_federation,
    twin_clients,
)


def _pairs(a: Any, b: Any) -> list[tuple[str, np.ndarray, np.ndarray]]:
    first, second = jax.tree.structure(a), jax.tree.structure(b)
    if first != second:
        raise AssertionError(f"expected equal structures, got {first} and {second}")
    flat, _ = jax.tree_util.tree_flatten_with_path(a)
    others = jax.tree.leaves(b)
    pairs = [
        (jax.tree_util.keystr(path), numbers_of(x), numbers_of(y)) for (path, x), y in zip(flat, others, strict=True)
    ]
    for path, x, y in pairs:
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            raise AssertionError(f"{path} is {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}")
    return pairs


def _difference(path: str, x: np.ndarray, y: np.ndarray) -> str:
    if x.dtype.kind != "f":
        return f"{path} differs in {int(np.sum(x != y))} of {x.size} entries"
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return f"{path} is not finite in one of them"
    known = np.isfinite(x) & np.isfinite(y)
    return f"{path} differs by up to {float(np.max(np.abs(x[known] - y[known]), initial=0.0)):.2g}"


def assert_same(a: Any, b: Any) -> None:
    """Equal bit for bit (NaN equals NaN)."""
    for path, x, y in _pairs(a, b):
        if not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            raise AssertionError(_difference(path, x, y))


def assert_close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Equal up to rounding."""
    for path, x, y in _pairs(a, b):
        if not np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise AssertionError(_difference(path, x, y))


def is_same(a: Any, b: Any) -> bool:
    """Whether all leaves are equal."""
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for _, x, y in _pairs(a, b))


def assert_finite(tree: Any) -> None:
    """No floating leaf holds NaN or infinity."""
    for path, x, _ in _pairs(tree, tree):
        if x.dtype.kind == "f" and not np.all(np.isfinite(x)):
            raise AssertionError(f"{path} is not finite")


def shapes(tree: Any) -> Any:
    """Shape, dtype and weak type of every leaf."""
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype), bool(getattr(leaf, "weak_type", False))), tree)


def require(condition: object, sentence: str) -> None:
    """Raises an AssertionError with the sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


def names_peers_by_id(case: Bench) -> None:
    """Peers are a list of ids of clients, as long for every client and in every round."""
    algorithm, zero, lengths = case.algorithm(), jnp.zeros((), jnp.int32), set()
    if algorithm.peers is None:
        return
    for state in (case.start(), case.run(case.start())):
        for id in range(POPULATION):
            seat = Seat(state.round, jnp.int32(id), zero)
            peers = algorithm.peers(seen_from(state.server, seat), seat)
            is_list = jnp.issubdtype(peers.dtype, jnp.integer) and peers.ndim == 1
            require(is_list, f"peers returns {_words(shapes(peers))} and not a list of ids")
            known = bool(jnp.all((peers >= 0) & (peers < POPULATION)))
            require(known, f"client {id} has peers with the ids {peers.tolist()}")
            lengths.add(peers.shape[0])
    require(len(lengths) == 1, f"peers returns lists of the lengths {sorted(lengths)}")


def keeps_shapes(case: Bench, double: bool = False) -> None:
    """The state keeps structure, shapes and dtypes, also of a task of single precision in double precision."""
    with enable_x64(double):
        for dtype in (jnp.float32, jnp.float64)[: 1 + double]:
            task, data = logistic_regression(dtype), by_id(tiny_federation(dtype=dtype))
            algorithm = _with_exact_dtypes(case.algorithm(task=task))
            start = jax.eval_shape(lambda a=algorithm, d=data: initial_state(a, d, jnp.uint32(0)))
            step = functools.partial(engine.one_round, algorithm, data, Layout(5, 1, 5))
            after = shapes(jax.eval_shape(step, start)[0])
            before, names = jax.tree_util.tree_flatten_with_path(shapes(start), is_leaf=_is_shape)
            require(
                names == jax.tree.structure(after, is_leaf=_is_shape), "the state has another structure after a round"
            )
            for (path, was), now in zip(before, jax.tree.leaves(after, is_leaf=_is_shape), strict=True):
                require(
                    was == now, f"state{jax.tree_util.keystr(path)} is {_words(was)} before and {_words(now)} after"
                )


def _with_exact_dtypes(algorithm: Algorithm) -> Algorithm:
    """The same algorithm; a state of another dtype raises, which the engine would store in the dtype of the first."""
    streamed = as_streamed(algorithm.aggregate)

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        result = algorithm.train(key, seat, down, client, data)
        if isinstance(result, tuple) and len(result) == 2:  # the engine says so if it is not
            differs = trees.difference(client, result[1])
            require(differs is None, f"train returns a client's state unlike that of init_client: {differs}")
        return result

    def finish(server: Any, *others: Any) -> Any:
        after, info = streamed.finish(server, *others)
        differs = trees.difference(server, after)
        require(differs is None, f"the aggregation returns a server unlike that of init_server: {differs}")
        return after, info

    return algorithm._replace(train=train, aggregate=streamed._replace(finish=finish))


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and isinstance(value[1], str)


def _words(shape: tuple[tuple[int, ...], str, bool]) -> str:
    return f"{shape[1]}{list(shape[0])}{' (weak type)' * shape[2]}"


def is_repeatable(case: Bench) -> None:
    """A program that is traced anew gives the same bits: nothing is random or remembered outside of keys and state."""
    again = Bench(case.case)
    assert_same(case.run(case.start()), again.run(again.start()))


def is_compiled_right(case: Bench) -> None:
    """A round op by op, of one local step, is the compiled round, up to rounding."""
    algorithm = case.case.build(TASK, LOCAL._replace(steps=1), **case.case.example)
    data, start = by_id(federation()), case.start()

    def step(state: State) -> State:
        return engine.one_round(algorithm, data, Layout(16, 1, 16), state)[0]

    expected = jax.jit(step, compiler_options=quick_options())(start)
    with jax.disable_jit():
        after = step(start)
    assert_close(expected, after, 1e-4)


def maps_clients(case: Bench) -> None:
    """Chunks of two clients give the same as all clients side by side, up to rounding."""
    step = jax.jit(functools.partial(case.round, layout=Layout(2, 1, 2)), compiler_options=quick_options())
    state = case.start()
    for _ in range(ROUNDS):
        state, _ = step(case.numbers, federation(), state, case.everybody, case.all)
    assert_close(case.run(case.start()), state)


def maps_seeds(case: Bench) -> None:
    """Seeds that run side by side are the runs of each seed alone, up to rounding, and differ."""
    seeds = jnp.asarray((0, 3), jnp.uint32)
    whole = jax.vmap(case.whole, in_axes=(None, None, 0, None))
    both = jax.jit(whole, compiler_options=quick_options())(case.numbers, federation(), seeds, jnp.int32(ROUNDS))
    for place, seed in enumerate((0, 3)):
        assert_close(case.run(case.start(seed=seed)), jax.tree.map(lambda leaf, i=place: leaf[i], both))
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], both.server) for i in range(2))
    require(not is_same(first, second) or not jax.tree.leaves(first), "two seeds give the same server")


def ignores_order(case: Bench) -> None:
    """The order in which clients are stored changes nothing; the order of a cohort's rows changes rounding only."""
    twins = twin_clients(federation(), 1, 3)
    for data in (federation(), twins):
        stored = case.run(case.start(data), data=data)
        other = store_in_order(data, (4, 3, 2, 1, 0))
        # Ties between twins break by id, not by place.
        assert_same(stored, case.run(case.start(other), data=other))
        assert_same(case.judge(stored, data), case.judge(stored, other))
        order = np.random.default_rng(0).permutation(case.rows)
        shuffled = case.run(case.start(data), data=data, controls=case.all._replace(order=jnp.asarray(order)))
        assert_close(stored, shuffled)


def keeps_absent_clients(case: Bench) -> None:
    """A client that does not come keeps its state."""
    before = case.run(case.start(), rounds=1)
    for keep in (np.arange(case.rows) % 2 == 0, np.arange(case.rows) == 0):
        controls = case.all._replace(present=jnp.asarray(keep))
        after, info = case.step(case.numbers, federation(), before, case.everybody, controls)
        present = np.zeros(POPULATION, bool)
        present[np.asarray(info["cohort_id"].values)[np.asarray(info["cohort_present"].values)]] = True
        require(present.sum() <= keep.sum(), "a client that was cleared from the cohort is present")
        assert_same(
            *(
                jax.tree.map(lambda leaf, gone=~present: trees.numbers_of(leaf)[gone], clients)
                for clients in (before.clients, after.clients)
            )
        )


def leaves_out_empty_rows(case: Bench) -> None:
    """Empty rows of a cohort count for nothing, whatever they hold: more of them change rounding only."""
    algorithm, data = case.algorithm(), by_id(federation())
    some = jnp.arange(case.rows) != 1

    def with_empty_rows(count: int) -> Algorithm:
        def select(*arguments: Any) -> Any:
            server, cohort, info = algorithm.select(*arguments)
            cohort = cohort._replace(present=cohort.present & some)
            nobody = Cohort(cohort.id[:1].repeat(count), cohort.slot[:1].repeat(count), jnp.zeros(count, bool))
            return server, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), cohort, nobody), info

        return algorithm._replace(select=select)

    def run(count: int) -> State:
        @functools.partial(jax.jit, compiler_options=quick_options())
        def step(state: State) -> State:
            return engine.one_round(with_empty_rows(count), data, Layout(16, 1, 16), state)[0]

        return step(before)

    before = case.run(case.start(), rounds=1)  # a state of zeros would hide what is read from it
    assert_close(run(0), run(3))


def never_reads_nan(case: Bench) -> None:
    """NaN in the data of absent clients and in padding is never read."""
    padded = pad_with_nan(federation())
    state = case.run(case.start())
    assert_same(state, case.run(case.start(padded), data=padded))
    assert_same(case.judge(state), case.judge(state, padded))

    spoilt = spoil_client(federation(), 1)
    available = case.everybody.at[1].set(False)
    state = case.run(case.start(), available=available)
    assert_finite(state)
    assert_same(state, case.run(case.start(), data=spoilt, available=available))
    assert_same(_others(case.judge(state), 1), _others(case.judge(state, spoilt), 1))

    # Where nobody is polled, a client that is selected but does not come may hold NaN as well.
    if case.algorithm().poll is None:
        _, info = case.step(case.numbers, federation(), case.start(), case.everybody, case.all)
        without_second = case.all._replace(present=jnp.arange(case.rows) != 1)
        gone = spoil_client(federation(), int(info["cohort_id"].values[1]))
        state = case.run(case.start(), rounds=1, controls=without_second)
        assert_same(state, case.run(case.start(), data=gone, rounds=1, controls=without_second))


def _others(metrics: dict[str, Any], id: int) -> dict[str, Any]:
    """Metrics without those of one seen client."""
    return {
        name: values if name.startswith(("unseen_", "server_")) else np.delete(values, id)
        for name, values in metrics.items()
    }


def leaves_out_who_left(case: Bench) -> None:
    """A client that left for good keeps its row at the server, and what it has changes nothing for the others."""
    who = 1
    baseline = np.where(np.arange(POPULATION) == who, 2.0, 0.0)  # before round 1 client 1 leaves
    algorithm = opting_out(case.algorithm(), baseline=baseline, every=1)

    @functools.partial(jax.jit, compiler_options=quick_options())
    def step(data: Federation, state: State) -> State:
        return engine.one_round(algorithm, data, Layout(16, 1, 16), state)[0]

    @functools.partial(jax.jit, compiler_options=quick_options())
    def judge(data: Federation, state: State) -> Any:
        return unlabelled(evaluate_state(algorithm, data, Layout(16, 1, 16), state, state.round))

    def rows_of_leaver(state: State) -> Any:
        parts = [part for part in jax.tree.leaves(state.server, is_leaf=is_per_client) if is_per_client(part)]
        return jax.tree.map(lambda leaf: leaf[who], (parts, state.clients))

    def negated(leaf: Any) -> Any:
        return leaf.at[who].multiply(-1) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

    def negate_rows(part: Any) -> Any:
        return jax.tree.map(negated, part) if is_per_client(part) else part

    data = by_id(federation())
    joined = step(data, jax.jit(initial_state, static_argnums=0)(algorithm, data, jnp.uint32(0)))
    left = step(data, joined)
    assert_same(rows_of_leaver(joined), rows_of_leaver(left))
    other = left._replace(
        server=jax.tree.map(negate_rows, left.server, is_leaf=is_per_client),
        clients=jax.tree.map(negated, left.clients),
    )
    changed = by_id(change_client(federation(), who))
    metrics, expected = judge(data, step(changed, other)), judge(data, step(data, left))
    assert_close(_others(expected, who), _others(metrics, who))


def survives_empty_rounds(case: Bench) -> None:
    """A round to which nobody comes changes no model and brings no NaN."""
    before = case.run(case.start())
    nobody_comes = case.all._replace(present=~case.all.present)
    for available, controls in ((~case.everybody, case.all), (case.everybody, nobody_comes)):
        after = case.run(before, available=available, controls=controls, rounds=1)
        assert_finite(after)
        require(int(after.diverged) == -1, "the server or a client is not finite after a round of nobody")
        require(int(after.round) == int(before.round) + 1, "the round was not counted")
        assert_same(before.clients, after.clients)
        if not available.any():
            assert_same(case.judge(before, round=2), case.judge(after, round=2))


def drops_what_is_not_finite(case: Bench) -> None:
    """With ``non_finite="drop"``, a client that sends NaN is as one that does not come."""
    algorithm, data = case.algorithm(), by_id(federation())
    if algorithm.poll is not None:
        return  # what clients answer from such data changes who is selected
    _, info = case.step(case.numbers, federation(), case.start(), case.everybody, case.all)
    who = int(np.asarray(info["cohort_id"].values)[np.asarray(info["cohort_present"].values)][0])

    def absent(*arguments: Any) -> Any:
        server, cohort, chosen = algorithm.select(*arguments)
        return server, cohort._replace(present=cohort.present & (cohort.id != who)), chosen

    @functools.partial(jax.jit, compiler_options=quick_options(), static_argnames="gone")
    def step(data: Federation, state: State, gone: bool) -> State:
        options = RoundOptions(non_finite="freeze" if gone else "drop")
        chosen = algorithm._replace(select=absent) if gone else algorithm
        return engine.one_round(chosen, data, Layout(16, 1, 16), state, options=options)[0]

    dropped = step(by_id(spoil_client(federation(), who)), case.start(), False)
    assert_finite(dropped)
    assert_close(step(data, case.start(), True), dropped)


def sends_no_rows(case: Bench) -> None:
    """Nothing that is sent has a shape that depends on how many rows clients have."""

    def sent(extra: int) -> Any:
        data, algorithm = by_id(tiny_federation(extra=extra)), case.algorithm()

        def messages() -> Any:
            state = initial_state(algorithm, data, jnp.uint32(0))
            state_of_client, client = jax.tree.map(lambda leaf: leaf[0], (state.clients, data.clients))
            zero = jnp.int32(0)
            up, _ = train_one(algorithm, data, jnp.uint32(0), zero, state.server, client, zero, state_of_client)
            return up, state.ballots

        return shapes(jax.eval_shape(messages))

    require(sent(0) == sent(3), "a message has another shape where clients have more padding")


def keeps_strangers_apart(case: Bench) -> None:
    """Entries of all seen clients change places: each is another's now, so what a stranger gets must not move."""
    state = case.run(case.start(), rounds=3)

    def roll(leaf: Any) -> Any:
        return jnp.roll(leaf, 1, axis=0) if leaf.ndim and leaf.shape[0] == POPULATION else leaf

    def strangers(metrics: dict[str, Any]) -> dict[str, Any]:
        return {name: values for name, values in metrics.items() if name.startswith("unseen_")}

    rolled = state._replace(server=jax.tree.map(roll, state.server), clients=jax.tree.map(roll, state.clients))
    before = strangers(case.judge(state))
    require(before, "unseen clients have no metrics")
    after = case.evaluate(jax.tree.map(roll, case.numbers), federation(), rolled, state.round)
    assert_close(before, strangers(after))


def streams_as_it_stacks(case: Bench) -> None:
    """A streamed aggregation gives the same on a cohort that is stacked."""
    streamed = case.algorithm()
    if not isinstance(streamed.aggregate, Streamed):
        return

    def aggregate(*arguments: Any) -> Any:
        return streamed.aggregate(*arguments)

    data, available = by_id(federation()), jnp.arange(POPULATION) != 1

    @functools.partial(jax.jit, compiler_options=quick_options())
    def step(state: State) -> tuple[State, State]:
        both = (streamed, streamed._replace(aggregate=aggregate))
        first, second = (engine.one_round(a, data, Layout(5, 1, 5), state, available=available)[0] for a in both)
        return first, second

    first, second = step(case.start())
    assert_close(first, second)


def lowers_for_every_platform(case: Bench) -> None:
    """The round has a form for CPUs, GPUs and TPUs."""
    state, zero = jax.eval_shape(case._init, case.numbers, federation(), jnp.uint32(0)), jnp.int32(0)
    for program in (
        jax.jit(case.round).trace(case.numbers, federation(), state, case.everybody, case.all),
        jax.jit(case._evaluate).trace(case.numbers, federation(), state, zero),
    ):
        program.lower(lowering_platforms=("cpu", "cuda", "tpu"))


def resumes_and_pickles(case: Bench) -> None:
    """A run that is continued was never interrupted, and its Result is the same after pickle."""
    algorithm = case.case.build(TASK, LOCAL, **case.case.example)
    run = functools.partial(engine.simulate, algorithm, federation(), seeds=(0, 3), evaluate_every=ROUNDS)
    whole, half = run(rounds=4), run(rounds=2)
    half = pickle.loads(pickle.dumps(half))
    rest = run(rounds=2, initial=half.state)
    assert_same(whole.state, rest.state)
    left, right = whole.metrics["test_loss"].sel(evaluated_round=[2, 4]), rest.metrics["test_loss"]
    require(left.identical(right), "the losses of a run that is continued are others")
    require(
        whole.records.sel(round=[2, 3]).identical(rest.records), "the records of a run that is continued are others"
    )
