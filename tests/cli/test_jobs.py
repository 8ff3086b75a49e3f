"""Jobs that outlive their launcher, that are stopped, and that are killed; processes of their own on this machine."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fljax.cli import jobs, launching
from tests.cli.test_hosts import CONFIG
from tests.processes import environment

pytest.importorskip("submitit")

# Some seconds between the first checkpoint and the end.
LONG = ["--set", "rounds=1500", "--set", "evaluate_every=500", "--set", "local.steps=400", "--checkpoint-every", "0.2"]
GRID = ["--grid", "participation.clients_per_round=2,3", "--no-report"]


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    text = CONFIG.replace('save_models = "last"\n', "").replace('[[algorithms]]\nname = "incfl"\n', "")
    (tmp_path / "tiny.toml").write_text(text)
    yield tmp_path
    for job in jobs.read(tmp_path / "out" / "jobs").jobs.values():  # of a test that has failed
        process = jobs._Process(int(job), str(tmp_path))
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)


def start(place: pathlib.Path, *words: str, code: str | None = None) -> subprocess.Popen[str]:
    """A launcher in a group of processes of its own, as a terminal has it."""
    program = ["-m", "fljax"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *program, "sweep", "tiny.toml", *GRID, "--out", "out", "--launcher", "local", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"FLJAX_COMPILATION_CACHE": str(place / "xla")},
        cwd=place,
        start_new_session=True,
    )


def started(place: pathlib.Path) -> subprocess.Popen[str]:
    """A launcher with two jobs, both of them after their first checkpoint."""
    running = start(place, "--jobs", "2", *LONG)
    until = time.monotonic() + 240
    while len({path.parts[-6] for path in place.glob("out/parts/*/checkpoints/*/*/rounds/round_*")}) < 2:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return running


def ids(place: pathlib.Path) -> list[int]:
    return [int(job) for job in jobs.read(place / "out" / "jobs").jobs.values()]


def tasks(job: int) -> list[int]:
    """The processes of a job that compute."""
    return [int(task) for task in pathlib.Path(f"/proc/{job}/task/{job}/children").read_text().split()]


def resumed(place: pathlib.Path) -> tuple[int, str, str]:
    again = start(place, "--jobs", "2", *LONG, "--resume")
    out, err = again.communicate(timeout=300)
    return again.returncode, out, err


WITHOUT_JAX = """
import sys
from fljax.cli import main
try:
    main()
finally:
    from jax._src import xla_bridge
    assert not xla_bridge.backends_are_initialized(), "JAX has started"
"""


@pytest.mark.thorough
def test_the_launcher_does_not_start_jax(place: pathlib.Path) -> None:
    """It may be on a machine without the devices of the jobs, whose environment stands in the joined folder."""
    for words in ([], ["--resume"]):
        running = start(place, "--jobs", "2", *words, code=WITHOUT_JAX)
        out, err = running.communicate(timeout=300)
        assert running.returncode == 0, (out, err)
    parts = [json.loads((place / f"out/parts/{number}/environment.json").read_text()) for number in (0, 1)]
    whole = json.loads((place / "out/environment.json").read_text())
    assert whole == parts[0] | {"parts": [0, 1]}
    assert not any("earlier" in each for each in (whole, *parts))


@pytest.mark.thorough
def test_a_launcher_that_is_killed(place: pathlib.Path) -> None:
    """Its jobs go on; the one that resumes waits for them, and submits nothing."""
    running = started(place)
    before = ids(place)
    working = [task for job in before for task in tasks(job)]
    with running:  # without reading its pipes, which the jobs hold
        for process, number in [*((task, signal.SIGSTOP) for task in working), (running.pid, signal.SIGKILL)]:
            os.kill(process, number)
    try:
        other = start(place, "--jobs", "2", *LONG)
        _, err = other.communicate(timeout=100)
        again = start(place, "--jobs", "2", *LONG, "--resume")
        assert again.stdout is not None
        line = again.stdout.readline()
    finally:
        for task in working:
            os.kill(task, signal.SIGCONT)
    listed = ", ".join(map(str, before))
    refused = "expected --resume, or a folder without jobs, got 'out', in which jobs of an earlier launcher wait or run"
    assert (other.returncode, err) == (2, f"fljax: {refused}: {listed}\n")
    assert line == f"2 parts, 2 to do; jobs none; of an earlier launcher: jobs {listed}\n"
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert len(list((place / "out/jobs").glob("*_submitted.pkl"))) == 2
    assert ids(place) == []


@pytest.mark.thorough
def test_ctrl_c_in_a_terminal(place: pathlib.Path) -> None:
    """All processes of the terminal get it: the launcher says one sentence, and jobs save a last checkpoint."""
    running = started(place)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 130, (out, err)
    assert len(err.splitlines()) == 1, err
    assert err.startswith("fljax: interrupted; what was saved before is kept; to go on: fljax sweep tiny.toml")
    assert "cancelling jobs" in out
    assert ids(place) == []
    for number in (0, 1):
        stored = [int(path.name.split("_")[1]) for path in place.glob(f"out/parts/{number}/checkpoints/*/*/rounds/*_*")]
        log = [json.loads(line) for line in (place / f"out/parts/{number}/log.jsonl").read_text().splitlines()]
        assert max(stored) >= max(event["round"] for event in log)
        assert list(place.glob("out/jobs/*_result.pkl")) == []
    code, out, err = resumed(place)
    assert code == 0, (out, err)
    for number in (0, 1):
        text = (place / f"out/parts/{number}/log.jsonl").read_text()
        (stored,) = re.findall(r"goes on after round (\d+)", text)
        assert int(stored) > 1


@pytest.mark.thorough
def test_a_job_that_is_killed(place: pathlib.Path) -> None:
    """It has no traceback; another launcher's jobs that were killed with it are submitted again."""
    running = started(place)
    (task,) = tasks(ids(place)[0])
    os.kill(task, signal.SIGKILL)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 1, (out, err)
    assert err == (
        "fljax: part 0 failed (its job was killed, or has ended without a result); out/jobs has what jobs printed; "
        "to go on: the same command with --out out --resume\n"
    )
    code, out, err = resumed(place)
    assert (code, "2 parts, 1 to do; jobs " in out) == (0, True), (out, err)


@pytest.mark.thorough
def test_a_job_whose_time_is_up(place: pathlib.Path) -> None:
    """It saves a checkpoint, and submitit starts it again."""
    running = started(place)
    (task,) = tasks(ids(place)[0])
    os.kill(task, signal.SIGUSR2)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, (out, err)
    events = [json.loads(line) for line in (place / "out/parts/0/log.jsonl").read_text().splitlines()]
    (message,) = [event["message"] for event in events if "goes on after round" in event["message"]]
    before = events[: [event["message"] for event in events].index(message)]
    assert int(message.split()[4]) >= max(1, *(event["round"] for event in before))


@pytest.mark.thorough
def test_another_number_of_jobs(place: pathlib.Path) -> None:
    running = start(place, "--jobs", "2")
    assert running.wait(300) == 0, running.communicate()
    running.communicate()
    other = start(place, "--jobs", "1", "--resume")
    _, err = other.communicate(timeout=100)
    assert (other.returncode, err) == (2, "fljax: expected --jobs 2, as the parts in 'out' were made, got 1\n")
    same = start(place, "--jobs", "3", "--resume")  # there are only two cells
    assert same.wait(100) == 0, same.communicate()
    same.communicate()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Job 12 (task: 0) with path a.pkl\nhas not produced any output (state: FINISHED)\nError stream produced:\n"
            "----\nsubmitit INFO (2026-01-01) - Loading pickle: b.pkl",
            "its job was killed, or has ended without a result",
        ),
        (
            "Job 12 (task: 0) with path a.pkl\nhas not produced any output (state: OUT_OF_MEMORY)\nNo output",
            "its job was killed, or has ended without a result, its state is OUT_OF_MEMORY",
        ),
        (
            "Job (task=0) failed during processing with trace:\n---\nTraceback (most recent call last):\n"
            '  File "a.py", line 1, in f\n    g()\n    ^^^\nKeyError: 1\n\nDuring handling, another one occurred:\n\n'
            'Traceback (most recent call last):\n  File "a.py", line 2, in f\n    raise ValueError\n'
            "fljax.config.errors.ConfigError: expected this, got that\na note\n\n---\n"
            "You can check full logs with 'job.stderr(0)'",
            "expected this, got that",
        ),
        ("Traceback (most recent call last):\nKeyError: 'nope'", "KeyError: 'nope'"),
        ("Traceback (most recent call last):\n", "nothing was said"),
    ],
)
def test_reasons(text: str, expected: str) -> None:
    found = launching.reason(text)
    assert found == expected
    assert isinstance(found, launching.NoResult) == ("Traceback" not in text)


def test_notes(tmp_path: pathlib.Path) -> None:
    assert jobs.read(tmp_path) == jobs.Note()
    note = jobs.Note("local", jobs.host(), 3, {0: "123", 2: "456"})
    jobs.write(tmp_path, note)
    assert jobs.read(tmp_path) == note
    for text in ("", "[]", '{"jobs": 1}', '{"jobs": {"a": "b"}}'):
        (tmp_path / jobs.NOTE).write_text(text)
        assert jobs.read(tmp_path) == jobs.Note()


class Slurm:
    """What sacct would say of jobs."""

    def __init__(self, folder: Any, job_id: str) -> None:
        self.job_id = job_id
        self.watcher = self
        self.paths = self
        self.result_pickle = pathlib.Path(folder) / f"{job_id}_0_result.pkl"

    def get_state(self, job_id: str, mode: str) -> str:
        return {"1": "PENDING", "2": "RUNNING", "3": "CANCELLED by 0", "4": "UNKNOWN"}[job_id]

    def done(self) -> bool:
        return self.get_state(self.job_id, "force") not in ("PENDING", "RUNNING")


def test_jobs_that_wait_or_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit  # pyright: ignore[reportMissingImports] - an extra

    monkeypatch.setattr(submitit, "SlurmJob", Slurm)
    note = jobs.Note("slurm", "login", 4, {0: "1", 1: "2", 2: "3"})
    assert list(jobs.live(tmp_path, note)) == [0, 1]
    (tmp_path / "2_0_result.pkl").touch()
    assert list(jobs.live(tmp_path, note)) == [0]
    with pytest.raises(ValueError, match="expected sacct of slurm to be within reach, as job 4 of an earlier launcher"):
        jobs.live(tmp_path, note._replace(jobs={0: "4"}))
    here = jobs.Note("local", jobs.host(), 4, {0: str(os.getpid())})
    assert jobs.live(tmp_path, here) == {}  # another process has the number now
    with pytest.raises(ValueError, match="expected jobs of elsewhere to be within reach, as job 1 of an earlier"):
        jobs.live(tmp_path, here._replace(host="elsewhere", jobs={0: "1"}))


def test_one_launcher_at_a_time(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out" / "jobs"
    refused = pytest.raises(ValueError, match=r"no other launcher waits for jobs, got '.*out'$")
    with jobs.alone(folder), refused, jobs.alone(folder):
        pass
    with jobs.alone(folder):
        pass


def test_signals_wait_for_a_submission() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append("handled"))
    try:
        with jobs.undisturbed():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            came.append("submitted")
        assert came == ["submitted", "handled"]
        with jobs.apart():
            child = subprocess.run(
                [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"],
                capture_output=True,
                text=True,
            )
        assert child.stdout == "True\n"
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
