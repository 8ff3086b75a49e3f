"""Figures of single clients show the numbers of the results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from fljax import report
from fljax.metrics import over_seeds, pearson_correlation
from fljax.report.kinds.sources import MissingError
from fljax.results.events import Results
from fljax.results.records import by_client
from fljax.results.values import with_contribution_correlation
from tests.report.kinds.small import LABELS, small


def last_of(results: Results, label: str, name: str = "test_accuracy") -> np.ndarray:
    return results.metrics[name].sel(algorithm=label).isel(evaluated_round=-1).values


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_are_means_over_seeds_of_the_chosen_clients() -> None:
    results = small()
    figure = report.client_curves(results, [3, 0])
    assert [axes.get_title() for axes in figure.axes] == list(LABELS)
    for axes, label in zip(figure.axes, LABELS, strict=True):
        values = results.metrics["test_accuracy"].sel(algorithm=label).values
        for line, client in zip(axes.lines, (3, 0), strict=True):  # the one that contributes most comes first
            np.testing.assert_array_equal(line.get_xdata(), [0, 3, 6])
            np.testing.assert_allclose(np.asarray(line.get_ydata(), float), values[:, :, client].mean(axis=0))
        band: Any = axes.collections[0]
        low = band.get_paths()[0].vertices[:, 1].min()
        spread = values[:, :, 3].std(axis=0, ddof=1)
        assert low == pytest.approx((values[:, :, 3].mean(axis=0) - spread).min())


def test_curves_are_named_by_what_the_clients_contribute() -> None:
    results = small()
    mean = results.records["contribution"].sel(algorithm="iafl").mean(("seed", "round")).values
    assert words_of(report.client_curves(results, [0, 2])) == [f"client {each}: {mean[each]:.3g}" for each in (2, 0)]
    figure = report.client_curves(results, [2], by="rate", algorithms=["iafl"])
    assert words_of(figure) == [f"client 2: {mean[2] / 2:.3g}"]
    assert figure.legends[0].get_title().get_text().replace("\n", " ") == (
        "reward rate, mean over rounds and seeds, of iafl"
    )
    trained = results.records["participation"].sel(algorithm="fedavg").values > 0
    figure = report.client_curves(results, [1], by="participation")
    assert words_of(figure) == [f"client 1: {trained[:, :, 1].mean():.3g}"]


def test_six_clients_from_the_least_to_the_largest_contribution_are_chosen() -> None:
    words = words_of(report.client_curves(small(clients=100)))
    assert [int(word.split(":")[0].split()[1]) for word in words] == [98, 78, 59, 39, 20, 0]
    assert len(words_of(report.client_curves(small(clients=3)))) == 2  # the last one has no test rows
    assert words_of(report.client_curves(small(clients=2), [1, 0]))[0].endswith(" (no test accuracy)")


def test_participation_is_derived_from_cohorts_where_it_is_not_recorded() -> None:
    """After the end of an algorithm that stopped early, joined records have NaN, and floats."""
    results = small(seeds=1)
    present = np.array([[[1, 1], [1, 0], [0, 0], [1, 1], [np.nan, np.nan], [np.nan, np.nan]]])
    cohorts = xr.Dataset(
        {
            "cohort_id": (("seed", "round", "row"), np.nan_to_num(present) * [[0, 2]]),
            "cohort_present": (("seed", "round", "row"), present),
        },
        {"seed": [7], "round": np.arange(6)},
    )
    known = cohorts.isel(round=slice(4)).astype(int)
    trained = by_client(known, 5)["participation"].values > 0
    figure = report.client_curves(Results(results.metrics, cohorts.expand_dims(algorithm=["fedavg"])), [0, 2, 3])
    assert words_of(figure) == [f"client {each}: {trained[0, :, each].mean():.3g}" for each in (0, 2, 3)]


@pytest.mark.unchecked
@pytest.mark.parametrize("clients", [[5], [-1], [True], [1.5], []])
def test_unknown_clients_are_refused_with_the_valid_range(clients: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"expected ids of clients from 0 to 4, got"):
        report.client_curves(small(), clients)


def test_other_names_are_refused_with_the_valid_ones() -> None:
    results = small()
    with pytest.raises(ValueError, match="one of the rates contribution, rate, participation, got 'size'"):
        report.client_curves(results, by="size")
    with pytest.raises(ValueError, match=r"one of the metrics .*test_accuracy.*, got 'average_accuracy'"):
        report.client_curves(results, metric="average_accuracy")
    with pytest.raises(ValueError, match=r"one of the labels fedavg, incfl, iafl, got 'iaffl' \(did you mean 'iafl'"):
        report.client_curves(results, algorithms=["iaffl"])


def test_results_of_one_algorithm_have_no_label() -> None:
    whole = small()
    one = Results(*(part.sel(algorithm="iafl", drop=True) for part in whole))
    line, same = (report.client_curves(each, [1]).axes[-1].lines[0] for each in (one, whole))
    np.testing.assert_array_equal(line.get_ydata(), same.get_ydata())
    assert report.contribution_accuracy(one).axes[0].get_title().startswith("result\nrho = ")


def points_of(figure: Figure, panel: int = 0) -> np.ndarray:
    scatter: Any = figure.axes[panel].collections[0]
    return np.asarray(scatter.get_offsets().filled(np.nan))


def test_points_are_the_contribution_and_accuracy_of_clients() -> None:
    results = small()
    figure = report.contribution_accuracy(results)
    (axes,) = figure.axes  # of the only algorithm that records contributions
    contribution = results.records["contribution"].sel(algorithm="iafl", round=5).values
    accuracy = last_of(results, "iafl")
    known = np.isfinite(accuracy.ravel())
    points = points_of(figure)
    points = points[np.isfinite(points).all(axis=1)]
    np.testing.assert_allclose(points, np.stack([contribution.ravel(), accuracy.ravel()], axis=1)[known])
    with_rho = with_contribution_correlation(*(part.sel(algorithm="iafl", drop=True) for part in results))
    mean, std, _ = over_seeds(with_rho["contribution_correlation"].values[:, -1])
    assert axes.get_title() == f"iafl\nrho = {mean:.3f} ± {std:.3f} over 2 seeds"


def test_standalone_accuracy_is_the_contribution_where_none_is_recorded() -> None:
    results = small()
    without = Results(results.metrics, results.records.drop_vars("contribution"))
    figure = report.contribution_accuracy(without)
    assert len(figure.axes) == 3
    alone = results.metrics["standalone_test_accuracy"].values
    for axes, label in zip(figure.axes, LABELS, strict=True):
        rho = np.asarray(pearson_correlation(last_of(results, label), alone))
        assert axes.get_title().startswith(f"{label}\nrho = {rho.mean():.3f} ± ")
    chosen = report.contribution_accuracy(results, contribution="standalone_test_accuracy", algorithms=["incfl"])
    assert [axes.get_title().split("\n")[0] for axes in chosen.axes] == ["incfl"]


def test_contributions_that_are_equal_have_no_rho() -> None:
    results = small(seeds=1)
    results.records["contribution"][:] = 1.0
    assert report.contribution_accuracy(results).axes[0].get_title() == "fedavg\nrho undefined"
    with pytest.raises(ValueError, match="one of the contributions contribution, rate, participation, standalone"):
        report.contribution_accuracy(results, contribution="size")


def test_a_figure_without_its_data_is_not_drawn() -> None:
    metrics, records = small()
    with pytest.raises(MissingError, match="expected test_accuracy and rate by client for the figure contribution_acc"):
        report.contribution_accuracy(Results(metrics, records.drop_vars("rate")), contribution="rate")
    with pytest.raises(MissingError, match="a record contribution or rate or participation by client"):
        report.client_curves(Results(metrics, xr.Dataset()))
    few = metrics[["average_accuracy"]]
    for draw in (report.client_curves, report.client_spread):
        with pytest.raises(MissingError, match="expected the metric test_accuracy or test_loss by client"):
            draw(Results(few, records))


def test_boxes_have_the_quantiles_over_clients_and_seeds() -> None:
    results = small()
    figure = report.client_spread(results)
    assert [axes.get_title() for axes in figure.axes] == ["seen clients", "unseen clients"]
    for axes, prefix in zip(figure.axes, ("", "unseen_"), strict=True):
        texts = [text.get_text() for text in axes.get_yticklabels()]
        assert [text.replace("\n", " ") for text in texts] == [*LABELS, "standalone model"]
        pooled = [last_of(results, label, f"{prefix}test_accuracy") for label in LABELS]
        pooled.append(results.metrics[f"{prefix}standalone_test_accuracy"].values)
        for place, values in enumerate(pooled):
            values = values[np.isfinite(values)]
            box, mean = axes.patches[place], axes.lines[place]
            first, third = np.quantile(values, [0.25, 0.75])
            assert (box.get_x(), box.get_x() + box.get_width()) == pytest.approx((first, third))  # type: ignore[attr-defined]
            assert np.ravel(mean.get_xdata()) == pytest.approx(values.mean())
            assert np.ravel(mean.get_ydata()) == pytest.approx(place)


def test_whiskers_and_medians_of_boxes() -> None:
    results = small(clients=100)
    figure = report.client_spread(results, metric="test_loss", algorithms=["incfl"])
    values = last_of(results, "incfl", "test_loss")
    low, middle, high = np.quantile(values[np.isfinite(values)], [0.05, 0.5, 0.95])
    whiskers, ends, median = (np.array(part.get_segments()) for part in figure.axes[0].collections[:3])  # type: ignore[attr-defined]
    assert (whiskers[..., 0].min(), whiskers[..., 0].max()) == pytest.approx((low, high))
    assert sorted(ends[:, 0, 0]) == pytest.approx([low, high])
    assert median[0, 0, 0] == pytest.approx(middle)
    assert len(figure.axes[0].collections) == 6  # no points: there are too many clients


def test_confusion_of_the_worst_the_median_and_the_best_client() -> None:
    results = small()
    every = results.metrics["score_confusion"].isel(evaluated_round=-1).sum("seed")
    figure = report.confusion_matrices(results)
    assert len(figure.axes) == 4 * len(LABELS)
    for place, label in enumerate(LABELS):
        panels = figure.axes[4 * place : 4 * place + 4]
        counts = every.sel(algorithm=label).values
        right = (np.trace(counts, axis1=1, axis2=2) / np.maximum(counts.sum((1, 2)), 1))[:-1]  # the last has no rows
        order = np.argsort(right)
        drawn = [counts.sum(0), *counts[order[[0, 2, 3]]]]
        for axes, expected in zip(panels, drawn, strict=True):
            assert [text.get_text() for text in axes.texts] == [f"{count:.0f}" for count in expected[expected > 0]]
            shares = np.asarray(axes.images[0].get_array(), float)
            np.testing.assert_allclose(shares, expected / expected.sum(axis=1, keepdims=True))
        assert f"worst: client {order[0]} " in panels[1].get_title()
    (_, chosen) = report.confusion_matrices(results, [4], algorithms=["iafl"]).axes
    assert chosen.get_title() == "iafl\nclient 4 (no rows)"
