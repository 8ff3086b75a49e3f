"""The scores of ``[metrics]``: names, tables, directions, and what is refused."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from fljax import config as configuration
from fljax.config import ConfigError
from fljax.config.name_resolution import resolved_of
from fljax.config.reading import parse_grid
from fljax.experiments import sweep
from tests.refusals import refuses

BASE: dict[str, Any] = {
    "rounds": 2,
    "data": {"dataset": "blobs", "partition": "iid", "clients": 2},
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "algorithms": [{"name": "fedavg"}],
}
OWN = "tests.config.test_measuring:absolute_error"


def absolute_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    return float(np.mean(1 - probabilities[np.arange(len(labels)), labels]))


def _parse(**metrics: Any) -> configuration.Config:
    return configuration.parse(BASE | {"metrics": metrics})


def test_names_and_tables() -> None:
    config = _parse(scores=["auroc", {"name": OWN, "lower": True}], score_every=5)
    scores = resolved_of(config).scores
    assert [(score.name, score.lower) for score in scores] == [("auroc", False), ("absolute_error", True)]


def test_a_written_config_says_the_same() -> None:
    config = _parse(scores=["auroc", {"name": OWN, "lower": True}])
    text = configuration.dumps(config)
    assert tomllib.loads(text)["metrics"]["scores"] == [{"name": "auroc"}, {"name": OWN, "lower": True}]
    assert configuration.parse(tomllib.loads(text)) == config


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"scores": ["aurok"]}, "metrics.scores: expected one of the scores auroc, .* .did you mean 'auroc'"),
        ({"scores": ["f1", "f1"]}, "metrics.scores: expected scores of different names, got 'f1' twice"),
        ({"scores": ["no_such_module:f"]}, "metrics.scores: expected .*no_such_module"),
        ({"scores": [{"name": "f1", "lower": True}]}, "expected no other direction of f1 than its own"),
        ({"scores": [3]}, "metrics.scores"),
        ({"scores": "f1"}, "metrics.scores: expected a list, got 'f1'"),
        ({"score_every": 2}, "metrics.score_every: expected metrics.scores, which it is about, got none"),
        ({"scores": ["f1"], "score_every": 0}, "metrics.score_every"),
    ],
)
def test_what_is_no_score_is_refused(metrics: Any, words: str) -> None:
    refuses(lambda: _parse(**metrics), words, ConfigError)


def test_a_sweep_may_choose_by_a_score_where_higher_is_better() -> None:
    scores = ["auroc", {"name": OWN, "lower": True}]
    grid = {"local.learning_rate": [0.1, 0.2]}
    for metric in ("pooled_score_auroc", "average_score_auroc"):
        raw = BASE | {"metrics": {"scores": scores}, "sweep": {"grid": grid, "metric": metric}}
        sweep.check_grid(parse_grid(raw))  # raises nothing
    raw["sweep"] = {"grid": grid, "metric": "pooled_score_absolute_error"}
    refuses(lambda: sweep.check_grid(parse_grid(raw)), r"sweep.metric: expected one of the metrics", ConfigError)
