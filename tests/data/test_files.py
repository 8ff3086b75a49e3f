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

from fljax import cli
from fljax.config import ConfigError
from fljax.config import load as load_config
from fljax.core.names import resolve
from fljax.data import federate, from_clients, from_frame, load
from fljax.data.own.files import is_medmnist
from fljax.data.registry import absolute, find_source, is_path
from fljax.experiments.inputs.setup import build_world, resolve_setup

FRAME = pandas.DataFrame({"age": [20, 40, 30, 50], "ill": ["no", "yes", "no", "yes"], "site": ["b", "a", "b", "a"]})


def test_tables_are_read(tmp_path):
    FRAME.to_csv(tmp_path / "mine.csv", index=False)
    FRAME.to_csv(tmp_path / "mine.csv.gz", index=False)
    for name in ("mine.csv", "mine.csv.gz"):
        made = load(str(tmp_path / name), label="ill", client="site")
        assert made.x.tolist() == [[20], [40], [30], [50]]
        assert (made.class_names, made.owner_names) == (("no", "yes"), ("a", "b"))
        assert (made.y.tolist(), np.asarray(made.owner).tolist()) == ([0, 1, 0, 1], [1, 0, 1, 0])
        assert (made.standardise, made.mean, made.std, made.features.names) == (True, 0.0, 1.0, ("age",))
    plain = load(str(tmp_path / "mine.csv"), label="ill", client="site", standardise=False)
    assert (plain.standardise, plain.mean, plain.std) == (False, 0.0, 1.0)


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
        with pytest.raises(ValueError, match="expected text without NUL and surrogates in"):
            make()


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


def test_row_numbers_that_pandas_writes_are_no_feature(tmp_path):
    FRAME.to_csv(tmp_path / "mine.csv")
    assert load(str(tmp_path / "mine.csv"), label="ill", client="site").x.tolist() == [[20], [40], [30], [50]]


@pytest.mark.parametrize("head", [",Unnamed: 0,age,ill", "Unnamed: 0,,age,ill"])
def test_row_numbers_that_pandas_wrote_twice(tmp_path, head):
    cells = "0,0" if "0,a" in head else "0,"
    (tmp_path / "mine.csv").write_text(f"{head}\n{cells},20,x\n{cells},30,y\n")
    assert load(str(tmp_path / "mine.csv"), label="ill").features.names == ("age",)


def test_a_comma_at_the_end_of_all_lines_is_no_column(tmp_path):
    (tmp_path / "mine.csv").write_text("age,ill,\n20,x,\n30,y,\n")
    assert load(str(tmp_path / "mine.csv"), label="ill").features.names == ("age",)


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
    with pytest.raises(ValueError, match=rf"^{path.name}: .*{words}"):
        load(str(path), label="y", **options)


def test_names_of_columns_with_another_separator(tmp_path):
    (tmp_path / "mine.csv").write_text('"f;1";f;y\n1;2;0\n3;4;1\n')
    assert load(str(tmp_path / "mine.csv"), label="y", separator=";").features.names == ("f;1", "f")


def test_parquet_is_an_extra(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    path = tmp_path / "mine.parquet"
    FRAME.to_parquet(path)
    assert load(str(path), label="ill", client="site").y.tolist() == [0, 1, 0, 1]

    def missing(*arguments, **options):
        raise ImportError("no engine")

    monkeypatch.setattr(pandas, "read_parquet", missing)
    with pytest.raises(ValueError, match=r"mine\.parquet: expected pyarrow.*pip install 'fljax\[parquet\]'"):
        load(str(path), label="ill")


def test_arrays_are_read(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1), y=["b", "a"] * 3, site=[5, 9, 5, 9, 5, 9])
    made = load(str(path), client="site")
    assert (made.x.shape, made.x.dtype, made.y.tolist()) == ((6, 2, 2, 1), np.uint8, [1, 0] * 3)
    assert made.owner_names == (5, 9)
    np.savez(path, x_train=np.ones((4, 2)), y_train=[3, 4, 3, 4], x_test=np.zeros((2, 2)), y_test=[4, 4])
    made = load(str(path))
    assert (made.train_size, made.y.tolist(), made.class_names) == (4, [0, 1, 0, 1, 1, 1], (3, 4))


def test_own_test_rows_of_arrays(tmp_path):
    path = tmp_path / "mine.npz"
    train = {"x_train": np.ones((4, 2)), "y_train": [0, 1, 0, 1], "who_train": [1, 1, 2, 2]}
    np.savez(path, **train, x_test=np.arange(6.0).reshape(3, 2), y_test=[1, 1, 0], who_test=[2, 7, 1])
    made = load(str(path), client="who")
    assert made.train_size == 6
    assert np.asarray(made.part).tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert np.asarray(made.owner).tolist() == [0, 0, 1, 1, 1, 0, 2], "7 never trains: a row of the global test part"
    assert made.x[-1].tolist() == [2, 3]


def split_arrays(*ends, count=4):
    found = {}
    for place, end in enumerate(ends):
        found |= {f"x{end}": np.full((count, 2), 1.0 * place), f"y{end}": np.arange(count) % 2}
    return found


@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_validation_rows_of_arrays_are_the_servers(tmp_path, word):
    path = str(tmp_path / "mine.npz")
    np.savez(path, **split_arrays("_train", f"_{word}", "_test"), who_train=[1, 1, 2, 2])
    for options in ({}, {"client": "who"}):
        made = load(path, standardise=False, **options)
        assert (np.asarray(made.part).tolist(), made.train_size) == ([0] * 4 + [1] * 4 + [2] * 4, 8)
        held = (federate(made, "natural") if options else federate(made, "iid", clients=2)).held
        assert (held["validation"].size, held["test"].size) == (4, 4)
        assert made.x[np.asarray(held["validation"].index)][:, 0].tolist() == [1.0] * 4


def test_validation_rows_of_arrays_with_owners(tmp_path):
    path = str(tmp_path / "mine.npz")
    made = {**split_arrays("_train", "_val"), "who_train": [1, 1, 2, 2], "who_val": [1, 2, 2, 2]}
    np.savez(path, **made)
    federation = federate(load(path, client="who"), "natural", train_fraction=0.5)
    assert federation.clients.valid.size.tolist() == [1, 3]
    np.savez(path, **{**made, "who_val": [1, 2, 3, 3]})
    with pytest.raises(ValueError, match="expected training rows of each client with validation rows, got none of 3"):
        load(path, client="who")


@pytest.mark.parametrize(
    ("arrays", "options", "got"),
    [
        (split_arrays("", "_test"), {}, "x_test beside x,"),
        (split_arrays("", "_val"), {}, "x_val beside x,"),
        (
            {
                **split_arrays(
                    "",
                ),
                "y_test": [1],
            },
            {},
            "y_test beside x,",
        ),
        ({**split_arrays("_train"), "y_test": [1]}, {}, "y_test beside x_train,"),
        ({**split_arrays("_train"), "who_train": [1] * 4, "who_test": [1]}, {"client": "who"}, "who_test beside"),
        (split_arrays("_train", "_dev"), {}, "x_dev beside x_train,"),
        (split_arrays("_train", "_val", "_valid"), {}, "x_valid beside x_train and x_val"),
    ],
)
def test_no_array_of_a_part_is_passed_over(tmp_path, arrays, options, got):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=rf"^mine\.npz: expected arrays of one part, or .*, got {got}"):
        load(str(tmp_path / "mine.npz"), **options)


@pytest.mark.parametrize("ends", [(",", ","), (",", "")])  # the first row alone made pandas take names of rows from it
def test_a_comma_at_the_end_of_rows_shifts_no_column(tmp_path, ends):
    rows = [f"{63 + row},{row % 2},A{ends[row > 0]}" for row in range(4)]
    (tmp_path / "mine.csv").write_text("\n".join(["age,ill,site", *rows]))
    made = load(str(tmp_path / "mine.csv"), label="ill", features=["age"], standardise=False)
    assert made.x[:, 0].tolist() == [63, 64, 65, 66]
    assert made.y.tolist() == [0, 1, 0, 1]


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


@pytest.mark.parametrize(
    ("texts", "options", "expected"),
    [
        (("1.5", "2", "1e1"), {}, [1.5, 2, 10]),
        (("1", "20", "3"), {"regression": True}, [1, 20, 3]),
        (("007", "1e1", "-3"), {"regression": True}, [7, 10, -3]),
        (("1,5", "2", "-3,25"), {"decimal": ",", "separator": ";"}, [1.5, 2, -3.25]),
    ],
)
def test_labels_that_are_numbers_to_predict(tmp_path, texts, options, expected):
    between = options.get("separator", ",")
    rows = "\n".join(f"{row}{between}{text}" for row, text in enumerate(texts))
    (tmp_path / "mine.csv").write_text(f"a{between}ill\n{rows}\n")
    made = load(str(tmp_path / "mine.csv"), label="ill", **options)
    assert made.classes is None
    assert made.y.tolist() == expected


def test_labels_with_decimals_are_classes_if_asked(tmp_path):
    (tmp_path / "mine.csv").write_text("a,ill\n1,5.0\n2,4.0\n3,5.0\n")
    assert load(str(tmp_path / "mine.csv"), label="ill", regression=False).class_names == ("4.0", "5.0")


def test_points_between_thousands_make_no_number(tmp_path):
    (tmp_path / "mine.csv").write_text("a;ill\n1;1.500\n2;2,5\n")
    options = {"separator": ";", "decimal": ","}
    assert load(str(tmp_path / "mine.csv"), label="ill", **options).class_names == ("1.500", "2,5")
    with pytest.raises(ValueError, match="expected numbers as labels for a regression, got"):
        load(str(tmp_path / "mine.csv"), label="ill", regression=True, **options)


def test_words_for_nothing_are_missing_features(tmp_path):
    (tmp_path / "mine.csv").write_text("a,ill\n1,x\nNA,y\n")
    with pytest.raises(ValueError, match=r"column 'a', got none \(NaN\) in 1 of 2 rows, first in row 1"):
        load(str(tmp_path / "mine.csv"), label="ill")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8"])
def test_text_of_other_encodings(tmp_path, encoding):
    text = "dose;class;site\n1,5;ill;K\u00f6ln\n2,5;well;Z\u00fcrich\n"
    (tmp_path / "mine.csv").write_bytes(text.encode(encoding))
    options = {"encoding": encoding, "separator": ";", "decimal": ","}
    made = load(str(tmp_path / "mine.csv"), label="class", client="site", standardise=False, **options)
    assert made.owner_names == ("K\u00f6ln", "Z\u00fcrich")
    assert made.x[:, 0].tolist() == [1.5, 2.5]


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


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("mine.csv", b"", {}, r"mine\.csv: expected a table with a line of names and ',' between cells"),
        ("mine.csv", b'a,ill\n1,"2\n3,4\n', {}, "expected a table"),
        ("mine.csv", b"\xff\xfe\x00", {}, "expected text with the encoding utf-8, .*; name the file's own"),
        ("mine.csv.gz", b"not gzip", {}, "expected a file that can be read"),
        ("mine.csv", b"a,ill\n1,x\n,y\n", {}, r"in each row of the column 'a', got none \(NaN\) in 1 of 2 rows"),
        ("mine.csv", b"a,b\n1,x\n", {}, r"expected a column of the table \(a, b\), got 'ill'"),
        ("mine.csv", b"ill\nx\n", {}, "at least one row and one column of features"),
        ("mine.csv", b"a,ill\n", {}, "at least one row and one column of features"),
        (
            "mine.csv",
            b"a,ill\n1,5,0\n2,5,1\n",
            {},
            "expected rows with as many fields as the line of names, got longer",
        ),
        ("mine.csv", b"a,ill\n1,0\n2,5,1\n", {}, "expected a table with a line of names and ',' between cells"),
        ("mine.parquet", b"PAR1", {}, "expected a table in Parquet"),
        ("mine.npz", b"PK", {}, "expected arrays of numpy.savez"),
        ("mine.npz", b"", {}, "expected arrays of numpy.savez"),
    ],
)
def test_damaged_files_are_named_in_one_sentence(tmp_path, name, content, options, words):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    label = {} if name.endswith("npz") else {"label": "ill"}
    with pytest.raises(ValueError, match=words) as caught:
        load(str(tmp_path / name), **label, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"x": np.ones((2, 2))}, {}, "expected one of the arrays x, got 'y'"),
        ({"x": np.ones((2, 2)), "y": [0, 1]}, {"client": "z"}, "got 'z'"),
        ({"x": np.ones((2, 2)), "y": [0, 1], "z": [0]}, {"client": "z"}, "one owner for each of the 2 rows"),
        ({"x": np.ones((2, 2)), "y": [0]}, {}, r"^mine\.npz: .* rows, got 2 in x and 1 in y$"),
        pytest.param(
            {"x": np.array([[1, None]], object), "y": [0]},
            {},
            "expected numbers or text in the array 'x', got Python objects",
            marks=pytest.mark.unchecked,  # a check of the file's arrays would read this one
        ),
        (
            {"x_train": np.ones((2, 2)), "y_train": [0, 1], "x_test": np.ones((2, 3)), "y_test": [0, 1]},
            {},
            "expected test rows like rows",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, options, words):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        load(str(tmp_path / "mine.npz"), **options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.csv", "expected the path of a file, got .*nothing there"),
        ("x" * 300 + "/a.csv", "expected the path of a file"),
        ("a\0b.csv", "expected the path of a file"),
        ("none/", "expected a folder, or a file that ends in one of .csv"),
        ("mine.xlsx", "expected a folder, or a file that ends in one of .csv"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, name, words):
    with pytest.raises(ValueError, match=words):
        find_source(f"{tmp_path}/{name}")


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
    with pytest.raises(ValueError, match=r"expected the package datasets for hf:a/b, got none; .*fljax\[huggingface\]"):
        load("hf:a/b")


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path):
    odd = np.array([{"made": 2024}], dtype=object)
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array([0, 1] * 2), info=odd)
    assert load(str(tmp_path / "a.npz")).x.shape == (4, 2)
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 2)), y=np.array(["a", "b"] * 2, dtype=object))
    with pytest.raises(ValueError, match=r"expected numbers or text in the array 'y', got Python objects; y\.astype"):
        load(str(tmp_path / "b.npz"))


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
    with pytest.raises(ValueError, match=r"a\.npz: expected features .* got shapes \(3, 28, 28, 3\) and \(4,\)"):
        load(f"{tmp_path}/a.npz")
    write(tmp_path / "b.npz", train_images=np.zeros((12, 5), np.uint8))
    with pytest.raises(ValueError, match=r"b\.npz: expected uint8 images .* in train_images, got uint8 \[12, 5\]"):
        load(f"{tmp_path}/b.npz")
    write(tmp_path / "c.npz", test_labels=np.array([{}] * 6))
    with pytest.raises(ValueError, match=r"c\.npz: expected .*test_labels"):
        load(f"{tmp_path}/c.npz")
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 2)), y=[0, 1])
    (tmp_path / "e.npz").write_bytes(b"no zip")
    assert not is_medmnist(tmp_path / "d.npz")
    assert not is_medmnist(tmp_path / "e.npz")
    assert not is_medmnist(tmp_path / "nothing.npz")


TEXT = """
rounds = 1
[data]
dataset = "pneumoniamnist.npz"
partition = "iid"
clients = 2
test = "global"
[model]
name = "logistic_regression"
[local]
learning_rate = 0.1
batch_size = 4
steps = 1
[standalone]
steps = 1
[[algorithms]]
name = "fedavg"
"""


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
    with pytest.raises(ValueError, match="expected held_fraction of 0"):
        build_world(load_config(config, ["data.held_fraction=0.2"]))


def test_several_labels_need_a_model_of_ones_own(config):
    write(config.parent / "pneumoniamnist.npz", (28, 28), labels=14)
    with pytest.raises(
        ValueError, match="whose labels are no classes; a model of one's own, module:function, may have"
    ):
        resolve_setup(load_config(config))


@pytest.mark.thorough
def test_a_run(config):
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(config), "--quiet", "--no-report", "--out", str(config.parent / "run")])
    assert end.value.code == 0
