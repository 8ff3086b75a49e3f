"""What models of a run need to know of its data, without any row: ``data.npz`` in the run folder.

Predictions then need neither the data nor the code that reads them. Names that are dates or other objects are text.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fljax.core.files import read_npz, write_npz
from fljax.data import Dataset
from fljax.data.tables import each_of, shared_names
from fljax.protocol import ClientData, Examples, Features, Federation, Moments, Names, Rows, Spans
from fljax.results.folders import MODELS

FILE = "data.npz"
_TEXT = "text"


class Outline(NamedTuple):
    """A data set and its federations without rows."""

    federation: Federation  # of all seeds, stacked; its examples are one row of zeros, to which all lists point
    dataset: Dataset  # with one row of zeros
    names: tuple[Names, ...]  # of each seed
    checksum: int  # of the federation with its rows


def contents(federation: Federation, dataset: Dataset, names: Sequence[Names]) -> dict[str, np.ndarray]:
    """The arrays of an outline by name, without the checksum of the data."""
    x, y = dataset.x, dataset.y
    text = {
        "classes": _plain(dataset.classes),
        "vocabulary": _plain(dataset.vocabulary),
        "rows": [list(x.shape[1:]), np.dtype(x.dtype).name, list(y.shape[1:]), np.dtype(y.dtype).name],
        "stored": np.dtype(federation.examples.x.dtype).name,
        "capacities": [
            None if clients is None else [int(rows.index.shape[-1]) for rows in clients.parts.values()]
            for clients in (federation.clients, federation.unseen)
        ],
        "held": list(federation.held),
        "names": [[_plain(value) for value in (of.classes, of.clients, of.unseen)] for of in names],
        "features": [[_plain(of.names), of.shift, of.mean, of.std, of.words] for of in each_of(federation.features)],
    }
    arrays: dict[str, Any] = {"mean": np.asarray(dataset.mean), "std": np.asarray(dataset.std)}
    for name, clients in (("seen", federation.clients), ("unseen", federation.unseen)):
        if clients is not None:
            arrays[f"{name}/id"] = clients.id
            arrays |= {f"{name}/{part}": rows.size for part, rows in clients.parts.items()}
            arrays |= {} if clients.noise is None else {f"{name}/noise": clients.noise}
    for place, rows in enumerate(federation.held.values()):
        arrays |= {f"held/{place}": rows.size, f"held/{place}/length": np.int64(rows.index.shape[-1])}
    if federation.moments is not None:
        arrays |= {"moments/mean": federation.moments.mean, "moments/std": federation.moments.std}
    plain = {name: np.asarray(values) for name, values in arrays.items()}
    return plain | {_TEXT: np.asarray(json.dumps(text))}


def save_outline(folder: pathlib.Path, outline: Mapping[str, np.ndarray], checksum: int) -> None:
    """Writes the outline, atomically; a folder with models keeps its own, or refuses data of another ``checksum``."""
    if any((folder / MODELS).rglob("*.npz")):
        before = load_outline(folder)
        if before is None:
            raise ValueError(
                f"expected {FILE} beside the models in {str(folder)!r}, got none: an older fljax saved them; take a "
                "new folder"
            )
        if before.checksum != checksum:
            raise ValueError(
                f"expected the data of {str(folder)!r}, whose models were trained on them, got data that have changed; "
                "take a new folder"
            )
        return
    text = json.loads(str(outline[_TEXT])) | {"checksum": checksum}
    write_npz(folder / FILE, {**outline, _TEXT: np.asarray(json.dumps(text))}, compressed=True)


def load_outline(folder: pathlib.Path) -> Outline | None:
    """The outline in a run folder; None: there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    arrays = read_npz(path, "outlines")
    try:
        return _outline(json.loads(str(arrays.pop(_TEXT))), arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"expected a whole file {str(path)!r}, got a damaged one ({error})") from None


def _outline(text: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Outline:
    row, dtype, label, label_dtype = text["rows"]
    x, y = np.zeros((1, *row), dtype), np.zeros((1, *label), label_dtype)
    mean, std = (value.item() if value.ndim == 0 else value for value in (arrays["mean"], arrays["std"]))
    dataset = Dataset(x, y, text["classes"], 1, mean, std, vocabulary=text["vocabulary"])
    seen, unseen = (
        _clients(arrays, f"{name}/", capacities)
        for name, capacities in zip(("seen", "unseen"), text["capacities"], strict=True)
    )
    assert seen is not None
    on_server = {
        name: Rows(jnp.zeros((*size.shape, int(arrays[f"held/{place}/length"])), jnp.int32), jnp.asarray(size))
        for place, name in enumerate(text["held"])
        for size in (arrays[f"held/{place}"],)
    }
    names = [Names(*map(_tuple, of)) for of in text["names"]]
    moments = None
    if "moments/mean" in arrays:
        moments = Moments(jnp.asarray(arrays["moments/mean"]), jnp.asarray(arrays["moments/std"]))
    features = [Features(*map(_tuple, of)) for of in text["features"]]
    of_all = features[0] if len(features) == 1 else tuple(features)
    longest = max([1, *(length for lengths in text["capacities"] if lengths is not None for length in lengths)])
    examples, lists = Examples(jnp.zeros((1, *row), text["stored"]), jnp.asarray(y)), jnp.zeros(longest, jnp.int32)
    federation = Federation(examples, seen, unseen, on_server, shared_names(names), lists, moments, of_all)
    return Outline(federation, dataset, tuple(names), int(text["checksum"]))


def _clients(arrays: Mapping[str, np.ndarray], prefix: str, capacities: list[int] | None) -> ClientData | None:
    if capacities is None:
        return None
    parts = [part for part in ("train", "valid", "test", "deployment", "later") if prefix + part in arrays]
    size = [jnp.asarray(arrays[prefix + part]) for part in parts]
    rows: dict[str, Any] = {
        part: Rows(Spans(jnp.zeros(count.shape, jnp.int32), length), count)
        for part, count, length in zip(parts, size, capacities, strict=True)
    }
    noise: Any = arrays.get(f"{prefix}noise")
    noise = None if noise is None else jnp.asarray(noise)
    return ClientData(jnp.asarray(arrays[f"{prefix}id"]), **rows, noise=noise)


def _plain(value: Any) -> Any:
    """A name, or a tuple of names, as JSON has it; dates and other objects become text."""
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _tuple(value: Any) -> Any:
    """The opposite of ``_plain``: lists are tuples."""
    return tuple(_tuple(entry) for entry in value) if isinstance(value, list) else value
