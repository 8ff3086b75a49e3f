"""What a round of every method costs beside one of FedAvg: ``python benchmarks/methods.py``.

All algorithms of the registry on one federation, with default hyper-parameters; passes are interleaved. The table has
the seconds of a round by those of FedAvg in the same pass.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from pathlib import Path
from typing import Any

from throughput import RESULTS, hardware

import fljax
from fljax import algorithms, config
from fljax.experiments import run
from fljax.experiments.inputs.setup import resolve_setup

OPTIONS: dict[str, dict[str, Any]] = {"fedbn": {"own": ["head/bias", "head/kernel"]}}  # the network has no BatchNorm


def main() -> None:
    """Prints and writes the table."""
    parser = argparse.ArgumentParser(description="What a round of every method costs.")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    fljax.use_cores()
    rows = {"valid_fraction": 0.2, "held_fraction": 0.1}  # some methods judge models by them
    raw: dict[str, Any] = {
        "rounds": options.rounds,
        "data": {"dataset": "digits", "partition": "dirichlet", "clients": 100, **rows},
        "model": {"name": "mlp", "hidden": [64, 30]},
        "local": {"learning_rate": 0.05, "batch_size": 8, "steps": 20},
        "standalone": {"steps": 1},
        "algorithms": [{"name": name, **OPTIONS.get(name, {})} for name in algorithms.REGISTRY],
    }
    setup = resolve_setup(config.parse(raw, name="methods"))
    plans = run.check(setup, rehearsed=False)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for done in range(options.passes + 1):
        for name, plan in plans.items():
            found = fljax.simulate(plan, setup.federation, rounds=options.rounds, evaluate_every=options.rounds)
            if done:  # the first pass compiles
                seconds[name].append(float(found.metrics["seconds_train"]) / options.rounds)
        print(f"pass {done} of {options.passes}", flush=True)
    lines = []
    for name, spent in seconds.items():
        ratios = [own / other for own, other in zip(spent, seconds["fedavg"], strict=True)]
        cells = f"{1000 * statistics.median(spent):.2f} | {statistics.median(ratios):.2f}"
        lines.append(f"| `{name}` | {cells} | {min(ratios):.2f} to {max(ratios):.2f} |")
    machine = hardware()
    text = [
        f"# A round of every method, {datetime.date.today()}",
        "",
        f"    python benchmarks/methods.py --passes {options.passes} --rounds {options.rounds}",
        "",
        f"{machine['cores']} cores of {machine['cpu']}. Digits, MLP 64-64-30-10, 100 of 100 clients, 20 steps of 8.",
        "Hyper-parameters have their defaults; `fedbn` keeps the last layer, as the network has no BatchNorm.",
        "`afl` takes one local step in a round; `fedsoft` and `ipfl` train 10 of the clients, at their defaults.",
        "What an algorithm asks of clients beside local training is part of a round. Ratios are of one pass each.",
        "",
        "| method | a round, ms | by FedAvg's | least to most |",
        "|---|---|---|---|",
        *lines,
        "",
    ]
    out = options.out or RESULTS / f"{datetime.date.today()}-methods.md"
    out.write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
