"""A pretended network, a folder in the place of upstream, and files that are damaged on the way."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fljax.data import load
from fljax.data.sources import hubs


def idx(array: np.ndarray) -> bytes:
    """The content of an IDX file of bytes."""
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def pretend(monkeypatch: pytest.MonkeyPatch, remote: Path) -> dict[str, Any]:
    """Lets TFDS "download" the files of a folder; the options of its manager, once it was asked."""
    seen: dict[str, Any] = {}
    tfds = pytest.importorskip("tensorflow_datasets")

    class Manager:
        def __init__(self, *, download_dir, **options):
            self.folder = Path(download_dir)
            seen.update(options)

        def download(self, urls):
            for name in urls:
                (self.folder / f"hashed_{name}").write_bytes((remote / name).read_bytes())
            return {name: self.folder / f"hashed_{name}" for name in urls}

    monkeypatch.setattr(tfds.download, "DownloadManager", Manager)
    monkeypatch.setattr(hubs, "reachable", lambda url: True)
    return seen


def damaged(whole: bytes, at: int | None = None) -> list[bytes]:
    """Contents in place of a whole file: half of it, a page of the web, none, and one byte flipped at a place."""
    flipped = [] if at is None else [whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]]
    return [whole[: len(whole) // 2], b"<html>not found</html>", b"", *flipped]


def refused(words: str, name: str, **options: Any) -> str:
    """The one sentence that refuses a source."""
    with pytest.raises(ValueError, match=words) as caught:
        load(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
