"""A folder's reader follows from the files in it."""

from __future__ import annotations

import numpy as np
import pytest

from fljax.data.own.benchmarks import leaf
from fljax.data.own.files import array_folder, table_folder
from fljax.data.own.image_folders import image_folder
from fljax.data.registry import find_source, folder_source


def write(place, *names, text="x,y\n1,0\n"):
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


@pytest.mark.parametrize(
    ("names", "reader"),
    [
        (["a.csv", "b.csv.gz", "notes.txt", ".DS_Store"], table_folder),
        (["train/a.parquet", "test/a.CSV"], table_folder),
        (["a.npz"], array_folder),
        (["train/a.npz", "test/b.npz"], array_folder),
        (["Train/a.csv", "Test/a.csv"], table_folder),
        (["validation/a.npz"], array_folder),
        (["north/rows.csv"], table_folder),
        (["cat/0.png", "dog/0.JPG"], image_folder),
        (["cat/0.png", "cat/names.csv"], image_folder),
        (["notes.txt"], image_folder),
        (["a.json"], leaf),
        (["train/a.json", "raw/all.csv"], leaf),
        (["a.csv", "about.json", ".hidden/0.png"], table_folder),
    ],
)
def test_what_a_folder_holds(tmp_path, names, reader):
    write(tmp_path, *names)
    assert folder_source(tmp_path) is reader
    assert getattr(find_source(f"{tmp_path}/"), "func") is reader  # noqa: B009


def test_arrays_are_not_read_to_choose(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"odd": 1}], object))
    assert folder_source(tmp_path) is array_folder


def test_a_folder_that_cannot_be_read_is_a_sentence(tmp_path, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "iterdir", refused)
    with pytest.raises(ValueError, match=r"expected a folder that can be read, got .*Permission denied"):
        find_source(f"{tmp_path}/")
