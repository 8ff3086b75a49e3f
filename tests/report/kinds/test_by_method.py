"""Figures of methods show the numbers of the results."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from fljax import report
from fljax.aggregators import incfl_weights
from fljax.aggregators.by_loss import SURROGATES
from fljax.report.kinds.by_method import DERIVATIVES
from fljax.report.kinds.sources import MissingError
from fljax.results.events import Results
from tests.report.kinds.small import LABELS, small


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_points_are_means_over_seeds_with_bars() -> None:
    results = small()
    figure = report.metric_pairs(results)
    assert [axes.get_title() for axes in figure.axes] == ["seen clients", "unseen clients"]
    assert words_of(figure) == list(LABELS)
    for axes, prefix in zip(figure.axes, ("", "unseen_"), strict=True):
        last = results.metrics.isel(evaluated_round=-1)
        x, y = (last[f"{prefix}{name}"] for name in ("incentivised_participation_rate", "average_accuracy"))
        for container, label in zip(axes.containers, LABELS, strict=True):
            point, _, (across, up) = tuple(container)
            centre = [float(each.sel(algorithm=label).mean()) for each in (x, y)]
            assert [point.get_xdata()[0], point.get_ydata()[0]] == pytest.approx(centre)
            for bars, values, axis in ((across, x, 0), (up, y, 1)):
                ends = bars.get_segments()[0][:, axis]
                assert np.ptp(ends) == pytest.approx(2 * float(values.sel(algorithm=label).std(ddof=1)))


def test_chosen_metrics_and_methods_without_them() -> None:
    results = small()
    results.metrics["average_accuracy"].loc[{"algorithm": "fedavg"}] = np.nan
    figure = report.metric_pairs(results, "average_accuracy", "unseen_average_accuracy")
    assert words_of(figure) == ["incfl", "iafl"]
    assert len(figure.axes) == 1
    with pytest.raises(ValueError, match="expected two metrics for the figure metric_pairs, got 'average_accuracy'"):
        report.metric_pairs(results, "average_accuracy")
    with pytest.raises(ValueError, match=r"got 'average_acuracy' \(did you mean 'average_accuracy'\?\)"):
        report.metric_pairs(results, "average_acuracy", "average_accuracy")
    apart = results.metrics.copy()
    apart["average_accuracy"] = apart["average_accuracy"].where(apart["algorithm"] == "incfl")
    apart["a"] = apart["unseen_average_accuracy"].where(apart["algorithm"] == "iafl")
    with pytest.raises(MissingError, match="expected an algorithm with average_accuracy and a for the figure metric_p"):
        report.metric_pairs(Results(apart, results.records), "average_accuracy", "a")


def test_the_appeal_of_the_global_model_is_drawn_where_there_is_one() -> None:
    metrics, records = small()
    metrics["global_model_appeal"] = metrics["average_accuracy"]
    metrics["global_average_accuracy"] = metrics["average_accuracy"]
    axes = report.metric_pairs(Results(metrics, records)).axes
    assert len(axes) == 1
    assert axes[0].get_ylabel() == "Average accuracy of the global model"


def test_losses_of_all_clients_and_of_those_that_train() -> None:
    results = small()
    figure = report.polled_loss(results)
    assert words_of(figure) == ["test rows, all clients", "training rows, clients that train"]
    for axes, label in zip(figure.axes, LABELS, strict=True):
        test, train = axes.lines
        values = results.metrics["global_test_loss"].sel(algorithm=label)
        np.testing.assert_array_equal(test.get_xdata(), [0, 3, 6])
        np.testing.assert_allclose(np.asarray(test.get_ydata(), float), values.mean("client").mean("seed"))
        records = results.records.sel(algorithm=label)
        losses = records["loss"].where(records["cohort_present"])
        np.testing.assert_array_equal(train.get_xdata(), np.arange(6))
        np.testing.assert_allclose(np.asarray(train.get_ydata(), float), losses.mean("row").mean("seed"))


def test_losses_of_polled_clients_come_first() -> None:
    metrics, records = small(("a",), seeds=1, rounds=80)
    polled = np.linspace(2, 1, 80)[None, None, :, None] + np.array([0.0, 0.0, 0.0, 0.2, np.nan])
    records["polled_loss"] = (("algorithm", "seed", "round", "client"), polled)
    figure = report.polled_loss(Results(metrics, records))
    train = figure.axes[0].lines[1]
    assert words_of(figure)[1] == "training rows, clients that are asked"
    expected = (np.linspace(2, 1, 80) + 0.05).reshape(40, 2).mean(axis=1)
    np.testing.assert_allclose(np.asarray(train.get_ydata(), float), expected)
    np.testing.assert_allclose(np.asarray(train.get_xdata(), float), np.arange(40) * 2 + 0.5)
    few = metrics.drop_vars("global_test_loss")
    assert report.polled_loss(Results(few, records)).axes[0].get_ylabel() == "mean loss of the deployed model"
    with pytest.raises(MissingError, match="a record polled_loss or loss for the figure polled_loss"):
        report.polled_loss(Results(metrics, records.drop_vars(["loss", "polled_loss"])))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_curves_are_those_of_the_aggregator(name: str) -> None:
    assert DERIVATIVES.keys() == SURROGATES.keys()
    gap = np.array([-30.0, -2.0, -0.1, 0.0, 0.3, 4.0, 30.0])
    expected = incfl_weights(jnp.asarray(gap, jnp.float32), surrogate=name)
    np.testing.assert_allclose(DERIVATIVES[name](gap), expected, rtol=1e-5)


def test_points_are_the_gaps_and_weights_of_clients_that_train() -> None:
    results = small()
    figure = report.surrogate_weights(results)
    axes = figure.axes[0]
    assert axes.get_title() == "incfl"
    records = results.records.sel(algorithm="incfl").transpose("round", "seed", "row", ...)
    present = records["cohort_present"].values
    scatter: Any = axes.collections[0]
    expected = np.stack([records[name].values[present] for name in ("gap", "weight")], axis=1)
    np.testing.assert_allclose(scatter.get_offsets(), expected)
    np.testing.assert_array_equal(
        scatter.get_array(), np.broadcast_to(records["round"].values[:, None, None], present.shape)[present]
    )
    gaps, curve = (np.asarray(each, float) for each in axes.lines[0].get_data())
    np.testing.assert_allclose(curve, 1 / (4 * np.cosh(gaps / 2) ** 2))
    assert words_of(figure) == ["derivative of the surrogate sigmoid"]


def test_the_surrogate_is_the_one_on_which_the_points_lie() -> None:
    metrics, records = small()
    for name in ("softplus", "relu", "hinge", "exp"):
        records["weight"] = records["gap"].copy(data=DERIVATIVES[name](records["gap"].values))
        assert words_of(report.surrogate_weights(Results(metrics, records))) == [f"derivative of the surrogate {name}"]
    figure = report.surrogate_weights(Results(metrics, records), surrogate="sigmoid", gap_scale=2.0)
    gaps, curve = (np.asarray(each, float) for each in figure.axes[0].lines[0].get_data())
    np.testing.assert_allclose(curve, 2 / (4 * np.cosh(gaps) ** 2))
    with pytest.raises(ValueError, match="one of the surrogates sigmoid, softplus, relu, hinge, exp, got 'tanh'"):
        report.surrogate_weights(Results(metrics, records), surrogate="tanh")
    with pytest.raises(ValueError, match="expected gap_scale to be a finite number above 0, got 0"):
        report.surrogate_weights(Results(metrics, records), gap_scale=0.0)
    with pytest.raises(MissingError, match="expected records gap and weight by row"):
        report.surrogate_weights(Results(metrics, xr.Dataset()))


def test_points_far_away_are_counted() -> None:
    metrics, records = small(rounds=400)
    records["gap"][1, 0, 0, 0] = 1e6
    axes = report.surrogate_weights(Results(metrics, records)).axes[0]
    assert "points are outside" in axes.get_xlabel()
    assert axes.get_xlim()[1] < 100
