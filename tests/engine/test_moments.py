"""Moments of a federation: every function that reads rows sees them standardised, and predictions take raw rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

from fljax import data, engine, models
from fljax.algorithms import REGISTRY, fedavg
from fljax.engine import Execution
from fljax.engine.loop.trained import stored_features
from fljax.engine.rounds.states import by_id
from fljax.experiments.inputs.clustering import by_f1
from fljax.protocol import Features, Federation, Moments
from fljax.training import Local
from tests.compiled import compilations
from tests.laws.cases import bench, federation
from tests.toys.runs import assert_close_results

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

MEAN = np.array([[0.5, -1.0, 2.0, 0.25], [1.5, 0.0, -0.5, 3.0]], np.float32)
STD = np.array([[2.0, 0.5, 1.0, 4.0], [0.25, 1.0, 2.0, 0.5]], np.float32)


def both() -> tuple[Federation, Federation]:
    """Raw features with moments of each of two seeds, and stored features that are standardised; powers of 2."""
    parts = [federation(), federation()]
    standard = [np.asarray(each.examples.x) for each in parts]
    raw = [x * std + mean for x, mean, std in zip(standard, MEAN, STD, strict=True)]
    plain = [(x - mean) / std for x, mean, std in zip(raw, MEAN, STD, strict=True)]
    put = lambda each, x, **more: each._replace(examples=each.examples._replace(x=jnp.asarray(x)), **more)  # noqa: E731
    moved = [
        put(each, x, moments=Moments(jnp.asarray(mean), jnp.asarray(std)))
        for each, x, mean, std in zip(parts, raw, MEAN, STD, strict=True)
    ]
    return data.stack(moved), data.stack([put(each, x) for each, x in zip(parts, plain, strict=True)])


@pytest.mark.thorough
@pytest.mark.parametrize("name", REGISTRY)
def test_every_algorithm_sees_standardised_rows(name: str) -> None:
    raw, standard = both()
    run = lambda data: engine.simulate(bench(name).plan, data, rounds=3, seeds=(0, 3), evaluate_every=2)  # noqa: E731
    assert_close_results(run(raw), run(standard))


@pytest.mark.parametrize("where", [{"examples": "host"}, {"client_states": "host"}])
def test_rows_on_the_host(where: dict[str, Any]) -> None:
    raw, standard = both()
    options: dict[str, Any] = {"rounds": 2, "seeds": (0, 3)}
    found = engine.simulate(bench("ditto").plan, raw, execution=Execution(2, 1, 2, **where), **options)
    assert_close_results(found, engine.simulate(bench("ditto").plan, standard, execution=Execution(2, 1, 2), **options))


def test_standalone_models_and_clusters_see_them() -> None:
    raw, standard = both()
    task = bench("fedavg").algorithm().task
    local = Local(0.2, batch_size=2, steps=3)
    for execution in (None, Execution(examples="host")):
        found, expected = (
            engine.standalone(task, each, local, seeds=(0, 3), execution=execution) for each in (raw, standard)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)
    one, other = (
        by_f1(task, local, each, clusters=2, rounds=2, seeds=(0, 3), rows="validation") for each in (raw, standard)
    )
    np.testing.assert_array_equal(one.member, other.member)


FRAME = pandas.DataFrame(
    {
        "age": np.random.default_rng(1).normal(50, 20, 40),
        "time": 1_700_000_000 + np.arange(40),
        "ill": [0, 1] * 20,
        "site": np.repeat(["a", "b"], 20),
    }
)
LOCAL = Local(0.1, batch_size=4, steps=3)


def plan(task: Any) -> Any:
    return engine.Plan(fedavg, {"task": task, "local": LOCAL, "clients_per_round": 2})


def test_predictions_take_raw_rows() -> None:
    task = models.logistic_regression((2,), 2)
    made = data.dataset_from_frame(FRAME, label="ill", client="site", standardise=True)
    found = engine.simulate(plan(task), data.stack(data.federations(made, "natural", seeds=2)), rounds=2, seeds=2)
    own = [data.from_frame(FRAME, label="ill", client="site", standardise=True, seed=seed) for seed in (0, 1)]
    other = engine.simulate(plan(task), data.stack(own), rounds=2, seeds=2)
    raw = FRAME[["age", "time"]]
    rows = raw.to_numpy()
    for seed in (0, 1):
        params: Any = found.deployed(0, seed=seed)
        train = np.concatenate(data.row_numbers(own[seed], "train"))
        seen = (rows - rows[train].mean(axis=0)) / rows[train].std(axis=0)
        expected = task.logits(params, jnp.asarray(seen, jnp.float32))
        for result in (found, other):
            # A table's columns are taken by name.
            tables = (raw, FRAME[["time", "site", "age"]], {"time": rows[:, 1], "age": list(rows[:, 0])})
            for x in (rows, rows.tolist(), *tables):
                np.testing.assert_allclose(result.predict(0, x, seed=seed), expected, atol=1e-4)
            exact = jnp.asarray(rows, jnp.float32)  # as float32 has these numbers
            given = result.predict(0, exact, seed=seed)
            np.testing.assert_array_equal(given, result.predict(0, np.asarray(exact), seed=seed))
            features: Any = own[0].features if result is other else data.federate(made, "natural").features
            traced = jax.jit(lambda x, features=features: stored_features(x, features))(exact)
            np.testing.assert_allclose(traced, stored_features(exact, features), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"expected a table with the columns of the model \(age, time\), got none .*age"
    ):
        found.predict(0, FRAME[["time"]])
    for other in ("x", pandas.Timestamp("2020-01-01"), 1j):
        with pytest.raises(ValueError, match="expected numbers in the column 'age' of the model, got others"):
            found.predict(0, FRAME.assign(age=other))
    for odd in ({"age": [1.0, 2.0], "time": [1.0]}, {"age": 1.0, "time": 2.0}):
        with pytest.raises(
            ValueError, match="expected columns of one length, with one number for each row, got shapes"
        ):
            found.predict(0, odd)
    columns = {"age": exact[:, 0], "time": exact[:, 1]}
    traced = jax.jit(lambda x, features=features: stored_features(x, features))(columns)
    np.testing.assert_allclose(traced, stored_features(columns, features), atol=1e-5)
    with pytest.raises(ValueError, match=r"expected x to be a batch of raw examples \[b, 2\], got shape \[40, 1\]"):
        found.predict(0, rows[:, :1])


def test_another_seed_compiles_nothing() -> None:
    task = models.logistic_regression((2,), 2)
    made = data.place(data.dataset_from_frame(FRAME, label="ill", client="site", standardise=True))
    given: Any = [data.federate(made, "natural", seed=seed) for seed in (0, 1)]
    assert not np.array_equal(given[0].moments.mean, given[1].moments.mean)
    assert given[0].examples.x is given[1].examples.x
    engine.simulate(plan(task), given[0], rounds=2, seeds=(0,))
    with compilations() as seen:
        engine.simulate(plan(task), given[1], rounds=2, seeds=(1,))
    assert seen == []


@pytest.mark.quick
def test_features_are_static_and_no_program_sees_them() -> None:
    made = data.from_frame(FRAME, label="ill", client="site")
    assert len(jax.tree.leaves(made)) == len(jax.tree.leaves(made._replace(features=Features())))
    assert by_id(made).features == Features()


def test_whole_numbers_of_jax_and_constant_columns() -> None:
    frame = pandas.DataFrame({"a": np.arange(40) % 9, "c": 1_700_000_001, "ill": [0, 1] * 20, "site": ["a", "b"] * 20})
    task = models.logistic_regression((2,), 2)
    options: dict[str, Any] = {"label": "ill", "client": "site", "standardise": True}
    own = data.from_frame(frame, **options)
    read = data.federate(data.dataset_from_frame(frame, **options), "natural")
    one, other = (engine.simulate(plan(task), each, rounds=2) for each in (own, read))
    x = frame[["a", "c"]].to_numpy()
    np.testing.assert_allclose(one.predict(0, x), other.predict(0, x), atol=1e-6)
    for form in (jnp.asarray(x, jnp.int32), jnp.asarray(x, jnp.float32)):
        np.testing.assert_allclose(one.predict(0, form)[:, 0], one.predict(0, np.asarray(form))[:, 0], atol=1e-6)
    np.testing.assert_array_equal(one.predict(0, jnp.asarray(x, jnp.int32)), one.predict(0, x))
