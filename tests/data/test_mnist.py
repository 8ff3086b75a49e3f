"""EMNIST from upstream's zip and from its files, written here in the same format."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from fljax.data import load, status
from tests.data.remote import damaged, idx, pretend, refused

LABELS = {
    "byclass": (0, 61),
    "bymerge": (0, 46),
    "balanced": (0, 46),
    "letters": (1, 26),
    "digits": (0, 9),
    "mnist": (0, 9),
}


def upstream(split, *, train=5, test=3, size=6):
    """Upright images, labels as in the files, and the four files by name, gzipped, images transposed."""
    rng = np.random.default_rng(1)
    low, high = LABELS[split]
    x = rng.integers(0, 256, (train + test, size, size), np.uint8)
    y = np.concatenate([[low, high], rng.integers(low, high + 1, train + test - 2)])
    stored, files = x.transpose(0, 2, 1), {}
    for part, rows in (("train", slice(train)), ("test", slice(train, None))):
        files[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(stored[rows]))
        files[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(y[rows]))
    return x, y, files


def write_zip(folder, files, inside="gzip/"):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{inside}{name}", content)
    return folder / "gzip.zip"


@pytest.mark.parametrize("split", LABELS)
def test_each_split_of_the_archive_is_read_upright(tmp_path, split):
    x, y, files = upstream(split)
    # The others are garbage: a split is read without looking at them.
    others = {name: b"garbage" for other in LABELS if other != split for name in upstream(other)[2]}
    write_zip(tmp_path, others | files)
    made = load("emnist", split=split, folder=tmp_path)
    np.testing.assert_array_equal(made.x[..., 0], x)
    assert made.x.dtype == np.uint8
    assert made.x.flags.c_contiguous
    np.testing.assert_array_equal(made.y, y - LABELS[split][0])
    assert (made.classes, made.train_size) == (LABELS[split][1] - LABELS[split][0] + 1, 5)
    np.testing.assert_allclose(made.mean, (x[:5] / 255).mean())
    assert [path.name for path in tmp_path.iterdir()] == ["gzip.zip"]


@pytest.mark.parametrize("inside", ["", "gzip"])
@pytest.mark.parametrize("packed", [True, False])
def test_files_of_a_folder_are_read(tmp_path, inside, packed):
    x, _, files = upstream("byclass")
    (tmp_path / inside).mkdir(exist_ok=True)
    for name, content in files.items():
        path = tmp_path / inside / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(content if packed else gzip.decompress(content))
    made = load("emnist", folder=tmp_path)
    np.testing.assert_array_equal(made.x[..., 0], x)
    assert made.classes == 62


def test_a_download_is_kept_for_all_splits(tmp_path, monkeypatch):
    files = {}
    for split in ("byclass", "letters"):
        files |= upstream(split)[2]
    write_zip(tmp_path / "remote", files)
    pretend(monkeypatch, tmp_path / "remote")
    assert status()["emnist"].startswith("not here")
    assert load("emnist").classes == 62
    assert [path.name for path in (tmp_path / "cache").glob("*.zip")] == ["emnist-gzip.zip"]
    assert "cached in" in status()["emnist"]
    pretend(monkeypatch, tmp_path / "nowhere")
    assert load("emnist", split="letters").classes == 26


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    write_zip(tmp_path / "remote", upstream("byclass")[2])
    pretend(monkeypatch, tmp_path / "remote")
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match=r"gzip\.zip is not cached"):
        assert load("emnist", cache=tmp_path / "file").train_size == 5


@pytest.mark.unchecked
def test_what_is_wrong_is_named_in_one_sentence(tmp_path):
    _, _, files = upstream("byclass")
    labels = "emnist-byclass-train-labels-idx1-ubyte.gz"
    images = "emnist-byclass-test-images-idx3-ubyte.gz"
    wrong = {
        r"labels in 0\.\.61, got 62 in .*train-labels": {labels: gzip.compress(idx(np.full(5, 62)))},
        r"expected 5 uint8 labels, got uint8 \(4,\)": {labels: gzip.compress(idx(np.zeros(4)))},
        r"whole gzip file.*test-images": {images: files[images][:-9]},
        r"square images of one size, got \(6, 5\)": {images: gzip.compress(idx(np.zeros((3, 6, 5))))},
        r"square images of one size, got \(7, 7\)": {images: gzip.compress(idx(np.zeros((3, 7, 7))))},
    }
    for words, change in wrong.items():
        write_zip(tmp_path, files | change)
        refused(words, "emnist", folder=tmp_path)
    del files[images]
    write_zip(tmp_path, files)
    refused(f"the file {images} in the archive", "emnist", folder=tmp_path)
    refused(r"gzip\.zip or the file emnist-byclass-train-images", "emnist", folder=tmp_path / "nowhere")
    refused("did you mean 'letters'", "emnist", split="leters", folder=tmp_path)


def test_letters_count_from_one_in_the_files(tmp_path):
    _, y, files = upstream("letters")
    y[0] = 0
    name = "emnist-letters-train-labels-idx1-ubyte.gz"
    write_zip(tmp_path, files | {name: gzip.compress(idx(y[:5]))})
    refused(r"labels in 1\.\.26, got 0", "emnist", split="letters", folder=tmp_path)


def test_damaged_archives_are_named_in_one_sentence(tmp_path):
    path = write_zip(tmp_path, upstream("byclass")[2])
    whole = path.read_bytes()
    at = whole.index(b"emnist-byclass-train-images") + 80
    for content in damaged(whole, at):
        path.write_bytes(content)
        refused(r"damaged one in .*gzip\.zip", "emnist", folder=tmp_path)
    assert zipfile.is_zipfile(io.BytesIO(whole))


def test_letters_of_both_cases_are_a_part_of_byclass(tmp_path):
    x, y, files = upstream("byclass", train=40, test=20)
    write_zip(tmp_path, files)
    made = load("emnist", split="cases", folder=tmp_path)
    letters = y >= 10
    assert 0 < letters[:40].sum() < 40
    np.testing.assert_array_equal(made.x[..., 0], x[letters])
    np.testing.assert_array_equal(made.y, y[letters] - 10)
    assert (made.classes, made.train_size) == (52, letters[:40].sum())
    np.testing.assert_allclose(made.mean, (x[:40][letters[:40]] / 255).mean())
