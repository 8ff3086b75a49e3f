"""The page about lying: committed certificates of mechanisms, and what papers say that can be read off them.

``benchmarks/run.py certificates --part commit`` writes the certificates. Without any there is no page.
"""

from __future__ import annotations

import json
import math
import pathlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from docs.generator.markdown import table
from fljax.experiments.certify import CONTROL, Question

ROOT = pathlib.Path(__file__).parents[2]
COMMITTED = ROOT / "benchmarks" / "results" / "certificates"
CLAIMS = ROOT / "docs" / "certificate_claims.toml"
PAGE = "methods/certificates.md"
HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "fails", "undecided", "not run"
WORST = 3  # gains that the page explains
# Marks of verdicts on a deviation of all clients.
_MARKS = {"VIOLATED": "**", "INCONCLUSIVE": "?", "NO EFFECT SEEN": "=", "CERTIFIED": ""}

_OUTSIDE = {
    "standalone": "Alone a client has a standalone model, by `[standalone]` of the config.",
    "mechanism": "Alone a client has the mechanism with itself as the only member.",
}

OPENING = """# Does it pay to lie?

In each of these mechanisms, one client at a time deviates, while the others are honest: it trains less, rides free,
scales or flips its update, or reports false values of everything that the mechanism asks for. Its gain is the increase
of its payoff, with the same data, initial weights and batches. Each seed deals the data anew. [Another
page](../howto/certificates.md) says how to read a certificate, and how to make one.

- **Individual rationality comes first**: if most clients have less than alone, it pays to contribute nothing under any
  mechanism.
- Each side of the bounds holds for all clients that deviate and all deviations of a mechanism at once; gains are often
  skewed, so the bounds of a single gain hold less often. A tolerance below the lower bound of the largest gain is
  violated. A tolerance above the upper bound is not violated by any tried deviation. Between both, more seeds are
  needed. "Certified from" is the least tolerance that is above all of these bounds and that of the
  attack; there is none where some gain is the same with all seeds.
- We tried only the deviations below, and searched for an attack: a client may gain more by another deviation.
- This page is generated from `benchmarks/results/certificates`, which `benchmarks/run.py certificates` writes.
"""

EXPECTED = """### Expected gain, mechanism by deviation

This is the gain of a client before the data are dealt: the mean over clients, with bounds that hold for all deviations
of a mechanism at once. **Bold**: the client gains. –: the mechanism never reads what the deviation changes.
"""

DEVIATIONS = """### Largest gain, mechanism by deviation

This is the mean gain of the client that gains most. **Bold**: above the tolerance for some client (violated). ?:
undecided for some client. =: for some client the gain is the same with all seeds, so no effect is seen and none is
excluded. Plain: at most the tolerance for all that deviate (certified). –: the mechanism never reads what the
deviation changes.
"""


class Claim(NamedTuple):
    """What a paper says.

    Attributes:
      paper: its name.
      printed: where.
      statement: in our words.
      mechanism: the label that it is about.
      kind: "loses", "no_gain" or "joined".
      deviations: names, for the first two kinds.
      other: the label of another mechanism, for "joined".
    """

    paper: str
    printed: str
    statement: str
    mechanism: str
    kind: str
    deviations: tuple[str, ...] = ()
    other: str = ""


class Explanation(NamedTuple):
    """Why a client gains by a deviation, from the equations.

    Attributes:
      mechanisms: labels.
      deviation: its name.
      words: Markdown.
    """

    mechanisms: tuple[str, ...]
    deviation: str
    words: str


def pages() -> dict[str, str]:
    """The page by its path; empty without committed certificates."""
    documents = committed()
    return {PAGE: page(documents, read_claims(), read_explanations())} if documents else {}


def committed() -> dict[str, dict[str, Any]]:
    """The committed files by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(COMMITTED.glob("*.json"))}


def read_explanations() -> list[Explanation]:
    """The explanations of the file of claims."""
    entries = tomllib.loads(CLAIMS.read_text())["explanations"]
    return [Explanation(**{**entry, "mechanisms": tuple(entry["mechanisms"])}) for entry in entries]


def read_claims() -> list[Claim]:
    """The claims of the file.

    Raises:
      ValueError: if one has an unknown kind, or lacks what its kind needs.
    """
    claims = [
        Claim(**{**entry, "deviations": tuple(entry.get("deviations", ()))})
        for entry in tomllib.loads(CLAIMS.read_text())["claims"]
    ]
    for claim in claims:
        needed = {"loses": claim.deviations, "no_gain": claim.deviations, "joined": claim.other}
        if not needed.get(claim.kind):
            raise ValueError(f"expected a claim with its deviations or another mechanism, got {claim}")
    return claims


def page(
    documents: Mapping[str, Mapping[str, Any]], claims: Sequence[Claim], explanations: Sequence[Explanation] = ()
) -> str:
    """The page as Markdown.

    Args:
      documents: committed files by name.
      claims: that are judged with each of them.
      explanations: of the largest gains.
    """
    parts = [OPENING, _explained(documents, explanations)]
    for document in documents.values():
        setting, mechanisms = document["setting"], document["mechanisms"]
        parts += [_heading(setting, mechanisms), _mechanisms(mechanisms)]
        parts += [EXPECTED, _deviations(mechanisms, _expected), DEVIATIONS, _deviations(mechanisms, _gain)]
        rows = [
            (claim.paper, claim.statement, claim.printed, f"`{claim.mechanism}`", f"**{judge(claim, document)}**")
            for claim in claims
            if claim.mechanism in mechanisms
        ]
        head = ("paper", "claim", "place in the paper", "mechanism", "here")
        parts += [f"### What papers say\n\n{table(head, rows)}\n"] if rows else []
    return "\n".join(parts)


def worst_of(documents: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The largest expected gains: (name of the document, label, row), of different mechanisms and deviations."""
    found: dict[tuple[str, str], tuple[str, str, Mapping[str, Any]]] = {}
    # Where training has a cost, saving it is a gain under any mechanism.
    for name, document in documents.items():
        for label, entry in document["mechanisms"].items() if not document["setting"].get("cost") else ():
            row = max(entry["deviations"], key=_gain_expected)
            before = found.get((label, row["deviation"]))
            if label != CONTROL and (before is None or _gain_expected(before[2]) < _gain_expected(row)):
                found[label, row["deviation"]] = (name, label, row)
    return sorted(found.values(), key=lambda each: -_gain_expected(each[2]))[:WORST]


def _gain_expected(row: Mapping[str, Any]) -> float:
    return row["expected"]["mean"]


def _explained(documents: Mapping[str, Mapping[str, Any]], explanations: Sequence[Explanation]) -> str:
    """The largest expected gains, each with the confirmed gain of its mechanism's worst client, and why."""
    words = {(label, each.deviation): each.words.strip() for each in explanations for label in each.mechanisms}
    parts = ["## The largest gains, and why\n"]
    for name, label, row in worst_of(documents):
        config, half = documents[name]["setting"]["config"], documents[name]["mechanisms"][label]["confirmed"]
        parts.append(
            f"**`{label}`, {row['deviation']}** (`{config}`): a client gains {_interval(row['expected'])} in the mean "
            f"over clients. Half of the seeds chose {half['deviation']} of client {half['client']}, which gains "
            f"{_interval(half)} with the other half.\n"
        )
        if (label, row["deviation"]) in words:
            parts.append(words[label, row["deviation"]] + "\n")
    return "\n".join(parts)


def _heading(setting: Mapping[str, Any], mechanisms: Mapping[str, Mapping[str, Any]]) -> str:
    seconds = [entry["seconds"] for entry in mechanisms.values()]
    took = "" if None in seconds else f" All runs took {sum(seconds) / 60:.0f} minutes by the clock."
    name, hardware = setting["config"], setting.get("hardware", {})
    where = f" on {hardware['cores']} cores of {hardware['cpu']}" if "cpu" in hardware else ""
    ids, candidates = ",".join(map(str, setting["deviators"])), setting["candidates"]
    every = len(setting["deviators"]) == setting["clients"]
    who = "each of which deviates in turn" if every else f"of which {ids} deviate in turn"
    command = f"fljax certify {name} --tolerance {setting['tolerance']:g}" + ("" if every else f" --deviators {ids}")
    command += f' --deviations "{",".join(tried)}"' if (tried := setting.get("tried")) else ""
    command += f" --cost {cost:g}" if (cost := setting.get("cost")) else ""
    command += "" if any(label == CONTROL for label in mechanisms) else " --no-control"
    command += "" if candidates == Question().candidates else f" --candidates {candidates}"
    return (
        f"## `{name}`\n\n{setting['clients']} clients, {who}, {setting['seeds']} seeds, "
        f"tolerance {setting['tolerance']:g}, confidence {100 * setting['confidence']:g} %; "
        f"fljax {setting['fljax']}, {setting['date']}{where}. "
        f"`{command}` does it again.{took} {_OUTSIDE[setting.get('outside', 'mechanism')]}\n"
    )


def _mechanisms(mechanisms: Mapping[str, Mapping[str, Any]]) -> str:
    head = (
        "mechanism",
        "less than alone",
        "payoff (alone)",
        "verdict",
        "certified from",
        "largest gain",
        "worst",
        "confirmed",
        "attack",
        "controls",
        "CPU-minutes",
    )
    first, rows = next(iter(mechanisms)), [(f"`{label}`", *_mechanism(each)) for label, each in mechanisms.items()]
    if "beside_first" in mechanisms[first]:  # in certificates from 0.4 on
        head += (f"payoff beyond `{first}`",)
        rows = [(*row, _interval(each["beside_first"])) for row, each in zip(rows, mechanisms.values(), strict=True)]
    return table(head, rows) + "\n"


def _mechanism(entry: Mapping[str, Any]) -> tuple[str, ...]:
    share, epsilon, worst, confirmed = (entry[key] for key in ("irrational", "epsilon", "worst", "confirmed"))
    attack, controls, seconds = entry["attack"], entry["controls"], entry["cpu_seconds"]
    passed = sum(control["verdict"] == control["expected"] for control in controls)
    seeds = "" if entry["seeds_needed"] is None else f" ({entry['seeds_needed']:,} seeds would decide)"
    return (
        "–" if share is None else f"{share['share']:.0%} ({share['low']:.0%} to {share['high']:.0%})",
        f"{entry['payoff']:.3f} " + ("(–)" if entry["alone"] is None else f"({entry['alone']:.3f})"),
        f"{entry['verdict']}{seeds}",
        certified_from(entry),
        f"{epsilon['low']:+.4f} to {epsilon['high']:+.4f}",
        f"{worst['deviation']}, client {worst['client']}: {worst['gain']:+.4f}",
        f"{confirmed['deviation']}: {_interval(confirmed)}",
        "–" if attack is None else f"{_in_words(attack['strategy'])}: {_interval(attack)}",
        f"{passed} of {len(controls)}" if controls else "–",
        "–" if seconds is None else f"{seconds / 60:.0f}",
    )


def certified_from(entry: Mapping[str, Any]) -> str:
    """The least tolerance at which the verdict would be CERTIFIED; a dash where a gain is the same with all seeds."""
    if any("NO EFFECT SEEN" in row["verdicts"] for row in entry["deviations"]):
        return "–"
    bounds = [0.0, entry["epsilon"]["high"], *([] if entry["attack"] is None else [entry["attack"]["high"]])]
    return f"{math.ceil(1e4 * max(bounds)) / 1e4:.4f}"


def _interval(entry: Mapping[str, Any]) -> str:
    return f"{entry['mean']:+.4f} ({entry['low']:+.4f} to {entry['high']:+.4f})"


def _in_words(strategy: Mapping[str, float]) -> str:
    return ", ".join(f"{field} {number:.3g}" for field, number in strategy.items())


def _deviations(mechanisms: Mapping[str, Mapping[str, Any]], cell: Callable[[Mapping[str, Any] | None], str]) -> str:
    """Rows are deviations, and columns mechanisms."""
    by_label = {label: {row["deviation"]: row for row in entry["deviations"]} for label, entry in mechanisms.items()}
    names = dict.fromkeys(name for rows in by_label.values() for name in rows)
    rows = [(name, *(cell(of_label.get(name)) for of_label in by_label.values())) for name in names]
    return table(("deviation", *(f"`{label}`" for label in by_label)), rows) + "\n"


def _expected(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    expected = row["expected"]
    mark = "**" if expected["low"] > 0 else ""
    return f"{mark}{expected['mean']:+.3f}{mark} ({expected['low']:+.3f} to {expected['high']:+.3f})"


def _gain(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    number, verdict = f"{row['gain']:+.3f}", verdict_of(row)
    return f"**{number}**" if verdict == "VIOLATED" else f"{number} {_MARKS[verdict]}".rstrip()


def verdict_of(row: Mapping[str, Any]) -> str:
    """The verdict on a deviation of all clients: the first of violated, inconclusive and unseen, or certified."""
    return next(verdict for verdict in _MARKS if verdict in row["verdicts"])


def judge(claim: Claim, document: Mapping[str, Any]) -> str:
    """Whether a claim holds in a setting: "holds", "fails", "undecided", or "not run".

    - "loses": it holds if the upper bounds of the expected gains are below 0, and fails if a lower bound is above 0.
    - "no_gain": it holds if each deviation is certified, and fails if one is violated.
    - "joined": by intervals of the share of clients with less than alone.

    Args:
      claim: of a paper.
      document: a committed file.
    """
    mechanisms = document["mechanisms"]
    if claim.mechanism not in mechanisms or (claim.kind == "joined" and claim.other not in mechanisms):
        return NOT_RUN
    entry = mechanisms[claim.mechanism]
    if claim.kind == "joined":
        here, there = entry["irrational"], mechanisms[claim.other]["irrational"]
        if here is None or there is None:
            return NOT_RUN
        return HOLDS if here["high"] < there["low"] else FAILS if here["low"] > there["high"] else UNDECIDED
    rows = {row["deviation"]: row for row in entry["deviations"]}
    if not set(claim.deviations) <= rows.keys():
        return NOT_RUN
    chosen = [rows[name] for name in claim.deviations]
    if claim.kind == "no_gain":
        verdicts = {verdict_of(row) for row in chosen}
        return FAILS if "VIOLATED" in verdicts else HOLDS if verdicts == {"CERTIFIED"} else UNDECIDED
    if any(row["expected"]["low"] > 0 for row in chosen):
        return FAILS
    return HOLDS if all(row["expected"]["high"] < 0 for row in chosen) else UNDECIDED
