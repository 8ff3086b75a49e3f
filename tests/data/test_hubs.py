"""Data sets by name: of TFDS, read without TensorFlow, and of Hugging Face, through a stub of its package."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from fljax.data import load
from fljax.data.datasets import training_owners
from fljax.data.sources import hubs
from tests.refusals import refuses

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
    assert len(training_owners(made)) == 3
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
    assert "\n" not in refuses(lambda: load(f"tfds:{name}", folder=folder, **options), words)


def test_without_a_network_nothing_is_downloaded(folder, monkeypatch):
    monkeypatch.setattr(hubs, "reachable", lambda url: False)
    with pytest.raises(ValueError, match=r"expected kmnist of TFDS on this machine, .* or a network to fetch it"):
        load("tfds:kmnist", folder=folder)


def test_a_package_that_tfds_needs_is_named(monkeypatch):
    def fail(name, **options):
        raise ImportError("Failed to encode example: 3\nNo module named 'tensorflow'")

    stub = types.SimpleNamespace(builder=fail, list_builders=lambda **options: ["coco"])
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", stub)
    refuses(lambda: load("tfds:coco"), r"expected tensorflow, which TFDS needs .* coco.*pip install tensorflow-cpu")


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
    assert len(training_owners(made)) == 2


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
    assert "\n" not in refuses(lambda: load(f"hf:{name}", **options), words)
