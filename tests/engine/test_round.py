"""One round, keys, execution, and standalone models."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine, training
from fljax.algorithms import fedavg
from fljax.engine.devices.layout import Layout
from fljax.engine.loop import standalone_models
from fljax.engine.programs.shapes import Sizes
from fljax.engine.rounds.round import RoundOptions
from fljax.engine.rounds.states import Purpose, by_id, client_key, initial_state, local_data, round_key
from fljax.protocol import Federation
from fljax.training import Local
from tests.laws.compare import assert_close, assert_same
from tests.toys.clusters import clusters
from tests.toys.federation import STORED, TRAIN, UNSEEN_TRAIN, VALID, tiny_federation
from tests.toys.quick import QUICK
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)


def test_purposes_are_distinct_and_keep_their_numbers() -> None:
    """They are part of a run's identity; ``round_key`` has room for 32."""
    expected = ["INIT_SERVER", "INIT_CLIENT", "POLL", "SELECT", "TRAIN", "AGGREGATE", "DEPLOY"]
    expected += ["UNSEEN_INIT_CLIENT", "UNSEEN_DEPLOY", "STANDALONE", "UNSEEN_STANDALONE"]
    assert list(Purpose.__members__)[:11] == expected
    assert [int(purpose) for purpose in Purpose] == list(range(len(Purpose)))
    assert len(Purpose) <= 32


def test_every_seat_has_a_key_of_its_own() -> None:
    seats = [*itertools.product((0, 1, 2**31), Purpose, (0, 1, 5, 31, 32, 1000), (0, 1, 255, 100_000), (0, 1, 255))]
    columns = [jnp.asarray([int(seat[i]) for seat in seats], jnp.uint32) for i in range(5)]
    make = lambda seed, purpose, round, id, slot: client_key(round_key(seed, purpose, round), id, slot)  # noqa: E731
    keys = jax.random.key_data(jax.jit(jax.vmap(make))(*columns))
    assert len(np.unique(np.asarray(keys), axis=0)) == len(seats)


@pytest.mark.in_turn
def test_by_id_sorts_one_federation_and_stacked_ones() -> None:
    data = tiny_federation()
    assert tuple(np.asarray(data.clients.id)) == STORED
    sorted_data = by_id(data)
    np.testing.assert_array_equal(sorted_data.clients.id, np.arange(5))
    assert tuple(np.asarray(sorted_data.clients.train.size)) == TRAIN
    assert tuple(np.asarray(sorted_data.clients.valid.size)) == VALID
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), data.clients, sorted_data.clients)
    stacked = by_id(data._replace(clients=both))
    for position in range(2):
        assert_same(jax.tree.map(lambda leaf, i=position: leaf[i], stacked.clients), sorted_data.clients)


def _without_rows(data: Federation, id: int) -> Federation:
    """Client ``id`` has no training rows; data stored by id."""
    train = data.clients.train
    return data._replace(clients=data.clients._replace(train=train._replace(size=train.size.at[id].set(0))))


@pytest.mark.in_turn
def test_only_the_available_who_have_data_sit() -> None:
    algorithm = fedavg(TASK, LOCAL, clients_per_round=4)
    data = _without_rows(by_id(tiny_federation()), 3)
    state = jax.jit(lambda: initial_state(algorithm, data, jnp.uint32(0)), compiler_options=QUICK)()
    step = jax.jit(
        lambda state, available: engine.one_round(algorithm, data, Layout(4, 1, 5), state, available=available),
        compiler_options=QUICK,
    )
    seen: set[int] = set()
    for gone in range(5):
        state, info = step(state, jnp.ones(5, bool).at[gone].set(False))
        present = np.asarray(info["cohort_id"].values)[np.asarray(info["cohort_present"].values)].tolist()
        expected = {0, 1, 2, 3, 4} - {gone, 3}
        assert len(present) == len(expected)
        assert set(present) == expected
        seen |= set(present)
        weight = np.asarray(info["weight"].values)
        assert (weight[~np.asarray(info["cohort_present"].values)] == 0).all()
        np.testing.assert_allclose(weight.sum(), 1, rtol=1e-6)
    assert seen == {0, 1, 2, 4}
    assert int(state.round) == 5


def test_who_is_not_available_keeps_its_last_ballot() -> None:
    algorithm = clusters(TASK, LOCAL)
    data = by_id(tiny_federation())
    state = jax.jit(lambda: initial_state(algorithm, data, jnp.uint32(0)), compiler_options=QUICK)()
    assert all(not np.asarray(leaf).any() for leaf in state.ballots)
    step = jax.jit(
        lambda state, available: engine.one_round(algorithm, data, Layout(6, 1, 5), state, available=available),
        compiler_options=QUICK,
    )
    everybody = jnp.ones(5, bool)
    first, _ = step(state, everybody)
    second, info = step(first, everybody.at[2].set(False))
    assert int(info["polled"]) == 4
    changed = np.any(np.asarray(first.ballots.loss) != np.asarray(second.ballots.loss), axis=1)
    assert changed.tolist() == [True, True, False, True, True]


@pytest.mark.thorough
def test_standalone_equals_training_each_client_by_a_loop() -> None:
    data, seeds = tiny_federation(), (3, 8)
    local = Local(0.3, batch_size=4, epochs=2)
    found: Any = engine.standalone(TASK, data, local, seeds=seeds, keep_models=True)
    ordered = by_id(data)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def alone(client: Any, seed: Any, purpose: Any) -> Any:
        own = local_data(ordered, client)
        key = client_key(round_key(seed, purpose), client.id)
        start = TASK.init(round_key(seed, Purpose.INIT_SERVER))
        model = training.train(key, start, own.train, task=TASK, local=local).params
        judge = lambda subset: training.evaluate(TASK, lambda x: TASK.logits(model, x), subset)  # noqa: E731
        return judge(own.train)[0], *judge(own.test), model

    assert found.unseen_test_loss is not None
    assert (found.threshold.shape, found.unseen_threshold.shape) == ((2, len(TRAIN)), (2, len(UNSEEN_TRAIN)))
    seen = (ordered.clients, Purpose.STANDALONE, (found.threshold, found.test_loss, found.test_accuracy, found.params))
    unseen_found = (found.unseen_threshold, found.unseen_test_loss, found.unseen_test_accuracy)
    unseen = (ordered.unseen, Purpose.UNSEEN_STANDALONE, unseen_found)
    populations: Any = (seen, unseen)
    for clients, purpose, results in populations:
        for position, seed in enumerate(seeds):
            for i in range(clients.id.shape[0]):
                expected = alone(
                    jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], clients), jnp.uint32(seed), int(purpose)
                )
                got = jax.tree.map(lambda leaf, p=position, i=i: leaf[p, i], results)
                assert_close(got, expected[: len(results)])


@pytest.mark.in_turn
def test_standalone_without_strangers_and_without_models() -> None:
    data = tiny_federation()._replace(unseen=None)
    found = engine.standalone(TASK, data, LOCAL)
    assert found.params is None
    assert found.unseen_threshold is None
    assert np.isfinite(found.threshold).all()


@pytest.mark.thorough
def test_standalone_on_accelerators_knows_what_a_client_holds(monkeypatch: Any) -> None:
    """Memory decides there: activations of many clients side by side are far more than their models."""
    seen: list[Sizes] = []

    def kept(execution: Any, sizes: Sizes) -> Layout:
        seen.append(sizes)
        return Layout(1, 1, 1)

    monkeypatch.setattr(standalone_models, "resolve_together", kept)
    monkeypatch.setattr(standalone_models, "default_platform", lambda: "gpu")
    small, large = (Local(0.2, batch_size=size, steps=1) for size in (2, 200))
    found = [engine.standalone(TASK, tiny_federation(), local) for local in (small, large)]
    assert seen[1].lane > seen[0].lane > seen[0].model
    assert all(np.isfinite(each.threshold).all() for each in found)


@pytest.mark.thorough
def test_everybody_is_as_if_all_were_named() -> None:
    """Where all clients have data nobody looks who has, and the same bits come out."""
    data = by_id(tiny_federation())
    algorithm = fedavg(TASK, LOCAL, clients_per_round=3)
    state = initial_state(algorithm, data, jnp.uint32(3))

    def step(everybody: bool) -> Any:
        return jax.jit(
            lambda state: engine.one_round(algorithm, data, Layout(3, 1, 5), state, options=RoundOptions(everybody))
        )

    found, expected = step(True)(state), step(False)(state)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
