"""The folders of PFLlib."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import zipfile

import numpy as np
import pytest

from fljax import cli
from fljax.config import load
from fljax.data import federate, row_numbers
from fljax.data import load as load_data
from fljax.data.own.pfllib import is_pfllib
from fljax.experiments.inputs.setup import build_world


def save(folder, part, client, x, y):
    """As PFLlib writes a file."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    with (folder / part / f"{client}.npz").open("wb") as file:
        np.savez_compressed(file, data={"x": x, "y": y})  # type: ignore[arg-type]


def write(folder, clients=12, shape=(1, 4, 5)):
    draw = np.random.default_rng(0)
    for client in range(clients):
        for part, size in (("train", 3 + client), ("test", 2)):
            x = draw.uniform(-1, 1, (size, *shape)).astype(np.float32)
            x[0] = client
            save(folder, part, client, x, np.arange(size) % 2)
    (folder / "config.json").write_text('{"num_clients": 12, "num_classes": 2}')


def test_files_are_clients_by_number(tmp_path):
    write(tmp_path / "MNIST")
    made = load_data(f"{tmp_path}/MNIST/")
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
    write(tmp_path / "a", clients=2, shape=shape)
    made = load_data(f"{tmp_path}/a/", **options)
    assert made.x.shape[1:] == stored
    assert made.standardise == (len(shape) == 1)


def test_values_stay_when_channels_move(tmp_path):
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    save(tmp_path, "train", 0, x, np.array([0, 1]))
    np.testing.assert_array_equal(load_data(f"{tmp_path}/").x[1, 2, 3], x[1, :, 2, 3])


def test_a_client_with_test_rows_alone(tmp_path):
    write(tmp_path, clients=3, shape=(2,))
    (tmp_path / "train" / "2.npz").unlink()
    made = load_data(f"{tmp_path}/")
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
    with pytest.raises(ValueError, match=r"without running code, got a pickle that asks for .*system"):
        load_data(f"{tmp_path}/")
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
            load_data(f"{folder.parent}/")


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
    with pytest.raises(ValueError, match="expected ") as error:
        load_data(f"{tmp_path}/")
    assert "\n" not in str(error.value)


def test_nested_content_is_not_shown(tmp_path):
    outer = np.array({"x": np.zeros((1, 2)), "y": "MARK"}, dtype=object)
    nested = b"]" * 4000 + b"a" * 3999
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    pickled = pickle.dumps(outer, 3).replace(b"X\x04\0\0\0MARK", nested)
    (tmp_path / "train").mkdir()
    with zipfile.ZipFile(tmp_path / "train" / "0.npz", "w") as file:
        file.writestr("data.npy", header.getvalue() + pickled)
    with pytest.raises(ValueError, match=r"expected an array of numbers as 'y' of train/0\.npz, got a list$"):
        load_data(f"{tmp_path}/")


def test_damaged_headers_and_locked_files_are_a_sentence(tmp_path):
    save(tmp_path, "train", 0, np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))
    file = tmp_path / "train" / "0.npz"
    with zipfile.ZipFile(file) as found:
        content = found.read("data.npy")
    for damaged in (content.replace(b"'shape'", b"'shape\n"), content.replace(b"()", b"(("), content[:20]):
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("data.npy", damaged)
        with pytest.raises(ValueError, match=r"expected a pickled dictionary of arrays in train/0\.npz, got ") as error:
            load_data(f"{tmp_path}/")
        assert "\n" not in str(error.value)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("data.npy", content)
    locked = bytearray(file.read_bytes())
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(locked)
    with pytest.raises(ValueError, match=r"in train/0\.npz, got .* is encrypted"):
        load_data(f"{tmp_path}/")


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
            load_data(f"{tmp_path}/")


@pytest.mark.parametrize("other", ["train/00.npz", "train/1x.npz", "valid/0.npz", "test/one.NPZ", "3.npz"])
def test_files_that_would_not_be_read_are_named(tmp_path, other):
    write(tmp_path, clients=2)
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes((tmp_path / "train" / "0.npz").read_bytes())
    with pytest.raises(ValueError, match=r"expected one file for each number in the folders train and test, .*, got "):
        load_data(f"{tmp_path}/")


def test_endings_in_capitals_are_read_and_hidden_files_are_not(tmp_path):
    write(tmp_path, clients=3)
    (tmp_path / "train" / "2.npz").rename(tmp_path / "train" / "2.NPZ")
    (tmp_path / "__MACOSX").mkdir()
    for other in ("train/._0.npz", "__MACOSX/0.npz"):
        (tmp_path / other).write_bytes(b"of a Mac")
    assert federate(load_data(f"{tmp_path}/"), "natural").names.clients == (0, 1, 2)


def test_folders_of_other_kinds(tmp_path):
    assert not is_pfllib(tmp_path)
    (tmp_path / "train").mkdir()
    np.savez(tmp_path / "train" / "0.npz", x=np.zeros((2, 2)), y=[0, 1])
    assert not is_pfllib(tmp_path)
    (tmp_path / "train" / "0.npz").write_bytes(b"no zip")
    assert not is_pfllib(tmp_path)


TEXT = """
rounds = 1
[data]
dataset = "MNIST/"
[model]
name = "logistic_regression"
[local]
learning_rate = 0.1
batch_size = 4
steps = 1
[standalone]
steps = 1
[[algorithms]]
name = "fedavg"
"""


@pytest.fixture
def config(tmp_path):
    write(tmp_path / "MNIST", clients=4)
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_a_config_counts_the_clients(config):
    assert load(config).data.clients == 4
    found = load(config, ["data.unseen=[1]", "data.move_channels=false"])
    assert found.data.clients == 3
    world = build_world(found)
    assert (world.federation.names.clients, world.federation.names.unseen) == ((0, 2, 3), (1,))
    assert world.dataset.x.shape[1:] == (1, 4, 5)


@pytest.mark.thorough
def test_a_run(config):
    out = ["--out", str(config.parent / "run"), "--set", "data.unseen=[3]"]
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(config), "--quiet", "--no-report", *out])
    assert end.value.code == 0
