"""Byzantine clients: what they report, to whom, and whether they stay in an appeal-based pool."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, incfl, mwfed
from fljax.protocol.messages import Report
from fljax.scenarios import appeal_based, byzantine, misreporting, opting_out
from fljax.testing import check_algorithm
from tests.scenarios.tools import LOCAL, POPULATION, TASK, flat, run, sent, taking_part

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
BAD = np.array([False, True, False, False, True])
WHO = jnp.asarray(BAD)


def solver(threshold: Any = 0.5) -> Any:
    return incfl(TASK, LOCAL, threshold=threshold, clients_per_round=None)


def by_client(record: Any, name: str) -> np.ndarray:
    found = np.zeros(POPULATION)
    found[record["cohort_id"]] = record[name]
    return found


@pytest.mark.parametrize("report", [pytest.param("true", marks=pytest.mark.thorough), "threshold"])
def test_other_losses_than_inflated_ones(report, federation):
    _, honest = sent(solver(), federation)
    _, found = sent(byzantine(solver(), who=WHO, report=report, noise=2.0), federation)
    expected = np.where(BAD & (report == "threshold"), 0.5, honest.report.loss)
    np.testing.assert_allclose(found.report.loss, expected)
    np.testing.assert_array_equal(found.report.threshold, honest.report.threshold)
    noisy = [np.abs(found.update.weight[id] - honest.update.weight[id]).max() > 0 for id in range(POPULATION)]
    np.testing.assert_array_equal(noisy, BAD)


def test_at_the_threshold_weights_are_largest(federation):
    """The slope of a sigmoid is 1/4 at a gap of 0 and less elsewhere."""
    for threshold in (0.5, jnp.asarray([0.1, 0.9, 3.0, 0.7, -2.0])):
        _, records = run(byzantine(solver(threshold), who=WHO, report="threshold"), federation, 2)
        for record in records:
            weight, gap = (by_client(record, name) for name in ("weight", "gap"))
            np.testing.assert_array_equal(weight[BAD], 0.25)
            np.testing.assert_array_equal(gap[BAD], 0)
            assert (weight[~BAD] < 0.25).all()


def test_no_threshold_and_an_infinite_one_leave_the_true_loss(federation):
    """An infinite loss at an infinite threshold would have a gap of NaN."""
    infinite = jnp.asarray([0.5, jnp.inf, 0.5, 0.5, 0.5])
    states, records = run(byzantine(solver(infinite), who=WHO, report="threshold"), federation, 2)
    _, honest = sent(solver(infinite), federation)
    np.testing.assert_allclose(by_client(records[0], "loss")[1], honest.report.loss[1])
    assert by_client(records[0], "weight")[1] == 0
    assert int(states[-1].diverged) == -1
    # FedAvg asks for neither a loss nor a threshold; a poll asks for a loss.
    plain, found = (
        sent(each, federation)[1] for each in (fedavg(TASK, LOCAL), byzantine(fedavg(TASK, LOCAL), who=WHO))
    )
    assert plain.report._replace(size=None) == found.report._replace(size=None) == Report()
    asked = byzantine(mwfed(TASK, LOCAL, threshold=0.7), who=WHO, report="threshold")
    np.testing.assert_allclose(sent(asked, federation)[1].report.loss[BAD], 0.7)


@pytest.mark.parametrize("threshold", [0.01, 1e9, jnp.inf, 0.0, -1.0, -1e9])
def test_clients_that_stay_are_in_the_pool_at_any_threshold(threshold, federation):
    """For the weights they still lie, as if there were no pool."""
    staying = byzantine(appeal_based(solver(), threshold=threshold, after=0), who=WHO, leaves=False, loss_increase=3.0)
    _, records = run(staying, federation, 2)
    for record in records:
        assert record["appealed"][BAD].all()
        assert set(np.flatnonzero(BAD)) <= taking_part(record)
    if threshold == 0.01:
        assert not records[0]["appealed"][~BAD].any()
        np.testing.assert_array_equal(records[0]["polled_loss"][BAD], 0)
    _, found = sent(staying, federation)
    _, honest = sent(solver(), federation)
    np.testing.assert_allclose(found.report.loss - honest.report.loss, np.where(BAD, 3.0, 0.0), atol=1e-6)


@pytest.mark.parametrize("report", ["inflated", "true", "threshold"])
def test_clients_that_leave_answer_the_poll_by_their_report(report, federation):
    """At the threshold a loss is not below it, so such a client is out of the pool as well."""
    inner = appeal_based(fedavg(TASK, LOCAL, clients_per_round=None), threshold=5.0, after=0)
    _, records = run(byzantine(inner, who=WHO, report=report), federation, 1)
    np.testing.assert_array_equal(records[0]["appealed"], ~BAD | (report == "true"))


def test_scenarios_around_and_inside_keep_their_reports(federation):
    """Outer misreporting changes the lie, inner misreporting is lied about; other polls are answered as ever."""
    attack: dict[str, Any] = {"who": WHO, "report": "threshold", "leaves": False}
    pool = appeal_based(solver(), threshold=0.01, after=0)
    lower: dict[str, Any] = {"report": "threshold", "factor": 0.5, "who": WHO}
    _, inside = sent(byzantine(misreporting(pool, **lower), **attack), federation)
    np.testing.assert_allclose(inside.report.loss[BAD], 0.25)
    np.testing.assert_allclose(inside.report.threshold[BAD], 0.25)
    _, outside = sent(misreporting(byzantine(pool, **attack), **lower), federation)
    np.testing.assert_allclose(outside.report.loss[BAD], 0.5)
    np.testing.assert_allclose(outside.report.threshold[BAD], 0.25)
    # A poll inside of a poll, and a ballot that carries the appeal's.
    twice = appeal_based(appeal_based(solver(), threshold=0.01, after=0), threshold=-3.0, after=0)
    around = opting_out(pool, baseline=0.0)
    for algorithm in (twice, around):
        _, records = run(byzantine(algorithm, **attack), federation, 1)
        assert taking_part(records[0]) == set(np.flatnonzero(BAD))
    # One inside of another: both lie, and only the outer one's clients stay.
    nested = byzantine(byzantine(pool, who=~WHO), **attack)
    _, records = run(nested, federation, 1)
    np.testing.assert_array_equal(records[0]["appealed"], BAD)


def test_without_a_pool_nobody_leaves(federation):
    """``leaves`` changes no bit of a run without an appeal."""
    one, other = (run(byzantine(solver(), who=WHO, leaves=leaves), federation, 2)[0][-1] for leaves in (True, False))
    np.testing.assert_array_equal(flat(one.server.model), flat(other.server.model))


@pytest.mark.parametrize("report", ["true", "threshold"])
def test_the_laws_hold_for_other_reports(report):
    def staying(task: Any, local: Any, *, threshold: Any, clients_per_round: Any) -> Any:
        inner = incfl(task, local, threshold=threshold, clients_per_round=clients_per_round)
        return byzantine(appeal_based(inner, threshold=5.0, after=1), fraction=0.4, report=report, leaves=False)

    check_algorithm(staying)
