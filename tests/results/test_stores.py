"""Records that are too many for the memory: written block by block, read where they are asked for."""

from __future__ import annotations

import pathlib
import pickle
import shutil
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import config as configuration
from fljax import engine
from fljax.algorithms import incfl
from fljax.engine import checkpoints
from fljax.engine.checkpoints import Checkpoint, Stopped, StopRequest
from fljax.engine.loop import history
from fljax.experiments import conductor
from fljax.experiments import run as experiment
from fljax.experiments.conductor import Saving
from fljax.protocol import Federation
from fljax.results import folders, records, stores
from fljax.training import Local
from tests.experiments.test_load import RAW
from tests.refusals import refuses
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_programs")

PLAN = engine.Plan(
    incfl,
    {
        "task": logistic_regression(),
        "local": Local(0.2, batch_size=2, steps=3),
        "threshold": 0.5,
        "clients_per_round": 3,
    },
)
FEDERATION = tiny_federation()


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are long, have chunks of a few rounds, and few of them are read at once."""
    monkeypatch.setattr(history, "LONG", 0)
    monkeypatch.setattr(checkpoints, "CHUNK", 50)
    monkeypatch.setattr(checkpoints, "READ", 1000)


def simulate(**arguments: Any) -> Any:
    federation: Federation = FEDERATION
    return engine.simulate(PLAN, federation, **({"rounds": 11, "seeds": (5, 9), "evaluate_every": 4} | arguments))


def in_memory(values: xr.Variable) -> bool:
    return bool(values._in_memory)


def assert_same_results(found: Any, expected: Any) -> None:
    xr.testing.assert_identical(found.records.load(), expected.records)
    assert {name: each.dtype for name, each in found.records.variables.items()} == {
        name: each.dtype for name, each in expected.records.variables.items()
    }
    clock = [name for name in expected.metrics if str(name).startswith("seconds_")]
    xr.testing.assert_identical(found.metrics.drop_vars(clock), expected.metrics.drop_vars(clock))


@pytest.mark.in_turn
@pytest.mark.usefixtures("long")
def test_values_are_those_in_memory(tmp_path: pathlib.Path) -> None:
    expected = simulate()
    found = simulate(checkpoint=Checkpoint(tmp_path / "at", every=0))
    assert not any(in_memory(each.variable) for name, each in found.records.items())
    assert found.records.weight.encoding["chunks"][1] < 11  # several blocks
    np.testing.assert_array_equal(found.records.weight[1, 10], expected.records.weight[1, 10])
    assert_same_results(found, expected)
    assert (tmp_path / "at/records.zarr").is_dir()
    assert_same_results(simulate(checkpoint=Checkpoint(tmp_path / "at", every=0)), expected)  # from the last checkpoint


@pytest.mark.in_turn
@pytest.mark.usefixtures("long")
def test_a_run_that_ends_early(tmp_path: pathlib.Path) -> None:
    callbacks = [lambda block: block.round >= 8]
    found = simulate(callbacks=callbacks, checkpoint=Checkpoint(tmp_path / "at", every=0))
    assert found.records.sizes["round"] == 8
    assert_same_results(found, simulate(callbacks=callbacks))


def test_short_records_stay_in_memory(tmp_path: pathlib.Path) -> None:
    found = simulate(checkpoint=tmp_path / "at")
    assert all(in_memory(each.variable) for each in found.records.values())
    assert not (tmp_path / "at/records.zarr").exists()


@pytest.mark.in_turn
@pytest.mark.usefixtures("long")
def test_a_sweep_keeps_them_in_memory(tmp_path: pathlib.Path) -> None:
    plans = [PLAN, PLAN._replace(arguments={**PLAN.arguments, "threshold": 0.7})]
    given: Any = {"rounds": 5, "seeds": 2}
    found = engine.sweep(plans, FEDERATION, checkpoint=Checkpoint(tmp_path / "at", every=0), **given)
    for each, alone in zip(found, engine.sweep(plans, FEDERATION, **given), strict=True):
        assert all(in_memory(values.variable) for values in each.records.values())
        xr.testing.assert_identical(each.records, alone.records)


@pytest.mark.in_turn
@pytest.mark.usefixtures("long")
def test_large_tables_over_clients_are_left_out_of_a_run_and_not_of_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LARGEST_TABLE", 50)
    found = simulate(checkpoint=Checkpoint(tmp_path / "at", every=0))
    assert "participation" not in found.records
    assert_same_results(found, simulate())


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("room", [0, 3])
def test_a_full_disk_is_one_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    path, parts = tmp_path / "records", [results_of(0), results_of(2)]
    stores.save_records(path, parts)
    before = sorted(path.rglob("*"))
    written: list[Any] = []
    whole = xr.Dataset.to_zarr

    def full(self: xr.Dataset, *arguments: Any, **options: Any) -> Any:
        if len(written) >= room // 3:
            raise OSError(28, "No space left on device")
        written.append(self)
        return whole(self, *arguments, **options)

    monkeypatch.setattr(xr.Dataset, "to_zarr", full)
    with pytest.raises(OSError, match=r"expected to write records in .*, got: No space left on device; what was saved"):
        stores.save_records(path, parts)
    assert sorted(path.rglob("*")) == before
    assert [each.name for each in tmp_path.iterdir()] == ["records"]


def results_of(first: int) -> xr.Dataset:
    values = np.arange(first, first + 2, dtype=np.float32)
    return xr.Dataset({"gap": (("seed", "round"), values[None])}, {"seed": [3], "round": np.arange(first, first + 2)})


def test_a_store_that_was_removed_or_replaced_is_not_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records"
    first = stores.save_records(path, [results_of(0), results_of(2)])
    assert first.gap.values.tolist() == [[0, 1, 2, 3]]
    first = stores.load_records(path)
    stores.save_records(path, [results_of(5)])
    refuses(lambda: first.gap.values, "got none there, or those of another run", OSError)
    second = pickle.loads(pickle.dumps(stores.load_records(path)))
    assert second.gap.isel(round=1).values.tolist() == [6]
    second = stores.load_records(path)
    shutil.rmtree(path)
    refuses(lambda: second.gap.values, "got none there, or those of another run", OSError)


def test_a_missing_chunk_is_noticed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records"
    zeros = results_of(0) * 0
    assert stores.save_records(path, [zeros]).gap.values.tolist() == [[0, 0]]
    (path / "gap/c/0/0").unlink()
    refuses(lambda: stores.load_records(path), r"expected .* to be a whole zarr store, got a damaged one")


def test_records_of_every_label_have_a_place(tmp_path: pathlib.Path) -> None:
    for label in (".a", "a", "a+new"):
        stores.save_records(folders.records_of(tmp_path, label), [results_of(len(label))])
    for label in (".a", "a", "a+new"):
        assert stores.load_records(folders.records_of(tmp_path, label)).gap.values[0, 0] == len(label)


def test_names_of_records_are_names_of_files() -> None:
    def build(**arguments: Any) -> Any:
        built = incfl(**arguments)
        select = built.select

        def named(*given: Any) -> Any:
            server, cohort, info = select(*given)
            return server, cohort, {**info, "a/b": jnp.zeros(())}

        return built._replace(select=named)

    with pytest.raises(ValueError, match="expected names of records without '/', as files have, got 'a/b'"):
        engine.simulate(PLAN._replace(build=build), FEDERATION, rounds=1)


def test_a_damaged_store_is_one_sentence(tmp_path: pathlib.Path) -> None:
    stores.save_records(tmp_path / "records", [results_of(0)])
    (tmp_path / "records/gap/zarr.json").write_text("{")
    refuses(
        lambda: stores.load_records(tmp_path / "records"), r"expected .* to be a whole zarr store, got a damaged one"
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("long")
def test_run_folders(tmp_path: pathlib.Path) -> None:
    """Results have what is one value for each round; all of it is there by algorithm, also after an interruption."""
    config = configuration.parse(RAW | {"save_models": "none"}, name="tiny")
    expected = experiment.run(config)
    stop = StopRequest()

    def after_the_first(event: Any) -> None:
        if event.label == "mine" and event.round == 2:
            stop.make()

    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        experiment.run(config, directory=folder, saving=Saving(0, stop=stop), on_event=after_the_first)
    outcome = experiment.run(config, directory=folder, saving=Saving(0), resume=True)
    run = fljax.load(folder)
    assert run.records["stored_apart"].values.tolist() == [1, 1]
    by_round = [name for name, each in expected.records.items() if set(each.dims) <= {"algorithm", "seed", "round"}]
    assert "gap" in by_round or "bytes_up" in by_round
    xr.testing.assert_identical(run.records, outcome.records)
    found = run.records.drop_vars("stored_apart")
    xr.testing.assert_identical(found, expected.records[by_round].drop_vars(["row", "client"], errors="ignore"))
    for label in run.labels:
        xr.testing.assert_identical(run.records_of(label).load(), expected.models[label].records)
    assert sorted(each.name for each in (folder / "records").iterdir()) == ["fedavg", "mine"]
    refuses(lambda: run.records_of("mime"), "expected one of the labels fedavg, mine, got 'mime'")
    refuses(lambda: experiment.run(config, directory=folder), "expected a folder without results, or --resume")
    shutil.rmtree(folder / "records/mine")
    refuses(lambda: run.records_of("mine"), "to be a whole zarr store, got a damaged one")


@pytest.mark.thorough
def test_short_records_replace_long_ones_of_an_earlier_process(tmp_path, monkeypatch):
    """The store is whole when its process dies; the next one keeps the records in memory."""
    config = configuration.parse(RAW | {"save_models": "none"}, name="tiny")
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(history, "LONG", 0)
        patch.setattr(checkpoints, "CHUNK", 50)

        def died(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(conductor, "save_results", died)
        with pytest.raises(KeyboardInterrupt):
            experiment.run(config, directory=folder, saving=Saving(0))
    assert (folder / "records/fedavg").is_dir()
    outcome = experiment.run(config, directory=folder, saving=Saving(None), resume=True)
    assert not (folder / "records/fedavg").exists()
    xr.testing.assert_identical(fljax.load(folder).records, outcome.records)
    assert "row" in outcome.records.dims


@pytest.mark.thorough
def test_short_records_by_algorithm(tmp_path: pathlib.Path) -> None:
    config = configuration.parse(RAW | {"save_models": "none"}, name="tiny")
    outcome = experiment.run(config, directory=tmp_path / "run")
    found = fljax.load(tmp_path / "run").records_of("mine")
    for name, values in outcome.models["mine"].records.items():
        np.testing.assert_array_equal(found[name].values, values.values)
    assert not (tmp_path / "run/records").exists()
