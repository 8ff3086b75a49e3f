"""Files of users that are read: rows in each format are the same rows, and what each file of a table gives."""

from __future__ import annotations

import gzip
import pathlib
import tempfile
from collections import Counter
from typing import Any

import hypothesis
import numpy as np
import pandas
import pytest
from hypothesis import strategies as st

from fljax.data import federate, load, row_numbers
from fljax.data.clients import PARTS
from fljax.data.datasets import Dataset
from tests.data import formats
from tests.data.formats import Told
from tests.data.written import SCANS, leaf, parts, write
from tests.drawn import at_most

# --- The same rows in each format ---------------------------------------------------------------------------

READERS = formats.PARTS_IN_TWO | formats.PARTS_IN_THREE | formats.PARQUET | formats.IMAGES
STRANGER = ("zoe", 99)  # has test rows alone
ALL_TRAIN = ("mappings", "npz of clients")


@st.composite
def rows_of_clients(draw: Any, reader: str) -> Told:
    """Clients with text or numbers as names and labels; each trains, and the first one has rows in each part."""
    names = draw(st.sampled_from([["bob", "anna", "carl"], [10, 2, 7]]))[: draw(st.integers(2, 3))]
    labels = draw(st.sampled_from([["no", "yes"], [0, 1]]))
    valid = reader not in formats.PARTS_IN_TWO and draw(st.booleans())
    least = 1 if reader == "mappings" else 0  # parts of all clients or of none
    counts = [[2, draw(st.integers(least or not place, 2)) * valid, draw(st.integers(least or not place, 2))]
              for place in range(len(names))]  # fmt: skip
    if reader not in ALL_TRAIN and all(count[2] for count in counts) and draw(st.booleans()):
        names, counts = [*names, STRANGER[isinstance(names[0], int)]], [*counts, [0, 0, 1]]
    owner = [name for name, count in zip(names, counts, strict=True) for _ in range(sum(count))]
    part = [part for count in counts for part, rows in enumerate(count) for _ in range(rows)]
    values = draw(st.lists(st.integers(0, 255), min_size=len(part), max_size=len(part)))
    return Told(np.array(values, float)[:, None], [labels[at % 2] for at in range(len(part))], owner, part)


def named(names: tuple[Any, ...] | None, numbers: Any) -> list[str]:
    return [str(number if names is None else names[number]) for number in np.asarray(numbers).tolist()]


@pytest.mark.parametrize("reader", READERS)
@hypothesis.given(drawn=st.data())
@at_most(5)
def test_rows_in_each_format_are_the_same_rows(reader: str, drawn: Any) -> None:
    told = drawn.draw(rows_of_clients(reader))
    if reader in formats.PARQUET:
        pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as folder:
        made = READERS[reader](told, pathlib.Path(folder))
    value = np.asarray(made.x).reshape(len(made.y), -1)[:, 0].tolist()
    label, owner = named(made.class_names, made.y), named(made.owner_names, made.owner)
    expected = list(zip(told.x[:, 0].tolist(), map(str, told.y), map(str, told.owner), told.part, strict=True))
    assert Counter(zip(value, label, owner, np.asarray(made.part).tolist(), strict=True)) == Counter(expected)
    in_memory = reader in ("frame", "columns", "categories", "arrow", "mappings")
    assert made.standardise == (not in_memory and reader not in formats.IMAGES)
    if reader not in formats.IMAGES:
        assert (made.mean, made.std) == (0.0, 1.0)
    federation = federate(made, "natural")
    seen = [str(name) for name in federation.names.clients or ()]
    assert sorted(seen) == sorted({o for _, _, o, p in expected if p == 0})
    for number, part in enumerate(PARTS):
        for name, rows in zip(seen, row_numbers(federation, part), strict=True):
            own = [v for v, _, o, p in expected if (o, p) == (name, number)]
            assert sorted(value[row] for row in rows) == sorted(own), (name, part)
    strange = [v for v, _, o, _ in expected if o not in seen]
    held = federation.held.get("test")
    assert strange == ([] if held is None else [value[row] for row in np.asarray(held.index)])
    if strange:
        assert federate(made, "natural", unseen="test").names.unseen in (("zoe",), (99,), ("99",))


# --- Tables of what is given and what is read ---------------------------------------------------------------


def read(made: Dataset, name: str) -> Any:
    """``rows`` are whole rows, flat; ``x`` is the first number of each, ``names`` those of features; else a field."""
    if name == "rows":
        return np.asarray(made.x).reshape(len(made.y), -1).tolist()
    if name == "x":
        return np.asarray(made.x).reshape(len(made.y), -1)[:, 0].tolist()
    if name == "names":
        return made.features.names
    found = made.x.shape if name == "shape" else made.x.dtype if name == "dtype" else getattr(made, name)
    return found.tolist() if isinstance(found, np.ndarray) else found


Row = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]  # the path, the files, the options, what is read

ILL = {"label": "ill"}
SITE = {"label": "ill", "client": "site"}
PLAIN = {**SITE, "standardise": False}
Y = {"label": "y"}
M = "m.csv"
TABLE = "age,ill,site\n20,no,b\n40,yes,a\n30,no,b\n50,yes,a\n"
WHOLE = {"x": [20, 40, 30, 50], "y": [0, 1, 0, 1], "owner": [1, 0, 1, 0], "names": ("age",), "standardise": True}
WHOLE |= {"class_names": ("no", "yes"), "owner_names": ("a", "b"), "mean": 0.0, "std": 1.0}
NUMBERED = "".join(f"{at - 1 if at else ''},{line}\n" for at, line in enumerate(TABLE.split()))
KOELN = "dose;class;site\n1,5;ill;K\u00f6ln\n2,5;well;Z\u00fcrich\n"
EUROPE = {"separator": ";", "decimal": ","}
TABLES: list[Row] = [
    (M, {M: TABLE}, SITE, WHOLE),
    ("m.csv.gz", {"m.csv.gz": gzip.compress(TABLE.encode())}, SITE, WHOLE),
    (M, {M: TABLE}, PLAIN, {"standardise": False, "mean": 0.0, "std": 1.0}),
    # Row numbers that pandas wrote are no feature, also if it wrote them twice.
    (M, {M: NUMBERED}, SITE, {"x": [20, 40, 30, 50], "names": ("age",)}),
    (M, {M: ",Unnamed: 0,age,ill\n0,0,20,x\n0,0,30,y\n"}, ILL, {"names": ("age",)}),
    (M, {M: "Unnamed: 0,,age,ill\n0,,20,x\n0,,30,y\n"}, ILL, {"names": ("age",)}),
    (M, {M: "age,ill,\n20,x,\n30,y,\n"}, ILL, {"names": ("age",)}),
    # A comma at the end of rows shifts no column; the first row alone made pandas take names of rows from it.
    (M, {M: "age,ill,z\n63,0,A,\n64,1,A,\n"}, {**ILL, "features": ["age"]}, {"x": [63, 64], "y": [0, 1]}),
    (M, {M: "age,ill,z\n63,0,A,\n64,1,A\n"}, {**ILL, "features": ["age"]}, {"x": [63, 64], "y": [0, 1]}),
    (M, {M: '"f;1";f;y\n1;2;0\n3;4;1\n'}, {**Y, "separator": ";"}, {"names": ("f;1", "f")}),
    (M, {M: "a,y\n1,1.5\n2,2\n3,1e1\n"}, Y, {"classes": None, "y": [1.5, 2, 10]}),
    (M, {M: "a,y\n1,1\n2,20\n3,3\n"}, {**Y, "regression": True}, {"classes": None, "y": [1, 20, 3]}),
    (M, {M: "a,y\n1,007\n2,1e1\n3,-3\n"}, {**Y, "regression": True}, {"classes": None, "y": [7, 10, -3]}),
    (M, {M: "a;y\n1;1,5\n2;2\n3;-3,25\n"}, {**Y, **EUROPE}, {"classes": None, "y": [1.5, 2, -3.25]}),
    (M, {M: "a,y\n1,5.0\n2,4.0\n3,5.0\n"}, {**Y, "regression": False}, {"class_names": ("4.0", "5.0")}),
    (M, {M: "a;y\n1;1.500\n2;2,5\n"}, {**Y, **EUROPE}, {"class_names": ("1.500", "2,5")}),
    (M, {M: "a,y,set\n1,0,train \n2,1, test\n3,1,train\n"}, {**Y, "part": "set"}, {"train_size": 2}),
    *(
        (M, {M: KOELN.encode(code)}, {**PLAIN, **EUROPE, "label": "class", "encoding": code},
         {"owner_names": ("K\u00f6ln", "Z\u00fcrich"), "x": [1.5, 2.5]})
        for code in ("latin-1", "utf-16", "utf-8")
    ),
]  # fmt: skip

UINT8 = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
SITES = {"x": UINT8, "y": ["b", "a"] * 3, "site": [5, 9] * 3}
STRANGE = {"who_train": [1, 1, 2, 2], "who_test": [2, 7, 1, 1]}
NPZ = "m.npz"
ONES = np.ones((2, 2))
ARRAYS: list[Row] = [
    (NPZ, {NPZ: SITES}, {"client": "site"}, {"shape": (6, 2, 2, 1), "dtype": np.uint8, "y": [1, 0] * 3}),
    (NPZ, {NPZ: SITES}, {"client": "site"}, {"owner_names": (5, 9)}),
    (NPZ, {NPZ: {**parts(train=0, test=9), "y_train": [3, 4] * 2, "y_test": [4] * 4}}, {},
     {"train_size": 4, "y": [0, 1, 0, 1, 1, 1, 1, 1], "class_names": (3, 4)}),
    # 7 never trains: its row is of the global test part.
    (NPZ, {NPZ: {**parts(train=0, test=9), **STRANGE}}, {"client": "who", "standardise": False},
     {"train_size": 7, "part": [0] * 4 + [2] * 4, "owner": [0, 0, 1, 1, 1, 0, 0, 2], "x": [0, 2, 4, 6, 9, 13, 15, 11]}),
    # Arrays that nobody asked for are not read.
    (NPZ, {NPZ: {**parts(_=0), "info": np.array([{"made": 2024}], object)}}, {}, {"shape": (4, 2)}),
    (NPZ, {NPZ: {"x": ONES, "y": ["a", "b"]}, "t.npz": {"x": ONES, "y": ["b", "c"]}},
     {"test_file": "t.npz"}, {"train_size": 2, "class_names": ("a", "b", "c"), "y": [0, 1, 1, 2]}),
    (NPZ, {NPZ: {"x": ONES, "y": ["a", "b"], "who": [1, 1]}, "t.npz": {"x": ONES, "y": ["b", "c"]}},
     {"client": "who", "test_file": "t.npz"}, {"train_size": 2, "class_names": ("a", "b", "c"), "y": [0, 1, 1, 2]}),
]  # fmt: skip

NOTES = dict.fromkeys(
    ("README", "README.txt", "licence.md", "notes.md", "Thumbs.db", "datapackage.json", ".hid.csv"), "-"
)
T = "x,y\n1,0\n2,1\n"
CLIENTS: list[Row] = [
    # Columns are found by name.
    ("", {**NOTES, "b.csv": "age,ill\n1,no\n2,yes\n", "a.csv": "ill,age\nno,3\nyes,4\nno,5\n", "empty/more": None}, ILL,
     {"owner_names": ("a", "b"), "x": [3, 4, 5, 1, 2], "y": [0, 1, 0, 0, 1], "owner": [0, 0, 0, 1, 1], "part": None,
      "train_size": 5, "class_names": ("no", "yes"), "names": ("age",), "standardise": True}),
    # Names of files that are numbers, and names of which one is none.
    ("", {f"{name}.csv": f"a,y\n{name},0\n{name},1\n" for name in ("0", "2", "10")}, Y,
     {"owner_names": (0, 2, 10), "x": [0, 0, 10, 10, 2, 2], "owner": [0, 0, 2, 2, 1, 1]}),
    ("", {f"{name}.csv": f"a,y\n{name},0\n{name},1\n" for name in ("0", "2", "10", "007")}, Y,
     {"owner_names": ("0", "007", "10", "2")}),
    # c has a file of test rows without rows, and d never trains.
    ("", {"train/a.csv": T, "train/b.csv": "x,y\n3,0\n4,1\n", "train/c.csv": "x,y\n5,1\n", "test/b.csv": "y,x\n1,6\n",
          "test/a.csv": "x,y\n7,0\n", "test/d.csv": "x,y\n8,1\n", "test/c.csv": "x,y\n"}, {**Y, "standardise": False},
     {"x": [1, 2, 3, 4, 5, 7, 6, 8], "owner": [0, 0, 1, 1, 2, 0, 1, 3], "part": [0] * 5 + [2] * 3,
      "owner_names": ("a", "b", "c", "d"), "train_size": 7}),
    # Labels are text in all files if they are in one.
    ("", {"a.csv": "x,y\n1,1\n2,2\n", "b.csv": "x,y\n3,none\n"}, Y, {"class_names": ("1", "2", "none")}),
    ("", {"a.csv": "x,y\n1,1\n2,2\n", "b.csv": "x,y\n3,1.5\n"}, Y, {"y": [1, 2, 1.5]}),
    *(
        ("", {f"{folder}/{name}.csv": T for folder in folders for name in "ab"}, Y,
         {"owner_names": ("a", "b"), "part": [0] * 4 + [2] * 4})
        for folders in (("Train", "Test"), ("TRAIN", "test"))
    ),
    ("", {"train/Z\u00fcrich.csv": T, "test/Zu\u0308rich.csv": T}, Y, {"owner_names": ("Z\u00fcrich",)}),
    ("mine/", {"scans/0.png": 0, "scans/1.png": 1, "scans/2.png": 2, "mine/a.csv": "file,y\n2.png,0\n1.png,1\n",
               "mine/b.csv": "y,file\n0,0.png\n"}, {**Y, "images": "file", "image_folder": "../scans"},
     {"x": [2, 1, 0], "owner_names": ("a", "b")}),
    ("", {"n.npz": parts(3, _=0), "s.npz": parts(2, _=6)}, {},
     {"owner_names": ("n", "s"), "train_size": 5, "part": None, "x": [0, 2, 4, 6, 8], "owner": [0, 0, 0, 1, 1]}),
]  # fmt: skip

ROWS = "age,ill,site\n"
TESTED = {**SITE, "test_file": "test.csv"}
TRAIN = f"{ROWS}1,no,b\n2,yes,a\n3,no,b\n4,yes,a\n"
TEST_FILES: list[Row] = [
    ("train.csv", {"train.csv": train, "test.csv": test}, options, expected)
    for train, test, options, expected in [
        ("age,ill\n1,no\n2,yes\n3,no\n4,yes\n", "ill,age\nno,7\n", {**ILL, "test_file": "test.csv"},
         {"train_size": 4, "part": None, "owner": None, "x": [1, 2, 3, 4, 7], "y": [0, 1, 0, 1, 0], "names": ("age",),
          "standardise": True, "class_names": ("no", "yes")}),
        # c never trains.
        (TRAIN, "site,ill,age\na,yes,7\nc,no,8\nb,no,9\n", {**TESTED, "standardise": False},
         {"x": [1, 2, 3, 4, 7, 9, 8], "y": [0, 1, 0, 1, 1, 0, 0], "owner": [1, 0, 1, 0, 0, 1, 2], "train_size": 6,
          "part": [0] * 4 + [2] * 3, "class_names": ("no", "yes"), "classes": 2, "mean": 0.0, "std": 1.0}),
        (TRAIN, "ill,age\nyes,7\n", TESTED,
         {"train_size": 4, "part": None, "owner_names": ("a", "b"), "owner": [1, 0, 1, 0, -1]}),
        (TRAIN, f"{ROWS}7,maybe,a\n", TESTED, {"class_names": ("maybe", "no", "yes"), "y": [1, 2, 1, 2, 0]}),
        ("a,y\n1,1\n2,2\n", "a,y\n1,1.0\n", {**Y, "test_file": "test.csv", "regression": True}, {"y": [1, 2, 1]}),
        ("a,b,y\n1,x,1\n2,x,2\n", "y,a\n1.5,3\n", {**Y, "features": ["a"], "test_file": "test.csv"},
         {"classes": None, "y": [1, 2, 1.5], "x": [1, 2, 3]}),
    ]
]  # fmt: skip
# Blanks and accents make no other client or class.
TEST_FILES += [
    ("train.csv", {"train.csv": ROWS + train, "test.csv": ROWS + test}, TESTED,
     {"class_names": ("no", "yes"), "y": [0, 1, 0, 1], "owner_names": names, "train_size": 4, "owner": [0, 1, 0, 1]})
    for train, test, names in [
        ("1,no,x\n2,yes,y\n", "1,no ,x \n2,yes,  y\n", ("x", "y")),
        ("1,no,Z\u00fcrich\n2,yes,y\n", "1,no,Zu\u0308rich\n2,yes,y\n", ("Z\u00fcrich", "y")),
        ('1,no,"x "\n2,yes,y\u00a0\n', '1," no",x\n2,yes,y\n', ("x", "y")),
        ("1,no,1 \n2,yes,2\n", "1,no,1\n2,yes,2\n", (1, 2)),
    ]
]  # fmt: skip

COLOURS = SCANS | {"more/9.png": (9, 9, 9), "test.csv": "file,ill\nmore/9.png,1\n"}
SHORT = SCANS | {"train.csv": str(SCANS["train.csv"]).replace("images/", "")}
IMAGES: list[Row] = [
    ("train.csv", SCANS, {**SITE, "images": "file"},
     {"shape": (4, 4, 5, 1), "dtype": np.uint8, "x": [3, 2, 1, 0], "y": [1, 0, 1, 0], "owner_names": ("h0", "h1"),
      "standardise": False, "names": None, "mean": 0.5, "std": 0.5}),
    ("train.csv", SHORT, {**ILL, "images": "file", "image_folder": "images", "size": [2, 3]}, {"shape": (4, 2, 3, 1)}),
    ("train.csv", COLOURS, {**TESTED, "images": "file"},
     {"shape": (5, 4, 5, 3), "train_size": 4, "rows": [[value] * 60 for value in (3, 2, 1, 0, 9)]}),
    ("train.csv", COLOURS, {**TESTED, "images": "file", "image_folder": "."}, {"shape": (5, 4, 5, 3)}),
    (M, {"u\u0308.png": 0, M: "file,ill\nu\u0308.png,0\n"}, {**ILL, "images": "file"}, {"shape": (1, 4, 5, 1)}),
    ("", {"dog/0.png": 0, "cat/1.png": 10, "cat/2.png": 20, "cat/notes.txt": "-", "empty": None}, {},
     {"shape": (3, 4, 5, 1), "dtype": np.uint8, "y": [0, 0, 1], "class_names": ("cat", "dog"), "x": [10, 20, 0]}),
    ("", {"train/a/0.png": 1, "train/b/0.png": (2, 2, 2), "test/b/0.png": 3}, {},
     {"shape": (3, 4, 5, 3), "train_size": 2, "y": [0, 1, 1], "rows": [[value] * 60 for value in (1, 2, 3)]}),
    ("", {"train/a/0.png": 0, "train/b/0.png": 1, "Valid/a/0.png": 2, "test/b/0.png": 3}, {},
     {"x": [0, 1, 2, 3], "train_size": 3, "y": [0, 1, 0, 1], "part": [0, 0, 1, 2]}),
    # Hidden files and those of archives are no images.
    ("", {"train/cat/1.png": 1, "test/cat/2.jfif": 2, "__MACOSX/train/cat/1.png": b"", "train/cat/._1.png": b"",
          "train/.thumbnails/1.png": b""}, {}, {"y": [0, 0], "train_size": 1, "class_names": ("cat",)}),
]  # fmt: skip

USER = {"u": {"x": [[1.0] * 4] * 2, "y": [0, 1]}}
PLAY = {"romeo": {"x": ["abc", "bc "], "y": ["d", "a"]}, "juliet": {"x": ["ca"], "y": ["d"]}}
PICTURES = {"cat/0.png": 0, "dog/0.png": 0}
LEAF: list[Row] = [
    ("d.json", {"d.json": leaf({"v": USER["u"], **USER})}, {"shape": [2, 2, 1]},
     {"shape": (4, 2, 2, 1), "owner_names": ("u", "v")}),
    # Characters become tokens.
    ("d.json", {"d.json": leaf(PLAY)}, {},
     {"rows": [[2, 3, 4], [3, 4, 1], [4, 2, 0]], "vocabulary": 5, "class_names": ("a", "d"), "y": [1, 0, 1],
      "shape": (3, 3)}),
    ("d.json", {"d.json": leaf({"u": {"x": ["look at cat.png", "my dog.png"], "y": [0, 1]}})}, {}, {"classes": 2}),
    ("", {"train/C.JSON": leaf(USER), "train/._a.json": b"\x00of a Mac"}, {}, {"owner_names": ("u",)}),
    ("", {"train/a.json": leaf(USER), "about.json": '{"source": "a study"}'}, {}, {"owner_names": ("u",)}),
    ("", {**PICTURES, "names.json": '["cat", "dog"]'}, {}, {"shape": (2, 4, 5, 1)}),
    ("", {**PICTURES, "names.json": leaf(USER)}, {}, {"shape": (2, 4)}),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLES + ARRAYS + CLIENTS + TEST_FILES + IMAGES + LEAF, ids=lambda row: str(row[3]))
@pytest.mark.filterwarnings("ignore:.* clients with test rows have no training rows:UserWarning")
def test_what_is_read(tmp_path: pathlib.Path, row: Row) -> None:
    path, files, options, expected = row
    if any(name.endswith(".png") for name in files):
        pytest.importorskip("PIL")
    made = load(f"{write(tmp_path, files)}/{path}", **options)
    assert {name: read(made, name) for name in expected} == expected


# --- Several files of one table -----------------------------------------------------------------------------


def write_two(folder, train, test):
    return f"{write(folder, {'train.csv': train, 'test.csv': test})}/train.csv"


@pytest.mark.parametrize(
    ("first", "second", "names"), [("7", "007", ("007", "7")), ("7", "8", (7, 8)), ("1.5", "2", ("1.5", "2"))]
)
def test_a_column_that_is_text_in_one_file_is_text_in_both(tmp_path, first, second, names):
    train = write_two(
        tmp_path, train=f"{ROWS}1,{first},{first}\n2,{second},{second}\n", test=f"{ROWS}3,{first},{first}\n"
    )
    options = {"label": "ill", "client": "site", "regression": False}
    assert load(train, **options, test_file="test.csv").owner_names == names
    train = write_two(tmp_path, train=f"{ROWS}1,{first},{first}\n", test=f"{ROWS}2,{second},{first}\n")
    made = load(train, **options, test_file="test.csv")
    assert made.class_names == names
    assert made.owner_names == (names[names.index(7)] if 7 in names else first,) if first != "7" else (7,)


def test_most_clients_of_test_rows_are_strangers(tmp_path):
    path = write_two(tmp_path, train=f"{ROWS}1,0,a\n2,1,b\n", test=f"{ROWS}1,0,c\n2,1,b\n3,1,d\n")
    with pytest.warns(
        UserWarning, match=r"2 of the 3 clients with test rows have no training rows, e\.g\. 'c'; .*unseen"
    ):
        made = load(path, label="ill", client="site", test_file="test.csv")
    assert federate(made, "natural", unseen="test").names.unseen == ("c", "d")
    train = {"x_train": np.ones((2, 2)), "y_train": [0, 1], "w_train": [1, 2]}
    np.savez(tmp_path / "a.npz", **train, x_test=np.ones((1, 2)), y_test=[0], w_test=[3])
    with pytest.warns(UserWarning, match="1 of the 1 clients"):
        load(str(tmp_path / "a.npz"), client="w")


def test_seconds_keep_their_differences_in_both_files(tmp_path):
    train = write_two(tmp_path, train="t,y\n1700000001,0\n1700000002,1\n", test="t,y\n1700000003,1\n")
    made = load(train, label="y", test_file="test.csv")
    assert np.diff(made.x[:, 0]).tolist() == [1, 1]


def test_parquet_and_categories(tmp_path):
    pytest.importorskip("pyarrow")
    kinds = pandas.CategoricalDtype(["mild", "bad"])
    train, test = (
        pandas.DataFrame({"a": [1.0, 2.0], "y": pandas.Series(labels, dtype=kinds), "who": [7, 8]})
        for labels in (["bad", "mild"], ["mild", "mild"])
    )
    train.to_parquet(tmp_path / "train.parquet")
    test.to_parquet(tmp_path / "test.parquet")
    made = load(str(tmp_path / "train.parquet"), label="y", client="who", test_file="test.parquet")
    assert (made.class_names, made.y.tolist(), made.owner_names) == (("mild", "bad"), [1, 0, 0, 0], (7, 8))
    test.assign(y=["mild", "mild"]).to_csv(tmp_path / "test.csv", index=False)
    made = load(str(tmp_path / "train.parquet"), label="y", client="who", test_file="test.csv")
    assert made.class_names == ("bad", "mild")
    test.assign(who=[7.5, 8]).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(ValueError, match=r"'who', as in train\.parquet, got numbers with decimals, e\.g\. 7\.5"):
        load(str(tmp_path / "train.parquet"), label="y", client="who", test_file="test.parquet")


def test_paths_of_images_in_parquet(tmp_path):
    pytest.importorskip("PIL")
    pytest.importorskip("pyarrow")
    pandas.read_csv(write(tmp_path, SCANS) / "train.csv").to_parquet(tmp_path / "train.parquet")
    assert load(f"{tmp_path}/train.parquet", label="ill", images="file").x[:, 0, 0, 0].tolist() == [3, 2, 1, 0]
