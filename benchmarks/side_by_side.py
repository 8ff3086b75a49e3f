"""How many clients of one device should train side by side: ``python benchmarks/side_by_side.py``.

Rounds of several models, each with 100 of 100 clients on all cores, with numbers of clients side by side that are
given, and with the number that ``auto`` takes. Each form is a process of its own. They take turns, in an order drawn
anew for each pass, and the others are halted. The table has medians of a round, the fastest in bold, and the bytes that
a client's local step reads and writes before operations are fused: ``auto`` decides by these
(``fljax.engine.programs.execution``).
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Entrant, enter, export
from throughput import RESULTS, hardware
from workers import CONTESTANTS, OWN, Contestant
from workloads import CLASSES, LEARNING_RATE, SEED, WORKLOADS, Workload

_SMALL = WORKLOADS["W3"]._replace(samples=160, batch=16, distinct=16_000, shape=(64,))
_IMAGES = _SMALL._replace(samples=80, distinct=2_000, shape=(28, 28, 1), multiplications=(1,))


def _mlp(hidden: int) -> Workload:
    return _SMALL._replace(
        name=f"mlp{hidden}",
        title=f"MLP 64-{hidden}-10, batches of 16",
        model="mlp",
        options={"hidden": [hidden], "dropout": 0.0},
        multiplications=(64 * hidden, hidden * CLASSES),
    )


def _cnn(name: str, title: str, like: Workload, **options: Any) -> Workload:
    return like._replace(name=name, title=title, model="cnn", options=options, multiplications=(1,))


MODELS = {
    each.name: each
    for each in (
        WORKLOADS["W3"]._replace(title="logistic regression 60-10, batches of 20"),
        *map(_mlp, (16, 32, 64, 128, 340)),
        WORKLOADS["W1a"]._replace(title="MLP 784-64-30-10, batches of 30"),
        _cnn("cnn8", "CNN 16-32-64 on 8 x 8, batches of 16", _SMALL._replace(shape=(8, 8, 1))),
        _cnn("cnn28a", "CNN 4-8 on 28 x 28, batches of 16", _IMAGES, blocks=[[4], [8]], dense=[]),
        _cnn("cnn28b", "CNN 8-16 on 28 x 28, batches of 16", _IMAGES, blocks=[[8], [16]], dense=[]),
    )
}


def main() -> None:
    """Measures model after model, and writes the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--clients", default="1,2,5,10,25,50", help="numbers side by side, comma-separated")
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one turn")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-side-by-side.md")
    options = parser.parse_args()
    if unknown := [name for name in options.models.split(",") if name not in MODELS]:
        raise SystemExit(f"expected a known model, got {unknown[0]!r}; valid names are {', '.join(MODELS)}")
    numbers = [str(int(number)) for number in options.clients.split(",")]
    machine = ", ".join(f"{name}: {value}" for name, value in hardware().items())
    lines = [
        "# Milliseconds of a round by the number of clients side by side",
        "",
        f"{datetime.date.today()}. `python benchmarks/side_by_side.py --passes {options.passes} "
        f"--seconds {options.seconds}`. {machine}.",
        "",
        f"| model, 100 of 100 clients | MB of a step | {' | '.join(numbers)} | auto takes | auto by the fastest |",
        "|---|" + "---:|" * (len(numbers) + 3),
    ]
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory(prefix="fljax-side-by-side-") as scratch:
            lines.append(row(MODELS[name], numbers, options.passes, options.seconds, Path(scratch)))
        print(lines[-1], flush=True)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def row(work: Workload, numbers: list[str], passes: int, seconds: float, scratch: Path) -> str:
    """One line of the table."""
    file = export(work, scratch)
    entrants: list[Entrant] = []
    try:
        for number in (*numbers, "auto"):
            form = Contestant(number, "fljax", OWN, "fljax_.py", (("--clients", number),), (work.name,))
            entrants.append(enter(form, sys.executable, work, file, scratch, seconds, print)[0])
        rounds = min(each.rounds for each in entrants)
        spent: dict[str, list[float]] = {each.contestant.name: [] for each in entrants}
        order = random.Random(0)
        for _ in range(passes):
            for each in order.sample(entrants, len(entrants)):
                each.worker.resume()
                spent[each.contestant.name].append(each.worker.ask("rounds", count=rounds)["seconds"] / rounds * 1e3)
                each.worker.halt()
        entrants[-1].worker.resume()
        taken = entrants[-1].worker.ask("memory")["notes"]["execution_clients"]
    finally:
        for each in entrants:
            each.worker.close()
    middle = {name: statistics.median(found) for name, found in spent.items()}
    fastest = min(numbers, key=lambda number: middle[number])
    cells = [f"**{middle[number]:.2f}**" if number == fastest else f"{middle[number]:.2f}" for number in numbers]
    ratio = statistics.median(a / b for a, b in zip(spent["auto"], spent[fastest], strict=True))
    return f"| {work.title} | {step_bytes(work) / 1e6:.2f} | {' | '.join(cells)} | {taken} | {ratio:.2f} |"


def step_bytes(work: Workload) -> int:
    """Bytes that a client's local step reads and writes, as the engine counts them."""
    sys.path.insert(0, str(CONTESTANTS))
    import parts  # pyright: ignore[reportMissingImports]

    from fljax.engine.programs import program
    from fljax.engine.programs.shapes import measure

    meta = work._asdict() | {"classes": CLASSES, "learning_rate": LEARNING_RATE, "seed": SEED}
    x = np.zeros((work.distinct, *work.shape), np.uint8 if work.pixels else np.float32)
    rows = np.arange(work.clients * work.samples, dtype=np.int32).reshape(work.clients, -1) % work.distinct
    federation = parts.federation(meta, x, np.zeros(work.distinct, np.int32), rows)
    spec, inputs = program.partition_plan(parts.algorithm(meta, parts.task(meta)), federation)
    return measure(spec, inputs, 1).sizes.lane


if __name__ == "__main__":
    main()
