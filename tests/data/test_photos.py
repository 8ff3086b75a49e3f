"""Colour images in upstream's formats, written here, whole and damaged: CIFAR, SVHN and Tiny ImageNet."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from scipy.io import savemat

from fljax.data import load, status
from tests.data.remote import damaged, pretend, refused
from tests.data.written import write

# The folder, the images of each file, and how many labels there are of each kind; the last kind is read.
CIFAR = {
    10: ("cifar-10-batches-bin", {**{f"data_batch_{i}": 3 for i in range(1, 6)}, "test_batch": 2}, [10]),
    100: ("cifar-100-binary", {"train": 7, "test": 4}, [20, 100]),
}


@pytest.fixture(params=CIFAR)
def number(request):
    return request.param


@pytest.fixture
def batches(number):
    """Images ``[n, 32, 32, 3]`` and labels ``[n, kinds]`` of each file."""
    rng, (_, sizes, kinds) = np.random.default_rng(0), CIFAR[number]
    return {
        name: (rng.integers(0, 256, (n, 32, 32, 3), np.uint8), rng.integers(0, kinds, (n, len(kinds))))
        for name, n in sizes.items()
    }


def binary(x, y):
    """Upstream's order: labels, all of red, all of green, all of blue."""
    return b"".join(bytes(own.tolist()) + image.transpose(2, 0, 1).tobytes() for image, own in zip(x, y, strict=True))


def write_cifar(folder, number, batches, packed=False):
    """Upstream's archive, or the folder that it unpacks to, in ``folder``."""
    inside = CIFAR[number][0]
    files = {f"{inside}/{name}.bin": binary(*batch) for name, batch in batches.items()}
    files[f"{inside}/readme.html"] = b"<html>"
    folder.mkdir(parents=True, exist_ok=True)
    if not packed:
        write(folder, files)
        return folder / inside
    with tarfile.open(folder / f"cifar-{number}-binary.tar.gz", "w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder / f"cifar-{number}-binary.tar.gz"


def check_cifar(made, number, batches):
    x, y = map(np.concatenate, zip(*batches.values(), strict=True))
    np.testing.assert_array_equal(made.x, x, strict=True)
    np.testing.assert_array_equal(made.y, y[:, -1])
    assert (made.x.flags.c_contiguous, made.classes, made.train_size) == (True, number, {10: 15, 100: 7}[number])


@pytest.mark.parametrize("packed", [False, True])
def test_upstreams_format_is_read(tmp_path, number, batches, packed):
    written = write_cifar(tmp_path / "files", number, batches, packed)
    for folder in (tmp_path / "files", tmp_path / "files" if packed else written):
        check_cifar(load(f"cifar{number}", folder=folder), number, batches)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("number", "name", "damage", "match"),
    [
        (10, "data_batch_4", lambda whole: whole[:-1], "data_batch_4"),
        (10, "data_batch_4", lambda whole: b"", "data_batch_4"),
        (10, "data_batch_4", lambda whole: whole[: 2 * 3073], r"one length, got lengths \[3, 3, 3, 2, 3\]"),
        (10, "data_batch_4", lambda whole: b"\x0a" + whole[1:], r"labels in 0\.\.9, got 10 in .*data_batch_4"),
        (10, "data_batch_4", None, r"the file data_batch_4\.bin"),
        (100, "test", lambda whole: whole[:-1], r"records of 3074 bytes, got 12295 bytes in .*test\.bin"),
        (100, "test", lambda whole: b"\x00\x64" + whole[2:], r"labels in 0\.\.99, got 100 in .*test\.bin"),
    ],
)
def test_damaged_binary_files_are_named_in_one_sentence(tmp_path, number, batches, name, damage, match):
    path = write_cifar(tmp_path, number, batches) / f"{name}.bin"
    whole = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(whole))
    refused(match, f"cifar{number}", folder=tmp_path)


def test_the_archive_that_is_read_is_named(tmp_path, number):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"another format")
    words = rf"cifar-{number}-binary\.tar\.gz .*'CIFAR-{number} binary version'.* {tmp_path}, got neither it nor"
    refused(words, f"cifar{number}", folder=tmp_path)


@pytest.mark.parametrize("number", [10])
def test_damaged_archives_are_named_in_one_sentence(tmp_path, number, batches):
    path = write_cifar(tmp_path, number, batches, packed=True)
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        refused("damaged one in .*cifar-10-binary", "cifar10", folder=tmp_path)
    del batches["test_batch"]
    write_cifar(tmp_path, number, batches, packed=True)
    refused(r"the file test_batch\.bin in the archive", "cifar10", folder=tmp_path)


def test_a_download_is_parsed_and_cached_apart_from_the_other_one(tmp_path, monkeypatch, number, batches):
    write_cifar(tmp_path / "remote", number, batches, packed=True)
    pretend(monkeypatch, tmp_path / "remote")
    assert status()[f"cifar{number}"].startswith("not here")
    first = load(f"cifar{number}")
    check_cifar(first, number, batches)
    assert "cached in" in status()[f"cifar{number}"]
    assert status()[f"cifar{110 - number}"].startswith("not here")
    pretend(monkeypatch, tmp_path / "nowhere")
    second = load(f"cifar{number}")
    check_cifar(second, number, batches)
    assert (first.mean, first.std) == (second.mean, second.std)


def write_svhn(folder, **changes):
    """Images along the last axis and labels 1..10 in a column, compressed, as upstream writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, kept = np.random.default_rng(0), []
    for part, n in (("train", 12), ("test", 5)):
        x = rng.integers(0, 256, (32, 32, 3, n), np.uint8)
        y = np.arange(n, dtype=np.uint8)[:, None] % 10 + 1
        arrays = {"X": x, "y": y} | (changes if part == "train" else {})
        savemat(folder / f"{part}_32x32.mat", arrays, do_compression=True)
        kept.append((x, y))
    return kept


def check_svhn(made, kept):
    assert (made.x.shape, made.x.dtype) == ((17, 32, 32, 3), np.uint8)
    assert made.x.flags.c_contiguous
    assert (made.classes, made.train_size) == (10, 12)
    np.testing.assert_array_equal(made.x[13], kept[1][0][..., 1])
    np.testing.assert_array_equal(made.x[:12], np.moveaxis(kept[0][0], 3, 0))
    # 1, ..., 9, and the digit 0 for 10.
    np.testing.assert_array_equal(made.y, [*range(1, 10), 0, 1, 2, 1, 2, 3, 4, 5])


def test_upstreams_files_are_read(tmp_path):
    kept = write_svhn(tmp_path / "files")
    check_svhn(load("svhn", folder=tmp_path / "files"), kept)
    assert not (tmp_path / "cache").exists()


def test_a_download_without_the_extra_images_is_cached(tmp_path, monkeypatch):
    kept = write_svhn(tmp_path / "remote")  # has no extra_32x32.mat
    pretend(monkeypatch, tmp_path / "remote")
    assert status()["svhn"].startswith("not here")
    check_svhn(load("svhn"), kept)
    assert "cached in" in status()["svhn"]
    pretend(monkeypatch, tmp_path / "nowhere")
    check_svhn(load("svhn"), kept)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"y": np.zeros((12, 1), np.uint8)}, r"labels in 1\.\.10, got labels in 0\.\.0"),
        ({"y": np.ones((11, 1), np.uint8)}, r"and y \(11, 1\)"),
        ({"X": np.zeros((32, 32, 3, 12))}, "got X float64"),
        ({"X": np.zeros((12, 32, 32, 3), np.uint8)}, "expected X uint8"),
    ],
)
def test_other_arrays_are_named_in_one_sentence(tmp_path, changes, match):
    write_svhn(tmp_path, **changes)
    assert "train_32x32.mat" in refused(match, "svhn", folder=tmp_path)


def test_damaged_files_are_named_in_one_sentence(tmp_path):
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    whole = path.read_bytes()
    for content in (*damaged(whole), whole[:300] + b"\xff" * 40 + whole[340:]):
        path.write_bytes(content)
        refused(r"damaged one in .*test_32x32\.mat", "svhn", folder=tmp_path)
    savemat(path, {"Z": np.zeros(3)})
    refused("arrays X and y, got others", "svhn", folder=tmp_path)
    path.unlink()
    refused(r"the file test_32x32\.mat in the folder", "svhn", folder=tmp_path)


Image = pytest.importorskip("PIL.Image")
TINY_IMAGENET_NAMES = ["n02124075", "n01443537", "n04067472"]  # not sorted, as upstream's are not


def save(path, colour, size=64):
    """One colour all over, which JPEG keeps up to rounding; a single number makes a grey image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if isinstance(colour, tuple) else "L", (size, size), colour).save(path, "JPEG")


def colour(label, i):
    return (80 * label, 40 * i, 200)


def write_tiny_imagenet(folder):
    inside = folder / "tiny-imagenet-200"
    for label, name in enumerate(TINY_IMAGENET_NAMES):
        for i in range(2):
            save(inside / "train" / name / "images" / f"{name}_{i}.JPEG", colour(label, i))
        (inside / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t63\t63\n")
    (inside / "wnids.txt").write_text("\n".join(TINY_IMAGENET_NAMES))
    (inside / "words.txt").write_text("n00001740\tentity\n")
    lines = []
    for i, label in enumerate((2, 0, 1, 1)):
        save(inside / "val" / "images" / f"val_{i}.JPEG", 50 if i == 3 else colour(label, 3))
        lines.append(f"val_{i}.JPEG\t{TINY_IMAGENET_NAMES[label]}\t0\t32\t44\t62\n")
    (inside / "val" / "val_annotations.txt").write_text("".join(lines))
    save(inside / "test" / "images" / "test_0.JPEG", colour(0, 0))
    return inside


def check_tiny_imagenet(made):
    assert (made.x.shape, made.x.dtype) == ((10, 64, 64, 3), np.uint8)
    assert (made.classes, made.train_size) == (3, 6)
    np.testing.assert_array_equal(made.y, [0, 0, 1, 1, 2, 2, 2, 0, 1, 1])
    expected = [colour(label, i) for label in range(3) for i in range(2)]
    expected += [*(colour(label, 3) for label in (2, 0, 1)), (50, 50, 50)]
    middle = made.x[:, 32, 32].astype(int)
    assert np.abs(middle - np.array(expected)).max() <= 3


def test_upstreams_folder_is_read_and_cached(tmp_path):
    assert status()["tiny_imagenet"].startswith("not here: give folder=")
    refused("tiny_imagenet on this machine, got nothing; give folder=", "tiny_imagenet")
    inside = write_tiny_imagenet(tmp_path / "files")
    check_tiny_imagenet(load("tiny_imagenet", folder=tmp_path / "files"))
    assert "cached in" in status()["tiny_imagenet"]
    check_tiny_imagenet(load("tiny_imagenet"))
    check_tiny_imagenet(load("tiny_imagenet", folder=inside))


def test_what_is_wrong_is_named_in_one_sentence(tmp_path):
    inside = write_tiny_imagenet(tmp_path)
    table = inside / "val" / "val_annotations.txt"
    whole = table.read_text()
    for content, match in [
        ("", "empty table"),
        (whole + "val_9.JPEG\tn99\t0\t0\t1\t1\n", "'n99' for a class in line 5"),
        (whole + "<html>\n", "'' for a class in line 5"),
        (whole + f"val_9.JPEG\t{TINY_IMAGENET_NAMES[0]}\n", r"got none or a damaged one in .*val_9\.JPEG"),
    ]:
        table.write_text(content)
        refused(match, "tiny_imagenet", folder=tmp_path)
    table.write_text(whole)
    image = inside / "train" / TINY_IMAGENET_NAMES[1] / "images" / f"{TINY_IMAGENET_NAMES[1]}_1.JPEG"
    for content in (b"<html>", image.read_bytes()[:400]):
        image.write_bytes(content)
        refused("damaged one in", "tiny_imagenet", folder=tmp_path)
    save(image, (1, 2, 3), size=32)
    refused("images of 64 x 64, got 32 x 32", "tiny_imagenet", folder=tmp_path)
    (inside / "wnids.txt").write_text("\n".join([*TINY_IMAGENET_NAMES, TINY_IMAGENET_NAMES[0]]))
    refused("name of each class once", "tiny_imagenet", folder=tmp_path)
    (inside / "wnids.txt").write_text("n99\n")
    refused("images of the class n99, got none", "tiny_imagenet", folder=tmp_path)
    (inside / "wnids.txt").unlink()
    refused(r"the file wnids\.txt in the folder", "tiny_imagenet", folder=tmp_path)
