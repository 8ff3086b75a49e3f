"""``metrics.jsonl``: written as it happens, and read back."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import xarray as xr

from fljax.experiments.conductor import CallbackBuilder
from fljax.results import Line, Results, append, read_lines
from fljax.results.events import Event, EventLog
from tests.engine.callbacks.blocks import block


def line(label: str, round: int, value: float | None = 0.5, cells: tuple[int, ...] = ()) -> Line:
    return Line(label, round, 100, 1.5, (0, 1), cells, (), {"average_accuracy": [value, 0.25]})


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_lines_come_back(tmp_path: pathlib.Path):
    written = [line("a", 0), line("a", 10, None), line("b", 0)]
    for each in written:
        append(tmp_path, each)
    assert read_lines(tmp_path) == written
    assert read_lines(tmp_path / "nothing") == []


def test_what_a_resumed_run_repeats_replaces_what_was_there(tmp_path: pathlib.Path):
    for at, value in ((0, 0.1), (10, 0.2), (20, 0.3), (30, 0.4), (20, 0.6), (30, 0.7)):
        append(tmp_path, line("a", at, value))
    found = read_lines(tmp_path)
    assert [(each.round, each.metrics["average_accuracy"][0]) for each in found] == [
        (0, 0.1),
        (10, 0.2),
        (20, 0.6),
        (30, 0.7),
    ]


def test_groups_of_cells_are_apart(tmp_path: pathlib.Path):
    written = [line("a", 0, cells=(0, 0)), line("a", 10, cells=(0, 0)), line("a", 0, cells=(1, 1))]
    for each in written:
        append(tmp_path, each)
    assert read_lines(tmp_path) == written


def test_a_line_that_a_dead_process_left_is_passed_over(tmp_path: pathlib.Path):
    append(tmp_path, line("a", 0))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"label": "a", "rou')
    assert read_lines(tmp_path) == [line("a", 0)]
    append(tmp_path, line("a", 10))
    assert read_lines(tmp_path) == [line("a", 0), line("a", 10)]


def test_every_evaluation_is_a_line_of_valid_json(tmp_path: pathlib.Path):
    callback = CallbackBuilder(tmp_path, EventLog()).callback("incfl")
    callback(block({"average_accuracy": [0.5, np.nan], "average_loss": [np.inf, 1.0]}, round=0, ran=0))
    callback(block({"average_accuracy": [0.75, 0.5]}, round=4))
    first, second = map(strict, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["label"], first["round"], first["rounds"], first["seeds"]) == ("incfl", 0, 8, [0, 1])
    assert first["metrics"] == {"average_accuracy": [0.5, None], "average_loss": [None, 1.0]}
    assert second["metrics"] == {"average_accuracy": [0.75, 0.5]}


def test_runs_of_a_sweep_have_cells(tmp_path: pathlib.Path):
    callback = CallbackBuilder(tmp_path, EventLog()).callback("incfl", cells=[2, 5])
    callback(block({"average_accuracy": [0.1, 0.2, 0.3, 0.4]}, seeds=(0, 1, 0, 1)))
    (found,) = read_lines(tmp_path)
    assert (found.cells, found.seeds) == ((2, 2, 5, 5), (0, 1, 0, 1))


def test_without_a_folder_nothing_is_written():
    assert CallbackBuilder(None, EventLog()).callback("a")(block({"average_accuracy": [0.5, 0.5]})) is False


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: pathlib.Path):
    told: list[Event] = []
    builder = CallbackBuilder(tmp_path / "missing", EventLog(None, told.append))
    callback = builder.callback("a")
    callback(block({"average_accuracy": [0.5, 0.5]}))
    callback(block({"average_accuracy": [0.5, 0.5]}))
    ((stage, label, round, rounds, _, words, *_),) = told
    assert (stage, label, round, rounds) == ("note", "a", 4, 8)
    assert words.startswith("metrics.jsonl cannot be written (No such file or directory)")


def baseline(rounds: tuple[int, ...], accuracy: Any) -> Results:
    dims = ("seed", "evaluated_round", "client")
    coordinates = {"seed": [0, 1], "evaluated_round": list(rounds), "client": [0, 1]}
    return Results(xr.Dataset({"test_accuracy": (dims, np.asarray(accuracy, float))}, coordinates), xr.Dataset())


def test_gains_over_the_first_algorithm(tmp_path: pathlib.Path):
    parts = {"fedavg": baseline((0, 4), [[[0, 0], [0.5, 0.5]], [[0, 0], [0.25, 0.25]]])}
    callback = CallbackBuilder(tmp_path, EventLog()).callback("ditto", parts)
    callback(block({"test_accuracy": [[0.75, 0.25], [0.5, 0.5]]}))
    (found,) = read_lines(tmp_path)
    assert found.metrics == {"average_gain": [0.0, 0.25], "opt_outs": [1.0, 0.0], "participation_rate": [0.5, 1.0]}


def test_opt_outs_are_those_of_the_results(tmp_path: pathlib.Path):
    parts = {"fedavg": baseline((0, 4), [[[0, 0], [0.5, 0.5]], [[0, 0], [0.25, 0.25]]])}
    callback = CallbackBuilder(tmp_path, EventLog(), opt_out_threshold=(0.25, 0.3)).callback("ditto", parts)
    callback(block({"test_accuracy": [[0.75, 0.25], [0.5, 0.5]]}))
    assert read_lines(tmp_path)[0].metrics["opt_outs"] == [1.0, 1.0]


def test_a_baseline_that_ended_earlier_is_compared_with_at_its_end(tmp_path: pathlib.Path):
    nothing = [np.nan, np.nan]
    parts = {"fedavg": baseline((0, 2, 4), [[[0, 0], [0.5, 0.5], nothing], [[0, 0], [0.25, 0.25], nothing]])}
    callback = CallbackBuilder(tmp_path, EventLog()).callback("ditto", parts)
    callback(block({"test_accuracy": [[0.75, 0.25], [0.5, 0.5]]}))
    assert read_lines(tmp_path)[0].metrics["average_gain"] == [0.0, 0.25]


def test_the_first_algorithm_gains_nothing_over_itself(tmp_path: pathlib.Path):
    callback = CallbackBuilder(tmp_path, EventLog()).callback("fedavg", {})
    callback(block({"test_accuracy": [[0.75, 0.25], [0.5, 0.5]]}))
    assert read_lines(tmp_path)[0].metrics["average_gain"] == [0.0, 0.0]


def test_a_listener_that_is_empty_is_a_listener():
    class Collector(list):
        def __call__(self, event: Event) -> None:
            self.append(event)

    collector = Collector()
    EventLog(None, collector).note("words")
    assert [event.message for event in collector] == ["words"]
