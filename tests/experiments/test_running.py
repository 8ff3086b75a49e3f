"""What a run gives out while it goes on: to callbacks that a config names, and to a process that goes on later."""

from __future__ import annotations

import json
import pathlib
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import xarray as xr

from fljax import config as configuration
from fljax.config.reading import parse_grid
from fljax.engine import Block
from fljax.engine.callbacks import CALLBACKS
from fljax.engine.checkpoints import Stopped, StopRequest
from fljax.experiments import conductor, run, sweep
from fljax.experiments.conductor import CallbackBuilder, Saving
from fljax.experiments.inputs.setup import CallbackSetup
from fljax.results import folders
from fljax.results.events import Event, EventLog
from tests.engine.callbacks.blocks import block
from tests.toys.configs import BASE, build

pytestmark = pytest.mark.usefixtures("quick_compilation")

MINE = """
import json

def noted(*, folder, label, seeds, rounds, path, times=1):
    def callback(block):
        with open(path, "a") as file:
            file.write(json.dumps([label, block.round, list(seeds), rounds, times]) + "\\n")
        return label == "incfl" and block.round >= 2
    return callback

def broken():
    return None
"""


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_callbacks.py").write_text(MINE)
    yield tmp_path
    sys.modules.pop("my_callbacks", None)


def parsed(*callbacks: dict[str, Any], **options: Any) -> configuration.Config:
    return configuration.parse(BASE | {"callbacks": list(callbacks)}, name="tiny", **options)


@pytest.mark.in_turn
def test_a_callback_of_ones_own(here: pathlib.Path):
    config = parsed({"name": "my_callbacks:noted", "path": "notes", "times": 3})
    assert configuration.parse(tomllib.loads(configuration.dumps(config))) == config
    outcome = run.run(config)
    lines = [json.loads(line) for line in (here / "notes").read_text().splitlines()]
    assert lines == [["fedavg", 2, [0, 1], 4, 3], ["fedavg", 4, [0, 1], 4, 3], ["incfl", 2, [0, 1], 4, 3]]
    # What it answers counts.
    assert outcome.metrics["rounds_done"].sel(algorithm=["fedavg", "incfl"]).values.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        ({"name": "tensorbord"}, "callbacks.tensorbord: expected one of the callbacks tensorboard, got 'tensorbord'"),
        ({"name": "tensorboard", "by_seeds": True}, "callbacks.tensorboard: expected one of the options by_seed, got"),
        ({"name": "tensorboard", "by_seed": 3}, "callbacks.tensorboard.by_seed: expected true or false, got 3"),
        ({"by_seed": True}, "callbacks.0.name: expected a value"),
    ],
)
def test_names_and_options(callback: dict[str, Any], message: str):
    with pytest.raises(configuration.ConfigError, match=message):
        parsed(callback)


def test_import_paths_may_be_refused(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(configuration.ConfigError, match="import paths are refused here"):
        parsed({"name": "my_callbacks:noted", "path": "notes"}, imports=False)
    assert "my_callbacks" not in sys.modules
    config = parsed({"name": "my_callbacks:noted", "path": "notes"})
    monkeypatch.setenv("FLJAX_NO_IMPORT", "1")
    with pytest.raises(configuration.ConfigError, match="import paths are refused here"):
        parsed({"name": "my_callbacks:noted", "path": "notes"})
    with pytest.raises(ValueError, match="import paths are refused here"):  # a copy has its names resolved anew
        run.run(config.model_copy(update={"seeds": (3,)}))


@pytest.mark.in_turn
def test_what_makes_no_callback(here: pathlib.Path):
    with pytest.raises(ValueError, match="expected broken to make a callback, a function of a Block, got None"):
        run.run(parsed({"name": "my_callbacks:broken"}))


def test_what_is_missing_is_said_before_anything_is_computed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    told: list[Any] = []
    with pytest.raises(ValueError, match="expected the package tensorboardX"):
        run.run(parsed({"name": "tensorboard"}), directory=tmp_path, on_event=told.append)
    assert {event.stage for event in told} == {"data"}


@pytest.mark.in_turn
def test_event_files_lie_in_the_run_folder(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    tensorboard = CallbackSetup(CALLBACKS["tensorboard"], {"by_seed": False})
    run.run(parsed(), directory=tmp_path, callbacks=[tensorboard])
    found = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("events.out*"))
    assert found == ["tensorboard/fedavg/mean", "tensorboard/incfl/mean"]
    with pytest.raises(ValueError, match="expected a run folder for the event files of TensorBoard, got none"):
        run.run(parsed(), callbacks=[tensorboard])


@pytest.mark.thorough
def test_cells_of_a_sweep(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    raw = BASE | {"callbacks": [{"name": "tensorboard"}], "sweep": {"grid": {"local.learning_rate": [0.1, 0.2]}}}
    sweep.run(parse_grid(raw, name="tiny"), directory=tmp_path)
    cells = sorted(path.name for path in (tmp_path / "tensorboard" / "incfl").iterdir())
    assert cells == ["cell_0", "cell_1"]


def test_all_callbacks_are_called_even_if_one_stops_the_run():
    seen: list[tuple[str, int]] = []

    def build(label: str) -> Any:
        def callback(block: Block) -> bool:
            seen.append((label, block.round))
            return True

        return callback

    builder = CallbackBuilder(None, EventLog(), callbacks=[CallbackSetup(build), CallbackSetup(build)])
    callbacks = builder.callback("a")
    assert callbacks(block({"ipr_loss": [0.5, 0.5]}, round=0, ran=0)) is False  # neither is called at the start
    assert callbacks(block({"ipr_loss": [0.5, 0.5]})) is True
    assert seen == [("a", 4), ("a", 4)]


def assert_same(one: pathlib.Path, other: pathlib.Path) -> None:
    for found, expected in zip(folders.load_results(one), folders.load_results(other), strict=True):
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


@pytest.mark.in_turn
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


@pytest.mark.in_turn
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
