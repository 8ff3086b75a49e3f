"""Runs that are killed, interrupted, started twice or out of room, as processes of their own."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import xarray as xr

from fljax.config import Config, dumps, load
from fljax.results import Results, folders
from tests.toys.configs import BLOBS, config_text

pytestmark = pytest.mark.thorough

CONFIG = config_text(
    BLOBS,
    "fedavg",
    'fedavg\nlabel = "half"\nserver_lr = 0.5',
    'fedavg\nlabel = "quarter"\nserver_lr = 0.25',
    head='name = "tiny"\nrounds = 4\nevaluate_every = 2',
    standalone=2,
)
LABELS = ["fedavg", "half", "quarter"]
ROOT = pathlib.Path(__file__).parent.parent.parent
WAIT = 600  # seconds, for a process on a busy machine


class Stage(NamedTuple):
    """Where the processes run, and what an undisturbed run has found."""

    place: pathlib.Path
    environment: dict[str, str]
    config: Config
    folder: pathlib.Path
    metrics: xr.Dataset
    records: xr.Dataset

    def start(
        self, *arguments: str, code: str | None = None, config: str = "tiny.toml", command: str = "run"
    ) -> subprocess.Popen[str]:
        """A command without a report; ``code`` is run in place of fljax, with the same arguments."""
        program = ["-m", "fljax"] if code is None else ["-c", code]
        return _start(self.place, self.environment, [*program, command, config, "--no-report", *arguments])

    def partial(self, folder: pathlib.Path, labels: list[str]) -> pathlib.Path:
        """A folder as a run leaves it that died after some of its algorithms."""
        with folders.claim(folder, dumps(self.config)):
            chosen = {"algorithm": labels}
            folders.save_results(
                folder, Results(self.metrics.sel(chosen), self.records.sel(chosen)), dumps(self.config)
            )
        return folder

    def assert_undisturbed(self, folder: pathlib.Path, labels: list[str] = LABELS) -> None:
        """Every number of these algorithms is that of the undisturbed run, bit for bit; only times differ."""
        assert_same(folder, self.folder, labels)


def assert_same(one: pathlib.Path, other: pathlib.Path, labels: list[str]) -> None:
    """The first folder holds these algorithms, and their numbers are those of the second; only times differ."""
    metrics, records = folders.load_results(one)
    assert metrics["algorithm"].values.tolist() == labels
    expected = [each.sel({"algorithm": labels}) for each in folders.load_results(other)]
    for each in (metrics, expected[0]):  # of a part of the algorithms it may name more
        weights = json.loads(each.attrs["weights"])
        each.attrs["weights"] = json.dumps({label: weights[label] for label in labels})
    times = [name for name in metrics if str(name).startswith("seconds_")]
    # These name what differs; ``identical`` would say False.
    xr.testing.assert_identical(metrics.drop_vars(times), expected[0].drop_vars(times))
    xr.testing.assert_identical(records, expected[1])


def _start(place: pathlib.Path, environment: dict[str, str], arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and what was written on stderr."""
    _, err = process.communicate(timeout=WAIT)
    return process.returncode, err


def sentence(err: str) -> str:
    """The error of a command: its last line; progress stands above it."""
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Two runs without --out, started at the same time, of which the first is what others are compared with."""
    place = tmp_path_factory.mktemp("stage")
    (place / "tiny.toml").write_text(CONFIG)
    own = {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(place / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling costs more than running here
    }
    environment = {**{name: each for name, each in os.environ.items() if not name.startswith("FLJAX_")}, **own}
    both = [_start(place, environment, ["-m", "fljax", "run", "tiny.toml", "--no-report"]) for _ in range(2)]
    assert [ended(process)[0] for process in both] == [0, 0]
    folder = min((place / "runs").iterdir())
    return Stage(place, environment, load(place / "tiny.toml"), folder, *folders.load_results(folder))


def test_two_runs_that_start_together_have_a_folder_each(stage: Stage) -> None:
    found = sorted((stage.place / "runs").iterdir())
    assert len(found) == 2
    print("folders:", *[each.name for each in found])
    for folder in found:
        stage.assert_undisturbed(folder)
        events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        assert [event["label"] for event in events if event["stage"] == "saved"] == LABELS


def lines_of(path: pathlib.Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def kill(stage: Stage, folder: pathlib.Path, after: int, delay: float, *arguments: str, command: str = "run") -> bool:
    """Starts a command that resumes a folder, and kills it some time after so many events; whether it still ran."""
    log = folder / "log.jsonl"
    before = lines_of(log)
    often = ["--checkpoint-every", "0"]
    process = stage.start("--resume", "--out", str(folder), *often, *arguments, command=command)
    while process.poll() is None and lines_of(log) < before + after:
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    code, err = ended(process)
    assert code in (0, -signal.SIGKILL), err
    return code != 0


def saved_in(folder: pathlib.Path) -> list[str]:
    return folders.load_results(folder)[0]["algorithm"].values.tolist() if (folder / "results.nc").is_file() else []


@pytest.mark.parametrize(("seed", "kills"), [(0, 3), pytest.param(1, 20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(stage: Stage, seed: int, kills: int) -> None:
    """A moment is a number of events and a time after the last of them, to be spread over the life of any process."""
    draw = random.Random(seed)
    folder, kept, killed = stage.place / f"killed-{seed}", 0, 0
    while killed < kills:
        if kept == len(LABELS):
            shutil.rmtree(folder)
            kept = 0
        after = draw.randrange(2 + kept + 6 * (len(LABELS) - kept))  # about so many events are left
        delay = draw.uniform(0, 2 if after == 0 else 0.2)
        killed += kill(stage, folder, after, delay)
        held = saved_in(folder)
        print(f"kill {killed}: {delay:.2f} s after event {after}, saved: {', '.join(held) or 'nothing'}")
        assert len(held) >= kept
        kept = len(held)
        if held:
            stage.assert_undisturbed(folder, LABELS[:kept])
    code, err = ended(stage.start("--resume", "--out", str(folder)))
    assert code == 0, err
    stage.assert_undisturbed(folder)
    assert (folder / "metrics.csv").read_bytes() == (stage.folder / "metrics.csv").read_bytes()


def test_a_killed_sweep(stage: Stage) -> None:
    whole, folder = stage.place / "sweep", stage.place / "killed-sweep"
    grid = ["--grid", "local.learning_rate=0.1,0.2", "--set", "seeds=2"]
    assert ended(stage.start("--out", str(whole), *grid, command="sweep"))[0] == 0
    kept = 0
    for after in (12, 5):  # about the second algorithm, then somewhere in what is left
        killed = kill(stage, folder, after, 0.05, *grid, command="sweep")
        held = saved_in(folder)
        print(f"killed: {killed}, after event {after}, saved: {', '.join(held) or 'nothing'}")
        assert len(held) >= kept
        kept = len(held)
    assert ended(stage.start("--resume", "--out", str(folder), *grid, command="sweep"))[0] == 0
    assert_same(folder, whole, LABELS)
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


# Says when its own code runs: what comes before is Python's.
ENTRY = "from fljax.__main__ import main; print('up', flush=True); main()"


@pytest.mark.parametrize(
    ("number", "delay"),
    [(signal.SIGINT, 0.0), (signal.SIGINT, 0.2), (signal.SIGINT, 1.0), (signal.SIGTERM, 1.0)],
)
def test_a_signal_during_start_up_is_one_sentence(stage: Stage, number: int, delay: float) -> None:
    process: Any = stage.start("--out", f"early-{number}-{delay}", code=ENTRY)
    assert process.stdout.readline() == "up\n"
    time.sleep(delay)
    process.send_signal(number)
    code, err = ended(process)
    print(f"{signal.Signals(number).name} after {delay} s: exit {code}, {err.strip()!r}")
    if code == -signal.SIGINT and re.fullmatch(r'Traceback.*\n  File "<string>", line 1, .*\nKeyboardInterrupt\n', err):
        return  # between "up" and ``main``, where nothing of fljax runs
    # SIGTERM before the command is imported ends Python as it ends any program.
    assert code == 128 + number or (code, err) == (-signal.SIGTERM, "")
    if code > 0:
        assert sentence(err).startswith("fljax: interrupted")


def test_ctrl_c_during_a_run_says_how_to_go_on(stage: Stage) -> None:
    folder = stage.place / "stopped"
    process = stage.start("--out", str(folder))
    while process.poll() is None and lines_of(folder / "log.jsonl") < 3:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    print(code, sentence(err))
    assert code == 130
    how = f"; to go on: fljax run tiny.toml --no-report --out {folder} --resume"
    assert re.fullmatch(
        "fljax: interrupted; (what was saved before is kept|saved after round [1-4] of 4)" + re.escape(how),
        sentence(err),
    )
    # The command works as it stands.
    assert ended(stage.start("--out", str(folder), "--resume"))[0] == 0
    stage.assert_undisturbed(folder)
    assert not (folder / "checkpoints").exists()


# A long run, so that signals find it in its rounds.
LONG = ["--set", "rounds=20000", "--set", "evaluate_every=10000", "--set", "local.steps=300"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_block_saves_and_stops(stage: Stage, number: int) -> None:
    """Within seconds, although the block has 10,000 rounds; the next command goes on there."""
    folder = stage.place / f"long-{number}"
    process = stage.start("--out", str(folder), *LONG, "--checkpoint-every", "0.5")
    while process.poll() is None and not list((folder / "checkpoints").rglob("round_*")):
        time.sleep(0.01)
    process.send_signal(number)
    code, err = ended(process)
    print(code, err)
    assert code == 128 + number
    assert "stopping after these rounds, and saving; again: stopping at once" in err
    found: Any = re.search(r"interrupted; saved after round (\d+) of 20000; to go on: (.*)$", sentence(err))
    assert "rounds=20000" in found[2]
    assert found[2].endswith(f"--out {folder} --resume")
    again = stage.start("--out", str(folder), "--resume", *LONG)
    while not (notes := [e["message"] for e in events_of(folder) if "goes on" in e["message"]]):
        assert again.poll() is None, ended(again)
        time.sleep(0.01)
    again.kill()
    ended(again)
    assert notes == [f"goes on after round {found[1]} of 20000, from a checkpoint"]


def test_a_second_signal_stops_at_once(stage: Stage) -> None:
    """Also while a compiled program runs, which Python's own handlers wait for."""
    folder = stage.place / "at-once"
    process = stage.start("--out", str(folder), *LONG, "--set", "local.steps=1000000")
    while process.poll() is None and "train" not in [event["stage"] for event in events_of(folder)]:
        time.sleep(0.01)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    code, err = ended(process)
    print(code, err)
    assert code == 130
    assert time.monotonic() - began < 5


def events_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


# A run that waits after its first algorithm until a file appears.
WAITING = """
import pathlib, sys, time
from fljax.cli.running import start_jax
start_jax()  # as many devices as the command has: another number of them rounds otherwise
from fljax import experiment
from fljax.config import load
folder = pathlib.Path(sys.argv[-1])
def wait(event):
    if event.stage == "saved" and event.label == "fedavg":
        (folder.parent / "reached").touch()
        while not (folder.parent / "go").exists():
            time.sleep(0.01)
experiment.run(load("tiny.toml"), directory=folder, on_event=wait)
"""


def contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_processes_in_one_folder(stage: Stage) -> None:
    """The second is refused, with and without --resume; the first never notices."""
    folder = stage.place / "shared"
    (stage.place / "other.toml").write_text(CONFIG.replace("rounds = 4", "rounds = 6"))
    first = stage.start("--out", str(folder), code=WAITING)
    until = time.monotonic() + WAIT
    while not (stage.place / "reached").exists():
        assert first.poll() is None, ended(first)
        assert time.monotonic() < until
        time.sleep(0.01)
    before = contents(folder)
    others = [stage.start("--out", str(folder), config="other.toml"), stage.start("--resume", "--out", str(folder))]
    for process in others:
        code, err = ended(process)
        print(code, sentence(err))
        assert code == 2
        expected = (
            f"expected a folder that no other process writes to, got {str(folder)!r}, in which another run goes on"
        )
        assert sentence(err) == f"fljax: {expected}"
    assert contents(folder) == before
    (stage.place / "go").touch()
    assert ended(first)[0] == 0
    stage.assert_undisturbed(folder)


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 1 MB in memory, where the test may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def assert_full_is_survived(stage: Stage, folder: pathlib.Path, why: str, found: tuple[int, str]) -> None:
    code, err = found
    print(code, sentence(err))
    assert code == 1
    assert sentence(err).startswith("fljax: expected to write results.nc (")
    assert sentence(err).endswith(f"got: {why}; what was saved before is kept, --resume goes on after it")
    stage.assert_undisturbed(folder, LABELS[:1])
    assert not list(folder.glob(".*"))
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert "train" in [event["stage"] for event in events]
    assert "saved" not in [event["stage"] for event in events]


def test_a_full_disk_loses_nothing_that_was_saved(stage: Stage, small_disk: pathlib.Path) -> None:
    folder = stage.partial(small_disk / "run", LABELS[:1])
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 28 * 1024))
    assert_full_is_survived(
        stage, folder, "No space left on device", ended(stage.start("--resume", "--out", str(folder)))
    )


LIMITED = """
import resource, sys
limit = int(sys.argv.pop())
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from fljax.__main__ import main
main()
"""


def test_a_file_that_may_not_grow_loses_nothing_that_was_saved(stage: Stage) -> None:
    folder = stage.partial(stage.place / "limited", LABELS[:1])
    limit = (folder / "results.nc").stat().st_size // 2
    process = stage.start("--resume", "--out", str(folder), str(limit), code=LIMITED)
    assert_full_is_survived(stage, folder, "File too large", ended(process))


def test_foreign_and_damaged_files(stage: Stage, tmp_path: pathlib.Path) -> None:
    """Each is one sentence and exit code 2, and nothing is changed."""
    foreign = stage.partial(tmp_path / "foreign", LABELS[:1])
    (foreign / "config.toml").unlink()
    damaged = stage.partial(tmp_path / "damaged", LABELS[:1])
    (damaged / "results.nc").write_bytes((damaged / "results.nc").read_bytes()[:10_000])
    (stage.place / "slower.toml").write_text(CONFIG.replace("0.1", "0.05"))
    cases: list[tuple[list[str], str, str]] = [
        (["--resume", "--out", str(foreign)], "slower.toml", "local.learning_rate is 0.1 there and 0.05 here"),
        (["--resume", "--out", str(damaged)], "tiny.toml", "got a damaged one"),
    ]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    running: list[tuple[Any, str]] = [(stage.start(*given, config=name), words) for given, name, words in cases]
    for process, words in running:
        code, err = ended(process)
        print(code, sentence(err))
        assert code == 2
        assert words in sentence(err)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
