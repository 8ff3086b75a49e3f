"""Columns of words and missing numbers: what models see of them, whoever trains, and what predictions take."""

from __future__ import annotations

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fljax
from fljax import algorithms, data, models
from fljax.config import parse
from fljax.engine.loop.trained import stored_features
from fljax.experiments import run
from fljax.protocol import Features
from tests.toys.configs import BASE

pytestmark = pytest.mark.usefixtures("quick_compilation")

CITIES, NAN = ["Aix", "Bonn", "Cork"], float("nan")
cells = st.tuples(st.sampled_from([*CITIES, " Bonn ", None]), st.sampled_from([None, 0, 1, 2.5, True]))


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(cells, min_size=4, max_size=9))
def test_features_are_those_of_pandas(rows: list[Any]) -> None:
    """``get_dummies``, and the mean of the training rows in place of missing numbers."""
    frame = pandas.DataFrame(rows, columns=["city", "dose"]).assign(y=[0, 1] * 2 + [0] * (len(rows) - 4))
    frame["city"] = pandas.Series([CITIES[0], *(row[0] for row in rows[1:])], dtype=object)
    made: Any = data.federate(data.dataset_from_frame(frame, label="y", standardise=True), clients=2)
    city = frame["city"].str.strip()
    expected = pandas.get_dummies(city, dtype=float).assign(other=city.isna().astype(float))
    dose: Any = frame["dose"].astype(float)
    known = dose[np.concatenate(data.row_numbers(made))].dropna()
    mean, std = (known.mean(), known.std(ddof=0) or 1) if len(known) else (0, 1)
    expected["dose"] = (dose.fillna(mean) - mean) / std
    found = fljax.training.prepare(models.logistic_regression([1], 2), made.examples.x, made.moments)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    rare = stored_features(pandas.DataFrame({"city": ["Dax", None, "Aix"], "dose": [1, None, 2]}), made.features)
    np.testing.assert_array_equal(rare[:, -2], [1, 1, 0])


OPTIONS: dict[str, Any] = {"label": "ill", "client": "who", "part": "part", "standardise": True}
LOCAL = fljax.Local(0.1, 4, steps=2)


def frame(rows: int = 48) -> pandas.DataFrame:
    draw: Any = np.random.default_rng(0)
    made = pandas.DataFrame({"age": draw.normal(50, 10, rows), "job": draw.choice(["cook", "smith", None], rows)})
    made["smoker"] = pandas.Series(draw.choice([True, False, None], rows), dtype="boolean")
    made["age"] = made["age"].where(draw.random(rows) < 0.7)
    made["ill"] = np.where(made["job"] == "cook", "yes", "no")
    return made.assign(who=np.repeat([*"abcd"], rows // 4), part=["train", "train", "valid", "test"] * (rows // 4))


def federations(table: pandas.DataFrame) -> list[Any]:
    return [
        data.from_frame(table, **OPTIONS),
        data.federate(data.dataset_from_frame(table, **OPTIONS), "natural"),
    ]


def losses(federation: Any, member: Any) -> np.ndarray:
    task = models.mlp(federation.examples.x.shape[1:], 2, hidden=(3,))
    plan = fljax.Plan(algorithms.fedavg, {"task": task, "local": LOCAL, "clients_per_round": None})
    found = fljax.runs(plan, federation, fljax.Over(member=np.array([member])), rounds=2)
    return found["test_loss"].values.reshape(-1)[:3]


def test_a_coalition_is_a_federation_of_its_members_alone() -> None:
    """Whatever words and numbers the outsider has, and none; one member has no age."""
    table, outside = frame().astype({"job": pandas.CategoricalDtype(["cook", "smith"])}), frame()["who"] == "d"
    table.loc[table["who"] == "a", "age"] = NAN
    other = table.assign(age=table["age"].where(~outside, 1e6), job=table["job"].where(~outside))
    alone = [losses(each, [True] * 3) for each in federations(table.loc[~outside])]
    for rows in (table, other):
        for found, expected in zip(federations(rows), alone, strict=True):
            np.testing.assert_array_equal(losses(found, [True] * 3 + [False]), expected)
    assert np.isfinite(alone).all()


@pytest.mark.parametrize("place", [0, 1])
def test_predictions_take_words(place: int) -> None:
    """A table, an array of objects and encoded rows give the same; words of no training row are missing words."""
    table = frame()
    table.loc[table["part"] == "test", "job"] = "nurse"
    made, encoded = federations(table)[place], data.dataset_from_frame(table, **OPTIONS).x
    assert made.features.words == (None, ("cook", "smith"), None)
    task = models.mlp(made.examples.x.shape[1:], 2, hidden=(3,))
    result = fljax.simulate(algorithms.fedavg(task, LOCAL, clients_per_round=None), made, rounds=2)
    raw: Any = table[["age", "job", "smoker"]]
    expected, model = result.predict(0, raw), result.deployed(0)
    seen = fljax.training.prepare(task, jnp.asarray(made.examples.x), made.moments)
    np.testing.assert_allclose(task.logits(model, seen), expected, atol=1e-5)  # type: ignore[arg-type]
    for same in (raw.to_numpy(object), raw.to_numpy(object).tolist(), raw[["job", "smoker", "age"]], encoded):
        np.testing.assert_allclose(result.predict(0, same), expected, atol=1e-6)
    np.testing.assert_array_equal(result.predict(0, raw.assign(job="pope")), result.predict(0, raw.assign(job=None)))
    with pytest.raises(ValueError, match="expected rows of 3 words and numbers, got shape"):
        result.predict(0, raw[["age", "job"]].to_numpy(object))


def test_a_column_of_one_file_may_be_empty(tmp_path: pathlib.Path) -> None:
    for name, rows in {"a": "cook,,True\nsmith,,", "b": "?,1,False\n?,2.5,True"}.items():
        lines = (f"{row},{label}" for row, label in zip(rows.split("\n"), "01", strict=True))
        (tmp_path / f"{name}.csv").write_text("\n".join(["job,dose,smoker,y", *lines]))
    expected = [[1, 0, 0, NAN, 1], [0, 1, 0, NAN, NAN], [0, 0, 1, 1, 0], [0, 0, 1, 2.5, 1]]
    np.testing.assert_array_equal(data.load(f"{tmp_path}/", label="y").x, expected)


@pytest.mark.in_turn
def test_a_table_as_the_census_of_1994_has_it_runs_from_a_config(tmp_path: pathlib.Path) -> None:
    """Blanks before the cells, and "?" for missing ones; saved models take the file's own rows."""
    draw, lines = np.random.default_rng(0), ["age, workclass, native-country, sex, hours, income"]
    for age, hours in draw.integers(17, 99, (120, 2)).tolist():
        cells = [draw.choice(words) for words in (["Private", "State-gov", "?"], ["Cuba", "Peru"], ["Male", "Female"])]
        lines.append(", ".join([f"{age}", *cells, "?" if hours > 90 else f"{hours}", "<=50K" if age < 50 else ">50K"]))
    file = tmp_path / "adult.csv"
    file.write_text("\n".join(lines))
    options: dict[str, Any] = {"label": "income", "client": "native-country"}
    rows = pandas.read_csv(file, skipinitialspace=True)
    found, same = data.load(str(file), **options), data.dataset_from_frame(rows, **options, standardise=True)
    np.testing.assert_array_equal(found.x, same.x)
    words = (None, ("Private", "State-gov"), ("Female", "Male"), None)
    assert same.features == found.features == Features(("age", "workclass", "sex", "hours"), words=words)
    short = {"rounds": 2, "participation": {"clients_per_round": 2}, "algorithms": [{"name": "fedavg"}]}
    config = BASE | short | {"data": {"dataset": str(file), **options}, "save_models": "last"}
    made = run.run(parse(config, name="adult"), directory=tmp_path / "run")
    file.unlink()
    expected = made.models["fedavg"].predict(1, rows.replace("?", np.nan), seed=1)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(fljax.load(tmp_path / "run").predict("fedavg", 1, rows, seed=1), expected, rtol=1e-5)
