"""A CSV file with 3 % positives, from the config to results, tables and exports."""

from __future__ import annotations

import csv
import io
import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.special import softmax
from sklearn import metrics as sklearn

import fljax
from fljax import config as configuration
from fljax import data
from fljax.cli.commands.results import export
from fljax.cli.running import FigureOptions
from fljax.config.reading import parse_grid
from fljax.experiments import sweep
from fljax.experiments.inputs.setup import resolve_setup

pytestmark = pytest.mark.thorough

HOSPITALS = ("Elm", "Ivy", "Oak", "Yew")
RAW: dict[str, Any] = {
    "rounds": 4,
    "evaluate_every": 2,
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 16, "steps": 10},
    "standalone": {"steps": 10},
    "metrics": {"scores": ["auroc", "average_precision", "f1_rare", "confusion", f"{__name__}:rows"]},
    "algorithms": [{"name": "fedavg"}, {"name": "standalone"}],
}


def rows(labels: np.ndarray, probabilities: np.ndarray) -> float:
    return float(len(labels))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """4 x 300 patients, of whom 3 % are ill; none of Yew's is."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1200, 3))
    where = np.repeat(HOSPITALS, 300)
    risk = x[:, 0] + 0.7 * x[:, 1] + 0.5 * draw.normal(size=1200)
    ill = np.zeros(1200, int)
    ill[np.argsort(np.where(where == "Yew", -np.inf, risk))[-36:]] = 1
    columns = {"age": x[:, 0], "pressure": x[:, 1], "pulse": x[:, 2], "hospital": where, "ill": ill}
    path = tmp_path_factory.mktemp("table") / "patients.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    assert ill.mean() == 0.03
    return path


@pytest.fixture(scope="module")
def found(table: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The raw config, the comparison, its folder and what the run told."""
    raw = RAW | {"data": {"dataset": str(table), "client": "hospital", "label": "ill"}, "name": "rare"}
    told, folder = [], tmp_path_factory.mktemp("run") / "rare"
    comparison = fljax.run_config(raw, folder=folder, progress=told.append)
    return raw, comparison, folder, told


@pytest.mark.parametrize("label", ["fedavg", "standalone"])
def test_scores_are_those_of_scikit_learn(found: Any, table: pathlib.Path, label: str) -> None:
    raw, comparison, _, _ = found
    test = data.row_numbers(resolve_setup(configuration.parse(raw)).federation, "test")
    patients = pd.read_csv(table)
    of_clients = []
    for client, index in enumerate(test):
        logits = comparison.results[label].predict(client, patients.iloc[index])
        of_clients.append((patients["ill"].to_numpy()[index], softmax(np.asarray(logits, np.float64), axis=1)))
    last: xr.Dataset = comparison.last.sel(algorithm=label).isel(seed=0)
    assert last.score_rows.values.tolist() == [len(y) for y, _ in of_clients]
    auroc = [sklearn.roc_auc_score(y, p[:, 1]) if 0 < y.mean() < 1 else np.nan for y, p in of_clients]
    assert np.isnan(auroc[3])
    np.testing.assert_allclose(last.score_auroc, auroc, rtol=1e-6)
    y, p = (np.concatenate(part) for part in zip(*of_clients, strict=True))
    np.testing.assert_allclose(last.pooled_score_auroc, sklearn.roc_auc_score(y, p[:, 1]), rtol=1e-6)
    np.testing.assert_allclose(last.pooled_score_average_precision, sklearn.average_precision_score(y, p[:, 1]), 1e-6)
    np.testing.assert_allclose(last.pooled_score_f1_rare, sklearn.f1_score(y, p[:, 1] > 0.5), rtol=1e-6)


def test_tables_page_log_and_export_say_them(found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, comparison, folder, told = found
    assert any("score_auroc is NaN for 1 of 4 clients" in event.message for event in told)
    assert {"auroc average", "auroc pooled"} <= set(comparison.table().columns)
    assert "scores: auroc, average_precision, f1_rare and rows, higher is better" in comparison._repr_html_()
    page = comparison.report(folder.parent / "page.html").read_text(encoding="utf-8")
    assert "Score auroc, all rows together" in page
    assert "higher is better" in page
    export(folder, FigureOptions(), csv=True)
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    better = {line["metric"]: line["better"] for line in lines}
    assert (better["pooled_score_auroc"], better["average_loss"]) == ("higher", "lower")
    export(folder, FigureOptions(), latex=True)
    out = capsys.readouterr().out
    assert "auroc pooled" in out
    assert "higher is better" in out
    assert fljax.load(folder).last.score_auroc.attrs["lower"] == 0


def test_a_sweep_chooses_by_a_score(found: Any) -> None:
    raw = found[0] | {"algorithms": [{"name": "fedavg"}]}
    raw["sweep"] = {"grid": {"local.learning_rate": [0.0001, 0.1]}, "metric": "pooled_score_auroc"}
    outcome = sweep.run(parse_grid(raw))
    values = outcome.metrics.pooled_score_auroc.isel(evaluated_round=-1, seed=0, algorithm=0)
    assert outcome.best[0].cell["learning_rate"] == [0.0001, 0.1][int(values.values.argmax())]
