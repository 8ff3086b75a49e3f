"""Runs a config: one federation and one standalone pass per seed, every algorithm on the same split."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import xarray as xr

from fljax import results
from fljax.config import Config, dumps
from fljax.core import processes
from fljax.core.names import about_algorithm
from fljax.engine import Block, Memory, Plan, checksum_of, estimate, estimate_standalone, progress_of
from fljax.engine.loop.history import Hooks
from fljax.engine.loop.simulation import run_plans
from fljax.engine.programs.shapes import debug_mode
from fljax.experiments import conductor, outlines
from fljax.experiments.conductor import Outcome, Outputs, Saving
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.preparation import block_by_client, build_plan, result_by_client, setup_of, with_pool
from fljax.experiments.inputs.setup import AlgorithmSetup, CallbackSetup, Setup, resolve_setup, weights_of
from fljax.experiments.programs import Ahead, ahead_of_run
from fljax.experiments.programs import check_setup as check_setup
from fljax.experiments.saved_models import ModelFiles, keep_beginning, state_of
from fljax.results import Reference, Result, Results, further_rounds, stores
from fljax.results.clients import with_names
from fljax.results.events import OnEvent, Parts
from fljax.results.folders import OpenFolder
from fljax.results.identity import flat
from fljax.results.non_finite import NotFinite, infinite_losses, unstopped
from fljax.results.records import without_value


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
        nothing is saved. After ``fljax.distributed``, only process 0 reads and writes it.
      resume: skip algorithms whose results ``directory`` already has, and go on after the newest checkpoint of the next
        one. The config may have further algorithms after these. If False, the folder must not have results.
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
    processes.check_same(lambda: flat(dumps(config)))
    text = "" if directory is None else dumps(config)
    with conductor.opened(directory, text, resume=resume, on_event=on_event, saving=saving) as (outputs, folder):
        folder = folder._replace(finished=unstopped(folder.finished, config.non_finite))
        labels = tuple(entry.label for entry in config.algorithms)
        if set(labels) <= folder.finished.keys():  # the data are not read
            threshold = config.metrics.opt_out_threshold
            experiment = conductor.Experiment(config.name, labels, config.rounds, threshold)
            return conductor.conduct(experiment, outputs, folder, None)
        models = ModelFiles(directory, config.save_models)
        setup = resolve_setup(config, outputs.log)
        models.begin(setup)
        return run_setup(setup, outputs._replace(models=models, callbacks=callbacks, on_result=on_result), folder)


def run_setup(setup: Setup, outputs: Outputs, folder: OpenFolder) -> Outcome:
    """Runs every algorithm of a setup on its federation, with standalone models that are trained once; as ``run``."""
    # ``folder`` has the results of algorithms that are not repeated, or that go on from their saved models.
    setup = with_pool(setup)
    builder = conductor.CallbackBuilder.of(setup, outputs.folder, outputs.log, outputs.callbacks)
    preparation.check_test_rows(setup.federation)
    plans = check_setup(setup, rehearsed=False)
    done = {label: int(begun.metrics["rounds_done"]) for label, begun in folder.begun.items()}
    directory = outputs.files.directory
    if directory is not None:  # it has the results of what goes on
        for label, rounds in done.items():  # all of them before anything is computed
            with about_algorithm(label):
                own = setup_of(setup, setup.algorithms[setup.labels.index(label)])
                state_of(directory, label, plans[label], own, rounds, trial=True)
        for label, rounds in done.items():
            outputs.files.begin()
            keep_beginning(directory, label, rounds)
    decisions = preparation.decision_rounds(setup)
    data = None if outputs.folder is None else checksum_of(setup.federation)
    conductor.check_data(folder, data, outputs.files)
    with debug_mode(setup.execution), ahead_of_run(setup, plans, folder.finished, done) as ahead:
        (reference,) = conductor.trained_alone([setup], (), outputs, folder)
        for words in preparation.facts_to_tell(setup):
            outputs.log.note(words, rounds=setup.rounds)
        computation = _Computation(setup, outputs, folder, reference, decisions, ahead, builder)
        experiment = conductor.Experiment(setup.name, setup.labels, setup.rounds, setup.opt_out_threshold, data=data)
        outcome = conductor.conduct(experiment, outputs, folder, computation.compute)
    return outcome if setup.world is None else outcome._replace(outline=outlines.contents(*setup.world))


class _Computation(NamedTuple):
    """Computes the algorithms of a run."""

    setup: Setup
    outputs: Outputs
    folder: OpenFolder  # what earlier processes have computed
    reference: Reference  # standalone models, with what clients require
    decisions: tuple[int, ...]  # numbers of rounds after which scenarios compare clients with the first algorithm
    ahead: Ahead
    builder: conductor.CallbackBuilder

    def compute(self, label: str, parts: Parts) -> conductor.Computed:
        """Runs one algorithm after those with the results ``parts``, and saves its models."""
        setup, log, rounds, begun = self.setup, self.outputs.log, self.setup.rounds, self.folder.begun.get(label)
        entry = setup.algorithms[setup.labels.index(label)]
        log.train(label, 0, rounds)
        if entry.clustering is not None:
            words = f"finding clusters by K-means on F1 scores after {entry.clustering.rounds} rounds of FedAvg"
            log.note(words, label, 0, rounds)
        decisions = self.decisions if entry is setup.algorithms[0] else ()
        self.ahead.after()
        with about_algorithm(label):
            own = setup_of(setup, entry)
            plan = build_plan(own, entry, self.reference, preparation.baselines_of(setup, parts))
            result, stopped = self._run(entry, own, plan, parts)
            trained = result
            if entry.pooled:
                result = result_by_client(result, self.reference, setup.clients, setup.unseen)
        metrics = results.with_decisions(result.metrics, decisions, setup.evaluate_every)
        if begun is not None:
            metrics = further_rounds.with_metrics(begun.metrics, metrics, setup.evaluate_every)
            result = result._replace(records=further_rounds.with_records(begun.records, result.records))
        if setup.world is not None:
            metrics = with_names(metrics, setup.world.names)
        metrics = metrics.assign_attrs(weights_of([entry]))
        result = result._replace(metrics=metrics, infinite=infinite_losses(metrics))
        if stores.is_long(result.records):  # they stay in their store
            short = stores.by_round(result.records)
        else:
            self.outputs.files.forget_records(label)
            short = result.records
        log.note(_cost_in_words(metrics), label, rounds, rounds)
        for diverged in result.divergences:
            log.note(f"{diverged}; frozen there", label, diverged.round, rounds)
        for loss in result.infinite:
            log.note(str(loss), label, loss.round or 0, rounds)
        for words in without_value(metrics):
            log.note(words, label, rounds, rounds)
        if stopped is None:  # before the results, which say that the algorithm is finished
            self.outputs.models.save(label, plan, trained)
        return conductor.Computed(Results(metrics, short), (plan, result), stopped)

    def _run(self, entry: AlgorithmSetup, own: Setup, plan: Plan, parts: Parts) -> tuple[Result, NotFinite | None]:
        """The Result of an algorithm in its setup ``own``, and what stopped it before its end."""
        outputs, label, schedule, initial = self.outputs, entry.label, own.schedule, None
        schedule = schedule._replace(all_at=self.decisions)
        if entry is self.setup.algorithms[0]:
            schedule = schedule._replace(evaluate_at=self.decisions)
        before = conductor.rounds_before(self.folder)
        if label in self.folder.begun and before is not None and outputs.files.directory is not None:
            initial = state_of(outputs.files.directory, label, plan, own, before)
            outputs.log.note(f"goes on after round {before}, from its saved models", label, before, own.rounds)
            usual = range(0, own.rounds, own.evaluate_every)
            schedule = schedule._replace(rounds=own.rounds - before, evaluate_at=(*schedule.evaluate_at, *usual))

        convert = functools.partial(block_by_client, setup=self.setup, reference=self.reference)
        callback = self.builder.callback(label, parts, convert=convert if entry.pooled else None)

        def progress(block: Block) -> None:
            outputs.log.train(label, block.round, block.rounds, progress_of(block))

        hooks = Hooks(
            callbacks=(progress, callback),
            on_memory=conductor.memory_notes(outputs.log, label, own.rounds),
            checkpoint=outputs.files.checkpoint(label),
            **outputs.models.arguments(own, label, plan),
        )
        references = [None if entry.pooled else self.reference]
        given = [plan], own.federation, schedule, references, hooks
        try:
            return run_plans(*given, initial=initial, leave_records=True)[0], None
        except NotFinite as stop:
            return stop.results[0], stop


# The label of standalone training among estimates.
STANDALONE = "(standalone models)"


def _cost_in_words(metrics: xr.Dataset) -> str:
    """A run's mapping to devices and its seconds, from its metrics."""
    clients, devices = int(metrics["execution_clients"]), int(metrics["execution_devices"])
    words = {"trial": "trial", "compile": "compiling", "train": "training", "evaluate": "evaluation"}
    spent = {word: float(metrics[f"seconds_{purpose}"]) for purpose, word in words.items()}
    times = ", ".join(f"{word} {seconds:.1f} s" for word, seconds in spent.items() if seconds > 0)
    at_a_time = "one client" if clients == 1 else f"{clients} clients"
    where = "one device" if devices == 1 else f"each of {devices} devices"
    return f"{at_a_time} at a time on {where}; {times}"


def estimates(config: Config) -> dict[str, Memory]:
    """The memory of every algorithm of a config, by label, after that of ``STANDALONE``; nothing is trained."""
    setup = with_pool(resolve_setup(config))
    plans = check_setup(setup, rehearsed=False)  # the estimate traces them
    alone = estimate_standalone(setup.task, setup.federation, setup.standalone, **setup.alone)
    estimated = {
        entry.label: estimate(plans[entry.label], setup_of(setup, entry).federation, setup.schedule)
        for entry in setup.algorithms
    }
    return {STANDALONE: alone} | estimated
