"""Data sets of Hugging Face by name, or of a folder in its format."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax.core.names import shown, unknown
from fljax.data.assembly import Piece, assemble
from fljax.data.datasets import Dataset

_ADVICE = "install it (pip install 'fljax[huggingface]')"


def hugging_face_dataset(
    name: str,
    *,
    label: str = "label",
    features: str | Sequence[str] | None = None,
    client: str | None = None,
    configuration: str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    standardise: bool = True,
) -> Dataset:
    """A data set of Hugging Face, ``hf:OWNER/NAME`` in a config; the extra ``huggingface`` has the package it needs.

    ::

        [data]
        dataset = "hf:flwrlabs/femnist"
        features = "image"
        label = "character"
        client = "writer_id"

    Args:
      name: the name on the hub, or a folder's path.
      label: the column to predict.
      features: the column of images or vectors, or the columns of numbers; all columns except label and client if not
        given.
      client: the column that says whose row it is; every value is a client.
      configuration: the data set's configuration, if it has several.
      train_split: name of the split with the training rows.
      test_split: name of the split with the test rows; "test" if there is one.
      classes: number of classes, if the data set does not say it and some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.

    Code that comes with a data set is never run.

    Raises:
      ValueError: if the package is not installed, the data set cannot be loaded, or a column does not exist or is
        neither numbers nor images.
    """
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        missing = error.name or "datasets"
        what = "the package datasets" if missing == "datasets" else f"{missing}, which the package datasets needs,"
        raise ValueError(f"expected {what} for hf:{name}, got none; {_ADVICE}") from None
    try:
        splits: Any = datasets.load_dataset(name, configuration)
    except Exception as error:  # errors of the hub, of files and of networks
        said = shown(" ".join(str(error).split()))
        raise ValueError(f"expected Hugging Face to load {name}, got {type(error).__name__}: {said}") from None
    if not isinstance(splits, Mapping):
        splits = {train_split: splits}
    wanted = [(train_split, False)]
    if test_split is not None or ("test" in splits and train_split != "test"):
        wanted.append(("test" if test_split is None else test_split, True))
    for split, _ in wanted:
        if split not in splits:
            raise ValueError(unknown("split", split, splits))
    pieces = [_piece(splits[split], label, features, client, is_test) for split, is_test in wanted]
    names = getattr(splits[train_split].features[label], "names", None)
    return assemble(pieces, classes=classes, regression=regression, class_names=names, standardise=standardise)


def _piece(split: Any, label: str, features: str | Sequence[str] | None, client: str | None, test: bool) -> Piece:
    """The rows of one split."""
    columns = list(split.column_names)
    if isinstance(features, str):
        chosen = [features]
    else:
        chosen = [each for each in columns if each not in (label, client)] if features is None else list(features)
    for column in [*chosen, label, *([] if client is None else [client])]:
        if column not in columns:
            raise ValueError(unknown("column", column, columns))
    if not chosen:
        raise ValueError("expected at least one column of features, got none")
    values = [_numbers(split[column], column) for column in chosen]
    if len(values) == 1:
        x = values[0] if values[0].ndim > 1 else values[0][:, None]
    else:
        wrong = [column for column, each in zip(chosen, values, strict=True) if each.ndim > 1]
        if wrong:
            raise ValueError(f"expected one number for each row in each of several columns, got more in {wrong[0]!r}")
        x = np.stack([each.astype(np.float32) for each in values], axis=1)
    x = x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32)
    owner = None if client is None else np.asarray(list(split[client]))
    return Piece(x, list(split[label]), owner, test, "test rows" if test else "training rows")


def _numbers(column: Any, name: str) -> np.ndarray:
    """A column as an array; images, which have ``convert`` as Pillow's do, as uint8 with channels."""
    rows = list(column)
    if rows and hasattr(rows[0], "convert"):
        if deep := [row.mode for row in rows if row.mode.startswith(("I", "F"))]:
            raise ValueError(f"expected images of 8 bits in the column {name!r}, got the mode {deep[0]}")
        grey = all(row.mode in ("1", "L") for row in rows)
        rows = [np.asarray(row.convert("L" if grey else "RGB")) for row in rows]
        rows = [row[..., None] if row.ndim == 2 else row for row in rows]
    try:
        found = np.asarray(rows)
    except ValueError:
        raise ValueError(f"expected rows of one shape in the column {name!r}, got several") from None
    if found.dtype.kind not in "biuf":
        got = shown(rows[0]) if rows else "no rows"
        raise ValueError(f"expected numbers or images in the column {name!r}, got {got}; choose columns with features=")
    return found
