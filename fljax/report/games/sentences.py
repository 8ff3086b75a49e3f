"""What a certificate says in sentences; the datasets are those of ``fljax.games.certificate_dataset``."""

from __future__ import annotations

import numpy as np
import xarray as xr

from fljax.report.style import printable

_COUNTED = (("deviation", "deviation"), ("deviator", "client"))
_OUTSIDE = {
    "standalone": "without joining, by standalone models",
    "mechanism": "without joining, by the mechanism with one member",
}


def name_of(certificate: xr.Dataset, cell: int) -> str:
    """The name of the client that deviates in a cell."""
    return printable(str(certificate["name"].values[int(certificate["deviator"][cell])]), 30)


def cell_in_words(certificate: xr.Dataset, cell: int) -> str:
    """``client 2, update times 4``."""
    return f"client {name_of(certificate, cell)}, {certificate['deviation'].values[cell]}"


def rationality_sentence(certificate: xr.Dataset) -> str | None:
    """How many clients should not have joined; None if outside options are not known."""
    if "irrational" not in certificate:
        return None
    share, low, high = (100 * float(certificate[f"irrational{end}"]) for end in ("", "_low", "_high"))
    outside = _OUTSIDE.get(str(certificate["outside_is"].values), "without joining")
    words = f"{share:.1f} % of the clients have less than {outside} (from {low:.1f} to {high:.1f} %)."
    return words + (" Where most do, it pays to contribute nothing." if share > 50 else "")


def certificate_sentences(certificate: xr.Dataset) -> list[str]:
    """What a certificate says beside its cells: who should join, the verdict, the worst cell, and what it is about.

    Args:
      certificate: of ``fljax.games.certificate_dataset``.
    """
    first = rationality_sentence(certificate)
    sentences: list[str] = [] if first is None else [first]
    sure = f"{100 * float(certificate['confidence']):g} %"
    sentences.append(f"{verdict_in_words(certificate)}.")
    if np.isfinite(certificate["seeds_needed"]):
        sentences.append(f"About {int(certificate['seeds_needed']):,} seeds would decide.")
    unseen, seeds = int((certificate["verdict_of_cell"] == "NO EFFECT SEEN").sum()), certificate.sizes["seed"]
    if unseen:
        rare = 100 * (1 - (1 - float(certificate["confidence"])) ** (1 / seeds))
        sentences.append(
            f"No effect seen in {unseen} of {certificate.sizes['cell']} cells, whose gain is the same with all seeds. "
            f"This bounds no gain: in up to {rare:.0f} % of all draws a cell may gain something else ({sure})."
        )
    if "harmful_cell" in certificate:
        worst, *ends = (certificate[f"harmful_{name}"].item() for name in ("cell", "low", "high"))
        sentences.append(
            f"The others lose in {int(certificate['harmful_count'])} of {certificate.sizes['cell']} cells, in which "
            f"the largest gain is from {ends[0]:.4g} to {ends[1]:.4g} ({cell_in_words(certificate, worst)})."
        )
    cells, half = [int(certificate[name]) for name in ("worst", "confirmed_cell")], seeds // 2
    names = [cell_in_words(certificate, cell) for cell in cells]
    ends = [float(certificate[f"confirmed_{name}"]) for name in ("mean", "low", "high")]
    sentences.append(
        f"Largest mean gain: {names[0]}, {float(certificate['mean'][cells[0]]):+.4f}. Chosen with {half} seeds and "
        f"reported with the others: {names[1]}, {ends[0]:+.4f} (from {ends[1]:+.4f} to {ends[2]:+.4f}, {sure})."
    )
    sentences += [*_attack_in_words(certificate, half, sure), *_controls_in_words(certificate)]
    sentences += _of_single_seeds(certificate, sure)
    lost = int(certificate["diverged"].sum() + certificate["honest_diverged"].sum())
    if lost:
        runs = "1 run diverged and counts" if lost == 1 else f"{lost} runs diverged and count"
        sentences.append(f"{runs} as the worst utility.")
    tried = {name: len(set(certificate[name].values)) for name, _ in _COUNTED}
    words = [f"{tried[name]} {word}{'s' * (tried[name] > 1)}" for name, word in _COUNTED]
    sentences.append(
        f"Tried: {words[0]} of {words[1]}, each one alone while all others are honest. "
        "A client may gain more by a deviation that was not tried. Gains are means over seeds. They are often skewed: "
        "the bounds of a single cell then hold less often than they say."
    )
    return sentences


def _attack_in_words(certificate: xr.Dataset, half: int, sure: str) -> list[str]:
    if "attack_client" not in certificate:
        return []
    mean, low, high = (float(certificate[f"attack_{name}"]) for name in ("mean", "low", "high"))
    numbers = zip(certificate["attack_field"].values, certificate["attack_number"].values, strict=True)
    strategy = ", ".join(f"{field} {float(number):.3g}" for field, number in numbers)
    beyond = " It violates the tolerance." if low > float(certificate["tolerance"]) else ""
    attacker = certificate["name"].values[int(certificate["attack_client"])]
    return [
        f"Attack: the best of {int(certificate['attack_candidates'])} strategies of client "
        f"{attacker}, chosen with {half} seeds ({strategy}), gains {mean:+.4f} with the others (from {low:+.4f} to "
        f"{high:+.4f}, {sure}).{beyond}"
    ]


def _controls_in_words(certificate: xr.Dataset) -> list[str]:
    if "control_name" not in certificate:
        return []
    columns = (certificate[f"control_{part}"].values.tolist() for part in ("name", "expected", "verdict"))
    controls = list(zip(*columns, strict=True))
    failed = [
        f"Control failed: {name} should be {expected} and is {verdict}, so the verdict says little."
        for name, expected, verdict in controls
        if expected != verdict
    ]
    named = "; ".join(f"{name}: {verdict}" for name, _, verdict in controls)
    return failed or [f"Controls, all as they should be: {named}."]


def _of_single_seeds(certificate: xr.Dataset, sure: str) -> list[str]:
    """Gains ex post, and what could be seen: the smallest gain that is flagged, beside the noise of payoffs."""
    if "violated_seeds" not in certificate:
        return []
    share, most = (100 * float(certificate[f"violated_seeds{end}"]) for end in ("", "_high"))
    quantiles = zip(certificate["level"].values, certificate["largest_quantile"].values, strict=True)
    shown = ", ".join(f"{float(gain):+.4f} (quantile {float(level):g})" for level, gain in quantiles)
    seen = float(certificate["tolerance"]) + float((certificate["mean"] - certificate["low"]).max())
    noise = float(certificate["honest"].std("seed", ddof=1).mean())
    return [
        f"With single seeds: in {share:.1f} % of them somebody gains more than the tolerance (at most {most:.1f} % of "
        f"all draws, {sure}). Largest gain of a seed: {shown}.",
        f"A mean gain above {seen:.4g} is flagged in every cell. Payoffs of an honest client have the standard "
        f"deviation {noise:.4g} over seeds.",
    ]


def verdict_in_words(certificate: xr.Dataset) -> str:
    """The verdict, and from where to where the largest gain is."""
    low, high = float(certificate["epsilon_low"]), float(certificate["epsilon_high"])
    cells, seeds = certificate.sizes["cell"], certificate.sizes["seed"]
    sure = f"{100 * float(certificate['confidence']):g} % for each side, {cells} cells at once, {seeds} seeds"
    verdict = f"{certificate['verdict'].item()} at {float(certificate['tolerance']):g}"
    attacked = certificate["verdict"] == "VIOLATED" and not (certificate["verdict_of_cell"] == "VIOLATED").any()
    gain = " by the attack: the largest gain of the cells" if attacked else ": the largest gain"
    return f"{verdict}{gain} is from {low:.4g} to {high:.4g} ({sure})"
