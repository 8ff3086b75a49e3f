"""Folders with one file for each client."""

from __future__ import annotations

import re

import numpy as np
import pandas
import pytest

from fljax.data import federate, load


def write(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)


def save(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in files.items():
        np.savez(folder / f"{name}.npz", **arrays)


def arrays(rows, start=0.0):
    return {"x": np.arange(start, start + 2 * rows).reshape(rows, 2), "y": np.arange(rows) % 2}


def test_every_table_is_a_client(tmp_path):
    write(tmp_path, hospital_b="age,ill\n1,no\n2,yes\n", hospital_a="ill,age\nno,3\nyes,4\nno,5\n")
    (tmp_path / ".hidden.csv").write_text("no table")
    for name in ("README", "README.txt", "licence.md", "notes.md", "Thumbs.db", "datapackage.json"):
        (tmp_path / name).write_text("no table")
    (tmp_path / "empty" / "more").mkdir(parents=True)
    made = load(f"{tmp_path}/", label="ill")
    assert made.owner_names == ("hospital_a", "hospital_b")
    assert (made.x[:, 0].tolist(), made.y.tolist()) == ([3, 4, 5, 1, 2], [0, 1, 0, 0, 1]), "columns are found by name"
    assert (np.asarray(made.owner).tolist(), made.part, made.train_size) == ([0, 0, 0, 1, 1], None, 5)
    assert (made.class_names, made.features.names, made.standardise) == (("no", "yes"), ("age",), True)
    federation = federate(made, "natural")
    assert federation.names.clients == ("hospital_a", "hospital_b")
    assert (federation.clients.train.size + federation.clients.test.size).tolist() == [3, 2]


def test_names_of_files_that_are_numbers(tmp_path):
    write(tmp_path, **{name: f"a,y\n{name},0\n{name},1\n" for name in ("0", "2", "10")})
    made = load(f"{tmp_path}/", label="y")
    assert made.owner_names == (0, 2, 10)
    assert made.x[:, 0].tolist() == [0, 0, 10, 10, 2, 2]
    assert np.asarray(made.owner).tolist() == [0, 0, 2, 2, 1, 1]
    write(tmp_path, **{"007": "a,y\n7,0\n"})
    assert load(f"{tmp_path}/", label="y").owner_names == ("0", "007", "10", "2")


def test_tables_of_test_rows_are_the_clients_own(tmp_path):
    write(tmp_path / "train", a="x,y\n1,0\n2,1\n", b="x,y\n3,0\n4,1\n", c="x,y\n5,1\n")
    write(tmp_path / "test", b="y,x\n1,6\n", a="x,y\n7,0\n", d="x,y\n8,1\n", c="x,y\n")
    made = load(f"{tmp_path}/", label="y", standardise=False)
    assert made.x[:, 0].tolist() == [1, 2, 3, 4, 5, 7, 6, 8]
    assert np.asarray(made.owner).tolist() == [0, 0, 1, 1, 2, 0, 1, 3]
    assert np.asarray(made.part).tolist() == [0, 0, 0, 0, 0, 2, 2, 2]
    assert (made.owner_names, made.train_size) == (("a", "b", "c", "d"), 7)
    federation = federate(made, "natural")
    assert federation.clients.test.size.tolist() == [1, 1, 0], "the file of c has no test row"
    assert federation.held["test"].size == 1, "d never trains"
    assert federate(made, "natural", unseen="test").names.unseen == ("d",)


def test_compressed_tables_parquet_and_parts(tmp_path):
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 0], "part": ["train", "test", "valid"]})
    table.to_csv(tmp_path / "one.csv.gz", index=False)
    table.to_parquet(tmp_path / "two.parquet")
    made = load(f"{tmp_path}/", label="y", part="part")
    assert (made.owner_names, np.asarray(made.part).tolist()) == (("one", "two"), [0, 2, 1, 0, 2, 1])


def test_labels_are_text_in_all_files_if_they_are_in_one(tmp_path):
    write(tmp_path, a="x,y\n1,1\n2,2\n", b="x,y\n3,none\n")
    assert load(f"{tmp_path}/", label="y").class_names == ("1", "2", "none")
    write(tmp_path, b="x,y\n3,1.5\n")
    assert load(f"{tmp_path}/", label="y").y.tolist() == [1, 2, 1.5]


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        (
            {"b": "age,ill\nold,0\n"},
            {},
            r"^b\.csv: expected numbers in the column 'age', as in a\.csv, got text, e.g. 'old'$",
        ),
        ({"a": "age,ill\n1,0\nold,0\n", "b": "age,ill\n1,0\n"}, {}, r"^a\.csv: .* as in b\.csv, got text, e.g. 'old'$"),
        ({"b": "Age,ill\n1,0\n"}, {}, r"^b\.csv: expected the columns of a\.csv, got none named 'age' and 'Age' more$"),
        ({"b": "age,ill\n"}, {}, r"^b\.csv: expected at least one row, got none$"),
        ({"b": "age,ill\n1,0\n,1\n"}, {}, r"^b\.csv: .* of the column 'age', got none \(NaN\) in 1 of 2 rows"),
        ({"b": ""}, {}, r"^b\.csv: expected a table with a line of names"),
        ({"b": "age,ill\n1,0\n"}, {"label": "il"}, r"^a\.csv: expected a column of the table .* got 'il'"),
        ({"a": "age,ill,site\n1,0,x\n", "b": "age,ill,site\n1,0,x\n"}, {}, r"^mine: .* got text in 'site'"),
        ({"b.x": "age,ill\n1,0\n"}, {"client": "age"}, "got 'client' .*; the files of this folder say themselves"),
    ],
)
def test_tables_that_do_not_fit_are_named(tmp_path, files, options, words):
    write(tmp_path / "mine", **{"a": "age,ill\n1,0\n2,1\n", **files})
    with pytest.raises(ValueError, match=words) as caught:
        load(f"{tmp_path}/mine/", **{"label": "ill", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train", "test"], r"got test\.csv and train\.csv; for two files of one data set name the first one"),
        (["train"], "got train.csv; for two files"),
        (["north", "test"], "got test.csv; for two files"),
        (["a", "train/b"], r"itself, or in its folders train and test, got a\.csv and train/b\.csv"),
        (["train/a", "test/a", "valid/a"], r"in its folders train and test, got valid/a\.csv"),
        (["test/a"], r"with training rows, got test/a\.csv alone"),
    ],
)
def test_folders_of_other_forms_are_named(tmp_path, names, words):
    for name in names:
        write((tmp_path / name).parent, **{(tmp_path / name).name: "x,y\n1,0\n"})
    with pytest.raises(ValueError, match=words):
        load(f"{tmp_path}/", label="y")


TABLE = "x,y\n1,0\n2,1\n"


@pytest.mark.parametrize(
    ("names", "unread"),
    [
        (["north.csv", "south/south.csv"], "south/south.csv"),
        (["north.csv", "Testing/north.csv"], "Testing/north.csv"),
        (["north.csv", "val/north.csv"], "val/north.csv"),
        (["train/a.csv", "train/x/b.csv"], "train/x/b.csv"),
        (["train/a.csv", "val/a.csv"], "val/a.csv"),
        (["train/a.csv", "test/a.tsv"], "test/a.tsv"),
        (["train/a.csv", "test/sub/a.csv"], "test/sub/a.csv"),
        (["north.csv", "east.tsv"], "east.tsv"),
        (["north.csv", "south.csv.bz2"], "south.csv.bz2"),
        (["north.csv", "w.xlsx"], "w.xlsx"),
        (["north.csv", "u.txt"], "u.txt"),
        (["north.csv", "about.json"], "about.json"),
        (["north.csv", "north.csv.dvc", "south.csv.dvc"], "south.csv.dvc"),
        (["a.csv", "b.csv/part-0.csv"], "b.csv/part-0.csv"),
        (["a.csv", "b.parquet/_SUCCESS", "b.parquet/part-0.parquet"], "b.parquet/part-0.parquet"),
        (["north/rows.csv", "south/rows.csv"], "north/rows.csv"),
    ],
)
def test_no_file_is_passed_over(tmp_path, names, unread):
    for name in names:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(TABLE)
    with pytest.raises(ValueError, match=rf"^mine: .* folders train and test, got {re.escape(unread)}, which would"):
        load(f"{tmp_path}/mine/", label="y")


@pytest.mark.parametrize("other", ["sub/b.npz", "b.npy", "train/x/b.npz"])
def test_no_arrays_are_passed_over(tmp_path, other):
    save(tmp_path / "train" if other.startswith("train") else tmp_path, a=arrays(3))
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes(b"rows")
    with pytest.raises(ValueError, match=rf"got {re.escape(other)}, which would not be read; move it out"):
        load(f"{tmp_path}/")


def test_a_link_to_a_file_that_was_not_fetched(tmp_path):
    write(tmp_path, north=TABLE)
    (tmp_path / "south.csv").symlink_to(tmp_path / ".git" / "annex" / "objects" / "south.csv")
    with pytest.raises(ValueError, match=r"got south\.csv, a link to a file that is not here; fetch it"):
        load(f"{tmp_path}/", label="y")


@pytest.mark.parametrize("names", [("Train", "Test"), ("TRAIN", "test")])
def test_folders_in_capital_letters(tmp_path, names):
    for folder in names:
        write(tmp_path / folder, a=TABLE, b=TABLE)
    made = load(f"{tmp_path}/", label="y")
    assert (made.owner_names, np.asarray(made.part).tolist()) == (("a", "b"), [0] * 4 + [2] * 4)


@pytest.mark.parametrize(
    ("names", "got"),
    [
        (["north_test", "north_train", "south_test", "south_train"], "north_test.csv and north_train.csv"),
        (["test-north", "train-north"], "test-north.csv and train-north.csv"),
        (["train/north", "test/north_test"], "train/north.csv and test/north_test.csv"),
        (["north", "north.valid"], "north.csv and north.valid.csv"),
    ],
)
def test_parts_of_a_client_are_no_clients(tmp_path, names, got):
    for name in names:
        write((tmp_path / name).parent, **{(tmp_path / name).name: TABLE})
    with pytest.raises(ValueError, match=f"expected one name for each client, got {re.escape(got)}; put .* folders"):
        load(f"{tmp_path}/", label="y")


def test_accents_in_names_of_files(tmp_path):
    for folder, name in (("train", "Z\u00fcrich.csv"), ("test", "Zu\u0308rich.csv")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(TABLE)
    assert load(f"{tmp_path}/", label="y").owner_names == ("Z\u00fcrich",)


def test_two_files_of_one_client(tmp_path):
    write(tmp_path, a="x,y\n1,0\n")
    pandas.DataFrame({"x": [1], "y": [0]}).to_csv(tmp_path / "a.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"expected one file for each client, got a\.csv and a\.csv\.gz"):
        load(f"{tmp_path}/", label="y")


def test_test_rows_by_a_column_and_by_folders(tmp_path):
    for folder in ("train", "test"):
        write(tmp_path / folder, a="x,y,part\n1,0,train\n")
    with pytest.raises(ValueError, match=r"expected part, a column .*, or a folder test, got both"):
        load(f"{tmp_path}/", label="y", part="part")
    write(tmp_path / "test", a="x,y\n")
    with pytest.raises(ValueError, match="expected test rows in some file of test rows, got none"):
        load(f"{tmp_path}/", label="y")


def test_paths_of_images_in_tables_of_clients(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    (tmp_path / "scans").mkdir()
    for place in range(3):
        Image.fromarray(np.full((4, 5), place, np.uint8)).save(tmp_path / "scans" / f"{place}.png")
    write(tmp_path / "mine", a="file,y\n2.png,0\n1.png,1\n", b="y,file\n0,0.png\n")
    made = load(f"{tmp_path}/mine/", label="y", images="file", image_folder="../scans")
    assert (made.x[:, 0, 0, 0].tolist(), made.owner_names) == ([2, 1, 0], ("a", "b"))


def test_every_file_of_arrays_is_a_client(tmp_path):
    save(tmp_path, north=arrays(3), south=arrays(2, 6.0))
    made = load(f"{tmp_path}/")
    assert (made.owner_names, made.train_size, made.part) == (("north", "south"), 5, None)
    assert made.x[:, 0].tolist() == [0, 2, 4, 6, 8]
    assert np.asarray(made.owner).tolist() == [0, 0, 0, 1, 1]
    parts = {
        f"{name}_{part}": value for part, rows in (("train", 3), ("test", 1)) for name, value in arrays(rows).items()
    }
    save(tmp_path, north=parts)
    assert np.asarray(load(f"{tmp_path}/").part).tolist() == [0, 0, 0, 2, 0, 0]


def test_arrays_of_test_rows_are_the_clients_own(tmp_path):
    save(tmp_path / "train", **{"0": arrays(3), "10": arrays(2, 6.0), "2": arrays(1, 1.0)})
    save(tmp_path / "test", **{"10": arrays(1, 50.0), "7": arrays(1, 70.0)})
    made = load(f"{tmp_path}/", standardise=False)
    assert made.owner_names == (0, 2, 7, 10)
    assert np.asarray(made.owner).tolist() == [0, 0, 0, 3, 3, 1, 3, 2]
    assert np.asarray(made.part).tolist() == [0] * 6 + [2] * 2
    assert (made.x[-2:, 0].tolist(), made.train_size) == ([50, 70], 7)


def test_validation_rows_of_clients(tmp_path):
    names = {"train": 4, "val": 2, "test": 1}
    made = {f"{name}_{part}": each for part, count in names.items() for name, each in arrays(count).items()}
    save(tmp_path, a=made, b=made)
    clients = federate(load(f"{tmp_path}/"), "natural").clients
    assert [each.size.tolist() for each in (clients.train, clients.valid, clients.test)] == [[4, 4], [2, 2], [1, 1]]


def test_arrays_of_test_rows_beside_a_folder_of_test_rows(tmp_path):
    save(tmp_path / "train", a={**arrays(3), "x_test": np.ones((1, 2)), "y_test": [0]})
    save(tmp_path / "test", a=arrays(3))
    with pytest.raises(ValueError, match=r"train/a\.npz: .* got x_test beside x, which would not be read"):
        load(f"{tmp_path}/")


def test_names_of_clients_in_capital_letters(tmp_path):
    save(tmp_path / "train", South=arrays(3))
    save(tmp_path / "test", south=arrays(3))
    with pytest.raises(
        ValueError, match=r"expected the clients of test and validation rows to be written .* got 'south' and 'South'"
    ):
        load(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            {"x": np.ones((2, 3)), "y": [0, 1]},
            r"expected rows of b\.npz like rows of a\.npz, which have features float64 \(3, 2\)",
        ),
        ({"x": np.ones((2, 2)), "y": [0]}, r"^mine: b\.npz: .* rows, got 2 in x and 1 in y$"),
        (
            {"x": np.ones((2, 2)), "y": [0, 1], "x_test": np.ones((2, 2)), "y_test": [0, 1]},
            r"b\.npz: expected arrays of one part, .* got x_test beside x, which would not be read",
        ),
        ({"x": np.ones((2, 2)), "y": ["u", "v"]}, r"expected rows of b\.npz like rows of a\.npz"),
        ({"x": np.ones((2, 2))}, r"b\.npz: expected one of the arrays x, got 'y'"),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, r"b\.npz: expected at least one training row, got none"),
        ({"x": np.full((2, 2), np.nan), "y": [0, 1]}, r"features of rows of b\.npz"),
        (
            {"x": np.ones((2, 2)), "y": 1},
            r"b\.npz: expected one entry for each row in the array 'y', got a single value",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, second, words):
    save(tmp_path / "mine", a=arrays(3), b=second)
    with pytest.raises(ValueError, match=words) as caught:
        load(f"{tmp_path}/mine/")
    assert str(caught.value).startswith("mine: ")
