"""SST-5, sentences of the Stanford Sentiment Treebank; tested on files that tests write, not yet on upstream's."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from fljax.data.checks import check_count
from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.upstream import Source

_ARCHIVE = "trainDevTestTrees_PTB.zip"
_FILES = ("train.txt", "dev.txt", "test.txt")
_ADVICE = (
    f"give folder=, the folder that holds {_ARCHIVE} of the Stanford Sentiment Treebank or its files "
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
        labels[name], words[name] = _read(text, place)
    counts = Counter(word for name in _FILES for sentence in words[name] for word in sentence)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(order, 1)}
    sentences = words["train.txt"] + words["test.txt"]
    x = np.zeros((len(sentences), max(map(len, sentences))), np.int32)
    for row, sentence in zip(x, sentences, strict=True):
        row[: len(sentence)] = [number[word] for word in sentence]
    y, size = np.array(labels["train.txt"] + labels["test.txt"], np.int32), len(labels["train.txt"])
    return dataset(x, y, classes=5, train_size=size, vocabulary=len(order) + 1)


SST5 = Source("sst5", _parse, _ADVICE, classes=5, saved=("vocabulary",), fetched=False)


def _texts(folder: Path) -> dict[str, tuple[str, str]]:
    """The content of each file, and its name for errors."""
    for place in (folder, folder / "trees"):
        if (place / _FILES[0]).is_file():
            for name in _FILES:
                if not (place / name).is_file():
                    raise ValueError(f"expected the file {name} in the folder {place}, got none")
            return {name: (_decoded((place / name).read_bytes(), place / name), str(place / name)) for name in _FILES}
    path = folder / _ARCHIVE
    if not path.is_file():
        raise ValueError(f"expected {_ARCHIVE} or the files {', '.join(_FILES)} in the folder {folder}, got neither")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.rsplit("/", 1)[-1]: name for name in archive.namelist() if "__MACOSX" not in name}
            for name in _FILES:
                if name not in members:
                    raise ValueError(f"expected the file {name} in the archive {path}, got none")
            contents = {name: archive.read(members[name]) for name in _FILES}
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError) as error:
        raise ValueError(f"expected a whole zip archive, got a damaged one in {path} ({error})") from error
    return {name: (_decoded(content, f"{path}/{name}"), f"{path}/{name}") for name, content in contents.items()}


def _decoded(content: bytes, name: str | Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected text in UTF-8, got other bytes in {name}") from error


def _read(text: str, name: str) -> tuple[list[int], list[list[str]]]:
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
