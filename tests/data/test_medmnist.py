"""MedMNIST's files."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import cli
from fljax.config import ConfigError, load
from fljax.data import federate
from fljax.data import load as load_data
from fljax.data.sources.medmnist import is_medmnist
from fljax.experiments.inputs.setup import build_world, resolve_setup

SIZES = {"train": 12, "val": 4, "test": 6}


def write(path, shape=(28, 28, 3), labels=1, **changes):
    draw = np.random.default_rng(0)
    content = {f"{part}_images": draw.integers(0, 256, (size, *shape), dtype=np.uint8) for part, size in SIZES.items()}
    for part, size in SIZES.items():
        y = np.arange(size)[:, None] % 3 if labels == 1 else draw.integers(0, 2, (size, labels))
        content[f"{part}_labels"] = y.astype(np.uint8)
    np.savez_compressed(path, **{**content, **changes})
    return content


def test_parts_are_the_authors(tmp_path):
    content = write(tmp_path / "pathmnist.npz")
    made = load_data(f"{tmp_path}/pathmnist.npz")
    assert (made.x.shape, made.x.dtype, made.classes, made.train_size) == ((22, 28, 28, 3), np.uint8, 3, 16)
    np.testing.assert_array_equal(made.x[16:], content["test_images"])
    np.testing.assert_array_equal(made.y[:12], content["train_labels"][:, 0])
    found = federate(made, "iid", clients=3, test="global")
    assert np.sort(np.concatenate([np.asarray(found.clients.train.size)])).sum() == 12
    assert np.asarray(found.held["validation"].index).tolist() == [12, 13, 14, 15]
    assert np.asarray(found.held["test"].index).tolist() == list(range(16, 22))


@pytest.mark.parametrize(
    ("shape", "stored"),
    [((28, 28), (28, 28, 1)), ((64, 64, 3), (64, 64, 3)), ((28, 28, 28), (28, 28, 28, 1))],
)
def test_shapes_of_images(tmp_path, shape, stored):
    write(tmp_path / "a.npz", shape)
    assert load_data(f"{tmp_path}/a.npz").x.shape == (22, *stored)


def test_several_labels_are_kept(tmp_path):
    write(tmp_path / "chestmnist.npz", (28, 28), labels=14)
    made = load_data(f"{tmp_path}/chestmnist.npz")
    assert (made.y.shape, made.classes) == ((22, 14), None)


def test_files_that_are_damaged_are_named(tmp_path):
    write(tmp_path / "a.npz", val_images=np.zeros((3, 28, 28, 3), np.uint8))
    with pytest.raises(ValueError, match=r"a\.npz: expected features .* got shapes \(3, 28, 28, 3\) and \(4,\)"):
        load_data(f"{tmp_path}/a.npz")
    write(tmp_path / "b.npz", train_images=np.zeros((12, 5), np.uint8))
    with pytest.raises(ValueError, match=r"b\.npz: expected uint8 images .* in train_images, got uint8 \[12, 5\]"):
        load_data(f"{tmp_path}/b.npz")
    write(tmp_path / "c.npz", test_labels=np.array([{}] * 6))
    with pytest.raises(ValueError, match=r"c\.npz: expected .*test_labels"):
        load_data(f"{tmp_path}/c.npz")
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 2)), y=[0, 1])
    (tmp_path / "e.npz").write_bytes(b"no zip")
    assert not is_medmnist(tmp_path / "d.npz")
    assert not is_medmnist(tmp_path / "e.npz")
    assert not is_medmnist(tmp_path / "nothing.npz")


TEXT = """
rounds = 1
[data]
dataset = "pneumoniamnist.npz"
partition = "iid"
clients = 2
test = "global"
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
    write(tmp_path / "pneumoniamnist.npz", (28, 28))
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_a_config_needs_no_options(config):
    federation = build_world(load(config)).federation
    assert federation.held["validation"].size.tolist() == [4]
    with pytest.raises(ConfigError, match=r"data: expected one of the keys .* got 'client'"):
        load(config, ["data.client=x"])
    with pytest.raises(ValueError, match="expected held_fraction of 0"):
        build_world(load(config, ["data.held_fraction=0.2"]))


def test_several_labels_need_a_model_of_ones_own(config):
    write(config.parent / "pneumoniamnist.npz", (28, 28), labels=14)
    with pytest.raises(
        ValueError, match="whose labels are no classes; a model of one's own, module:function, may have"
    ):
        resolve_setup(load(config))


@pytest.mark.thorough
def test_a_run(config):
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(config), "--quiet", "--no-report", "--out", str(config.parent / "run")])
    assert end.value.code == 0
