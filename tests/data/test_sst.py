"""SST-5 in upstream's format: one tree with labels on each line; words become tokens."""

import zipfile

import numpy as np
import pytest

from fljax.data import dataset, federate, load, status
from tests.data.remote import damaged, refused

FILES = {
    "train.txt": ["(3 (2 It) (4 (2 's) (3 (2 a) (3 good))))", "(1 (2 (2 A) (2 film)) (1 (2 -RRB-) (1 bad)))", "(2 a)"],
    "dev.txt": ["(4 (3 Superb) (2 \N{LATIN SMALL LETTER E WITH ACUTE}lan))"],
    "test.txt": ["(0 (1 bad) (1 (1 (1 bad) (2 film)) (2 A)))", "(2 (2 x) (2 y))"],
}
# By frequency (a 4, bad 3, film 2), then in the order of the alphabet.
WORDS = ["a", "bad", "film", "'s", "-rrb-", "good", "it", "superb", "x", "y", "\N{LATIN SMALL LETTER E WITH ACUTE}lan"]


def write(folder, packed=False, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    contents = {name: "\n".join(trees).encode() + b"\n" for name, trees in FILES.items()} | changes
    if packed:
        with zipfile.ZipFile(folder / "trainDevTestTrees_PTB.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(f"trees/{name}", content)
                archive.writestr(f"__MACOSX/trees/._{name}", b"\x00\x05\x16\x07")
    else:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    return folder


def check(made):
    number = {word: i for i, word in enumerate(WORDS, 1)}
    texts = ["it 's a good", "a film -rrb- bad", "a", "bad bad film a", "x y"]
    expected = np.zeros((5, 4), np.int32)
    for row, text in zip(expected, texts, strict=True):
        row[: len(text.split())] = [number[word] for word in text.split()]
    assert made.x.dtype == np.int32
    np.testing.assert_array_equal(made.x, expected)
    np.testing.assert_array_equal(made.y, [3, 1, 2, 0, 2])
    assert (made.classes, made.train_size, made.vocabulary) == (5, 3, len(WORDS) + 1)


@pytest.mark.parametrize("packed", [False, True])
def test_upstreams_trees_are_read_and_cached(tmp_path, packed):
    assert "trainDevTestTrees_PTB.zip" in status()["sst5"]
    refused("give folder=", "sst5")
    folder = write(tmp_path / "files", packed)
    check(load("sst5", folder=folder))
    assert "cached in" in status()["sst5"]
    check(load("sst5"))
    # What is cached does not depend on the length asked for.
    np.testing.assert_array_equal(load("sst5", length=2).x, load("sst5").x[:, :2])
    assert load("sst5", length=90).x.shape == (5, 4)


def test_a_folder_inside_is_found(tmp_path):
    write(tmp_path / "trees")
    check(load("sst5", folder=tmp_path))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "expected trees, got an empty file"),
        (b"(3 (2 It) (4 good))\n<html>\n", "another line 2"),
        (b"(5 (2 It) (4 good))\n", "another line 1"),
        (b"(3 (2 It) (4 good)\n", "another line 1"),
        (b"(3 (2 It) (4 good)))\n", "another line 1"),
        (b"(3 (2 It) (4 good)) (2 more)\n", "another line 1"),
        (b"(3 It good)\n", "another line 1"),
        (b"(3 (2 \xff) (4 good))\n", "text in UTF-8"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_trees_are_named_in_one_sentence(tmp_path, content, match, packed):
    folder = write(tmp_path, packed, **{"dev.txt": content})
    assert "dev.txt" in refused(match, "sst5", folder=folder)
    assert not (tmp_path / "cache").exists()


def test_missing_and_damaged_archives_are_named_in_one_sentence(tmp_path):
    refused("in the folder .*, got neither", "sst5", folder=tmp_path)
    path = write(tmp_path, packed=True) / "trainDevTestTrees_PTB.zip"
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        refused("damaged one in", "sst5", folder=tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trees/train.txt", b"")
    refused(r"the file dev\.txt in the archive", "sst5", folder=tmp_path)
    (tmp_path / "train.txt").write_text("(2 a)\n")
    refused(r"the file dev\.txt in the folder", "sst5", folder=tmp_path)
    refused("length", "sst5", folder=tmp_path, length=0)


def test_tokens_stay_whole_numbers_in_range():
    made = dataset([[1, 2], [3, 0]], [0, 1], vocabulary=4)
    assert (made.x.dtype, made.vocabulary) == (np.int32, 4)
    assert federate(made, "iid", clients=2).examples.x.dtype == np.int32
