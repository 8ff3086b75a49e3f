"""Data sets of Hugging Face, through a stub of its package."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from fljax.data import load
from fljax.data.datasets import count_owners


class Split:
    """The part of ``datasets.Dataset`` that is used."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)
        self.features = {name: types.SimpleNamespace() for name in columns}

    def __getitem__(self, column):
        return self.columns[column]


@pytest.fixture
def hub(monkeypatch):
    """Data sets by name; the stub loads these, and no others."""
    found = {}

    def load_dataset(name, configuration=None):
        if name not in found:
            raise FileNotFoundError(f"Dataset {name} doesn't exist\non the hub")
        return found[name]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return found


def test_numbers_with_clients(hub):
    hub["me/table"] = {
        "train": Split(a=[1.0, 2, 3, 4], b=[0, 0, 1, 1], label=["x", "y", "x", "y"], who=["p", "p", "q", "q"]),
        "test": Split(a=[5.0, 6], b=[1, 0], label=["x", "x"], who=["q", "r"]),
    }
    made = load("hf:me/table", client="who")
    assert made.x.tolist() == [[1, 0], [2, 0], [3, 1], [4, 1], [5, 1], [6, 0]]
    assert (made.class_names, made.owner_names, made.train_size) == (("x", "y"), ("p", "q", "r"), 5)
    assert count_owners(made) == 2


def test_images_with_names_of_classes(hub):
    image = pytest.importorskip("PIL.Image")
    images = [image.fromarray(np.full((3, 3), i, np.uint8)) for i in range(4)]
    split = Split(image=images, label=[0, 1, 1, 0])
    split.features["label"] = types.SimpleNamespace(names=["cat", "dog", "cow"])
    hub["me/images"] = {"train": split}
    made = load("hf:me/images")
    assert (made.x.shape, made.x.dtype) == ((4, 3, 3, 1), np.uint8)
    assert (made.classes, made.class_names) == (3, ("cat", "dog", "cow"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("me/none", {}, r"expected Hugging Face to load me/none, got FileNotFoundError"),
        ("me/text", {"label": "lable"}, "did you mean 'label'"),
        ("me/text", {}, "expected numbers or images in the column 'text', got 'hello'"),
        ("me/text", {"train_split": "trian"}, "did you mean 'train'"),
        ("me/text", {"features": ["n", "v"]}, "got more in 'v'"),
    ],
)
def test_what_does_not_fit_is_named(hub, name, options, words):
    hub["me/text"] = {"train": Split(text=["hello", "you"], n=[1, 2], v=[[1, 2], [3, 4]], label=[0, 1])}
    with pytest.raises(ValueError, match=words) as caught:
        load(f"hf:{name}", **options)
    assert "\n" not in str(caught.value)
