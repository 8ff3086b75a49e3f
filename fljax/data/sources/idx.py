"""The IDX file format of MNIST and similar data sets, plain or compressed with gzip.

A file has two zero bytes, one byte for the type, one for the number of axes, a big-endian uint32 for the length of each
axis, and the values in C order. Source: the description of the format on the page of the MNIST database.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """Returns the array in one IDX file; gzip is recognised by its first bytes, not by the file's name.

    Raises:
      ValueError: if the file is truncated, damaged or not an IDX file.
    """
    return parse_idx(Path(path).read_bytes(), path)


def parse_idx(content: bytes, path: str | Path) -> np.ndarray:
    """Returns the array in the bytes of one IDX file, plain or gzip; ``path`` is its name in errors.

    The array may be read-only.

    Raises:
      ValueError: if the file is truncated, damaged or not an IDX file.
    """
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"expected a whole gzip file, got a truncated or damaged one in {path}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or content[3] == 0:
        raise ValueError(f"expected an IDX file, got another header in {path}")
    kind, start = np.dtype(_TYPES[content[2]]), 4 + 4 * content[3]
    if len(content) < start:
        raise ValueError(f"expected an IDX header of {start} bytes, got {len(content)} bytes in {path}")
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    expected = kind.itemsize
    for length in shape:
        expected *= length
    if len(content) - start != expected:
        raise ValueError(f"expected {expected} bytes for shape {shape}, got {len(content) - start} bytes in {path}")
    values = np.frombuffer(content, kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="), copy=False)


def check_pair(x: np.ndarray, y: np.ndarray, image_file: str | Path, label_file: str | Path, labels: range) -> None:
    """Raises a ValueError unless ``x`` has uint8 images and ``y`` has one uint8 label in ``labels`` for each image."""
    if x.ndim != 3 or x.dtype != np.uint8 or x.size == 0:
        raise ValueError(f"expected uint8 images [n, height, width], got {x.dtype} {x.shape} in {image_file}")
    if y.shape != (len(x),) or y.dtype != np.uint8:
        raise ValueError(f"expected {len(x)} uint8 labels, got {y.dtype} {y.shape} in {label_file}")
    for found in (int(y.min()), int(y.max())):
        if found not in labels:
            raise ValueError(f"expected labels in {labels.start}..{labels.stop - 1}, got {found} in {label_file}")
