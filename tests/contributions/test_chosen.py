"""What a config says about contributions: what is accepted, what is refused, and what reaches the algorithms."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fljax import config
from fljax.config import ConfigError
from fljax.engine import groups
from fljax.experiments import run as experiment
from fljax.experiments.inputs.preparation import build_plan
from fljax.experiments.inputs.setup import resolve_setup
from fljax.experiments.saved_models import load
from fljax.results import Reference
from fljax.results.events import Event
from tests.toys.configs import build_federation

BASE: dict[str, Any] = {
    "seeds": 2,
    "rounds": 4,
    "evaluate_every": 2,
    "data": {
        "dataset": "blobs",
        "partition": "quantity",
        "clients": 4,
        "partition_options": {"beta": 2.0, "minimum": 4},
    },
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 3},
}


OWN = "tests.toys.rewarding:inverse_loss"


def build(chosen=None, **changes):
    """A config with one algorithm, which takes contributions."""
    entry = {"name": "tests.toys.rewarding:rewarding", "label": "toy"}
    entry |= {} if chosen is None else {"contribution": chosen}
    return config.parse(BASE | {"algorithms": [entry]} | changes, name="tiny")


def toml(text):
    return tomllib.loads(f"value = {text}")["value"]


CONTRIBUTION = [
    '"size"',
    '{name = "tests.toys.rewarding:inverse_loss", power = 2.0, free_riders = [3, 1], level = 0.5}',
    '{name = "size", free_riders = [0], induced_rate = 0.5, kappa = 0.5, ceiling = 1}',
    "[1, 0.5, 2, 0]",
    '{file = "/data/p.csv", free_riders = [1]}',
]


@pytest.mark.parametrize("chosen", CONTRIBUTION)
def test_what_a_config_may_say(chosen):
    found = build(toml(chosen))
    assert found.algorithms[0].options["contribution"] == toml(chosen)
    assert config.parse(tomllib.loads(config.dumps(found))) == found


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (
            '"sise"',
            r"one of the contributions size, participation_rate, .*got 'sise' .did you mean 'size'",
        ),
        ('"no_such_module:x"', "there is no module 'no_such_module'"),
        ("3", "expected a name, a table with one, or a list of numbers, got 3"),
        ("[1, 2]", "expected a number for each of 4 clients, got 2"),
        (
            "[[1, 2, 3, 4], [1, 2, 3, 4]]",
            r"differ by round or seed stand in a file .*, as in .file = .contributions.csv",
        ),
        ('{name = "size", file = "a.csv"}', "expected one of name and file, got 'size' and '/.*a.csv'"),
        ('{file = "a.csv", power = 1}', "expected one of the keys name, file, free_riders, .* got 'power'"),
        ("{file = 3}", r"contribution.file: .*, got 3"),
        ("[1, 2, 3, -1]", "expected a list of finite numbers of at least 0"),
        ("[1, 2, 3, true]", "expected a list of finite numbers of at least 0"),
        (
            '{name = "sise"}',
            "expected one of the contributions size, participation_rate, standalone_accuracy, .*got 'sise'",
        ),
        (f'{{name = "{OWN}", powr = 1}}', "keys name, file, .*, power, got 'powr' .*'power'"),
        ('{name = "size", levle = 1}', r"expected one of the keys .* got 'levle' \(did you mean 'level'\?\)"),
        ('{name = "size", size = 1}', "got 'size'"),
        ('{name = "size", free_riders = [1, 1]}', r"expected different free_riders, got \[1, 1\]"),
        ('{name = "size", free_riders = [1, 4]}', ".free_riders: expected ids of clients from 0 to 3, got 4"),
        ('{name = "size", free_riders = 1}', ".free_riders: expected a list, got 1"),
        ('{name = "size", free_riders = [-1]}', "expected a number of at least 0, got -1"),
        ('{name = "size", level = 1}', "expected free_riders, .* got none"),
        ('{name = "size", free_riders = [1], level = -1}', ".level: expected a number of at least 0, got -1"),
        ('{name = "size", free_riders = [1], level = 1, induced_rate = 0.1}', "at most one of level and induced_rate"),
        ('{name = "size", free_riders = [1], induced_rate = 2}', ".induced_rate: expected a number of at most 1"),
        ('{name = "size", free_riders = [1], kappa = 0.5}', "expected induced_rate with kappa and ceiling"),
        ("{free_riders = [1], induced_rate = 0.1, kappa = 1}", ".kappa: expected a number below 1"),
        ('{name="size", free_riders = [1], induced_rate = 0.1, ceiling = "top"}', ".ceiling: expected 'max' or a"),
        ('{name="size", free_riders = [0, 1, 2, 3], induced_rate = 0.1}', "expected a client that is none, got all 4"),
    ],
)
def test_what_a_config_may_not_say(chosen, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        build(toml(chosen))
    assert str(caught.value).startswith("algorithms.toy.contribution")
    assert "\n" not in str(caught.value)


def test_the_path_of_a_file_is_relative_to_the_config(tmp_path):
    text = config.dumps(build({"file": "p.csv"})).replace(str(Path("p.csv").absolute()), "p.csv")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "base.toml").write_text(text)
    (tmp_path / "tiny.toml").write_text('base = "inner/base.toml"\n')
    found = config.load(tmp_path / "tiny.toml")
    assert found.algorithms[0].options["contribution"] == {"file": str(tmp_path / "inner" / "p.csv")}


def test_only_algorithms_that_ask_for_contributions_take_them():
    with pytest.raises(ConfigError, match=r"algorithms.fedavg: expected one of the hyper-parameters .* 'contribution'"):
        build(algorithms=[{"name": "fedavg", "contribution": "size"}])


def test_overrides_reach_into_the_table(tmp_path):
    (tmp_path / "tiny.toml").write_text(config.dumps(build("size")))
    path = tmp_path / "tiny.toml"
    found = config.load(path, ["algorithms.toy.contribution=[1, 2, 3, 4]"])
    assert found.algorithms[0].options["contribution"] == [1, 2, 3, 4]
    path.write_text(config.dumps(build({"name": "size", "free_riders": [1]})))
    found = config.load(path, ["algorithms.toy.contribution.level=2.0"])
    assert found.algorithms[0].options["contribution"] == {"name": "size", "free_riders": [1], "level": 2.0}


@pytest.fixture(scope="module")
def outcome():
    """One run with contributions of every kind."""
    chosen = {
        "left_out": None,
        "size": "size",
        "rate": "participation_rate",
        "own": {"name": OWN, "power": 2.0, "free_riders": [1]},
        "numbers": [1, 0.5, 2, 0],
    }
    entries = []
    for label, each in chosen.items():
        entry = {"name": "tests.toys.rewarding:rewarding", "label": label}
        entries.append(entry if each is None else entry | {"contribution": each})
    found = build(algorithms=[*entries, {"name": "fedavg"}])
    return experiment.run(found), build_federation(found)[0]


@pytest.mark.thorough
def test_algorithms_are_given_what_was_chosen(outcome):
    run, federation = outcome
    alone = run.metrics.isel(evaluated_round=0)
    clients = federation.clients
    size = np.stack([np.bincount(*each) for each in zip(clients.id, clients.train.size, strict=True)])
    assert (size[0] != size[1]).any()
    own = alone["standalone_test_loss"].values ** -2.0
    own[:, 1] = 0
    expected = {
        "left_out": alone["standalone_test_accuracy"].values,
        "size": size,
        "rate": np.tile([0.625, 0.75, 0.875, 1.0], (2, 1)),
        "own": own,
        "numbers": np.tile([1, 0.5, 2, 0], (2, 1)),
    }
    for label, values in expected.items():
        recorded = run.records["contribution"].sel(algorithm=label).transpose("seed", "round", "client")
        np.testing.assert_allclose(recorded, np.broadcast_to(values[:, None], recorded.shape), rtol=1e-5)
    assert np.isnan(run.records["contribution"].sel(algorithm="fedavg")).all()


@pytest.mark.thorough
def test_correlation_with_accuracy_is_among_the_metrics(outcome):
    run, _ = outcome
    found = run.metrics["contribution_correlation"].transpose("algorithm", "seed", "evaluated_round")
    assert np.isnan(found.sel(evaluated_round=0)).all()
    assert np.isnan(found.sel(algorithm="fedavg")).all()
    accuracy = run.metrics["test_accuracy"].sel(algorithm="size")
    contribution = run.records["contribution"].sel(algorithm="size")
    for seed in (0, 1):
        for done in (2, 4):
            pair = accuracy.sel(seed=seed, evaluated_round=done), contribution.sel(seed=seed, round=done - 1)
            expected = np.corrcoef(*pair)[0, 1] if np.ptp(pair[0].values) > 0 else np.nan
            got = found.sel(algorithm="size", seed=seed, evaluated_round=done)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.in_turn
def test_contributions_do_not_compile_anew():
    kinds = ["size", [1, 0.5, 2, 0], {"name": "participation_rate", "free_riders": [2]}, None]
    numbers = np.full((2, 4), 0.5, np.float32)
    plans = []
    for each in kinds:
        found = build(each)
        reference = Reference(numbers, numbers, numbers)
        setup = resolve_setup(found)
        plans.append(build_plan(setup, setup.algorithms[0], reference))
    assert groups(plans) == [[0, 1, 2, 3]]
    assert all(plan.by_seed["contribution"].shape == (2, 4) for plan in plans)


def test_a_measure_of_another_shape_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    (tmp_path / "wrong_measures.py").write_text("def short(size):\n    return size[..., 1:]\n")
    monkeypatch.syspath_prepend(tmp_path)
    events: list[Event] = []
    with pytest.raises(ValueError, match="'wrong_measures:short' to have one number for each of 4 clients"):
        experiment.run(build("wrong_measures:short"), on_event=events.append)
    assert {event.stage for event in events} == {"data"}


def test_a_file_that_is_not_there_is_told_before_anything_is_trained():
    events: list[Event] = []
    with pytest.raises(ValueError, match=r"expected a CSV file of contributions, got '/.*absent.csv' .No such file"):
        experiment.run(build({"file": "absent.csv"}), on_event=events.append)
    assert {event.stage for event in events} == {"data"}


@pytest.mark.thorough
def test_a_file_of_rounds_and_seeds_reaches_the_rewards(tmp_path):
    """IAFL reports what the file has for the seed and the round; its models are loaded without the file."""
    rows = [f"{seed},{round},{k},{1 + seed + 2 * round + k}" for seed in (0, 1) for round in (0, 2) for k in range(4)]
    path = tmp_path / "p.csv"
    path.write_text("\n".join(["seed,round,client,contribution", *rows]))
    chosen = build(algorithms=[{"name": "iafl", "contribution": {"file": str(path)}}], save_models="last")
    run = experiment.run(chosen, directory=tmp_path / "run")
    found = run.records["contribution"].sel(algorithm="iafl").transpose("seed", "round", "client")
    expected = [[[1 + seed + 2 * held + k for k in range(4)] for held in (0, 0, 2, 2)] for seed in (0, 1)]
    np.testing.assert_array_equal(found, expected)
    path.unlink()
    x = np.zeros((1, 4), np.float32)
    np.testing.assert_array_equal(load(tmp_path / "run", "iafl").predict(1, x), run.models["iafl"].predict(1, x))
