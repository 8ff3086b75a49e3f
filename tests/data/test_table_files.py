"""Several files of one table: test rows in a file of their own, and paths of images."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from fljax.data import federate, load

Image = pytest.importorskip("PIL.Image")
TRAIN = "age,ill,site\n1,no,b\n2,yes,a\n3,no,b\n4,yes,a\n"


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return str(folder / "train.csv")


def test_a_file_of_test_rows_is_the_global_test_part(tmp_path):
    train = write(
        tmp_path, train=TRAIN.replace(",site", "").replace(",a", "").replace(",b", ""), test="ill,age\nno,7\n"
    )
    made = load(train, label="ill", test_file="test.csv")
    assert (made.train_size, made.part, made.owner) == (4, None, None)
    assert (made.x[:, 0].tolist(), made.y.tolist()) == ([1, 2, 3, 4, 7], [0, 1, 0, 1, 0]), "columns are found by name"
    assert (made.features.names, made.standardise, made.class_names) == (("age",), True, ("no", "yes"))
    assert federate(made, "iid", clients=2).held["test"].size == 1


def test_clients_in_both_files_are_tested_on_their_own_rows(tmp_path):
    train = write(tmp_path, train=TRAIN, test="site,ill,age\na,yes,7\nc,no,8\nb,no,9\n")
    made = load(train, label="ill", client="site", test_file="test.csv", standardise=False)
    np.savez(
        tmp_path / "same.npz",
        x_train=np.arange(1.0, 5)[:, None],
        y_train=["no", "yes"] * 2,
        site_train=["b", "a"] * 2,
        x_test=np.array([[7.0], [8], [9]]),
        y_test=["yes", "no", "no"],
        site_test=["a", "c", "b"],
    )
    same = load(str(tmp_path / "same.npz"), client="site", standardise=False)
    for field in ("x", "y", "owner", "part"):
        np.testing.assert_array_equal(getattr(made, field), getattr(same, field))
    assert np.asarray(made.part).tolist() == [0, 0, 0, 0, 2, 2, 2]
    for field in ("train_size", "owner_names", "class_names", "classes", "mean", "std"):
        assert getattr(made, field) == getattr(same, field)
    federation = federate(made, "natural")
    assert federation.clients.test.size.tolist() == [1, 1]
    assert federation.held["test"].size == 1, "c never trains"


def test_a_test_file_without_the_column_of_clients(tmp_path):
    train = write(tmp_path, train=TRAIN, test="ill,age\nyes,7\n")
    made = load(train, label="ill", client="site", test_file="test.csv")
    assert (made.train_size, made.part, made.owner_names) == (4, None, ("a", "b"))
    assert np.asarray(made.owner).tolist() == [1, 0, 1, 0, -1]


def test_labels_of_the_test_file_alone_are_classes(tmp_path):
    train = write(tmp_path, train=TRAIN, test="age,ill,site\n7,maybe,a\n")
    made = load(train, label="ill", client="site", test_file="test.csv")
    assert (made.class_names, made.y.tolist()) == (("maybe", "no", "yes"), [1, 2, 1, 2, 0])


@pytest.mark.parametrize(
    ("first", "second", "names"), [("7", "007", ("007", "7")), ("7", "8", (7, 8)), ("1.5", "2", ("1.5", "2"))]
)
def test_a_column_that_is_text_in_one_file_is_text_in_both(tmp_path, first, second, names):
    head = "age,ill,site\n"
    train = write(tmp_path, train=f"{head}1,{first},{first}\n2,{second},{second}\n", test=f"{head}3,{first},{first}\n")
    options = {"label": "ill", "client": "site", "regression": False}
    assert load(train, **options, test_file="test.csv").owner_names == names
    train = write(tmp_path, train=f"{head}1,{first},{first}\n", test=f"{head}2,{second},{first}\n")
    made = load(train, **options, test_file="test.csv")
    assert made.class_names == names
    assert made.owner_names == (names[names.index(7)] if 7 in names else first,) if first != "7" else (7,)


HEAD = "age,ill,site\n"


@pytest.mark.parametrize(
    ("train", "test", "names"),
    [
        ("1,no,x\n2,yes,y\n", "1,no ,x \n2,yes,  y\n", ("x", "y")),
        ("1,no,Z\u00fcrich\n2,yes,y\n", "1,no,Zu\u0308rich\n2,yes,y\n", ("Z\u00fcrich", "y")),
        ('1,no,"x "\n2,yes,y\u00a0\n', '1," no",x\n2,yes,y\n', ("x", "y")),
        ("1,no,1 \n2,yes,2\n", "1,no,1\n2,yes,2\n", (1, 2)),
    ],
)
def test_blanks_and_accents_make_no_other_client_or_class(tmp_path, train, test, names):
    path = write(tmp_path, train=HEAD + train, test=HEAD + test)
    made = load(path, label="ill", client="site", test_file="test.csv")
    assert (made.class_names, made.y.tolist()) == (("no", "yes"), [0, 1, 0, 1])
    assert (made.owner_names, made.train_size, np.asarray(made.owner).tolist()) == (names, 4, [0, 1, 0, 1])


def test_blanks_and_accents_in_the_column_of_parts_and_in_paths(tmp_path):
    path = write(tmp_path, train="a,ill,set\n1,0,train \n2,1, test\n3,1,train\n")
    assert load(path, label="ill", part="set").train_size == 2
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "u\u0308.png")
    write(tmp_path, train="file,ill\nu\u0308.png,0\n")
    assert load(path, label="ill", images="file").x.shape == (1, 4, 5, 1)


@pytest.mark.parametrize(
    ("train", "test", "options", "words"),
    [
        (
            "1,no,1\n2,no,2\n",
            "1,no,1.0\n2,no,2.0\n",
            {},
            "of the column 'site' in one form, got '1' in train.csv and '1.0' in test.csv",
        ),
        (
            "1,no,1\n2,no,1.\n",
            "1,no,3\n",
            {},
            "of the column 'site' in one form, got '1' in train.csv and '1.' in train.csv",
        ),
        (
            "1,0,a\n2,1,a\n",
            "1,True,a\n2,False,a\n",
            {},
            "in the column 'ill', got whole numbers in train.csv and True and False in test.csv",
        ),
        (
            "1,0,a\n2,1,a\n",
            "1,True,a\n2,False,a\n",
            {"regression": False},
            "in the column 'ill', got whole numbers in train.csv and True and False in test.csv",
        ),
        (
            "1,1,a\n2,2,a\n",
            "1,1.0,a\n2,2.0,a\n",
            {},
            "in the column 'ill', got whole numbers in train.csv and numbers with decimals in test.csv; regression",
        ),
        (
            "1,1.0,a\n2,2.0,a\n",
            "1,1,a\n2,2,a\n",
            {},
            "in the column 'ill', got whole numbers in test.csv and numbers with decimals in train.csv; regression",
        ),
        (
            "1,1,a\n2,2,a\n",
            "1,1.0,a\n2,2.5,a\n",
            {"regression": False},
            "of the column 'ill' in one form, got '1' in train.csv and '1.0' in test.csv",
        ),
    ],
)
def test_one_value_in_two_forms_is_refused(tmp_path, train, test, options, words):
    path = write(tmp_path, train=HEAD + train, test=HEAD + test)
    with pytest.raises(ValueError, match=rf"^train\.csv: expected .* {words}"):
        load(path, label="ill", client="site", test_file="test.csv", **options)


@pytest.mark.parametrize(
    ("train", "test"), [("South", "south"), ("7", "07"), ("A 1", "a 1"), ("0012", "12"), ("Zoe\u0308", "ZO\u00cb")]
)
def test_clients_who_are_written_otherwise_in_test_rows(tmp_path, train, test):
    path = write(tmp_path, train=f"{HEAD}1,0,{train}\n2,1,b\n", test=f"{HEAD}1,0,{test}\n2,1,b\n")
    words = "expected the clients of test and validation rows to be written as in the training rows, got '.*' and '.*'"
    with pytest.raises(ValueError, match=words):
        load(path, label="ill", client="site", test_file="test.csv")


def test_most_clients_of_test_rows_are_strangers(tmp_path):
    path = write(tmp_path, train=f"{HEAD}1,0,a\n2,1,b\n", test=f"{HEAD}1,0,c\n2,1,b\n3,1,d\n")
    with pytest.warns(
        UserWarning, match=r"2 of the 3 clients with test rows have no training rows, e\.g\. 'c'; .*unseen"
    ):
        made = load(path, label="ill", client="site", test_file="test.csv")
    assert federate(made, "natural", unseen="test").names.unseen == ("c", "d")
    train = {"x_train": np.ones((2, 2)), "y_train": [0, 1], "w_train": [1, 2]}
    np.savez(tmp_path / "a.npz", **train, x_test=np.ones((1, 2)), y_test=[0], w_test=[3])
    with pytest.warns(UserWarning, match="1 of the 1 clients"):
        load(str(tmp_path / "a.npz"), client="w")


def test_whole_numbers_with_decimals_are_numbers_to_predict_if_asked(tmp_path):
    path = write(tmp_path, train="a,y\n1,1\n2,2\n", test="a,y\n1,1.0\n")
    assert load(path, label="y", test_file="test.csv", regression=True).y.tolist() == [1, 2, 1]


def test_one_column_for_labels_and_images(tmp_path):
    with pytest.raises(ValueError, match=r"^train\.csv: expected different columns as label and images, got 'ill'"):
        load(write(tmp_path, train=TRAIN), label="ill", images="ill")


def test_numbers_to_predict_and_features_that_are_chosen(tmp_path):
    train = write(tmp_path, train="a,b,y\n1,x,1\n2,x,2\n", test="y,a\n1.5,3\n")
    made = load(train, label="y", features=["a"], test_file="test.csv")
    assert (made.classes, made.y.tolist(), made.x[:, 0].tolist()) == (None, [1, 2, 1.5], [1, 2, 3])


def test_seconds_keep_their_differences_in_both_files(tmp_path):
    train = write(tmp_path, train="t,y\n1700000001,0\n1700000002,1\n", test="t,y\n1700000003,1\n")
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


@pytest.mark.parametrize(
    ("test", "options", "words"),
    [
        ("ill,site\nno,a\n", {}, r"^test\.csv: expected the columns of train\.csv, got none named 'age'$"),
        ("Age,ill,site\n1,no,a\n", {}, r"train\.csv, got none named 'age' and 'Age' more$"),
        ("age,site\n1,a\n", {}, "got none named 'ill'"),
        ("age,ill,site,Site\n1,no,a,b\n", {}, "got 'Site' more"),
        (
            "age,ill,site\nold,no,a\n",
            {},
            r"^test\.csv: expected numbers in the column 'age', as in .* got text, e.g. 'old'",
        ),
        ("age,ill,site\nTrue,no,a\n", {}, "got true or false, e.g. True"),
        ("age,ill,site\n,no,a\n", {}, r"^test\.csv: .* row of the column 'age', got none \(NaN\) in 1 of 1 rows"),
        ("age,ill,site\n", {}, r"^test\.csv: expected at least one row, got none"),
        ("", {}, r"^test\.csv: expected a table with a line of names"),
        (None, {}, r"^train\.csv: test_file: expected the path of a file, got .*nothing there"),
        (TRAIN, {"test_file": "train.csv"}, "expected another file than train.csv, got the same one"),
        (TRAIN, {"test_file": "test.npz"}, "got .*nothing there"),
        (TRAIN, {"part": "age"}, "expected part, a column that says which rows are test rows, or test_file, got both"),
        (
            "age,ill,Site\n1,no,a\n",
            {"features": ["age"]},
            r"^test\.csv: expected the columns of train\.csv, got none named 'site'",
        ),
        (TRAIN, {"label": "il"}, r"^train\.csv: expected a column of the table .* got 'il'"),
        (TRAIN, {"features": ["ages"]}, r"^train\.csv: expected a column of the table .* got 'ages'"),
    ],
)
def test_test_files_that_do_not_fit_are_named(tmp_path, test, options, words):
    train = write(tmp_path, train=TRAIN, **({} if test is None else {"test": test}))
    with pytest.raises(ValueError, match=words) as caught:
        load(train, **{"label": "ill", "client": "site", "test_file": "test.csv", **options})
    assert "\n" not in str(caught.value)


def test_test_files_of_arrays(tmp_path):
    path = str(tmp_path / "train.npz")
    np.savez(path, x=np.ones((4, 2)), y=["a", "b"] * 2, who=[1, 1, 2, 2])
    np.savez(tmp_path / "test.npz", x=np.zeros((2, 2)), y=["b", "c"])
    made = load(path, client="who", test_file="test.npz")
    assert (made.train_size, made.class_names, made.y.tolist()) == (4, ("a", "b", "c"), [0, 1, 0, 1, 1, 2])
    np.savez(tmp_path / "test.npz", x=np.zeros((2, 2)), y=["b", "a"], who=[2, 1])
    made = load(path, client="who", test_file="test.npz")
    assert (made.train_size, np.asarray(made.part).tolist()) == (6, [0, 0, 0, 0, 2, 2])
    np.savez(tmp_path / "test.npz", x=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"^train\.npz: test\.npz: expected one of the arrays x, got 'y'"):
        load(path, test_file="test.npz")
    np.savez(tmp_path / "both.npz", x_train=np.ones((2, 2)), y_train=[0, 1], x_test=np.ones((2, 2)), y_test=[0, 1])
    with pytest.raises(ValueError, match=r"^both\.npz: expected one of the arrays .*x_train.*, got 'x'"):
        load(str(tmp_path / "both.npz"), test_file="test.npz")
    (tmp_path / "test.csv").write_text(TRAIN)
    with pytest.raises(ValueError, match=r"test_file: expected a file that ends in \.npz, got 'test\.csv'"):
        load(path, test_file="test.csv")


@pytest.fixture
def scans(tmp_path):
    """Two tables with paths of images; one image of the test table has colours."""
    for folder in ("images", "more"):
        (tmp_path / folder).mkdir()
    for place in range(4):
        Image.fromarray(np.full((4, 5), place, np.uint8)).save(tmp_path / "images" / f"{place}.png")
    Image.fromarray(np.full((4, 5, 3), 9, np.uint8)).save(tmp_path / "more" / "9.png")
    rows = "".join(f"images/{place}.png,{place % 2},{place},h{place // 2}\n" for place in (3, 2, 1, 0))
    (tmp_path / "train.csv").write_text(f"file,ill,age,site\n{rows}")
    (tmp_path / "test.csv").write_text("file,ill\nmore/9.png,1\n")
    return tmp_path


def test_paths_of_images_become_images(scans):
    made = load(f"{scans}/train.csv", label="ill", client="site", images="file")
    assert (made.x.shape, made.x.dtype, made.x[:, 0, 0, 0].tolist()) == ((4, 4, 5, 1), np.uint8, [3, 2, 1, 0])
    assert (made.y.tolist(), made.owner_names) == ([1, 0, 1, 0], ("h0", "h1"))
    assert (made.standardise, made.features.names, made.mean, made.std) == (False, None, 0.5, 0.5)
    table = pandas.read_csv(scans / "train.csv")
    table.assign(file=[name.removeprefix("images/") for name in table.file]).to_csv(scans / "train.csv", index=False)
    made = load(f"{scans}/train.csv", label="ill", images="file", image_folder="images", size=[2, 3])
    assert made.x.shape == (4, 2, 3, 1)


def test_images_of_a_test_file(scans):
    made = load(f"{scans}/train.csv", label="ill", client="site", images="file", test_file="test.csv")
    assert (made.x.shape, made.train_size) == ((5, 4, 5, 3), 4)
    assert made.x[:, 0, 0].tolist() == [[value] * 3 for value in (3, 2, 1, 0, 9)]


def test_paths_of_images_in_parquet(scans):
    pytest.importorskip("pyarrow")
    pandas.read_csv(scans / "train.csv").to_parquet(scans / "train.parquet")
    assert load(f"{scans}/train.parquet", label="ill", images="file").x[:, 0, 0, 0].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": "path"}, r"^train\.csv: expected a column of the table .* got 'path'"),
        (
            {"image_folder": "nowhere"},
            r"got no file at .*images/3\.png' \(4 of 4 are missing\); paths begin in the folder",
        ),
        ({"image_folder": "~nobody/x"}, r"got no file at .*\(4 of 4 are missing\)"),
        ({"test_file": "test.csv", "image_folder": "."}, None),
        ({"features": ["age"]}, "expected images, the column of paths, or features, got both"),
        ({"shape": [2, 2]}, "expected images, the column of paths, or shape, got both"),
        ({"size": [4]}, r"expected size as \[height, width\], two whole numbers from 1, got \[4\]"),
        ({"images": None, "size": [4, 4]}, "expected size together with images, the column of paths, got size alone"),
        ({"images": "age"}, r"got no file at .*/3' \(4 of 4 are missing\)"),
    ],
)
def test_options_of_images_that_do_not_fit(scans, changes, words):
    options = {"label": "ill", "images": "file", **changes}
    if words is None:
        assert load(f"{scans}/train.csv", **options).x.shape == (5, 4, 5, 3)
        return
    with pytest.raises(ValueError, match=words):
        load(f"{scans}/train.csv", **options)


def test_images_that_are_missing_or_damaged_are_named(scans):
    (scans / "images" / "1.png").unlink()
    with pytest.raises(ValueError, match=r"^train\.csv: .* at '.*/images/1\.png' \(1 of 4 are missing\)"):
        load(f"{scans}/train.csv", label="ill", images="file")
    (scans / "images" / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"expected an image, got .*1\.png"):
        load(f"{scans}/train.csv", label="ill", images="file")
    (scans / "train.csv").write_text("file,ill\nimages/0.png,0\n,1\n")
    with pytest.raises(ValueError, match=r"in each row of the column 'file', got none \(NaN\) in 1 of 2 rows"):
        load(f"{scans}/train.csv", label="ill", images="file")
