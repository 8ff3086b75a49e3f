"""What IAFL and the methods beside it must equal, on clients of which everything can be computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import cgsv_iafl, fedavg_finetune, iafl, lg_fedavg, rank, standalone
from fljax.core import trees
from fljax.engine.rounds.evaluate import Judge
from fljax.engine.rounds.states import by_id
from fljax.models import MODELS, correct
from fljax.protocol import Census, PerClient, Rows
from fljax.training import Local
from tests.algorithms import quadratic
from tests.algorithms.quadratic import CENTRES, ETA, START, how, run, trained

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

ROUNDS, STEPS = 4, 2
POPULATION = len(CENTRES)
SHARED = quadratic.follow(START, STEPS, ROUNDS)  # uniform FedAvg
ALONE = [np.broadcast_to(START, CENTRES.shape)]
for _ in range(ROUNDS):
    ALONE.append(CENTRES + (trained(ALONE[-1], STEPS) - CENTRES))
ALONE = np.array(ALONE)


def rewarded(values):
    """IAFL whose contributions, kappa and q are arguments of the program."""
    return iafl(
        quadratic.quadratic(values["start"]),
        how(STEPS),
        contribution=values["contribution"],
        ceiling=1.0,
        recovery=values["recovery"],
    )


def models(states):
    return np.asarray(states.server.models.values["w"], np.float64)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recovery", [0.0, 0.5, 1.0])
def test_rate_1_is_fedavg_whatever_recovers(recovery, exact):
    states, records = run(rewarded, ROUNDS, contribution=np.ones(POPULATION), recovery=recovery)
    expected = np.broadcast_to(SHARED[:, None], models(states).shape)
    np.testing.assert_allclose(models(states), expected, rtol=exact, atol=exact)
    np.testing.assert_allclose(states.server.reference["w"], SHARED, rtol=exact, atol=exact)
    np.testing.assert_array_equal(records["rate"], 1)


def test_rate_0_is_standalone(exact):
    states, _ = run(rewarded, ROUNDS, contribution=np.zeros(POPULATION), recovery=0.0)
    np.testing.assert_allclose(models(states), ALONE, rtol=exact, atol=exact)
    alone, _ = run(lambda values: standalone(quadratic.quadratic(values["start"]), how(STEPS)), ROUNDS)
    np.testing.assert_allclose(models(states), alone.clients.model["w"], rtol=exact, atol=exact)


def spread(values):
    """Clients start from different models; everybody gets everything."""
    algorithm = rewarded(values)

    def init_server(key, census):
        server = algorithm.init_server(key, census)
        return server._replace(models=PerClient({"w": server.models.values["w"] + values["offset"]}))

    return algorithm._replace(init_server=init_server)


OFFSET = np.arange(POPULATION)[:, None] * np.array([0.3, -0.2, 0.5])


def test_without_recovery_differences_of_models_stay(exact):
    """Error propagation: all models move by the same mean."""
    numbers = {"contribution": np.ones(POPULATION), "offset": OFFSET}
    states, _ = run(spread, ROUNDS, recovery=0.0, **numbers)
    between = models(states) - models(states)[:, :1]
    np.testing.assert_allclose(between, np.broadcast_to(OFFSET, between.shape), rtol=10 * exact, atol=10 * exact)
    assert np.abs(np.diff(models(states), axis=0)).max() > 0.1


def test_recovery_ends_differences_of_models(exact):
    numbers = {"contribution": np.ones(POPULATION), "offset": OFFSET}
    states, _ = run(spread, ROUNDS, recovery=1.0, **numbers)
    found = models(states)[1:]
    np.testing.assert_allclose(found, np.broadcast_to(found[:, :1], found.shape), rtol=exact, atol=exact)
    np.testing.assert_allclose(found[:, 0], states.server.reference["w"][1:], rtol=exact, atol=exact)


def test_with_recovery_1_all_clients_hold_the_reference_model(exact):
    """Algorithm 1, lines 5 to 7: what a client gets of a round is the reference model with probability q."""
    states, records = run(rewarded, ROUNDS, contribution=np.linspace(0, 1, POPULATION), recovery=1.0)
    reference = np.broadcast_to(np.asarray(states.server.reference["w"])[:, None], models(states).shape)
    np.testing.assert_array_equal(models(states), reference)
    assert records["recovered"].all()


def test_recovery_is_drawn_for_each_client_and_round():
    states, records = run(rewarded, 300, contribution=np.zeros(POPULATION), recovery=0.3)
    recovered = records["recovered"].astype(float)
    # Five standard errors.
    np.testing.assert_allclose(recovered.mean(axis=0), 0.3, atol=5 * np.sqrt(0.21 / 300))
    both = np.corrcoef(recovered.T)[np.triu_indices(POPULATION, 1)]
    assert np.abs(both).max() < 5 / np.sqrt(300)
    assert abs(np.corrcoef(recovered[1:, 0], recovered[:-1, 0])[0, 1]) < 5 / np.sqrt(300)
    assert np.isfinite(models(states)).all()


def test_what_contributes_more_averages_more():
    contribution = np.array([0.0, 1 / 3, 2 / 3, 1.0])
    states, records = run(rewarded, 60, contribution=contribution, recovery=0.0)
    np.testing.assert_allclose(records["rate"][0], contribution, rtol=1e-6)
    # Towards the mean of all: the one that gets everything follows FedAvg, the one that gets nothing its own centre.
    target = quadratic.follow(START, STEPS, 60)[-1]
    away = np.linalg.norm(models(states)[-1] - target, axis=1)
    alone = np.linalg.norm(models(states)[-1, 0] - CENTRES[0])
    assert alone < 1e-3
    assert away[3] < away[0]


def same_curvature(build):
    """A run on clients with equal curvature, whose updates differ by their centres alone."""
    data = quadratic.clients(np.broadcast_to(CENTRES[0], CENTRES.shape), 1.0)
    return run(build, ROUNDS, data=data)


def test_cgsv_iafl_of_equal_clients_is_fedavg(exact):
    states, records = same_curvature(lambda values: cgsv_iafl(quadratic.quadratic(values["start"]), how(STEPS)))
    expected = quadratic.follow(START, STEPS, ROUNDS, centres=CENTRES[:1], curvature=1.0)
    np.testing.assert_allclose(records["rate"], 1, rtol=1e-6)
    np.testing.assert_allclose(models(states)[:, 0], expected, rtol=10 * exact, atol=10 * exact)
    np.testing.assert_allclose(models(states), np.broadcast_to(models(states)[:, :1], models(states).shape), rtol=exact)


def ranked(values):
    """Rank where the score of a model is 1 for each row that it classifies as the first class."""
    task = quadratic.quadratic(values["start"])._replace(score=correct)
    return rank(task, how(STEPS), rank_on="test")


def test_rank_gives_the_best_everything_and_the_last_its_own(exact):
    data = quadratic.clients()
    data = data._replace(held={"test": Rows(jnp.arange(8, dtype=jnp.int32), jnp.int32(8))})
    states, records = run(ranked, 1, data=data)
    order = np.lexsort((np.arange(POPULATION), records["score"][0]))
    first = trained(START, STEPS) - START
    for place, id in enumerate(order):
        expected = START + first[order[: place + 1]].mean(axis=0)
        np.testing.assert_allclose(models(states)[1, id], expected, rtol=exact, atol=exact)


@pytest.mark.parametrize("shared", [("w",), ()], ids=["all", "nothing"])
def test_lg_fedavg_between_fedavg_and_standalone(shared, exact):
    build = lambda values: lg_fedavg(quadratic.quadratic(values["start"]), how(STEPS), shared=shared)  # noqa: E731
    states, _ = run(build, ROUNDS)
    if shared:
        np.testing.assert_allclose(states.server.shared["w"], SHARED, rtol=exact, atol=exact)
        assert not jax.tree.leaves(states.clients.own)
    else:
        np.testing.assert_allclose(states.clients.own["w"], ALONE, rtol=exact, atol=exact)


@pytest.mark.thorough
def test_lg_fedavg_shares_the_last_dense_layers():
    task, census = MODELS["cnn_a"]((28, 28, 1), 10), Census(*jnp.ones((2, 2), jnp.int32))
    server = lg_fedavg(task, Local(0.1, 8, steps=1)).init_server(jax.random.key(0), census)  # type: ignore
    assert sorted(leaf.shape for leaf in jax.tree.leaves(server.shared) if leaf.ndim > 1) == [
        (84, 10),
        (120, 84),
        (256, 120),
    ]
    assert sorted(leaf.shape for leaf in jax.tree.leaves(server.start) if leaf.ndim > 1) == [
        (5, 5, 1, 6),
        (5, 5, 6, 16),
    ]
    by_name = lg_fedavg(task, Local(0.1, 8, steps=1), shared=["dense_1", "head"])
    assert len(jax.tree.leaves(by_name.init_server(jax.random.key(0), census).shared)) == 4  # type: ignore
    by_path = lg_fedavg(task, Local(0.1, 8, steps=1), shared=lambda path: path.endswith("bias"))
    assert all(
        leaf.ndim == 1
        for leaf in jax.tree.leaves(by_path.init_server(jax.random.key(0), census).shared)  # type: ignore
    )


@pytest.mark.thorough
def test_tuning_moves_every_client_towards_its_own_data(exact):
    task = quadratic.quadratic(jnp.asarray(START, jnp.result_type(float)))
    algorithm = fedavg_finetune(task, how(STEPS), tune_epochs=3)
    states, _ = run(lambda values: algorithm, ROUNDS)
    np.testing.assert_allclose(states.server.model["w"], SHARED, rtol=exact, atol=exact)
    data = quadratic.clients()
    state = trees.take(states, -1)
    data = by_id(data)
    for id in range(POPULATION):
        found, _ = Judge(algorithm, data, state, jnp.int32(ROUNDS)).deploy(trees.take(data.clients, id), ())
        expected = trained(SHARED[-1], 3, rate=ETA)[id]  # a batch is all of a client's rows
        np.testing.assert_allclose(found["w"], expected, rtol=exact, atol=exact)
