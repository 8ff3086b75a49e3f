"""CIFAR-10 in both of upstream's formats, written here byte by byte; and files that are damaged or hostile."""

import io
import pickle
import struct
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


def short(text):
    return b"U" + bytes([len(text)]) + text.encode()


def pickled(x, y):
    """What Python 2's cPickle writes in protocol 2 for upstream's dictionary: opcodes as in upstream's files."""
    content = planes(x)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short("b") + b"\x87R"
        b"(K\x01" + b"M" + struct.pack("<H", len(x)) + b"M" + struct.pack("<H", 3072) + b"\x86"
        b"cnumpy\ndtype\n" + short("u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + short("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + struct.pack("<I", len(content)) + content + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    names = b"](" + b"".join(short(f"leptodactylus_{i}.png") for i in range(len(y))) + b"e"
    entries = [("batch_label", short("training batch 1 of 5")), ("labels", labels), ("data", array)]
    entries.append(("filenames", names))
    return b"\x80\x02}(" + b"".join(short(key) + value for key, value in entries) + b"u."


def write(folder, batches, kind, packed=False):
    """Upstream's archive, or the folder that it unpacks to, in ``folder``."""
    end, encode = (".bin", binary) if kind == "bin" else ("", pickled)
    files = {f"cifar-10-batches-{kind}/{name}{end}": encode(*batch) for name, batch in batches.items()}
    files[f"cifar-10-batches-{kind}/readme.html"] = b"<html>"
    folder.mkdir(parents=True, exist_ok=True)
    if packed:
        name = "cifar-10-binary.tar.gz" if kind == "bin" else "cifar-10-python.tar.gz"
        with tarfile.open(folder / name, "w:gz") as archive:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return folder / name
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    return folder / f"cifar-10-batches-{kind}"


def check(made, batches):
    assert made.x.shape == (17, 32, 32, 3)
    assert made.x.dtype == np.uint8
    assert made.x.flags.c_contiguous
    assert (made.classes, made.train_size) == (10, 15)
    np.testing.assert_array_equal(made.x, np.concatenate([batches[name][0] for name in NAMES]))
    np.testing.assert_array_equal(made.y, np.concatenate([batches[name][1] for name in NAMES]))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["bin", "py"])
def test_upstreams_formats_are_read(tmp_path, batches, kind, packed):
    written = write(tmp_path / "files", batches, kind, packed)
    check(load("cifar10", folder=tmp_path / "files"), batches)
    if not packed:
        check(load("cifar10", folder=written), batches)
    assert not (tmp_path / "cache").exists()


@pytest.mark.filterwarnings("ignore:numpy.core")
def test_the_pickles_of_this_test_are_what_python_reads(batches):
    x, y = batches["test_batch"]
    found = pickle.loads(pickled(x, y), encoding="bytes")
    np.testing.assert_array_equal(found[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), x)
    assert found[b"labels"] == list(y)


def test_pickles_of_python_3_are_read(tmp_path, batches):
    folder = write(tmp_path, batches, "py")
    for name, (x, y) in batches.items():
        data = np.frombuffer(planes(x), np.uint8).reshape(-1, 3072)
        (folder / name).write_bytes(pickle.dumps({b"data": data, b"labels": [int(each) for each in y]}, protocol=2))
    check(load("cifar10", folder=folder), batches)


def test_the_binary_format_comes_first(tmp_path, batches):
    write(tmp_path, batches, "bin")
    (write(tmp_path, batches, "py") / "data_batch_1").write_bytes(b"not read")
    check(load("cifar10", folder=tmp_path), batches)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_runs_nothing(tmp_path, batches):
    folder = write(tmp_path, batches, "py")
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": Hostile(tmp_path / "ran"), b"labels": []}, protocol=2))
    with pytest.raises(ValueError, match=r"it asks for (_?io|__builtin__|builtins)\.open in .*data_batch_2"):
        load("cifar10", folder=tmp_path)
    assert not (tmp_path / "ran").exists()


def dump(data, labels):
    return pickle.dumps({b"data": data, b"labels": labels}, protocol=2)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "EOFError"),
        (b"<html>", "pickle of numbers"),
        (pickle.dumps([1]), "with data and labels"),
        (dump(np.zeros((3, 3071), np.uint8), [0, 1, 2]), r"data \(3, 3072\), got \(3, 3071\)"),
        (dump(np.zeros((3, 3072), np.float32), [0, 1, 2]), "expected uint8 data"),
        (dump(np.zeros((3072, 3), np.uint8).T, [0, 1, 2]), "expected uint8 data"),
        (dump(np.zeros((2, 3072), np.uint8), [0, 1, 2]), r"data \(3, 3072\), got \(2, 3072\)"),
        (dump(b"bytes", [0]), "got bytes"),
        (dump(np.zeros((3, 3072), np.uint8), [0, 1, "2"]), "list of whole numbers"),
        (dump(np.zeros((3, 3072), np.uint8), [0, 1, 10]), r"labels in 0\.\.9, got 10"),
        (pickled(np.zeros((0, 32, 32, 3), np.uint8), []), "expected uint8 data"),
    ],
)
def test_damaged_pickles_are_named_in_one_sentence(tmp_path, batches, content, match):
    folder = write(tmp_path, batches, "py")
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=match) as caught:
        load("cifar10", folder=tmp_path)
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_binary_files_are_named_in_one_sentence(tmp_path, batches):
    folder = write(tmp_path, batches, "bin")
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


def test_damaged_archives_are_named_in_one_sentence(tmp_path, batches):
    path = write(tmp_path, batches, "bin", packed=True)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"damaged one in .*cifar-10-binary") as caught:
            load("cifar10", folder=tmp_path)
        assert "\n" not in str(caught.value)
    del batches["test_batch"]
    write(tmp_path, batches, "bin", packed=True)
    with pytest.raises(ValueError, match=r"expected the file test_batch\.bin in the archive"):
        load("cifar10", folder=tmp_path)
    with pytest.raises(ValueError, match="expected one of CIFAR-10's archives"):
        load("cifar10", folder=tmp_path / "nowhere")


def test_a_download_is_parsed_and_cached(tmp_path, monkeypatch, batches):
    write(tmp_path / "remote", batches, "bin", packed=True)
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


def write_hundred(folder, hundred, kind, packed=False):
    files = {"file.txt~": b""}
    for name, (x, coarse, fine) in hundred.items():
        if kind == "binary":
            records = zip(x, coarse, fine, strict=True)
            files[f"{name}.bin"] = b"".join(bytes([c, f]) + planes(image[None]) for image, c, f in records)
        else:
            data = np.frombuffer(planes(x), np.uint8).reshape(-1, 3072)
            content = {b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist(), b"data": data}
            files[name] = pickle.dumps(content | {b"batch_label": b"training batch 1 of 1"}, protocol=2)
    folder.mkdir(parents=True, exist_ok=True)
    if packed:
        with tarfile.open(folder / f"cifar-100-{kind}.tar.gz", "w:gz") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(f"cifar-100-{kind}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return folder
    inside = folder / f"cifar-100-{kind}"
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
@pytest.mark.parametrize("kind", ["binary", "python"])
def test_fine_labels_of_cifar_100(tmp_path, hundred, kind, packed):
    written = write_hundred(tmp_path / "files", hundred, kind, packed)
    check_hundred(load("cifar100", folder=tmp_path / "files"), hundred)
    check_hundred(load("cifar100", folder=written), hundred)
    with pytest.raises(ValueError, match="one of CIFAR-100's archives"):
        load("cifar100", folder=tmp_path)


def test_damaged_files_of_cifar_100_are_named_in_one_sentence(tmp_path, hundred):
    path = write_hundred(tmp_path, hundred, "binary") / "test.bin"
    whole = path.read_bytes()
    for content, match in [
        (whole[:-1], r"records of 3074 bytes, got 12295 bytes in .*test\.bin"),
        (b"\x00\x64" + whole[2:], r"labels in 0\.\.99, got 100 in .*test\.bin"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=match):
            load("cifar100", folder=tmp_path)
    (write_hundred(tmp_path / "other", hundred, "python") / "train").write_bytes(
        dump(np.zeros((1, 3072), np.uint8), [1])
    )
    with pytest.raises(ValueError, match="pickle with data and fine_labels"):
        load("cifar100", folder=tmp_path / "other")


def test_cifar_100_is_cached_apart_from_cifar_10(tmp_path, monkeypatch, hundred):
    pretend(monkeypatch, write_hundred(tmp_path / "remote", hundred, "binary", packed=True))
    check_hundred(load("cifar100"), hundred)
    assert "cached in" in status()["cifar100"]
    assert status()["cifar10"].startswith("not here")
    pretend(monkeypatch, tmp_path / "nowhere")
    check_hundred(load("cifar100"), hundred)
