"""The reference product of the throughput table: the fastest float32 matrix product that the machine can do.

NumPy, XLA and torch multiply the same two matrices in every pass, each in a process of its own, on all cores. On some
machines the slowest of them takes half as long again as the fastest, and fljax, which has XLA's product, would then
use more than all of the machine. Of every pass the fastest of the three counts.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import environments
from benchmarks.peers.workers import Contestant, Worker, WorkerError

SIZE = 2048
# The environment in which a library multiplies.
LIBRARIES = {"NumPy": environments.OWN, "XLA": environments.OWN, "torch": "torch"}
# GFLOP/s by library and pass; None: the process died before.
Products = Mapping[str, Sequence[float | None]]


class Reference(NamedTuple):
    """The reference product of some passes."""

    library: str  # whose product is the fastest in the median over passes
    gflops: list[float]  # ``[passes]``, GFLOP/s of the fastest product of each pass, of any library


def reference(products: Products) -> Reference:
    """The fastest product of each pass, and the library that is the fastest in the median."""
    by_pass = [[rate for rate in rates if rate is not None] for rates in zip(*products.values(), strict=True)]
    if not by_pass or not all(by_pass):
        raise ValueError(f"expected a product of NumPy, XLA or torch in every pass, got {dict(products)}")
    medians = {name: statistics.median(known) for name, known in _known(products).items()}
    return Reference(max(medians, key=lambda name: medians[name]), [max(rates) for rates in by_pass])


def in_words(products: Products) -> str:
    """One line: what each library's product reaches, and which is the fastest."""
    ranges = ", ".join(f"{name} {min(known):.0f} to {max(known):.0f}" for name, known in _known(products).items())
    passes = len(next(iter(products.values())))
    line = f"products of {SIZE} x {SIZE}: {ranges} GFLOP/s in {passes} passes"
    absent = [name for name in LIBRARIES if name not in _known(products)]
    line += f" (not measured: {', '.join(absent)})" if absent else ""
    return f"{line}; the fastest: {reference(products).library}"


def _known(products: Products) -> dict[str, list[float]]:
    known = {name: [rate for rate in rates if rate is not None] for name, rates in products.items()}
    return {name: rates for name, rates in known.items() if rates}


@contextlib.contextmanager
def multiplying(file: Path, folder: Path, scratch: Path) -> Iterator[dict[str, Worker]]:
    """Halted processes that multiply, by library; one whose environment is missing, or that fails, is left out."""
    reason = "no library multiplies"
    workers: dict[str, Worker] = {}
    try:
        for name, environment in LIBRARIES.items():
            python = environments.python_of(folder, environment)
            if python is None:
                continue
            who = Contestant(name, "product", environment, "product.py", ((),), ())
            try:
                workers[name] = Worker(who, python, ("--library", name), file, scratch / f"product-{name}.log")
            except WorkerError as error:
                reason = str(error)
                continue
            workers[name].halt()
        if not workers:
            raise WorkerError(reason)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def multiplied(workers: dict[str, Worker], products: dict[str, list[float | None]], say: Callable[[str], None]) -> None:
    """Adds the rates of one more pass to ``products``; None for a process that died."""
    for name, worker in workers.items():
        rates, rate = products.setdefault(name, []), None
        if None not in rates:
            worker.resume()
            try:
                rate = worker.ask("product", size=SIZE)["gflops"]
            except WorkerError as reason:
                say(f"  {name}'s product: {reason}")
                worker.close()
            worker.halt()
        rates.append(rate)
    if all(rates[-1] is None for rates in products.values()):
        raise WorkerError("no library multiplies any more")
