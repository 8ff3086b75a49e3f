"""The page about lying: what committed certificates say, and claims that are judged with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from docs import generate
from docs.generator import certificates as generator
from docs.generator.certificates import Claim, Explanation, judge, verdict_of, worst_of
from fljax import algorithms
from fljax.config import load
from fljax.experiments.certify import CONTROL


def row(name: str, low: float, high: float, **verdicts: int) -> dict[str, Any]:
    ends, middle = {"low": low, "high": high}, (low + high) / 2
    expected = {"mean": middle, **ends}
    return {"deviation": name, "client": 0, "gain": middle, **ends, "expected": expected, "verdicts": verdicts}


def mechanism(share: float, *rows: dict[str, Any]) -> dict[str, Any]:
    confirmed = {"deviation": "lie", "client": 1, "mean": 0.1, "low": 0.0, "high": 0.2}
    return {
        "irrational": {"share": share, "low": share - 0.1, "high": share + 0.1},
        "payoff": 0.7,
        "alone": 0.625,
        "verdict": "INCONCLUSIVE",
        "epsilon": {"low": -0.01, "high": 0.05},
        "seeds_needed": 1200,
        "worst": {"deviation": "lie", "client": 1, "gain": 0.1},
        "confirmed": confirmed,
        "attack": {**confirmed, "strategy": {"factor.size": 12.345}},
        "controls": [{"expected": "VIOLATED", "verdict": "VIOLATED"}],
        "seconds": 900.0,
        "cpu_seconds": 600.0,
        "deviations": list(rows),
    }


SETTING = {"config": "certificates/x", "clients": 3, "seeds": 20, "tolerance": 0.02, "confidence": 0.95}
SETTING |= {"deviators": [0, 2], "candidates": 20}
DOCUMENT: dict[str, Any] = {
    "setting": {**SETTING, "fljax": "1.0", "date": "2026-11-27", "hardware": {"cores": 2, "cpu": "a CPU"}},
    "mechanisms": {
        "a": mechanism(0.2, row("lie", 0.03, 0.05, VIOLATED=1, CERTIFIED=2), row("rest", -0.2, -0.1, CERTIFIED=3)),
        "b": mechanism(0.6, row("rest", -0.1, 0.1, INCONCLUSIVE=1, CERTIFIED=2)),
    },
}


@pytest.mark.parametrize(
    ("mechanism", "kind", "deviations", "other", "expected"),
    [
        ("a", "loses", ("rest",), "", "holds"),
        ("a", "loses", ("rest", "lie"), "", "fails"),
        ("b", "loses", ("rest",), "", "undecided"),
        ("b", "loses", ("lie",), "", "not run"),
        ("c", "loses", ("lie",), "", "not run"),
        ("a", "no_gain", ("rest",), "", "holds"),
        ("a", "no_gain", ("rest", "lie"), "", "fails"),
        ("b", "no_gain", ("rest",), "", "undecided"),
        ("a", "joined", (), "b", "holds"),
        ("b", "joined", (), "a", "fails"),
        ("a", "joined", (), "a", "undecided"),
        ("a", "joined", (), "c", "not run"),
    ],
)
def test_claims_are_judged(mechanism: str, kind: str, deviations: tuple[str, ...], other: str, expected: str) -> None:
    assert judge(Claim("p", "s", "w", mechanism, kind, deviations, other), DOCUMENT) == expected


def test_the_page() -> None:
    claim = Claim("INCFL", "Abstract", "Clients are better off.", "a", "joined", other="b")
    why = Explanation(("a",), "lie", "Since it is weighed more.")
    text = generator.page({"x": DOCUMENT}, [claim], [why])
    assert "3 clients, of which 0,2 deviate in turn, 20 seeds" in text
    command = "fljax certify certificates/x --tolerance 0.02 --deviators 0,2 --no-control --candidates 20"
    assert f"`{command}` does it again. All runs took 30 minutes by the clock." in text
    assert "Since it is weighed more." in text
    assert "**`b`, rest** (`certificates/x`): a client gains +0.0000 (-0.1000 to +0.1000) in the mean" in text
    assert "| deviation | `a` | `b` |" in text
    assert "| lie | **+0.040** (+0.030 to +0.050) | – |" in text
    assert "| rest | -0.150 (-0.200 to -0.100) | +0.000 (-0.100 to +0.100) |" in text
    assert "| lie | **+0.040** | – |" in text
    assert "| rest | -0.150 | +0.000 ? |" in text
    first = next(line for line in text.splitlines() if line.startswith("| `a` | 20% (10% to 30%) |"))
    assert "| 0.700 (0.625) | INCONCLUSIVE (1,200 seeds would decide) | 0.2000 | -0.0100 to +0.0500 |" in first
    assert "factor.size 12.3: +0.1000 (+0.0000 to +0.2000)" in first
    assert first.endswith("| 1 of 1 | 10 |")
    assert "| INCFL | Clients are better off. | Abstract | `a` | **holds** |" in text
    beside = {"mean": -0.01, "low": -0.02, "high": 0.0}
    mechanisms = {label: {**entry, "beside_first": beside} for label, entry in DOCUMENT["mechanisms"].items()}
    unseen = {**mechanisms["b"], "deviations": [{**DOCUMENT["mechanisms"]["b"]["deviations"][0]}]}
    unseen["deviations"][0]["verdicts"] = {"NO EFFECT SEEN": 3}
    mechanisms |= {"b": unseen}
    asked = {**DOCUMENT["setting"], "cost": 0.05, "tried": ["lie", "rest"]}
    text = generator.page({"x": {"setting": asked, "mechanisms": mechanisms}}, [])
    assert '--tolerance 0.02 --deviators 0,2 --deviations "lie,rest" --cost 0.05 --no-control --candidates 20`' in text
    assert "INCONCLUSIVE (1,200 seeds would decide) | – | -0.0100 to +0.0500 |" in text
    assert "| CPU-minutes | payoff beyond `a` |" in text
    assert "| 10 | -0.0100 (-0.0200 to +0.0000) |" in text
    assert text.index("less than alone") < text.index("mechanism by deviation")
    assert [verdict_of(entry) for entry in DOCUMENT["mechanisms"]["a"]["deviations"]] == ["VIOLATED", "CERTIFIED"]


def test_the_largest_gains_are_of_different_mechanisms() -> None:
    gains = {("x", "a"): 0.3, ("x", "b"): 0.1, ("y", "a"): 0.2, ("y", "b"): 0.4, ("y", "c"): 0.05, ("y", "d"): 0.0}
    documents: dict[str, Any] = {}
    for (name, label), gain in gains.items():
        entry: dict[str, Any] = {"deviations": [row("lie", gain, gain), row("rest", -0.1, 0.0)]}
        documents.setdefault(name, {"setting": {}, "mechanisms": {}})["mechanisms"][label] = entry
    documents["z"] = {"setting": {"cost": 0.05}, "mechanisms": {"e": {"deviations": [row("rest", 0.9, 0.9)]}}}
    documents["x"]["mechanisms"][CONTROL] = {"deviations": [row("lie", 0.9, 0.9)]}
    assert [(name, label) for name, label, _ in worst_of(documents)] == [("y", "b"), ("x", "a"), ("y", "c")]


def test_the_largest_gains_are_explained() -> None:
    known = {(label, each.deviation) for each in generator.read_explanations() for label in each.mechanisms}
    for _, label, cell in worst_of(generator.committed()):
        assert (label, cell["deviation"]) in known


def test_claims_are_about_the_committed_configs() -> None:
    labels = [entry.label for entry in load("certificates/fmnist_dirichlet").algorithms]
    for claim in generator.read_claims():
        assert {claim.mechanism, claim.other} - {""} <= set(labels), claim
    assert set(labels) - set(algorithms.REGISTRY) == {"fedavg_uniform", "iafl_measured"}


def test_there_is_a_page_if_there_are_certificates() -> None:
    committed = sorted(generator.COMMITTED.glob("*.json"))
    assert set(generator.pages()) == ({generator.PAGE} if committed else set())
    for path in committed:
        assert json.loads(path.read_text())["setting"]["config"] == f"certificates/{path.stem}"
    shown = [entry for entry in generate.navigation()["Methods"] if isinstance(entry, dict)]
    assert ({"Does it pay to lie?": generator.PAGE} in shown) == bool(committed)
