"""One callback for every tracker, and TensorBoard's event files, read back record by record."""

from __future__ import annotations

import pathlib
import struct
import sys
from typing import Any

import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.callbacks import track, write_events
from fljax.training import Local
from tests.engine.callbacks.blocks import block
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression


class Log:
    """A run as W&B has it."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, values))


def test_names_and_steps():
    run = Log()
    track(run, label="incfl")(block({"ipr_loss": [0.25, 0.75]}, seeds=(0, 7)))
    ((step, values),) = run.logged
    assert step == 4
    assert values == {
        "incfl/mean/ipr_loss": 0.5,
        "incfl/seed_0/ipr_loss": 0.25,
        "incfl/seed_7/ipr_loss": 0.75,
        "incfl/round": 4,
        "incfl/seconds": 2.0,
    }


def test_without_a_label_and_seeds():
    run = Log()
    track(run, by_seed=False)(block({"ipr_loss": [0.25, np.nan]}))
    assert run.logged == [(4, {"mean/ipr_loss": 0.25, "round": 4, "seconds": 2.0})]


def test_without_a_step_several_algorithms_share_a_run():
    run = Log()
    track(run, label="a", with_step=False)(block({"ipr_loss": [0.25, 0.25]}))
    ((step, values),) = run.logged
    assert (step, values["a/round"]) == (None, 4)


@pytest.mark.parametrize("method", ["log", "log_metrics", "track"])
def test_other_trackers_have_other_names_for_it(method: str):
    calls: list[Any] = []

    class Run:
        pass

    setattr(Run, method, lambda self, values, step: calls.append((step, values)))
    track(Run(), by_seed=False)(block({"ipr_loss": [0.5, 0.5]}))
    assert calls == [(4, {"mean/ipr_loss": 0.5, "round": 4, "seconds": 2.0})]


@pytest.mark.in_turn
def test_in_simulate():
    run, local = Log(), Local(0.2, batch_size=2, steps=3)
    algorithm = fedavg(logistic_regression(), local, clients_per_round=3)
    result = engine.simulate(
        algorithm, tiny_federation(), rounds=4, evaluate_every=2, seeds=(5, 9), callbacks=[track(run, label="fedavg")]
    )
    assert [step for step, _ in run.logged] == [0, 2, 4]
    average = result.metrics["average_accuracy"]
    for step, values in run.logged:
        own = average.sel(evaluated_round=step)
        np.testing.assert_allclose(values["fedavg/mean/average_accuracy"], own.mean(), rtol=1e-5)
        np.testing.assert_allclose(values["fedavg/seed_9/average_accuracy"], own.sel(seed=9), rtol=1e-5)


def events(folder: pathlib.Path) -> list[Any]:
    """The events of all files of a folder, in the order in which they were written."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    crc = pytest.importorskip("tensorboardX.record_writer").masked_crc32c
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            record = content[at + 12 : at + 12 + size]
            assert struct.unpack_from("<I", content, at + 8)[0] == crc(content[at : at + 8])
            assert struct.unpack_from("<I", content, at + 12 + size)[0] == crc(record)
            found.append(event_pb2.Event.FromString(record))
            at += 16 + size
    return found


def scalars(folder: pathlib.Path) -> list[tuple[int, str, float]]:
    """``(step, tag, value)`` of a folder."""
    return [(event.step, each.tag, each.simple_value) for event in events(folder) for each in event.summary.value]


def test_means_and_seeds_are_curves_of_one_picture(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    callback = write_events(tmp_path, label="incfl")
    callback(block({"ipr_loss": [0.25, 0.75], "average_loss": [np.nan, np.inf]}, round=0, ran=0))
    callback(block({"ipr_loss": [0.5, np.nan], "average_loss": [1.0, 3.0]}))
    assert scalars(tmp_path / "incfl" / "mean") == [
        (0, "ipr_loss", 0.5),
        (4, "ipr_loss", 0.5),
        (4, "average_loss", 2.0),
    ]
    assert scalars(tmp_path / "incfl" / "seed_1") == [(0, "ipr_loss", 0.75), (4, "average_loss", 3.0)]
    assert sorted(path.name for path in (tmp_path / "incfl").iterdir()) == ["mean", "seed_0", "seed_1"]


def test_cells_of_a_sweep_have_folders(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    write_events(tmp_path, label="a", cells=(3, 4), by_seed=False)(block({"ipr_loss": [0.5, 0.25]}, seeds=(0, 0)))
    assert scalars(tmp_path / "a" / "cell_4" / "mean") == [(4, "ipr_loss", 0.25)]


def test_labels_are_names_of_folders(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    write_events(tmp_path, label="../q=1", by_seed=False)(block({"ipr_loss": [0.5, 0.25]}))
    assert [path.name for path in tmp_path.iterdir()] == ["..%2Fq%3D1"]


def test_a_run_that_goes_on_hides_what_it_repeats(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        write_events(tmp_path, by_seed=False)(block({"ipr_loss": [0.5, 0.25]}))
    assert len(list((tmp_path / "mean").iterdir())) == 2
    begun = [event for event in events(tmp_path / "mean") if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in begun] == [(4, 1), (4, 1)]


def test_without_tensorboardx_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"expected the package tensorboardX, .*pip install 'fljax\[tensorboard\]'"):
        write_events(tmp_path)


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    callback = write_events(tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        callback(block({"ipr_loss": [0.5, 0.25]}))
    callback(block({"ipr_loss": [0.5, 0.25]}))


class Strict(Log):
    """As W&B: what has an earlier step is dropped."""

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        assert step >= max([-1, *(step or 0 for step, _ in self.logged)])
        super().log(values, step)


@pytest.mark.parametrize("label", ["", "mine", "a"])
def test_one_tracker_for_several_algorithms_mixes_nothing(label: str, tmp_path: pathlib.Path):
    """Drawn as ``compare`` calls it: algorithm by algorithm, rounds from 0; one of them ends early."""
    run, other = Strict(), Log()
    other.log_metrics, other.log = other.log, None  # type: ignore[attr-defined, method-assign, assignment]
    pytest.importorskip("tensorboardX")
    callbacks = [track(run, label=label), track(other, label=label), write_events(tmp_path, label=label)]
    for name, rounds in (("a", (0, 4, 8)), ("b", (0, 4)), ("c/d", (0, 4, 8))):
        for round in rounds:
            for callback in callbacks:
                callback(block({"ipr_loss": [0.25, 0.5]}, round=round)._replace(label=name))
    names = [name for _, values in run.logged for name in values if name.endswith("mean/ipr_loss")]
    assert [names.count(name) for name in dict.fromkeys(names)] == [3, 2, 3]
    assert [step for step, _ in run.logged] == [0, 4, 8, 9, 13, 14, 18, 22]
    assert [step for step, _ in other.logged] == [0, 4, 8, 0, 4, 0, 4, 8]  # MLflow has steps of each name
    assert len({path.parent for path in tmp_path.rglob("events*")}) == 9


def test_runs_one_after_another_with_trackers_of_their_own():
    run = Strict()
    for name in ("a", "b"):
        callback = track(run, label=name)
        for round in (0, 4):
            callback(block({"ipr_loss": [0.25, 0.5]}, round=round))
    assert [step for step, _ in run.logged] == [0, 4, 5, 9]


def test_cells_of_a_sweep_have_names_of_their_own():
    """Also in ``sweep``, whose blocks have no numbers of cells."""
    for cells, names in (((), ["cell_0", "cell_1"]), ((3, 5), ["cell_3", "cell_5"])):
        run, both = Log(), block({"ipr_loss": [0.25, 0.75, 0.5, 1.0]}, seeds=(0, 1, 0, 1))
        track(run, by_seed=False)(both._replace(cells=cells))
        assert run.logged[0][1] | {"round": 4, "seconds": 2.0} == run.logged[0][1]
        assert [run.logged[0][1][f"{name}/mean/ipr_loss"] for name in names] == [0.5, 0.75]
