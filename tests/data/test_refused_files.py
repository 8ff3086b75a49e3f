"""Files of users that are refused: each is named in one sentence, with the file, the column or the value."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pandas
import pytest

from fljax.data import load
from tests.data.written import SCANS, leaf, parts, write

Files = dict[str, Any]
Row = tuple[str, Files, dict[str, Any], str]  # what is loaded, the files, the options, words of the sentence

ILL = {"label": "ill"}
Y = {"label": "y"}
T = "x,y\n1,0\n2,1\n"
ONES = np.ones((2, 2))
TWO = {"x": ONES, "y": [0, 1]}


def refused(tmp_path: pathlib.Path, row: Row) -> str:
    """The sentence; a path without a file's ending is the folder."""
    path, files, options, words = row
    write(tmp_path / "mine", files)
    with pytest.raises(ValueError, match=words) as caught:
        load(f"{tmp_path}/mine/{path}", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TABLES: list[Row] = [
    ("m.csv", {"m.csv": ""}, ILL, r"m\.csv: .* line of names and ','"),
    ("m.csv", {"m.csv": 'a,ill\n1,"2\n3,4\n'}, ILL, "expected a table"),
    ("m.csv", {"m.csv": b"\xff\xfe\x00"}, ILL, "encoding utf-8"),
    ("m.csv.gz", {"m.csv.gz": b"not gzip"}, ILL, "can be read"),
    ("m.csv", {"m.csv": "a,ill\n1,x\n,y\n"}, {**ILL, "shape": [1]}, r"'a', got none \(NaN\) in 1 of 2 rows"),
    (
        "m.csv",
        {"m.csv": "a,ill\n1,x\n ?,y\n"},
        {**ILL, "standardise": False},
        r"'a', got none \(NaN\) in 1 of 2 rows, first in row 1",
    ),
    ("m.csv", {"m.csv": "a,b\n1,x\n"}, ILL, r"column of the table \(a, b\), got 'ill'"),
    ("m.csv", {"m.csv": "ill\nx\n"}, ILL, "one row and one column of features"),
    ("m.csv", {"m.csv": "a,ill\n"}, ILL, "one row and one column of features"),
    ("m.csv", {"m.csv": "a,ill\n1,5,0\n2,5,1\n"}, ILL, "as many fields .* got longer"),
    ("m.csv", {"m.csv": "a,ill\n1,0\n2,5,1\n"}, ILL, "line of names and ',' between cells"),
    ("m.parquet", {"m.parquet": b"PAR1"}, ILL, "Parquet"),
    ("nothing.csv", {"m.csv": T}, {}, "path of a file, got .*nothing there"),
    ("x" * 300 + "/a.csv", {"m.csv": T}, {}, "path of a file"),
    ("a\0b.csv", {"m.csv": T}, {}, "path of a file"),
    ("none/", {"m.csv": T}, {}, r"a folder, .* one of \.csv"),
    ("m.xlsx", {"m.csv": T}, {}, r"a folder, .* one of \.csv"),
]

NPZ = "m.npz"
ARRAYS: list[Row] = [
    (NPZ, {NPZ: b"PK"}, {}, "numpy.savez"),
    (NPZ, {NPZ: b""}, {}, "numpy.savez"),
    (NPZ, {NPZ: {"x": ONES}}, {}, "one of the arrays x, got 'y'"),
    (NPZ, {NPZ: TWO}, {"client": "z"}, "got 'z'"),
    (NPZ, {NPZ: {**TWO, "z": [0]}}, {"client": "z"}, "one owner for each of the 2 rows"),
    (NPZ, {NPZ: {"x": ONES, "y": [0]}}, {}, r"^m\.npz: .* rows, got 2 in x and 1 in y$"),
    (NPZ, {NPZ: {"x": np.array([[1, None]], object), "y": [0]}}, {}, "array 'x', got Python objects"),
    (NPZ, {NPZ: {"x": ONES, "y": np.array(["a", "b"], object)}}, {}, r"array 'y', got Python objects; y\.astype"),
    (NPZ, {NPZ: {**parts(train=0), "x_test": np.ones((4, 3)), "y_test": [0, 1] * 2}}, {}, "test rows like rows"),
    (NPZ, {NPZ: parts(_=0, test=1)}, {}, r"^m\.npz: .* one part, or .*, got x_test beside x,"),
    (NPZ, {NPZ: parts(_=0, val=1)}, {}, "got x_val beside x,"),
    (NPZ, {NPZ: {**parts(_=0), "y_test": [1]}}, {}, "got y_test beside x,"),
    (NPZ, {NPZ: {**parts(train=0), "y_test": [1]}}, {}, "got y_test beside x_train,"),
    (NPZ, {NPZ: {**parts(train=0), "w_train": [1] * 4, "w_test": [1]}}, {"client": "w"}, "got w_test beside"),
    (NPZ, {NPZ: parts(train=0, dev=1)}, {}, "got x_dev beside x_train,"),
    (NPZ, {NPZ: parts(train=0, val=1, valid=2)}, {}, "got x_valid beside x_train and x_val"),
]

AGES = "age,ill\n1,0\n2,1\n"
CLIENT_TABLES: list[Row] = [
    ("", {"a.csv": AGES, "b.csv": "age,ill\nold,0\n"}, ILL, r"^b\.csv: .* 'age', as in a\.csv, got text, e.g. 'old'$"),
    ("", {"a.csv": "age,ill\nold,0\n", "b.csv": AGES}, ILL, r"^a\.csv: .* as in b\.csv, got text, e.g. 'old'$"),
    ("", {"a.csv": AGES, "b.csv": "Age,ill\n1,0\n"}, ILL, r"^b\.csv: .*a\.csv, got none named 'age' and 'Age' more$"),
    ("", {"a.csv": AGES, "b.csv": "age,ill\n"}, ILL, r"^b\.csv: .* one row, got none$"),
    ("", {"a.csv": AGES, "b.csv": "age,ill\n1,0\n1,\n"}, ILL, r"^b\.csv: .* 'ill', got none \(NaN\) in 1 of 2 rows"),
    ("", {"a.csv": AGES, "b.csv": ""}, ILL, r"^b\.csv: .* line of names"),
    ("", {"a.csv": AGES, "b.csv": AGES}, {"label": "il"}, r"^a\.csv: .* got 'il'"),
    ("", dict.fromkeys(["a.csv", "b.csv"], "x,y,site\n1,0,x\n"), {**Y, "vocabulary": 9}, r"^mine: .* got 'x' in row 0"),
    ("", {"a.csv": AGES, "b.x.csv": AGES}, {**ILL, "client": "age"}, "got 'client' .*; the files of this folder say"),
    ("", dict.fromkeys(["a.csv", "a.csv.gz"], T), Y, r"one file for each client, got a\.csv and a\.csv\.gz"),
    ("", dict.fromkeys(["train/a.csv", "test/a.csv"], "x,y,p\n1,0,train\n"), {**Y, "part": "p"}, "part, .*got both"),
    ("", {"train/a.csv": T, "test/a.csv": "x,y\n"}, Y, "test rows in some file of test rows, got none"),
]
OTHER_FORMS = [
    (["train", "test"], r"got test\.csv and train\.csv; for two files"),
    (["train"], r"got train\.csv; for two files"),
    (["north", "test"], r"got test\.csv; for two files"),
    (["a", "train/b"], r"train and test, got a\.csv and train/b\.csv"),
    (["train/a", "test/a", "valid/a"], r"train and test, got valid/a\.csv"),
    (["test/a"], r"training rows, got test/a\.csv alone"),
    (
        ["north_test", "north_train", "south_test", "south_train"],
        r"one name .*north_test\.csv and north_train\.csv; put",
    ),
    (["test-north", "train-north"], r"one name .*test-north\.csv and train-north\.csv; put"),
    (["train/north", "test/north_test"], r"one name .*train/north\.csv and test/north_test\.csv; put"),
    (["north", "north.valid"], r"one name .*north\.csv and north\.valid\.csv; put"),
]
CLIENT_TABLES += [("", {f"{name}.csv": T for name in names}, Y, words) for names, words in OTHER_FORMS]
# The last file is the one that would not be read; of two alike, the first one.
PASSED_OVER = [
    ["north.csv", "south/south.csv"],
    ["north.csv", "Testing/north.csv"],
    ["north.csv", "val/north.csv"],
    ["train/a.csv", "train/x/b.csv"],
    ["train/a.csv", "val/a.csv"],
    ["train/a.csv", "test/a.tsv"],
    ["train/a.csv", "test/sub/a.csv"],
    ["north.csv", "east.tsv"],
    ["north.csv", "south.csv.bz2"],
    ["north.csv", "w.xlsx"],
    ["north.csv", "u.txt"],
    ["north.csv", "about.json"],
    ["north.csv", "north.csv.dvc", "south.csv.dvc"],
    ["a.csv", "b.csv/part-0.csv"],
    ["a.csv", "b.parquet/_SUCCESS", "b.parquet/part-0.parquet"],
    ["south/rows.csv", "north/rows.csv"],
]
CLIENT_TABLES += [
    ("", dict.fromkeys(names, T), Y, rf"^mine: .* folders train and test, got {names[-1]}, which would")
    for names in PASSED_OVER
]

CLIENT_ARRAYS: list[Row] = [
    ("", {"a.npz": parts(_=0), "sub/b.npz": b"rows"}, {}, r"got sub/b\.npz, which would not be read; move it out"),
    ("", {"a.npz": parts(_=0), "b.npy": b"rows"}, {}, r"got b\.npy, which would not be read; move it out"),
    ("", {"train/a.npz": parts(_=0), "train/x/b.npz": b"rows"}, {}, r"got train/x/b\.npz, which would not be read"),
    ("", {"train/a.npz": parts(_=0, test=1), "test/a.npz": parts(_=0)}, {}, r"train/a\.npz: .* got x_test beside x,"),
    ("", dict.fromkeys(["train/South.npz", "test/south.npz"], parts(_=0)), {}, "clients .* got 'south' and 'South'"),
]
SECOND = [
    ({"x": np.ones((2, 3)), "y": [0, 1]}, r"b\.npz like rows of a\.npz, which have features float64 \(4, 2\)"),
    ({"x": ONES, "y": [0]}, r"b\.npz: .* rows, got 2 in x and 1 in y$"),
    (
        {**TWO, "x_test": ONES, "y_test": [0, 1]},
        r"b\.npz: .* one part, .* got x_test beside x, which would not be read",
    ),
    ({"x": ONES, "y": ["u", "v"]}, r"b\.npz like rows of a\.npz"),
    ({"x": ONES}, r"b\.npz: .* arrays x, got 'y'"),
    ({"x": np.ones((0, 2)), "y": np.ones(0)}, r"b\.npz: .* one training row, got none"),
    ({"x": np.full((2, 2), np.nan), "y": [0, 1]}, r"features of rows of b\.npz"),
    ({"x": ONES, "y": 1}, r"b\.npz: .* array 'y', got a single value"),
]
CLIENT_ARRAYS += [("", {"a.npz": parts(_=0), "b.npz": second}, {}, f"^mine: .*{words}") for second, words in SECOND]

ROWS = "age,ill,site\n"
TRAIN = f"{ROWS}1,no,b\n2,yes,a\n3,no,b\n4,yes,a\n"
TESTED = {**ILL, "client": "site", "test_file": "test.csv"}
TEST_FILES: list[Row] = [
    ("train.csv", {"train.csv": TRAIN, "test.csv": test}, {**TESTED, **options}, words)
    for test, options, words in [
        ("ill,site\nno,a\n", {}, r"^test\.csv: .* train\.csv, got none named 'age'$"),
        ("Age,ill,site\n1,no,a\n", {}, r"train\.csv, got none named 'age' and 'Age' more$"),
        ("age,site\n1,a\n", {}, "got none named 'ill'"),
        ("age,ill,site,Site\n1,no,a,b\n", {}, "got 'Site' more"),
        (f"{ROWS}old,no,a\n", {}, r"^test\.csv: .* 'age', as in .* got text, e.g. 'old'"),
        (f"{ROWS}True,no,a\n", {}, "got true or false, e.g. True"),
        (f"{ROWS}1,,a\n", {}, r"^test\.csv: .* 'ill', got none \(NaN\) in 1 of 1 rows"),
        (ROWS, {}, r"^test\.csv: .* one row, got none"),
        ("", {}, r"^test\.csv: .* line of names"),
        (TRAIN, {"test_file": "none.csv"}, r"^train\.csv: test_file: .*nothing there"),
        (TRAIN, {"test_file": "train.csv"}, r"another file than train\.csv"),
        (TRAIN, {"test_file": "test.npz"}, "got .*nothing there"),
        (TRAIN, {"part": "age"}, "part, .*, or test_file, got both"),
        ("age,ill,Site\n1,no,a\n", {"features": ["age"]}, r"^test\.csv: .* got none named 'site'"),
        (TRAIN, {"label": "il"}, r"^train\.csv: .* got 'il'"),
        (TRAIN, {"features": ["ages"]}, r"^train\.csv: .* got 'ages'"),
        (TRAIN, {"images": "ill"}, r"^train\.csv: .* label and images, got 'ill'"),
    ]
]
IN_ONE_FORM = r"^train\.csv: .* of the column 'site' in one form, got"
IN_ONE_KIND = r"^train\.csv: .* in the column 'ill', got"
BOTH = r"whole numbers in train\.csv and True and False in test\.csv"
TEST_FILES += [
    ("train.csv", {"train.csv": ROWS + train, "test.csv": ROWS + test}, {**TESTED, **options}, words)
    for train, test, options, words in [
        ("1,no,1\n2,no,2\n", "1,no,1.0\n2,no,2.0\n", {}, rf"{IN_ONE_FORM} '1' in train\.csv and '1.0' in test\.csv"),
        ("1,no,1\n2,no,1.\n", "1,no,3\n", {}, rf"{IN_ONE_FORM} '1' in train\.csv and '1.' in train\.csv"),
        ("1,0,a\n2,1,a\n", "1,True,a\n2,False,a\n", {}, f"{IN_ONE_KIND} {BOTH}"),
        ("1,0,a\n2,1,a\n", "1,True,a\n2,False,a\n", {"regression": False}, f"{IN_ONE_KIND} {BOTH}"),
        ("1,1,a\n2,2,a\n", "1,1.0,a\n2,2.0,a\n", {}, f"{IN_ONE_KIND} .*decimals in test.csv; regression"),
        ("1,1.0,a\n2,2.0,a\n", "1,1,a\n2,2,a\n", {}, f"{IN_ONE_KIND} .*decimals in train.csv; regression"),
        (
            "1,1,a\n2,2,a\n",
            "1,1.0,a\n2,2.5,a\n",
            {"regression": False},
            r"'ill' in one form, got '1' in train\.csv and '1\.0' in test\.csv",
        ),
    ]
]
TEST_FILES += [
    ("train.csv", {"train.csv": f"{ROWS}1,0,{one}\n2,1,b\n", "test.csv": f"{ROWS}1,0,{other}\n2,1,b\n"}, TESTED, words)
    for words in ["clients of test .* as in the training rows, got '.*' and '.*'"]
    for one, other in [("South", "south"), ("7", "07"), ("A 1", "a 1"), ("0012", "12"), ("Zoe\u0308", "ZO\u00cb")]
]
TEST_FILES += [
    (NPZ, {NPZ: {**TWO, "w": [1, 2]}, "t.npz": {"x": ONES}}, {"test_file": "t.npz"}, r"^m\.npz: t\.npz: .* got 'y'"),
    (NPZ, {NPZ: parts(train=0, test=1), "t.npz": TWO}, {"test_file": "t.npz"}, r"^m\.npz: .*x_train.*, got 'x'"),
    (NPZ, {NPZ: TWO, "t.csv": TRAIN}, {"test_file": "t.csv"}, r"test_file: .* ends in \.npz, got 't\.csv'"),
]

IMAGES: list[Row] = [
    ("train.csv", SCANS | files, {**ILL, "images": "file", **options}, words)
    for files, options, words in [
        ({}, {"images": "path"}, r"^train\.csv: .* got 'path'"),
        ({}, {"image_folder": "nowhere"}, r"got no file at .*images/3\.png' \(4 of 4 are missing\); paths begin in"),
        ({}, {"image_folder": "~nobody/x"}, r"got no file at .*\(4 of 4 are missing\)"),
        ({}, {"features": ["age"]}, "images, .*, or features, got both"),
        ({}, {"shape": [2, 2]}, "images, .*, or shape, got both"),
        ({}, {"size": [4]}, r"size as \[height, width\], .* got \[4\]"),
        ({}, {"images": None, "size": [4, 4]}, "size together with images, .* got size alone"),
        ({}, {"images": "age"}, r"got no file at .*/3' \(4 of 4 are missing\)"),
        ({"train.csv": "file,ill\nimages/0.png,0\n1.png,1\n"}, {}, r"^train\.csv: .*/1\.png' \(1 of 2 are missing\)"),
        ({"images/1.png": b"no image"}, {}, r"an image, got .*1\.png"),
        ({"train.csv": "file,ill\nimages/0.png,0\n,1\n"}, {}, r"'file', got none \(NaN\) in 1 of 2 rows"),
    ]
]
IMAGES += [
    ("", {}, {}, "images in folder/class/image"),
    ("", {"a/0.png": b"no image"}, {}, r"an image, got .*0\.png"),
    ("", {"north/train/a/0.png": 1, "south/a/0.png": 1}, {"client": True}, "all clients or none, got none in 'south'"),
    ("", {"train/north/test/a/0.png": 1}, {"client": True}, "all clients or none, got 'train/north/test'"),
    ("", {"north/a/0.png": 1}, {"client": False}, "folder/class/image .* got 'north/a/0.png'; client = true reads"),
    ("", {"a/0.png": 1, "b/more/0.png": 1}, {"client": False}, r"got 'b/more/0\.png'; client = true"),
    ("", {"a/0.png": 1}, {"client": True}, r"images in folder/client/class/image .*, got 'a/0\.png'$"),
    ("", {"a/1.png": 1, "a/b/2.png": 2, "a/b/3.png": 3}, {}, "'a/b/2.png' and 1 more in other places(; client|$)"),
    ("", {"cat/1.png": 1, "3.png": 1}, {}, "^expected images in folder/.*, got '3.png'(; client|$)"),
    ("", {"train/cat/1.png": 1, "train/9.png": 1}, {}, "^expected images in folder/.*, got 'train/9.png'(; client|$)"),
    ("", {"a/cat/1.png": 1, "a/3.png": 1}, {"client": True}, "^expected images in folder/.*, got 'a/3.png'"),
    ("", {"a/1.png": 1, "b/1.heic": b"1", "b/2.heic": b"2"}, {}, "other kinds alone in 'b': 1.heic and 1 more"),
    ("", {"cat/1.heic": b"1"}, {}, "other kinds alone in 'cat': 1.heic"),
]
SIZES: list[Any] = [32, "ab", ["a", "b"], [2.5, 2.5], [0, 3], [True, True], [4]]
IMAGES += [("", {"a/0.png": 1}, {"size": size}, r"size as \[height, width\], .*, got ") for size in SIZES]

USER = {"u": {"x": [[1], [2]], "y": [0, 1]}}
LEAF: list[Row] = [
    ("d.json", {"d.json": leaf(USER, **changes)}, {}, words)
    for changes, words in [
        ({"num_samples": [3]}, "3 rows of the user 'u'"),
        ({"num_samples": [1, 2]}, "users and num_samples of one length"),
        ({"users": ["w"]}, 'lists "x" and "y" of the user \'w\''),
        ({"user_data": {}}, "LEAF's keys"),
        ({"users": [], "num_samples": []}, r"all users of user_data in users in .*, got none of 'u'$"),
        ({"users": ["u", "u"], "num_samples": [2, 2]}, r"different users in .*, got 'u' 2 times"),
        ({"user_data": {"u": {"x": [[1], [1, 2]], "y": [0, 1]}}}, "rows of 'u' of one length"),
        ({"user_data": {"u": {"x": [[1], [2]], "y": [0, None]}}}, "a label in each row"),
        ({"user_data": {"u": {"x": [[["a"]], [["b"]]], "y": [0, 1]}}}, "numbers or texts as rows of 'u'"),
        ({"user_data": {"u": {"x": [[1], [2], [3]], "y": [0, 1]}}}, "got 3 rows and 2 labels"),
    ]
]
LEAF += [
    ("d.json", {"d.json": "{"}, {}, r"expected JSON in .*d\.json"),
    ("", dict.fromkeys(["test/a.json", "all.json"], leaf(USER)), {}, r"folder train .*, got none .* 'test/a\.json'"),
    ("", {"test/a.json": leaf(USER)}, {}, "folder train with LEAF's JSON files beside the folder test"),
    ("", dict.fromkeys(["train/a.json", "all.json"], leaf(USER)), {}, r"got 'all\.json' beside the folder train"),
    # A JSON file that does not begin as LEAF's do says nothing about the arrays.
    ("", {"train/0.npz": {"x": np.zeros(2)}, "config.json": "{}"}, {}, r"^mine: train/0\.npz: .* arrays x, got 'y'"),
]

KINDS: list[Row] = [
    ("", files, {}, f"files of one kind in the folder 'mine', got {words}")
    for files, words in [
        ({"a.csv": T, "b.npz": b""}, r"tables \(a\.csv\) and arrays \(b\.npz\); keep one kind"),
        ({"labels.csv": T, "cat/0.png": b""}, r"tables \(labels\.csv\) and images \(cat/0\.png\)"),
        ({"labels.csv": T, "0.png": b""}, r"tables \(labels\.csv\) and images \(0\.png\)"),
        ({"a.npz": b"", "train/n/c/0.png": b""}, r"arrays \(a\.npz\) and images \(train/n/c/0\.png\)"),
        ({"a.csv": T, "train/a.json": leaf(USER)}, r"tables \(a\.csv\) and LEAF's JSON \(train/a\.json\)"),
    ]
]


@pytest.mark.unchecked
@pytest.mark.parametrize("row", TABLES + CLIENT_TABLES + TEST_FILES, ids=lambda row: row[3])
def test_tables(tmp_path: pathlib.Path, row: Row) -> None:
    if row[0].endswith("parquet"):
        pytest.importorskip("pyarrow")
    refused(tmp_path, row)


@pytest.mark.unchecked
@pytest.mark.parametrize("row", ARRAYS + CLIENT_ARRAYS, ids=lambda row: row[3])
def test_arrays(tmp_path: pathlib.Path, row: Row) -> None:
    refused(tmp_path, row)


@pytest.mark.unchecked
@pytest.mark.parametrize("row", IMAGES, ids=lambda row: row[3])
def test_images(tmp_path: pathlib.Path, row: Row) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "mine").mkdir()
    refused(tmp_path, row)


@pytest.mark.parametrize("row", LEAF + KINDS, ids=lambda row: row[3])
def test_folders_and_files_of_leaf(tmp_path: pathlib.Path, row: Row) -> None:
    refused(tmp_path, row)


def test_parquet_needs_an_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        raise ImportError("no engine")

    monkeypatch.setattr(pandas, "read_parquet", missing)
    refused(tmp_path, ("m.parquet", {"m.parquet": b"PAR1"}, ILL, r"m\.parquet: .* pyarrow.* 'fljax\[parquet\]'"))


def test_a_link_to_a_file_that_was_not_fetched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "south.csv").symlink_to(tmp_path / ".git" / "annex" / "objects" / "south.csv")
    refused(tmp_path, ("", {"north.csv": T}, Y, r"got south\.csv, a link to a file that is not here; fetch it"))
