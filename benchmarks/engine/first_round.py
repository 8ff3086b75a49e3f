"""Seconds to the first round, with and without compiled programs on disk.

Every number is the time of a fresh process from its first call to the end of one round, imports and data excluded:
fljax as it chooses itself, and JAX by hand. *Cold* processes have no compiled programs; *warm* ones read those that a
process before wrote. The quick start is the command from its start to its end, report included; it has no form in JAX
by hand. Processes run one at a time, in an order drawn anew for every repetition. Medians, with the smallest and the
largest.
"""

from __future__ import annotations

import random
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine.pairs import first_round, quick_start
from benchmarks.peers.environments import OWN
from benchmarks.peers.measuring import export
from benchmarks.peers.workers import Contestant, WorkerError
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.reporting import Row, middle, names_in

QUICK_START = "quick_start"


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each workload and form."""
    for name in names_in(options.workloads, (*WORKLOADS, QUICK_START), "workload"):
        with tempfile.TemporaryDirectory(prefix="fljax-first-") as scratch:
            try:
                yield from of_workload(name, options, Path(scratch))
            except WorkerError as reason:
                yield name, f"skipped: {reason}"


def of_workload(name: str, options: Namespace, scratch: Path) -> Iterator[Row]:
    """Cold and warm processes of all forms."""
    file = None if name == QUICK_START else export(WORKLOADS[name], scratch)
    forms = [
        Contestant(title, title, OWN, "fljax_.py", (("--clients", "auto", "--source", str(at)),), (name,))
        for title, at in options.sources.items()
    ]
    if file is not None:
        by_hand = ("--clients", "scan", "--devices", "all")
        forms.append(Contestant("JAX by hand", "bare", OWN, "bare_jax.py", (by_hand,), (name,)))
    found: dict[str, tuple[list[float], list[float]]] = {each.name: ([], []) for each in forms}
    for turn in range(options.repetitions):
        for form in random.Random(turn).sample(forms, len(forms)):
            cache = scratch / f"{form.name}-{turn}"
            for seconds in found[form.name]:
                if file is None:
                    seconds.append(quick_start(options.sources[form.name], cache, scratch / "run")[0][0])
                else:
                    seconds.append(first_round(form, file, cache, scratch / "log")[0])
    for title, (cold, warm) in found.items():
        yield name, title, middle(cold), middle(warm)
