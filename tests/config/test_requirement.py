"""The table ``[requirement]`` of a config: what it may say, and that every part of a run reads it."""

from __future__ import annotations

import itertools
import pathlib
import tomllib
from typing import Any

import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import config as configuration
from fljax.config import ConfigError
from fljax.config.reading import load_grid, parse_grid
from fljax.experiments import run, sweep
from fljax.experiments.inputs.setup import resolve_setup
from fljax.results.identity import flat
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_programs")

BASE: dict[str, Any] = {
    "seeds": 2,
    "rounds": 3,
    "evaluate_every": 3,
    "data": {
        "dataset": "blobs",
        "partition": "cluster_labels",
        "clients": 5,
        "unseen": 2,
        "valid_fraction": 0.3,
        "partition_options": {"groups": 2, "minimum": 4},
    },
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 3},
    "participation": {"clients_per_round": 5},
    "algorithms": [{"name": "fedavg"}, {"name": "incfl"}, {"name": "mwfed"}],
    "scenarios": [{"name": "appeal_based", "after": 0, "empty_pool": "all", "judged": "global"}],
}


def parse(requirement: Any = None, **changes: Any) -> configuration.Config:
    raw = {**BASE, **changes} | ({} if requirement is None else {"requirement": requirement})
    return configuration.parse(raw, name="tiny")


def above_validation(valid: Any) -> Any:
    return valid + 0.25


NOT_A_FUNCTION = 3


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"rows": "valid", "factor": 0.5},
        {"value": 1},
        {"value": [1, 2.5, 3, 4, 5]},
        {"function": "tests.config.test_requirement:above_validation"},
        {"file": "losses.csv"},
    ],
)
def test_it_is_read_and_written(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = parse(table)
    again = configuration.parse(tomllib.loads(configuration.dumps(loaded)))
    assert again == loaded
    assert again.requirement is not None
    assert configuration.dumps(parse()).count("requirement") == 0


def test_the_file_is_relative_to_the_config(tmp_path):
    (tmp_path / "here").mkdir()
    path = tmp_path / "here" / "tiny.toml"
    path.write_text(configuration.dumps(parse()) + '\n[requirement]\nfile = "../losses.csv"\n')
    loaded: Any = configuration.load(path)
    assert loaded.requirement.file == str(tmp_path / "losses.csv")
    assert "requirement.file" not in flat(configuration.dumps(loaded))  # may differ between processes
    refuses(lambda: resolve_setup(loaded), r"^requirement\.file '.*losses\.csv': expected a file that can be read, got")
    (tmp_path / "losses.csv").write_text("client,loss\n" + "".join(f"{each},{each + 1}\n" for each in range(5)))
    found: Any = resolve_setup(loaded).requirement
    assert found.value == {"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0, "4": 5.0}


def test_files_of_a_grid_are_relative_to_the_config(tmp_path):
    iafl: Any = {"name": "iafl", "contribution": {"file": "c.csv"}}
    path = tmp_path / "tiny.toml"
    grid = '{"requirement.file" = ["a.csv", "b.csv"], "algorithms.iafl.contribution.file" = ["c.csv", "d.csv"]}'
    written = configuration.dumps(parse({"file": "a.csv"}, algorithms=[iafl], scenarios=[]))
    path.write_text(f"{written}\n[sweep]\ngrid = {grid}\n")
    cells = load_grid(path).cells
    assert [cell.requirement and cell.requirement.file for cell in cells] == [
        str(tmp_path / name) for name in ("a.csv", "a.csv", "b.csv", "b.csv")
    ]
    files = [cell.algorithms[0].options["contribution"]["file"] for cell in cells]
    assert files == [str(tmp_path / name) for name in ("c.csv", "d.csv")] * 2


HERE = "tests.config.test_requirement"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (0.5, r"^requirement: expected a table, got 0\.5$"),
        ({"value": "high"}, r"^requirement\.value: expected a number or a list of numbers by client, got 'high'$"),
        ({"value": [1, 2]}, r"^requirement\.value: expected a number for each of 5 clients, got 2$"),
        ({"rows": "all"}, r"^requirement\.rows: expected one of the values train, valid, test, got 'all'$"),
        ({"rows": "test", "value": 1.0}, r"^requirement: expected one of rows, value, file and function, got rows and"),
        ({"value": 1.0, "file": "a.csv"}, r"^requirement: expected one of .*, got value and file$"),
        ({"factor": 0.0}, r"^requirement\.factor: expected a number above 0, got 0"),
        ({"function": "above"}, r"^requirement\.function: expected an .*path 'module:name' of a function, got 'above'"),
        ({"function": f"{HERE}:NOT_A_FUNCTION"}, r"^requirement\.function: expected an .*path .* of a function, got"),
        ({"function": f"{HERE}:above"}, r"^requirement\.function: expected a function called 'above' in"),
        ({"loss": 1.0}, r"^requirement\.loss: expected one of .*keys rows, value, file, function, factor, got 'loss'$"),
    ],
)
def test_what_it_cannot_say(table, sentence):
    refuses(lambda: parse(table), sentence, ConfigError)


def test_functions_may_be_refused():
    raw = BASE | {"requirement": {"function": f"{HERE}:above_validation"}}
    with pytest.raises(ConfigError, match=r"^requirement\.function: expected no function of one's own, got the import"):
        configuration.parse(raw, imports=False)


def test_validation_rows_are_needed():
    data = BASE["data"] | {"valid_fraction": 0.0}
    setup = resolve_setup(parse({"rows": "valid"}, data=data))
    with pytest.raises(ValueError, match=r"^expected clients with validation rows for validation losses of standalone"):
        run.check_setup(setup, rehearsed=False)


def known(outcome: run.Outcome) -> tuple[xr.Dataset, xr.Dataset]:
    return outcome.metrics.transpose("algorithm", "seed", ...), outcome.records.transpose("algorithm", "seed", ...)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "table",
    [{"rows": "valid", "factor": 2.0}, {"function": f"{HERE}:above_validation"}, {"value": [0.5, 1, 2, 3, 0.1]}],
    ids=["rows", "function", "numbers"],
)
def test_every_part_of_a_run_reads_it(table):
    """Weights, the pool and appeal: all compare with the one required loss."""
    metrics, records = known(run.run(parse(table)))
    required = metrics["required_loss"].values
    assert (required == required[:1]).all()
    rho = required[0]
    if "value" in table:
        np.testing.assert_array_equal(rho, np.broadcast_to(np.float32(table["value"]), rho.shape))
    else:
        alone: Any = fljax.standalone(*_of(parse(table)), seeds=2, valid=True)
        expected = 2 * alone.valid_loss if "rows" in table else alone.valid_loss + 0.25
        np.testing.assert_allclose(rho, expected, rtol=1e-4)
        unseen = 2 * alone.unseen_valid_loss if "rows" in table else alone.unseen_valid_loss + 0.25
        np.testing.assert_allclose(metrics["unseen_required_loss"].values[0], unseen, rtol=1e-4)
    for place, (_, seed) in enumerate(itertools.product(metrics["algorithm"].values, range(2))):
        own = place // 2, seed
        appealed, polled = records["appealed"].values[own], records["polled_loss"].values[own]
        np.testing.assert_array_equal(appealed, polled < rho[seed])
        loss = metrics["global_test_loss"].values[own]
        np.testing.assert_allclose(metrics["global_model_appeal"].values[own], (loss < rho[seed]).mean(-1), rtol=1e-6)
    incfl = int(np.flatnonzero(metrics["algorithm"].values == "incfl")[0])
    ids, there = records["cohort_id"].values[incfl], records["cohort_present"].values[incfl] == 1
    gap = records["loss"].values[incfl] - np.take_along_axis(rho[:, None], ids.astype(int), -1)
    np.testing.assert_allclose(records["gap"].values[incfl][there], gap[there], rtol=1e-4, atol=1e-6)


def _of(config: configuration.Config) -> Any:
    setup = resolve_setup(config)
    return setup.task, setup.federation, setup.standalone


@pytest.mark.thorough
def test_a_sweep_over_it():
    raw = BASE | {"seeds": 1, "scenarios": [], "algorithms": [{"name": "fedavg"}, {"name": "incfl"}]}
    outcome = sweep.run(parse_grid(raw | {"requirement": {"rows": "valid"}}, ["requirement.factor=0.5,2.0"]))
    required = outcome.metrics["required_loss"].sel(algorithm="fedavg")
    np.testing.assert_allclose(required.sel(factor=2.0), 4 * required.sel(factor=0.5), rtol=1e-6)
    for label in ("fedavg", "incfl"):
        own = outcome.metrics.sel(algorithm=label)
        met = (own["global_test_loss"] < own["required_loss"]).mean("client")
        np.testing.assert_allclose(own["global_model_appeal"].transpose(*met.dims), met, rtol=1e-6)


@pytest.mark.thorough
def test_models_of_a_run_do_not_need_the_file(tmp_path: pathlib.Path):
    file = tmp_path / "losses.csv"
    file.write_text("client,loss\n" + "".join(f"{each},1\n" for each in range(5)))
    config = parse({"file": str(file)}, scenarios=[], rounds=1, save_models="last", algorithms=[{"name": "incfl"}])
    outcome = run.run(config, directory=tmp_path / "run")
    file.unlink()
    x = np.zeros((2, *resolve_setup(parse()).federation.examples.x.shape[1:]), np.float32)
    found = fljax.load(tmp_path / "run").models("incfl").predict(3, x, seed=1)
    np.testing.assert_allclose(found, outcome.models["incfl"].predict(3, x, seed=1), rtol=1e-5)


@pytest.mark.thorough
def test_a_resumed_run_keeps_the_requirement_of_its_results(tmp_path: pathlib.Path):
    file = tmp_path / "losses.csv"
    file.write_text("client,loss\n" + "".join(f"{each},1\n" for each in range(5)))
    config, folder = parse({"file": str(file)}, scenarios=[], rounds=1), tmp_path / "run"

    def stop(event: Any) -> None:
        if event.label == "incfl":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(config, directory=folder, on_event=stop)
    file.write_text("client,loss\n" + "".join(f"{each},2\n" for each in range(5)))
    sentence = (
        r"^expected the requirement that the results of fedavg were judged by, got another one; a run with another"
    )
    refuses(lambda: run.run(config, directory=folder, resume=True), sentence)
    file.write_text("client,loss\n" + "".join(f"{each},1.0\n" for each in range(5)))
    outcome = run.run(config, directory=folder, resume=True)
    assert (outcome.metrics["required_loss"] == 1).all()


@pytest.mark.thorough
def test_a_resumed_sweep_keeps_the_requirement_of_its_results(tmp_path: pathlib.Path):
    """Also where cells have other numbers of clients, of which results of smaller cells are filled up."""

    def write(loss: float) -> None:
        (tmp_path / "losses.csv").write_text("client,loss\n" + "".join(f"{each},{loss}\n" for each in range(5)))

    write(1)
    names = [{"name": "fedavg"}, {"name": "incfl"}]
    raw = BASE | {"seeds": 1, "rounds": 1, "scenarios": [], "algorithms": names}
    grids = [["requirement.factor=0.5,2.0"], ["data.clients=5,6"]]
    sources: list[Any] = [{"file": str(tmp_path / "losses.csv")}, {"value": 1.0}]
    for place, (grid, source) in enumerate(zip(grids, sources, strict=True)):
        cells, folder = parse_grid(raw | {"requirement": source}, grid), tmp_path / f"run{place}"

        def stop(event: Any) -> None:
            if event.label == "incfl":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sweep.run(cells, directory=folder, on_event=stop)
        if "file" in source:
            write(3)
            with pytest.raises(
                ValueError, match=r"^expected the requirement that the results of fedavg were judged by"
            ):
                sweep.run(cells, directory=folder, resume=True)
            write(1.0)
        required = sweep.run(cells, directory=folder, resume=True).metrics["required_loss"]
        assert (required.sel(algorithm="fedavg").fillna(0) == required.sel(algorithm="incfl").fillna(0)).all()
