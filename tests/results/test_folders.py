"""Run folders: claimed by one process, of one config, written as wholes."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import config as configuration
from fljax.cli import running
from fljax.results import Results, folders, join
from fljax.results.events import Event, EventLog
from fljax.results.identity import difference
from tests.refusals import refuses
from tests.toys.configs import build, results, text


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run folder with the results of the first of two algorithms."""
    directory = tmp_path / "run"
    with folders.claim(directory, text()):
        folders.save_results(directory, results("fedavg"), text())
    return directory


def resume(directory: pathlib.Path, config: configuration.Config | None = None) -> folders.OpenFolder:
    with folders.claim(directory, text(config), resume=True) as claimed:
        return claimed


# --- One process, one config --------------------------------------------------------------------------------


def test_what_is_saved_is_resumed(folder: pathlib.Path) -> None:
    metrics, records = results("fedavg")
    finished = resume(folder).finished
    assert list(finished) == ["fedavg"]
    assert finished["fedavg"][0].equals(metrics.sel(algorithm="fedavg", drop=True))
    assert finished["fedavg"][1].equals(records.sel(algorithm="fedavg", drop=True))
    names = {"run.lock", "config.toml", "environment.json", "results.nc", "metrics.csv"}
    assert {each.name for each in folder.iterdir()} == names


@pytest.mark.in_turn
def test_a_config_of_any_length_is_kept(tmp_path: pathlib.Path) -> None:
    """Attributes of HDF5 end at 64 kB."""
    trace = [[1.0] * 6] * 3000
    long = build(scenarios=[{"name": "availability", "trace": trace}])
    with folders.claim(tmp_path, text(long)):
        folders.save_results(tmp_path, results("fedavg"), text(long))
    assert len((tmp_path / "config.toml").read_text()) > 80_000
    assert list(resume(tmp_path, long).finished) == ["fedavg"]


@pytest.mark.in_turn
def test_a_folder_has_one_writer(folder: pathlib.Path) -> None:
    with folders.claim(folder, text(), resume=True):
        before = {each.name: each.stat().st_mtime_ns for each in folder.iterdir()}
        for again in (True, False):
            with (
                pytest.raises(ValueError, match="expected a folder that no other process writes to"),
                folders.claim(folder, text(), resume=again),
            ):
                pass
        assert {each.name: each.stat().st_mtime_ns for each in folder.iterdir()} == before
    assert list(resume(folder).finished) == ["fedavg"]  # free again


def test_results_are_never_overwritten(folder: pathlib.Path) -> None:
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(ValueError, match=r"expected a folder without results, or --resume, got .* holds results\.nc"):
        folders.claim(folder, text()).__enter__()
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    (folder / "results.nc").unlink()
    refuses(lambda: folders.claim(folder, text()).__enter__(), r"which holds metrics\.csv")


def test_a_run_that_died_before_its_first_result_may_begin_anew(tmp_path: pathlib.Path) -> None:
    with folders.claim(tmp_path, text()):
        EventLog(tmp_path).note("of the first")
    with folders.claim(tmp_path, text(build(rounds=6))) as claimed:
        assert claimed == folders.OpenFolder({})
        EventLog(tmp_path).note("of the second")
    assert (tmp_path / "config.toml").read_text() == configuration.dumps(build(rounds=6))
    assert [json.loads(line)["message"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [
        "of the second"
    ]


def test_a_config_of_the_user_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    """``fljax run config.toml --out .``"""
    (tmp_path / "config.toml").write_text("# mine\nrounds = 4\n")
    with pytest.raises(ValueError, match=r"expected a folder without a config\.toml that no run wrote"):
        folders.claim(tmp_path, text()).__enter__()
    assert (tmp_path / "config.toml").read_text() == "# mine\nrounds = 4\n"


@pytest.mark.in_turn
@pytest.mark.parametrize("written", [None, "same", "another"])
def test_results_of_another_config_are_never_adopted(folder: pathlib.Path, written: str | None) -> None:
    """Whatever config.toml says, and also where there is none."""
    other = build(rounds=6)
    texts = {"same": configuration.dumps(build()), "another": configuration.dumps(other)}
    if written is None:
        (folder / "config.toml").unlink()
    else:
        (folder / "config.toml").write_text(texts[written])
    before = (folder / "results.nc").read_bytes()
    refuses(lambda: resume(folder, other), r"expected the config of the results in .* rounds is 4 there and 6 here")
    assert (folder / "results.nc").read_bytes() == before
    if written == "another":
        refuses(lambda: resume(folder), r"of one run, got another config\.toml: rounds is 4 there and 6 here")
    else:
        assert list(resume(folder).finished) == ["fedavg"]
        assert (folder / "config.toml").read_text() == texts["same"]


def test_a_run_does_not_go_on_in_a_folder_of_parts(tmp_path: pathlib.Path) -> None:
    (tmp_path / folders.PARTS).mkdir()
    (tmp_path / folders.CONFIG).write_text(text())
    refuses(lambda: resume(tmp_path), r"expected the folder of a run, got .*, which has the parts of a sweep")
    with (
        pytest.raises(ValueError, match=r"expected a folder without results, or --resume, got .*, which holds parts"),
        folders.claim(tmp_path, text()),
    ):
        pass


@pytest.mark.parametrize(
    ("there", "here", "recorded"), [("99.0", "98.1", True), ("0.1.9", "98.1", True), ("0.2.0", "0.3.0", False)]
)
def test_results_of_a_later_or_too_old_version_are_never_adopted(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, there: str, here: str, recorded: bool
) -> None:
    """That of the results, and this one; results of an earlier version need a record."""
    monkeypatch.setattr("fljax.core.version.__version__", there)
    folders.save_results(folder, results("fedavg"), text(), None if recorded else "")
    monkeypatch.setattr("fljax.core.version.__version__", here)
    refuses(lambda: resume(folder), f"expected results of fljax {here} in .* got those of fljax {there}")


def test_results_of_an_earlier_version_go_on_and_it_is_said(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fljax.core.version.__version__", "99.0")
    claimed = resume(folder)
    assert list(claimed.finished) == ["fedavg"]
    assert re.match(r"fljax 0\..* wrote the results", claimed.notes[0])


def test_results_that_do_not_say_where_they_are_from_are_never_adopted(folder: pathlib.Path) -> None:
    metrics, records = results("fedavg")
    metrics.to_netcdf(folder / "results.nc", engine="h5netcdf")
    records.to_netcdf(folder / "results.nc", engine="h5netcdf", group="records", mode="a")
    refuses(lambda: resume(folder), "that name their config, got those of an older fljax")
    assert folders.load_results(folder)[0].equals(metrics)  # still to be read


@pytest.mark.parametrize("text", [None, "", "rounds = ", "\x00\x01"])
def test_a_damaged_config_is_written_again(folder: pathlib.Path, text: str | None) -> None:
    whole = (folder / "config.toml").read_text()
    for names in ((), ("results.nc", "metrics.csv")):  # with results, and without any
        for name in names:
            (folder / name).unlink()
        (folder / "config.toml").unlink()
        if text is not None:
            (folder / "config.toml").write_text(text)
        assert list(resume(folder).finished) == ([] if names else ["fedavg"])
        assert (folder / "config.toml").read_text() == whole


def test_a_changed_config_without_results_is_refused_with_a_way_out(tmp_path: pathlib.Path) -> None:
    with folders.claim(tmp_path, text()):
        pass
    refuses(lambda: resume(tmp_path, build(rounds=6)), r"got a changed one: rounds is 4 there .* anew without --resume")


def test_what_differs() -> None:
    first, second = configuration.dumps(build()), configuration.dumps(build(rounds=6, seeds=1))
    assert difference(first, first) is None
    assert difference(first, "# a comment\n" + first) is None
    assert difference(first, second) == "seeds is [0, 1] there and [0] here; rounds differs, too"
    less = [{"name": "fedavg"}, {"name": "incfl", "eps": 0.5}]
    found = difference(configuration.dumps(build(algorithms=less)), first)
    assert found == "algorithms.1.incfl.eps is 0.5 there and not set here"
    assert difference("x = nan", "x = nan") is None
    assert difference("x = 1", "x = true") is not None


def test_metrics_csv_is_made_again(folder: pathlib.Path) -> None:
    whole = (folder / "metrics.csv").read_bytes()
    for content in (None, b"stale"):
        (folder / "metrics.csv").unlink()
        if content is not None:
            (folder / "metrics.csv").write_bytes(content)
        resume(folder)
        assert (folder / "metrics.csv").read_bytes() == whole


def test_another_environment_is_kept_and_noted(folder: pathlib.Path) -> None:
    path = folder / "environment.json"
    assert resume(folder).notes == ()
    found = json.loads(path.read_text())
    assert "earlier" not in found
    found["versions"]["jax"] = "0.0.1"
    path.write_text(json.dumps(found))
    (note,) = resume(folder).notes
    assert note == "versions are not those of the earlier results, see environment.json"
    assert [each["versions"]["jax"] for each in json.loads(path.read_text())["earlier"]] == ["0.0.1"]
    assert resume(folder).notes == ()
    assert len(json.loads(path.read_text())["earlier"]) == 1


def test_reading_what_is_finished_changes_nothing(folder: pathlib.Path) -> None:
    (folder / "metrics.csv").unlink()
    (folder / "environment.json").write_text("{}")
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    found = folders.read_finished(folder, text())
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    assert found.keys() == resume(folder).finished.keys() == {"fedavg"}
    with folders.claim(folder, text(), True):  # results are replaced as a whole, so that they can be read meanwhile
        assert folders.read_finished(folder, text()).keys() == {"fedavg"}
    refuses(lambda: folders.read_finished(folder, text(build(rounds=6))), "expected the config of the results")


# --- Files that are whole, or not there ---------------------------------------------------------------------


@pytest.mark.in_turn
def test_truncated_results_are_one_sentence(folder: pathlib.Path) -> None:
    path = folder / "results.nc"
    whole = path.read_bytes()
    for length in (0, 1, 7, 100, *range(500, len(whole) - 1, len(whole) // 20), len(whole) - 1):
        path.write_bytes(whole[:length])
        for read in (folders.load_results, resume):
            with pytest.raises(ValueError, match=r"results\.nc' to be a whole file, got a damaged one: .* remove it"):
                read(folder)
    path.write_bytes(b"\x00" * len(whole))
    refuses(lambda: folders.load_results(folder), "got a damaged one")
    # The way out that the sentence names.
    path.unlink()
    assert resume(folder).finished == {}


def test_what_cannot_be_written_leaves_what_was_there(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {each.name: each.read_bytes() for each in folder.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"expected to write results\.nc \([\d,]+ bytes\) in .* got: No space left"):
        folders.save_results(folder, results("fedavg", "incfl"), text())
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_files_are_flushed_before_they_are_moved(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content, then the name; a power failure can come at any time."""
    import os

    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    kinds = {True: "flush folder", False: "flush file"}

    def flush(descriptor: int) -> None:
        done.append(kinds[pathlib.Path(f"/proc/self/fd/{descriptor}").resolve().is_dir()])
        fsync(descriptor)

    def move(source: Any, target: Any) -> None:
        done.append(f"move {pathlib.Path(target).name}")
        replace(source, target)

    monkeypatch.setattr("os.fsync", flush)
    monkeypatch.setattr("os.replace", move)
    folders.save_results(folder, results("fedavg", "incfl"), text())
    assert done == [
        step for name in ("results.nc", "metrics.csv") for step in ("flush file", f"move {name}", "flush folder")
    ]


FULL = """
import pathlib, resource, sys
from fljax.results import folders
from tests.toys.configs import results, text
folder = pathlib.Path(sys.argv[1])
limit = (folder / "results.nc").stat().st_size + 1000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    folders.save_results(folder, results("fedavg", "incfl", size=100_000), text())
except OSError as error:
    print(error)
    sys.exit(1)
"""


@pytest.mark.thorough
def test_no_room_is_one_sentence_and_no_crash(folder: pathlib.Path) -> None:
    """HDF5 itself ends the process there."""
    found = subprocess.run([sys.executable, "-c", FULL, str(folder)], capture_output=True, text=True, check=False)
    assert found.returncode == 1, found
    assert "expected to write results.nc" in found.stdout
    assert "File too large; what was saved before is kept, --resume goes on after it" in found.stdout
    assert list(resume(folder).finished) == ["fedavg"]
    assert not list(folder.glob(".*"))


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: pathlib.Path) -> None:
    events: list[Event] = []
    (tmp_path / "log.jsonl").mkdir()
    log = EventLog(tmp_path, events.append)
    log.train("fedavg", 1, 4)
    log.tell("saved", "fedavg", 4, 4, "")
    assert [event.stage for event in events] == ["note", "train", "saved"]
    assert "cannot be written (Is a directory); the run goes on without a log" in events[0].message


def test_a_line_of_the_log_that_was_cut_off_spoils_no_other(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"stage": "tr')
    EventLog(tmp_path).note("é")
    EventLog(tmp_path).note("b")
    cut, *rest = (tmp_path / "log.jsonl").read_text().splitlines()
    assert cut == '{"stage": "tr'
    assert [json.loads(line)["message"] for line in rest] == ["é", "b"]


# --- Names of folders ---------------------------------------------------------------------------------------


def made(runs: pathlib.Path, folder: str, name: str | None = None) -> pathlib.Path:
    (runs / folder).mkdir(parents=True)
    if name is not None:
        (runs / folder / "config.toml").write_text(f'name = "{name}"\n')
    return runs / folder


def test_the_latest_run_of_exactly_this_name(tmp_path: pathlib.Path) -> None:
    first = made(tmp_path, "tiny-20261122-140000", "tiny")
    made(tmp_path, "tiny-3-20261122-150000", "tiny-3")
    made(tmp_path, "tiny-20261122-150000-20261122-160000", "tiny-20261122-150000")
    made(tmp_path, "tiny-20261122-170000", "another")  # renamed by hand
    made(tmp_path, "tiny-20261122-1800000")
    (tmp_path / "tiny-20261122-190000").write_text("a file")
    assert running.latest_run("tiny", tmp_path) == first
    made(tmp_path, "tiny-20261122-140000-2", "tiny")
    last = made(tmp_path, "tiny-20261122-140000-10")
    assert running.latest_run("tiny", tmp_path) == last
    assert running.latest_run("tiny-3", tmp_path).name == "tiny-3-20261122-150000"
    for name in ("tin", "tiny-3-20261122", "tiny.*", "t*"):
        with pytest.raises(ValueError, match="expected an earlier run of"):
            running.latest_run(name, tmp_path)


def test_runs_of_one_second_have_different_folders(tmp_path: pathlib.Path) -> None:
    found: list[pathlib.Path] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        found.append(running.new_folder("tiny", tmp_path / "runs"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8
    assert all(each.is_dir() for each in found)
    assert running.latest_run("tiny", tmp_path / "runs") in found


def test_what_is_added_on_resume_keeps_what_is_missing(tmp_path: pathlib.Path) -> None:
    """A cohort of fewer rows is NaN beyond them; types that a file had before must not be kept."""

    def cohort(rows: int) -> xr.Dataset:
        id = np.arange(rows, dtype=np.int32).reshape(1, 1, rows)
        return xr.Dataset(
            {"cohort_id": (("seed", "round", "row"), id)}, {"seed": [0], "round": [0], "row": range(rows)}
        )

    with folders.claim(tmp_path, text()):
        folders.save_results(tmp_path, Results(results("fedavg").metrics, join({"fedavg": cohort(2)})), text())
    earlier = resume(tmp_path).finished["fedavg"][1]
    both = join({"fedavg": earlier, "incfl": cohort(3)})
    folders.save_results(tmp_path, Results(results("fedavg", "incfl").metrics, both), text())
    found = folders.load_results(tmp_path)[1]["cohort_id"].sel(algorithm="fedavg").values
    np.testing.assert_array_equal(found[0, 0], [0, 1, np.nan])


def test_models_without_results_are_not_adopted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "models").mkdir()
    with (
        pytest.raises(ValueError, match=r"expected a folder without results, or --resume, got .* which holds models"),
        folders.claim(tmp_path, text()),
    ):
        pass
