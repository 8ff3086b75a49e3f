"""Memory of long runs: ``python benchmarks/long_runs.py``.

INCFL with all of many clients in every round, so that a record has an entry for each client and round. Every run has a
process of its own. The table has the largest memory that the process held, the bytes of its records, and its seconds:
with checkpoints, after which long records stay on the disk, and without.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from throughput import RESULTS, hardware


def measured(rounds: int, clients: int, saves: bool) -> dict[str, float]:
    """Runs in this process; megabytes and seconds."""
    import numpy as np

    import fljax
    from fljax import algorithms, data, models

    x = np.random.default_rng(0).normal(size=(4 * clients, 8)).astype(np.float32)
    federation = data.from_arrays(x, (x[:, 0] > 0).astype(np.int32), np.arange(len(x)) % clients)
    local = fljax.Local(learning_rate=0.05, batch_size=2, steps=1)
    plan = fljax.Plan(
        algorithms.incfl,
        {
            "task": models.logistic_regression((8,), 2),
            "local": local,
            "threshold": 0.3,
            "clients_per_round": clients,
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = fljax.simulate(
            plan,
            federation,
            rounds=rounds,
            evaluate_every=max(rounds // 10, 1),
            checkpoint=folder if saves else None,
        )
        spent = time.perf_counter() - began
        began = time.perf_counter()
        picked = float(result.records["weight"].isel(row=3).sel(round=slice(rounds - 100, None)).mean())
        read = time.perf_counter() - began
        on_disk = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
    assert picked == picked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "peak": peak,
        "records": result.records.nbytes / 2**20,
        "disk": on_disk / 2**20,
        "seconds": spent,
        "read": read,
    }


def main() -> None:
    """Prints and writes the table."""
    parser = argparse.ArgumentParser(description="Memory of long runs.")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", default="1000,10000,100000", help="numbers of rounds")
    parser.add_argument("--without", type=int, default=10_000, help="the most rounds of a run without checkpoints")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    parser.add_argument("--one", help="of the processes: rounds and whether it saves")
    options = parser.parse_args()
    if options.one is not None:
        rounds, saves = json.loads(options.one)
        print(json.dumps(measured(rounds, options.clients, saves)))
        return
    rows = []
    for rounds in map(int, options.rounds.split(",")):
        for saves in (False, True) if rounds <= options.without else (True,):
            command = [sys.executable, __file__, "--clients", str(options.clients)]
            done = subprocess.run(
                [*command, "--one", json.dumps([rounds, saves])], capture_output=True, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            cells = [
                f"{rounds:,}",
                "yes" if saves else "no",
                *(f"{found[name]:,.0f}" for name in found if name != "read"),
            ]
            rows.append(f"| {' | '.join(cells)} | {found['read']:.2f} |")
            print(rows[-1], flush=True)
    machine = hardware()
    text = [
        f"# Memory of long runs, {datetime.date.today()}",
        "",
        f"    python benchmarks/long_runs.py --clients {options.clients} --rounds {options.rounds}",
        "",
        f"{machine['cores']} cores of {machine['cpu']}. INCFL, logistic regression 8-2, {options.clients:,} clients,",
        "all in every round, 1 step, 1 seed. *Peak*: the largest resident memory of the process. *Read*: seconds for",
        "the weights of one client in the last hundred rounds.",
        "",
        "| rounds | checkpoints | peak, MiB | records, MiB | folder, MiB | run, s | read, s |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    out = options.out or RESULTS / f"{datetime.date.today()}-long-runs.md"
    out.write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
