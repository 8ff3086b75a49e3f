"""Options of clients as tables of their names, in configs and in comparisons."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import fljax
from fljax import data, scenarios
from fljax.experiments.inputs.setup import numbers_by_client
from fljax.scenarios import Strategy
from tests.refusals import refuses
from tests.scenarios.tools import LOCAL, TASK

pytestmark = pytest.mark.usefixtures("quick_compilation")
NAMES = ("hospital A", "hospital B", 7)


def found(option: str, value: Any, build: Any = scenarios.heterogeneous_training, names: Any = (NAMES, NAMES)) -> Any:
    return numbers_by_client(build, {option: value}, names, 3)[option]


def test_a_table_is_a_list_by_id() -> None:
    assert found("rate_factor", {"hospital B": 0.1, "default": 0.5}) == (0.5, 0.1, 0.5)
    assert found("steps", {7: 4, " hospital A": 2, "hospital B": 3}) == (2, 3, 4)
    assert found("who", {"1": True, "default": False}, scenarios.byzantine, (None,)) == (False, True, False)
    strategy = found("strategy", Strategy(own={"7": -1, "default": 1}), scenarios.strategic)  # type: ignore[arg-type]
    assert strategy.own == (1, 1, -1)
    assert found("options", {"a": 1}, lambda options: options) == {"a": 1}  # not by client


@pytest.mark.parametrize(
    ("table", "names", "words"),
    [
        ({"hospital C": 1, "default": 2}, (NAMES,), "steps of the clients hospital A, hospital B, 7, got one of"),
        ({"hospital a": 1, "default": 2}, (NAMES,), "'hospital a' (did you mean 'hospital A'?)"),
        ({"7": 1}, (NAMES,), "steps of every client, or a default, got none of hospital A, hospital B"),
        ({"default": 2}, (NAMES, NAMES[::-1]), "clients of the same names in all seeds"),
        ({"7": [1, 2], "default": 2}, (NAMES,), "one number for each client in a table steps, got several for '7'"),
        ({7: 1, "7": 2, "default": 2}, (NAMES,), "clients and keys with different names, none of which is default"),
        ({"default": 2}, (("default", "a", "b"),), "with different names, none of which is default"),
    ],
)
def test_refused(table: Any, names: Any, words: str) -> None:
    refuses(lambda: found("steps", table, names=names), [words])


@pytest.mark.in_turn
def test_a_comparison_and_a_config_take_names(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    rows = {name: (rng.normal(size=(8, 4)).astype("f4"), rng.integers(0, 3, 8)) for name in ("anna", "ben", "cleo")}
    federation = data.from_clients(rows, train_fraction=0.75)

    def compared(*wrappers: Any) -> Any:
        entries = {"one": ("fedavg", {}, wrappers)}
        return fljax.compare(entries, federation, TASK, LOCAL, rounds=2, seeds=1, progress=False)

    named = compared(("heterogeneous_training", {"rate_factor": {"ben": 0.0, "default": 0.5}}))
    listed = compared(("heterogeneous_training", {"rate_factor": (0.5, 0.0, 0.5)}))
    np.testing.assert_array_equal(named.metrics["test_loss"], listed.metrics["test_loss"])
    # What is read before the plan is made, too.
    for algorithm, option, metric in (("incfl", "threshold", "required_loss"), ("iafl", "contribution", "test_loss")):
        by_name, by_id = (
            fljax.compare({"x": (algorithm, {option: given})}, federation, TASK, LOCAL, rounds=1, progress=False)
            for given in ({"ben": 0.5, "default": 1.0}, (1.0, 0.5, 1.0))
        )
        np.testing.assert_array_equal(by_name.metrics[metric], by_id.metrics[metric])
    config: dict[str, Any] = {
        "name": "by_name",
        "rounds": 2,
        "seeds": 1,
        "save_models": "last",
        "data": {"dataset": "blobs", "partition": "iid", "clients": 3},
        "model": {"name": "logistic_regression"},
        "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
        "algorithms": [
            {"name": "fedavg", "scenarios": [{"name": "effort", "share": {"1": 0.5, "default": 1.0}}]},
            {"name": "fedavg", "label": "list", "scenarios": [{"name": "effort", "share": [1.0, 0.5, 1.0]}]},
        ],
    }
    metrics = fljax.run_config(config, folder=tmp_path / "run", progress=False).metrics
    first, second = metrics["test_loss"].transpose("algorithm", ...).values
    np.testing.assert_array_equal(first, second)
    assert fljax.load(tmp_path / "run").models("fedavg").deployed(0) is not None
