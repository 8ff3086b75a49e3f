"""Runs a config: one federation and one standalone pass per seed, every algorithm on the same split."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fljax import results
from fljax.config import Config, dumps
from fljax.core import processes
from fljax.core.errors import during
from fljax.core.names import about_algorithm, cost_in_words
from fljax.engine import (
    Block,
    Memory,
    Plan,
    checksum_of,
    estimate,
    estimate_standalone,
    progress_of,
    rehearse,
    sentences,
    simulate,
    standalone,
)
from fljax.engine.loop.simulation import check_rounds
from fljax.engine.programs.debugging import mode
from fljax.engine.rounds.alone import check_initial, check_stop_alone, check_valid_alone
from fljax.experiments.compiling import Ahead
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.plans import build_plan
from fljax.experiments.inputs.setup import CallbackSetup, OptOut, Setup, Tell, resolve_setup
from fljax.experiments.outputs import outlines
from fljax.experiments.outputs.following import Watch
from fljax.experiments.outputs.model_files import ModelFiles, keep_beginning, state_of
from fljax.experiments.outputs.progress_files import ProgressFiles, Saving
from fljax.protocol import Algorithm
from fljax.results import Reference, Result, further_rounds, stores
from fljax.results.differences import flat
from fljax.results.folders import OnEvent, Parts, claim, save, teller
from fljax.results.infinite_losses import InfiniteLoss, infinite_losses
from fljax.results.non_finite import unstopped, until_stopped


class Outputs(NamedTuple):
    """Where the events and results of a run go.

    Attributes:
      tell: ``(stage, label, round, rounds, message)``, for each step of the run.
      files: checkpoints and scores of standalone models.
      models: saves trained models.
      watch: makes the callbacks.
      keep: called with metrics and records after each algorithm; None: they are not saved.
      on_result: called with label, plan and Result of every algorithm after it has run and is saved.
    """

    tell: Tell
    files: ProgressFiles
    models: ModelFiles
    watch: Watch
    keep: Callable[[xr.Dataset, xr.Dataset], None] | None = None
    on_result: Callable[[str, Plan, Result], Any] | None = None


class Outcome(NamedTuple):
    """All algorithms side by side.

    Attributes:
      metrics: over ``algorithm, seed, evaluated_round, client | unseen``.
      records: over ``algorithm, seed, round, row``; of algorithms with long records only those that are one value for
        each seed and round (``fljax.results.stores``).
      diverged: ``(label, seed, round)`` of runs in which a NaN or infinity appeared.
      models: the Results of ``simulate`` by label (absent for resumed algorithms).
      infinite: evaluations in which a loss is infinite (``fljax.results.infinite_losses``).
      outline: what saved models need to know of the data, without rows (``fljax.experiments.outputs.outlines``).
    """

    metrics: xr.Dataset
    records: xr.Dataset
    diverged: tuple[tuple[str, int, int], ...]
    models: dict[str, Result]
    infinite: tuple[InfiniteLoss, ...] = ()
    outline: Mapping[str, np.ndarray] = {}


def run(
    config: Config,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    on_result: Callable[[str, Plan, Result], Any] | None = None,
    saving: Saving | None = None,
    callbacks: Sequence[CallbackSetup] = (),
) -> Outcome:
    """Runs every algorithm of a config and saves after each, and checkpoints in between.

    Args:
      config: validated.
      directory: the run folder (see ``fljax.results.folders``), locked against other processes during the run; None:
        nothing is saved. Of the processes that ``fljax.distributed`` has joined, only process 0 reads and writes it.
      resume: skip algorithms whose results ``directory`` already has, and go on after the newest checkpoint of the
        next one. If False, the folder must not have results.
      on_event: called with an ``Event`` for each step of the run.
      on_result: called with label, plan and Result of every algorithm after it has run and is saved.
      saving: how often checkpoints are saved, and how many are kept; None: the defaults.
      callbacks: builders of callbacks beside those of the config, for example
        ``CallbackSetup(fljax.engine.callbacks.CALLBACKS["tensorboard"])``; they are not part of the config when a
        run resumes.

    ``config.save_models`` says which models are saved in the folder.

    Raises:
      Stopped: if ``saving.stop`` asks for it, after a checkpoint.
      ValueError: if the data cannot be partitioned as configured, if a callback is not ready, or if
        ``fljax.results.folders.claim`` refuses the folder.
      OSError: if the disk has no room for the results; results saved before are kept.
      fljax.results.non_finite.NotFinite: if the config's ``non_finite`` is "stop" and something was not finite. The
        results until then are saved, but not the models. Resuming runs this algorithm again.
    """
    labels = [entry.label for entry in config.algorithms]
    processes.check_same(lambda: flat(dumps(config)))
    text = "" if directory is None else dumps(config)
    with claim(directory, text, resume) as claimed:
        tell = teller(directory, on_event)
        files = ProgressFiles(directory, text, None, saving or Saving(), tell)
        for words in claimed.notes:
            tell("note", "", 0, 0, words)
        claimed = claimed._replace(finished=unstopped(claimed.finished, config.non_finite))
        if set(labels) <= claimed.finished.keys():
            for label in labels:
                tell("note", label, config.rounds, config.rounds, "already in the results, not repeated")
            files.all_finished()
            return _outcome(config.name, labels, claimed.finished, {}, config.metrics.opt_out_threshold)
        keep = None if directory is None or not processes.is_first() else functools.partial(save, directory, text=text)
        models = ModelFiles(directory, config.save_models)
        setup = resolve_setup(config, tell)
        models.begin(setup)
        watch = Watch.of(setup, directory, tell, callbacks)
        outputs = Outputs(tell, files, models, watch, keep, on_result)
        return run_setup(setup, outputs, claimed.finished, claimed.begun)


def run_setup(setup: Setup, outputs: Outputs, finished: Parts | None = None, begun: Parts | None = None) -> Outcome:
    """Runs every algorithm of a setup on its federation, with standalone models that are trained once.

    Args:
      setup: the experiment.
      outputs: where events and results go.
      finished: metrics and records of the algorithms that are not repeated, by label.
      begun: metrics and records of those that go on from their saved models (``fljax.results.further_rounds``).

    Raises:
      Stopped, ValueError, OSError, NotFinite: as ``run``.
    """
    finished, begun = finished or {}, begun or {}
    preparation.check_test_rows(setup.federation)
    plans = check(setup, rehearsed=False)
    done = {label: int(metrics["rounds_done"]) for label, (metrics, _) in begun.items()}
    for label, rounds in done.items():  # all of them before anything is computed
        with about_algorithm(label):
            _state_before(outputs, label, plans[label], setup, rounds, trial=True)
    for label, rounds in done.items():
        outputs.files.begin()
        keep_beginning(_folder(outputs), label, rounds)
    with mode(setup.execution), Ahead(setup, plans, finished, done) as ahead:
        return _run_all(setup, ahead, finished, begun, outputs)


def _run_all(setup: Setup, ahead: Ahead, finished: Parts, begun: Parts, outputs: Outputs) -> Outcome:
    tell, files = outputs.tell, outputs.files
    rounds, decisions = setup.rounds, preparation.decision_rounds(setup)

    def trained() -> list[Reference]:
        tell("standalone", "", 0, rounds, f"training {setup.clients + setup.unseen} standalone models per seed")
        settings: dict[str, Any] = {"seeds": setup.seeds, "execution": setup.execution, **setup.alone}

        def held(memory: Memory) -> None:
            for words in sentences(memory):
                tell("note", "", 0, rounds, f"standalone models: {words}")

        return [standalone(setup.task, setup.federation, setup.standalone, **settings, on_memory=held)]

    (reference,) = files.references(checksum_of(setup.federation) if files.is_on else 0, trained)
    reference = preparation.required_of(setup, reference)
    preparation.check_requirement({**finished, **begun}, reference, setup)
    for words in (preparation.absent_classes(setup), preparation.untested_clients(setup)):
        if words is not None:
            tell("note", "", 0, rounds, words)
    if setup.clients_per_round > setup.clients:
        asked = setup.clients_per_round
        words = f"clients_per_round = {asked} is more than the population: all {setup.clients} take part"
        tell("note", "", 0, 0, words)

    parts = dict(finished)
    kept: dict[str, Result] = {}
    before = next((int(metrics["rounds_done"]) for metrics, _ in begun.values()), None)
    for entry in setup.algorithms:
        label = entry.label
        if label in parts:
            tell("note", label, rounds, rounds, "already in the results, not repeated")
            continue

        def progress(block: Block, label: str = label) -> None:
            tell("train", label, block.round, block.rounds, progress_of(block))

        def held(memory: Memory, label: str = label) -> None:
            for words in sentences(memory):
                tell("note", label, 0, rounds, words)

        tell("train", label, 0, rounds, "")
        started = entry.clustering
        if started is not None:
            words = f"finding clusters by K-means on F1 scores after {started.rounds} rounds of FedAvg"
            tell("note", label, 0, rounds, words)
        evaluate_at = decided = decisions if entry is setup.algorithms[0] else ()
        ahead.after(label)
        with about_algorithm(label):
            plan = build_plan(setup, entry, reference, preparation.baselines_of(setup, parts))
            initial = None
            if label in begun and before is not None:
                initial = _state_before(outputs, label, plan, setup, before)
                tell("note", label, before, rounds, f"goes on after round {before}, from its saved models")
                evaluate_at = (*evaluate_at, *range(0, rounds, setup.evaluate_every))
            result, stopped = until_stopped(
                simulate,
                plan,
                setup.federation,
                rounds=rounds if initial is None else rounds - (before or 0),
                initial=initial,
                seeds=setup.seeds,
                reference=reference,
                evaluate_every=setup.evaluate_every,
                evaluate_at=evaluate_at,
                callbacks=(progress, outputs.watch.callback(label, parts)),
                execution=setup.execution,
                on_memory=held,
                checkpoint=files.checkpoint(label),
                **outputs.models.arguments(setup, label, plan),
                non_finite=setup.non_finite,
            )
        metrics = results.with_decisions(result.metrics, decided, setup.evaluate_every)
        if label in begun:
            metrics = further_rounds.with_metrics(begun[label][0], metrics, setup.evaluate_every)
            result = result._replace(records=further_rounds.with_records(begun[label][1], result.records))
        table = _short(files, label, result.records)
        kept[label] = result._replace(metrics=metrics, infinite=infinite_losses(metrics))
        parts[label] = (metrics, table)
        tell("note", label, rounds, rounds, cost_in_words(kept[label].metrics))
        for diverged in kept[label].divergences:
            tell("note", label, diverged.round, rounds, f"{diverged}; frozen there")
        for each in kept[label].infinite:
            tell("note", label, each.round or 0, rounds, str(each))
        if stopped is None:  # before the results, which say that the algorithm is finished
            outputs.models.save(label, plan, kept[label])
        if outputs.keep is not None:
            outputs.keep(*join(setup.name, setup.labels, {**begun, **parts}, before, setup.opt_out_threshold))
            tell("saved", label, rounds, rounds, "")
        if stopped is not None:
            files.finished(label)  # so that resuming runs it again
            raise stopped.of(label)
        if outputs.on_result is not None:
            outputs.on_result(label, plan, kept[label])
        files.finished(label)
    files.all_finished()
    outcome = _outcome(setup.name, setup.labels, parts, kept, setup.opt_out_threshold)
    return outcome if setup.world is None else outcome._replace(outline=outlines.contents(*setup.world))


def _state_before(outputs: Outputs, label: str, plan: Plan, setup: Setup, rounds: int, *, trial: bool = False) -> Any:
    """The state after so many rounds, from which an algorithm goes on; raises a ValueError if there is none."""
    return state_of(_folder(outputs), label, plan, setup, rounds, trial=trial)


def _folder(outputs: Outputs) -> pathlib.Path:
    assert outputs.files.directory is not None  # which has the results of what goes on
    return outputs.files.directory


def _short(files: ProgressFiles, label: str, records: xr.Dataset) -> xr.Dataset:
    """The records of an algorithm for the results; long ones stay in their store."""
    if stores.is_long(records):
        return stores.by_round(records)
    files.forget_records(label)
    return records


def _outcome(name: str, labels: Sequence[str], parts: Parts, kept: dict[str, Result], delta: OptOut) -> Outcome:
    metrics, records = join(name, labels, parts, opt_out_threshold=delta)
    return Outcome(metrics, records, _diverged(metrics), kept, infinite_losses(metrics))


def check(setup: Setup, rehearsed: bool = True, swept: bool = False) -> dict[str, Plan]:
    """Builds every algorithm once, so that errors are raised before anything is computed.

    Args:
      setup: the experiment.
      rehearsed: whether to also trace one round of each algorithm, which takes a second or two.
      swept: whether the setup is a cell of a sweep; scenarios then have no baseline from the first algorithm.

    Returns:
      Plans by label, with 0.5 in place of all values from standalone models.

    Raises:
      ValueError: if arguments are bad.
      AlgorithmError: if a builder or a function of an algorithm raises another exception.
    """
    check_initial(setup.task, setup.standalone_initial)
    check_stop_alone(setup.federation, setup.standalone_stop)
    check_valid_alone(setup.federation, setup.alone["valid"])
    count = len(setup.seeds)
    half = np.full((count, setup.clients), 0.5, np.float32)  # not 0, since measures divide by it
    unseen = np.full((count, setup.unseen), 0.5, np.float32) if setup.unseen else None
    accuracies = (None, None) if setup.task.score is None else (half, unseen)
    alone = Reference(half, half, accuracies[0], unseen, unseen, accuracies[1])
    alone = preparation.required_of(setup, alone, trial=True)
    table = np.broadcast_to(half[:, None], (count, max(setup.rounds, 1), setup.clients))
    known = {"test": table}
    if np.any(np.asarray(setup.federation.clients.valid.size) > 0):
        known["valid"] = table
    plans = {}
    for entry in setup.algorithms:
        with about_algorithm(entry.label):
            baselines = None if swept or entry is setup.algorithms[0] else known
            plan = build_plan(setup, entry, alone, baselines, trial=True)
            with during("the builder"):
                built = plan.build(**plan.arguments, **jax.tree.map(lambda leaf: leaf[0], dict(plan.by_seed)))
            if isinstance(built, Algorithm):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's builder may err
                check_rounds(built, setup.rounds)
            if rehearsed and setup.execution.clients != "debug":  # where nothing is traced
                rehearse(plan, setup.federation)
        plans[entry.label] = plan
    return plans


# The label of standalone training among estimates.
STANDALONE = "(standalone models)"


def estimates(config: Config) -> dict[str, Memory]:
    """The memory of every algorithm of a config, by label, and that of ``STANDALONE``, which comes first.

    Programs are compiled, and nothing is trained.
    """
    setup = resolve_setup(config)
    plans = check(setup, rehearsed=False)  # the estimate traces them
    how: dict[str, Any] = {"seeds": setup.seeds, "execution": setup.execution}
    found = {STANDALONE: estimate_standalone(setup.task, setup.federation, setup.standalone, **setup.alone, **how)}
    for label, plan in plans.items():
        found[label] = estimate(
            plan,
            setup.federation,
            rounds=setup.rounds,
            evaluate_every=setup.evaluate_every,
            non_finite=setup.non_finite,
            **how,
        )
    return found


def join(
    name: str, labels: Sequence[str], parts: Parts, continues: int | None = None, opt_out_threshold: OptOut = 0.0
) -> tuple[xr.Dataset, xr.Dataset]:
    """Metrics and records of the algorithms that are finished, in the order of ``labels``, as one dataset each.

    ``continues``: the rounds of the run that these results go on from; ``opt_out_threshold``: as for ``with_gains``.
    """
    order = [label for label in labels if label in parts]
    metrics = results.join({label: parts[label][0] for label in order})
    records = results.join({label: parts[label][1] for label in order})
    attributes = {"name": name} if continues is None else {"name": name, further_rounds.CONTINUES: continues}
    return results.with_gains(metrics, order[0], opt_out_threshold).assign_attrs(attributes), records


def _diverged(metrics: xr.Dataset) -> tuple[tuple[str, int, int], ...]:
    table = metrics["diverged"].transpose("algorithm", "seed")
    return tuple(
        (str(label), int(seed), int(table.sel(algorithm=label, seed=seed)))
        for label in table["algorithm"].values
        for seed in table["seed"].values
        if int(table.sel(algorithm=label, seed=seed)) >= 0
    )
