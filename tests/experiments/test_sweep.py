"""Sweeps: the cells of a grid, what is run for them, and which is best."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import report
from fljax.config import ConfigError, dumps, load_grid, parse_grid
from fljax.engine.programs import jit
from fljax.experiments import programs, run, sweep
from fljax.results import folders, sweeps
from fljax.results.events import Event
from fljax.results.non_finite import NotFinite
from fljax.results.sweeps import Axis, unstack_cells
from tests.refusals import refuses
from tests.toys.configs import BASE, SWEPT
from tests.toys.quick import quick_programs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One sweep that is saved, its events and its folder."""
    folder = tmp_path_factory.mktemp("sweep")
    events: list[Event] = []
    with quick_programs():
        return sweep.run(parse_grid(SWEPT, name="tiny"), directory=folder, on_event=events.append), events, folder


# --- Cells --------------------------------------------------------------------------------------------------


def test_cells_are_all_combinations() -> None:
    grid = parse_grid(SWEPT, name="tiny")
    assert [axis.name for axis in grid.axes] == ["learning_rate", "eps"]
    rates = [(cell.local.learning_rate, cell.algorithms[1].options["eps"]) for cell in grid.cells]
    assert rates == [(rate, eps) for rate in (0.02, 0.1, 0.3) for eps in (1e-8, 1.0)]
    assert all(cell.sweep is None for cell in grid.cells)
    assert grid.config.local.learning_rate == 0.1


def test_options_add_to_the_file_and_replace(tmp_path: Any) -> None:
    grid = parse_grid(SWEPT, ["local.learning_rate=0.5", "local.optimizer=sgd,adam", "model.name = mlp"])
    assert [axis.values for axis in grid.axes] == [(0.5,), (1e-8, 1.0), ("sgd", "adam"), ("mlp",)]
    # What is written reads back as the same grid.
    (tmp_path / "a.toml").write_text(dumps(grid.config))
    assert load_grid(tmp_path / "a.toml").cells == grid.cells


def test_names_of_axes() -> None:
    both = ["local.learning_rate=0.1", "standalone.learning_rate=0.1", "algorithms.incfl.threshold=0.5"]
    names = [axis.name for axis in parse_grid(BASE, both).axes]
    assert names == ["local.learning_rate", "standalone.learning_rate", "algorithms.incfl.threshold"]


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ([], "expected a grid to sweep over"),
        (["local.learning_rate"], "expected a grid 'table.key=value,value', got 'local.learning_rate'"),
        (["local.learning_rate="], r"sweep.grid.local.learning_rate: expected a list of different values, got \[\]"),
        (["local.learning_rate=0.1,0.1"], "expected a list of different values"),
        (["local.learning_rat=0.1"], "did you mean 'learning_rate'"),
        (["local.learning_rate=0.1,-1"], "local.learning_rate: expected a number above 0, got -1"),
        (["algorithms.incf.eps=1"], "did you mean 'incfl'"),
        (["algorithms.incfl.epss=1"], "did you mean 'eps'"),
        (["seeds=1,2"], "may differ between cells, got 'seeds'"),
        (["sweep.metric=a,b"], "may differ between cells, got 'sweep.metric'"),
        (["algorithms.incfl.label=a,b"], "the same labels"),
    ],
)
def test_bad_grids(grid: list[str], sentence: str) -> None:
    refuses(lambda: parse_grid(BASE, grid), sentence, ConfigError)


def test_unknown_metric() -> None:
    with pytest.raises(ConfigError, match="did you mean 'average_accuracy'"):
        sweep.run(parse_grid(SWEPT | {"sweep": SWEPT["sweep"] | {"metric": "average_acuracy"}}))


# --- Running ------------------------------------------------------------------------------------------------


def test_a_metric_that_this_run_will_not_have() -> None:
    for metric, key in (
        ("unseen_average_accuracy", "data.unseen"),
        ("average_valid_accuracy", "data.valid_fraction"),
        ("average_valid_loss", "data.valid_fraction"),
    ):
        data = {**BASE["data"], "unseen": 0}
        grid = parse_grid(BASE | {"data": data, "sweep": {"metric": metric}}, ["local.learning_rate=0.1,0.2"])
        with pytest.raises(ConfigError, match=f"expected {key} to be positive for {metric}, got 0"):
            sweep.check_grid(grid)


def test_a_grid_that_an_algorithm_hides() -> None:
    own = [{"name": "fedavg", "local": {"learning_rate": 0.3}}]
    with pytest.raises(ConfigError, match=r"algorithms\.fedavg\.local\.learning_rate: expected none in a sweep over"):
        parse_grid(BASE | {"algorithms": own}, ["local.learning_rate=0.1,0.2"])


@pytest.mark.thorough
def test_runs_and_sweeps_are_not_resumed_as_each_other(finished: Any) -> None:
    _, _, folder = finished
    with pytest.raises(ValueError, match=r"expected results of fljax run in .*, got those of another fljax sweep"):
        run.run(parse_grid(SWEPT, name="tiny").config, directory=folder, resume=True)


@pytest.mark.thorough
def test_sweeps_keep_their_folder_as_runs_do(finished: Any) -> None:
    """One process, one grid, and nothing is written over."""
    _, _, folder = finished
    grid = parse_grid(SWEPT, name="tiny")
    kept = {name: (folder / name).read_bytes() for name in ("results.nc", "metrics.csv", "config.toml")}
    (folder / "config.toml").unlink()
    with pytest.raises(ValueError, match=r"to resume them, got a changed one: sweep\.grid\.local\.learning_rate is"):
        sweep.run(parse_grid(SWEPT, ["local.learning_rate=0.5"], name="tiny"), directory=folder, resume=True)
    refuses(lambda: sweep.run(grid, directory=folder), "expected a folder without results")
    with (
        folders.claim(folder, dumps(grid.config), resume=True, grid=json.dumps({a.name: a.path for a in grid.axes})),
        pytest.raises(ValueError, match="expected a folder that no other process writes to"),
    ):
        sweep.run(grid, directory=folder, resume=True)
    (folder / "metrics.csv").unlink()
    events: list[Event] = []
    sweep.run(grid, directory=folder, resume=True, on_event=events.append)
    assert {event.stage for event in events} == {"note"}
    assert {name: (folder / name).read_bytes() for name in kept} == kept


@pytest.mark.thorough
def test_a_cell_equals_its_own_run(finished: Any) -> None:
    outcome, _, _ = finished
    cell = parse_grid(SWEPT, name="tiny").cells[3]
    with quick_programs():
        alone = run.run(cell)
    assert outcome.metrics["test_loss"].dims == (
        *("algorithm", "learning_rate", "eps", "seed", "evaluated_round", "client"),
    )
    mine = {"learning_rate": 0.1, "eps": 1.0}
    for name, values in alone.metrics.items():
        if not str(name).startswith(("seconds_", "execution_")) and not str(name).endswith("opt_out_threshold"):
            found = outcome.metrics[name].sel(mine)
            np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5, err_msg=str(name))
    for name, values in alone.records.items():
        np.testing.assert_allclose(outcome.records[name].sel(mine), values, rtol=1e-4, atol=1e-5, err_msg=str(name))


@pytest.mark.thorough
def test_programs_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were compiled ahead, with stand-ins for standalone models, are those of the sweep."""
    made: Counter[str] = Counter()
    fresh, compile_ahead, ahead = jit.Program._fresh, programs.compile_ahead, list[int]()

    def noted(self: Any, options: dict[str, Any]) -> Any:
        made[self.__name__] += 1
        return fresh(self, options)

    def begun(*arguments: Any) -> None:
        compile_ahead(*arguments)
        ahead.append(len(arguments[1]))

    monkeypatch.setattr(jit.Program, "_fresh", noted)
    monkeypatch.setattr(programs, "compile_ahead", begun)
    grid = parse_grid(
        SWEPT | {"participation": {"clients_per_round": 5}}, name="tiny"
    )  # no other test has its programs
    with quick_programs():
        sweep.run(grid)
    assert ahead == [3, 6]  # FedAvg does not depend on eps
    assert made["run_rounds"] == made["start"] == made["evaluate_runs"] == 2


@pytest.mark.in_turn
def test_what_makes_no_difference_is_run_once(finished: Any) -> None:
    outcome, events, _ = finished
    notes = [event.message for event in events if event.stage == "note"]
    assert "3 different cells in 1 program" in notes
    assert "6 different cells in 1 program" in notes
    assert any("in 3 ways" in event.message for event in events if event.stage == "standalone")
    fedavg = outcome.metrics["test_loss"].sel(algorithm="fedavg")
    np.testing.assert_array_equal(fedavg.isel(eps=0), fedavg.isel(eps=1))
    assert all(best.cell["eps"] is None for best in outcome.best if best.algorithm == "fedavg")


@pytest.mark.in_turn
def test_what_is_saved_loads_back_and_is_not_repeated(finished: Any, tmp_path: Any) -> None:
    outcome, _, folder = finished
    metrics, records = folders.load_results(folder)
    assert metrics.identical(outcome.metrics)
    assert records.equals(outcome.records)
    assert (folder / "metrics.csv").read_text().startswith("algorithm,learning_rate,eps,seed,evaluated_round,")
    again = sweep.run(parse_grid(SWEPT, name="tiny"), directory=folder, resume=True)
    assert again.metrics.equals(outcome.metrics)
    assert again.best == outcome.best


@pytest.mark.in_turn
def test_validation_rows_are_judged_where_there_are_some(finished: Any) -> None:
    outcome, _, _ = finished
    assert {best.criterion for best in outcome.best} == {"average_accuracy", "average_valid_accuracy"}
    average = outcome.metrics["valid_accuracy"].mean("client")
    np.testing.assert_allclose(outcome.metrics["average_valid_accuracy"], average, rtol=1e-5)
    shares = outcome.metrics["valid_accuracy"].values
    assert (shares >= 0).all()
    assert (shares <= 1).all()


@pytest.mark.thorough
def test_what_shapes_a_program_and_who_diverges(tmp_path: Any) -> None:
    """Steps and models come one after another; a cell that diverges is frozen alone and never the best."""
    wild = {"name": "fedavg", "label": "wild", "server_lr": 1.0}
    grid = parse_grid(
        BASE | {"algorithms": [wild], "seeds": 1, "rounds": 2, "evaluate_every": 2},
        ["local.steps=1,2", "algorithms.wild.server_lr=1.0,3e38"],
    )
    events: list[Event] = []
    with quick_programs():
        outcome = sweep.run(grid, on_event=events.append)
    assert "4 different cells in 2 programs" in [event.message for event in events]
    assert {cell["server_lr"] for _, cell, _, _ in outcome.diverged} == {3e38}
    assert np.isfinite(outcome.metrics["test_loss"].sel(server_lr=1.0)).all()
    assert outcome.best[0].cell["server_lr"] == 1.0
    assert [event.round for event in events if event.stage == "train"] == [0, 2, 2, 4]


@pytest.mark.thorough
def test_messages_that_are_not_finite_in_a_sweep() -> None:
    """A cell that stops the sweep is named by its values; cells may also differ in what they do."""
    wild = {"name": "fedavg", "label": "wild", "server_lr": 1.0}
    tiny = BASE | {"algorithms": [wild], "seeds": 1, "rounds": 2, "evaluate_every": 2}
    with quick_programs():
        with pytest.raises(NotFinite) as found:
            sweep.run(parse_grid(tiny | {"non_finite": "stop"}, ["algorithms.wild.server_lr=1.0,3e38"]))
        assert (found.value.label, found.value.cell) == ("wild", {"server_lr": 3e38})
        outcome = sweep.run(parse_grid(tiny, ["non_finite=freeze,drop"]))
    assert outcome.metrics["dropped_messages"].sel(non_finite="drop").values.ravel().tolist() == [0, 0]
    assert np.isnan(outcome.metrics["dropped_messages"].sel(non_finite="freeze").values).all()
    assert "dropped" in outcome.records


# --- Results ------------------------------------------------------------------------------------------------


def _results(values: Any, rates: Any, **others: Any) -> xr.Dataset:
    """Of one algorithm over ``rate`` and two seeds; ``values [rate]``."""
    table = np.asarray(values, float)[None, :, None, None] + np.array([-0.1, 0.1])[:, None]
    dims = ("algorithm", "rate", "seed", "evaluated_round")
    variables = {"average_accuracy": (dims, table), "diverged": (dims[:-1], np.full(table.shape[:-1], -1))}
    coordinates = {"algorithm": ["a"], "rate": rates, "seed": [0, 1], "evaluated_round": [4]}
    attributes = {"grid": json.dumps({"rate": "local.rate"}), "metric": "average_accuracy"}
    return xr.Dataset(variables | others, coordinates, attributes)


def test_best() -> None:
    (found,) = sweeps.best(_results([0.5, 0.75, 0.25], [1.0, 2.0, 3.0]), "average_accuracy")
    assert found.cell == {"rate": 2.0}
    np.testing.assert_allclose([found.mean, found.std, found.seeds], [0.75, 0.1 * 2**0.5, 2])
    assert found.edges == ()
    (found,) = sweeps.best(_results([0.5, 0.3, np.nan], [3.0, 2.0, 1.0]), "average_accuracy")
    assert (found.cell, found.edges) == ({"rate": 3.0}, ("rate",))
    (found,) = sweeps.best(_results([0.5, 0.3], [1.0, 2.0]), "average_accuracy")
    assert found.edges == ()  # of two values one is always at the edge
    (found,) = sweeps.best(_results([0.5, 0.5, 0.5], [1.0, 2.0, 3.0]), "average_accuracy")
    assert (found.cell, found.edges) == ({"rate": None}, ())
    assert sweeps.best(_results([np.nan, np.nan], [1.0, 2.0]), "average_accuracy") == ()
    broken = _results([0.5, 0.75, 0.25], ["x", "y", "z"])
    broken["diverged"].values[0, 1, 1] = 3
    (found,) = sweeps.best(broken, "average_accuracy")
    assert (found.cell, found.edges) == ({"rate": "x"}, ())
    refuses(lambda: sweeps.best(broken, "m"), "got 'm'")


def test_less_loss_is_better() -> None:
    results = _results([0.5, 0.75], [1.0, 2.0]).rename(average_accuracy="average_loss")
    assert sweeps.best(results, "average_loss")[0].cell == {"rate": 1.0}
    unseen = results.rename(average_loss="unseen_average_loss")
    assert sweeps.best(unseen, "unseen_average_loss")[0].cell == {"rate": 1.0}


def test_gridded() -> None:
    axes = (Axis("a", "t.a", (1, 2)), Axis("b", "t.b", (True, [3])))
    sweeps = [
        xr.Dataset({"x": (("seed", "row"), np.full((1, 1 + i % 2), i)), "a": ((), True)}, {"row": range(1 + i % 2)})
        for i in range(4)
    ]
    found = unstack_cells(sweeps, axes)
    assert found["x"].dims == ("a", "b", "seed", "row")
    np.testing.assert_array_equal(found["x"].isel(seed=0, row=0), [[0, 1], [2, 3]])
    assert np.isnan(found["x"].isel(b=0, row=1)).all()  # shorter cells are filled up
    assert (found["a_recorded"].shape, found["b"].values.tolist()) == ((2, 2), ["true", "[3]"])


# --- Pictures -----------------------------------------------------------------------------------------------


@pytest.mark.in_turn
def test_pictures_and_page(finished: Any) -> None:
    outcome, _, folder = finished
    image, page = report.write(folder)
    assert image.name == "sweep.png"
    assert image.stat().st_size > 10_000
    text = page.read_text()
    assert "Best cells" in text
    assert "learning_rate" in text
    head, *rows = report.best_rows(outcome.best, "average_accuracy")
    assert head == ["algorithm", "chosen by", "learning_rate", "eps", "value chosen by", "Average accuracy"]
    assert [row[:2] for row in rows[:2]] == [["fedavg", "test rows"], ["fedavg", "validation rows"]]
    assert rows[0][3] == "any"


@pytest.mark.parametrize(
    ("rates", "log"), [([0.01, 0.1, 1.0], True), ([1.0, 2.0, 3.0], False), ([0.0, 0.1, 1.0], False), ([1, 10], False)]
)
def test_lines_over_one_axis(rates: list[float], log: bool) -> None:
    figure = report.sweep_picture(_results(np.linspace(0.3, 0.6, len(rates)), rates), "x")
    (axes,) = figure.axes
    assert axes.get_xscale() == ("log" if log else "linear")
    star = axes.lines[-1]
    assert (np.asarray(star.get_xdata())[0], star.get_marker()) == (rates[-1], "*")


def test_text_is_an_axis_too() -> None:
    axes, _ = report.sweep_picture(_results([0.3, 0.6], ["sgd", "adam"])).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["sgd", "adam"]
