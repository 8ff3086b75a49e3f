"""The IDX file format of MNIST and its relatives, plain or compressed by gzip.

A file is two zero bytes, one byte for the type, one for the number of axes, a big-endian uint32 for the
length of each axis, and the values in C order. Source: the description of the format on the page of the MNIST
database.
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
      ValueError: the file is cut short, damaged or no IDX file.
    """
    path = Path(path)
    content = path.read_bytes()
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
    return values.astype(kind.newbyteorder("="))
