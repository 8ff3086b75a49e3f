"""Upstream's files over the network, by the addresses and checksums that TensorFlow Datasets (TFDS) keeps.

TFDS's own builders would need TensorFlow to read most of these files; its download manager does not.
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
    """Downloads the files of a data set, checked by their SHA-256, and lends the folder that holds them.

    Args:
      name: of the data set, as in fljax.
      advice: what to do where there is no network; ends the sentence of an error.
      builder: its name in TFDS, if another.
      only: upstream's names of the files that are needed; None: all.

    Yields:
      A folder with the files under upstream's names, which is deleted afterwards.

    Raises:
      ValueError: there is no network (within seconds), or the files cannot be had or differ from upstream's.
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
    if not _reachable(next(iter(urls.values()))):
        raise ValueError(f"expected {name} on this machine or a network to fetch it, got neither; {advice}")
    with tempfile.TemporaryDirectory() as folder:
        manager = tfds.download.DownloadManager(
            download_dir=folder, url_infos=infos, dataset_name=name, force_checksums_validation=True
        )
        try:
            files: Any = manager.download(urls)
        except Exception as error:  # requests' and TFDS's own; all mean the same to the user
            raise ValueError(f"expected to fetch {name}, got {error!r}; {advice}") from error
        # Stored names carry a hash of the address: give each file its upstream name.
        renamed = Path(folder) / "upstream"
        renamed.mkdir()
        for file, path in files.items():
            Path(path).rename(renamed / file)
        yield renamed


def _reachable(url: str, seconds: float = 4.0) -> bool:
    """Asks for the head of one file; any answer counts, even a refusal."""
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

    # A thread, since looking up a name has no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()
