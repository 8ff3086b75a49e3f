"""LEAF's JSON files, and the folders of PFLlib."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import zipfile

import numpy as np
import pytest
from PIL import Image

import fljax
from fljax.config import load as load_config
from fljax.data import federate, load, row_numbers
from fljax.data.own.benchmarks import is_pfllib
from fljax.data.registry import own_source
from fljax.experiments.inputs.setup import build_world
from tests.data.written import leaf, write
from tests.refusals import refuses
from tests.toys.command import run
from tests.toys.configs import config_text


def write_leaf(path, rows_of):
    write(path.parent, {path.name: leaf(rows_of)})


def user(rows, value, width=4):
    return {"x": [[value] * width] * rows, "y": [i % 2 for i in range(rows)]}


def test_whole_users_of_the_test_folder_are_unseen(tmp_path):
    write_leaf(tmp_path / "train" / "a.json", {"u": user(4, 1.0), "v": user(6, 2.0)})
    write_leaf(tmp_path / "test" / "a.json", {"w": user(5, 3.0), "t": user(10, 4.0)})
    made = load(f"{tmp_path}/")
    found = federate(made, "natural", unseen="test", train_fraction=0.6)
    assert (found.names.clients, found.names.unseen) == (("u", "v"), ("t", "w"))
    assert found.unseen is not None
    assert (found.unseen.train.size.tolist(), found.unseen.test.size.tolist()) == ([6, 3], [4, 2])
    values = np.asarray(found.examples.x)[:, 0]
    assert [set(values[rows].tolist()) for rows in row_numbers(found, "test", unseen=True)] == [{4.0}, {3.0}]
    assert not found.held
    one = federate(made, "natural", unseen=["w"])
    assert (one.names.unseen, one.held["test"].size) == (("w",), 10)


def test_an_empty_folder_of_training_rows_has_a_source(tmp_path):
    (tmp_path / "train").mkdir()
    assert own_source(f"{tmp_path}/") is not None


@pytest.fixture
def celeba(tmp_path):
    """LEAF's CelebA: rows are names of image files; user 2's are grey."""
    draw, images = np.random.default_rng(0), tmp_path / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    names = {"1": ["000001.jpg", "000002.JPG"], "2": ["000003.jpg"]}
    for name in [each for row in names.values() for each in row]:
        Image.fromarray(draw.integers(0, 255, (6, 4, 3), dtype=np.uint8)).save(images / name, format="png")
    rows = {who: {"x": own, "y": [place % 2 for place in range(len(own))]} for who, own in names.items()}
    write_leaf(tmp_path / "train" / "a.json", rows)
    return tmp_path


def test_names_of_images_become_images(celeba):
    made = load(f"{celeba}/")
    assert (made.x.shape, made.x.dtype, made.owner_names) == ((3, 6, 4, 3), np.uint8, ("1", "2"))
    found = np.asarray(Image.open(celeba / "raw" / "img_align_celeba" / "000003.jpg"))
    np.testing.assert_array_equal(made.x[2], found)
    assert load(f"{celeba}/train/a.json", size=[2, 2]).x.shape == (3, 2, 2, 3)
    (celeba / "raw").rename(celeba / "pictures")
    assert load(f"{celeba}/", images="pictures/img_align_celeba").x.shape == (3, 6, 4, 3)


def test_images_that_are_not_there_are_named(celeba):
    (celeba / "raw").rename(celeba / "pictures")
    refuses(lambda: load(f"{celeba}/"), r"expected images=, .* names of files such as '000001.jpg', got no such folder")
    refuses(lambda: load(f"{celeba}/", images="nowhere"), r"expected images=, .*, got no folder 'nowhere'")
    (celeba / "pictures" / "img_align_celeba" / "000002.JPG").unlink()
    with pytest.raises(ValueError, match=r"expected an image, got .*000002\.JPG. \(No such file or directory\)$"):
        load(f"{celeba}/", images="pictures/img_align_celeba")


@pytest.mark.thorough
def test_a_run_with_users_of_the_test_folder(tmp_path):
    write_leaf(tmp_path / "leaf" / "train" / "a.json", {"u": user(8, 1.0), "v": user(6, 2.0)})
    write_leaf(tmp_path / "leaf" / "test" / "a.json", {"w": user(6, 3.0)})
    (tmp_path / "mine.toml").write_text(
        config_text('dataset = "leaf/"\nunseen = "test"', batch_size=2, steps=1, standalone=1)
    )
    run(tmp_path / "mine.toml", "--out", tmp_path / "run")
    found = fljax.load(tmp_path / "run")
    assert found.names.unseen == ("w",)
    assert np.isfinite(found.metrics["unseen_incentivised_participation_rate"].values).all()


def save(folder, part, client, x, y):
    """As PFLlib writes a file."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    with (folder / part / f"{client}.npz").open("wb") as file:
        np.savez_compressed(file, data={"x": x, "y": y})  # type: ignore[arg-type]


def write_pfllib(folder, clients=12, shape=(1, 4, 5)):
    draw = np.random.default_rng(0)
    for client in range(clients):
        for part, size in (("train", 3 + client), ("test", 2)):
            x = draw.uniform(-1, 1, (size, *shape)).astype(np.float32)
            x[0] = client
            save(folder, part, client, x, np.arange(size) % 2)
    (folder / "config.json").write_text('{"num_clients": 12, "num_classes": 2}')


def test_files_are_clients_by_number(tmp_path):
    write_pfllib(tmp_path / "MNIST")
    made = load(f"{tmp_path}/MNIST/")
    assert (made.x.shape[1:], made.x.dtype, made.classes) == ((4, 5, 1), np.float32, 2)
    assert made.owner_names == tuple(range(12))
    found = federate(made, "natural")
    assert found.clients.train.size.tolist() == [3 + client for client in range(12)]
    assert found.clients.test.size.tolist() == [2] * 12
    for client, rows in enumerate(row_numbers(found, "test")):
        assert client in np.asarray(found.examples.x)[rows, 0, 0, 0].tolist()
    named = federate(made, "natural", unseen=["3", 11])
    assert named.names.unseen == (3, 11)


@pytest.mark.parametrize(
    ("shape", "options", "stored"),
    [
        ((3, 8, 8), {}, (8, 8, 3)),
        ((3, 8, 8), {"move_channels": False}, (3, 8, 8)),
        ((8, 8, 3), {}, (8, 8, 3)),
        ((5, 8, 8), {}, (5, 8, 8)),
        ((6,), {}, (6,)),
    ],
)
def test_channels_come_last(tmp_path, shape, options, stored):
    write_pfllib(tmp_path / "a", clients=2, shape=shape)
    made = load(f"{tmp_path}/a/", **options)
    assert (made.x.shape[1:], made.standardise) == (stored, len(shape) == 1)


def test_values_stay_when_channels_move(tmp_path):
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    save(tmp_path, "train", 0, x, np.array([0, 1]))
    np.testing.assert_array_equal(load(f"{tmp_path}/").x[1, 2, 3], x[1, :, 2, 3])


def test_a_client_with_test_rows_alone(tmp_path):
    write_pfllib(tmp_path, clients=3, shape=(2,))
    (tmp_path / "train" / "2.npz").unlink()
    made = load(f"{tmp_path}/")
    assert federate(made, "natural").held["test"].size == 2
    assert federate(made, "natural", unseen="test").names.unseen == (2,)


class Command:
    """A pickle of it runs a command of the shell when it is read."""

    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return os.system, (self.text,)


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    trace = tmp_path / "ran"
    save(tmp_path, "train", 0, Command(f"touch {trace}"), np.array([0, 1]))
    refuses(lambda: load(f"{tmp_path}/"), r"without running code, got a pickle that asks for .*system")
    assert not trace.exists()
    pickle.loads(pickle.dumps(Command(f"touch {trace}")))
    assert trace.exists(), "the command would have run"


def test_files_of_other_forms_are_named(tmp_path):
    cases = {
        "expected a dictionary with the arrays 'x' and 'y' in train/0.npz, got a dictionary with ['x']": {"x": 1},
        "expected an array of numbers as 'x' of train/0.npz, got an array of object": {
            "x": np.array([[[1, 2], 2], [[1], 1]], dtype=object),
            "y": np.array([0, 1]),
        },
        "expected an array of numbers as 'y' of train/0.npz, got a list": {"x": np.zeros((2, 2)), "y": [0, 1]},
        "expected as many rows in x as in y of train/0.npz, got 2 and 3": {"x": np.zeros((2, 2)), "y": np.arange(3)},
    }
    for number, (words, content) in enumerate(cases.items()):
        folder = tmp_path / str(number) / "train"
        folder.mkdir(parents=True)
        np.savez(folder / "0.npz", data=content)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=re.escape(words)):
            load(f"{folder.parent}/")


@pytest.mark.parametrize("cut", [60, 130, 300, 500, -30])
def test_damaged_files_are_a_sentence(tmp_path, cut):
    save(tmp_path, "train", 0, np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))
    file = tmp_path / "train" / "0.npz"
    with np.load(file, allow_pickle=True) as found:
        pickled = found["data"]
    np.savez(file, data=pickled)
    content = bytearray(file.read_bytes())
    content[cut : cut + 12] = b"\x8c\x04spam\x94\x00\xff((."
    file.write_bytes(content)
    assert is_pfllib(tmp_path) or cut == -30
    assert "\n" not in refuses(lambda: load(f"{tmp_path}/"), "expected ")


def test_nested_content_is_not_shown(tmp_path):
    outer = np.array({"x": np.zeros((1, 2)), "y": "MARK"}, dtype=object)
    nested = b"]" * 4000 + b"a" * 3999
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    pickled = pickle.dumps(outer, 3).replace(b"X\x04\0\0\0MARK", nested)
    (tmp_path / "train").mkdir()
    with zipfile.ZipFile(tmp_path / "train" / "0.npz", "w") as file:
        file.writestr("data.npy", header.getvalue() + pickled)
    refuses(lambda: load(f"{tmp_path}/"), r"expected an array of numbers as 'y' of train/0\.npz, got a list$")


def test_damaged_headers_and_locked_files_are_a_sentence(tmp_path):
    save(tmp_path, "train", 0, np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))
    file = tmp_path / "train" / "0.npz"
    with zipfile.ZipFile(file) as found:
        content = found.read("data.npy")
    for damaged in (content.replace(b"'shape'", b"'shape\n"), content.replace(b"()", b"(("), content[:20]):
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("data.npy", damaged)
        with pytest.raises(ValueError, match=r"expected a pickled dictionary of arrays in train/0\.npz, got ") as error:
            load(f"{tmp_path}/")
        assert "\n" not in str(error.value)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("data.npy", content)
    locked = bytearray(file.read_bytes())
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(locked)
    refuses(lambda: load(f"{tmp_path}/"), r"in train/0\.npz, got .* is encrypted")


@pytest.mark.in_turn
def test_bytes_that_change_are_a_sentence(tmp_path):
    save(tmp_path, "train", 0, np.zeros((3, 2), np.float32), np.arange(3))
    file, draw = tmp_path / "train" / "0.npz", np.random.default_rng(0)
    with zipfile.ZipFile(file) as found:
        content = found.read("data.npy")
    for _ in range(300):
        damaged = bytearray(content)
        damaged[draw.integers(len(content))] = draw.integers(256)
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("data.npy", bytes(damaged))
        with contextlib.suppress(ValueError):  # no other error
            load(f"{tmp_path}/")


@pytest.mark.parametrize("other", ["train/00.npz", "train/1x.npz", "valid/0.npz", "test/one.NPZ", "3.npz"])
def test_files_that_would_not_be_read_are_named_of_pfllib(tmp_path, other):
    write_pfllib(tmp_path, clients=2)
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes((tmp_path / "train" / "0.npz").read_bytes())
    refuses(lambda: load(f"{tmp_path}/"), r"expected one file for each number in the folders train and test, .*, got ")


def test_endings_in_capitals_are_read_and_hidden_files_are_not(tmp_path):
    write_pfllib(tmp_path, clients=3)
    (tmp_path / "train" / "2.npz").rename(tmp_path / "train" / "2.NPZ")
    (tmp_path / "__MACOSX").mkdir()
    for other in ("train/._0.npz", "__MACOSX/0.npz"):
        (tmp_path / other).write_bytes(b"of a Mac")
    assert federate(load(f"{tmp_path}/"), "natural").names.clients == (0, 1, 2)


def test_folders_of_other_kinds_of_pfllib(tmp_path):
    assert not is_pfllib(tmp_path)
    (tmp_path / "train").mkdir()
    np.savez(tmp_path / "train" / "0.npz", x=np.zeros((2, 2)), y=[0, 1])
    assert not is_pfllib(tmp_path)
    (tmp_path / "train" / "0.npz").write_bytes(b"no zip")
    assert not is_pfllib(tmp_path)


TEXT = config_text('dataset = "MNIST/"', steps=1, standalone=1)


@pytest.fixture
def config(tmp_path):
    write_pfllib(tmp_path / "MNIST", clients=4)
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_a_config_counts_the_clients(config):
    assert load_config(config).data.clients == 4
    found = load_config(config, ["data.unseen=[1]", "data.move_channels=false"])
    assert found.data.clients == 3
    world = build_world(found)
    assert (world.federation.names.clients, world.federation.names.unseen) == ((0, 2, 3), (1,))
    assert world.dataset.x.shape[1:] == (1, 4, 5)


@pytest.mark.thorough
def test_a_run(config):
    run(config, "--out", config.parent / "run", "--set", "data.unseen=[3]")
