"""The certificates of the documentation: ``python benchmarks/certificates.py``, which goes on where it was interrupted.

    python benchmarks/certificates.py --estimate
    python benchmarks/certificates.py --out runs/certificates
    python benchmarks/certificates.py --commit --out runs/certificates
    python benchmarks/certificates.py --outside
    python benchmarks/certificates.py --speed fedavg,incfl,iafl,ipfl --names fmnist_dirichlet --set seeds=5

The configs ``certificates/fmnist_dirichlet`` and ``certificates/fmnist_groups`` have eleven mechanisms, 10 clients of
12,000 rows of Fashion-MNIST, and 20 seeds. The first command says how many runs and client-steps that is, and how long
it takes at a rate of plain runs (``--rate``); it runs nothing. The second one runs both configs, or what is missing of
them. The third one writes what is finished into ``results/certificates``: ``NAME.json``, from which the documentation
makes its page, and ``NAME.csv`` with the gain of every cell and seed. The fourth one (three CPU-minutes) needs no
runs of the others: in the committed files it plays honest clients and standalone models again, and writes what these
change, the shares of clients with less than alone, and the verdicts by the rule of today on cells whose gain is the
same with all seeds; gains stay. Participation under deviations is left out, which needs their runs. The fifth one
measures some mechanisms: the programs that a certificate compiles, and its runs by CPU-second beside ``simulate``.
Judge individual rationality before all runs:

    fljax certify certificates/fmnist_groups --seeds 5 --deviations "no effort" --candidates 0 --no-control
"""

from __future__ import annotations

import argparse
import csv
import datetime
import functools
import io
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fljax.config import Config, load
from fljax.contributions import Bounds, simultaneous_bounds
from fljax.core.files import write
from fljax.games import Certificate, SavedCertificates, certificate_dataset, ex_post, load_certificates
from fljax.games.strategic.gains import UNSEEN, Attack, seeds_that_decide
from fljax.results.events import Event

NAMES = ("fmnist_dirichlet", "fmnist_groups")
# What is asked but for the tolerance, which needs no runs. Both configs deal rows and groups anew by seed: clients
# differ by chance alone. Under Dirichlet(0.5) half of them deviate, for half of the cost.
ASKED: dict[str, dict[str, Any]] = {"fmnist_dirichlet": {"deviators": (0, 1, 2, 3, 4), "candidates": 20}}
COMMITTED = Path(__file__).parent / "results" / "certificates"
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
    """The committed file of a config.

    Args:
      saved: its certificates.
      about: the setting: config, hardware, date and so on.
      seconds: by the clock and of the CPU by label, where they are known.
    """
    first = next(iter(saved.certificates.values()))
    setting = {"seeds": len(first.gains.seeds), "tolerance": first.tolerance, "confidence": first.confidence}
    setting |= {"clients": first.gains.honest.shape[1], "method": first.method, "fljax": saved.fljax}
    setting["deviators"] = sorted({int(client) for client in first.gains.clients})
    setting["candidates"] = 0 if first.attack is None else first.attack.candidates
    setting["outside"] = first.gains.outside_is
    mechanisms = {
        label: {
            **summary_of(certificate),
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


def estimate(config: Config, rate: float, asked: Mapping[str, Any]) -> None:
    """Prints the runs and client-steps of each algorithm, and the hours at a rate of client-steps per second."""
    from fljax.experiments.inputs.setup import resolve_setup
    from fljax.experiments.programs import check
    from fljax.games import messages_of, usual_deviations
    from fljax.games.strategic.certificates import cost_of
    from fljax.games.values import in_words
    from fljax.results.events import EventLog

    setup = resolve_setup(config, EventLog())
    plans, total = check(setup, rehearsed=False, swept=True), 0.0
    sizes: dict[str, Any] = {
        "rounds": setup.rounds,
        "seeds": len(config.seeds),
        "candidates": asked.get("candidates", 50),
    }
    for label, plan in plans.items():
        count = len(usual_deviations(messages_of(plan, setup.federation)))
        deviating = len(asked.get("deviators", range(setup.clients)))
        cost = cost_of(plan, setup.federation, cells=count * deviating, **sizes)
        total += cost.client_steps
        print(f"{label}: {count} deviations, {in_words(cost)}, {cost.client_steps / rate / 3600:.2f} hours", flush=True)
    print(f"{config.name}: {total / 1e6:.0f} million client-steps, {total / rate / 3600:.1f} hours", flush=True)


def certify(config: Config, folder: Path, tolerance: float, asked: Mapping[str, Any]) -> None:
    """Runs what a folder lacks. Seconds of algorithms, also of earlier processes, are in a file of the folder."""
    from fljax.experiments import certify as experiment

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
        experiment.Question(tolerance=tolerance, **asked),
        directory=folder,
        resume=True,
        on_event=listen,
    )


def speed(config: Config, labels: Sequence[str], passes: int) -> None:
    """Prints the programs of a certificate of each mechanism, and its speed beside ``simulate`` of the honest runs.

    Two clients deviate, and an attacker has 20 candidates; values of standalone models are 0.5. The two forms take
    turns, after a first call of each that compiles.
    """
    import jax

    import fljax
    from fljax import games
    from fljax.experiments.inputs.setup import resolve_setup
    from fljax.experiments.programs import check
    from fljax.games.strategic.certificates import cost_of
    from fljax.results.events import EventLog

    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    setup = resolve_setup(config, EventLog())
    plans, federation = check(setup, rehearsed=False, swept=True), setup.federation
    same: dict[str, Any] = {"rounds": setup.rounds, "seeds": setup.seeds}
    asked: dict[str, Any] = {"tolerance": 0.0, "deviators": (0, 1), "candidates": 20, "controls": False}
    for label in labels:
        plan = plans[label]
        cells = 2 * len(games.usual_deviations(games.messages_of(plan, federation)))
        sizes: dict[str, Any] = {"rounds": setup.rounds, "seeds": len(setup.seeds)}
        costs = [
            cost_of(plan, federation, cells=cells, candidates=20, **sizes),
            cost_of(plan, federation, cells=0, outside=False, **sizes),
        ]
        forms = [
            functools.partial(games.certify, plan, federation, **asked, **same),
            functools.partial(fljax.simulate, plan, federation, evaluate_every=setup.rounds, **same),
        ]
        for name, form, cost in zip(("certify", "simulate"), forms, costs, strict=True):
            compiled.clear()
            began = time.perf_counter()
            form()
            longer = [round(seconds, 1) for seconds in compiled if seconds > 0.3]
            print(
                f"{label} {name}: {len(longer)} programs of {longer} s and {len(compiled) - len(longer)} small ones; "
                f"{time.perf_counter() - began:.1f} s for {cost.runs:,} runs, {cost.client_steps:,.0f} client-steps",
                flush=True,
            )
        rates: list[list[float]] = [[], []]
        for _ in range(passes):
            for rate, form, cost in zip(rates, forms, costs, strict=True):
                began = time.process_time()
                form()
                rate.append(cost.client_steps / (time.process_time() - began))
        middle = [statistics.median(rate) for rate in rates]
        in_runs = [rate * cost.runs / cost.client_steps for rate, cost in zip(middle, costs, strict=True)]
        print(
            f"{label}: certify {in_runs[0]:.2f} runs and {middle[0]:,.0f} client-steps by CPU-second, simulate "
            f"{in_runs[1]:.2f} and {middle[1]:,.0f}; ratio of client-steps {middle[0] / middle[1]:.2f}",
            flush=True,
        )


def commit(name: str, folder: Path, tolerance: float) -> None:
    """Writes the files of a config that are committed, with verdicts at a tolerance."""
    from throughput import hardware

    from fljax.games.strategic.certificates import judged
    from fljax.results.folders import CERTIFICATES

    saved = load_certificates(folder / CERTIFICATES)
    again = {label: judged(certificate, tolerance) for label, certificate in saved.certificates.items()}
    saved = saved._replace(certificates=again)
    seconds = json.loads((folder / SECONDS).read_text()) if (folder / SECONDS).is_file() else {}
    about = {"config": f"certificates/{name}", "date": f"{datetime.date.today()}", "hardware": hardware()}
    COMMITTED.mkdir(exist_ok=True)
    (COMMITTED / f"{name}.json").write_text(json.dumps(document(saved, about, seconds), indent=1) + "\n")
    (COMMITTED / f"{name}.csv").write_text(cells_as_csv(saved))
    print(f"wrote {COMMITTED / name}.json and .csv with {', '.join(saved.certificates)}")


def play_outside(name: str, config: Config) -> None:
    """Plays honest clients and standalone models again, and writes what they change into the committed files."""
    from fljax.engine import Over, runs
    from fljax.experiments.conductor import opened, trained_alone
    from fljax.experiments.inputs.preparation import build_plan
    from fljax.experiments.inputs.setup import resolve_setup
    from fljax.games import PayoffTable, Utility, individual_rationality
    from fljax.games.strategic.utilities import earnings_of, utilities_of_runs

    path = COMMITTED / f"{name}.json"
    committed = json.loads(path.read_text())
    with opened(None, "", resume=False, on_event=None, saving=None, unit="runs") as (outputs, folder):
        setup = resolve_setup(config, outputs.log)
        reference = trained_alone([setup], (), outputs, folder)[0]
    alone = np.asarray(reference.test_accuracy, float)
    everybody = np.zeros((1, setup.clients))
    for entry in setup.algorithms:
        plan, mechanism = build_plan(setup, entry, reference), committed["mechanisms"][entry.label]
        measured = runs(
            plan,
            setup.federation,
            Over(),
            rounds=setup.rounds,
            seeds=setup.seeds,
            measure=earnings_of(Utility()),
            execution=setup.execution,
        )
        honest = utilities_of_runs(measured, everybody, Utility())
        table = PayoffTable(honest, everybody.astype(int), ("honest",), tuple(setup.seeds), alone)
        found = individual_rationality(table, confidence=committed["setting"]["confidence"])
        now = {"irrational": {key: getattr(found, key) for key in ("share", "low", "high")}, "alone": alone.mean()}
        before = {key: mechanism[key] for key in now}
        mechanism |= rounded(now)
        words = f"{before['alone']} alone, {before['irrational']['share']} with less; now {mechanism['alone']}"
        payoff = f"payoff {mechanism['payoff']}, now {honest.mean():.5f}"
        print(f"{entry.label}: {words}, {mechanism['irrational']['share']} ({payoff})", flush=True)
    committed["setting"] |= {"outside": "standalone", "outside_date": f"{datetime.date.today()}"}
    path.write_text(json.dumps(committed, indent=1) + "\n")


def judge_again(name: str) -> None:
    """Judges the committed cells whose gain is the same with all seeds, and says how many seeds would decide."""
    path, table = COMMITTED / f"{name}.json", COMMITTED / f"{name}.csv"
    committed = json.loads(path.read_text())
    with table.open() as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or ())
    for row in rows:
        if len({value for column, value in row.items() if column.startswith("seed_")}) == 1:
            row["verdict"] = UNSEEN if row["verdict"] == "CERTIFIED" else row["verdict"]
    setting = committed["setting"]
    for label, mechanism in committed["mechanisms"].items():
        cells = [row for row in rows if row["algorithm"] == label]
        for row in mechanism["deviations"]:
            row.pop("participation", None)
            verdicts = [cell["verdict"] for cell in cells if cell["deviation"] == row["deviation"]]
            row["verdicts"] = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
        attack = mechanism["attack"] and Attack(**{**mechanism["attack"], "strategy": ()})
        mean, high = (np.array([float(cell[column]) for cell in cells]) for column in ("gain", "high"))
        bounds = Bounds(mean, mean, mean, high, np.nan)  # of which these two are read
        needed = seeds_that_decide(bounds, attack, setting["tolerance"], 0.0, setting["seeds"])
        before = mechanism["seeds_needed"]
        if before is not None and (needed is None or abs(needed - before) > 1):  # numbers are rounded
            mechanism["seeds_needed"] = needed
    path.write_text(json.dumps(committed, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    table.write_text(text.getvalue())


def main() -> None:
    """Estimates, runs or commits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES), help="configs, with commas")
    parser.add_argument("--out", type=Path, default=Path("runs/certificates"))
    parser.add_argument("--tolerance", type=float, default=0.01, help="gains up to it do not count")
    parser.add_argument("--set", action="append", default=[], help="a key of the configs; may be repeated")
    parser.add_argument("--devices", type=int, default=2, help="cores of the CPU that JAX sees as devices")
    parser.add_argument("--rate", type=float, default=23_000, help="client-steps by second, for --estimate")
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--commit", action="store_true")
    parser.add_argument("--outside", action="store_true", help="play outside options of committed files again")
    parser.add_argument("--speed", metavar="LABELS", help="mechanisms whose programs and speed are measured")
    parser.add_argument("--passes", type=int, default=2, help="turns of each form, for --speed")
    chosen = parser.parse_args()
    names = [name.strip() for name in chosen.names.split(",")]
    if chosen.commit:
        for name in names:
            commit(name, chosen.out / name, chosen.tolerance)
        return
    import fljax

    if chosen.devices > 1:
        fljax.use_cores(chosen.devices)
    for name in names:
        config = load(f"certificates/{name}", chosen.set)
        if chosen.estimate:
            estimate(config, chosen.rate, ASKED.get(name, {}))
        elif chosen.outside:
            play_outside(name, config)
            judge_again(name)
        elif chosen.speed:
            speed(config, [label.strip() for label in chosen.speed.split(",")], chosen.passes)
        else:
            certify(config, chosen.out / name, chosen.tolerance, ASKED.get(name, {}))


if __name__ == "__main__":
    main()
