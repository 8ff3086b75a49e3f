"""from_frame: a federation from a table."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from fljax import data


def table(rows=12, **columns):
    draw = np.random.default_rng(0)
    frame = {
        "age": draw.integers(20, 80, rows),
        "income": draw.normal(5e4, 1e4, rows),
        "member": draw.random(rows) < 0.5,
        "hospital": [f"h{i % 3}" for i in range(rows)],
        "ill": ["yes" if i % 2 else "no" for i in range(rows)],
    }
    return pandas.DataFrame({**frame, **columns})


def test_each_value_of_the_column_is_a_client():
    frame = table()
    made = data.from_frame(frame, label="ill", client="hospital", train_fraction=0.75)
    assert made.names.classes == ("no", "yes")
    assert made.names.clients == ("h0", "h1", "h2")
    assert made.clients.train.size.tolist() == [3, 3, 3]
    np.testing.assert_allclose(made.examples.x, frame[["age", "income", "member"]].astype(float), rtol=1e-6)
    first = data.row_numbers(made)[1]
    assert set(frame["hospital"].iloc[first]) == {"h1"}


def test_any_table_with_columns():
    frame = table()
    columns = {name: frame[name].to_numpy() for name in frame}
    one = data.from_frame(columns, label="ill", client="hospital")
    other = data.from_frame(frame, label="ill", client="hospital")
    np.testing.assert_array_equal(one.examples.x, other.examples.x)
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(frame)
    third = data.from_frame(arrow, label="ill", client="hospital")
    np.testing.assert_array_equal(third.examples.x, other.examples.x)
    assert third.names == other.names


def test_categories_keep_their_order():
    frame = table(grade=pandas.Categorical(["low", "high", "mid"] * 4, ["low", "mid", "high", "none"], ordered=True))
    made = data.from_frame(frame, label="grade", client="hospital", features=["age"])
    assert made.names.classes == ("low", "mid", "high")
    assert made.examples.y[:3].tolist() == [0, 2, 1]


def test_nullable_numbers_and_text():
    frame = table(score=pandas.array([1, 5] * 6, dtype="Int64"), city=pandas.array(["a", "b"] * 6, dtype="string"))
    made = data.from_frame(frame, label="score", client="city", features=["age", "income"])
    assert (
        made.names
        == data.from_frame(frame.astype({"score": int}), label="score", client="city", features=["age"]).names
    )
    as_feature = data.from_frame(frame, label="ill", client="city", features=["score", "member"])
    assert as_feature.examples.x[:2, 0].tolist() == [1, 5]


def test_features_are_standardised_on_request():
    frame = table(still=3.0)
    made = data.from_frame(frame, label="ill", client="hospital", standardise=True)
    x = np.asarray(made.examples.x)[np.concatenate(data.row_numbers(made, "train"))]
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), [1, 1, 1, 0], atol=1e-4)
    raw = data.dataset_from_frame(frame, label="ill", client="hospital")
    assert (raw.mean, raw.std, raw.standardise) == (0, 1, False)


def test_test_rows_are_those_of_the_column_of_parts():
    frame = table(split=["train"] * 6 + ["test"] * 6)
    made = data.dataset_from_frame(frame, label="ill", client="hospital", part="split", features=["age"])
    federation = data.federate(made, "natural")
    assert federation.clients.test.size.tolist() == [2, 2, 2]
    assert set(np.concatenate(data.row_numbers(federation, "test")).tolist()) == set(range(6, 12))


def test_a_global_test_part_without_clients():
    frame = table(split=["test", "train"] * 6)
    made = data.from_frame(frame, label="ill", part="split", partition="iid", clients=2, features=["age"])
    test = np.asarray(made.examples.x)[np.asarray(made.held["test"].index)]
    np.testing.assert_allclose(test[:, 0], frame["age"][::2])


def test_pixels_become_images():
    draw = np.random.default_rng(0)
    frame = pandas.DataFrame(draw.integers(0, 256, (10, 16))).assign(digit=np.arange(10) % 2)
    made = data.from_frame(frame, label="digit", shape=[4, 4, 1], partition="iid", clients=2)
    assert (made.examples.x.shape, made.examples.x.dtype) == ((10, 4, 4, 1), np.uint8)


def test_several_targets_and_regression():
    made = data.from_frame(table(), label=["age", "income"], client="hospital", features=["member"])
    assert made.examples.y.shape == (12, 2)
    made = data.from_frame(table(), label="age", client="hospital", features=["member"], regression=True)
    assert made.examples.y.dtype == np.float32


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({}, {"label": "il"}, r"expected a column of the table \(age, .*\), got 'il' \(did you mean 'ill'\?\)"),
        ({}, {"client": "town"}, "expected a column of the table .* got 'town'"),
        ({}, {"client": None}, "expected client, the column of the clients, or partition and clients"),
        ({"city": ["a"] * 12}, {}, "expected numbers in the columns of features, got text in 'city', 'a' in row 0"),
        ({"born": pandas.Timestamp("2000-01-01")}, {}, "got dates in 'born'"),
        ({"age": [np.nan] * 2 + [1.0] * 10}, {}, r"column 'age', got none \(NaN\) in 2 of 12 rows, first in row 0"),
        ({"hospital": [None] + ["a"] * 11}, {}, "column 'hospital', got none"),
        ({"ill": ["a"] * 11 + [None]}, {}, "column 'ill', got none .* first in row 11"),
        ({"income": [np.inf] * 12}, {}, "expected finite features"),
        ({"income": [1e39] * 12}, {}, "expected finite features"),
        ({"split": ["train"] * 11 + ["tset"]}, {"part": "split"}, "'tset' .* in the column 'split'"),
        ({}, {"features": []}, "at least one row and one column of features"),
        ({}, {"shape": [2, 2]}, "expected a shape of 3 entries"),
    ],
)
def test_what_does_not_fit_is_named(columns, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        data.from_frame(table(**columns), **{"label": "ill", "client": "hospital", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.unchecked
def test_no_table_is_refused():
    with pytest.raises(ValueError, match="expected a table with columns"):
        data.from_frame("mine.csv", label="y", client="a")
    with pytest.raises(ValueError, match="expected columns of equal lengths"):
        data.from_frame({"a": [1, 2], "y": [1]}, label="y", client="a")
