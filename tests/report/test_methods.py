"""Methods beside partitions: blocks of runs and sweeps, ranks, and the table as text, LaTeX and JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax.metrics.arrays import critical_difference
from fljax.report.exporting import latex_table
from fljax.report.methods import as_json, lines_of, method_table, note
from fljax.report.tables import summary

SCALAR = ("algorithm", "seed", "evaluated_round")


def run(values: Any, methods: tuple[str, ...] = ("fedavg", "incfl", "qffl"), metric: str = "average_accuracy") -> Any:
    """A run with these values by method at the last evaluation, of two seeds 0.01 to both sides."""
    last = np.asarray(values, float)[:, None] + np.array([-0.01, 0.01])
    variables = {
        metric: (SCALAR, np.stack([last * 0, last], axis=-1)),
        "seconds_train": (("algorithm",), np.full(len(values), 2.0)),
        "seconds_compile": (("algorithm",), np.arange(len(values), dtype=float)),
        "diverged": (("algorithm", "seed"), np.full((len(values), 2), -1)),
    }
    return xr.Dataset(variables, {"algorithm": list(methods), "seed": [0, 1], "evaluated_round": [0, 9]})


def swept(values: np.ndarray) -> xr.Dataset:
    """A sweep ``[method, beta, rate]`` over a partition and a learning rate; qffl is not in it."""
    last = values[..., None] + np.array([-0.01, 0.01])
    axes = ("algorithm", "beta", "rate", "seed")
    variables = {
        "average_accuracy": ((*axes, "evaluated_round"), last[..., None]),
        "seconds_train": (axes[:3], np.ones(values.shape)),
        "diverged": (axes, np.full(last.shape, -1)),
    }
    coordinates = {"algorithm": ["fedavg", "incfl"], "beta": [0.1, 1.0], "rate": [0.1, 0.2], "seed": [0, 1]}
    grid = json.dumps({"beta": "data.partition_options.beta", "rate": "local.learning_rate"})
    found = xr.Dataset(variables, coordinates | {"evaluated_round": [9]})
    return found.assign_attrs(grid=grid, metric="average_accuracy")


def test_runs_are_blocks() -> None:
    table: Any = method_table({"iid": run([0.9, 0.8, 0.7]), "skewed": run([0.5, 0.7, 0.6])}, "average_accuracy")
    np.testing.assert_allclose(table.mean, [[0.9, 0.8, 0.7], [0.5, 0.7, 0.6]])
    np.testing.assert_allclose(table.ranking.average, [2, 1.5, 2.5])
    np.testing.assert_allclose(table.seconds, [4, 6, 8])
    heads, lines = lines_of(table)
    assert heads == ["method", "iid", "skewed", "average rank", "seconds"]
    assert lines[0] == ["fedavg", "0.900 ± 0.014*", "0.500 ± 0.014", "2.00", "4.0"]
    assert f"alpha = 0.05): {critical_difference(3, 2):.2f}" in note(table)
    assert "Not told apart: incfl and fedavg and qffl" in note(table)


def test_cells_of_a_sweep_are_blocks_where_they_are_another_problem() -> None:
    values = np.array([[[0.1, 0.2], [0.4, 0.3]], [[0.3, 0.1], [0.2, 0.1]]])
    table = method_table({"sweep": swept(values), "run": run([0.5, 0.4, 0.3])}, "average_accuracy")
    assert table.blocks == ("sweep, beta = 0.1", "sweep, beta = 1", "run")
    np.testing.assert_allclose(table.mean, [[0.2, 0.3, np.nan], [0.4, 0.2, np.nan], [0.5, 0.4, 0.3]])
    assert table.ranked == (0, 1)
    assert "not ranked" in note(table)
    alone = method_table(swept(values), "average_accuracy")  # one sweep needs no name
    assert alone.frame().loc["incfl"].tolist() == ["0.300 ± 0.014*", "0.200 ± 0.014", "1.50", "4.0"]
    assert "fedavg & $0.200 \\pm 0.014$ & $\\mathbf{0.400}" in alone.latex()
    assert "qffl & -- & -- &" in table.latex()
    assert lines_of(table)[1][2] == ["qffl", "–", "–", "0.300 ± 0.014", "–", "4.0"]
    np.testing.assert_allclose(table.seconds, [4 + 2, 4 + 3, 4])


def test_equal_as_printed_are_the_best_alike() -> None:
    """And so they are in the table of one run."""
    values = run([0.80001, 0.80004, 0.8016], metric="average_loss")
    table = method_table(values, "average_loss")
    assert [line[1].endswith("*") for line in lines_of(table)[1]] == [True, True, False]
    columns = {"average_loss": "Average loss"}
    for text in (table.latex(), latex_table(summary(values), columns, lower={"average_loss": True})):
        assert [r"\mathbf" in line for line in text.splitlines() if "0.80" in line] == [True, True, False]


def test_lower_is_better_for_losses() -> None:
    table: Any = method_table({"run": run([0.9, 0.8], ("a", "b"), "average_loss")}, "average_loss")
    assert table.ranking.average.tolist() == [2, 1]
    assert "lower is better" in note(table)
    assert "One block has no critical difference" in note(table)
    assert lines_of(table)[1][1][1].endswith("*")


def test_latex_and_json_have_the_same_numbers() -> None:
    table = method_table({"a_b": run([0.9, 0.8, 0.7]), "c": run([0.5, 0.7, 0.6])}, "average_accuracy")
    text = table.latex()
    assert text.startswith("% Average accuracy at the last evaluation")
    assert r"Method & a\_b & c & Average rank & Seconds \\" in text
    assert r"incfl & $0.800 \pm 0.014$ & $\mathbf{0.700} \pm 0.014$ & 1.50 & 6.0 \\" in text
    found = as_json(table)
    assert (found["methods"][1]["average_rank"], found["better"]) == (1.5, "higher")
    json.dumps(found)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of the metrics average_accuracy, got 'acuracy'"):
        method_table({"run": run([0.9, 0.8, 0.7])}, "acuracy")
    by_client = run([0.9, 0.8, 0.7])
    by_client["test_accuracy"] = by_client["average_accuracy"].expand_dims(client=2)
    with pytest.raises(ValueError, match=r"expected one of the metrics average_accuracy, got 'test_accuracy'"):
        method_table({"run": by_client}, "test_accuracy")
