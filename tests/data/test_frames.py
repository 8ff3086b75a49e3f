"""from_frame: a federation from a table."""

from __future__ import annotations

import numpy as np
import pandas

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
    assert (made.names.classes, made.names.clients) == (("no", "yes"), ("h0", "h1", "h2"))
    assert made.clients.train.size.tolist() == [3, 3, 3]
    np.testing.assert_allclose(made.examples.x, frame[["age", "income", "member"]].astype(float), rtol=1e-6)
    first = data.row_numbers(made)[1]
    assert set(frame["hospital"].iloc[first]) == {"h1"}


def test_categories_keep_their_order():
    frame = table(grade=pandas.Categorical(["low", "high", "mid"] * 4, ["low", "mid", "high", "none"], ordered=True))
    made = data.from_frame(frame, label="grade", client="hospital", features=["age"])
    assert (made.names.classes, made.examples.y[:3].tolist()) == (("low", "mid", "high"), [0, 2, 1])


def test_nullable_numbers_and_text():
    frame = table(score=pandas.array([1, 5] * 6, dtype="Int64"), city=pandas.array(["a", "b"] * 6, dtype="string"))
    made = data.from_frame(frame, label="score", client="city", features=["age", "income"])
    assert (
        made.names
        == data.from_frame(frame.astype({"score": int}), label="score", client="city", features=["age"]).names
    )
    as_feature = data.from_frame(frame, label="ill", client="city", features=["score", "member"])
    assert as_feature.examples.x[:2, 0].tolist() == [1, 5]


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
