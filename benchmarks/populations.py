"""What a round costs by the size of the population: ``python benchmarks/populations.py``.

Logistic regression (60 features, 10 classes), 100 clients in each round, 10^2 to 10^6 clients. Clients are even (7 rows
each) or ragged (4 to 10 rows, and one client with 2,000). Examples and the states of clients are on the device or on
the host. Each case runs in a process of its own. The table gives the time of a round and the peak of the process's
memory beyond what it held before the federation was made.
``--source FOLDER`` measures the fljax of another checkout.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from environments import plain
from throughput import RESULTS, hardware

ALGORITHMS = ("fedavg", "incfl", "scaffold")
FORMS = ("even", "ragged")
PLACES = ("device", "host")
COHORT, FEATURES, CLASSES, POOL = 100, 60, 10, 20_000
MEBIBYTE = 2**20
LIMIT_SECONDS = 1200.0


def main() -> None:
    """Measures case after case; what has been measured is saved after each."""
    parser = argparse.ArgumentParser(description="Time and memory of a round by the size of the population.")
    parser.add_argument("--clients", default="100,1000,10000,100000,1000000", help="comma-separated")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="comma-separated")
    parser.add_argument("--forms", default=",".join(FORMS), help="comma-separated: even, ragged")
    parser.add_argument("--places", default=",".join(PLACES), help="comma-separated: device, host")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--source", default="", metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--out", type=Path, help="JSON file; a table (.md) is put beside it")
    parser.add_argument("--case", nargs=4, metavar=("CLIENTS", "ALGORITHM", "FORM", "PLACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        clients, algorithm, form, place = options.case
        print(json.dumps(measure(int(clients), algorithm, form, place, options.rounds, options.source)))
        return
    out = options.out or RESULTS / f"{datetime.date.today()}-populations.json"
    found: list[dict[str, Any]] = []
    given = (options.algorithms.split(","), options.forms.split(","), options.clients.split(","))
    for algorithm, form, clients, place in itertools.product(*given, options.places.split(",")):
        found.append(_process(int(clients), algorithm, form, place, options))
        report = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S+00:00}"}
        report |= {"hardware": hardware(), "rounds": options.rounds, "source": options.source, "cases": found}
        out.write_text(json.dumps(report, indent=1) + "\n")
        out.with_suffix(".md").write_text(markdown(report))
    print(out.with_suffix(".md").read_text())


def _process(clients: int, algorithm: str, form: str, place: str, options: argparse.Namespace) -> dict[str, Any]:
    """One case in a new process; where it fails, the last line of its error."""
    case = {"clients": clients, "algorithm": algorithm, "form": form, "place": place}
    command = [sys.executable, __file__, "--rounds", str(options.rounds), "--source", options.source]
    command += ["--case", str(clients), algorithm, form, place]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return case | {"error": f"not done in {LIMIT_SECONDS:.0f} s"}
    if done.returncode:
        return case | {"error": plain((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])}
    print(case, done.stdout.strip(), flush=True)
    return case | json.loads(done.stdout.splitlines()[-1])


def measure(clients: int, algorithm: str, form: str, place: str, rounds: int, source: str) -> dict[str, float]:
    """Milliseconds of a round and mebibytes: of the data, and of the peak beyond the process before it."""
    if source:
        sys.path.insert(0, source)
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fljax
    from fljax import algorithms, models
    from fljax.core import trees

    jax.block_until_ready(jnp.zeros(1))
    before = _memory("VmRSS")
    data = federation(clients, form)
    held = trees.bytes_of(data)
    how: dict[str, Any] = {}
    if place == "host":
        data = data._replace(
            examples=data.examples._replace(x=np.asarray(data.examples.x), y=np.asarray(data.examples.y))
        )
        how = {"execution": fljax.Execution(examples="host", client_states="host")}
    task = models.logistic_regression((FEATURES,), CLASSES)
    more: dict[str, Any] = {"threshold": 1.0} if algorithm == "incfl" else {}
    chosen = getattr(algorithms, algorithm)(task, fljax.Local(0.05, 4, steps=5), clients_per_round=COHORT, **more)
    # The cores of this machine are shared, so the quickest of three blocks of rounds counts.
    seconds, state = [], None
    for _ in range(3):
        result = fljax.simulate(chosen, data, rounds=rounds, evaluate_every=rounds, initial=state, **how)
        seconds.append(float(result.metrics["seconds_train"]) / rounds)
        state = result.state
    tables = held - trees.bytes_of(data.examples)
    return {
        "milliseconds": 1e3 * min(seconds),
        "tables": tables / MEBIBYTE,
        "data": held / MEBIBYTE,
        "peak": _memory("VmHWM") - before,
    }


def _memory(name: str) -> float:
    """Mebibytes of this process: its memory now (VmRSS), or the largest so far (VmHWM)."""
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024


def federation(clients: int, form: str) -> Any:
    """Clients with some rows each, out of one pool; each is tested on one row."""
    import jax.numpy as jnp
    import numpy as np

    from fljax import protocol

    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(POOL, FEATURES)), jnp.float32)
    examples = protocol.Examples(x, jnp.asarray(random.integers(0, CLASSES, POOL), jnp.int32))
    size = np.full(clients, 7) if form == "even" else random.integers(4, 11, clients)
    size[0] = 7 if form == "even" else 2_000
    id = jnp.arange(clients, dtype=jnp.int32)
    one = jnp.ones(clients, jnp.int32)
    if hasattr(protocol, "Spans"):
        lists = jnp.asarray(random.integers(0, POOL, int(size.sum())), jnp.int32)
        start = jnp.asarray(np.cumsum(size) - size, jnp.int32)
        train = protocol.Rows(protocol.Spans(start, int(size.max())), jnp.asarray(size, jnp.int32))
        few = protocol.Rows(protocol.Spans(start, 1), one)
        return protocol.Federation(examples, protocol.ClientData(id, train, few, few), lists=lists)
    index = jnp.asarray(random.integers(0, POOL, (clients, int(size.max())), dtype=np.int32))
    few = protocol.Rows(index[:, :1], one)
    return protocol.Federation(
        examples, protocol.ClientData(id, protocol.Rows(index, jnp.asarray(size, jnp.int32)), few, few)
    )


def markdown(report: dict[str, Any]) -> str:
    """The table of a report."""
    lines = [
        f"# A round by the size of the population, {report['date'][:10]}",
        "",
        f"Logistic regression, {COHORT} clients in each of {report['rounds']} rounds, 5 steps of 4 rows. Memory in "
        "MiB: tables are the clients' lists of rows; peak is that of the process beyond what it held before the data "
        f"were made, so that it contains them, compiling and evaluation. {report['hardware'].get('cpu', '')}",
        "",
        "| algorithm | clients | form | data and states | ms per round | tables | data | peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in report["cases"]:
        head = f"| {case['algorithm']} | {case['clients']:,} | {case['form']} | {case['place']} |"
        if "error" in case:
            lines.append(f"{head} {case['error']} | | | |")
            continue
        numbers = (f"{case['milliseconds']:.2f}", *(f"{case[name]:.1f}" for name in ("tables", "data", "peak")))
        lines.append(" ".join([head, *(f"{number} |" for number in numbers)]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
