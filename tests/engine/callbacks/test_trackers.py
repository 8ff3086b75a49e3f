"""One callback for every tracker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.callbacks import track
from fljax.training import Local
from tests.engine.callbacks.blocks import block
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression


class Log:
    """A run as W&B has it."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, values))


def test_names_and_steps():
    run = Log()
    track(run, label="incfl")(block({"ipr_loss": [0.25, 0.75]}, seeds=(0, 7)))
    ((step, values),) = run.logged
    assert step == 4
    assert values == {
        "incfl/mean/ipr_loss": 0.5,
        "incfl/seed_0/ipr_loss": 0.25,
        "incfl/seed_7/ipr_loss": 0.75,
        "incfl/round": 4,
        "incfl/seconds": 2.0,
    }


def test_without_a_label_and_seeds():
    run = Log()
    track(run, by_seed=False)(block({"ipr_loss": [0.25, np.nan]}))
    assert run.logged == [(4, {"mean/ipr_loss": 0.25, "round": 4, "seconds": 2.0})]


def test_without_a_step_several_algorithms_share_a_run():
    run = Log()
    track(run, label="a", with_step=False)(block({"ipr_loss": [0.25, 0.25]}))
    ((step, values),) = run.logged
    assert (step, values["a/round"]) == (None, 4)


@pytest.mark.parametrize("method", ["log", "log_metrics", "track"])
def test_other_trackers_have_other_names_for_it(method: str):
    calls: list[Any] = []

    class Run:
        pass

    setattr(Run, method, lambda self, values, step: calls.append((step, values)))
    track(Run(), by_seed=False)(block({"ipr_loss": [0.5, 0.5]}))
    assert calls == [(4, {"mean/ipr_loss": 0.5, "round": 4, "seconds": 2.0})]


def test_what_is_no_tracker_is_refused():
    with pytest.raises(ValueError, match=r"expected a run of a tracker, with log\(values, step=\) or .*, got int"):
        track(3)


def test_in_simulate():
    run, local = Log(), Local(0.2, batch_size=2, steps=3)
    algorithm = fedavg(logistic_regression(), local, clients_per_round=3)
    result = engine.simulate(
        algorithm, tiny_federation(), rounds=4, evaluate_every=2, seeds=(5, 9), callbacks=[track(run, label="fedavg")]
    )
    assert [step for step, _ in run.logged] == [0, 2, 4]
    average = result.metrics["average_accuracy"]
    for step, values in run.logged:
        own = average.sel(evaluated_round=step)
        np.testing.assert_allclose(values["fedavg/mean/average_accuracy"], own.mean(), rtol=1e-5)
        np.testing.assert_allclose(values["fedavg/seed_9/average_accuracy"], own.sel(seed=9), rtol=1e-5)
