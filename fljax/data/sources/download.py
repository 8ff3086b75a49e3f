"""Downloads upstream's files with the addresses and checksums of TensorFlow Datasets (TFDS).

TFDS's builders need TensorFlow to read most of these files; its download manager does not.
"""

from __future__ import annotations

import tempfile
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def fetch_files(
    name: str, advice: str, builder: str | None = None, only: Collection[str] | None = None
) -> Iterator[Path]:
    """Downloads the files of a data set into a temporary folder, and checks their SHA-256.

    Args:
      name: name of the data set in fljax.
      advice: advice for users without a network; the end of an error message.
      builder: name of the data set in TFDS, if different.
      only: upstream's names of the needed files; None: all.

    Yields:
      A folder with the files under upstream's names. The folder is deleted afterwards.

    Raises:
      ValueError: if there is no network (checked within seconds), a download fails, or a checksum differs.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow_datasets as tfds

            infos: Any = tfds.builder(builder or name).url_infos
    except ImportError as error:
        raise ValueError(f"expected {name} on this machine, got nothing; {advice}") from error
    urls = {url.rsplit("/", 1)[-1]: url for url in infos}
    urls = {file: url for file, url in urls.items() if only is None or file in only}
    # Without this check an offline machine would spend minutes in retries.
    if not reachable(next(iter(urls.values()))):
        raise ValueError(f"expected {name} on this machine or a network to fetch it, got neither; {advice}")
    with tempfile.TemporaryDirectory() as folder:
        manager = tfds.download.DownloadManager(
            download_dir=folder, url_infos=infos, dataset_name=name, force_checksums_validation=True
        )
        try:
            files: Any = manager.download(urls)
        except Exception as error:  # errors of requests and TFDS, all handled alike
            raise ValueError(f"expected to fetch {name}, got {error!r}; {advice}") from error
        # Downloaded files have a hash of the address in their names: restore upstream's names.
        renamed = Path(folder) / "upstream"
        renamed.mkdir()
        for file, path in files.items():
            Path(path).rename(renamed / file)
        yield renamed


def reachable(url: str, seconds: float = 4.0) -> bool:
    """Whether a HEAD request for one file gets any answer, even a refusal."""
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answered.set()
        except urllib.error.HTTPError as refusal:
            refusal.close()
            answered.set()
        except (OSError, ValueError):
            return

    # Use a thread, since a DNS lookup has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()
