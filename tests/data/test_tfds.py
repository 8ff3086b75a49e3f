"""Data sets of TFDS by name, read without TensorFlow."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from fljax.data import load
from fljax.data.datasets import count_owners
from fljax.data.sources import tfds as source

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # of TFDS itself


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a data set that TFDS has prepared: numbers, labels with names, and writers."""
    pytest.importorskip("array_record")

    class FljaxTiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "pixels": tfds.features.Tensor(shape=(2, 2, 1), dtype=np.uint8),
                "width": tfds.features.Scalar(np.float32),
                "height": tfds.features.Scalar(np.float32),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
                "writer": tfds.features.Text(),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("pixels", "label"))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(12), "test": self._generate_examples(4)}

        def _generate_examples(self, count):
            for i in range(count):
                pixels = np.full((2, 2, 1), i, np.uint8)
                row = {"pixels": pixels, "width": i, "height": 2 * i, "label": i % 2, "writer": f"w{i % 3}"}
                yield i, row

    place = tmp_path_factory.mktemp("tfds")
    tfds.builder("fljax_tiny", data_dir=str(place), file_format="array_record").download_and_prepare()
    return place


def test_images_and_labels_of_the_authors(folder):
    made = load("tfds:fljax_tiny", folder=folder)
    assert (made.x.shape, made.x.dtype, made.train_size) == ((16, 2, 2, 1), np.uint8, 12)
    assert (made.classes, made.class_names) == (2, ("cat", "dog"))
    assert made.y.tolist() == (made.x[:, 0, 0, 0] % 2).tolist()
    assert "tensorflow" not in sys.modules


def test_a_feature_says_whose_row_it_is(folder):
    made = load("tfds:fljax_tiny", folder=folder, client="writer")
    assert made.owner_names == ("w0", "w1", "w2")
    assert count_owners(made) == 3
    assert np.asarray(made.part).tolist() == [0] * 12 + [2] * 4


def test_numbers_become_a_vector(folder):
    made = load(
        "tfds:fljax_tiny", folder=folder, features=["width", "height"], train_split="train[:6]", test_split="test"
    )
    assert (made.x.shape, made.x.dtype, made.train_size) == ((10, 2), np.float32, 6)
    np.testing.assert_allclose(made.x[:, 1], 2 * made.x[:, 0])


def test_prepared_files_are_enough(folder, monkeypatch):
    monkeypatch.setattr(tfds, "list_builders", lambda **options: [])
    assert load("tfds:fljax_tiny", folder=folder).train_size == 12


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fljax_tyni", {}, "expected the name of a data set of TFDS, got 'fljax_tyni'"),
        ("mnisst", {}, "did you mean .*'mnist'"),
        ("fljax_tiny", {"client": "wirter"}, r"expected one of the features .* \(did you mean 'writer'\?\)"),
        ("fljax_tiny", {"features": "writer"}, "expected numbers in the feature 'writer'"),
        ("fljax_tiny", {"test_split": "tset"}, "Unknown split 'tset'"),
    ],
)
def test_what_does_not_exist_is_named(folder, name, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        load(f"tfds:{name}", folder=folder, **options)
    assert "\n" not in str(caught.value)


def test_without_a_network_nothing_is_downloaded(folder, monkeypatch):
    monkeypatch.setattr(source, "reachable", lambda url: False)
    with pytest.raises(ValueError, match=r"expected kmnist of TFDS on this machine, .* or a network to fetch it"):
        load("tfds:kmnist", folder=folder)


def test_a_package_that_tfds_needs_is_named(monkeypatch):
    def fail(name, **options):
        raise ImportError("Failed to encode example: 3\nNo module named 'tensorflow'")

    stub = types.SimpleNamespace(builder=fail, list_builders=lambda **options: ["coco"])
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", stub)
    with pytest.raises(ValueError, match=r"expected tensorflow, which TFDS needs .* coco.*pip install tensorflow-cpu"):
        load("tfds:coco")
