"""Images in folders, one for each class."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fljax.data import federate, load
from tests.data.written import save_image, write
from tests.refusals import refuses
from tests.toys.command import run
from tests.toys.configs import config_text

Image = pytest.importorskip("PIL.Image")


def test_a_file_of_another_format_is_no_image(tmp_path):
    """Pillow would give PostScript to another program, whatever the file is called."""
    (tmp_path / "a").mkdir()
    Image.fromarray(np.ones((4, 5), np.uint8)).save(tmp_path / "a" / "0.png", "EPS")
    refuses(lambda: load(f"{tmp_path}/"), "expected an image")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "1.png")
    refuses(lambda: load(f"{tmp_path}/"), r"expected an image, got .*1\.png' \(which is no regular file\)")


@pytest.mark.unchecked  # a number of NumPy
def test_images_of_several_sizes(tmp_path):
    write(tmp_path, {"a/0.png": 1, "b/0.png": 2})
    save_image(tmp_path / "b" / "0.png", 2, (8, 8))
    refuses(lambda: load(f"{tmp_path}/"), r"expected images of one size or the option size=.* got 4x5 and 8x8")
    for size in ([6, 3], (6, np.int64(3))):
        assert load(f"{tmp_path}/", size=size).x.shape == (2, 6, 3, 1)


PARTS = {"train/a": 0, "train/b": 1, "val/a": 10, "val/b": 11, "test/a": 20, "test/b": 21}


@pytest.mark.parametrize("layout", ["{client}/{part}/{label}", "{part}/{client}/{label}"])
def test_validation_images_of_a_client_without_training_images_are_the_servers(tmp_path, layout):
    for place, value in PARTS.items():
        part, label = place.split("/")
        write(tmp_path, {f"{layout.format(client='north', part=part, label=label)}/0.png": value})
    write(tmp_path, {f"{layout.format(client='south', part='val', label='a')}/0.png": 99})
    found = federate(load(f"{tmp_path}/", client=True), "natural")
    pixels = np.asarray(found.examples.x)[np.asarray(found.held["validation"].index), 0, 0, 0]
    assert (found.names.clients, pixels.tolist()) == (("north",), [99])


def test_links_to_folders_of_classes(tmp_path):
    write(tmp_path, {"data/cat/1.png": 1, "elsewhere/2.png": 2})
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere")
    assert load(f"{tmp_path}/data/").class_names == ("cat", "dog")
    (tmp_path / "elsewhere").rename(tmp_path / "moved")
    refuses(lambda: load(f"{tmp_path}/data/"), "expected files and folders, got a link to nothing, 'dog'")


@pytest.mark.thorough
def test_a_run_on_images_by_client(tmp_path):
    for client in ("north", "south"):
        write(tmp_path / "scans", {f"{client}/{place}/0.png": 12 * value for place, value in PARTS.items()})
    text = config_text('dataset = "scans/"\nclient = true', batch_size=2, steps=1, standalone=1)
    run(write(tmp_path, {"mine.toml": text}) / "mine.toml", "--out", tmp_path / "run")
