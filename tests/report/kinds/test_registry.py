"""Kinds of figure by name, and that nothing in them is clipped."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import xarray as xr

from fljax import report
from fljax.report.kinds.registry import KINDS
from fljax.results.events import Results
from tests.report import test_fit
from tests.report.kinds.small import small


@pytest.mark.in_turn
def test_all_figures_of_results() -> None:
    drawn = report.draw_kinds(small(), ["all"])
    assert list(drawn.figures) == list(KINDS)
    assert drawn.missing == ()
    metrics, records = small()
    metrics = metrics.drop_vars("score_confusion")
    few = report.draw_kinds(Results(metrics, records[["gap", "weight"]]), ["all"], metrics=["average_accuracy"] * 2)
    assert list(few.figures) == ["contribution_accuracy", "client_spread", "metric_pairs", "surrogate_weights"]
    assert [sentence.split("for the figure ")[1].split(",")[0] for sentence in few.missing] == [
        "client_curves",
        "confusion_matrices",
        "polled_loss",
    ]


def test_every_kind_is_a_function_of_the_package() -> None:
    for name, kind in KINDS.items():
        assert getattr(report, name) is kind.draw
        parameters = inspect.signature(kind.draw).parameters
        assert {*kind.metrics, *["clients"] * kind.clients} <= set(parameters)


def test_clients_and_metrics_go_to_the_figure_that_takes_them() -> None:
    results = small()
    drawn = report.draw_kinds(results, ["client_curves", "polled_loss"], clients=[1, 2], metrics=["test_loss"])
    line = drawn.figures["client_curves"].axes[0].lines[1]
    losses = results.metrics["test_loss"].sel(algorithm="fedavg", client=1)
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), losses.mean("seed"))
    pair = report.draw_kinds(results, ["metric_pairs"], metrics=["average_accuracy", "incentivised_participation_rate"])
    assert pair.figures["metric_pairs"].axes[0].get_xlabel() == "Average accuracy"


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["client_curve"], {}, "one of the figures client_curves, .*, all, got 'client_curve'"),
        ([], {}, "expected names of figures, got none; valid names are client_curves, "),
        (["polled_loss"], {"clients": [1]}, "clients for the figure client_curves or confusion_matrices, got them for"),
        (["polled_loss"], {"metrics": ["test_loss"]}, r"metrics for one figure of client_curves \(1\), .*, got 1 for"),
        (["client_curves", "client_spread"], {"metrics": ["test_loss"]}, "got 1 for client_curves, client_spread"),
        (["metric_pairs"], {"metrics": ["average_accuracy"]}, "got 1 for metric_pairs"),
        (["polled_loss", "surrogate_weights"], {}, "expected records gap and weight by row for the figure surrogate"),
    ],
)
def test_mistakes_are_sentences(names: list[str], options: dict[str, list], words: str) -> None:
    metrics, records = small()
    with pytest.raises(ValueError, match=words):
        report.draw_kinds(Results(metrics, records.drop_vars("gap")), names, **options)


def test_sweeps_are_refused() -> None:
    metrics = test_fit.grid(("a",), rate=[0.1, 0.2])
    with pytest.raises(ValueError, match="expected results of a run for a figure, got those of a sweep"):
        report.draw_kinds(Results(metrics, xr.Dataset()), ["all"])


@pytest.mark.thorough
@pytest.mark.parametrize("clients", [2, 100])
def test_ten_long_labels_fit(clients: int) -> None:
    drawn = report.draw_kinds(small(test_fit.LABELS, clients=clients), ["all"])
    for name, figure in drawn.figures.items():
        assert test_fit.clipped(figure) == [], name
        assert test_fit.collisions(figure) == [], name


@pytest.mark.thorough
def test_short_labels_fit() -> None:
    metrics, records = small(seeds=1)
    metrics["diverged"] = (("algorithm", "seed"), np.array([[-1], [2], [-1]]))
    drawn = report.draw_kinds(Results(metrics, records), ["all"])
    for name, figure in drawn.figures.items():
        assert test_fit.clipped(figure) == [], name
        assert test_fit.collisions(figure) == [], name
    assert drawn.figures["surrogate_weights"].axes[0].get_title() == "incfl (diverged)"
