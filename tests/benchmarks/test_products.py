"""The reference product of the throughput table: of every pass the fastest, and named."""

from __future__ import annotations

import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import products
from benchmarks.peers.measuring import Entrant
from benchmarks.peers.throughput import row_of
from benchmarks.peers.workers import Contestant, Worker
from benchmarks.peers.workloads import WORKLOADS


def test_of_every_pass_the_fastest_counts() -> None:
    """XLA is the fastest in the median, torch in the last pass."""
    reference = products.reference(
        {"NumPy": [80.0, 81.0, 79.0], "XLA": [95.0, 96.0, 90.0], "torch": [90.0, 91.0, 97.0]}
    )
    assert (reference.gflops, reference.library) == ([95.0, 96.0, 97.0], "XLA")


def test_a_library_that_died_counts_in_the_passes_before() -> None:
    rates = {"NumPy": [80.0, 81.0], "torch": [90.0, None]}
    assert products.reference(rates) == ("torch", [90.0, 81.0])
    assert "NumPy 80 to 81, torch 90 to 90 GFLOP/s in 2 passes (not measured: XLA)" in products.in_words(rates)


@pytest.mark.parametrize("rates", [{}, {"NumPy": [None]}])
def test_a_pass_without_a_product_is_refused(rates: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a product of NumPy, XLA or torch in every pass, got \{"):
        products.reference(rates)


def test_shares_are_those_of_the_fastest_product() -> None:
    """90 GFLOP/s are 112 % of NumPy's 80, and 90 % of torch's 100."""
    worker: Any = SimpleNamespace(resume=lambda: None, halt=lambda: None, ask=lambda name: {"peak_bytes": 2**20})
    entrant = Entrant(Contestant("fljax", "fljax", "", "", (), ()), worker, "", 1, 1.0, 0.0, {})
    work = WORKLOADS["W3"]
    rate = 90e9 * work.client_steps / work.flops_per_round
    reference = products.reference({"NumPy": [80.0, 80.0], "torch": [100.0, 100.0]})
    row = row_of(entrant, work, {"fljax": [rate, rate]}, reference.gflops, "fljax")
    assert (row[:2], row[6:10]) == (("W3", "**fljax**"), ("90.0", "90 %", "1.0 s", 1.0))


def test_a_process_multiplies(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SIZE", 64)
    who = Contestant("NumPy", "product", "fljax", "product.py", ((),), ())
    worker = Worker(who, sys.executable, ("--library", "NumPy"), tmp_path / "none.npz", tmp_path / "log")
    rates: dict[str, list[float | None]] = {}
    try:
        assert "numpy" in worker.versions
        products.multiplied({"NumPy": worker}, rates, print)
    finally:
        worker.close()
    assert len(rates["NumPy"]) == 1
    assert (rates["NumPy"][0] or 0) > 0
