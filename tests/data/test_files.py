"""Data sets in files of one's own: .csv, .parquet, .npz, and MedMNIST's files."""

from __future__ import annotations

import cProfile
import gzip
import os
import pstats
import sys
from typing import Any

import numpy as np
import pandas
import pytest

from fljax.config import ConfigError
from fljax.config import load as load_config
from fljax.core.names import resolve
from fljax.data import federate, from_clients, from_frame, load
from fljax.data.own.files import is_medmnist
from fljax.data.registry import absolute, is_path
from fljax.experiments.inputs.setup import build_world, resolve_setup
from tests.data.written import parts
from tests.refusals import refuses
from tests.toys.command import run
from tests.toys.configs import config_text

FRAME = pandas.DataFrame({"age": [20, 40, 30, 50], "ill": ["no", "yes", "no", "yes"], "site": ["b", "a", "b", "a"]})


def test_files_that_unpack_to_more_than_the_memory_are_refused(tmp_path, monkeypatch):
    pandas.concat([FRAME] * 10**5).to_csv(tmp_path / "mine.csv.gz", index=False)
    np.savez_compressed(tmp_path / "mine.npz", x=np.zeros((10**5, 2)), y=np.zeros(10**5, int))
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    for name, options in (("mine.csv.gz", {"label": "ill"}), ("mine.npz", {})):
        with pytest.raises(ValueError, match="fits into the memory"):
            load(str(tmp_path / name), **options)


@pytest.mark.parametrize("name", ["a\0", "\ud800b"])
def test_names_that_results_cannot_hold_are_refused(name):
    columns = {"age": [1.0, 2.0] * 2, "ill": ["no", "yes"] * 2, "site": ["b", "a"] * 2}
    makes = [
        lambda: from_frame(columns | {"ill": [name, "b"] * 2}, label="ill", client="site"),
        lambda: from_frame(columns | {"site": [name, "b"] * 2}, label="ill", client="site"),
        lambda: from_frame(columns | {name: [1.0, 2.0] * 2}, label="ill", client="site"),
        lambda: from_clients(dict.fromkeys([name, "b"], (np.ones((4, 2)), [0, 1] * 2))),
        lambda: from_clients(dict.fromkeys(["a", "b"], (np.ones((4, 2)), [name, "b"] * 2))),
    ]
    for make in makes:
        refuses(make, "expected text without NUL and surrogates in")


def test_wide_tables_call_pandas_once_for_all_columns(tmp_path):
    """Of pandas: none for each column."""
    calls = []
    for width in (3, 300):
        pandas.DataFrame(np.ones((4, width))).add_prefix("f").assign(y=list("abab")).to_csv(
            tmp_path / "x.csv", index=False
        )
        profile = cProfile.Profile()
        profile.runcall(load, str(tmp_path / "x.csv"), label="y")
        stats: Any = pstats.Stats(profile)
        seen = stats.stats.items()
        calls.append(sum(count for (_, _, name), (_, count, *_) in seen if name in ("isna", "__getitem__")))
    assert calls[1] < calls[0] + 300


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("f,y,y", "expected different names of columns, got 'y' twice"),
        ("f,f,y", "expected different names of columns, got 'f' twice"),
        ("f, y ,y", "expected different names of columns, got 'y' twice"),
        ("\n\nf,f,y", "expected different names of columns, got 'f' twice"),
        ('"f",f,y', "expected different names of columns, got 'f' twice"),
        ("f,,y", "got none for column 2 of 3, which stands after 'f'"),
        (",,y", "got none for column 2 of 3"),
        ("f,Unnamed: 1,y", "got none for column 2 of 3"),
        ("f,y,", "got none for column 3 of 3, which stands after 'y'"),
    ],
)
@pytest.mark.parametrize("form", ["utf-8", "utf-8-sig", "utf-16", "gz"])
def test_names_of_columns_that_are_equal_or_absent(tmp_path, head, words, form):
    content = f"{head}\n1,2,0\n3,4,1\n".encode("utf-8" if form == "gz" else form)
    path = tmp_path / ("mine.csv.gz" if form == "gz" else "mine.csv")
    path.write_bytes(gzip.compress(content) if form == "gz" else content)
    options = {"encoding": "utf-16"} if form == "utf-16" else {}
    refuses(lambda: load(str(path), label="y", **options), rf"^{path.name}: .*{words}")


@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_validation_rows_of_arrays_are_the_servers(tmp_path, word):
    path = str(tmp_path / "mine.npz")
    np.savez(path, **parts(**{"train": 0, word: 10, "test": 20}), who_train=[1, 1, 2, 2])
    for options in ({}, {"client": "who"}):
        made = load(path, standardise=False, **options)
        assert (np.asarray(made.part).tolist(), made.train_size) == ([0] * 4 + [1] * 4 + [2] * 4, 8)
        held = (federate(made, "natural") if options else federate(made, "iid", clients=2)).held
        assert (held["validation"].size, held["test"].size) == (4, 4)
        assert made.x[np.asarray(held["validation"].index)][:, 0].tolist() == [10, 12, 14, 16]


def test_validation_rows_of_arrays_with_owners(tmp_path):
    path = str(tmp_path / "mine.npz")
    np.savez(path, **parts(train=0, val=1), who_train=[1, 1, 2, 2], who_val=[1, 2, 3, 3])
    with pytest.raises(ValueError, match="expected training rows of each client with validation rows, got none of 3"):
        load(path, client="who")


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (("007", "7", "0100"), ("007", "0100", "7")),
        (("1e5", "100000", "2e3"), ("100000", "1e5", "2e3")),
        (("TRUE", "True", "false"), ("TRUE", "True", "false")),
        (("NA", "None", "null"), ("NA", "None", "null")),
        (("10", "9", "-1"), (-1, 9, 10)),
    ],
)
@pytest.mark.parametrize("column", ["ill", "site"])
def test_labels_and_clients_are_text_first(tmp_path, texts, names, column):
    """Different texts are different clients and classes; numbers are those whose text is usual."""
    other = {"ill": "site", "site": "ill"}[column]
    rows = "\n".join(f"{row},{text},{row % 2}" for row, text in enumerate(texts))
    (tmp_path / "mine.csv").write_text(f"a,{column},{other}\n{rows}\n")
    made = load(str(tmp_path / "mine.csv"), label="ill", client="site")
    assert (made.class_names if column == "ill" else made.owner_names) == names


def test_points_between_thousands_make_no_number(tmp_path):
    (tmp_path / "mine.csv").write_text("a;ill\n1;1.500\n2;2,5\n")
    options = {"separator": ";", "decimal": ","}
    with pytest.raises(ValueError, match="expected numbers as labels for a regression, got"):
        load(str(tmp_path / "mine.csv"), label="ill", regression=True, **options)


def test_the_type_of_a_column_does_not_depend_on_the_length_of_the_file(tmp_path):
    rows = 3000
    who = [str(place * 10 // rows) if place * 10 // rows < 9 else "A9" for place in range(rows)]
    pixels = ",".join(["7"] * 784)
    head = ",".join([*(f"p{place}" for place in range(784)), "who", "label"])
    (tmp_path / "wide.csv").write_text(
        "\n".join([head, *(f"{pixels},{name},{row % 10}" for row, name in enumerate(who))])
    )
    made = load(str(tmp_path / "wide.csv"), label="label", client="who", shape=[28, 28, 1])
    assert made.owner_names == (*map(str, range(9)), "A9")


def test_a_name_with_a_colon_is_a_path_if_there_is_such_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("10:30", "module:name", "module:rows.csv"):
        (tmp_path / name).mkdir()
        assert is_path(name), name
        assert is_path(name, tmp_path), name
        assert not is_path(name, tmp_path / name), name
        assert absolute(name, tmp_path) == f"{tmp_path}/{name}"
    for name in ("a/b:c", "/a 10:30/b.py:build", "C:\\a:b"):
        with pytest.raises(
            ValueError, match=r"expected an import path 'module:name' of a model, got .* a path of files"
        ):
            resolve(name, {}, "model")


def test_which_names_are_paths():
    assert all(map(is_path, ["a.csv", "./a", "a/", "/tmp/a", "a.b"]))
    assert not any(map(is_path, ["mnist", "module:name", "package.module:name", "tfds:emnist/letters", "hf:a/b"]))
    of_paths = ["/a 10:30/b.csv", "C:/a.csv", "C:\\a.csv", "10:30/b.csv", "10:30.csv", "~/a:b/", "./m:f", "a.b:1.csv"]
    assert all(map(is_path, of_paths))
    assert not any(map(is_path, ["my-module:name", "module:name.attribute", "module:", ":name", "10:30", "hf:a/b.csv"]))
    assert absolute("a.csv", "/data/configs") == "/data/configs/a.csv"
    assert absolute("../a/", "/data/configs") == "/data/a"
    assert absolute("mnist", "/data") == "mnist"
    assert absolute("hf:a/b", "/data") == "hf:a/b"


def test_hf_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refuses(lambda: load("hf:a/b"), r"expected the package datasets for hf:a/b, got none; .*fljax\[huggingface\]")


SIZES = {"train": 12, "val": 4, "test": 6}


def write(path, shape=(28, 28, 3), labels=1, **changes):
    draw = np.random.default_rng(0)
    content = {f"{part}_images": draw.integers(0, 256, (size, *shape), dtype=np.uint8) for part, size in SIZES.items()}
    for part, size in SIZES.items():
        y = np.arange(size)[:, None] % 3 if labels == 1 else draw.integers(0, 2, (size, labels))
        content[f"{part}_labels"] = y.astype(np.uint8)
    np.savez_compressed(path, **{**content, **changes})
    return content


def test_parts_are_the_authors(tmp_path):
    content = write(tmp_path / "pathmnist.npz")
    made = load(f"{tmp_path}/pathmnist.npz")
    assert (made.x.shape, made.x.dtype, made.classes, made.train_size) == ((22, 28, 28, 3), np.uint8, 3, 16)
    np.testing.assert_array_equal(made.x[16:], content["test_images"])
    np.testing.assert_array_equal(made.y[:12], content["train_labels"][:, 0])
    found = federate(made, "iid", clients=3, test="global")
    assert np.sort(np.concatenate([np.asarray(found.clients.train.size)])).sum() == 12
    assert np.asarray(found.held["validation"].index).tolist() == [12, 13, 14, 15]
    assert np.asarray(found.held["test"].index).tolist() == list(range(16, 22))


@pytest.mark.parametrize(
    ("shape", "stored"),
    [((28, 28), (28, 28, 1)), ((64, 64, 3), (64, 64, 3)), ((28, 28, 28), (28, 28, 28, 1))],
)
def test_shapes_of_images(tmp_path, shape, stored):
    write(tmp_path / "a.npz", shape)
    assert load(f"{tmp_path}/a.npz").x.shape == (22, *stored)


def test_several_labels_are_kept(tmp_path):
    write(tmp_path / "chestmnist.npz", (28, 28), labels=14)
    made = load(f"{tmp_path}/chestmnist.npz")
    assert (made.y.shape, made.classes) == ((22, 14), None)


def test_files_that_are_damaged_are_named(tmp_path):
    write(tmp_path / "a.npz", val_images=np.zeros((3, 28, 28, 3), np.uint8))
    refuses(lambda: load(f"{tmp_path}/a.npz"), r"a\.npz: expected features .* got shapes \(3, 28, 28, 3\) and \(4,\)")
    write(tmp_path / "b.npz", train_images=np.zeros((12, 5), np.uint8))
    refuses(lambda: load(f"{tmp_path}/b.npz"), r"b\.npz: expected uint8 images .* in train_images, got uint8 \[12, 5\]")
    write(tmp_path / "c.npz", test_labels=np.array([{}] * 6))
    refuses(lambda: load(f"{tmp_path}/c.npz"), r"c\.npz: expected .*test_labels")
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 2)), y=[0, 1])
    (tmp_path / "e.npz").write_bytes(b"no zip")
    assert not is_medmnist(tmp_path / "d.npz")
    assert not is_medmnist(tmp_path / "e.npz")
    assert not is_medmnist(tmp_path / "nothing.npz")


TEXT = config_text(
    'dataset = "pneumoniamnist.npz"\npartition = "iid"\nclients = 2\ntest = "global"', steps=1, standalone=1
)


@pytest.fixture
def config(tmp_path):
    write(tmp_path / "pneumoniamnist.npz", (28, 28))
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_a_config_needs_no_options(config):
    federation = build_world(load_config(config)).federation
    assert federation.held["validation"].size.tolist() == [4]
    with pytest.raises(ConfigError, match=r"data: expected one of the keys .* got 'client'"):
        load_config(config, ["data.client=x"])
    refuses(lambda: build_world(load_config(config, ["data.held_fraction=0.2"])), "expected held_fraction of 0")


def test_several_labels_need_a_model_of_ones_own(config):
    write(config.parent / "pneumoniamnist.npz", (28, 28), labels=14)
    with pytest.raises(
        ValueError, match="whose labels are no classes; a model of one's own, module:function, may have"
    ):
        resolve_setup(load_config(config))


@pytest.mark.thorough
def test_a_run(config):
    run(config, "--out", config.parent / "run")
