"""The reference product of the throughput table: of every pass the fastest, and named."""

from __future__ import annotations

import json
import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; the folder is no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import products  # pyright: ignore[reportMissingImports]

    return products


def test_of_every_pass_the_fastest_counts(products: Any) -> None:
    """XLA is the fastest in the median, torch in the last pass."""
    reference = products.reference(
        {"NumPy": [80.0, 81.0, 79.0], "XLA": [95.0, 96.0, 90.0], "torch": [90.0, 91.0, 97.0]}
    )
    assert reference.gflops == [95.0, 96.0, 97.0]
    assert reference.library == "XLA"


def test_a_library_that_died_counts_in_the_passes_before(products: Any) -> None:
    rates = {"NumPy": [80.0, 81.0], "torch": [90.0, None]}
    assert products.reference(rates) == ("torch", [90.0, 81.0])
    assert "NumPy 80 to 81, torch 90 to 90 GFLOP/s in 2 passes (not measured: XLA)" in products.in_words(rates)


@pytest.mark.parametrize("rates", [{}, {"NumPy": [None]}])
def test_a_pass_without_a_product_is_refused(products: Any, rates: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a product of NumPy, XLA or torch in every pass, got \{"):
        products.reference(rates)


def test_shares_are_those_of_the_fastest_product(products: Any) -> None:
    """90 GFLOP/s are 112 % of NumPy's 80, and 90 % of torch's 100."""
    import measuring  # pyright: ignore[reportMissingImports]

    worker = SimpleNamespace(resume=lambda: None, halt=lambda: None, ask=lambda name: {})
    entrant = SimpleNamespace(worker=worker, first_round=1.0, error=0.0, variant="", tried={}, rounds=1)
    workload = SimpleNamespace(client_steps=1, flops_per_round=9e9, tolerance=1.0)
    reference = products.reference({"NumPy": [80.0, 80.0], "torch": [100.0, 100.0]})
    summary = measuring.summarise(entrant, [10.0, 10.0], reference.gflops, workload, {})
    assert summary["gflops"] == 90.0
    assert summary["share_of_product"] == 0.9


def test_earlier_reports_are_still_drawn(products: Any) -> None:
    import tables  # pyright: ignore[reportMissingImports]

    report = json.loads((FOLDER / "results" / "archive" / "2026-11-24-throughput.json").read_text(encoding="utf-8"))
    text = tables.markdown(report, None)
    assert "products of 2048 x 2048: NumPy " in text
    assert "(not measured: XLA, torch); the fastest: NumPy" in text


def test_a_process_multiplies(products: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SIZE", 64)
    from workers import Contestant, Worker  # pyright: ignore[reportMissingImports]

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
