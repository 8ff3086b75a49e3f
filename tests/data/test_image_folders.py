"""Images in folders, one for each class."""

from __future__ import annotations

import numpy as np
import pytest

from fljax.data import federate, load

Image = pytest.importorskip("PIL.Image")


def write(path, value, size=(4, 5), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3) if mode == "RGB" else size, value, np.uint8)
    Image.fromarray(pixels).save(path)


def test_folders_are_labels(tmp_path):
    for number, label in enumerate(["dog", "cat", "cat"]):
        write(tmp_path / label / f"{number}.png", 10 * number)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    made = load(f"{tmp_path}/")
    assert (made.x.shape, made.x.dtype) == ((3, 4, 5, 1), np.uint8)
    assert (made.y.tolist(), made.class_names) == ([0, 0, 1], ("cat", "dog"))
    assert made.x[:, 0, 0, 0].tolist() == [10, 20, 0]


def test_train_and_test_and_colours(tmp_path):
    write(tmp_path / "train" / "a" / "0.png", 1)
    write(tmp_path / "train" / "b" / "0.png", 2, mode="RGB")
    write(tmp_path / "test" / "b" / "0.png", 3)
    made = load(f"{tmp_path}/")
    assert (made.x.shape, made.train_size, made.y.tolist()) == ((3, 4, 5, 3), 2, [0, 1, 1])
    assert made.x[:, 0, 0].tolist() == [[1] * 3, [2] * 3, [3] * 3]


def test_clients_have_folders(tmp_path):
    for client in ("north", "south"):
        for label in ("a", "b"):
            for number in range(3):
                write(tmp_path / client / label / f"{number}.png", number)
    made = load(f"{tmp_path}/", client=True)
    federation = federate(made, "natural")
    assert (federation.names.clients, federation.names.classes) == (("north", "south"), ("a", "b"))


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
