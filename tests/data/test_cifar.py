"""CIFAR-10 and CIFAR-100 in upstream's binary format, written here byte by byte; and files that are damaged."""

import io
import tarfile

import numpy as np
import pytest

from fljax.data import load, status
from tests.data.remote import pretend

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def batches():
    """Images ``[n, 32, 32, 3]`` and labels of each file, three in a batch and two in the test batch."""
    rng = np.random.default_rng(0)
    sizes = [3, 3, 3, 3, 3, 2]
    return {
        name: (rng.integers(0, 256, (n, 32, 32, 3), np.uint8), rng.integers(0, 10, n))
        for name, n in zip(NAMES, sizes, strict=True)
    }


def planes(x):
    """Upstream's order: all of red, all of green, all of blue."""
    return b"".join(image[:, :, channel].tobytes() for image in x for channel in range(3))


def binary(x, y):
    return b"".join(bytes([label]) + planes(image[None]) for image, label in zip(x, y, strict=True))


def write(folder, batches, packed=False):
    """Upstream's archive, or the folder that it unpacks to, in ``folder``."""
    files = {f"cifar-10-batches-bin/{name}.bin": binary(*batch) for name, batch in batches.items()}
    files["cifar-10-batches-bin/readme.html"] = b"<html>"
    folder.mkdir(parents=True, exist_ok=True)
    if packed:
        name = "cifar-10-binary.tar.gz"
        with tarfile.open(folder / name, "w:gz") as archive:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return folder / name
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    return folder / "cifar-10-batches-bin"


def check(made, batches):
    assert made.x.shape == (17, 32, 32, 3)
    assert made.x.dtype == np.uint8
    assert made.x.flags.c_contiguous
    assert (made.classes, made.train_size) == (10, 15)
    np.testing.assert_array_equal(made.x, np.concatenate([batches[name][0] for name in NAMES]))
    np.testing.assert_array_equal(made.y, np.concatenate([batches[name][1] for name in NAMES]))


@pytest.mark.parametrize("packed", [False, True])
def test_upstreams_format_is_read(tmp_path, batches, packed):
    written = write(tmp_path / "files", batches, packed)
    check(load("cifar10", folder=tmp_path / "files"), batches)
    if not packed:
        check(load("cifar10", folder=written), batches)
    assert not (tmp_path / "cache").exists()


def test_damaged_binary_files_are_named_in_one_sentence(tmp_path, batches):
    folder = write(tmp_path, batches)
    path = folder / "data_batch_4.bin"
    whole = path.read_bytes()
    for content, match in [
        (whole[:-1], "data_batch_4"),
        (b"", "data_batch_4"),
        (whole[: 2 * 3073], r"one length, got lengths \[3, 3, 3, 2, 3\]"),
        (b"\x0a" + whole[1:], r"labels in 0\.\.9, got 10 in .*data_batch_4"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=match):
            load("cifar10", folder=tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"expected the file data_batch_4\.bin"):
        load("cifar10", folder=tmp_path)


def test_the_archive_that_is_read_is_named(tmp_path, batches):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"another format")
    with pytest.raises(ValueError, match="expected cifar-10-binary") as caught:
        load("cifar10", folder=tmp_path)
    assert str(caught.value) == (
        "expected cifar-10-binary.tar.gz (upstream's page calls it 'CIFAR-10 binary version'), unpacked or not, in the "
        f"folder {tmp_path}, got neither it nor its files"
    )
    with pytest.raises(ValueError, match=r"expected cifar-100-binary\.tar\.gz .*'CIFAR-100 binary version'"):
        load("cifar100", folder=tmp_path)


def test_damaged_archives_are_named_in_one_sentence(tmp_path, batches):
    path = write(tmp_path, batches, packed=True)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"damaged one in .*cifar-10-binary") as caught:
            load("cifar10", folder=tmp_path)
        assert "\n" not in str(caught.value)
    del batches["test_batch"]
    write(tmp_path, batches, packed=True)
    with pytest.raises(ValueError, match=r"expected the file test_batch\.bin in the archive"):
        load("cifar10", folder=tmp_path)


def test_a_download_is_parsed_and_cached(tmp_path, monkeypatch, batches):
    write(tmp_path / "remote", batches, packed=True)
    pretend(monkeypatch, tmp_path / "remote")
    assert status()["cifar10"].startswith("not here")
    first = load("cifar10")
    check(first, batches)
    assert "cached in" in status()["cifar10"]
    pretend(monkeypatch, tmp_path / "nowhere")
    second = load("cifar10")
    check(second, batches)
    assert (first.mean, first.std) == (second.mean, second.std)


# --- CIFAR-100 ----------------------------------------------------------------------------------------------


@pytest.fixture
def hundred():
    """Images, coarse and fine labels of each file."""
    rng = np.random.default_rng(1)
    sizes = {"train": 7, "test": 4}
    return {
        name: (rng.integers(0, 256, (n, 32, 32, 3), np.uint8), rng.integers(0, 20, n), rng.integers(0, 100, n))
        for name, n in sizes.items()
    }


def write_hundred(folder, hundred, packed=False):
    files = {"file.txt~": b""}
    for name, (x, coarse, fine) in hundred.items():
        records = zip(x, coarse, fine, strict=True)
        files[f"{name}.bin"] = b"".join(bytes([c, f]) + planes(image[None]) for image, c, f in records)
    folder.mkdir(parents=True, exist_ok=True)
    if packed:
        with tarfile.open(folder / "cifar-100-binary.tar.gz", "w:gz") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(f"cifar-100-binary/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return folder
    inside = folder / "cifar-100-binary"
    inside.mkdir()
    for name, content in files.items():
        (inside / name).write_bytes(content)
    return inside


def check_hundred(made, hundred):
    assert (made.x.shape, made.x.dtype) == ((11, 32, 32, 3), np.uint8)
    assert (made.classes, made.train_size) == (100, 7)
    np.testing.assert_array_equal(made.x, np.concatenate([hundred[name][0] for name in ("train", "test")]))
    np.testing.assert_array_equal(made.y, np.concatenate([hundred[name][2] for name in ("train", "test")]))


@pytest.mark.parametrize("packed", [False, True])
def test_fine_labels_of_cifar_100(tmp_path, hundred, packed):
    written = write_hundred(tmp_path / "files", hundred, packed)
    check_hundred(load("cifar100", folder=tmp_path / "files"), hundred)
    check_hundred(load("cifar100", folder=written), hundred)


def test_damaged_files_of_cifar_100_are_named_in_one_sentence(tmp_path, hundred):
    path = write_hundred(tmp_path, hundred) / "test.bin"
    whole = path.read_bytes()
    for content, match in [
        (whole[:-1], r"records of 3074 bytes, got 12295 bytes in .*test\.bin"),
        (b"\x00\x64" + whole[2:], r"labels in 0\.\.99, got 100 in .*test\.bin"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=match):
            load("cifar100", folder=tmp_path)


def test_cifar_100_is_cached_apart_from_cifar_10(tmp_path, monkeypatch, hundred):
    pretend(monkeypatch, write_hundred(tmp_path / "remote", hundred, packed=True))
    check_hundred(load("cifar100"), hundred)
    assert "cached in" in status()["cifar100"]
    assert status()["cifar10"].startswith("not here")
    pretend(monkeypatch, tmp_path / "nowhere")
    check_hundred(load("cifar100"), hundred)
