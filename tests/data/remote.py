"""A pretended network: a folder in the place of upstream."""

from pathlib import Path

import pytest

from fljax.data.sources import hubs


def pretend(monkeypatch, remote):
    """Lets TFDS "download" the files of a folder."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class Manager:
        def __init__(self, *, download_dir, **options):
            self.folder = Path(download_dir)

        def download(self, urls):
            for name in urls:
                (self.folder / f"hashed_{name}").write_bytes((remote / name).read_bytes())
            return {name: self.folder / f"hashed_{name}" for name in urls}

    monkeypatch.setattr(tfds.download, "DownloadManager", Manager)
    monkeypatch.setattr(hubs, "reachable", lambda url: True)
