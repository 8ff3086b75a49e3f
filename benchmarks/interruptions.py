"""Runs that are killed at random moments and resumed: ``python benchmarks/interruptions.py``.

A run of three algorithms with three seeds and 200 rounds is left alone once. Then it is killed with SIGKILL at random
moments, half of them while a checkpoint is being written, and resumed, until it ends; and again. Every end is compared
with the run that was left alone, bit for bit. The table says for each kill how much is repeated: seconds since the
newest checkpoint, and rounds. The same for a sweep.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
from throughput import RESULTS, hardware

from fljax.results import folders

CONFIG = """
name = "interrupted"
seeds = 3
rounds = 200
evaluate_every = 20
[data]
dataset = "digits"
partition = "cluster_labels"
clients = 40
partition_options = {groups = 5}
[model]
name = "mlp"
hidden = [64, 30]
[local]
learning_rate = 0.05
batch_size = 16
steps = 30
[participation]
clients_per_round = 10
[[algorithms]]
name = "fedavg"
[[algorithms]]
name = "incfl"
[[algorithms]]
name = "scaffold"
"""
GRID = ["--grid", "local.learning_rate=0.05,0.1", "--grid", "local.batch_size=8,16", "--set", "seeds=2"]


class Kill(NamedTuple):
    """One kill.

    Attributes:
      writing: whether a checkpoint was being written.
      stage: what the log said last.
      lost: seconds since the newest checkpoint or result of this process, or since its start.
      rounds: rounds that are computed again, at most: those of which the log knows.
    """

    writing: bool
    stage: str
    lost: float
    rounds: int


def main() -> None:
    """Prints and writes the tables."""
    parser = argparse.ArgumentParser(description="Killed and resumed runs.")
    parser.add_argument("--kills", type=int, default=30, help="of the run")
    parser.add_argument("--sweep-kills", type=int, default=10, help="of the sweep")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    out = options.out or RESULTS / f"{datetime.date.today()}-interruptions.md"
    text = [f"# Interrupted runs, {datetime.date.today()}", ""]
    machine = hardware()
    text += [
        f"    python benchmarks/interruptions.py --kills {options.kills} --sweep-kills {options.sweep_kills} "
        f"--every {options.every} --seed {options.seed}",
        "",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gibibytes']} GiB.",
        "A checkpoint every "
        f"{options.every} s at most. *Repeated* is what the next process does again: the seconds since the newest",
        "checkpoint or result (or since the process began, if it had saved nothing), and the rounds that the log of",
        "the killed process knows beyond it.",
        "",
    ]
    with tempfile.TemporaryDirectory(prefix="fljax-interruptions-") as name:
        place = Path(name)
        (place / "config.toml").write_text(CONFIG)
        for command, more, count in (("run", [], options.kills), ("sweep", GRID, options.sweep_kills)):
            kills, ends, seconds = _kills(place, command, more, count, options.every, draw)
            text += [f"## {count} kills of fljax {command}", ""]
            text += [
                f"Left alone it takes {seconds:.1f} s. {ends} resumed runs ended, all bit for bit as that one.",
                "",
            ]
            text += ["| kill | while a checkpoint was written | what the log said last | repeated, s | rounds |"]
            text += ["|---|---|---|---|---|"]
            for number, kill in enumerate(kills, 1):
                writing = "yes" if kill.writing else ""
                text += [f"| {number} | {writing} | {kill.stage} | {kill.lost:.2f} | {kill.rounds} |"]
            text += [""]
            out.write_text("\n".join(text))
    print("\n".join(text))


def _start(place: Path, command: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "fljax", command, "config.toml", "--no-report", "--quiet", "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(place / "xla")}
    return subprocess.Popen([*arguments, *more], cwd=place, env=environment, stderr=subprocess.PIPE, text=True)


def _kills(
    place: Path, command: str, more: list[str], count: int, every: float, draw: random.Random
) -> tuple[list[Kill], int, float]:
    """The kills, how many runs came to an end, and how long one takes that is left alone."""
    whole = place / f"{command}-whole"
    for attempt in range(2):  # the second time with compiled programs
        shutil.rmtree(whole, ignore_errors=True)
        began = time.perf_counter()
        _ended(_start(place, command, whole, *more), 0)
        seconds = time.perf_counter() - began
        print(f"fljax {command}, left alone: {seconds:.1f} s" + (" (compiling)" if not attempt else ""), flush=True)
    kills: list[Kill] = []
    ends = 0
    while len(kills) < count:
        folder = place / f"{command}-{ends}"
        while True:
            process = _start(place, command, folder, "--resume", "--checkpoint-every", str(every), *more)
            found = (
                _kill(process, folder, draw.uniform(1.0, seconds), len(kills) % 2 == 1) if len(kills) < count else None
            )
            if found is None:
                _ended(process, 0)
                break
            kills.append(found)
            print(f"kill {len(kills)}: {found}", flush=True)
        _assert_same(folder, whole)
        ends += 1
        shutil.rmtree(folder)
    return kills, ends, seconds


def _kill(process: subprocess.Popen[str], folder: Path, delay: float, writing: bool) -> Kill | None:
    """Kills a process after ``delay`` seconds; if ``writing``, while the next checkpoint is written. None: it ended."""
    started, until = time.time(), time.perf_counter() + delay
    while process.poll() is None and time.perf_counter() < until:
        time.sleep(0.001)
    while writing and process.poll() is None and not _is_writing(folder):
        time.sleep(0.0005)
    if process.poll() is not None:
        return None
    os.kill(process.pid, signal.SIGKILL)
    now = time.time()
    was = _is_writing(folder)
    process.communicate()
    newest = _newest(folder)
    events = _events(folder)
    last = events[-1] if events else {"stage": "nothing", "label": "", "round": 0}
    done = max(
        (each["round"] for each in events if each["stage"] == "train" and each["label"] == last["label"]), default=0
    )
    saved = int(newest.name.removeprefix("round_")) if newest is not None and newest.is_dir() else 0
    moment = max(newest.stat().st_mtime if newest is not None else 0.0, started)
    stage = " ".join(filter(None, [last["label"], last["stage"]]))
    return Kill(was, stage, now - moment, max(0, done - saved) if last["stage"] == "train" else 0)


def _saved(folder: Path) -> list[Path]:
    """Checkpoints, whole ones and those that are being written; files come and go meanwhile."""
    found = []
    for rounds in [*folder.glob("checkpoints/*/rounds"), *folder.glob("checkpoints/*/*/rounds")]:
        with contextlib.suppress(OSError):
            found += list(rounds.iterdir())
    return found


def _is_writing(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any("orbax-checkpoint-tmp" in path.name for path in _saved(folder))
    return False


def _newest(folder: Path) -> Path | None:
    """What was saved last: a checkpoint, standalone models or results."""
    whole = [path for path in _saved(folder) if path.name.removeprefix("round_").isdigit()]
    found = [*whole, folder / "results.nc", folder / "checkpoints/standalone.npz"]
    return max((path for path in found if path.exists()), key=lambda path: path.stat().st_mtime, default=None)


def _events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.is_file() else []


def _ended(process: subprocess.Popen[str], code: int) -> None:
    _, err = process.communicate()
    if process.returncode != code:
        raise SystemExit(f"expected exit code {code}, got {process.returncode}: {err}")


def _assert_same(one: Path, other: Path) -> None:
    """Raises an AssertionError if two results differ in anything but times."""
    for found, expected in zip(folders.load(one), folders.load(other), strict=True):
        times = [name for name in expected if str(name).startswith("seconds_")]
        xr.testing.assert_identical(found.drop_vars(times), expected.drop_vars(times))


if __name__ == "__main__":
    main()
