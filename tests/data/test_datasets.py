"""Features are standardised after the split, in float64, by the training rows of the clients that train."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pandas
import pytest

from fljax import data
from fljax.data import datasets
from fljax.protocol import Features

RNG = np.random.default_rng(0)
FRAME = pandas.DataFrame(
    {
        "age": RNG.normal(50, 20, 60),
        "cells": RNG.normal(5000, 1000, 60),
        "same": 3.0,
        "ill": RNG.permutation([0, 1] * 30),
        "site": np.repeat(["a", "b", "c", "d"], 15),
    }
)
OPTIONS: dict[str, Any] = {"label": "ill", "client": "site"}
FEATURES = ["age", "cells", "same"]


def training_rows(federation: Any) -> np.ndarray:
    return np.concatenate(data.row_numbers(federation, "train"))


def test_moments_are_of_training_rows_of_clients_that_train():
    made = data.dataset_from_frame(FRAME, standardise=True, **OPTIONS)
    assert (made.mean, made.std, made.standardise) == (0.0, 1.0, True)
    for seed in range(3):
        found: Any = data.federate(made, "natural", seed=seed, unseen=1, train_fraction=0.6, valid_fraction=0.2)
        rows = FRAME[FEATURES].to_numpy()[training_rows(found)]
        np.testing.assert_allclose(found.moments.mean, rows.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(found.moments.std, [*rows.std(axis=0)[:2], 1], rtol=1e-6)
        assert np.array_equal(found.examples.x, FRAME[FEATURES].to_numpy(np.float32))  # as they were


@pytest.mark.in_turn
def test_stacked_federations_share_examples_and_have_moments_of_their_own():
    made = data.dataset_from_frame(FRAME, standardise=True, **OPTIONS)
    apart = data.federations(made, "natural", seeds=3, unseen=1)
    found: Any = data.stack(apart)
    assert found.examples.x is apart[0].examples.x
    assert found.moments.mean.shape == found.moments.std.shape == (3, 3)
    assert len(np.unique(found.moments.mean[:, 0])) == 3
    assert found.features == Features(("age", "cells", "same"))
    chosen: Any = data.choose(found, [2, 0])
    np.testing.assert_array_equal(chosen.moments.mean, found.moments.mean[np.array([2, 0])])
    mixed: Any = data.stack([apart[0], data.federate(made._replace(standardise=False), "natural", unseen=1)])
    np.testing.assert_array_equal(mixed.moments.mean[1], 0)
    np.testing.assert_array_equal(mixed.moments.std[1], 1)


def test_a_frame_is_standardised_once_and_says_how():
    found = data.from_frame(FRAME, standardise=True, seed=2, **OPTIONS)
    rows = np.asarray(found.examples.x)[training_rows(found)]
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(rows.std(axis=0), [1, 1, 0], atol=1e-6)
    assert found.moments is None
    assert isinstance(found.features, Features)
    mean, std = np.asarray(found.features.mean), np.asarray(found.features.std)
    again = (FRAME[FEATURES].to_numpy() - mean) / std
    assert found.features.shift is None
    np.testing.assert_allclose(found.examples.x, again, atol=1e-6)
    apart = data.stack([found, data.from_frame(FRAME, standardise=True, seed=3, **OPTIONS)])
    assert isinstance(apart.features, tuple)
    assert apart.features[0] == found.features
    plain = data.from_frame(FRAME, **OPTIONS)
    assert plain.features == Features(("age", "cells", "same"))
    assert plain.moments is None


@pytest.mark.parametrize("start", [1_700_000_000, 1_700_000_000_000, 20_000_000])
@pytest.mark.parametrize("form", ["frame", "csv", "npz"])
def test_differences_of_large_numbers_are_kept(tmp_path, start, form):
    time = start + np.arange(60)
    frame = pandas.DataFrame({"time": time, "age": FRAME["age"], "ill": FRAME["ill"], "site": FRAME["site"]})
    if form == "frame":
        made = data.dataset_from_frame(frame, standardise=True, **OPTIONS)
    elif form == "csv":
        frame.to_csv(tmp_path / "f.csv", index=False)
        made = data.load(str(tmp_path / "f.csv"), **OPTIONS)
    else:
        x = frame[["time", "age"]].to_numpy(np.float64)
        np.savez(tmp_path / "f.npz", x=x, y=frame["ill"], site=frame["site"].to_numpy(str))
        made = data.load(str(tmp_path / "f.npz"), client="site")
    found: Any = data.federate(made, "natural")
    assert isinstance(found.features, Features)
    assert found.features.shift is not None
    assert found.features.shift[1] == 0
    seen = (np.asarray(found.examples.x) - np.asarray(found.moments.mean)) / np.asarray(found.moments.std)
    rows = time[training_rows(found)]
    np.testing.assert_allclose(seen[:, 0], (time - rows.mean()) / rows.std(), atol=1e-5)


def test_numbers_that_float32_holds_are_not_shifted():
    x = RNG.normal(5000, 1000, (50, 2))
    assert datasets.centred(x) == (pytest.approx(x), None)
    assert datasets.centred(x.astype(np.float32))[1] is None
    assert datasets.centred(np.full((50, 1), 1.7e9 + 1))[1] == (1.7e9 + 1,)  # also in predictions
    assert datasets.centred(np.full((50, 1), 3))[1] is None
    for kind in (np.int32, np.uint32, np.int64):
        found, shift = datasets.centred((1_700_000_000 + np.arange(50, dtype=kind))[:, None])
        assert len(np.unique(found.astype(np.float32))) == 50
        assert shift is not None
    assert datasets.centred(np.arange(250, 256, dtype=np.uint8)[:, None])[1] is None
    assert datasets.centred(np.array([[1.7e9, np.nan]] * 2))[1] is None


def test_moments_read_some_rows_at_a_time(monkeypatch):
    x, rows = RNG.normal(3, 2, (500, 4)).astype(np.float32), RNG.permutation(500)[:333]
    whole = datasets.moments(x, rows)
    monkeypatch.setattr(datasets, "_AT_ONCE", 100)
    for found, expected in zip(datasets.moments(x, rows), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(whole[0], x[rows].astype(float).mean(axis=0))


def test_moments_need_a_training_row():
    made = data.dataset_from_frame(FRAME, standardise=True, **OPTIONS)

    def nobody(labels, *, clients, unseen, seed):
        return [[] for _ in range(clients)]

    with pytest.raises(ValueError, match="expected at least one training row of a client that trains to standardise"):
        data.federate(made, nobody, clients=2)


def test_labels_and_tokens_and_images_are_not_standardised(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(40).reshape(10, 4) % 7, y=np.arange(10) % 2)
    assert not data.load(str(tmp_path / "t.npz")).standardise
    np.savez(tmp_path / "i.npz", x=np.zeros((10, 4, 4, 1), np.float32), y=np.arange(10) % 2)
    assert not data.load(str(tmp_path / "i.npz")).standardise
    assert jax.tree.leaves(data.federate(data.load(str(tmp_path / "i.npz")), clients=2).moments) == []
