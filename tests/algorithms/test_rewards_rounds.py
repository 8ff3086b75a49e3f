"""IAFL, CGSV, CGSV-IAFL, Rank, LG-FedAvg and FedAvg-finetune against NumPy.

Two rounds, ragged clients, one without data, and one that is lost in each round.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from fljax import training
from fljax.aggregators import iafl_reference, iafl_subsets
from fljax.algorithms import cgsv, cgsv_iafl, fedavg_finetune, iafl, lg_fedavg, rank
from fljax.core.trees import take
from fljax.engine.rounds.evaluate import Judge
from fljax.engine.rounds.keys import Purpose, client_key, round_key
from fljax.protocol import Examples, Rows, Subset
from fljax.training import Local
from tests.algorithms.rounds_tools import (
    SEED,
    TASK,
    batches_of,
    close,
    federation,
    history,
    missing,
    numpy_client,
    own_rows,
    stored,
)
from tests.oracles import numpy_rewards as oracle
from tests.oracles import numpy_round
from tests.precision import enable_x64
from tests.toys.quick import QUICK

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS, EPOCHS = Local(0.3, 3, steps=3, decay=0.7), Local(0.3, 3, epochs=2, decay=0.7)
POPULATION = 5
LOST = ((1,), (3,))  # by round; client 0 has no data
CONTRIBUTION = (0.9, 0.35, 1.0, 0.7, 0.1)
CEILING, KAPPA = 0.95, 0.25
LENGTH, ALPHA, BETA = 0.6, 0.8, 1.3


@pytest.fixture(params=[pytest.param("single", marks=pytest.mark.thorough), "double"])
def tolerance(request):
    with enable_x64(request.param == "double"):
        yield 1e-10 if request.param == "double" else 1e-5


def run(algorithm, data=None):
    """States and records, with somebody lost in every round."""
    lossy = missing(algorithm, LOST)
    return history(lambda numbers: lossy, federation() if data is None else data, len(LOST))


def at(tree, t) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[t], np.float64), tree)


def model_of(models, id) -> Any:
    return {name: leaf[id] for name, leaf in models.items()}


def rows_of(models) -> list[Any]:
    return [model_of(models, id) for id in range(POPULATION)]


def stack(models):
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def taking_part(records, t):
    return [int(id) for id in records["cohort_id"][t][records["cohort_present"][t]]]


def clients_of(records, t, how):
    return {id: numpy_client(federation(), id, t, how) for id in taking_part(records, t)}


def rate_of(how, t) -> float:
    return float(how.learning_rate * how.decay**t)


_SUBSETS = jax.jit(iafl_subsets, compiler_options=QUICK)
_REFERENCE = jax.jit(iafl_reference, compiler_options=QUICK)


def drawn(records, t, rates):
    """Whose updates every client's reward averages, and the reference model's, from the keys of the engine."""
    key = round_key(jnp.uint32(SEED), Purpose.AGGREGATE, t)
    ids, present = records["cohort_id"][t], records["cohort_present"][t]
    matrix = np.asarray(_SUBSETS(key, jnp.asarray(rates), ids=ids, present=present))
    row = np.asarray(_REFERENCE(key, jnp.asarray(rates), ids=ids, present=present))
    chosen = [[int(ids[s]) for s in np.flatnonzero(line)] for line in np.concatenate([matrix, row])]
    return chosen[:-1], chosen[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])
@pytest.mark.parametrize("draw", ["own", "copied"])
def test_iafl(how, draw, tolerance):
    algorithm = iafl(
        TASK,
        how,
        contribution=jnp.asarray(CONTRIBUTION),
        ceiling=CEILING,
        kappa=KAPPA,
        recovery=0.4,
        reference_rule="max" if draw == "own" else "median",
        reference_draw=draw,
    )
    states, records = run(algorithm)
    models, reference = rows_of(at(states.server.models.values, 0)), at(states.server.reference, 0)
    rates = oracle.iafl_rates(CONTRIBUTION, CEILING, KAPPA)
    np.testing.assert_allclose(records["rate"], [rates] * len(LOST), rtol=1e-6)
    np.testing.assert_allclose(records["contribution"], [CONTRIBUTION] * len(LOST), rtol=1e-6)
    assert 0 < records["recovered"].sum() < records["recovered"].size
    for t in range(len(LOST)):
        subsets, own = drawn(records, t, records["rate"][t])
        present = [id in taking_part(records, t) for id in range(POPULATION)]
        assert [len(subset) for subset in subsets] == oracle.subset_sizes(rates, present)
        assert all(id in subset for id, subset in enumerate(subsets) if present[id])
        assert len(own) == sum(present)  # the best client's rate is 1
        # Clients by rate: 4, 1, 3, 0, 2; the one in the middle is 3.
        used = own if draw == "own" else subsets[3]
        clients = clients_of(records, t, how)
        models, reference = oracle.iafl_round(
            models, reference, clients, rate_of(how, t), subsets, used, records["recovered"][t]
        )
        close(at(states.server.models.values, t + 1), stack(models), tolerance)
        close(at(states.server.reference, t + 1), reference, tolerance)


@pytest.mark.in_turn
def test_iafl_with_contributions_of_each_round():
    by_round = np.asarray([CONTRIBUTION, CONTRIBUTION[::-1]])
    algorithm = iafl(TASK, STEPS, contribution=jnp.asarray(by_round))
    _, records = history(lambda numbers: algorithm, federation(), 3)
    np.testing.assert_allclose(records["contribution"], by_round[[0, 1, 1]], rtol=1e-6)
    np.testing.assert_allclose(records["rate"], by_round[[0, 1, 1]], rtol=1e-6)


@pytest.mark.in_turn
@pytest.mark.unchecked
def test_iafl_with_named_dimensions():
    by_round = np.asarray([CONTRIBUTION, CONTRIBUTION[::-1]])
    table: Any = xr.DataArray(by_round.T, dims=("client", "round"))
    algorithm = iafl(TASK, STEPS, contribution=table)
    _, records = history(lambda numbers: algorithm, federation(), 3)
    np.testing.assert_allclose(records["contribution"], by_round[[0, 1, 1]], rtol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])
def test_cgsv(how, tolerance):
    algorithm = cgsv(TASK, how, length=LENGTH, alpha=ALPHA, beta=BETA)
    states, records = run(algorithm)
    models, server = rows_of(at(states.server.models.values, 0)), at(states.server.reference, 0)
    sizes = np.array([len(own_rows(federation(), id)[1]) for id in range(POPULATION)], float)
    reputation, weight = np.zeros(POPULATION), sizes / sizes.sum()
    for t in range(len(LOST)):
        clients = clients_of(records, t, how)
        models, server, reputation = oracle.cgsv_round(
            models, server, reputation, weight, clients, rate_of(how, t), length=LENGTH, alpha=ALPHA, beta=BETA
        )
        weight = reputation
        np.testing.assert_allclose(records["contribution"][t], reputation, rtol=10 * tolerance)
        close(at(states.server.models.values, t + 1), stack(models), tolerance)
        close(at(states.server.reference, t + 1), server, tolerance)
        # The part that is kept differs between clients, or the test would not see it.
        assert len({int((model["w"] != models[0]["w"]).sum()) for model in models}) > 1


@pytest.mark.thorough
def test_cgsv_iafl(tolerance):
    algorithm = cgsv_iafl(TASK, EPOCHS, length=LENGTH, alpha=ALPHA, kappa=KAPPA, recovery=0.4)
    states, records = run(algorithm)
    models, reference = rows_of(at(states.server.models.values, 0)), at(states.server.reference, 0)
    sizes = np.array([len(own_rows(federation(), id)[1]) for id in range(POPULATION)], float)
    reputation, weight = np.zeros(POPULATION), sizes / sizes.sum()
    for t in range(len(LOST)):
        clients, rate = clients_of(records, t, EPOCHS), rate_of(EPOCHS, t)
        recovered = records["recovered"][t]
        numbers: dict[str, float] = {"length": LENGTH, "alpha": ALPHA, "beta": 1.0}
        _, _, reputation = oracle.cgsv_round(models, reference, reputation, weight, clients, rate, **numbers)
        weight = reputation
        rates = oracle.iafl_rates(list(reputation), reputation.max(), KAPPA)
        np.testing.assert_allclose(records["rate"][t], rates, rtol=10 * tolerance)
        subsets, own = drawn(records, t, records["rate"][t])
        present = [id in clients for id in range(POPULATION)]
        assert [len(each) for each in subsets] == oracle.subset_sizes(rates, present)
        models, reference = oracle.iafl_round(models, reference, clients, rate, subsets, own, recovered)
        close(at(states.server.models.values, t + 1), stack(models), tolerance)
        close(at(states.server.reference, t + 1), reference, tolerance)


@pytest.mark.sampled(2)
def test_rank(tolerance):
    x, y = (np.concatenate(both) for both in zip(*(own_rows(federation(), id) for id in (1, 3, 4)), strict=True))
    data = federation()
    table = stored(data).clients.train
    index = np.concatenate([np.asarray(table.index)[id, : int(table.size[id])] for id in (1, 3, 4)])
    data = data._replace(held={"validation": Rows(jnp.asarray(index, jnp.int32), jnp.int32(len(index)))})
    states, records = run(rank(TASK, EPOCHS), data)
    models = rows_of(at(states.server.models.values, 0))
    for t in range(len(LOST)):
        clients = clients_of(records, t, EPOCHS)
        models, score = oracle.rank_round(models, clients, rate_of(EPOCHS, t), x.astype(np.float64), y)
        np.testing.assert_allclose(records["score"][t], score, rtol=1e-6)
        assert len(set(score)) > 2
        close(at(states.server.models.values, t + 1), stack(models), tolerance)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shared", [("b",), ("w", "b"), ()], ids=str)
def test_lg_fedavg(shared, tolerance):
    states, records = run(lg_fedavg(TASK, STEPS, shared=shared))
    start = numpy_start()
    models = [start] * POPULATION
    for t in range(len(LOST)):
        models = oracle.lg_fedavg_round(models, clients_of(records, t, STEPS), rate_of(STEPS, t), shared)
        found = {}
        for name in start:
            leaf = at(states.server.shared if name in shared else states.clients.own, t + 1)[name]
            found[name] = np.broadcast_to(leaf, (POPULATION, *leaf.shape)) if name in shared else leaf
        close(found, stack(models), tolerance)


def numpy_start():
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), TASK.init(jax.random.key(0)))


@pytest.mark.thorough
def test_fedavg_finetune(tolerance):
    algorithm = missing(fedavg_finetune(TASK, STEPS, tune_epochs=2), LOST)
    states, records = history(lambda numbers: algorithm, federation(), len(LOST))
    model = at(states.server.model, 0)
    for t in range(len(LOST)):
        clients = list(clients_of(records, t, STEPS).values())
        model = numpy_round.fedavg_round(model, clients, rate_of(STEPS, t), by_size=False)
        close(at(states.server.model, t + 1), model, tolerance)
    data, state, done = stored(federation()), jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), states), len(LOST)
    tuning = Local(STEPS.learning_rate, STEPS.batch_size, epochs=2)  # at the rate of round 0
    nothing = Examples(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32))
    for id in (1, 4):
        found, common = Judge(algorithm, data, state, jnp.int32(done)).deploy(take(data.clients, id), ())
        key = client_key(round_key(jnp.uint32(SEED), Purpose.DEPLOY, done), jnp.int32(id))
        batches = training.draw(jax.random.fold_in(key, 0), Subset(nothing, take(data.clients.train, id)), tuning)
        x, y = own_rows(federation(), id)
        client = numpy_round.Client(x.astype(np.float64), y, batches_of(batches))
        close(found, numpy_round.local_sgd(model, client, rate_of(STEPS, 0)), tolerance)
        close(common, model, tolerance)


@pytest.mark.thorough
def test_joining_probabilities_are_those_of_the_clients():
    probability = jnp.array([1.0, 0.2, 1.0, 0.7, 0.0])
    algorithm = iafl(TASK, STEPS, contribution=probability, ceiling=1.0, joining="contribution")
    _, records = history(lambda numbers: algorithm, federation((3, 3, 3, 3, 3), range(5), capacity=3), 200)
    joined = np.array([[id in taking_part(records, t) for id in range(POPULATION)] for t in range(200)])
    share = joined.mean(axis=0)
    assert share.tolist()[::2] == [1, 1, 0]
    # Four standard errors of 200 draws.
    np.testing.assert_allclose(share[[1, 3]], [0.2, 0.7], atol=0.13)
