"""``fljax certify``: whether it pays to lie to the algorithms of a config, by playing every deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fljax.cli.printing import as_table, console, print_json, print_places
from fljax.cli.running import (
    CertifyOptions,
    ConfigFile,
    Context,
    PlayOptions,
    WholeRunOptions,
    changes_of,
    check_choice,
    check_play,
    computing,
    folder_of,
    played,
    start_jax,
)

if TYPE_CHECKING:
    import xarray as xr

    from fljax.experiments.certify import Question
    from fljax.games import Certificate


def certify(
    context: Context, config: ConfigFile, play: PlayOptions, options: CertifyOptions, runs: WholeRunOptions
) -> int:
    """Say whether it pays to lie to the algorithms of CONFIG: every client plays every deviation, alone."""
    from fljax.config import load

    chosen = load(config, changes_of(runs), imports=not runs.no_import)
    _check(options, play)
    start_jax(runs.cache)
    from fljax import games
    from fljax.experiments import certify as experiment

    question = _question(options, play, imports=not runs.no_import)
    with computing(context, runs, lambda: folder_of(chosen, runs)) as (folder, compute):
        certificates = compute(experiment.run, chosen, question, resume=runs.resume)
        datasets = {label: games.certificate_dataset(certificate) for label, certificate in certificates.items()}
        notes = {label: _notes(label, certificate) for label, certificate in certificates.items()}
        without = [entry.label for entry in chosen.algorithms if entry.label not in certificates]
        notes |= {label: [f"{label} has no certificate: it reads none of the deviations."] for label in without}
        from fljax.core.files import write
        from fljax.report.certificates import TABLE, certificate_table, write_certificates

        write(folder / TABLE, certificate_table(datasets))
        written = () if runs.no_report else write_certificates(folder, datasets, chosen.name, notes)
    if runs.as_json:
        algorithms = {label: _plain(certificates[label], dataset) for label, dataset in datasets.items()}
        report = [str(path) for path in written]
        print_json(
            {"directory": str(folder), "algorithms": algorithms, "without_certificate": without, "report": report}
        )
    elif not runs.quiet:
        for label, dataset in datasets.items():
            _print(label, dataset, notes[label])
        for label in without:
            console(110).print(*notes[label], highlight=False)
        print_places(folder, written)
    return 0


def _check(options: CertifyOptions, play: PlayOptions) -> None:
    """Raises a ValueError for a number that is out of range, before JAX starts."""
    from fljax.games.strategic.gains import check_settings

    numbers = ("confidence", "tolerance", "identities", "candidates", "max_runs")
    check_settings("--", **{name: getattr(options, name) for name in numbers})
    check_play(play)
    check_choice("method", options.method, ("bonferroni", "max_t"))


def _question(options: CertifyOptions, play: PlayOptions, *, imports: bool) -> Question:
    """What the options ask."""
    from fljax.experiments.certify import Question

    settings = {name: value for name, value in options._asdict().items() if name in Question._fields}
    return Question(**settings, **played(play, imports=imports))


def _notes(label: str, certificate: Certificate) -> list[str]:
    """Which deviations were left out, which runs diverged, and whether the control is flagged."""
    from fljax.experiments.certify import CONTROL
    from fljax.games import diverged_cells
    from fljax.games.strategic.gains import left_out_sentences

    words = diverged_cells(certificate.gains)
    notes = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in left_out_sentences(label, certificate.left_out)]
    notes += [f"{line}." for line in (words or "", *certificate.forced.splitlines()) if line]
    if label != CONTROL:
        return notes
    is_flagged = certificate.verdict == "VIOLATED"
    missed = "The control is not flagged: sizes matter little here, the tolerance is wide, or the seeds are too few."
    return [*notes, "The control is flagged, as it should be." if is_flagged else missed]


def _print(label: str, dataset: xr.Dataset, notes: Sequence[str]) -> None:
    """Who should have joined, then the table of deviations, then the verdict and what stands beside it."""
    from fljax.report.certificates import certificate_sentences, deviation_rows, rationality_sentence

    shown, said = console(110), certificate_sentences(dataset)
    first = rationality_sentence(dataset)
    if first is not None:
        shown.print(f"{label}: {first}", highlight=False)
        said = said[1:]
    table = as_table(deviation_rows(dataset), f"{label}: does it pay to deviate?", words=["verdict"])
    shown.print(table)
    for sentence in (*said, *notes):
        shown.print(sentence, highlight=False)
    shown.print()


def _plain(certificate: Certificate, dataset: xr.Dataset) -> dict[str, Any]:
    """One algorithm for JSON."""
    gains, rationality, attack = certificate.gains, certificate.rationality, certificate.attack
    cells: list[dict[str, Any]] = []
    for cell, (client, deviation) in enumerate(zip(gains.clients.tolist(), gains.deviations, strict=True)):
        entry = dataset.isel(cell=cell)
        about = {"client": client, "name": str(dataset["name"].values[client]), "deviation": deviation}
        numbers = {"gain": {key: float(entry[key]) for key in ("mean", "low", "high")}}
        for name in ("loss", "participation", "welfare"):
            if name in entry:
                ends = {end: float(entry[f"{name}_{end}"]) for end in ("low", "high")}
                numbers[name] = {"mean": float(entry[name].mean("seed")), **ends}
        above, verdict = float(entry["above"]), certificate.verdicts[cell]
        by_seed = gains.gains[:, cell].tolist()
        cells.append({**about, **numbers, "by_seed": by_seed, "above": above, "verdict": verdict})
    shares = None if rationality is None else {name: getattr(rationality, name) for name in ("share", "low", "high")}
    harmful = certificate.harmful
    return {
        "irrational": shares,
        "outside": None if shares is None else gains.outside_is,
        **{name: getattr(certificate, name) for name in ("verdict", "tolerance", "confidence", "method")},
        "epsilon": {"low": certificate.epsilon_low, "high": certificate.epsilon_high},
        "harmful": None if harmful is None else harmful._asdict(),
        "seeds": list(gains.seeds),
        "seeds_needed": certificate.seeds_needed,
        "worst": certificate.worst,
        "confirmed": certificate.confirmed._asdict(),
        "attack": None if attack is None else {**attack._asdict(), "strategy": dict(attack.strategy)},
        "controls": [control._asdict() for control in certificate.controls],
        "left_out": dict(certificate.left_out),
        **{name: float(dataset[name]) for name in ("violated_seeds", "violated_seeds_high")},
        "cells": cells,
        "diverged": int(gains.diverged.sum() + gains.honest_diverged.sum()),
    }
