"""Saved models need no data, and neither a run folder nor a pickle has rows of clients."""

from __future__ import annotations

import copy
import datetime
import pathlib
import pickle
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import fljax
from fljax import config as configuration
from fljax.experiments import outlines
from fljax.experiments import run as experiment
from fljax.experiments.inputs.setup import build_world, resolve_setup
from fljax.protocol import AbsentRows, Names, RowsAbsent
from tests.toys import command
from tests.toys.quick import quick_programs

pytestmark = pytest.mark.in_turn

TEXT = """
rounds = 2
seeds = 2
save_models = "last"
[data]
dataset = "patients.csv"
label = "state"
client = "site"
unseen = 1
valid_fraction = 0.2
held_fraction = 0.1
[model]
name = "logistic_regression"
[local]
learning_rate = 0.1
batch_size = 8
steps = 2
[standalone]
steps = 2
[participation]
clients_per_round = 2
"""
# The last two train on the client's rows, or measure with them, before a model is used.
LABELS = ("fedavg", "ditto", "iafl", "fedavg_finetune", "ipfl")
OWN = {"fedavg_finetune", "ipfl"}
COLUMNS = ["age", "time", "pressure"]


def frame() -> pandas.DataFrame:
    draw = np.random.default_rng(0)
    columns = {"age": draw.normal(50, 20, 80), "time": 1.7e9 + np.arange(80), "pressure": draw.normal(size=80)}
    found = pandas.DataFrame(columns)
    found["state"] = np.where(found.age + 20 * found.pressure > 50, "ill", "well")
    return found.assign(site=np.repeat(["a", "b", "c", "d"], 20))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, pathlib.Path]:
    folder = tmp_path_factory.mktemp("outlines")
    frame().to_csv(folder / "patients.csv", index=False)
    entries = "".join(f'[[algorithms]]\nname = "{label}"\n' for label in LABELS)
    (folder / "mine.toml").write_text(TEXT + entries)
    with quick_programs():
        outcome = experiment.run(configuration.load(folder / "mine.toml"), directory=folder / "run")
    return outcome, folder


@pytest.fixture
def copied(finished: tuple[Any, pathlib.Path], tmp_path: pathlib.Path) -> pathlib.Path:
    """The run, whose data may be changed."""
    shutil.copytree(finished[1] / "run", tmp_path / "run")
    text = (tmp_path / "run" / "config.toml").read_text().replace(str(finished[1]), str(tmp_path))
    (tmp_path / "run" / "config.toml").write_text(text)
    shutil.copy(finished[1] / "patients.csv", tmp_path / "patients.csv")
    return tmp_path


def load(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("fljax.results.folders.check_origin", lambda *_: None)  # the path of the data is another one
    return fljax.load(folder / "run")


def same(run: Any, outcome: Any, label: str) -> None:
    x = frame()[COLUMNS]
    for arguments in ({"client": 0}, {"client": 2, "seed": 1}, {"client": 0, "unseen": True, "seed": 1}):
        expected = outcome.models[label].predict(x=x, **arguments)
        np.testing.assert_array_equal(run.predict(label, x=x, **arguments), expected)
        np.testing.assert_array_equal(run.predict(label, x=x.to_numpy(), **arguments), expected)
        jax.tree.map(
            np.testing.assert_array_equal,
            run.models(label).deployed(**arguments),
            outcome.models[label].deployed(**arguments),
        )


@pytest.mark.parametrize("label", LABELS)
def test_models_predict_with_the_data(finished: tuple[Any, pathlib.Path], label: str) -> None:
    with quick_programs():
        same(fljax.load(finished[1] / "run"), finished[0], label)


def test_models_predict_without_the_data(finished, copied, monkeypatch):
    (copied / "patients.csv").unlink()
    run = load(copied, monkeypatch)
    names = [run.names_of(seed) for seed in range(2)]
    assert run.names.classes == ("ill", "well")
    assert {*names[0].clients, *names[0].unseen} == {"a", "b", "c", "d"}
    with quick_programs():
        for label in LABELS:
            if label not in OWN:
                same(run, finished[0], label)
                continue
            words = r"expected the data of the run for a model .*, got none: data\.dataset: expected the path of a file"
            with pytest.raises(ValueError, match=words):
                run.predict(label, 0, frame()[COLUMNS])


def test_a_changed_file_changes_no_prediction(finished, copied, monkeypatch):
    changed = frame()[["pressure", "age", "time", "state", "site"]].replace("ill", "zill")
    changed["age"] += 100
    changed.to_csv(copied / "patients.csv", index=False)
    run = load(copied, monkeypatch)
    assert run.names.classes == ("ill", "well")
    with quick_programs():
        same(run, finished[0], "fedavg")
        with pytest.raises(
            ValueError, match=r"expected the data of the run .*, got data that have changed: .*patients"
        ):
            run.predict("fedavg_finetune", 0, frame()[COLUMNS])


def test_other_columns_are_refused_by_name(finished: tuple[Any, pathlib.Path]) -> None:
    run = fljax.load(finished[1] / "run")
    with quick_programs(), pytest.raises(ValueError, match=r"columns of the model \(age, time, pressure\), .*'time'"):
        run.predict("fedavg", 0, frame()[["age", "pressure"]])


@pytest.mark.unchecked
def test_no_file_and_no_pickle_has_rows(finished: tuple[Any, pathlib.Path]) -> None:
    outcome, folder = finished
    rows = frame()
    ages = [float(age) for age in rows["age"]]
    found = b"".join(path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file())
    with np.load(folder / "run" / "data.npz") as file:
        found += b"".join(file[name].tobytes() for name in file.files)
    pickled = pickle.dumps(outcome.models)
    for age in ages:
        for form in (np.float32(age).tobytes(), np.float64(age).tobytes()):
            assert form not in found
            assert form not in pickled
    again = pickle.loads(pickled)
    with quick_programs():
        x = rows[COLUMNS]
        np.testing.assert_array_equal(again["ditto"].predict(1, x), outcome.models["ditto"].predict(1, x))
        found = again["fedavg_finetune"]
        with pytest.raises(RowsAbsent, match="expected the rows of the client for a model that depends on them"):
            found.predict(1, x)
        federation = resolve_setup(configuration.load(folder / "mine.toml")).federation
        expected = outcome.models["fedavg_finetune"].predict(1, x, seed=1)
        np.testing.assert_array_equal(found.predict.with_rows(federation)(1, x, seed=1), expected)
        for other in (None, federation._replace(moments=None)):
            with pytest.raises(ValueError, match="expected the federation of the run, got"):
                found.predict.with_rows(other)
    assert copy.copy(found.deployed) is found.deployed


def test_a_folder_without_an_outline_has_another_scale(finished, copied, monkeypatch):
    """An older version saved it, whose models saw features with moments of all rows."""
    (copied / "run" / outlines.FILE).unlink()
    run = load(copied, monkeypatch)
    with pytest.raises(
        ValueError, match=r"expected data\.npz with the scale of the features .*, got none: an older fljax"
    ):
        run.predict("fedavg", 0, frame()[COLUMNS])
    assert (run.names.classes, run.names_of(1)) == (("ill", "well"), load(finished[1], monkeypatch).names_of(1))


def test_a_damaged_outline_is_one_sentence(copied: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied / "run" / outlines.FILE
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^expected whole outlines in '[^ ]*data\.npz', got a damaged file$"):
            _ = load(copied, monkeypatch).names


def call(folder: pathlib.Path, *arguments: str) -> tuple[int, str]:
    words = ("run", folder / "mine.toml", "--out", folder / "run", "--no-report", "--quiet", *arguments)
    with quick_programs():
        code, _, err = command.call(*words)
    return code, err


def test_a_run_does_not_go_on_with_other_data(tmp_path: pathlib.Path) -> None:
    frame().to_csv(tmp_path / "patients.csv", index=False)
    config = tmp_path / "mine.toml"
    config.write_text(TEXT + '[[algorithms]]\nname = "fedavg"\n')

    assert call(tmp_path) == (0, "")
    (tmp_path / "run" / "results.nc").unlink()
    frame().assign(age=0.5).to_csv(tmp_path / "patients.csv", index=False)
    code, words = call(tmp_path, "--resume")
    assert code != 0
    assert "whose models were trained on them, got data that have changed; take a new folder" in words
    (tmp_path / "patients.csv").unlink()
    code, words = call(tmp_path, "--resume")
    assert code != 0
    assert "expected the path of a file" in words
    assert len(words.strip().splitlines()) == 1


def test_a_run_that_failed_does_not_bind_its_folder(tmp_path: pathlib.Path) -> None:
    frame().to_csv(tmp_path / "patients.csv", index=False)
    config = tmp_path / "mine.toml"
    text = TEXT.replace("held_fraction = 0.1", "") + '[[algorithms]]\nname = "rank"\nrank_on = "validation"\n'
    config.write_text(text)

    assert call(tmp_path)[0] == 2
    assert (tmp_path / "run" / outlines.FILE).is_file()
    config.write_text(text.replace('"rank"\nrank_on = "validation"', '"fedavg"').replace("seeds = 2", "seeds = 1"))
    assert call(tmp_path) == (0, "")
    (tmp_path / "run" / outlines.FILE).unlink()
    (tmp_path / "run" / "results.nc").unlink()
    code, words = call(tmp_path, "--resume")
    assert code == 2
    assert "beside the models in" in words
    assert not (tmp_path / "run" / outlines.FILE).exists()


@pytest.mark.quick
def test_names_come_back(tmp_path: pathlib.Path) -> None:
    federation, dataset, _ = build_world(configuration.parse(BLOBS))
    names = Names((np.int64(3), None, "x", ("a", 1.5), datetime.date(2020, 1, 2)), ("c",) * 4)
    numbers = dataset._replace(classes=np.int64(3), vocabulary=None)
    outlines.save_outline(tmp_path, outlines.contents(federation, numbers, [names]), 7)
    found: Any = outlines.load_outline(tmp_path)
    assert found.names == (Names((3, None, "x", ("a", 1.5), "2020-01-02"), ("c",) * 4),)
    assert (found.dataset.classes, found.checksum) == (3, 7)


BLOBS: dict[str, Any] = {
    "rounds": 1,
    "data": {"dataset": "blobs", "partition": "iid", "clients": 4},
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 2},
    "algorithms": [{"name": "fedavg"}],
}


@pytest.mark.quick
def test_absent_rows_are_read_in_no_way() -> None:
    rows: Any = AbsentRows((5, 2), np.dtype("float32"))
    assert (rows.shape, rows.ndim) == ((5, 2), 2)
    for read in (lambda: rows[0], lambda: len(rows), lambda: list(rows), lambda: np.asarray(rows), lambda: rows[:, 1]):
        with pytest.raises(RowsAbsent, match="expected the rows of the client"):
            read()
    with pytest.raises((RowsAbsent, TypeError)):
        jnp.take(rows, 0, axis=0)
