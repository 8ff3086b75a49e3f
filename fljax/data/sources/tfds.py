"""Any data set of TensorFlow Datasets (TFDS) by name, read without TensorFlow where TFDS can."""

from __future__ import annotations

import difflib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from fljax.core.names import shown, unknown
from fljax.data.assembly import Piece, assemble
from fljax.data.datasets import Dataset
from fljax.data.paths import with_home
from fljax.data.sources.download import reachable

_INSTALL = "install it (pip install tensorflow-cpu)"


def tfds_dataset(
    name: str,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    client: str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    folder: str | Path | None = None,
    standardise: bool = True,
) -> Dataset:
    """A data set of TensorFlow Datasets, ``tfds:NAME`` in a config: ``tfds:kmnist``, ``tfds:emnist/letters``.

    ::

        [data]
        dataset = "tfds:kmnist"
        partition = "dirichlet"
        clients = 20

    TFDS downloads and prepares the data once, in its ``array_record`` format, which is read without TensorFlow. Some
    builders need TensorFlow, or another package, to prepare their files.

    Args:
      name: the name in TFDS, with configuration and version if wanted.
      features: the feature that models see, e.g. "image"; several numbers become one vector. By default the
        data set's own choice (``supervised_keys``).
      label: the feature to predict; by default the data set's own choice.
      client: the feature that says whose row it is, e.g. a writer's id; every value is a client.
      train_split: name of the split with the training rows; ``"train[:10%]"`` works, too.
      test_split: name of the split with the test rows; "test" if there is one.
      classes: number of classes, if TFDS does not say it and some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      folder: folder of TFDS's data; ``~/tensorflow_datasets`` if not given.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.

    Raises:
      ValueError: if there is no such data set or feature, it cannot be downloaded, or needs a package that is not
        installed.
    """
    with _in_sentences(name):
        builder = _prepared(name, folder)
        info = builder.info
        keys = _supervised(info)
        names = {"features": features, "label": label}
        for option, key in zip(names, keys, strict=True):
            names[option] = key if names[option] is None else names[option]
            if names[option] is None:
                raise ValueError(f"expected {option}, one or more of the features {', '.join(info.features)}, got none")
        chosen = [names["features"]] if isinstance(names["features"], str) else list(names["features"] or ())
        for key in [*chosen, names["label"], *([] if client is None else [client])]:
            if key not in info.features:
                raise ValueError(unknown("feature", str(key), info.features))
        splits = [(train_split, False)]
        if test_split is not None or ("test" in info.splits and "test" not in train_split):
            splits.append(("test" if test_split is None else test_split, True))
        pieces = [_piece(builder, split, is_test, chosen, str(names["label"]), client) for split, is_test in splits]
    class_names = getattr(info.features[names["label"]], "names", None)
    return assemble(pieces, classes=classes, regression=regression, class_names=class_names, standardise=standardise)


@contextmanager
def _in_sentences(name: str) -> Iterator[None]:
    """Turns errors of TFDS, which have many classes and lines, into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImportError as error:
        raise ValueError(_missing(name, error)) from None
    except ValueError as error:
        said = str(error)
        raise ValueError(said if said.startswith("expected ") else _failed(name, error)) from None
    except Exception as error:
        raise ValueError(_failed(name, error)) from None


def _missing(name: str, error: ImportError) -> str:
    """The sentence for a package that is not installed, which TFDS may name in the last line of its message alone."""
    found = re.search(r"No module named '(\w+)", str(error))
    if found is None:
        return _failed(name, error)
    advice = _INSTALL if found[1] == "tensorflow" else "install it"
    return f"expected {found[1]}, which TFDS needs to prepare {name}, got none; {advice}"


def _failed(name: str, error: Exception) -> str:
    return f"expected TFDS to read {name}, got {type(error).__name__}: {shown(' '.join(str(error).split()))}"


def _prepared(name: str, folder: str | Path | None) -> Any:
    """The builder of a data set whose files are on this machine."""
    import tensorflow_datasets as tfds

    place = None if folder is None else str(with_home(folder))
    # Looked up first, since TFDS asks for TensorFlow before it says that there is no such data set. It also reads
    # prepared files whose builder is not here.
    names, first = tfds.list_builders(with_community_datasets=False), re.split("[/:]", name)[0]
    if first not in names and (place is None or not (Path(place) / first).is_dir()):
        raise ValueError(_unknown_name(name, names))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # TFDS's own advice, which is for TensorFlow
        builder: Any = tfds.builder(name, data_dir=place, file_format="array_record")
    if not Path(builder.data_dir).is_dir():
        urls = list(getattr(builder, "url_infos", None) or ())
        if urls and not reachable(urls[0]):
            raise ValueError(
                f"expected {name} of TFDS on this machine, in {builder.data_dir}, or a network to fetch it, got neither"
            )
        builder.download_and_prepare(file_format="array_record")
    return builder


def _unknown_name(name: str, names: Sequence[str]) -> str:
    """The sentence for a name that TFDS does not have; it names the most similar of more than a thousand."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    question = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    return f"expected the name of a data set of TFDS, got {shown(name)}{question}"


def _supervised(info: Any) -> tuple[Any, Any]:
    """The features and the label that the data set's authors chose; None where they did not."""
    keys = info.supervised_keys
    if isinstance(keys, tuple) and len(keys) >= 2 and isinstance(keys[0], str) and isinstance(keys[1], str):
        return keys[0], keys[1]
    return None, None


def _piece(builder: Any, split: str, test: bool, chosen: Sequence[str], label: str, client: str | None) -> Piece:
    """The rows of one split."""
    x, y, owners = [], [], []
    for row in builder.as_data_source(split=split):
        row: Mapping[str, Any]
        values = [np.asarray(row[key]) for key in chosen]
        x.append(values[0] if len(values) == 1 else np.stack([np.float32(value) for value in values]))
        y.append(row[label])
        if client is not None:
            owners.append(_plain(row[client]))
    if not x:
        raise ValueError(f"expected rows in the split {split!r}, got none")
    if x[0].dtype.kind not in "biuf":
        raise ValueError(f"expected numbers in the feature {chosen[0]!r}, got {shown(x[0].tolist())}")
    if len({each.shape for each in x}) > 1:
        raise ValueError(f"expected rows of one shape in {chosen[0]!r}, got {x[0].shape} and others")
    stacked = np.stack(x)
    stacked = stacked if stacked.dtype == np.uint8 and stacked.ndim > 2 else stacked.astype(np.float32)
    name = "test rows" if test else "training rows"
    return Piece(stacked, np.asarray(y), np.asarray(owners) if owners else None, test, name)


def _plain(value: Any) -> Any:
    value = np.asarray(value).item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
