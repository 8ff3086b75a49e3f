"""What callbacks see: every metric of the results, while the run goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg, incfl
from fljax.engine import Block
from fljax.results import with_threshold
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
ARGUMENTS = {"task": TASK, "local": LOCAL, "clients_per_round": 3}
FEDERATION = tiny_federation()
RUN: dict[str, Any] = {"rounds": 4, "evaluate_every": 2, "seeds": (5, 9)}


@pytest.fixture(scope="module")
def alone():
    return engine.standalone(TASK, FEDERATION, LOCAL, seeds=RUN["seeds"])


def plan(threshold: Any) -> engine.Plan:
    return engine.Plan(incfl, ARGUMENTS | {"threshold": threshold})


@pytest.mark.thorough
def test_blocks_have_every_metric_of_the_results(alone):
    blocks: list[Block] = []
    result = engine.simulate(plan(0.6), FEDERATION, **RUN, reference=alone, callbacks=[blocks.append])
    assert [block.round for block in blocks] == [2, 4]
    named = {str(name): values for name, values in result.metrics.items() if "evaluated_round" in values.dims}
    assert {"incentivised_participation_rate", "global_model_appeal", "preferred_model_accuracy"} <= set(named)
    for block in blocks:
        assert set(block.metrics) == set(named)
        for name, values in named.items():
            at = values.sel(evaluated_round=block.round).values
            np.testing.assert_array_equal(block.metrics[name], at, err_msg=name)


@pytest.mark.thorough
def test_without_a_reference_nothing_is_compared():
    blocks: list[Block] = []
    engine.simulate(plan(0.6), FEDERATION, **RUN, callbacks=[blocks.append])
    assert "incentivised_participation_rate" not in blocks[0].metrics
    np.testing.assert_allclose(blocks[0].metrics["average_loss"], np.nanmean(blocks[0].metrics["test_loss"], axis=-1))


@pytest.mark.in_turn
def test_a_run_can_be_stopped_by_the_share_of_incentivised_clients(alone):
    stop = engine.stop_when(lambda block: block.metrics["incentivised_participation_rate"].mean() >= 0)
    result = engine.simulate(plan(0.6), FEDERATION, **RUN, reference=alone, callbacks=[stop])
    assert result.metrics["evaluated_round"].values.tolist() == [0, 2]


@pytest.mark.in_turn
def test_a_callback_may_see_the_evaluation_before_the_first_round(alone):
    class Early(list[Block]):
        at_start = True

        def __call__(self, block: Block) -> bool:
            self.append(block)
            return block.round == 0  # nothing has begun that could be stopped

    early, late = Early(), list[Block]()
    result = engine.simulate(plan(0.6), FEDERATION, **RUN, reference=alone, callbacks=[early, late.append])
    assert [(block.round, block.rounds, block.ran) for block in early] == [(0, 4, 0), (2, 4, 2), (4, 4, 2)]
    assert [block.round for block in late] == [2, 4]
    at_start = result.metrics["incentivised_participation_rate"].sel(evaluated_round=0).values
    np.testing.assert_array_equal(early[0].metrics["incentivised_participation_rate"], at_start)


@pytest.mark.thorough
def test_rows_are_runs_in_a_sweep(alone):
    blocks: list[Block] = []
    plans = [plan(0.1), plan(10.0), plan(0.1)]
    found = engine.sweep(plans, FEDERATION, **RUN, references=[alone, alone, None], callbacks=[blocks.append])
    appeal = blocks[-1].metrics["global_model_appeal"]
    assert appeal.shape == (6,)
    for place in range(2):
        own = found[place].metrics["global_model_appeal"].sel(evaluated_round=4).values
        np.testing.assert_array_equal(appeal[2 * place : 2 * place + 2], own)
    assert (appeal[2:4] > appeal[:2]).all()
    assert np.isnan(appeal[4:]).all()
    assert "global_model_appeal" not in found[2].metrics
    assert np.isfinite(blocks[-1].metrics["average_loss"]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["number", "by client", "by seed", "as a reference"])
def test_a_threshold_of_a_plan_reaches_appeal(alone, way):
    seeds, clients = alone.threshold.shape
    rho = {"number": 0.8, "by client": np.linspace(0.1, 2, clients, dtype=np.float32)}.get(way)
    if way == "by seed":
        rho = np.linspace(0.1, 2, seeds * clients, dtype=np.float32).reshape(seeds, clients)
        chosen, reference = engine.Plan(incfl, ARGUMENTS, {"threshold": rho}), alone
    elif way == "as a reference":
        rho = 0.8
        chosen, reference = fedavg(TASK, LOCAL, clients_per_round=3), with_threshold(alone, rho)
    else:
        chosen, reference = plan(rho), alone
    found = engine.simulate(chosen, FEDERATION, **RUN, reference=reference).metrics
    required = np.broadcast_to(np.asarray(rho, np.float32), (seeds, clients))
    np.testing.assert_array_equal(found["required_loss"], required)
    loss = found["global_test_loss"].sel(evaluated_round=4).values
    known = ~np.isnan(loss)
    appeal = [np.mean(loss[s][known[s]] < required[s][known[s]]) for s in range(seeds)]
    np.testing.assert_allclose(found["global_model_appeal"].sel(evaluated_round=4), appeal, rtol=1e-6)
    np.testing.assert_array_equal(found["threshold"], alone.threshold)


@pytest.mark.parametrize("odd", [None, "loss", True, [[1.0]], len])
def test_what_is_no_threshold_of_clients_changes_nothing(alone, odd):
    assert with_threshold(alone, odd) is alone
