"""Images in folders, one for each class."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from fljax import cli
from fljax.data import federate, load, row_numbers
from fljax.data.clients import PARTS

Image = pytest.importorskip("PIL.Image")


def write(path, value, size=(4, 5), mode="L", format=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3) if mode == "RGB" else size, value, np.uint8)
    Image.fromarray(pixels).save(path, format)


def test_folders_are_labels(tmp_path):
    for number, label in enumerate(["dog", "cat", "cat"]):
        write(tmp_path / label / f"{number}.png", 10 * number)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    made = load(f"{tmp_path}/")
    assert (made.x.shape, made.x.dtype) == ((3, 4, 5, 1), np.uint8)
    assert (made.y.tolist(), made.class_names) == ([0, 0, 1], ("cat", "dog"))
    assert made.x[:, 0, 0, 0].tolist() == [10, 20, 0]


def test_a_file_of_another_format_is_no_image(tmp_path):
    """Pillow would give PostScript to another program, whatever the file is called."""
    write(tmp_path / "a" / "0.png", 1, format="EPS")
    with pytest.raises(ValueError, match="expected an image"):
        load(f"{tmp_path}/")


def test_train_and_test_and_colours(tmp_path):
    write(tmp_path / "train" / "a" / "0.png", 1)
    write(tmp_path / "train" / "b" / "0.png", 2, mode="RGB")
    write(tmp_path / "test" / "b" / "0.png", 3)
    made = load(f"{tmp_path}/")
    assert (made.x.shape, made.train_size, made.y.tolist()) == ((3, 4, 5, 3), 2, [0, 1, 1])
    assert made.x[:, 0, 0].tolist() == [[1] * 3, [2] * 3, [3] * 3]


@pytest.mark.in_turn
def test_clients_have_folders(tmp_path):
    for client in ("north", "south"):
        for label in ("a", "b"):
            for number in range(3):
                write(tmp_path / client / label / f"{number}.png", number)
    made = load(f"{tmp_path}/", client=True)
    federation = federate(made, "natural")
    assert (federation.names.clients, federation.names.classes) == (("north", "south"), ("a", "b"))


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "1.png")
    with pytest.raises(ValueError, match=r"expected an image, got .*1\.png' \(which is no regular file\)"):
        load(f"{tmp_path}/")


def test_images_of_several_sizes(tmp_path):
    write(tmp_path / "a" / "0.png", 1)
    write(tmp_path / "b" / "0.png", 2, size=(8, 8))
    with pytest.raises(ValueError, match=r"expected images of one size or the option size=.* got 4x5 and 8x8"):
        load(f"{tmp_path}/")
    assert load(f"{tmp_path}/", size=[6, 3]).x.shape == (2, 6, 3, 1)


def test_what_is_no_image_is_named(tmp_path):
    with pytest.raises(ValueError, match="expected images in folder/class/image"):
        load(f"{tmp_path}/")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"expected an image, got .*0\.png"):
        load(f"{tmp_path}/")
    with pytest.raises(ValueError, match=r"expected size as \[height, width\]"):
        load(f"{tmp_path}/", size=[3])


def test_validation_images_of_nobody_are_the_servers(tmp_path):
    for value, (part, label) in enumerate([("train", "a"), ("train", "b"), ("Valid", "a"), ("test", "b")]):
        write(tmp_path / part / label / "0.png", value)
    made = load(f"{tmp_path}/")
    assert (made.x[:, 0, 0, 0].tolist(), made.train_size, made.y.tolist()) == ([0, 1, 2, 3], 3, [0, 1, 0, 1])
    found = federate(made, "iid", clients=2, test="global")
    assert np.asarray(found.held["validation"].index).tolist() == [2]
    assert np.asarray(found.held["test"].index).tolist() == [3]


def own_parts(place, layout, client, count):
    """One image for each of some labels in each part of a client."""
    for value, part in enumerate(("train", "val", "test")):
        for label in range(count):
            folder = layout.format(client=client, part=part, label="ab"[label % 2])
            write(place / folder / f"{label}.png", 10 * value + label)


@pytest.mark.parametrize("layout", ["{client}/{part}/{label}", "{part}/{client}/{label}"])
def test_clients_have_parts_of_their_own(tmp_path, layout):
    own_parts(tmp_path, layout, "north", 3)
    own_parts(tmp_path, layout, "south", 2)
    made = load(f"{tmp_path}/", client=True)
    assert (made.class_names, made.owner_names) == (("a", "b"), ("north", "south"))
    found = federate(made, "natural", train_fraction=0.5)
    pixels = np.asarray(found.examples.x)[:, 0, 0, 0]
    values = {part: [sorted(pixels[rows].tolist()) for rows in row_numbers(found, part)] for part in PARTS}
    assert values == {
        "train": [[0, 1, 2], [0, 1]],
        "valid": [[10, 11, 12], [10, 11]],
        "test": [[20, 21, 22], [20, 21]],
    }


def test_a_client_with_test_images_alone_may_be_unseen(tmp_path):
    own_parts(tmp_path, "{client}/{part}/{label}", "north", 2)
    for label in "ab":
        write(tmp_path / "south" / "test" / label / "0.png", 1)
    made = load(f"{tmp_path}/", client=True)
    assert federate(made, "natural", unseen="test").names.unseen == ("south",)
    assert federate(made, "natural").held["test"].size == 2


@pytest.mark.parametrize("layout", ["{client}/{part}/a", "{part}/{client}/a"])
def test_validation_images_of_a_client_without_training_images_are_the_servers(tmp_path, layout):
    own_parts(tmp_path, layout.replace("/a", "/{label}"), "north", 2)
    write(tmp_path / layout.format(client="south", part="val") / "0.png", 99)
    found = federate(load(f"{tmp_path}/", client=True), "natural")
    pixels = np.asarray(found.examples.x)[np.asarray(found.held["validation"].index), 0, 0, 0]
    assert (found.names.clients, pixels.tolist()) == (("north",), [99])


@pytest.mark.parametrize(
    ("files", "client", "words"),
    [
        (["north/train/a/0.png", "south/a/0.png"], True, "in all clients or none, got none in 'south'"),
        (["train/north/test/a/0.png"], True, "in all clients or none, got 'train/north/test'"),
        (["north/a/0.png"], False, "expected images in folder/class/image .* got 'north/a/0.png'; client = true reads"),
        (["a/0.png", "b/more/0.png"], False, r"got 'b/more/0\.png'; client = true"),
        (["a/0.png"], True, r"expected images in folder/client/class/image .*, got 'a/0\.png'$"),
    ],
)
def test_images_in_other_places_are_named(tmp_path, files, client, words):
    for file in files:
        write(tmp_path / file, 1)
    with pytest.raises(ValueError, match=words):
        load(f"{tmp_path}/", client=client)


@pytest.mark.parametrize(
    ("files", "client", "got"),
    [
        (["cat/1.png", "cat/more/2.png", "cat/more/3.png"], False, "'cat/more/2.png' and 1 more in other places"),
        (["cat/1.png", "3.png"], False, "'3.png'"),
        (["train/cat/1.png", "train/9.png"], False, "'train/9.png'"),
        (["a/cat/1.png", "a/3.png"], True, "'a/3.png'"),
        (["cat/1.png", "dog/1.heic", "dog/2.heic"], False, "files of other kinds alone in 'dog': 1.heic and 1 more"),
        (["cat/1.heic"], False, "files of other kinds alone in 'cat': 1.heic"),
    ],
)
def test_no_image_is_left_out(tmp_path, files, client, got):
    for file in files:
        if file.endswith(".png"):
            write(tmp_path / file, 1)
        else:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_bytes(b"another kind")
    with pytest.raises(ValueError, match=rf"^expected images in folder/.*, got {re.escape(got)}(; client|$)"):
        load(f"{tmp_path}/", client=client)


def test_links_to_folders_of_classes(tmp_path):
    write(tmp_path / "data" / "cat" / "1.png", 1)
    write(tmp_path / "elsewhere" / "2.png", 2)
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere")
    assert load(f"{tmp_path}/data/").class_names == ("cat", "dog")
    (tmp_path / "elsewhere").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="expected files and folders, got a link to nothing, 'dog'"):
        load(f"{tmp_path}/data/")


def test_hidden_files_and_those_of_archives_are_no_images(tmp_path):
    write(tmp_path / "train" / "cat" / "1.png", 1)
    write(tmp_path / "test" / "cat" / "2.jfif", 2, format="jpeg")
    for other in ("__MACOSX/train/cat/1.png", "train/cat/._1.png", "train/.thumbnails/1.png"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_bytes(b"of a Mac")
    made = load(f"{tmp_path}/")
    assert (len(made.y), made.train_size, made.class_names) == (2, 1, ("cat",))


@pytest.mark.unchecked
@pytest.mark.parametrize("size", [32, "ab", ["a", "b"], [2.5, 2.5], [0, 3], [True, True], [4]])
def test_sizes_are_two_whole_numbers(tmp_path, size):
    write(tmp_path / "a" / "0.png", 1)
    with pytest.raises(
        ValueError, match=r"expected size as \[height, width\], two whole numbers from 1, got "
    ) as error:
        load(f"{tmp_path}/", size=size)
    assert "\n" not in str(error.value)
    assert load(f"{tmp_path}/", size=(3, np.int64(2))).x.shape == (1, 3, 2, 1)


def test_folders_of_classes_may_be_empty(tmp_path):
    write(tmp_path / "a" / "0.png", 1)
    (tmp_path / "b").mkdir()
    assert load(f"{tmp_path}/").y.tolist() == [0]


@pytest.mark.thorough
def test_a_run_on_images_by_client(tmp_path):
    own_parts(tmp_path / "scans", "{client}/{part}/{label}", "north", 2)
    own_parts(tmp_path / "scans", "{client}/{part}/{label}", "south", 4)
    (tmp_path / "mine.toml").write_text(
        'rounds = 1\nalgorithms = [{name = "fedavg"}]\nmodel = {name = "logistic_regression"}\n'
        "local = {learning_rate = 0.1, batch_size = 2, steps = 1}\nstandalone = {steps = 1}\n"
        '[data]\ndataset = "scans/"\nclient = true\n'
    )
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(tmp_path / "mine.toml"), "--quiet", "--no-report", "--out", str(tmp_path / "run")])
    assert end.value.code == 0
