"""``fljax.load``: what a run folder gives back."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import fljax
from fljax import config as configuration
from fljax.experiments import load
from fljax.experiments import run as experiment
from tests.refusals import refuses
from tests.toys.quick import quick_programs

pytestmark = pytest.mark.thorough

RAW: dict[str, Any] = {
    "seeds": 2,
    "rounds": 4,
    "evaluate_every": 2,
    "save_models": "all",
    "data": {"dataset": "blobs", "partition": "iid", "clients": 5, "unseen": 2, "valid_fraction": 0.3},
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.5, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 2},
    "algorithms": [{"name": "fedavg"}, {"name": "incfl", "label": "mine"}],
}
X = np.ones((3, 4), np.float32)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, pathlib.Path]:
    folder = tmp_path_factory.mktemp("run")
    with quick_programs():
        return experiment.run(configuration.parse(RAW, name="tiny"), directory=folder), folder


def test_what_it_gives_back(finished: tuple[Any, pathlib.Path]) -> None:
    outcome, folder = finished
    run = fljax.load(folder)
    assert run.labels == ("fedavg", "mine")
    assert run.last.drop_vars("evaluated_round").equals(run.metrics.isel(evaluated_round=-1, drop=True))
    assert run.metrics.identical(outcome.metrics)
    assert (run.records.sizes, run.config.rounds) == (outcome.records.sizes, 4)
    assert repr(run) == f"<run {str(folder)!r}: fedavg, mine; 2 seeds, 4 rounds, models: all>"
    with quick_programs():
        result = outcome.models["mine"]
        np.testing.assert_array_equal(run.predict("mine", 1, X), result.predict(1, X))
        arguments: Any = {"seed": 1, "unseen": True}
        np.testing.assert_array_equal(run.predict("mine", 1, X, **arguments), result.predict(1, X, **arguments))
        best = result.best.predict(2, X, seed=1)
        np.testing.assert_array_equal(run.predict("mine", 2, X, seed=1, which="best"), best)
        assert run.models("mine", round=2).state.round.tolist() == [2, 2]
        assert run.models("mine") is run.models("mine")


def test_metrics_need_no_engine_and_no_data(finished: tuple[Any, pathlib.Path]) -> None:
    code = (
        f"import sys, fljax; run = fljax.load({str(finished[1])!r}); run.metrics, run.records, repr(run)\n"
        "print([each for each in sys.modules if each == 'jax' or each.startswith(('fljax.engine', 'fljax.data'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_what_is_wrong_is_one_sentence(finished: tuple[Any, pathlib.Path], tmp_path: pathlib.Path) -> None:
    _, folder = finished
    refuses(lambda: load.load(tmp_path / "none"), r"expected a run folder, got .*, which is no folder")
    refuses(lambda: load.load(tmp_path), r"expected a run folder with config\.toml")
    run = load.load(folder)
    with pytest.raises(ValueError, match=r"expected one of the labels fedavg, mine, got 'fedavgg' \(did you mean 'fed"):
        run.models("fedavgg")
    with pytest.raises(ValueError, match=r"expected one of the models last, best, got .bset. .did you mean .best"):
        run.models("mine", "bset")
    with pytest.raises(ValueError, match="expected one of the rounds 0, 2, 4, after which models of mine were saved"):
        run.models("mine", round=3)
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("models"))
    for which in ("last", "best"):
        with pytest.raises(ValueError, match=f"which fljax run --save-models {which} writes, got no such file"):
            load.load(copied).models("mine", which)
    with pytest.raises(ValueError, match="which fljax run --save-models all writes, got no such file"):
        load.load(copied).models("mine", round=2)
    (copied / "results.nc").unlink()
    with pytest.raises(ValueError, match=r"expected a run folder with results\.nc"):
        _ = load.load(copied).metrics
