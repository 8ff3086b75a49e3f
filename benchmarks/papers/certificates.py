"""The certificates of the documentation.

The configs ``certificates/fmnist_dirichlet`` and ``certificates/fmnist_groups`` have eleven mechanisms, 10 clients of
12,000 rows of Fashion-MNIST, and 20 seeds. ``fmnist_groups_robust`` has the mean and six robust rules in place of it,
``fmnist_groups_riders`` free riders under these where training costs something. ``--part estimate`` says how many runs
and client-steps that is, and how long it takes at a rate of plain runs (``--rate``); it runs nothing. ``--part runs``
runs the configs, or what is missing of them, in the folder of ``--runs``. ``--part commit`` writes what is finished
into ``results/certificates``: ``NAME.json``, from which the documentation makes its page, and ``NAME.csv`` with the
gain of every cell and seed.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fljax
from benchmarks.reporting import RESULTS, Row, hardware, names_in
from fljax import games
from fljax.config import Config, load
from fljax.contributions import Bounds, error_bars, simultaneous_bounds
from fljax.core.files import write
from fljax.experiments import certify as experiment
from fljax.experiments.inputs.setup import resolve_setup
from fljax.experiments.programs import check_setup
from fljax.games import Certificate, SavedCertificates, certificate_dataset, ex_post, load_certificates
from fljax.games.strategic.certificates import cost_of, judged
from fljax.results.events import Event, EventLog
from fljax.results.folders import CERTIFICATES

NAMES = ("fmnist_dirichlet", "fmnist_groups", "fmnist_groups_robust", "fmnist_groups_riders")
# What is asked but for the tolerance, which needs no runs. All configs deal rows and groups anew by seed: clients
# differ by chance alone. But in fmnist_groups half of them deviate, for half of the cost.
_HALF: dict[str, Any] = {"deviators": (0, 1, 2, 3, 4), "candidates": 20}
RIDERS = ("no effort", "half effort", "zero rider", "delta rider", "disguised rider")
ASKED: dict[str, dict[str, Any]] = {
    "fmnist_dirichlet": _HALF,
    "fmnist_groups_robust": _HALF,
    "fmnist_groups_riders": {
        **_HALF,
        "deviations": RIDERS,
        "utility": games.Utility(cost=0.05),
        "candidates": 0,
        "control": False,
    },
}
COMMITTED = RESULTS / "certificates"
SECONDS = "seconds.json"  # by label: by the clock, and of the CPU
DIGITS = 5
# Columns of the whole table that are committed, with those of seeds.
COLUMNS = ("algorithm", "client", "deviation", "gain", "low", "high", "verdict")


def rounded(value: Any) -> Any:
    """The value with short numbers, also inside."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(float(value), DIGITS) if isinstance(value, float | np.floating) else value


def summary_of(certificate: Certificate) -> dict[str, Any]:
    """What the documentation shows of a certificate: each deviation with the client that gains most by it, and more."""
    gains, rationality, dataset = certificate.gains, certificate.rationality, certificate_dataset(certificate)
    names = np.asarray(gains.deviations, dtype=object)
    changes = [name for name in ("loss", "participation", "welfare") if name in dataset]
    deviations: list[dict[str, Any]] = []
    expected = _expected_gains(certificate)
    for place, name in enumerate(dict.fromkeys(gains.deviations)):
        cells = np.flatnonzero(names == name)
        cell = int(cells[certificate.bounds.mean[cells].argmax()])
        verdicts = [certificate.verdicts[each] for each in cells]
        deviations.append(
            {
                **_cell(certificate, cell),
                "low": certificate.bounds.low[cell],
                "high": certificate.bounds.high[cell],
                "any_client": {
                    "low": certificate.bounds.low[cells].max(),
                    "high": certificate.bounds.high[cells].max(),
                },
                "expected": {end: getattr(expected, end)[place] for end in ("mean", "low", "high")},
                **{change: float(dataset[change].isel(cell=cell).mean("seed")) for change in changes},
                "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
            }
        )
    attack, confirmed, single = certificate.attack, certificate.confirmed, ex_post(certificate)
    shares = None if rationality is None else {key: getattr(rationality, key) for key in ("share", "low", "high")}
    return rounded(
        {
            "irrational": shares,
            "payoff": float(gains.honest.mean()),
            "alone": None if gains.outside is None else float(gains.outside.mean()),
            "verdict": certificate.verdict,
            "epsilon": {"low": certificate.epsilon_low, "high": certificate.epsilon_high},
            "seeds_needed": certificate.seeds_needed,
            "worst": _cell(certificate, certificate.worst),
            "confirmed": {**_cell(certificate, confirmed.cell), **confirmed._asdict()},
            "attack": None if attack is None else {**attack._asdict(), "strategy": dict(attack.strategy)},
            "controls": [control._asdict() for control in certificate.controls],
            "violated_seeds": {"share": single.violated, "high": single.violated_high},
            "spread": float(gains.honest.std(axis=0, ddof=1).mean()),
            "deviations": deviations,
        }
    )


def _expected_gains(certificate: Certificate) -> Bounds:
    """What a client gains by each deviation before data are dealt: means over clients, bounded for all at once."""
    gains, names = certificate.gains, np.asarray(certificate.gains.deviations, dtype=object)
    by_seed = [gains.gains[:, names == name].mean(axis=1) for name in dict.fromkeys(gains.deviations)]
    return simultaneous_bounds(np.stack(by_seed, axis=1), certificate.confidence, method=certificate.method)


def _cell(certificate: Certificate, cell: int) -> dict[str, Any]:
    gains = certificate.gains
    gain = certificate.bounds.mean[cell]
    return {"deviation": gains.deviations[cell], "client": int(gains.clients[cell]), "gain": gain}


def document(
    saved: SavedCertificates, about: Mapping[str, Any], seconds: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """The committed file of a config; ``seconds`` are those by the clock and of the CPU, by label."""
    first = next(iter(saved.certificates.values()))
    honest = {label: each.gains.honest.mean(axis=1) for label, each in saved.certificates.items()}
    setting = {"seeds": len(first.gains.seeds), "tolerance": first.tolerance, "confidence": first.confidence}
    setting |= {"clients": first.gains.honest.shape[1], "method": first.method, "fljax": saved.fljax}
    setting["deviators"] = sorted({int(client) for client in first.gains.clients})
    setting["candidates"] = 0 if first.attack is None else first.attack.candidates
    setting["outside"] = first.gains.outside_is
    mechanisms = {
        label: {
            **summary_of(certificate),
            # By seed, as all have the same data and batches.
            "beside_first": error_bars(honest[label] - first.gains.honest.mean(axis=1))._asdict(),
            **dict(zip(("seconds", "cpu_seconds"), seconds.get(label, (None, None)), strict=True)),
        }
        for label, certificate in saved.certificates.items()
    }
    return {"setting": {**about, **setting}, "mechanisms": rounded(mechanisms)}


def cells_as_csv(saved: SavedCertificates) -> str:
    """A line for each mechanism and cell, with the gain of each seed."""
    seeds = [f"seed_{seed}" for seed in next(iter(saved.certificates.values())).gains.seeds]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *seeds])
    for label, certificate in saved.certificates.items():
        gains, bounds = certificate.gains, certificate.bounds
        for cell, (client, deviation) in enumerate(zip(gains.clients, gains.deviations, strict=True)):
            numbers = [values[cell] for values in (bounds.mean, bounds.low, bounds.high)]
            by_seed = rounded(gains.gains[:, cell].tolist())
            writer.writerow([label, client, deviation, *rounded(numbers), certificate.verdicts[cell], *by_seed])
    return text.getvalue()


def estimate(config: Config, asked: Mapping[str, Any], options: Namespace) -> Iterator[Row]:
    """The runs and client-steps of each algorithm, and the hours at a rate of client-steps per second."""
    setup = resolve_setup(config, EventLog())
    sizes: dict[str, Any] = {"rounds": setup.rounds, "seeds": len(config.seeds)}
    deviating = len(asked.get("deviators", range(setup.clients)))
    for label, plan in check_setup(setup, rehearsed=False, swept=True).items():
        usual = games.usual_deviations(games.messages_of(plan, setup.federation))
        count = len(asked.get("deviations", usual)) * deviating
        cost = cost_of(plan, setup.federation, cells=count, candidates=asked.get("candidates", 50), **sizes)
        hours = cost.client_steps / options.rate / 3600
        yield config.name, label, cost.runs, float(cost.client_steps), f"{count} cells, {hours:.2f} hours"


def certify(config: Config, folder: Path, asked: Mapping[str, Any], options: Namespace) -> Iterator[Row]:
    """Runs what a folder lacks. Seconds of algorithms, also of earlier processes, are in a file of the folder."""
    path = folder / SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    spent: dict[str, list[float]] = json.loads(path.read_text()) if path.is_file() else {}
    before = [0.0, time.process_time()]

    def listen(event: Event) -> None:
        nonlocal before
        now = [event.seconds, time.process_time()]
        if event.label:  # else it is of no algorithm, or of the data and models of all
            known = spent.get(event.label, [0.0, 0.0])
            spent[event.label] = [total + end - begin for total, end, begin in zip(known, now, before, strict=True)]
        before = now
        if event.stage in ("train", "saved"):
            write(path, json.dumps(spent).encode())
        if event.stage == "train" or event.message:
            words = f"{event.label} {event.round} of {event.rounds} {event.message}"
            print(f"{event.seconds:8.0f} s {now[1]:8.0f} CPU-s {words}", flush=True)

    experiment.run(
        config,
        experiment.Question(tolerance=options.tolerance, **asked),
        directory=folder,
        resume=True,
        on_event=listen,
    )

    yield from (
        (config.name, label, None, None, f"{took:.0f} s, {cpu:.0f} CPU-s") for label, (took, cpu) in spent.items()
    )


def commit(name: str, folder: Path, tolerance: float) -> Iterator[Row]:
    """Writes the files of a config that are committed, with verdicts at a tolerance."""
    saved = load_certificates(folder / CERTIFICATES)
    again = {label: judged(certificate, tolerance) for label, certificate in saved.certificates.items()}
    saved = saved._replace(certificates=again)
    seconds = json.loads((folder / SECONDS).read_text()) if (folder / SECONDS).is_file() else {}
    about = {"config": f"certificates/{name}", "date": f"{datetime.date.today()}", "hardware": hardware()}
    asked = experiment.Question(**ASKED.get(name, {}))
    about |= {"tried": asked.deviations, "cost": asked.utility.cost}
    COMMITTED.mkdir(exist_ok=True)
    (COMMITTED / f"{name}.json").write_text(json.dumps(document(saved, about, seconds), indent=1) + "\n")
    (COMMITTED / f"{name}.csv").write_text(cells_as_csv(saved))
    yield from ((name, label, None, None, certificate.verdict) for label, certificate in again.items())


def measure(options: Namespace) -> Iterator[Row]:
    """Estimates, runs, or commits."""
    (part,) = names_in(options.part, ("estimate", "runs", "commit"), "part")
    if options.devices > 1 and part != "commit":
        fljax.use_cores(options.devices)
    for name in names_in(options.names, NAMES, "config"):
        folder, asked = Path(options.runs) / name, ASKED.get(name, {})
        if part == "commit":
            yield from commit(name, folder, options.tolerance)
            continue
        config = load(f"certificates/{name}", options.set.split() if options.set else [])
        if part == "estimate":
            yield from estimate(config, asked, options)
        else:
            yield from certify(config, folder, asked, options)
