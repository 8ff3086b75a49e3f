"""What ``fljax run --save-models`` writes, and how it is read."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from fljax import config as configuration
from fljax.experiments import run, saved_models
from tests.refusals import refuses
from tests.toys import command
from tests.toys.quick import quick_programs

pytestmark = pytest.mark.thorough

BASE: dict[str, Any] = {
    "seeds": 2,
    "rounds": 2,
    "data": {
        "dataset": "blobs",
        "partition": "iid",
        "clients": 5,
        "unseen": 2,
    },
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 2},
    "participation": {"clients_per_round": 3},
    "algorithms": [
        {"name": "incfl", "label": "a:b/c"},
        {"name": "iafl", "kappa": 0.5},
        {"name": "iafl", "label": "measured", "contribution": {"name": "cosine", "memory": 0.5}},
    ],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config = configuration.parse(BASE | {"save_models": "last"}, name="tiny")
    with quick_programs():
        return run.run(config, directory=folder), folder


@pytest.mark.parametrize("label", ["a:b/c", "iafl", "measured"])
def test_every_clients_model_comes_back(finished, label):
    outcome, folder = finished
    with quick_programs():
        models, result = saved_models.load(folder, label), outcome.models[label]
        x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
        which: Any = ({"client": 0}, {"client": 4, "seed": 1}, {"client": 1, "unseen": True})
        for arguments in which:
            np.testing.assert_array_equal(models.predict(x=x, **arguments), result.predict(x=x, **arguments))
            jax.tree.map(np.testing.assert_array_equal, models.deployed(**arguments), result.deployed(**arguments))
    jax.tree.map(np.testing.assert_array_equal, models.state, result.state)


def test_files_are_arrays_alone_and_whole(finished):
    _, folder = finished
    assert sorted(path.name for path in (folder / "models").iterdir()) == ["a%3Ab%2Fc.npz", "iafl.npz", "measured.npz"]
    with np.load(folder / "models" / "iafl.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)
        assert any(name.startswith("by_seed") for name in file.files)  # the contributions


@pytest.mark.unchecked
def test_a_file_that_cannot_be_written_leaves_the_old_one(finished, tmp_path, monkeypatch):
    outcome, _ = finished
    result = outcome.models["iafl"]
    plan: Any = type("Plan", (), {"by_seed": {}})()
    path = saved_models.save(tmp_path, "iafl", plan, result)
    before = path.read_bytes()

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    refuses(lambda: saved_models.save(tmp_path, "iafl", plan, result), "No space", OSError)
    assert path.read_bytes() == before
    assert list((tmp_path / "models").iterdir()) == [path]


def test_what_is_wrong_is_one_sentence(finished, tmp_path):
    _, folder = finished
    refuses(lambda: saved_models.load(tmp_path, "iafl"), r"expected a run folder with config\.toml")
    refuses(lambda: saved_models.load(folder, "iaffl"), "expected one of the labels a:b/c, iafl")
    (tmp_path / "config.toml").write_text((folder / "config.toml").read_text())
    refuses(lambda: saved_models.load(tmp_path, "iafl"), "which fljax run --save-models last writes, got no such file")
    (tmp_path / "models").mkdir()
    whole = (folder / "models" / "iafl.npz").read_bytes()
    damaged = tmp_path / "models" / "iafl.npz"
    for content in (b"", whole[: len(whole) // 2], b"\x80\x04K\x01."):
        damaged.write_bytes(content)
        refuses(lambda: saved_models.load(tmp_path, "iafl"), r"expected whole models in .*, got a damaged file")
    damaged.write_bytes((folder / "models" / "a%3Ab%2Fc.npz").read_bytes())
    refuses(lambda: saved_models.load(tmp_path, "iafl"), "got those of another algorithm")


def call(*arguments: str) -> tuple[int, str]:
    with quick_programs():
        code, out, err = command.call("run", "tiny.toml", "--no-report", "--json", "--quiet", *arguments)
    assert not out or json.loads(out)
    return code, err


def test_the_command(finished, tmp_path, monkeypatch):
    """What is finished already has no models any more: that is said, and nothing is lost."""
    monkeypatch.chdir(tmp_path)
    config = configuration.parse(BASE | {"seeds": 1, "rounds": 1, "algorithms": [{"name": "fedavg"}]}, name="tiny")
    (tmp_path / "tiny.toml").write_text(configuration.dumps(config))

    assert call("--out", "x") == (0, "")
    code, words = call("--out", "x", "--save-models", "last", "--resume")
    assert code == 1
    assert "expected models of all algorithms, got none of fedavg, which were finished before models were" in words
    (tmp_path / "x" / "results.nc").unlink()
    assert call("--out", "x", "--save-models", "last", "--resume") == (0, "")
    with quick_programs():
        assert saved_models.load("x", "fedavg").predict(0, np.zeros((1, 4), np.float32)).shape[0] == 1


def test_every_label_has_a_file_of_its_own_that_file_systems_take(tmp_path: pathlib.Path) -> None:
    names = [
        saved_models.path_of(tmp_path, label).name
        for label in ("a" * 100, "語" * 100, "語" * 99 + "x", "fedavg", "FedAvg")
    ]
    assert max(len(name.encode()) for name in names) <= 255
    assert len({name.lower() for name in names}) == len(names)


def test_best_and_all(tmp_path, monkeypatch):
    """The files, and that a killed and resumed run has the same ones."""
    monkeypatch.chdir(tmp_path)
    raw = BASE | {"rounds": 5, "evaluate_every": 2, "save_models": "all", "algorithms": [{"name": "fedavg"}]}
    raw["data"] = BASE["data"] | {"valid_fraction": 0.3}
    (tmp_path / "tiny.toml").write_text(configuration.dumps(configuration.parse(raw, name="tiny")))

    assert call("--out", "x") == (0, "")
    files = sorted(path.relative_to("x/models").as_posix() for path in pathlib.Path("x/models").rglob("*.npz"))
    rounds = [0, 2, 4, 5]
    assert files == ["best/fedavg.npz", "fedavg.npz", *(f"round-{each}/fedavg.npz" for each in rounds)]
    x = np.ones((1, 4), np.float32)
    with quick_programs():
        every = {each: saved_models.load("x", "fedavg", round=each) for each in rounds}
        best = saved_models.load("x", "fedavg", "best")
    with np.load("x/models/best/fedavg.npz") as file:
        chosen = file["best.round"].tolist()
    for seed, each in enumerate(chosen):
        np.testing.assert_array_equal(best.predict(1, x, seed=seed), every[each].predict(1, x, seed=seed))
    with pytest.raises(ValueError, match=r"expected one of the rounds 0, 2, 4, 5, after which models .*, got 3"):
        saved_models.load("x", "fedavg", round=3)
    # The option wins.
    assert call("--out", "y", "--save-models", "best") == (0, "")
    assert [path.parent.name for path in pathlib.Path("y/models").rglob("*.npz")] == ["best"]
    assert (
        pathlib.Path("y/models/best/fedavg.npz").read_bytes() == pathlib.Path("x/models/best/fedavg.npz").read_bytes()
    )
    refuses(lambda: saved_models.load("y", "fedavg"), r"--save-models last writes, got models of best only")
    code, words = call("--out", "z", "--save-models", "best", "--set", "data.valid_fraction=0")
    assert code == 2
    assert "save_models: expected data.valid_fraction to be positive for 'best', got 0" in words
    code, words = call("--out", "z", "--save-models", "first")
    assert code == 2
    assert "save_models" in words
    assert "expected one of the values none, last, best, all, got 'first'" in words
    code, _, words = command.call("sweep", "tiny.toml", "--grid", "local.learning_rate=0.1,0.2")
    assert code == 2
    assert "save_models: expected 'none' in a sweep" in words
