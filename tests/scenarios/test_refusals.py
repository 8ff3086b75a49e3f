"""Options that scenarios refuse, when the algorithm is built or when a run begins."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, ipfl, standalone
from fljax.engine.rounds.states import by_id, initial_state
from fljax.scenarios import (
    ByReport,
    Strategy,
    adaptive_effort,
    appeal_based,
    availability,
    backdoor,
    byzantine,
    client_sampling,
    colluding,
    drift,
    dropout,
    effort,
    free_riding,
    heterogeneous_training,
    median_clipped,
    misreporting,
    opting_out,
    strategic,
)
from tests.refusals import refusals, refuses
from tests.scenarios.tools import LOCAL, TASK, run
from tests.toys.federation import tiny_federation

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("quick_compilation")]

BOTH = "exactly one of trace and newcomers"
WHO = "exactly one of ids, who and fraction"
TRACE = np.ones((3, 5))
DATA = by_id(tiny_federation())


def of(scenario: Any, inner: Any = None, **options: Any) -> functools.partial[Any]:
    """A call that builds FedAvg, or another algorithm, in a scenario."""
    return functools.partial(scenario, inner or fedavg(TASK, LOCAL), **options)


def begun(scenario: Any, inner: Any = None, **options: Any) -> functools.partial[Any]:
    """A call that begins a run on five clients."""
    build = of(scenario, inner, **options)
    begin = lambda data: initial_state(build(), data, jnp.uint32(0))  # noqa: E731
    return functools.partial(jax.eval_shape, begin, DATA)


def one_round(scenario: Any, **options: Any) -> functools.partial[Any]:
    """A call that runs a round."""
    build = of(scenario, **options)
    return functools.partial(lambda: run(build(), DATA, 1))


def strategy(*fields: Any, **options: Any) -> functools.partial[Any]:
    return of(strategic, strategy=Strategy(*fields, **options))


@refusals(
    (one_round(adaptive_effort, cost=np.ones(3), reward="loss"), "cost", "each of 5 clients, or a table"),
    (of(appeal_based, standalone(TASK, LOCAL), threshold=1.0, judged="global"), "an algorithm with a global model"),
    (of(appeal_based, threshold=1.0, empty_pool="none"), "empty_pool", "skip or all", "got 'none'"),
    (of(appeal_based, threshold=1.0, split="all"), "split", "train, valid or test", "got 'all'"),
    (one_round(appeal_based, threshold=jnp.ones(3)), "each of 5 clients", "got shape (3,)"),
    (one_round(availability, trace=TRACE[:, :4]), "a trace of 5 clients", "got 4"),
    (of(availability, trace=TRACE[0]), "a trace [rounds, clients]", "got shape (5,)"),
    (of(availability, trace="nothing.csv"), "a trace in a .npy or .csv file", "nothing.csv"),
    (of(availability), BOTH),
    (of(availability, trace=[[1] * 5], newcomers=[1]), BOTH),
    (of(availability, trace=[[1] * 5], joins=2), "newcomers who join in round 2", "got a trace alone"),
    (of(availability, newcomers=[1, 1]), "different ids of clients from 0"),
    (one_round(availability, newcomers=[5]), "ids of clients from 0 to 4"),
    (of(backdoor, target=3), "expected target to be one of 3 classes from 0, got 3"),
    (of(backdoor, target=-1), "target", "of at least 0", "got -1"),
    (of(backdoor, target=0, size=0), "size", "of at least 1", "got 0"),
    (of(backdoor, fedavg(TASK._replace(classes=None), LOCAL), target=0), "a task of classes for backdoor"),
    (begun(backdoor, target=0, who=np.ones(4)), "who", "each of 5 clients", "got 4"),
    (of(byzantine, report="flase"), "report", "inflated, true or threshold", "got 'flase'"),
    (of(client_sampling, by="sise"), "by to be", "size, loss, contribution or a function", "did you mean 'size'"),
    (of(client_sampling, by="contribution"), "contribution to be numbers by client", "got None"),
    (begun(client_sampling, by=[1.0, 2.0]), "by to be one number or one for each of 5 clients", "got shape (2,)"),
    (one_round(client_sampling, by=lambda round, ballots: np.ones(3)), "weights", "each of 5 clients", "shape (3,)"),
    (of(colluding, attack="min_mix"), "attack to be a_little_is_enough", "did you mean 'min_max'"),
    (one_round(colluding, attack=lambda x, *_: x), "expected the attack <lambda> to return one update"),
    (begun(drift, at=[1, 2]), "at to be one number or one for each of 5 clients", "(2,)"),
    (of(drift, at=-1), "at to be", "of at least 0"),
    (one_round(dropout, rate=jnp.ones(2)), "each of 5 clients, or a table", "got shape (2,)"),
    (of(dropout, rate="nothing.csv"), "a table of rates in a .npy or .csv file", "'nothing.csv'"),
    (begun(effort, share=[0.5, 0.5]), "share", "each of 5 clients", "(2,)"),
    (of(effort, share=0.0), "share", "in (0, 1]"),
    (begun(heterogeneous_training, steps=[1, 2]), "steps", "each of 5 clients", "(2,)"),
    (of(heterogeneous_training, rate_factor=-1.0), "rate_factor", "of at least 0"),
    (of(heterogeneous_training, steps=[1, 0, 1, 1, 1]), "steps", "whole numbers of at least 1"),
    (begun(free_riding, ids=(1, 1)), "different ids"),
    (begun(free_riding, ids=(-1,)), "ids of clients from 0"),
    (begun(free_riding, ids=(0.5,)), "ids to be an array of whole"),
    (begun(free_riding, ids=(5,)), "ids of clients from 0"),
    (begun(free_riding), WHO),
    (begun(free_riding, ids=[1], fraction=0.2), WHO),
    (begun(free_riding, who=np.ones((2, 3, 5))), "who to be [clients] or [rounds, clients]", "shape (2, 3, 5)"),
    (begun(free_riding, who=np.ones((0, 5))), "who", "got shape (0, 5)"),
    (begun(free_riding, who="abc"), "who to be", "got 'abc'"),
    (begun(free_riding, who=[[1, 0], [1]]), "who to be", "got [[1, 0], [1]]"),
    (begun(free_riding, who=[1, 0, float("nan"), 0, 0]), "who to be an array of finite numbers"),
    (begun(free_riding, who=np.ones(4)), "who", "each of 5 clients", "got 4"),
    (begun(free_riding, fraction=1.5), "fraction", "from 0 to 1 or None", "got 1.5"),
    (of(median_clipped, times=0), "times", "above 0", "got 0"),
    (of(misreporting, report="losses", ids=[1]), "report to be loss, size", "got 'losses'"),
    (begun(misreporting, report="loss"), WHO, "misreporting"),
    (begun(misreporting, report="loss", ids=[9]), "ids of clients from 0 to 4"),
    (begun(misreporting, report="loss", fraction=2.0), "fraction", "from 0 to 1 or None", "got 2.0"),
    (of(misreporting, report="bid", ids=[1], rounds=[3, 3]), "rounds of misreporting", "[3, 3]"),
    (of(misreporting, report="bid", ids=[1], rounds=[1]), "rounds of misreporting", "[1]"),
    (of(misreporting, report="bid", ids=[1], rounds=[-1, 2]), "rounds of misreporting", "[-1, 2]"),
    (of(opting_out, baseline=0.5, split="all"), "split", "valid, train or test", "got 'all'"),
    (of(opting_out, baseline=0.5, every=0), "every", "at least 1", "got 0"),
    (one_round(opting_out, baseline=jnp.zeros(3)), "each of 5 clients, or a table", "got shape (3,)"),
    (one_round(opting_out, baseline=jnp.zeros((4, 3))), "each of 5 clients, or a table", "got shape (4, 3)"),
    (one_round(opting_out, baseline=jnp.zeros((2, 4, 5))), "each of 5 clients, or a table", "got shape (2, 4, 5)"),
    (strategy(own=np.inf), "strategy.own"),
    (strategy(effort=1.5), "strategy.effort", "from 0 to 1"),
    (strategy(flip=-0.1), "strategy.flip"),
    (strategy(noise=-1.0), "strategy.noise"),
    (strategy(own="much"), "strategy.own", "'much'"),
    (strategy(factor=ByReport(loss=np.nan)), "strategy.factor.loss"),
    (of(strategic, strategy={"own": 2.0}), "expected strategy to be"),
    (begun(strategic, strategy=Strategy(own=[1.0, 2.0])), "strategy.own", "each of 5 clients", "got shape"),
    (begun(strategic, strategy=Strategy(shift=ByReport(size=np.ones((4, 2))))), "strategy.shift.size", "got shape"),
    (
        begun(strategic, ipfl(TASK, LOCAL, clients_per_cluster=2), strategy=Strategy(stale=1.0)),
        "an algorithm whose clients receive one model and send an update",
    ),
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)


def test_files_that_hold_no_table(tmp_path: pathlib.Path) -> None:
    (tmp_path / "words.csv").write_text("a,b\n")
    refuses(of(availability, trace=str(tmp_path / "words.csv")), ["a trace in a .npy or .csv file", "words.csv"])
    np.save(tmp_path / "rates.npy", 2 * np.ones((2, 5)))
    refuses(of(dropout, rate=tmp_path / "rates.npy"), ["rates from 0 to 1 in the file", "rates.npy"])
