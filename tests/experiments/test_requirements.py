"""What clients require: where it comes from, and that it is one for all of a comparison."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fljax
from fljax import data, models
from fljax.experiments.inputs.setup import (
    Clients,
    Given,
    Requirement,
    clients_of,
    describe_requirement,
    needs_validation,
    requirement_of,
    with_requirement,
)
from fljax.protocol import Names
from fljax.results import Reference
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_compilation")

F = np.float32
ALONE: Any = Reference(
    np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], F),
    np.array([[1.1, np.nan, 1.3], [1.4, 1.5, 1.6]], F),
    None,
    np.array([[0.7, 0.8], [0.9, 1.0]], F),
    np.array([[2.7, 2.8], [2.9, np.nan]], F),
    None,
    valid_loss=np.array([[np.nan, 3.2, 3.3], [3.4, 3.5, 3.6]], F),
    unseen_valid_loss=np.array([[4.7, 4.8], [4.9, 5.0]], F),
)
# A seed's clients have names of their own: north is unseen in the second seed.
NAMES = (Names(None, ("north", "west", 7), ("east", "south")), Names(None, ("south", "west", 7), ("east", "north")))
CLIENTS = Clients(np.ones((2, 3), bool), NAMES)


def resolved(given: Any = None, thresholds: Any = (), clients: Clients = CLIENTS, **how: Any) -> Reference:
    named = [Given(by, value) for by, value in dict(thresholds).items()]
    return with_requirement(ALONE, requirement_of(given), named, clients, **how)


def same(found: Any, seen: Any, unseen: Any) -> None:
    assert found.required.dtype == ALONE.threshold.dtype
    np.testing.assert_allclose(found.required, np.broadcast_to(seen, (2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found.unseen_required, np.broadcast_to(unseen, (2, 2)), rtol=1e-6)


@pytest.mark.parametrize("given", [None, Requirement()])
def test_without_more_it_is_the_training_loss_alone(given):
    found = resolved(given)
    np.testing.assert_array_equal(found.required, ALONE.threshold)
    np.testing.assert_array_equal(found.unseen_required, ALONE.unseen_threshold)


def test_rows_of_standalone_losses():
    """A client without rows of the kind has the loss on its training rows."""
    test = Requirement(rows="test", factor=2.0)
    same(resolved(test), [[2.2, 0.4, 2.6], [2.8, 3.0, 3.2]], [[5.4, 5.6], [5.8, 2.0]])
    same(resolved(Requirement(rows="valid")), [[0.1, 3.2, 3.3], [3.4, 3.5, 3.6]], ALONE.unseen_valid_loss)


@pytest.mark.parametrize("given", [0.5, np.float64(0.5), Requirement(value=0.25, factor=2)])
def test_a_number_is_for_everybody(given):
    same(resolved(given), 0.5, 0.5)


def test_numbers_by_client_are_of_seen_clients():
    same(resolved([1, 2, 3]), [1, 2, 3], ALONE.unseen_threshold)
    same(resolved(Requirement(value=np.array([1.0, 2.0, 3.0]), factor=0.5)), [0.5, 1, 1.5], ALONE.unseen_threshold)
    same(resolved([math.inf, -math.inf, 0.0]), [math.inf, -math.inf, 0.0], ALONE.unseen_threshold)


LOSSES = {"north": 1.0, "west": 2.0, "7": 3.0, "south": 4.0}


def test_losses_by_name_belong_to_clients_of_each_seed():
    """The factor is that of the given losses; an unseen client that is not named has its standalone training loss."""
    same(resolved(LOSSES), [[1, 2, 3], [4, 2, 3]], [[0.7, 4.0], [0.9, 1.0]])
    found = resolved(Requirement(value={**LOSSES, 7: 3.0}, factor=10))
    same(found, [[10, 20, 30], [40, 20, 30]], [[0.7, 40], [0.9, 10]])


def test_a_file_is_as_losses_by_name(tmp_path):
    path = tmp_path / "losses.csv"
    path.write_text("client,loss,note\n north ,1,a\nwest,2.0,b\n7,3e0,c\nsouth,4,d\n")
    found: Any = requirement_of(Requirement(file=path))
    assert found.value == LOSSES
    assert found.file is None


def test_clients_without_names_are_named_by_number():
    nameless = CLIENTS._replace(names=(Names(), Names()))
    same(resolved({0: 1.0, 1: 2.0, "2": 3.0}, clients=nameless), [1, 2, 3], ALONE.unseen_threshold)


def test_a_function_gets_the_losses_that_it_has_parameters_for():
    def least(train, test):
        return np.fmin(train, test - 1)

    same(resolved(least), ALONE.threshold, [[0.7, 0.8], [0.9, 1.0]])
    by_validation = Requirement(function=lambda valid: np.nan_to_num(valid, nan=9.0), factor=2)
    same(resolved(by_validation), [[18, 6.4, 6.6], [6.8, 7, 7.2]], 2 * ALONE.unseen_valid_loss)
    same(resolved(lambda: 0.3), 0.3, 0.3)
    without = with_requirement(ALONE._replace(valid_loss=None), requirement_of(lambda **losses: losses["test"] * 0), [],
                               CLIENTS._replace(trains=np.isfinite(ALONE.test_loss)))  # fmt: skip
    assert without.required is not None
    np.testing.assert_array_equal(np.isnan(without.required), np.isnan(ALONE.test_loss))


def test_a_function_cannot_change_the_reference():
    def careless(train):
        train *= 0
        return train + 1

    same(resolved(careless), 1, 1)
    assert ALONE.threshold[0, 0] == F(0.1)


def test_clients_without_training_rows_may_have_no_requirement():
    some = CLIENTS._replace(trains=np.array([[True, False, True]] * 2))
    same(resolved([1, math.nan, 3], clients=some), [1, math.nan, 3], ALONE.unseen_threshold)
    same(resolved({"north": 1, "7": 3, "south": 4}, clients=some), [[1, np.nan, 3], [4, np.nan, 3]],
         [[0.7, 4], [0.9, 1.0]])  # fmt: skip
    # As standalone losses are today.
    nan = with_requirement(ALONE._replace(threshold=ALONE.test_loss), None, [], CLIENTS)
    np.testing.assert_array_equal(nan.required, ALONE.test_loss)


def test_a_threshold_of_one_algorithm_is_that_of_all():
    same(resolved(thresholds={"incfl": 0.5}), 0.5, 0.5)
    same(resolved(thresholds={"incfl": [1.0, 2.0, 3.0]}), [1, 2, 3], ALONE.unseen_threshold)
    by_seed = np.arange(6, dtype=F).reshape(2, 3)
    same(resolved(thresholds={"plan": by_seed}), by_seed, ALONE.unseen_threshold)
    # Equal ones are allowed; one number also says what unseen clients require.
    same(resolved(thresholds={"incfl": [0.5] * 3, "appeal_based around fedavg": 0.5}), 0.5, 0.5)
    same(resolved(0.5, thresholds={"incfl": np.full(3, 0.5)}), 0.5, 0.5)
    same(resolved(thresholds={"other": "a name", "incfl": 0.5}), 0.5, 0.5)


def test_earlier_requirements_of_a_reference_are_replaced():
    other = ALONE._replace(required=ALONE.threshold + 1, unseen_required=ALONE.unseen_threshold)
    same(with_requirement(other, requirement_of(0.5), [], CLIENTS), 0.5, 0.5)


LYING = r"; misreporting\(report='threshold'\) lets clients report another one$"


@pytest.mark.parametrize(
    ("given", "thresholds", "sentence"),
    [
        (
            None,
            {"incfl": 0.5, "appeal_based around fedavg": 0.6},
            r"^expected one requirement for all algorithms of a comparison, got the threshold 0\.5 of incfl and the "
            rf"threshold 0\.6 of appeal_based around fedavg{LYING}",
        ),
        (0.7, {"incfl": 0.5}, rf"got the threshold 0\.5 of incfl beside another requirement{LYING}"),
        (Requirement(rows="test"), {"incfl": 0.5}, r"got the threshold 0\.5 of incfl beside another requirement"),
        ([1.0, 2.0], {}, r"^expected requirement to be one number or one for each of 3 clients, got 2$"),
        (
            [1.0, math.nan, 1.0],
            {},
            r"^expected a required loss of every client with training rows, got NaN for client west$",
        ),
        (lambda train: train * math.nan, {}, r"training rows, got NaN for client north$"),
        (None, {"incfl": [1.0, 2.0, math.nan]}, r"training rows, got NaN for client 7$"),
        (
            {"north": 1.0, "west": 2.0, "south": 4.0},
            {},
            r"^expected a required loss of every client with training rows, got none of 7$",
        ),
        ({**LOSSES, 7: 9.0}, {}, r"^expected one required loss of each client, got two of 7$"),
        (
            {**LOSSES, "norht": 1.0},
            {},
            r"^expected a requirement of the clients north, west, 7, east, south, got one of 'norht' "
            r"\(did you mean 'north'\?\)$",
        ),
        (
            lambda train: train[0],
            {},
            r"^expected the requirement's function <lambda> to return one loss for each of its arguments' \(2, 3\) "
            r"seeds and clients, got an array of float32 of shape \[3\]$",
        ),
        (lambda train: "low", {}, r"seeds and clients, got a str, 'low'$"),
    ],
)
def test_what_does_not_fit_is_refused(given, thresholds, sentence):
    refuses(lambda: resolved(given, thresholds), sentence)


def test_a_trial_calls_no_function_and_compares_what_is_known():
    def never(train):
        raise AssertionError

    same(resolved(never, trial=True), ALONE.threshold, ALONE.unseen_threshold)
    with pytest.raises(ValueError, match=r"got the threshold 0\.5 of incfl beside another requirement"):
        resolved(never, {"incfl": 0.5}, trial=True)
    resolved(never, {"incfl": ALONE.threshold[0]}, trial=True)  # is compared once the losses are known
    refuses(lambda: resolved([1.0, 2.0], trial=True), "one for each of 3 clients, got 2")


def test_an_error_of_the_function_is_told():
    with pytest.raises(fljax.AlgorithmError, match=r"^the requirement's function <lambda> raised ZeroDivisionError"):
        resolved(lambda train: 1 / 0)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "train",
            r"^expected requirement to be a number, numbers by client, losses by client's name, a function or a ",
        ),
        (math.nan, r"^expected requirement to be a number, .*, got nan$"),
        ([[1.0]], r"^expected requirement to be a number, .*, got \[\[1\.0\]\]$"),
        ({}, r"^expected requirement to have a number for each client, got \{\}$"),
        (
            pd.Series([1.0, 2.0], ["b", "a"]),
            r"^expected requirement to be without labels, .*, got a Series; a dictionary",
        ),
        (
            xr.DataArray([1.0], {"client": ["a"]}, ("client",)),
            r"^expected requirement to be without labels, .*, got a DataArray; a dictionary has",
        ),
        (xr.Dataset({"loss": ("client", [1.0])}), r"^expected requirement to be without labels, .*, got a Dataset;"),
        ({"a": "low"}, r"^expected requirement to have a number for each client, got 'low'$"),
        (Requirement(rows="all"), r"^expected requirement\.rows to be 'train', 'valid' or 'test', got 'all'$"),  # type: ignore[arg-type]
        (Requirement(rows="test", value=1.0), r"to have one of rows, value, file and function, got rows and value$"),
        (Requirement(value=1.0, file="x.csv"), r"to have one of .*, got value and file$"),
        (Requirement(factor=0), r"^expected requirement\.factor to be one finite number above 0, got 0$"),
        (
            lambda train, size: train,
            r"^expected the requirement's function <lambda> to have parameters among train, valid, test, got size$",
        ),
        (dict.fromkeys, r"^expected the requirement's function|^expected requirement\.function to be a function of"),
    ],
)
def test_what_is_no_requirement_is_refused(given, sentence):
    refuses(lambda: requirement_of(given), sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"expected a file that can be read, got"),
        ("client,rho\na,1\n", r"expected .*loss"),
        ("client,loss\na,1\na,2\n", r"expected every client once, got 'a' twice$"),
        ("client,loss\na,low\n", r"expected a number as the loss of a, got 'low'$"),
        ("client,loss\na,\n", r"expected a number as the loss of a, got an empty cell$"),
        ("client,loss\n,1\n", r"expected a client in every row, got an empty cell$"),
    ],
)
def test_a_file_that_says_no_losses_is_refused(tmp_path: pathlib.Path, text, sentence):
    path = tmp_path / "losses.csv"
    if text is not None:
        path.write_text(text)
    refuses(lambda: requirement_of(Requirement(file=path)), rf"^requirement\.file '.*losses\.csv': {sentence}")


def test_which_standalone_losses_are_needed():
    blobs = data.load("blobs", samples=60)
    plain = data.federate(blobs, "iid", clients=3)
    judged = data.federate(blobs, "iid", clients=3, valid_fraction=0.2)
    by_valid, by_train = Requirement(function=lambda valid: valid), Requirement(function=lambda train: train)
    assert needs_validation(Requirement(rows="valid"), plain)  # so that it is refused
    assert needs_validation(by_valid, judged)
    assert not any(needs_validation(each, judged) for each in (None, Requirement(), by_train))
    assert not needs_validation(by_valid, plain)


def test_who_has_training_rows_by_id():
    federation = data.federate(data.load("blobs", samples=60), "iid", clients=3)
    clients = federation.clients._replace(
        id=np.array([2, 0, 1]), train=federation.clients.train._replace(size=np.array([0, 4, 5]))
    )
    found = clients_of(federation._replace(clients=clients), [Names()], 2)
    np.testing.assert_array_equal(found.trains, [[True, True, False]] * 2)
    assert len(found.names) == 2


def test_a_requirement_as_settings():
    assert describe_requirement(None) is None
    assert describe_requirement(Requirement(rows="test", factor=2)) == {"rows": "test", "factor": 2.0}
    assert describe_requirement(Requirement(value=[1.0, 2.0])) == {"value": [1.0, 2.0]}
    assert describe_requirement(Requirement(value=LOSSES)) == {"value": "of 4 clients by name"}
    assert describe_requirement(Requirement(function=clients_of)) == {"function": "clients_of"}


@pytest.mark.thorough
def test_a_comparison_by_name_and_beside_a_plan():
    """Clients of a seed are known by name, since each seed has other unseen ones; a Plan's threshold counts, too."""
    rng = np.random.default_rng(0)
    losses = {name: 1.0 + place for place, name in enumerate(("north", "east", "south", "west"))}
    rows = {name: (rng.normal(size=(12, 3)).astype(F), rng.integers(0, 2, 12)) for name in losses}
    both = [data.from_clients(rows, unseen=[name]) for name in ("west", "north")]
    task = models.logistic_regression((3,), 2)
    how: dict[str, Any] = {"rounds": 1, "seeds": 2, "progress": False}
    local = fljax.Local(0.1, batch_size=4, steps=2)
    found = fljax.compare(["incfl", "fedavg"], both, task, local, requirement=losses, **how)
    names: list[Any] = [federation.names for federation in both]
    for seed, own in enumerate(names):
        required = found.metrics.isel(seed=seed).sel(algorithm="fedavg")
        assert required["required_loss"].values.tolist() == [losses[name] for name in own.clients]
        assert required["unseen_required_loss"].values.tolist() == [losses[name] for name in own.unseen]
    assert 'value = "of 4 clients by name"' in found.origin["comparison.toml"]
    arguments = {"task": task, "local": local, "threshold": 0.5}
    plan = fljax.Plan(fljax.algorithms.incfl, arguments)
    found = fljax.compare({"a plan": plan, "fedavg": "fedavg"}, both, task, local, **how)
    assert (found.metrics["required_loss"] == 0.5).all()
    with pytest.raises(ValueError, match=r"got the threshold 0\.5 of a plan beside another requirement"):
        fljax.compare({"a plan": plan, "fedavg": "fedavg"}, both, task, local, requirement=1.0, **how)
