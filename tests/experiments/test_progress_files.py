"""Experiments and sweeps that are stopped before an algorithm is finished, and go on."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import xarray as xr

from fljax import config as configuration
from fljax.engine.checkpoints import Stopped, StopRequest
from fljax.experiments import conductor, run, sweep
from fljax.experiments.running import Saving
from fljax.results import folders
from fljax.results.events import Event
from tests.experiments.test_run import BASE


def build(**changes: Any) -> configuration.Config:
    return configuration.parse(BASE | changes, name="tiny")


def assert_same(one: pathlib.Path, other: pathlib.Path) -> None:
    for found, expected in zip(folders.load(one), folders.load(other), strict=True):
        times = [name for name in expected if str(name).startswith("seconds_")]
        xr.testing.assert_identical(found.drop_vars(times), expected.drop_vars(times))


def stop_after(stop: StopRequest, label: str, round: int) -> Any:
    def listen(event: Event) -> None:
        if (event.stage, event.label, event.round) == ("train", label, round):
            stop.make()

    return listen


def messages(folder: pathlib.Path) -> list[str]:
    return [json.loads(line)["message"] for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_a_stopped_experiment_goes_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standalone models are trained once; the second algorithm goes on where it was stopped."""
    run.run(build(), directory=tmp_path / "whole")
    assert not (tmp_path / "whole/checkpoints").exists()
    stop, folder = StopRequest(), tmp_path / "stopped"
    label = build().algorithms[1].label
    with pytest.raises(Stopped) as stopped:
        run.run(build(), directory=folder, saving=Saving(stop=stop), on_event=stop_after(stop, label, 2))
    assert (stopped.value.round, stopped.value.saved) == (2, 2)
    assert [each.name for each in (folder / "checkpoints").glob("*/rounds")] == ["rounds"]

    def again(*_: Any, **__: Any) -> Any:
        raise AssertionError("standalone models are trained again")

    monkeypatch.setattr(conductor, "standalone_sweep", again)
    run.run(build(), directory=folder, resume=True)
    assert_same(folder, tmp_path / "whole")
    assert "goes on after round 2 of 4, from a checkpoint" in messages(folder)
    assert "standalone models are those of the earlier process" in messages(folder)
    assert not (folder / "checkpoints").exists()


def test_checkpoints_of_another_config_are_refused(tmp_path: pathlib.Path) -> None:
    """Also where config.toml is missing; without --resume they are not overwritten."""
    stop, folder = StopRequest(), tmp_path / "stopped"
    with pytest.raises(Stopped):
        run.run(build(), directory=folder, saving=Saving(stop=stop), on_event=stop_after(stop, "fedavg", 2))
    (folder / "config.toml").unlink()
    with pytest.raises(ValueError, match=r"config of the checkpoints in .* rounds is 4 there and 6 here"):
        run.run(build(rounds=6), directory=folder, resume=True)
    with pytest.raises(ValueError, match=r"expected a folder without results, or --resume, got .* holds checkpoints"):
        run.run(build(), directory=folder)
    path = folder / "checkpoints/origin.json"
    path.write_text(path.read_text().replace('"fljax": "', '"fljax": "9'))
    with pytest.raises(ValueError, match=r"expected checkpoints of fljax .* got those of fljax 9"):
        run.run(build(), directory=folder, resume=True)
    path.unlink()  # then nobody can say what they are of
    run.run(build(), directory=folder, resume=True)
    assert "training" in " ".join(messages(folder))


@pytest.mark.thorough
def test_damaged_standalone_models_are_trained_again(tmp_path: pathlib.Path) -> None:
    stop, folder = StopRequest(), tmp_path / "stopped"
    with pytest.raises(Stopped):
        run.run(build(), directory=folder, saving=Saving(stop=stop), on_event=stop_after(stop, "fedavg", 2))
    path = folder / "checkpoints/standalone.npz"
    path.write_bytes(path.read_bytes()[:-40])
    run.run(build(), directory=folder, resume=True)
    assert "standalone.npz is damaged; standalone models are trained again" in messages(folder)
    run.run(build(), directory=tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


def test_without_checkpoints_nothing_is_left(tmp_path: pathlib.Path) -> None:
    run.run(build(), directory=tmp_path / "run", saving=Saving(every=None))
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.thorough
def test_a_stopped_sweep_goes_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By program: finished programs of an algorithm are not run again."""
    path = tmp_path / "tiny.toml"
    path.write_text(configuration.dumps(build()))
    grid = configuration.load_grid(path, [], ["local.learning_rate=0.1,0.2", "local.batch_size=2,4"])
    sweep.run(grid, directory=tmp_path / "whole")
    stop, folder = StopRequest(), tmp_path / "stopped"
    label = build().algorithms[0].label
    with pytest.raises(Stopped):
        sweep.run(grid, directory=folder, saving=Saving(stop=stop), on_event=stop_after(stop, label, 6))
    assert sorted(each.name for each in (folder / "checkpoints" / label).iterdir()) == ["program_0", "program_1"]

    def again(*_: Any, **__: Any) -> Any:
        raise AssertionError("standalone models are trained again")

    monkeypatch.setattr(conductor, "standalone_sweep", again)
    sweep.run(grid, directory=folder, resume=True)
    assert_same(folder, tmp_path / "whole")
    goes_on = [each for each in messages(folder) if each.startswith("goes on")]
    assert goes_on == [f"goes on after round {round} of 4, from a checkpoint" for round in (4, 2)]
