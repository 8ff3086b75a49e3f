"""What a coalition is worth: metrics of runs, their sign, and functions of one's own."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from fljax import algorithms
from fljax.core.sameness import code_of
from fljax.engine import Plan
from fljax.games.values import (
    Measured,
    algorithm_of,
    check_value,
    measures_of,
    metrics_of,
    name_of_value,
)
from fljax.protocol import Labelled
from fljax.results import Reference
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

RUNS, SEEDS, CLIENTS = 3, 2, 4
LOSS, ACCURACY = (np.random.default_rng(seed).uniform(size=(RUNS, SEEDS, CLIENTS)).astype("f4") for seed in (0, 1))
PLAN = Plan(algorithms.fedavg, {"task": logistic_regression(), "local": Local(0.1, 2, 1), "clients_per_round": 2})


def own(algorithm: Any, state: Any, scores: Any) -> Any:
    """The accuracy of client 0, as a count."""
    return jnp.round(10 * scores["test_accuracy"].values[0]).astype(jnp.int32)


def vector(algorithm: Any, state: Any, scores: Any) -> Any:
    """More than one number."""
    return scores["test_accuracy"].values


def measured(**changes: Any) -> xr.Dataset:
    variables = {
        "test_loss": (("run", "seed", "client"), LOSS),
        "test_accuracy": (("run", "seed", "client"), ACCURACY),
        "diverged": (("run", "seed"), np.zeros((RUNS, SEEDS), bool)),
    }
    return xr.Dataset(variables | changes, {"seed": [5, 7]})


def reference(clients: int = CLIENTS) -> Reference:
    alone = np.full((SEEDS, clients), 0.5, np.float32)
    alone[1] = 0.25
    return Reference(alone, alone, alone)


def test_a_metric_of_each_run() -> None:
    found = measures_of(measured(), "average_accuracy", None)
    np.testing.assert_allclose(found.values, ACCURACY.mean(axis=-1).T, rtol=1e-6)
    np.testing.assert_array_equal(found.scores, np.swapaxes(ACCURACY, 0, 1))
    assert (found.metric, found.payoff, found.values.dtype) == ("average_accuracy", "test_accuracy", np.float64)


def test_of_losses_the_negative_is_the_value() -> None:
    found = measures_of(measured(), "average_loss", None)
    np.testing.assert_allclose(found.values, -LOSS.mean(axis=-1).T, rtol=1e-6)
    np.testing.assert_array_equal(found.scores, -np.swapaxes(LOSS, 0, 1))
    assert (found.metric, found.payoff) == ("-average_loss", "-test_loss")


def test_metrics_that_compare_with_standalone_models() -> None:
    found = measures_of(measured(), "incentivised_participation_rate", reference())
    required = np.array([0.5, 0.25])[None, :, None]
    expected = (required > LOSS).mean(axis=-1).T
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)


def test_a_diverged_run_has_no_value() -> None:
    gone = np.zeros((RUNS, SEEDS), bool)
    gone[2, 1] = True
    found = measures_of(measured(diverged=(("run", "seed"), gone)), "average_accuracy", None)
    np.testing.assert_array_equal(np.isnan(found.values), gone.T)
    assert np.isnan(found.scores[1, 2]).all()


@pytest.mark.unchecked
def test_a_function_of_ones_own() -> None:
    scores = {"test_accuracy": Labelled(jnp.asarray([0.52, 0.1]), ("client",))}
    kept = Measured(own)(None, None, scores)  # type: ignore[arg-type]
    (name,) = set(kept) - set(scores)
    assert kept[name].values.dtype == jnp.float32
    assert float(kept[name].values) == 5
    assert hash(Measured(own)) == hash(Measured(own))
    numbers = np.arange(RUNS * SEEDS, dtype="f4").reshape(RUNS, SEEDS)
    found = measures_of(measured(**{name: (("run", "seed"), numbers)}), own, None)
    np.testing.assert_array_equal(found.values, numbers.T)
    assert found.metric == "tests.games.test_values.own"
    with pytest.raises(ValueError, match=r"one number for a run, got an array of float32 of shape \[2\]"):
        Measured(vector)(None, None, scores)  # type: ignore[arg-type]


def scaled(algorithm: Any, state: Any, scores: Any, *, scale: float) -> Any:
    """A value with a number."""
    return scale * scores["test_accuracy"].values.mean()


def test_functions_with_other_numbers_have_other_names() -> None:
    names = {name_of_value(functools.partial(scaled, scale=scale)) for scale in (0.5, 1.0, 1.0)}
    assert len(names) == 2
    assert all(name.startswith("tests.games.test_values.scaled") for name in names)


def made(text: str) -> Any:
    """A function of this text, as of a module that was edited."""
    names: dict[str, Any] = {"jnp": jnp}
    exec(text, names)
    return names["f"]


MEAN = "def f(algorithm, state, scores):\n    return jnp.mean(scores['test_loss'].values)\n"


@pytest.mark.parametrize(
    "text",
    [
        MEAN.replace("mean", "max"),
        MEAN.replace("test_loss", "test_accuracy"),
        MEAN.replace("return ", "return -"),
        "def f(algorithm, state, scores):\n    return (lambda loss: jnp.max(loss))(scores['test_loss'].values)\n",
    ],
)
def test_functions_that_compute_something_else_have_other_codes(text: str) -> None:
    assert code_of(made(text)) != code_of(made(MEAN))
    assert code_of(functools.partial(made(text))) == code_of(jax.jit(made(text))) == code_of(made(text))


def test_what_changes_no_code() -> None:
    head, body = MEAN.splitlines()
    first = "\n".join([head, "    'Mean.'", body])
    edited = "\n".join(["", "", head, "    'The mean.'", "    # why", body]).replace("state", "_")
    assert code_of(made(edited)) == code_of(made(first))
    assert code_of("average_loss") == ""
    assert code_of(Measured(own)) != code_of(Measured(vector))  # of objects, what they hold
    several = "def f(algorithm, state, scores):\n    return 'a' in {'a', 'b', 'c', 'd'}\n"
    assert code_of(made(several)) == code_of(made(several.replace("'a', 'b'", "'b', 'a'")))


@pytest.mark.in_turn
def test_the_metrics_of_an_algorithm() -> None:
    """Those that a run has; ``simulate`` would have no others."""
    algorithm, federation = algorithm_of(PLAN), tiny_federation()
    plain = metrics_of(algorithm, federation, None)
    assert {"average_accuracy", "global_average_accuracy", "unseen_average_loss", "average_valid_loss"} <= set(plain)
    assert "incentivised_participation_rate" not in plain
    assert "server_test_accuracy" not in plain
    known = metrics_of(algorithm, federation, reference(5))
    assert set(known) - set(plain) >= {"incentivised_participation_rate", "preferred_model_accuracy"}
    assert "unseen_average_loss" not in metrics_of(algorithm, federation._replace(unseen=None), None)
    scoreless = algorithm._replace(task=algorithm.task._replace(score=None))
    assert "average_accuracy" not in metrics_of(scoreless, federation, None)


@pytest.mark.unchecked
def test_unknown_values() -> None:
    about = (algorithm_of(PLAN), tiny_federation(), None)
    with pytest.raises(ValueError, match=r"expected one of the values .*got 'average_acuracy' \(did you mean"):
        check_value("average_acuracy", *about)
    with pytest.raises(ValueError, match="compare with standalone models need reference="):
        check_value("ipr_loss", *about)
    plain = tiny_federation()
    nothing = plain.clients.valid._replace(size=0 * plain.clients.valid.size)
    bare = plain._replace(unseen=None, held={}, clients=plain.clients._replace(valid=nothing))
    for value, need in {
        "average_valid_loss": "validation rows of clients",
        "unseen_average_loss": "unseen clients",
        "server_test_accuracy": "a model of the server",
    }.items():
        with pytest.raises(ValueError, match=f"got '{value}'.*; it needs {need}"):
            check_value(value, about[0], bare, None)
    with pytest.raises(ValueError, match="the name of a metric or a function, got 3"):
        check_value(3, *about)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="compiles a new program in every call"):
        check_value(lambda algorithm, state, scores: 0.0, *about)
    check_value(own, *about)
