"""Whether it pays to lie to the algorithms of a config: every deviation of every client (``fljax certify``).

``certificates.nc`` has the certificates of finished algorithms; blocks of runs are saved in ``certify/checkpoints``.
Another tolerance needs no further runs. A control runs on the same data: FedAvg by size, with sizes reported tenfold.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax import algorithms
from fljax.config import Config, dumps
from fljax.contributions.tables import LEAST_SEEDS
from fljax.core import processes
from fljax.core.files import write
from fljax.core.names import about_algorithm
from fljax.engine import Plan
from fljax.experiments.conductor import Outputs, Saving
from fljax.experiments.inputs.entrants import Deviations, chosen_of, recorded_deviations, strategies_of
from fljax.experiments.inputs.preparation import build_plan
from fljax.experiments.inputs.setup import Setup, resolve_setup
from fljax.experiments.whole_runs import QUESTION, Kept, begin, names_of, of_runs, reads_standalone, standalone_of
from fljax.games import Certificate, Utility, certify, diverged_cells, load_certificates, messages_of, save_certificates
from fljax.games.strategic.certificates import check_number, cost_of, judged
from fljax.games.strategic.gains import left_out_sentences
from fljax.games.strategic.playing import check_deviators, check_numbers, usual_deviations
from fljax.games.strategic.splitting import check_names, check_splits, split_name
from fljax.games.strategic.utilities import check_utility
from fljax.games.values import algorithm_of, in_words
from fljax.results.events import OnEvent
from fljax.results.folders import CERTIFICATES, OF_CERTIFY, OpenFolder
from fljax.results.identity import CHECKPOINTS
from fljax.scenarios import ByReport, Deviation, Strategy

CONTROL = "fedavg by size (control)"
_KEPT = Kept("certificates", CERTIFICATES, load_certificates, OF_CERTIFY)
_INFLATED = {"size times 10": Strategy(factor=ByReport(size=10.0))}


class Question(NamedTuple):
    """What is asked, as for ``fljax.games.certify``; splits and the control have the algorithms' deviators."""

    tolerance: float = 0.01
    deviations: Deviations = None  # None: all usual ones that an algorithm reads; one that none reads is refused
    utility: Utility = Utility()  # a price of tokens counts for algorithms whose server keeps tokens
    confidence: float = 0.95
    method: str = "bonferroni"
    identities: int = 1  # as how many a client joins; no splits of algorithms with one number for each client
    candidates: int = 50
    control: bool = True  # whether FedAvg by size is certified beside the algorithms
    max_runs: int = 20_000  # of one algorithm
    deviators: tuple[int, ...] | None = None
    outside: Literal["standalone", "mechanism"] | None = "standalone"


class _Ahead(NamedTuple):
    """What an algorithm, or the control, will play."""

    deviations: Mapping[str, Strategy | Deviation]  # empty if it reads none of those that were asked for
    utility: Utility  # without a price where there are no tokens
    left_out: Mapping[str, str]  # why it does not play deviations that were asked for, by name
    usual: tuple[str, ...]  # names of the usual deviations that it reads
    identities: int  # as how many a client joins; 1: it cannot split
    candidates: int
    outside: Literal["standalone", "mechanism"] | None


def run(
    config: Config,
    question: Question | None = None,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    saving: Saving | None = None,
) -> dict[str, Certificate]:
    """Certifies every algorithm of a config as ``worth.run`` values them; certificates by label, the control's last."""
    asked = Question() if question is None else question
    # Callbacks and early stopping are not used: every run goes to its end, and is judged there.
    if len(config.seeds) < LEAST_SEEDS:
        raise ValueError(f"seeds: expected at least {LEAST_SEEDS} for a certificate, got {len(config.seeds)}")
    if any(entry.label == CONTROL for entry in config.algorithms):
        raise ValueError(f"expected labels other than {CONTROL!r}, which is that of the control, got it")
    text = "" if directory is None else dumps(config)
    opening = _KEPT.opened(directory, text, resume=resume, on_event=on_event, saving=saving)
    with opening as (finished, outputs, folder):
        if finished is not None:
            _check_question(finished.question, asked, f"certificates in {str(directory)!r}")
        blocks = None if directory is None else directory / OF_CERTIFY / QUESTION
        if blocks is not None and resume and blocks.is_file() and any(blocks.parent.glob(f"{CHECKPOINTS}/*/*")):
            _check_question(blocks.read_text(), asked, f"saved runs in {str(directory)!r}")
        certificates: dict[str, Certificate] = {} if finished is None else dict(finished.certificates)
        labels = [*(entry.label for entry in config.algorithms), *([CONTROL] if asked.control else [])]
        data = "" if finished is None else finished.data

        def save() -> None:
            if directory is not None and processes.is_first():
                save_certificates(directory / CERTIFICATES, certificates, text, question=in_json(asked), data=data)

        for label in [label for label in labels if label in certificates]:
            outputs.log.done(label)
            if certificates[label].tolerance != asked.tolerance:
                certificates[label] = judged(certificates[label], asked.tolerance)
        if not set(labels) <= certificates.keys():  # else the data are not read
            setup = resolve_setup(config, outputs.log)
            data = _KEPT.data_of(setup, finished, outputs, folder)
            for label, certificate in _certificates(setup, asked, outputs, folder, dict(certificates)):
                certificates[label] = certificate._replace(forced=outputs.log.forced)
                save()
                runs = _runs_of(certificate, asked.identities)
                outputs.log.tell("saved", label, runs, runs, "")
                outputs.files.finished(label)
        if finished is not None and any(certificates[label] is not old for label, old in finished.certificates.items()):
            save()
    return {label: certificates[label] for label in labels if label in certificates}


def _runs_of(certificate: Certificate, identities: int) -> int:
    """How many runs a certificate took, as ``cost_of`` counts them."""
    seeds, cells, clients = certificate.gains.payoffs.shape
    alone = clients if certificate.gains.outside_is == "mechanism" and certificate.gains.outside is not None else 0
    together = 1 + (split_name(identities) in certificate.gains.deviations)  # splits have honest runs of their own
    attacks = 0 if certificate.attack is None else 1 + certificate.attack.candidates
    return seeds * (together + cells + alone + attacks)


def _certificates(
    setup: Setup, asked: Question, outputs: Outputs, folder: OpenFolder, finished: Mapping[str, Certificate]
) -> Iterator[tuple[str, Certificate]]:
    """The certificates of the algorithms that are not finished, one after another."""
    log = outputs.log
    plans = begin(setup, log, purpose="certificates", run="run", lost="counts as the worst utility")
    ahead: dict[str, _Ahead] = {}
    for entry in setup.algorithms:
        if entry.label not in finished:
            with about_algorithm(entry.label):
                ahead[entry.label] = _ahead(plans[entry.label], setup, asked, outputs, entry.label)
    _check_read(asked, ahead, finished)
    # Where some are finished, one of them may be that with tokens.
    if asked.utility.price and len(ahead) == len(setup.algorithms) and not any(e.utility.price for e in ahead.values()):
        raise ValueError("expected an algorithm whose server keeps tokens for a price of tokens, got none")
    if (blocks := outputs.files.directory) is not None and processes.is_first():
        blocks.mkdir(exist_ok=True)
        write(blocks / QUESTION, in_json(asked).encode())
    ahead = {label: entry for label, entry in ahead.items() if entry.deviations}
    playing = {entry.label: entry for entry in setup.algorithms if entry.label in ahead}
    needed = playing and (asked.outside == "standalone" or any(map(reads_standalone, playing.values())))
    reference = standalone_of(setup, outputs, folder) if needed else None
    if asked.control and CONTROL not in finished:
        utility = asked.utility._replace(cost=0.0, price=0.0, budget=None)
        plans[CONTROL] = _control(setup)
        ahead[CONTROL] = _Ahead(_INFLATED, utility, {}, (), identities=1, candidates=0, outside=None)
    for label, each in ahead.items():
        with about_algorithm(label):
            if label != CONTROL and reference is not None:
                plans[label] = build_plan(setup, playing[label], reference)
            certificate = certify(
                plans[label],
                setup.federation,
                tolerance=asked.tolerance,
                deviations=each.deviations,
                deviators=asked.deviators,
                utility=each.utility,
                confidence=asked.confidence,
                method=asked.method,
                outside=reference if each.outside == "standalone" else each.outside,
                standalone=setup.standalone,
                identities=each.identities,
                candidates=each.candidates,
                controls=label != CONTROL,
                max_runs=asked.max_runs,
                **of_runs(setup, outputs, label),
            )
        if (words := diverged_cells(certificate.gains)) is not None:
            log.note(words, label)
        gains = certificate.gains._replace(names=names_of(setup))
        yield label, certificate._replace(gains=gains, left_out=tuple(each.left_out.items()))


def _ahead(plan: Plan, setup: Setup, asked: Question, outputs: Outputs, label: str) -> _Ahead:
    """What the algorithm will play; raises a ValueError for what cannot be played, and tells what it costs."""
    if asked.deviators is not None:
        check_deviators(asked.deviators, setup.clients)
    messages = messages_of(plan, setup.federation)
    chosen, utility = chosen_of(asked.deviations, messages), asked.utility
    check_numbers(
        chosen.deviations if asked.deviations is None else strategies_of(asked.deviations), algorithm_of(plan)
    )
    if utility.price and not messages.tokens:
        utility = utility._replace(price=0.0, budget=None)
    check_utility(utility, algorithm_of(plan), setup.federation)
    check_names(asked.deviations or (), asked.identities)
    identities, left_out = asked.identities, dict(chosen.left_out)
    if identities > 1:
        try:
            check_splits(plan, setup.federation, identities)
        except ValueError:
            left_out[split_name(identities)] = "which has an argument of one number for each client"
            identities = 1
    usual = tuple(usual_deviations(messages))
    ahead = _Ahead(chosen.deviations, utility, left_out, usual, identities, asked.candidates, asked.outside)
    for words in left_out_sentences(label, left_out.items()):
        outputs.log.note(words, label)
    if not chosen.deviations:
        outputs.log.note("no certificate: it reads none of the deviations", label)
        return ahead
    sizes: dict[str, Any] = {"rounds": setup.rounds, "seeds": len(setup.seeds), "candidates": asked.candidates}
    deviating = setup.clients if asked.deviators is None else len(asked.deviators)
    sizes |= {"splits": deviating * (identities > 1), "outside": "mechanism" if asked.outside == "mechanism" else None}
    cost = cost_of(plan, setup.federation, cells=len(chosen.deviations) * deviating, **sizes)
    check_number(cost, asked.max_runs)
    count = len(chosen.deviations) + (identities > 1)
    outputs.log.note(f"{count} deviations, {in_words(cost)}", label, 0, cost.runs)
    return ahead


def _check_read(asked: Question, ahead: Mapping[str, _Ahead], finished: Mapping[str, Certificate]) -> None:
    """Raises a ValueError for a deviation that no algorithm reads, so that it would certify nothing."""
    played = {name for entry in ahead.values() for name in entry.deviations}
    played |= {split_name(entry.identities) for entry in ahead.values() if entry.deviations}  # else nothing is played
    played |= {name for label, entry in finished.items() if label != CONTROL for name in entry.gains.deviations}
    for label, entry in ahead.items():
        for name, reason in entry.left_out.items():
            if name not in played:
                told = f"{label}, {reason}" + (f" (likewise of {len(ahead) - 1} more)" if len(ahead) > 1 else "")
                usual = dict.fromkeys(valid for other in ahead.values() for valid in other.usual)
                names = "" if isinstance(asked.deviations, Mapping) else f"; valid names are {', '.join(usual)}"
                raise ValueError(f"expected deviations in what the algorithms read, got {name!r} of {told}{names}")


def _control(setup: Setup) -> Plan:
    """FedAvg by size, whose clients train as those of the first algorithm."""
    cohort = min(setup.clients_per_round, setup.clients)
    arguments = {"task": setup.task, "local": setup.algorithms[0].local, "clients_per_round": cohort, "weights": "size"}
    return Plan(algorithms.fedavg, arguments)


def in_json(asked: Question) -> str:
    """The parts of the question that decide the runs, as text; not the tolerance."""
    utility = asked.utility._replace(cost=np.asarray(asked.utility.cost, float).tolist())._asdict()
    names = ("confidence", "method", "identities", "candidates", "outside")
    settings = {name: getattr(asked, name) for name in names}
    settings["deviators"] = None if asked.deviators is None else sorted(map(int, asked.deviators))
    return json.dumps({"deviations": recorded_deviations(asked.deviations), **utility, **settings})


def _check_question(earlier: str, asked: Question, of_what: str) -> None:
    """Raises a ValueError if something else was asked earlier, in the form of ``in_json``."""
    before, now = json.loads(earlier or "{}"), json.loads(in_json(asked))
    # An older version plays no splits, all clients deviate, the mechanism with one member is outside, and all is paid.
    before = {"identities": 1, "deviators": None, "outside": "mechanism", "budget": None} | before if before else before
    for name, value in now.items():
        if name in before and before[name] != value:
            raise ValueError(
                f"expected the {name} of the {of_what} to resume them, got {json.dumps(value)} in place of "
                f"{json.dumps(before[name])}"
            )
