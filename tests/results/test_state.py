"""The state of a run, from its folder."""

from __future__ import annotations

import json
import os
import pathlib
import time
from typing import Any

import pytest

from fljax import config as configuration
from fljax import report
from fljax.cli import main
from fljax.cli.commands.results import headline
from fljax.cli.commands.results import progress_table as watched
from fljax.report.page import as_dataset, live_page
from fljax.results import Line, append, best_cell, folders, is_running, read_lines, read_state
from fljax.results.events import Event
from tests.experiments.test_run import BASE

TEXT = configuration.dumps(configuration.parse(BASE | {"rounds": 100}, name="tiny"))


def write_log(folder: pathlib.Path, *events: tuple[Any, ...], older: bool = False) -> None:
    """Appends events ``(stage, label, round, rounds, seconds, message, unit, kind)``."""
    with open(folder / "log.jsonl", "a") as file:
        for event in events:
            told = Event(*event)._asdict()
            if older:  # an older fljax wrote no kind
                del told["kind"]
            file.write(json.dumps(told) + "\n")


def line(label: str, round: int, value: float, cells: tuple[int, ...] = (), seeds: tuple[int, ...] = (0, 1)) -> Line:
    metrics = {"average_accuracy": [value] * (len(seeds) - 1) + [value + 0.1], "average_loss": [1.0] * len(seeds)}
    return Line(label, round, 100, 1.5, seeds, cells, (), metrics)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run whose first algorithm is done and whose second one has trained 40 of 100 rounds, ten in a second."""
    (tmp_path / "config.toml").write_text(TEXT)
    (tmp_path / "run.lock").touch()
    write_log(
        tmp_path,
        ("data", "", 0, 0, 0.1, "blobs: 100 examples"),
        ("standalone", "", 0, 100, 0.2, "training 8 standalone models per seed"),
        ("train", "fedavg", 0, 100, 1.0, ""),
        ("train", "fedavg", 100, 100, 9.0, ""),
        ("saved", "fedavg", 100, 100, 9.1, ""),
        ("train", "incfl", 0, 100, 9.2, ""),
        ("train", "incfl", 20, 100, 15.0, ""),
        ("train", "incfl", 40, 100, 17.0, ""),
    )
    for each in (line("fedavg", 0, 0.1), line("fedavg", 100, 0.8), line("incfl", 0, 0.1), line("incfl", 40, 0.5)):
        append(tmp_path, each)
    return tmp_path


def test_a_run_that_goes_on(folder: pathlib.Path):
    with folders.claim(folder, TEXT, resume=True):
        assert is_running(folder)
        write_log(folder, ("train", "incfl", 40, 100, 17.0, ""))
        state = read_state(folder)
        assert "tiny: running for 17 s, about 6 s left" in headline(state)
        page = live_page(folder, state, 5)
    first, second = state.algorithms
    assert (first.label, first.state, first.round) == ("fedavg", "done", 100)
    assert first.metrics["average_accuracy"] == pytest.approx(0.85)
    assert (second.state, second.round, second.rounds, second.rate, second.evaluated) == ("training", 40, 100, 10.0, 40)
    assert state.left == second.left == pytest.approx(6.0, abs=1.0)
    assert not state.finished
    assert '<meta http-equiv="refresh" content="5">' in page
    assert "About 6 s left" in page
    assert page.count("<img") == 2  # the average accuracy and loss
    assert not is_running(folder)


def test_of_worth_runs_are_counted(folder: pathlib.Path):
    """Also where a run has had the folder before: its rounds and evaluations are another matter."""
    write_log(
        folder,
        ("note", "fedavg", 0, 16, 0.1, "8 coalitions, 16 runs", "runs"),
        ("note", "incfl", 0, 16, 0.1, "8 coalitions, 16 runs", "runs"),
        ("train", "fedavg", 4, 16, 2.0, "", "runs"),
        ("train", "fedavg", 10, 16, 5.0, "", "runs"),
    )
    with folders.claim(folder, TEXT, resume=True):
        state = read_state(folder)
        page = live_page(folder, state, 5)
    first, second = state.algorithms
    assert state.unit == "runs"
    assert (first.state, first.round, first.rounds, first.rate) == ("training", 10, 16, 2.0)
    assert (first.evaluated, first.metrics) == (None, {})
    assert (second.state, second.round, second.rounds) == ("waiting", 0, 16)
    assert state.left == pytest.approx(3.0 + 8.0, abs=1.0)
    assert "<th>Runs per second</th>" in page
    assert "<img" not in page
    table = watched(state)
    assert [column.header for column in table.columns] == ["algorithm", "state", "run", "runs/s", "left"]
    assert next(iter(table.columns[3].cells)) == "2"
    write_log(folder, ("saved", "fedavg", 16, 16, 8.0, "", "runs"))
    assert [(each.state, each.round) for each in read_state(folder).algorithms] == [("done", 16), ("unfinished", 0)]


def test_algorithms_that_wait_take_as_long(folder: pathlib.Path):
    three = [{"name": name} for name in ("fedavg", "incfl", "qffl")]
    config = configuration.dumps(configuration.parse(BASE | {"rounds": 100, "algorithms": three}, name="tiny"))
    (folder / "config.toml").write_text(config)
    with folders.claim(folder, config, resume=True):
        state = read_state(folder)
    assert [each.state for each in state.algorithms] == ["done", "training", "waiting"]
    assert state.left == pytest.approx(16.0, abs=1.0)


@pytest.mark.parametrize("older", [False, True])
def test_a_run_that_ended(folder: pathlib.Path, older: bool):
    state = read_state(folder)
    assert [each.state for each in state.algorithms] == ["done", "unfinished"]
    assert headline(state) == "tiny: ended before it was finished"
    words = "stopped after round 40 of 100: average_loss has not improved in 5 evaluations"
    stopped = ("note", "incfl", 40, 100, 17.1, words, "rounds", "stopped")
    write_log(folder, stopped, ("saved", "incfl", 100, 100, 17.2, ""), older=older)
    state = read_state(folder)
    assert [(each.state, each.round) for each in state.algorithms] == [("done", 100), ("stopped early", 40)]
    assert headline(state) == "tiny: finished"


@pytest.mark.parametrize("name", ["round", "rounds", "seconds", "label", "message"])
def test_events_and_lines_of_another_kind_are_left_out(folder: pathlib.Path, name: str):
    before, lines, page = read_state(folder), read_lines(folder), live_page(folder, read_state(folder))
    for file in ("log.jsonl", "metrics.jsonl"):
        last = json.loads((folder / file).read_text().splitlines()[-1])
        with open(folder / file, "a") as log:
            log.write(json.dumps({**last, name: 1 if isinstance(last.get(name), str) else "a"}) + "\n")
    assert read_state(folder).algorithms == before.algorithms
    assert read_lines(folder) == lines
    assert live_page(folder, read_state(folder)) == page


def test_before_training(tmp_path: pathlib.Path):
    with folders.claim(tmp_path, TEXT):
        write_log(tmp_path, ("standalone", "", 0, 100, 0.2, "training 8 standalone models per seed"))
        state = read_state(tmp_path)
        assert headline(state) == "tiny: running for 0 s, training 8 standalone models per seed"
        assert state.left is None
        past = time.time() - 100
        os.utime(tmp_path / "log.jsonl", (past, past))
        words = headline(read_state(tmp_path))
        assert words.startswith("tiny: running for 1 min 40 s, training 8 standalone models per seed, ")
        assert words.endswith("nothing new for 1 min 40 s")
        assert "Now: training 8 standalone models per seed." in live_page(tmp_path, state, 5)


@pytest.mark.parametrize("older", [False, True])
def test_a_resumed_run_counts_seconds_anew(folder: pathlib.Path, older: bool):
    write_log(
        folder,
        ("note", "fedavg", 100, 100, 0.1, "already in the results, not repeated", "rounds", "done"),
        ("train", "incfl", 0, 100, 0.5, ""),
        older=older,
    )
    with folders.claim(folder, TEXT, resume=True):
        first, second = read_state(folder).algorithms
    assert (first.state, second.state, second.round, second.rate) == ("done", "training", 0, None)


def test_what_is_no_run(tmp_path: pathlib.Path):
    with pytest.raises(ValueError, match=r"expected the folder of a run, with config.toml and log.jsonl, got"):
        read_state(tmp_path)
    assert not is_running(tmp_path)


def test_the_best_cell_of_a_sweep(folder: pathlib.Path):
    cells = (2, 2, 5, 5)
    metrics = {"average_accuracy": [0.1, 0.3, 0.5, None], "average_loss": [1.0, 1.0, 2.0, 2.0]}
    lines = [Line("incfl", 50, 100, 0.0, (0, 1, 0, 1), cells, (), metrics)]
    assert best_cell(lines, "average_accuracy") == 5
    assert best_cell(lines, "average_loss") == 2
    assert best_cell([line("a", 0, 0.5)], "average_accuracy") is None
    found = as_dataset(lines, read_state(folder))
    assert found["algorithm"].values.tolist() == ["incfl, cell 5"]
    assert found["average_accuracy"].sel(seed=0).values.tolist() == [[0.5]]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    written = capsys.readouterr()
    return stopped.value.code, written.out, written.err


def test_watch_once(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    with folders.claim(folder, TEXT, resume=True):
        code, out, _ = call(capsys, "watch", str(folder), "--once")
    assert code == 0
    assert "tiny: running for" in out
    row = next(each for each in out.splitlines() if "incfl" in each)
    for word in ("training", "40 of 100", "10", "after 40", "0.550"):
        assert word in row
    code, out, _ = call(capsys, "watch", str(folder), "--json")
    assert json.loads(out)["algorithms"][1]["state"] == "unfinished"


def test_watch_and_live_page_say_which_seeds_diverged(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    assert "diverged" not in call(capsys, "watch", str(folder), "--once")[1]
    append(folder, line("incfl", 50, 0.5)._replace(diverged=((1, 44),)))
    row = next(each for each in call(capsys, "watch", str(folder), "--once")[1].splitlines() if "incfl" in each)
    assert "1 of 2" in row
    fedavg, incfl = json.loads(call(capsys, "watch", str(folder), "--json")[1])["algorithms"]
    assert (fedavg["diverged"], incfl["diverged"]) == ("", "1 of 2 seeds, round 44")
    assert live_page(folder, read_state(folder)).count("1 of 2 seeds, round 44") == 1


def test_diverged_runs_of_a_sweep_are_counted_over_its_cells(folder: pathlib.Path):
    for cells, gone in (((0, 0, 1, 1), ((0, 3),)), ((2, 2), ((0, 7), (1, 5)))):
        seeds = (0, 1) * (len(cells) // 2)
        append(folder, line("incfl", 50, 0.5, cells, seeds)._replace(diverged=gone))
    lines = [each for each in read_lines(folder) if each.cells]
    (folder / "metrics.jsonl").write_text("")
    for each in lines:
        append(folder, each)
    assert read_state(folder).algorithms[1].diverged == "3 of 6 runs, from round 3"


def test_watch_ends_with_the_run(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    assert call(capsys, "watch", str(folder))[0] == 0


def test_watch_says_what_it_expects(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    code, _, err = call(capsys, "watch", str(tmp_path))
    assert code == 2
    assert "expected the folder of a run" in err


def test_the_live_page_of_a_run_that_has_ended(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    assert call(capsys, "report", str(folder), "--live")[0] == 0
    page = (folder / "report.html").read_text()
    assert "The run ended before it was finished." in page
    assert "http-equiv" not in page
    assert call(capsys, "report", str(folder), str(folder), "--live")[0] == 2


@pytest.mark.in_turn
def test_the_page_follows_a_run(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """It is written while the lock is held, and once more at the end."""
    pages: list[str] = []
    with folders.claim(folder, TEXT, resume=True):
        running = iter([True, False])
        monkeypatch.setattr("fljax.report.page.is_running", lambda _: next(running))
        states = iter([read_state(folder), read_state(folder)._replace(running=False)])
    monkeypatch.setattr("fljax.report.page.read_state", lambda _: next(states))
    monkeypatch.setattr("fljax.report.page._replace", lambda path, text: pages.append(text))
    assert report.follow(folder, pause=1.0) == folder / "report.html"
    assert ["http-equiv" in page for page in pages] == [True, False]


def test_lines_of_the_folder(folder: pathlib.Path):
    assert [(each.label, each.round) for each in read_lines(folder)] == [
        ("fedavg", 0),
        ("fedavg", 100),
        ("incfl", 0),
        ("incfl", 40),
    ]


def test_runs_of_another_command_in_the_same_folder_are_not_taken_for_those_of_this_one(tmp_path: pathlib.Path):
    """``fljax worth`` has finished here, and ``fljax certify`` begins."""
    (tmp_path / "config.toml").write_text(TEXT)
    write_log(
        tmp_path,
        ("train", "fedavg", 8, 8, 5.0, "", "runs"),
        ("saved", "fedavg", 8, 8, 5.1, "", "runs"),
        ("saved", "incfl", 8, 8, 9.1, "", "runs"),
        ("note", "fedavg", 0, 700, 0.1, "14 deviations, 700 runs", "runs"),
        ("note", "incfl", 0, 900, 0.2, "18 deviations, 900 runs", "runs"),
        ("train", "fedavg", 100, 700, 2.0, "", "runs"),
    )
    with folders.claim(tmp_path, TEXT, resume=True):
        first, second = read_state(tmp_path).algorithms
    assert (first.state, first.round, first.rounds) == ("training", 100, 700)
    assert (second.state, second.round, second.rounds) == ("waiting", 0, 900)
