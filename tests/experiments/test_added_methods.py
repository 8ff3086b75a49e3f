"""One more method beside the finished ones of a run: ``added`` in configs, and a run that goes on with it."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import config as configuration
from fljax.experiments import run, sweep
from fljax.experiments.conductor import ProgressFiles, Saving, check_data
from fljax.results import Results, folders
from fljax.results.events import EventLog
from fljax.results.folders import OpenFolder
from fljax.results.identity import added
from tests.refusals import refuses
from tests.toys.configs import BASE, results

pytestmark = pytest.mark.usefixtures("quick_compilation")

ONE, TWO = [{"name": "fedavg"}], [{"name": "fedavg"}, {"name": "incfl"}]


def build(algorithms: Any, **changes: Any) -> configuration.Config:
    return configuration.parse(BASE | {"algorithms": algorithms} | changes, name="tiny")


def text(algorithms: Any, **changes: Any) -> str:
    return configuration.dumps(build(algorithms, **changes))


def test_only_algorithms_behind_the_others_are_added() -> None:
    assert added(text(ONE), text(TWO)) == ["incfl"]
    assert added(text(ONE), text(TWO, save_models="last")) == ["incfl"]
    assert added(text(ONE), text(ONE)) == []
    assert added(text(TWO), text(ONE)) == []
    assert added(text(ONE), text(TWO[::-1])) == []
    assert added(text(ONE), text(TWO, rounds=6)) == []
    assert added(text(ONE), text([{"name": "fedavg", "weights": "size"}, *TWO[1:]])) == []


@pytest.mark.in_turn
def test_a_folder_of_fewer_algorithms_is_resumed_and_its_config_grows(tmp_path: pathlib.Path) -> None:
    with folders.claim(tmp_path, text(ONE)):
        folders.save_results(tmp_path, Results(*results("fedavg")), text(ONE))
    for _ in range(2):  # also where a process died before the new method was finished
        with folders.claim(tmp_path, text(TWO), resume=True) as claimed:
            assert list(claimed.finished) == ["fedavg"]
        assert folders.config_of(tmp_path) == text(TWO)
    with folders.claim(tmp_path, text(ONE), resume=True) as claimed:  # or nobody wants it any more
        assert list(claimed.finished) == ["fedavg"]
    assert folders.config_of(tmp_path) == text(ONE)
    with (
        pytest.raises(ValueError, match=r"expected the config of the results .*: rounds is 4 there and 6 here"),
        folders.claim(tmp_path, text(TWO, rounds=6), resume=True),
    ):
        pass


@pytest.mark.parametrize("grid", [None, '{"learning_rate": "local.learning_rate"}'])
def test_a_refused_method_leaves_the_folder_as_it_was(tmp_path: pathlib.Path, grid: str | None) -> None:
    """Of a run and of a sweep, whose data turn out to be others after the folder is claimed."""
    metrics, records = results("fedavg")
    with folders.claim(tmp_path, text(ONE), grid=grid):
        told = {} if grid is None else {"grid": grid}
        folders.save_results(tmp_path, Results(metrics.assign_attrs(told), records), text(ONE))
    (tmp_path / "environment.json").write_text('{"versions": {"jax": "0.1"}}')

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refused(begins: bool) -> None:
        with folders.claim(tmp_path, text(TWO), True, grid):
            assert folders.config_of(tmp_path) == text(TWO)
            EventLog(tmp_path).note("about to be refused")
            if begins:
                (tmp_path / "checkpoints").mkdir()
            raise ValueError("other data")

    before = contents()
    refuses(lambda: refused(begins=False), "other data")
    assert contents() == before
    refuses(lambda: refused(begins=True), "other data")
    assert folders.config_of(tmp_path) == text(TWO)  # its checkpoints may go on


def test_a_link_that_leads_nowhere_stands_in_no_ones_way(tmp_path: pathlib.Path) -> None:
    with folders.claim(tmp_path, text(ONE)):
        folders.save_results(tmp_path, Results(*results("fedavg")), text(ONE))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with folders.claim(tmp_path, text(TWO), resume=True) as claimed:
        assert list(claimed.finished) == ["fedavg"]


def test_what_a_run_says_stays_where_it_has_gone_on(tmp_path: pathlib.Path) -> None:
    """A block of runs is saved deep in the folder, before a ValueError ends the process."""
    place = tmp_path / "worth" / "checkpoints" / "fedavg"
    with folders.claim(tmp_path, text(ONE)):
        place.mkdir(parents=True)

    def goes_on() -> None:
        with folders.claim(tmp_path, text(ONE), resume=True):
            EventLog(tmp_path).note("goes on")
            (place / "block").touch()
            raise ValueError("later")

    refuses(goes_on, "later")
    assert "goes on" in (tmp_path / "log.jsonl").read_text()


def test_a_sweep_gets_a_method_and_nothing_else(tmp_path: pathlib.Path) -> None:
    grid, swept = '{"learning_rate": "local.learning_rate"}', {"sweep": {"grid": {"local.learning_rate": [0.1, 0.2]}}}
    one, two, longer = text(ONE, **swept), text(TWO, **swept), text(TWO, rounds=6, **swept)
    metrics, records = results("fedavg")
    with folders.claim(tmp_path, one, grid=grid):
        folders.save_results(tmp_path, Results(metrics.assign_attrs(grid=grid), records), one)
    with (
        pytest.raises(ValueError, match=r"expected the config of the results .*: rounds is 4 there and 6 here"),
        folders.claim(tmp_path, longer, resume=True, grid=grid),
    ):
        pass
    with folders.claim(tmp_path, two, resume=True, grid=grid) as claimed:
        assert list(claimed.finished) == ["fedavg"]
    assert folders.config_of(tmp_path) == two
    with pytest.raises(ValueError, match="expected the config of the results"):
        folders.read_finished(tmp_path, two, grid)  # as of a part


def test_other_data_are_refused() -> None:
    metrics, records = results("fedavg")
    folder = OpenFolder({"fedavg": Results(metrics.assign_attrs(data="7"), records)})
    files = ProgressFiles(None, "", None, Saving(), EventLog())
    check_data(folder, 7, files)
    check_data(folder, None, files)
    refuses(lambda: check_data(folder, 8, files), "expected the data that fedavg was run on, to run others")


@pytest.mark.thorough
def test_a_method_beside_those_of_a_finished_sweep(tmp_path: pathlib.Path) -> None:
    def grid(algorithms: Any, **changes: Any) -> Any:
        raw = BASE | {"algorithms": algorithms, "sweep": {"grid": {"local.learning_rate": [0.1, 0.2]}}} | changes
        return configuration.parse_grid(raw, name="tiny")

    sweep.run(grid(ONE), directory=tmp_path / "grown")
    before = folders.load_results(tmp_path / "grown").metrics
    sweep.run(grid(TWO), directory=tmp_path / "grown", resume=True)
    sweep.run(grid(TWO), directory=tmp_path / "whole")
    after, whole = (folders.load_results(tmp_path / name).metrics for name in ("grown", "whole"))
    xr.testing.assert_identical(after.sel(algorithm=["fedavg"])[list(before.data_vars)], before)
    xr.testing.assert_identical(without_times(after), without_times(whole))
    assert folders.load_results(tmp_path / "whole").metrics.attrs["data"] == before.attrs["data"]
    other = BASE["data"] | {"clients": 5}
    with pytest.raises(ValueError, match=r"data\.clients is 6 there and 5 here"):
        sweep.run(grid([*TWO, {"name": "standalone"}], data=other), directory=tmp_path / "grown", resume=True)


def without_times(metrics: xr.Dataset) -> xr.Dataset:
    return metrics.drop_vars([name for name in metrics if str(name).startswith(("seconds_", "execution_"))])


@pytest.mark.thorough
def test_the_finished_methods_stay_to_the_bit_and_the_new_one_is_run(tmp_path: pathlib.Path) -> None:
    run.run(build(ONE), directory=tmp_path / "grown")
    before = folders.load_results(tmp_path / "grown").metrics.sel(algorithm=["fedavg"])
    run.run(build(TWO), directory=tmp_path / "grown", resume=True)
    run.run(build(TWO), directory=tmp_path / "whole")
    after, whole = (folders.load_results(tmp_path / name).metrics for name in ("grown", "whole"))
    assert after["algorithm"].values.tolist() == ["fedavg", "incfl"]
    kept = after.sel(algorithm=["fedavg"])[list(before.data_vars)]
    xr.testing.assert_identical(kept, before)  # the seconds, too
    xr.testing.assert_identical(without_times(after), without_times(whole))
    assert folders.config_of(tmp_path / "grown") == text(TWO)
    assert np.isfinite(after.average_accuracy).all()
