"""IAFL, CGSV, CGSV-IAFL, Rank, LG-FedAvg and FedAvg-finetune against NumPy: ragged, empty and lost clients."""

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
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.protocol import Rows, Subset
from fljax.training import Local
from tests.algorithms.oracle_tools import (
    EPOCHS,
    LOST,
    NOTHING,
    POPULATION,
    SIZES,
    STEPS,
    agrees,
    deployed,
    each,
    modes,
    rate_of,
    run,
)
from tests.algorithms.rounds_tools import SEED, TASK, batches_of, close, federation, history, own_rows, stored
from tests.oracles import numpy_rewards as oracle
from tests.oracles import numpy_round
from tests.toys.quick import QUICK

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONTRIBUTION = (0.9, 0.35, 1.0, 0.7, 0.1)
CEILING, KAPPA = 0.95, 0.25
NUMBERS: dict[str, float] = {"length": 0.6, "alpha": 0.8, "beta": 1.3}


def models_of(state: Any) -> list[Any]:
    return each(state.server.models.values)


def models_and_reference(state: Any) -> Any:
    return models_of(state), state.server.reference


_SUBSETS = jax.jit(iafl_subsets, compiler_options=QUICK)
_REFERENCE = jax.jit(iafl_reference, compiler_options=QUICK)


def drawn(round, there=None):
    """Whose updates every client's reward averages, and the reference model's, from the keys of the engine."""
    key, rates = round_key(jnp.uint32(SEED), Purpose.AGGREGATE, round.t), jnp.asarray(round.record["rate"])
    ids, present = round.record["cohort_id"], round.present if there is None else there
    matrix = np.asarray(_SUBSETS(key, rates, ids=ids, present=present))
    row = np.asarray(_REFERENCE(key, rates, ids=ids, present=present))
    chosen = [[int(ids[s]) for s in np.flatnonzero(line)] for line in np.concatenate([matrix, row])]
    return chosen[:-1], chosen[-1]


@pytest.mark.thorough
@modes
@pytest.mark.parametrize("draw", ["own", "copied"])
def test_iafl(how, draw, tolerance):
    rates = oracle.iafl_rates(CONTRIBUTION, CEILING, KAPPA)

    def step(round, state):
        np.testing.assert_allclose(round.record["rate"], rates, rtol=1e-6)
        np.testing.assert_allclose(round.record["contribution"], CONTRIBUTION, rtol=1e-6)
        subsets, own = drawn(round)
        present = [id in round.clients for id in range(POPULATION)]
        assert [len(subset) for subset in subsets] == oracle.subset_sizes(rates, present)
        assert all(id in subset for id, subset in enumerate(subsets) if present[id])
        assert len(own) == sum(present)  # the best client's rate is 1
        # Clients by rate: 4, 1, 3, 0, 2; the one in the middle is 3.
        used = own if draw == "own" else subsets[3]
        return oracle.iafl_round(
            state[0], state[1], round.clients, round.rate, subsets, used, round.record["recovered"]
        )

    rule = "max" if draw == "own" else "median"
    options: dict[str, Any] = {"recovery": 0.4, "reference_rule": rule, "reference_draw": draw}
    ran = run(iafl(TASK, how, contribution=jnp.asarray(CONTRIBUTION), ceiling=CEILING, kappa=KAPPA, **options))
    agrees(ran, step, how, models_and_reference, tolerance)
    assert 0 < ran.records["recovered"].sum() < ran.records["recovered"].size


@pytest.mark.in_turn
@pytest.mark.unchecked
@pytest.mark.parametrize("named", [False, True])
def test_iafl_with_contributions_of_each_round(named):
    by_round = np.asarray([CONTRIBUTION, CONTRIBUTION[::-1]])
    table: Any = xr.DataArray(by_round.T, dims=("client", "round")) if named else jnp.asarray(by_round)
    algorithm = iafl(TASK, STEPS, contribution=table)
    _, records = history(lambda numbers: algorithm, federation(), 3)
    for name in ("contribution", "rate"):
        np.testing.assert_allclose(records[name], by_round[[0, 1, 1]], rtol=1e-6)


@pytest.mark.sampled(4)
@modes
def test_cgsv(how, tolerance):
    def step(round, state):
        models, reference, reputation = state
        weight = reputation if round.t else SIZES / SIZES.sum()
        models, server, reputation = oracle.cgsv_round(
            models, reference, reputation, weight, round.clients, round.rate, **NUMBERS
        )
        np.testing.assert_allclose(round.record["contribution"], reputation, rtol=10 * tolerance)
        # The part that is kept differs between clients, or the test would not see it.
        assert len({int((model["w"] != models[0]["w"]).sum()) for model in models}) > 1
        return models, server, reputation

    ran = run(cgsv(TASK, how, length=NUMBERS["length"], alpha=NUMBERS["alpha"], beta=NUMBERS["beta"]))
    start = *models_and_reference(ran.by_state(0)), np.zeros(POPULATION)
    reads = lambda state: (*models_and_reference(state), None)  # noqa: E731
    agrees(ran, step, how, reads, tolerance, start=start)


@pytest.mark.thorough
def test_cgsv_iafl(tolerance):
    numbers = NUMBERS | {"beta": 1.0}

    def step(round, state):
        models, reference, reputation = state
        weight = reputation if round.t else SIZES / SIZES.sum()
        *_, reputation = oracle.cgsv_round(models, reference, reputation, weight, round.clients, round.rate, **numbers)
        rates = oracle.iafl_rates(list(reputation), reputation.max(), KAPPA)
        np.testing.assert_allclose(round.record["rate"], rates, rtol=10 * tolerance)
        subsets, own = drawn(round)
        present = [id in round.clients for id in range(POPULATION)]
        assert [len(each) for each in subsets] == oracle.subset_sizes(rates, present)
        recovered = round.record["recovered"]
        after = oracle.iafl_round(models, reference, round.clients, round.rate, subsets, own, recovered)
        return *after, reputation

    ran = run(cgsv_iafl(TASK, EPOCHS, length=NUMBERS["length"], alpha=NUMBERS["alpha"], kappa=KAPPA, recovery=0.4))
    start = *models_and_reference(ran.by_state(0)), np.zeros(POPULATION)
    reads = lambda state: (*models_and_reference(state), None)  # noqa: E731
    agrees(ran, step, EPOCHS, reads, tolerance, start=start)


@pytest.mark.sampled(2)
def test_rank(tolerance):
    x, y = (np.concatenate(both) for both in zip(*(own_rows(federation(), id) for id in (1, 3, 4)), strict=True))
    data = federation()
    table = stored(data).clients.train
    index = np.concatenate([np.asarray(table.index)[id, : int(table.size[id])] for id in (1, 3, 4)])
    data = data._replace(held={"validation": Rows(jnp.asarray(index, jnp.int32), jnp.int32(len(index)))})

    def step(round, models):
        models, score = oracle.rank_round(models, round.clients, round.rate, x.astype(np.float64), y)
        np.testing.assert_allclose(round.record["score"], score, rtol=1e-6)
        assert len(set(score)) > 2
        return models

    agrees(run(rank(TASK, EPOCHS), data), step, EPOCHS, models_of, tolerance)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shared", [("b",), ("w", "b"), ()], ids=str)
def test_lg_fedavg(shared, tolerance):
    def reads(state):
        common, own = state.server.shared, state.clients.own
        return each(
            {name: np.stack([common[name]] * POPULATION) if name in shared else own[name] for name in ("w", "b")}
        )

    step = lambda round, models: oracle.lg_fedavg_round(models, round.clients, round.rate, shared)  # noqa: E731
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), TASK.init(jax.random.key(0)))
    agrees(run(lg_fedavg(TASK, STEPS, shared=shared)), step, STEPS, reads, tolerance, start=[start] * POPULATION)


@pytest.mark.thorough
def test_fedavg_finetune(tolerance):
    def step(round, model):
        return numpy_round.fedavg_round(model, list(round.clients.values()), round.rate, by_size=False)

    ran = run(fedavg_finetune(TASK, STEPS, tune_epochs=2))
    model = agrees(ran, step, STEPS, lambda state: state.server.model, tolerance)
    data, tuning = (
        stored(federation()),
        Local(STEPS.learning_rate, STEPS.batch_size, epochs=2),
    )  # at the rate of round 0
    for id in (1, 4):
        found, common = deployed(ran, id)
        key = client_key(round_key(jnp.uint32(SEED), Purpose.DEPLOY, len(LOST)), jnp.int32(id))
        batches = training.draw(jax.random.fold_in(key, 0), Subset(NOTHING, take(data.clients.train, id)), tuning)
        x, y = own_rows(federation(), id)
        client = numpy_round.Client(x.astype(np.float64), y, batches_of(batches))
        close(found, numpy_round.local_sgd(model, client, rate_of(STEPS, 0)), tolerance)
        close(common, model, tolerance)


@pytest.mark.thorough
def test_joining_probabilities_are_those_of_the_clients():
    probability = jnp.array([1.0, 0.2, 1.0, 0.7, 0.0])
    algorithm = iafl(TASK, STEPS, contribution=probability, ceiling=1.0, joining="contribution")
    _, records = history(lambda numbers: algorithm, federation((3, 3, 3, 3, 3), range(5), capacity=3), 200)
    joined = np.zeros((200, POPULATION), bool)
    np.put_along_axis(joined, records["cohort_id"], records["cohort_present"], axis=1)
    share = joined.mean(axis=0)
    assert share.tolist()[::2] == [1, 1, 0]
    # Four standard errors of 200 draws.
    np.testing.assert_allclose(share[[1, 3]], [0.2, 0.7], atol=0.13)
