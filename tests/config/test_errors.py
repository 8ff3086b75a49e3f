"""All errors of a config are told at once, one sentence each, and nothing that only follows from another error."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from fljax import config
from fljax.cli import main
from fljax.config import ConfigError

BASE: dict[str, Any] = {
    "rounds": 4,
    "data": {"dataset": "blobs", "partition": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "algorithms": [{"name": "fedavg"}, {"name": "incfl"}],
}


def errors(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config.parse(raw)
    assert str(caught.value) == "\n".join(caught.value.errors)
    assert caught.value.__cause__ is None
    return caught.value.errors


def paths(raw: dict[str, Any]) -> list[str]:
    return [each.partition(": ")[0] for each in errors(raw)]


def changed(**tables: Any) -> dict[str, Any]:
    """The base with other tables; dictionaries change keys, and None removes one."""
    found = BASE | tables
    for name, value in tables.items():
        if isinstance(value, dict):
            joined = BASE.get(name, {}) | value
            found[name] = {key: each for key, each in joined.items() if each is not None}
    return {name: each for name, each in found.items() if each is not None}


def test_errors_of_all_tables_are_told() -> None:
    raw = changed(
        seeds="many",
        local={"batch_size": 0, "decay": -1},
        model={"hiden": [3]},
        execution={"devices": 0},
        scenarios=[{"name": "dropout", "rat": 0.5}],
        algorithms=[{"name": "fedavg", "server_lrs": 1.0}, {"name": "incfll"}, {"name": "ditto", "weights": "rows"}],
    )
    assert paths(raw) == [
        "seeds",
        "local.batch_size",
        "local.decay",
        "execution.devices",
        "model",
        "scenarios.dropout",
        "algorithms.fedavg",
        "algorithms.incfll",
        "algorithms.ditto.weights",
    ]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        # A misspelt key explains that it is missing; one that is nothing like it does not.
        ({"local": {"batchsize": 4, "batch_size": None}}, ["local.batchsize"]),
        ({"local": {"lr": 0.1, "learning_rate": None}}, ["local.lr", "local.learning_rate"]),
        # Defaults that are made of a wrong value.
        ({"rounds": -1}, ["rounds"]),
        ({"rounds": None}, ["rounds"]),
        ({"data": {"clients": 0}}, ["data.clients"]),
        ({"data": None}, ["data"]),
        ({"algorithms": [{"name": 3}]}, ["algorithms.3.name"]),
        ({"algorithms": [{"weights": "size"}]}, ["algorithms.0.name"]),
        # A wrong data set has unknown options, and its number of clients is not known.
        ({"data": {"dataset": "blops", "clients": None, "partition": None}}, ["data.dataset"]),
        ({"data": {"dataset": "blops", "dataset_options": {"x": 1}}, "rounds": -1}, ["rounds", "data.dataset"]),
        # What depends on the clients is not judged without them.
        ({"data": {"clients": -3}, "algorithms": [{"name": "iafl", "contribution": [1.0]}]}, ["data.clients"]),
        ({"data": {"valid_fraction": 2}, "save_models": "best"}, ["data.valid_fraction"]),
        ({"local": {"optimizer": 3, "options": {"momentun": 1}}}, ["local.optimizer"]),
        # Union members are alternatives, not errors.
        ({"model": {"hidden": "wide"}}, ["model.hidden"]),
        ({"execution": {"clients": "fast", "evaluation": -1}}, ["execution.clients", "execution.evaluation"]),
        # Tables of one algorithm.
        (
            {"algorithms": [{"name": "fedavg", "weights": "x", "local": {"optimizer": "sgdd"}}]},
            ["algorithms.fedavg.weights", "algorithms.fedavg.local.optimizer"],
        ),
        (
            {"algorithms": [{"name": "fedavg", "local": {"steps": 0}}, {"name": "x"}]},
            ["algorithms.fedavg.local.steps", "algorithms.x"],
        ),
        (
            {"algorithms": [{"name": "iafl", "contribution": {"name": "size", "level": -1, "kappa": 2}}]},
            ["algorithms.iafl.contribution.level", "algorithms.iafl.contribution.kappa"],
        ),
    ],
)
def test_consequences_are_not_told(tables: dict[str, Any], expected: Sequence[str]) -> None:
    assert paths(changed(**tables)) == expected


def test_the_command_line_prints_a_line_for_each(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(
        'rounds = -1\n[data]\ndataset = "blobs"\npartition = "iid"\nclients = 4\n[model]\nname = "mlp"\n'
        '[local]\nlearning_rate = -1\nbatch_size = 4\nsteps = 1\n[[algorithms]]\nname = "fedawg"\n'
    )
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(path), "--out", str(tmp_path / "out")])
    written = capsys.readouterr()
    assert (stopped.value.code, written.out) == (2, "")
    first, second, third = written.err.splitlines()
    assert first == "fljax: rounds: expected a number of at least 0, got -1"
    assert second == "fljax: local.learning_rate: expected a number above 0, got -1"
    assert third.startswith("fljax: algorithms.fedawg: expected one of the algorithms fedavg, ")
    assert not (tmp_path / "out").exists()


def test_errors_can_be_pickled() -> None:
    found = pickle.loads(pickle.dumps(ConfigError("a: expected b, got c", "d: expected e, got f")))
    assert found.errors == ("a: expected b, got c", "d: expected e, got f")
    assert str(found) == "a: expected b, got c\nd: expected e, got f"
