"""Memory of a round on each of several devices: ``python benchmarks/devices.py``.

51 clients with a model each are trained by algorithms that keep these models, at the server or at the clients. The
programs of a run (start, one round, evaluation) are compiled for 1, 2, 4 and 8 host devices, each case in a process of
its own, and XLA tells their memory; nothing is run. ``--source FOLDER`` compiles the fljax of another checkout, and
``--before FILE`` sets the numbers of such a report beside the new ones.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from environments import plain
from throughput import RESULTS, hardware

ALGORITHMS = ("iafl", "cgsv", "rank", "fedfomo", "ditto")
MODELS = ("resnet18", "mlp")
DEVICES = (1, 2, 4, 8)
CLIENTS, ROWS, CLASSES, HELD = 51, 8, 10, 64
PROGRAMS = ("start", "round", "evaluation")
MEBIBYTE = 2**20


def main() -> None:
    """Compiles case after case; what is known is saved after each."""
    parser = argparse.ArgumentParser(description="Memory of a round on each of several devices.")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="comma-separated")
    parser.add_argument("--model", default="resnet18", choices=MODELS)
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="comma-separated")
    parser.add_argument("--source", default="", metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--before", type=Path, metavar="FILE", help="JSON file of another checkout")
    parser.add_argument("--out", type=Path, help="JSON file; a table (.md) is put beside it")
    parser.add_argument("--case", nargs=2, metavar=("ALGORITHM", "DEVICES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        algorithm, devices = options.case
        print(json.dumps(measure(algorithm, options.model, int(devices), options.source)))
        return
    out = options.out or RESULTS / f"{datetime.date.today()}-devices-{options.model}.json"
    before = None if options.before is None else json.loads(options.before.read_text())
    found: list[dict[str, Any]] = []
    for algorithm in options.algorithms.split(","):
        for devices in map(int, options.devices.split(",")):
            command = [sys.executable, __file__, "--model", options.model, "--source", options.source]
            command += ["--case", algorithm, str(devices)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            case: dict[str, Any] = {"algorithm": algorithm, "devices": devices}
            if done.returncode:
                case["error"] = plain((done.stderr.strip().splitlines() or ["no message"])[-1])
            else:
                case |= json.loads(done.stdout.splitlines()[-1])
            found.append(case)
            report = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S+00:00}", "hardware": hardware()}
            report |= {"model": options.model, "source": options.source, "cases": found}
            out.write_text(json.dumps(report, indent=1) + "\n")
            out.with_suffix(".md").write_text(markdown(report, before))
    print(out.with_suffix(".md").read_text())


def measure(algorithm: str, model: str, devices: int, source: str) -> dict[str, Any]:
    """Mebibytes on each device while each program runs, and those of the state between rounds."""
    if source:
        sys.path.insert(0, source)
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import jax.numpy as jnp
    import numpy as np

    import fljax
    from fljax import algorithms, data, models
    from fljax.engine.devices.layout import replicate
    from fljax.engine.loop.compilation import compile_all
    from fljax.engine.programs.execution import resolve
    from fljax.engine.programs.program import partition_plan
    from fljax.engine.programs.shapes import measure as shapes_of
    from fljax.engine.rounds.states import by_id

    random = np.random.default_rng(0)
    shape = (32, 32, 3) if model == "resnet18" else (784,)
    count = CLIENTS * ROWS + HELD
    x, y = random.normal(size=(count, *shape)).astype(np.float32), random.integers(0, CLASSES, count)
    own = {k: (x[ROWS * k : ROWS * (k + 1)], y[ROWS * k : ROWS * (k + 1)]) for k in range(CLIENTS)}
    federation = data.from_clients(own)
    held = fljax.protocol.Rows(jnp.arange(HELD, dtype=jnp.int32), jnp.int32(HELD))
    federation = federation._replace(held={"validation": held, "test": held})
    task = models.resnet18(shape, CLASSES) if model == "resnet18" else models.mlp(shape, CLASSES, hidden=[512])
    arguments: dict[str, Any] = {"task": task, "local": fljax.Local(0.05, 4, steps=1)}
    if algorithm == "iafl":
        arguments["contribution"] = jnp.linspace(0.2, 1, CLIENTS)
    plan = fljax.Plan(getattr(algorithms, algorithm), arguments)
    spec, inputs = partition_plan(plan, by_id(federation))
    # One client at a time on each device, so that the tables of models are seen and not the training.
    execution = fljax.Execution(clients=1, evaluation=1, devices=devices)
    layout = resolve(execution, shapes_of(spec, inputs, 1).sizes)
    programs = compile_all(spec, layout, 1, replicate(inputs, devices), jnp.zeros(1, jnp.uint32), quick=True)
    found: dict[str, Any] = {}
    for name, program in zip(PROGRAMS, programs, strict=True):
        told = program.memory_analysis()
        held_bytes = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
        found[name] = (held_bytes + told.temp_size_in_bytes) / MEBIBYTE
    found["state"] = programs[0].memory_analysis().output_size_in_bytes / MEBIBYTE
    return found


def markdown(report: dict[str, Any], before: dict[str, Any] | None) -> str:
    """The table of a report; in brackets, the numbers of one device divided by those of several."""
    title = "ResNet18 (10.9 million parameters)" if report["model"] == "resnet18" else "an MLP 784-512-10"
    lines = [
        f"# Memory on each device, {report['date'][:10]}",
        "",
        f"{CLIENTS} clients with {title}, all of them in a round. MiB on each host device, as XLA tells for the "
        "compiled program, and in brackets how many times less than on one device.",
        "",
        "| algorithm | devices | state between rounds | a round | an evaluation |"
        + " before: a round |" * bool(before),
        "|---|---|---|---|---|" + "---|" * bool(before),
    ]
    columns = [(report, ("state", "round", "evaluation")), *([(before, ("round",))] if before else [])]
    for case in report["cases"]:
        cells = []
        for found, names in columns:
            cells += _cells(found, case, names)
        lines.append(f"| {case['algorithm']} | {case['devices']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cells(report: dict[str, Any], case: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """The numbers of the case of a report with the same algorithm and devices."""
    own = [each for each in report["cases"] if each["algorithm"] == case["algorithm"]]
    same = [each for each in own if each["devices"] == case["devices"]]
    if not same or "error" in same[0]:
        return [same[0]["error"] if same else ""] + [""] * (len(names) - 1)
    return [f"{same[0][name]:,.0f} ({own[0][name] / same[0][name]:.1f})" for name in names]


if __name__ == "__main__":
    main()
