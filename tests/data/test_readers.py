"""What every reader of data has in common: hidden labels of test rows, and bytes where others have text."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import strategies

from fljax import data
from fljax.data.datasets import Dataset
from fljax.engine.loop.trained import stored_features
from fljax.protocol import Features, Federation
from tests.data import formats
from tests.data.formats import Told
from tests.drawn import at_most
from tests.refusals import refuses


def _test_data(told: Told, folder: pathlib.Path) -> Federation:
    """Test rows of nobody."""
    train, test = told.where(part=0), told.where(part=2)
    clients = {who: (rows.x, rows.y) for who, rows in ((who, train.where(owner=who)) for who in ("a", "b"))}
    return data.from_clients(clients, test_data=(test.x, test.y))


NAMES = ("npz", "npz and npz", "csv", "csv and csv", "folders of csv", "json", "frame", "categories", "mappings")
READERS = {name: (formats.PARTS_IN_TWO | formats.PARTS_IN_THREE)[name] for name in NAMES} | {"test data": _test_data}
WORDS = ["?", "", " ? ", "-", "-1", "NA", "nan", "None", "Unknown", "unlabelled", "<unk>", "missing", ".", None]


def _told(y: list[Any], test_y: list[Any]) -> Told:
    """Six training rows and four test rows of the clients a and b."""
    return Told(np.random.default_rng(0).normal(size=(10, 2)), [*y, *test_y], ["a", "b"] * 5, [0] * 6 + [2] * 4)


@pytest.mark.parametrize("read", READERS)
@hypothesis.given(drawn=strategies.data())
@at_most(60)
def test_hidden_labels_of_test_rows_are_one_sentence(read: str, drawn: Any) -> None:
    text = drawn.draw(strategies.booleans())
    known = drawn.draw(strategies.sampled_from([["no", "yes"], ["0", "1"]] if text else [[0, 1], [0, 7], [1, 2]]))
    hidden = drawn.draw(strategies.sampled_from(WORDS if text else [-1, -100, None, np.nan]))
    known = drawn.draw(strategies.sampled_from([known, ["no", "none"] if text else [-2, 1]]))  # a word that is known
    where = drawn.draw(strategies.sets(strategies.integers(0, 3), min_size=1))
    split = _told(known * 3, [hidden if place in where else known[place % 2] for place in range(4)])
    if read.startswith("npz") and hidden is None:
        return  # a file of Python objects
    with tempfile.TemporaryDirectory() as folder, pytest.raises(ValueError, match=r"\brows?\b"):
        READERS[read](split, pathlib.Path(folder))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("labels", [[-1, 1], [-1, 0], ["?", "a"], [0.5, -1.0]])
def test_what_training_rows_have_is_a_label(read: str, labels: list[Any], tmp_path: pathlib.Path) -> None:
    found = READERS[read](_told(labels * 3, [*labels, labels[0], labels[0]]), tmp_path)
    names = found.class_names if isinstance(found, Dataset) else found.names.classes
    assert names is None or list(names) == (sorted(labels))


def test_arrays_say_which_rows() -> None:
    for y, test in ((np.array([0, 1] * 3), np.array([0, -1])), (np.array([0.5, 2.0] * 3), np.full(2, -1.0))):
        with pytest.raises(ValueError, match="known labels in test and validation rows, got -1"):
            data.from_arrays(np.ones((6, 2)), y, np.arange(6) % 2, test_data=(np.ones((2, 2)), test))
        with pytest.raises(ValueError, match=r"in 1 of 2, first in row 1 of them|in 2 of 2, first in row 0"):
            data.dataset(np.ones((8, 2)), np.concatenate([y, test]), train_size=6)
    unsigned, several = np.array([0, 1] * 3, np.uint8), np.array([[1, 2]] * 6)
    clients: Any = {"train": (np.ones((6, 2)), unsigned), "test": (np.ones((2, 2)), np.full(2, 255, np.uint8))}
    for read in (
        lambda: data.from_clients({"a": clients}),
        lambda: data.from_arrays(clients["train"][0], unsigned, [0, 1] * 3, test_data=clients["test"]),
        lambda: data.from_clients({"a": {"train": (np.ones((2, 2)), [0.0, 1.0]), "test": (np.ones((1, 2)), [-1.0])}}),
    ):
        refuses(read, r"known labels in test and validation rows, got (255|-1\.0)")
    data.from_arrays(np.ones((6, 2)), several, [0, 1] * 3, test_data=(np.ones((2, 2)), np.array([[-1, 2], [-3, -1]])))
    targets = data.dataset(np.ones((8, 2)), np.array([0.5, 2.0] * 3 + [-1.0, 1.0]), train_size=6)
    assert targets.classes is None


@pytest.mark.unchecked  # labels and clients by bytes, which are no text
@pytest.mark.parametrize("kind", ["S", object])
def test_bytes_are_text(kind: Any, tmp_path: pathlib.Path) -> None:
    """Ids and labels of HDF5 and of NumPy's S arrays, in every argument that has some."""
    x, y, who = np.eye(4, 2), np.array([b"u", b"\xc3\xa4"] * 2, kind), np.array([b"f1", b"f2"] * 2, kind)
    frame = pd.DataFrame({b"a": x[:, 0], b"y": list(y.astype(object)), b"who": list(who.astype(object))})
    frame[b"part"] = [b"train", b"train", b"test", b"test"]
    federations = [
        data.from_frame(frame, label="y", client="who", part="part"),
        data.from_frame(frame.to_dict("list"), label="y", client="who", part="part"),
        data.from_frame(frame.astype({b"who": "category"}), label="y", client="who", part="part"),
        data.from_clients(dict.fromkeys(who[:2].tolist(), (x, y))),
        data.from_arrays(x, np.arange(4) % 2, who),
    ]
    for federation in federations:
        assert federation.names.clients == ("f1", "f2")
        assert federation.names.classes in (None, ("u", "ä"))
    if kind == "S":
        for files in ({"x": x, "y": y, "who": who}, {"x_train": x, "y_train": y, "who_train": who, "x_test": x}):
            more = {"y_test": y, "who_test": who.astype("U2")} if "x_test" in files else {}
            np.savez(tmp_path / "d.npz", **files, **more)  # type: ignore[arg-type]
            assert data.load(str(tmp_path / "d.npz"), client="who").owner_names == ("f1", "f2")
    byte: Any = {"label": b"y", "client": b"who", "part": b"part", "features": [b"a"]}
    assert data.from_frame(frame, **byte).names.clients == ("f1", "f2")
    chosen = data.federate(
        data.dataset_from_frame(frame, label="y", client="who", part="part"), "natural", unseen=[b"f2"]
    )
    assert chosen.names.unseen == ("f2",)
    with pytest.raises(ValueError, match="clients with different names, got bytes and text alike"):
        data.from_clients({"f1": (x, y), b"f1": (x, y)})


@pytest.mark.unchecked
def test_rows_with_labels_are_aligned_or_refused() -> None:
    x = pd.DataFrame(np.eye(6, 2), columns=["u", "v"], index=list("abcdef"))
    y, owner = pd.Series([0, 1] * 3, x.index), pd.Series(list("nnnsss"), x.index)
    right = data.from_arrays(x, y, owner)
    mixed: Any
    for mixed in (
        {"y": y.iloc[::-1]},
        {"owners": owner.sample(frac=1, random_state=1)},
        {"y": y.reset_index(drop=True)},
    ):
        with pytest.raises(ValueError, match=r"expected x and (y|owners) with the same index in the same order"):
            data.from_arrays(**{"x": x, "y": y, "owners": owner} | mixed)
    with pytest.raises(ValueError, match="expected x and y with the same index in the same order"):
        data.from_clients({"n": (x, y.iloc[::-1]), "s": (x, y)})
    refuses(lambda: data.dataset(x, y.iloc[::-1]), "expected x and y with the same index in the same order")
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(x, preserve_index=False)
    for other in (x[["v", "u"]], x.rename(columns={"u": "w"}), arrow.select(["v", "u"])):
        with pytest.raises(ValueError, match="with the same columns in the same order"):
            data.from_arrays(x, y, owner, test_data=(other, y))
        with pytest.raises(ValueError, match="with the same columns in the same order"):
            data.from_clients({"n": (x, y), "s": (other, y)})
        with pytest.raises(ValueError, match="with the same columns in the same order"):
            data.from_clients({"n": {"train": (x, y), "test": (other, y)}})
    plain = data.from_arrays(x.to_numpy(), y.to_numpy(), owner.to_numpy())
    np.testing.assert_array_equal(right.examples.x, plain.examples.x)
    assert data.from_arrays(x, y.to_numpy(), pd.Index(owner)).names.clients == ("n", "s")
    assert data.from_arrays(arrow, y.to_numpy(), owner, test_data=(arrow, y)).names.clients == ("n", "s")
    for kind in ("list", "series"):
        frame = x.assign(y=y.sample(frac=1, random_state=1), who=owner).to_dict(kind)
        assert data.from_frame(frame, label="y", client="who").names.clients == ("n", "s")
    with pytest.raises(ValueError, match="expected u and y with the same index in the same order"):
        data.from_frame({"u": x["u"], "y": y.iloc[::-1], "who": owner}, label="y", client="who")
    refuses(lambda: data.from_clients({"n": (x, x), "s": (x, x.iloc[::-1])}), "expected x and y with the same index")
    with pytest.raises(ValueError, match="with the same columns in the same order"):
        data.from_clients({"n": (x, x), "s": (x, x[["v", "u"]])})
    with pytest.raises(ValueError, match="expected y and test labels with the same columns in the same order"):
        data.from_arrays(x, x, owner, test_data=(x, x[["v", "u"]]))


@pytest.mark.unchecked
def test_predictions_take_columns_by_name() -> None:
    """Whatever reads the table, and whatever table is predicted."""
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 3)), columns=list("abc"))
    y, who = pd.Series([0, 1] * 6), pd.Series(["n", "s"] * 6)
    federations: list[Federation] = [
        data.from_arrays(x, y, who),
        data.from_arrays(x, y, who, test_data=(x, y)),
        data.from_clients({"n": (x, y), "s": {"train": (x, y)}}),
        data.from_frame(x.assign(y=y, who=who), label="y", client="who"),
        data.federate(data.dataset(x, y, owner=np.arange(12) % 2), "natural"),
    ]
    turned: Any
    turned, index = x[["c", "a", "b"]], dict(x.items())
    tables = [turned, dict(turned.items()), xr.DataArray(turned, dims=("row", "f")), xr.Dataset.from_dataframe(turned)]
    for federation in federations:
        assert isinstance(federation.features, Features)
        plain = stored_features(x.to_numpy(), federation.features)
        for table in tables:
            np.testing.assert_array_equal(stored_features(table, federation.features), plain)
        with pytest.raises(ValueError, match="expected a and b with the same index in the same order"):
            stored_features(index | {"b": x["b"].iloc[::-1]}, federation.features)
        with pytest.raises(ValueError, match="expected a table with the columns of the model"):
            stored_features(x[["a", "b"]], federation.features)


@pytest.mark.parametrize("owners", [[1, "1", 2, "2"], ["u", np.nan, "v", "v"], ["u", None, "v", "v"], [1, True, 2, 2]])
def test_lists_of_several_kinds_are_one_sentence(owners: list[Any]) -> None:
    x, plain = np.zeros((4, 2)), list("uuvv")
    refused = pytest.raises(ValueError, match=r"^expected (an owner|owners|a value|a label|labels|clients)\b")
    with refused:
        data.from_arrays(x, [0, 1] * 2, owners)
    if owners[1] is not True:
        for y, who in ((plain, owners), (owners, plain)):
            with refused:
                data.from_frame({"a": [0.5, 1.5, 0.0, 1.0], "y": y, "who": who}, label="y", client="who")


def test_large_owners_beside_floats_stay_apart() -> None:
    for nobody in (-1, -1.0):
        made = data.from_arrays(np.zeros((6, 2)), [0, 1] * 3, [2**53, 2**53 + 1, nobody] * 2)
        assert made.names.clients == (2**53, 2**53 + 1)


def test_minus_one_and_one_are_classes_in_arrays_as_in_clients() -> None:
    x, y = np.eye(6, 2), np.array([-1, 1] * 3)
    made = data.from_arrays(x, y, [0, 1] * 3, test_data=(x, y))
    assert made.names.classes == data.from_clients({0: (x, y), 1: (x, y)}).names.classes == (-1, 1)
    refuses(lambda: data.from_arrays(x, np.ones(6, int), [0, 1] * 3, test_data=(x, y)), "expected known labels")


def test_lists_of_a_partition_have_no_labels() -> None:
    made, lists = data.dataset(np.eye(4, 2), [0, 1] * 2), pd.Series([[0, 1], [2, 3]], ["b", "a"])

    def partition(labels: np.ndarray, **options: Any) -> Any:
        return lists

    with pytest.raises(
        ValueError, match=r"to return a list with the row numbers of each client, .* a Series with labels"
    ):
        data.federate(made, partition, clients=2)

    def noisy(labels: np.ndarray, **options: Any) -> Any:
        return data.Partition(([0, 1], [2, 3]), noise=pd.Series([0.0, 1.0], ["b", "a"]))  # type: ignore[arg-type]

    refuses(lambda: data.federate(made, noisy, clients=2), "expected the partition's noise to be without labels")


@pytest.mark.unchecked
def test_columns_of_two_levels_and_names_that_are_no_text(tmp_path: pathlib.Path) -> None:
    frame = pd.DataFrame({"a": [0.5, 1.5, 0.0, 1.0], "y": [0, 1] * 2, "who": [0, 0, 1, 1]})
    both = frame.rename(columns=lambda name: (name, "mean"))
    columns: Any
    for columns in (pd.MultiIndex.from_tuples(both.columns), pd.MultiIndex.from_arrays([frame.columns, [1, 2, 3]])):
        for label in ("y", columns[1]):
            with pytest.raises(ValueError, match="expected columns with names of one level, got 2 levels"):
                data.from_frame(frame.set_axis(columns, axis=1), label=label, client=columns[2])
    with pytest.raises(ValueError, match="expected columns with names of one level"):
        data.from_frame({("a", ""): [0.5, 1.5], ("y", ""): [0, 1], ("who", ""): [0, 1]}, label="y", client="who")
    one = frame.set_axis(pd.MultiIndex.from_arrays([frame.columns]), axis=1)
    assert data.from_frame(one, label="y", client="who").examples.x.shape == (4, 1)
    made = data.from_frame(frame.rename(columns={"a": "age"}), label="y", client="who", features="age")
    assert made.features == Features(("age",))
    series: Any = frame["y"]
    for given in ({"label": series, "client": "who"}, {"label": "y", "client": series}):
        with pytest.raises(ValueError, match=r"expected (label|client) to be the name of a column, got a Series"):
            data.from_frame(frame, **given)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert data.load(tmp_path / "rows.csv", label="y", client="who").owner_names == (0, 1)
    given: Any
    for given in (frame, (np.eye(4), [0, 1] * 2)):
        with pytest.raises(ValueError, match=r"^expected a fljax.data.Dataset, as "):
            data.federate(given, clients=2)
    for names in ([3, "y", "who"], [None, "y", "who"], [np.nan, "y", "who"], [0.5, "y", "who"]):
        found = data.from_frame(frame.set_axis(names, axis=1), label="y", client="who")
        assert found.examples.x.shape == (4, 1)
    with pytest.raises(ValueError, match="expected different names of columns, got '3' twice"):
        data.from_frame(frame.assign(**{"3": 1.0}).rename(columns={"a": 3}), label="y", client="who")
    with pytest.raises(ValueError, match=r"expected a column of the table .*; frame.reset_index\(\) makes columns"):
        data.from_frame(frame.set_index("who"), label="y", client="who")
