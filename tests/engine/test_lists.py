"""Rounds, evaluation and standalone models on lists of rows are those on tables, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from fljax import Execution, algorithms, data, engine
from fljax.engine.programs import program
from fljax.testing.federation import logistic_regression, tiny_federation, with_lists
from fljax.training import Local
from tests.laws.compare import assert_same

pytestmark = pytest.mark.usefixtures("quick_compilation")

TASK = logistic_regression()
STEPS, EPOCHS = Local(0.1, 2, steps=3), Local(0.1, 2, epochs=2)
BUILDERS: dict[str, Any] = {
    "fedavg": lambda: algorithms.fedavg(TASK, STEPS, clients_per_round=3),
    "ifca": lambda: algorithms.ifca(TASK, EPOCHS, clients_per_round=3, clusters=2),
    "fedala": lambda: algorithms.fedala(TASK, EPOCHS, clients_per_round=3, layers=1, most_epochs=3),
    "ditto": lambda: algorithms.ditto(TASK, EPOCHS, clients_per_round=3),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_run_on_lists_is_the_run_on_tables(name: str) -> None:
    """Between the lists stands an example that is NaN."""
    tables = tiny_federation()
    lists = with_lists(tables, tables.examples.x.shape[0] - 1)
    for execution in (None, Execution(clients=2)) if name == "fedavg" else (Execution(clients=2),):
        one, other = (
            engine.simulate(BUILDERS[name](), each, rounds=3, seeds=(0, 4), execution=execution)
            for each in (tables, lists)
        )
        assert_same(one.state, other.state)
        for metric in ("test_loss", "unseen_test_loss"):
            np.testing.assert_array_equal(one.metrics[metric], other.metrics[metric])


@pytest.mark.thorough
def test_stacked_lists_are_stacked_tables() -> None:
    singles = [tiny_federation(seed) for seed in (0, 1)]
    nan = singles[0].examples.x.shape[0] - 1
    tables, lists = data.stack(singles), data.stack([with_lists(each, nan) for each in singles])
    assert lists.lists is not None
    assert lists.lists.ndim == 1
    run = lambda each: engine.simulate(BUILDERS["fedavg"](), each, rounds=2, seeds=(0, 4))  # noqa: E731
    one, other = run(tables), run(lists)
    assert_same(one.state, other.state)
    np.testing.assert_array_equal(one.metrics.test_loss, other.metrics.test_loss)
    alone = engine.standalone(TASK, tables, EPOCHS, seeds=(0, 4)), engine.standalone(TASK, lists, EPOCHS, seeds=(0, 4))
    assert_same(*alone)


def _equal_federation() -> Any:
    """Four clients with six rows each, in lists."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    made = data.Dataset(x, y, 2, 40)
    return data.federate(made, "iid", clients=4, valid_fraction=0.0)


@pytest.mark.in_turn
def test_an_algorithm_may_train_on_fewer_rows_than_its_clients_have() -> None:
    federation, local = _equal_federation(), Local(0.1, 2, epochs=3)
    fedavg = algorithms.fedavg(logistic_regression(), local, clients_per_round=None)

    def train(key: Any, seat: Any, down: Any, client: Any, own: Any) -> Any:
        rows = own.train.rows
        fewer = own._replace(train=own.train._replace(rows=rows._replace(size=rows.size // 2)))
        return fedavg.train(key, seat, down, client, fewer)

    lazy = fedavg._replace(train=train)
    found = engine.simulate(lazy, federation, rounds=3, seeds=(0,)).state.server.model
    expected, _ = engine.rollout(lazy, federation, rounds=3, seed=0)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected.server.model), strict=True):
        np.testing.assert_allclose(a[0], b, rtol=1e-5, atol=1e-6)


def test_the_least_number_of_rows_is_that_of_a_federation_whose_sizes_were_changed() -> None:
    federation = _equal_federation()
    train = federation.clients.train
    for removed, least in ((1, 5), (3, 0)):  # 3 of 6 are of no use
        fewer = train._replace(size=train.size.at[1].add(-removed))
        changed = federation._replace(clients=federation.clients._replace(train=fewer))
        _, inputs = program.partition_plan(algorithms.fedavg(logistic_regression(), EPOCHS), changed)
        assert inputs.federation.clients.train.index.least == least
