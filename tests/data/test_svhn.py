"""SVHN in upstream's format: MATLAB files of version 5, written here by SciPy."""

import numpy as np
import pytest
from scipy.io import savemat

from fljax.data import load, status
from tests.data.remote import pretend


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))


def write(folder, **changes):
    """Images along the last axis and labels 1..10 in a column, compressed, as upstream writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, kept = np.random.default_rng(0), []
    for part, n in (("train", 12), ("test", 5)):
        x = rng.integers(0, 256, (32, 32, 3, n), np.uint8)
        y = np.arange(n, dtype=np.uint8)[:, None] % 10 + 1
        arrays = {"X": x, "y": y} | (changes if part == "train" else {})
        savemat(folder / f"{part}_32x32.mat", arrays, do_compression=True)
        kept.append((x, y))
    return kept


def check(made, kept):
    assert (made.x.shape, made.x.dtype) == ((17, 32, 32, 3), np.uint8)
    assert made.x.flags.c_contiguous
    assert (made.classes, made.train_size) == (10, 12)
    np.testing.assert_array_equal(made.x[13], kept[1][0][..., 1])
    np.testing.assert_array_equal(made.x[:12], np.moveaxis(kept[0][0], 3, 0))
    # 1, ..., 9, and the digit 0 for 10.
    np.testing.assert_array_equal(made.y, [*range(1, 10), 0, 1, 2, 1, 2, 3, 4, 5])


def test_upstreams_files_are_read(tmp_path):
    kept = write(tmp_path / "files")
    check(load("svhn", folder=tmp_path / "files"), kept)
    assert not (tmp_path / "cache").exists()


def test_a_download_without_the_extra_images_is_cached(tmp_path, monkeypatch):
    kept = write(tmp_path / "remote")  # has no extra_32x32.mat
    pretend(monkeypatch, tmp_path / "remote")
    assert status()["svhn"].startswith("not here")
    check(load("svhn"), kept)
    assert "cached in" in status()["svhn"]
    pretend(monkeypatch, tmp_path / "nowhere")
    check(load("svhn"), kept)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"y": np.zeros((12, 1), np.uint8)}, r"labels in 1\.\.10, got labels in 0\.\.0"),
        ({"y": np.ones((11, 1), np.uint8)}, r"and y \(11, 1\)"),
        ({"X": np.zeros((32, 32, 3, 12))}, "got X float64"),
        ({"X": np.zeros((12, 32, 32, 3), np.uint8)}, "expected X uint8"),
    ],
)
def test_other_arrays_are_named_in_one_sentence(tmp_path, changes, match):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=match) as caught:
        load("svhn", folder=tmp_path)
    assert "train_32x32.mat" in str(caught.value)


def test_damaged_files_are_named_in_one_sentence(tmp_path):
    write(tmp_path)
    path = tmp_path / "test_32x32.mat"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>not found</html>", b"", whole[:300] + b"\xff" * 40 + whole[340:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"damaged one in .*test_32x32\.mat") as caught:
            load("svhn", folder=tmp_path)
        assert "\n" not in str(caught.value)
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(ValueError, match="arrays X and y, got others"):
        load("svhn", folder=tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"expected the file test_32x32\.mat in the folder"):
        load("svhn", folder=tmp_path)
