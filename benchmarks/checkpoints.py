"""What checkpoints cost: ``python benchmarks/checkpoints.py``.

The same run with and without checkpoints at the default interval, alternately, in one process. A run is long enough for
several checkpoints. The table has the seconds of the whole call, and the ratio of each pair.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from throughput import RESULTS, hardware

import fljax
from fljax import algorithms, data, models


def main() -> None:
    """Prints and writes the table."""
    parser = argparse.ArgumentParser(description="Runs with and without checkpoints.")
    parser.add_argument("--seconds", type=float, default=70.0, help="of one run, about")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two checkpoints")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    fljax.use_cores()
    digits = data.load("digits")
    federation = data.federate(digits, "iid", clients=100)
    task = models.mlp(digits.x.shape[1:], digits.classes or 10, hidden=[256, 128])
    local = fljax.Local(learning_rate=0.05, batch_size=8, steps=20)
    rows: list[str] = []
    for name, build, kept in (
        ("fedavg: one model", algorithms.fedavg, 1),
        ("scaffold: a model for each of 100 clients", algorithms.scaffold, 101),
    ):
        plan = fljax.Plan(build, {"task": task, "local": local, "clients_per_round": 20})
        run: dict[str, Any] = {"seeds": 3, "evaluate_every": 100}
        fljax.simulate(plan, federation, rounds=100, **run)
        began = time.perf_counter()
        fljax.simulate(plan, federation, rounds=200, **run)
        rounds = max(200, round(options.seconds / (time.perf_counter() - began) * 2) * 100)
        ratios, saved = [], 0
        for pair in range(options.pairs):
            seconds = {}
            for with_checkpoints in (pair % 2 == 0, pair % 2 == 1):
                with tempfile.TemporaryDirectory() as folder:
                    where = fljax.Checkpoint(folder, every=options.every) if with_checkpoints else None
                    began = time.perf_counter()
                    fljax.simulate(plan, federation, rounds=rounds, checkpoint=where, **run)
                    seconds[with_checkpoints] = time.perf_counter() - began
                    if with_checkpoints:
                        saved = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
            ratios.append(seconds[True] / seconds[False])
            print(name, f"{seconds[False]:.1f} s without, {seconds[True]:.1f} s with: {ratios[-1]:.4f}", flush=True)
        low, high = min(ratios), max(ratios)
        rows.append(
            f"| {name} | {rounds:,} | {seconds[False]:.1f} | {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}) "
            f"| {kept} | {saved / 2**20:.1f} |"
        )
    machine = hardware()
    text = [
        f"# What checkpoints cost, {datetime.date.today()}",
        "",
        f"    python benchmarks/checkpoints.py --seconds {options.seconds:g} --pairs {options.pairs} "
        f"--every {options.every:g}",
        "",
        f"{machine['cores']} cores of {machine['cpu']}. MLP 64-256-128-10, 20 of 100 clients, 20 steps of 8, 3 seeds.",
        "Seconds of the whole call with checkpoints by seconds without, alternately: median (least to largest).",
        "",
        "| | rounds | s without | with / without | models in the state, per seed | MiB in the folder at the end |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    out = options.out or RESULTS / f"{datetime.date.today()}-checkpoints.md"
    out.write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
