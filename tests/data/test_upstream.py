"""Downloads: offline is said in one sentence and within seconds, and upstream's files are lent by their names."""

import contextlib
import time
import urllib.error
from typing import Any

import pytest

from fljax.data.sources import hubs, mnist
from fljax.data.sources.hubs import fetch_files
from tests.data.remote import pretend, refused


@pytest.fixture(autouse=True)
def no_package_of_debian(monkeypatch):
    monkeypatch.setattr(mnist, "FASHION_MNIST", mnist.FASHION_MNIST._replace(folders=()))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "emnist", "cifar10", "cifar100", "svhn", "sent140"])
def test_offline_is_one_sentence_that_says_what_to_do(tmp_path, monkeypatch, name):
    pytest.importorskip("tensorflow_datasets")
    (tmp_path / "vectors.txt").write_text("a 1 2\n")
    options: dict[str, Any] = {"glove": tmp_path / "vectors.txt"} if name == "sent140" else {}
    asked = []
    monkeypatch.setattr(hubs, "reachable", lambda url: asked.append(url))
    sentence = refused(f"expected {name} .*folder=", name, **options)
    assert len(asked) == 1
    assert ("dataset-fashion-mnist" in sentence) == (name == "fashion_mnist")
    assert not (tmp_path / "cache").exists()


def test_probe_gives_up_quickly(monkeypatch):
    def hang(*args, **kwargs):
        time.sleep(0.4)
        return contextlib.nullcontext()

    monkeypatch.setattr("urllib.request.urlopen", hang)
    start = time.monotonic()
    assert not hubs.reachable("http://nowhere.invalid/file", seconds=0.05)
    assert time.monotonic() - start < 0.35

    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert not hubs.reachable("http://nowhere.invalid/file")


def test_a_failed_download_is_one_sentence(monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Manager:
        def __init__(self, **options):
            assert options["force_checksums_validation"]

        def download(self, urls):
            raise OSError("checksum differs")

    monkeypatch.setattr(tfds.download, "DownloadManager", Manager)
    monkeypatch.setattr(hubs, "reachable", lambda url: True)
    with (
        pytest.raises(ValueError, match=r"expected to fetch mnist, got OSError.*; do this"),
        fetch_files("mnist", "do this"),
    ):
        pass


@pytest.mark.parametrize(
    ("builder", "file"),
    [
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-binary.tar.gz"),
        ("emnist/letters", "gzip.zip"),
        ("sentiment140", "trainingandtestdata.zip"),
    ],
)
def test_files_are_lent_under_upstreams_names(tmp_path, monkeypatch, builder, file):
    (tmp_path / file).write_bytes(b"content")
    pretend(monkeypatch, tmp_path)
    with fetch_files("any", "", builder) as folder:
        assert [path.name for path in folder.iterdir()] == [file]
        assert (folder / file).read_bytes() == b"content"
    assert not folder.exists()
