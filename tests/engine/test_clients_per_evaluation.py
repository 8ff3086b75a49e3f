"""Evaluations of some clients: the values of the evaluation of all, NaN for the others, and all clients at the end."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import REGISTRY
from fljax.data import stack
from fljax.engine import Execution
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.rounds.evaluate import draw
from fljax.results import Result
from tests.laws.cases import LOCAL, TASK, bench, chosen, federation
from tests.laws.compare import assert_close
from tests.toys.runs import Killed, assert_close_results, assert_same_results, kill_at

COUNT, PLAIN = 2, Execution(2, devices=1, evaluation=2)
HOST = PLAIN._replace(examples="host", client_states="host")
RUN: dict[str, Any] = {"rounds": 4, "seeds": (0, 3), "evaluate_every": 1, "evaluate_at": [2], "execution": PLAIN}
THOROUGH = ("fedavg", "ditto", "incfl", "ipfl", "iafl", "fedfomo", "ifca")
ALL, SOME = [2, 4], [0, 1, 3]  # evaluations


def simulate(name: str, **options: Any) -> Result:
    """A run with a federation for each seed."""
    options = {**RUN, "clients_per_evaluation": COUNT, **options}
    return engine.simulate(bench(name).plan, stack([federation(), federation()]), **options)


def losses(result: Result) -> np.ndarray:
    return result.metrics["test_loss"].transpose("seed", "evaluated_round", "client").values


@pytest.mark.parametrize("name", chosen([*REGISTRY, "byzantine(fedavg)"], ("ditto",), set(REGISTRY) - set(THOROUGH)))
def test_judged_clients_have_the_values_of_the_evaluation_of_all(name: str) -> None:
    found, whole = simulate(name), simulate(name, clients_per_evaluation=None)
    known = np.isfinite(losses(found))
    assert 0 < known[:, SOME].sum(axis=2).max() <= COUNT
    for metric, values in whole.metrics.items():
        got = found.metrics[metric]
        if "client" in values.dims and "evaluated_round" in values.dims:
            values = values.where((found.metrics["test_loss"].notnull()) | values["evaluated_round"].isin(ALL))
        elif "evaluated_round" in values.dims and not str(metric).startswith(("unseen_", "server_", "cluster_")):
            got, values = got.sel(evaluated_round=ALL), values.sel(evaluated_round=ALL)
        if not str(metric).startswith(("seconds", "execution")):
            assert_close(got.transpose(*values.dims).values, values.values)
    judged = known.any(axis=2)
    assert_close(found.metrics["average_loss"].values[judged], np.nanmean(losses(found)[judged], axis=1))
    assert_close(found.state, whole.state)


def test_draws_are_uniform_among_clients_with_data_and_differ_by_round_and_seed() -> None:
    clients = federation().clients
    able = (np.asarray(clients.train.size) > 0) & (np.asarray(clients.test.size) > 0)
    of_rounds = jax.vmap(lambda seed, round: draw(seed, round, clients, COUNT), (None, 0))
    id = np.asarray(jax.vmap(of_rounds, (0, None))(jnp.arange(2, dtype=jnp.uint32), jnp.arange(500)))
    assert (id[..., 0] < id[..., 1]).all()
    assert (id[0] != id[1]).any()
    # Four standard deviations.
    np.testing.assert_allclose(np.bincount(id.ravel(), minlength=5) / 1000, able * COUNT / able.sum(), atol=0.06)


def test_a_run_that_is_stopped_ends_with_all_clients() -> None:
    with pytest.raises(Killed) as raised:
        simulate("fedavg", evaluate_at=(), callbacks=[kill_at(3)])
    results: Any = vars(raised.value)["results"]
    whole = losses(simulate("fedavg", clients_per_evaluation=9))  # as many as there are
    for found in (*results, simulate("fedavg", evaluate_at=(), callbacks=[lambda block: block.round == 3])):
        np.testing.assert_array_equal(losses(found)[:, 3], whole[:, 3])
        assert np.isfinite(losses(found)[:, :3]).sum(axis=2).max() <= COUNT


@pytest.mark.parametrize("execution", [PLAIN, pytest.param(HOST, marks=pytest.mark.in_turn)])
def test_a_run_goes_on_with_the_same_clients(execution: Execution, tmp_path: pathlib.Path) -> None:
    how: dict[str, Any] = {"execution": execution, "checkpoint": Checkpoint(tmp_path, every=0)}
    with pytest.raises(Killed):
        simulate("ditto", **how, callbacks=[kill_at(3)])
    with pytest.raises(ValueError, match="clients_per_evaluation is 2 there and not set here"):
        simulate("ditto", **how, clients_per_evaluation=None)
    whole = simulate("ditto", execution=execution)
    assert_same_results(simulate("ditto", **how), whole)
    assert_close_results(whole, simulate("ditto"))


def test_norms_of_gradients_over_all_clients_are_unknown() -> None:
    reference = engine.standalone(TASK, federation(), LOCAL, seeds=(0, 3))
    found = simulate("incfl", reference=reference, extra_metrics=["objective_gradient_norm", "objective"]).metrics
    assert found["objective_gradient_norm"].isnull().values.tolist() == [[True, True, False, True, False]] * 2
    assert found["objective"].notnull().all()
