"""The host's loop: blocks, evaluations, callbacks, seeds, divergence, and what a Result gives out."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, data
from fljax import local as training
from fljax.engine.execution import Sizes, resolve
from fljax.engine.keys import Purpose, client_key, round_key
from fljax.local import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK = logistic_regression()
LOCAL = Local(learning_rate=0.2, batch_size=2, steps=2)


@functools.cache
def federation(seed: int = 0):
    return tiny_federation(seed)


def plan(**by_seed: Any) -> fljax.Plan:
    arguments = {"task": TASK, "local": LOCAL, "clients_per_round": 3, "server_lr": 1.0}
    return fljax.Plan(algorithms.fedavg, {k: v for k, v in arguments.items() if k not in by_seed}, by_seed)


def simulate(which: fljax.Plan | None = None, **options: Any) -> fljax.Result:
    return fljax.simulate(which or plan(), federation(), **({"rounds": 5, "evaluate_every": 2} | options))


@functools.cache
def usual() -> fljax.Result:
    """Five rounds of two seeds; many tests look at it."""
    return simulate(seeds=(0, 7))


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_a_last_short_block_is_run_and_evaluated():
    assert usual().metrics["evaluated_round"].values.tolist() == [0, 2, 4, 5]
    assert usual().records["round"].values.tolist() == [0, 1, 2, 3, 4]


def test_how_often_to_evaluate_changes_no_result():
    once = simulate(seeds=(0, 7), evaluate_every=None)
    assert once.metrics["evaluated_round"].values.tolist() == [0, 5]
    np.testing.assert_array_equal(once.records["cohort_id"], usual().records["cohort_id"])
    for a, b in zip(leaves(once.state), leaves(usual().state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_no_rounds_give_the_initial_model():
    result = simulate(rounds=0)
    initial = TASK.init(round_key(jnp.uint32(0), Purpose.INIT_SERVER))
    for a, b in zip(leaves(result.deployed(0)), leaves(initial), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert result.records.sizes["round"] == 0


def test_a_seed_does_not_depend_on_its_companions():
    alone = simulate(seeds=(7,))
    np.testing.assert_allclose(
        alone.metrics["test_loss"].sel(seed=7), usual().metrics["test_loss"].sel(seed=7), rtol=1e-5
    )
    assert (usual().metrics["test_loss"].sel(seed=0) != usual().metrics["test_loss"].sel(seed=7)).any()


def test_stacked_federations_are_each_seeds_own():
    both = [federation(0), tiny_federation(1)]
    stacked = fljax.simulate(plan(), data.stack(both), rounds=3, seeds=(0, 7))
    for position, seed in enumerate((0, 7)):
        single = fljax.simulate(plan(), both[position], rounds=3, seeds=(seed,))
        np.testing.assert_allclose(
            stacked.metrics["test_loss"].sel(seed=seed), single.metrics["test_loss"].sel(seed=seed), rtol=1e-5
        )


def test_callbacks_see_every_block_and_may_stop():
    seen: list[int] = []

    def stop(block: fljax.Block) -> bool:
        seen.append(block.round)
        assert block.metrics["test_loss"].shape == (1, 5)
        return block.round >= 4

    result = simulate(rounds=8, callbacks=(stop,))
    assert seen == [2, 4]
    assert result.metrics["evaluated_round"].values.tolist() == [0, 2, 4]
    assert int(result.state.round[0]) == 4


def test_only_the_seed_that_diverges_is_frozen():
    rate = np.array([1.0, np.inf], np.float32)
    result = simulate(plan(server_lr=rate), seeds=(0, 7), rounds=6)
    undisturbed = simulate(plan(server_lr=np.ones(2, np.float32)), seeds=(0, 7), rounds=6)
    assert [seed for seed, _ in result.diverged] == [7]
    assert result.metrics["diverged"].values.tolist() == [-1, result.diverged[0][1]]
    np.testing.assert_array_equal(result.metrics["test_loss"].sel(seed=0), undisturbed.metrics["test_loss"].sel(seed=0))
    assert all(np.isfinite(leaf).all() for leaf in leaves(result.state))


def test_a_run_goes_on_from_a_state():
    first = simulate(seeds=(0, 7), rounds=2)
    rest = simulate(seeds=(0, 7), rounds=3, initial=first.state)
    assert rest.metrics["evaluated_round"].values.tolist() == [2, 4, 5]
    for a, b in zip(leaves(rest.state), leaves(usual().state), strict=True):
        np.testing.assert_array_equal(a, b)
    again = simulate(seeds=(0, 7), rounds=3, initial=first.state)  # the state was copied, not given away
    np.testing.assert_array_equal(again.metrics["test_loss"], rest.metrics["test_loss"])


def test_trained_models_come_out():
    model = usual().deployed(1, seed=1)
    logits = usual().predict(1, federation().examples.x[:4], seed=1)
    np.testing.assert_allclose(logits, TASK.logits(model, TASK.prepare(federation().examples.x[:4])), rtol=1e-5)
    assert jax.tree.structure(usual().deployed(0, unseen=True)) == jax.tree.structure(model)
    with pytest.raises(ValueError, match="expected a client below 5"):
        usual().deployed(5)


def test_bytes_on_the_wire_are_counted():
    model = 15 * 4  # logistic regression of 4 features and 3 classes in float32
    np.testing.assert_array_equal(usual().records["bytes_down"], np.full((2, 5), 3 * model))
    np.testing.assert_array_equal(usual().records["bytes_up"], np.full((2, 5), 3 * (model + 4)))


def test_no_number_recompiles(monkeypatch):
    traces = []

    def counting(task: Any, local: Any, **hyper_parameters: Any) -> fljax.Algorithm:
        traces.append(1)
        return algorithms.fedavg(task, local, **hyper_parameters)

    def go(server_lr: float, learning_rate: float, seeds: tuple[int, ...], rounds: int) -> None:
        local = LOCAL._replace(learning_rate=learning_rate)
        arguments = {"task": TASK, "local": local, "clients_per_round": 3, "server_lr": server_lr}
        fljax.simulate(fljax.Plan(counting, arguments), federation(), rounds=rounds, seeds=seeds, evaluate_every=2)

    go(1.0, 0.1, (0,), 4)
    measured = len(traces)
    go(0.5, 0.2, (3,), 5)
    assert len(traces) - measured <= 1  # shapes are measured anew by abstract evaluation; nothing is compiled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "rounds to be zero or more"),
        ({"evaluate_every": 0}, "evaluate_every to be positive"),
        ({"seeds": ()}, "seeds to be distinct"),
        ({"seeds": (1, 1)}, "seeds to be distinct"),
        ({"execution": fljax.Execution("fast")}, "auto, vmap, scan or a positive number"),  # type: ignore[arg-type]
        ({"execution": fljax.Execution(0)}, "auto, vmap, scan or a positive number"),
    ],
)
def test_bad_arguments_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        simulate(**options)


def test_what_is_no_algorithm_is_refused():
    with pytest.raises(ValueError, match="expected an Algorithm or a Plan, got int"):
        fljax.simulate(3, federation(), rounds=1)  # type: ignore[arg-type]


def test_a_state_of_another_run_is_refused():
    state = usual().state
    with pytest.raises(ValueError, match="shapes of this run"):
        simulate(seeds=(0,), initial=state)
    with pytest.raises(ValueError, match="state of this algorithm"):
        simulate(seeds=(0, 7), initial=state._replace(clients=(jnp.zeros(2),)))


def test_a_federation_of_other_seeds_is_refused():
    with pytest.raises(ValueError, match="one federation per seed"):
        fljax.simulate(plan(), data.stack([federation(), federation()]), rounds=1, seeds=(0,))


def test_auto_is_a_fixed_rule_of_shapes_and_backend():
    sizes = Sizes(rows=10, population=100, seeds=3, model=200_000, evaluated=750_000)
    assert resolve(fljax.Execution(), sizes, "cpu") == resolve(fljax.Execution(), sizes, "cpu")
    assert resolve(fljax.Execution(), sizes, "gpu").clients == 10
    assert resolve(fljax.Execution(), sizes._replace(model=10**9), "cpu")[:2] == (1, 1)
    assert resolve(fljax.Execution("vmap", "scan", 7), sizes, "cpu") == (10, 1, 7)


def test_keys_differ_by_everything_that_they_are_keyed_by():
    def key(seed=1, purpose=Purpose.TRAIN, round=2, id=3, slot=0):
        return tuple(np.asarray(jax.random.key_data(client_key(round_key(jnp.uint32(seed), purpose, round), id, slot))))

    variants = [key(), key(seed=2), key(purpose=Purpose.POLL), key(round=3), key(id=4), key(slot=1)]
    assert len(set(variants)) == len(variants)


def test_standalone_is_each_client_trained_by_itself():
    local = LOCAL._replace(steps=4)
    found = fljax.standalone(TASK, federation(), local, seeds=(3,), keep_models=True)
    assert found.threshold.shape == (1, 5)
    assert found.unseen_test_loss is not None
    assert found.unseen_test_loss.shape == (1, 2)
    start = TASK.init(round_key(jnp.uint32(3), Purpose.INIT_SERVER))
    for purpose, clients, losses in (
        (Purpose.STANDALONE, federation().clients, found.test_loss),
        (Purpose.UNSEEN_STANDALONE, federation().unseen, found.unseen_test_loss),
    ):
        for position, id in enumerate(np.asarray(clients.id)):
            client = jax.tree.map(lambda leaf, i=position: leaf[i], clients)
            subset = fljax.types.Subset(federation().examples, client.train)
            key = client_key(round_key(jnp.uint32(3), purpose), jnp.int32(id))
            params = training.train(key, start, subset, task=TASK, local=local).params
            test = subset._replace(rows=client.test)
            loss, _ = training.evaluate(TASK, lambda x, p=params: TASK.logits(p, x), test)
            column = int(id) if purpose is Purpose.STANDALONE else position
            np.testing.assert_allclose(losses[0, column], loss, rtol=1e-5)
