"""Configs whose task is no classification: run, table, report, sweep, and what they cannot do."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fljax import config as configuration
from fljax import report
from fljax.cli.printing import as_table
from fljax.config import ConfigError, parse_grid
from fljax.experiments import run, sweep
from fljax.experiments.inputs.setup import resolve_setup
from fljax.report.drawing import panels
from fljax.report.tables import best_rows, main_table
from fljax.results.events import Event
from tests.engine.test_scores import accuracies
from tests.refusals import refuses
from tests.toys.quick import quick_programs

pytestmark = pytest.mark.thorough

TOYS = "tests.toys.regression"
BASE: dict[str, Any] = {
    "rounds": 2,
    "evaluate_every": 1,
    "data": {"dataset": f"{TOYS}:lines", "partition": "iid", "clients": 4, "unseen": 1, "valid_fraction": 0.2},
    "model": {"name": f"{TOYS}:linear"},
    "local": {"learning_rate": 0.05, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 3},
    "participation": {"clients_per_round": 2},
    "algorithms": [{"name": "fedavg"}, {"name": "incfl"}],
}


def build(**changes: Any) -> Any:
    return configuration.parse(BASE | changes, name="regression")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    events: list[Event] = []
    with quick_programs():
        return run.run(build(), directory=folder, on_event=events.append), events, folder


def test_a_regression_has_losses_and_no_accuracies(finished: Any) -> None:
    outcome, events, _ = finished
    assert accuracies(outcome.metrics) == []
    for name in ("average_loss", "incentivised_participation_rate", "ipr_loss", "valid_loss", "unseen_average_loss"):
        assert np.isfinite(outcome.metrics[name]).all(), name
    assert outcome.infinite == ()
    assert [event.message for event in events if event.stage == "data"] == [f"{TOYS}:lines: 120 examples"]


def test_its_table_and_report_show_losses(finished: Any) -> None:
    outcome, _, folder = finished
    written = io.StringIO()
    Console(file=written, width=120).print(as_table(*main_table(outcome.metrics)))
    assert "average loss" in written.getvalue()
    assert "IPR" in written.getvalue()
    assert "accurac" not in written.getvalue()
    image, page = report.write(folder)
    assert image.stat().st_size > 0
    text = page.read_text(encoding="utf-8")
    assert "Clients that prefer the deployed model (IPR)" in text
    assert "average_loss" in panels(outcome.metrics, outcome.records)


def test_a_sweep_chooses_by_loss() -> None:
    cells = {"grid": {"local.learning_rate": [1e-4, 0.05]}}
    message = r"sweep.metric: expected a metric of losses .*valid names are .*average_loss"
    with quick_programs():
        refuses(lambda: sweep.run(parse_grid(BASE | {"sweep": cells}, name="regression")), message, ConfigError)
        chosen = BASE | {"algorithms": [{"name": "fedavg"}], "sweep": cells | {"metric": "average_loss"}}
        found = sweep.run(parse_grid(chosen, name="regression"))
        by_valid = sweep.run(
            parse_grid(chosen | {"sweep": cells | {"metric": "average_valid_loss"}}, name="regression")
        )
    assert [(each.criterion, each.cell) for each in found.best] == [
        ("average_loss", {"learning_rate": 0.05}),
        ("average_valid_loss", {"learning_rate": 0.05}),
    ]
    assert [each.criterion for each in by_valid.best] == ["average_valid_loss"]
    assert [row[1] for row in best_rows(found.best, "average_loss")] == ["chosen by", "test rows", "validation rows"]
    assert [row[1] for row in best_rows(by_valid.best, "average_valid_loss")] == ["chosen by", "validation rows"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": [{"name": "ipfl"}]}, r"expected a task with a score for ipfl"),
        ({"algorithms": [{"name": "iafl"}]}, r"expected a task with a score for the contribution"),
        ({"algorithms": [{"name": "fedem"}]}, r"expected a task of classes for fedem"),
        (
            {"algorithms": [{"name": "fedavg"}, {"name": "incfl", "scenarios": [{"name": "opting_out"}]}]},
            r"expected a task with a score for opting_out",
        ),
        ({"model": {"name": "mlp"}}, r"expected a dataset of classes for the model mlp"),
        (
            {"data": BASE["data"] | {"partition": "dirichlet"}},
            r"expected one whole-number label for each row, since this partition deals by classes",
        ),
        (
            {"data": BASE["data"] | {"dataset": f"{TOYS}:few_classes"}, "model": {"name": f"{TOYS}:two_classes"}},
            r"expected labels in 0..1, since the model has 2 classes, got label 2 of client",
        ),
    ],
)
def test_what_it_cannot_do_is_said_before_training(changes: Any, message: str) -> None:
    events: list[Event] = []
    refuses(lambda: run.run(build(**changes), on_event=events.append), message)
    assert not [event for event in events if event.stage == "train"]


def test_contributions_that_need_no_accuracy_serve() -> None:
    iafl = [{"name": "iafl", "contribution": "size"}]
    config = build(algorithms=iafl)
    assert list(run.check_setup(resolve_setup(config), rehearsed=False)) == ["iafl"]


def test_an_infinite_loss_is_told_and_kept() -> None:
    events: list[Event] = []
    chosen = build(
        algorithms=[{"name": "fedavg"}], local={"learning_rate": 1e30, "batch_size": 4, "steps": 1}, rounds=1
    )
    with quick_programs():
        outcome = run.run(chosen, on_event=events.append)
    assert outcome.diverged == ()
    assert {each.round for each in outcome.infinite} == {1, None}
    told = [event.message for event in events if "is infinite after round 1 (seed 0)" in event.message]
    assert len(told) == 1
