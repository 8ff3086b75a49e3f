"""From a config to results: one federation and one standalone pass per seed, every algorithm on the same split."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fljax import data, models, preparation, results
from fljax.arguments import accepts, arguments_for, is_required, parameters_of
from fljax.config import Config
from fljax.engine import (
    Block,
    Execution,
    Memory,
    Plan,
    estimate,
    progress_of,
    rehearse,
    sentences,
    simulate,
    standalone,
)
from fljax.folders import Claim, OnEvent, Parts, claim, save, teller
from fljax.infinite_losses import InfiniteLoss, infinite_losses
from fljax.naming import about_algorithm, resolve, unknown
from fljax.plans import (
    build_local,
    build_plan,
    standalone_local,
    with_required_loss,
)
from fljax.results import Reference, Result
from fljax.types import Federation, Task


class Outcome(NamedTuple):
    """All algorithms side by side.

    Attributes:
      metrics: over ``algorithm, seed, evaluated_round, client | unseen``.
      records: over ``algorithm, seed, round, row``.
      diverged: ``(label, seed, round)`` of runs in which a NaN or infinity appeared.
      models: what ``simulate`` returned, by label (absent for those that were resumed).
      infinite: evaluations in which a loss is infinite (``fljax.infinite_losses``).
    """

    metrics: xr.Dataset
    records: xr.Dataset
    diverged: tuple[tuple[str, int, int], ...]
    models: dict[str, Result]
    infinite: tuple[InfiniteLoss, ...] = ()


def run(
    config: Config,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    on_result: Callable[[str, Plan, Result], Any] | None = None,
) -> Outcome:
    """Runs every algorithm of a config and saves after each.

    Args:
      config: validated.
      directory: the run folder (``fljax.folders`` says what it holds), which nobody else may write to meanwhile;
        None: nothing is saved.
      resume: skip algorithms that ``directory`` already holds; without it the folder may not hold results.
      on_event: told what happens.
      on_result: given label, plan and Result of every algorithm that was run, once it is saved, for example
        ``functools.partial(fljax.saved_models.save, directory)``.

    Raises:
      ValueError: if the data cannot be partitioned as asked, or ``fljax.folders.claim`` refuses the folder.
      OSError: if there is no room for the results; those that were saved before are kept.
    """
    with claim(directory, config, resume) as claimed:
        return _run(config, directory, claimed, on_event, on_result)


def _run(
    config: Config,
    directory: pathlib.Path | None,
    claimed: Claim,
    on_event: OnEvent | None,
    on_result: Callable[[str, Plan, Result], Any] | None,
) -> Outcome:
    tell = teller(directory, on_event)
    for words in claimed.notes:
        tell("note", "", 0, 0, words)
    if all(entry.label in claimed.finished for entry in config.algorithms):
        for entry in config.algorithms:
            tell("note", entry.label, config.rounds, config.rounds, "already in the results, not repeated")
        metrics, records = join(config, claimed.finished)
        return Outcome(metrics, records, _diverged(metrics), {}, infinite_losses(metrics))
    federation, task = build_federation(config, tell)
    local = build_local(config)
    execution = Execution(**config.execution.model_dump())
    check(config, task, federation)
    tell("standalone", "", 0, config.rounds, f"training {population(federation)} standalone models per seed")
    reference = standalone(task, federation, standalone_local(config, local), seeds=config.seeds, execution=execution)
    if config.participation.clients_per_round > config.data.clients:
        asked = config.participation.clients_per_round
        words = f"clients_per_round = {asked} is more than the population: all {config.data.clients} take part"
        tell("note", "", 0, 0, words)

    parts = dict(claimed.finished)
    kept: dict[str, Result] = {}
    for entry in config.algorithms:
        label = entry.label
        if label in parts:
            tell("note", label, config.rounds, config.rounds, "already in the results, not repeated")
            continue

        def progress(block: Block, label: str = label) -> None:
            tell("train", label, block.round, block.rounds, progress_of(block))

        def held(memory: Memory, label: str = label) -> None:
            for words in sentences(memory):
                tell("note", label, 0, config.rounds, words)

        tell("train", label, 0, config.rounds, "")
        started = entry.options.get("clustering")
        if started is not None and started.name != "random":
            words = f"finding clusters by K-means on {started.name} after {started.rounds} rounds of FedAvg"
            tell("note", label, 0, config.rounds, words)
        decisions = preparation.decision_rounds(config) if entry is config.algorithms[0] else ()
        with about_algorithm(label):
            plan = build_plan(
                config, entry, task, local, reference, federation, preparation.baselines_of(config, parts)
            )
            result = simulate(
                plan,
                federation,
                rounds=config.rounds,
                seeds=config.seeds,
                reference=with_required_loss(plan, reference),
                evaluate_every=config.evaluate_every,
                evaluate_at=decisions,
                callbacks=(progress,),
                execution=execution,
                on_memory=held,
            )
        metrics = results.with_decisions(result.metrics, decisions, config.evaluate_every)
        kept[label] = result._replace(metrics=metrics)
        parts[label] = (kept[label].metrics, kept[label].records)
        tell("note", label, config.rounds, config.rounds, _cost(kept[label].metrics))
        for seed, round in kept[label].diverged:
            tell("note", label, round, config.rounds, f"diverged in round {round} of seed {seed}; frozen there")
        for each in kept[label].infinite:
            tell("note", label, each.round or 0, config.rounds, str(each))
        if directory is not None:
            save(directory, *join(config, parts), config)
            tell("saved", label, config.rounds, config.rounds, "")
        if on_result is not None:
            on_result(label, plan, kept[label])
    metrics, records = join(config, parts)
    return Outcome(metrics, records, _diverged(metrics), kept, infinite_losses(metrics))


def build_federation(config: Config, tell: Callable[..., None] | None = None) -> tuple[Federation, Task]:
    """The federations of all seeds, stacked, and the task on them.

    Sources and partitioners are given ``clients``, ``unseen`` and ``seed`` if they ask for them.
    """
    source = resolve(config.data.dataset, data.SOURCES, "dataset")
    options = dict(config.data.dataset_options)
    counts = {"clients": config.data.clients, "unseen": config.data.unseen}
    by_seed = "seed" in parameters_of(source)
    datasets = {}
    federations = []
    for seed in config.seeds:
        given = arguments_for(source, counts | ({"seed": seed} if by_seed else {}), options)
        which = seed if by_seed else config.seeds[0]
        if which not in datasets:
            # Placed once, so that the federations of all seeds share one copy on the device.
            datasets[which] = data.place(data.load(source, folder=config.data.folder, **given))
            if tell is not None:
                found = datasets[which]
                classes = "" if found.classes is None else f", {found.classes} classes"
                tell("data", "", 0, 0, f"{config.data.dataset}: {len(found.y)} examples{classes}")
        federations.append(
            data.federate(
                datasets[which],
                resolve(config.data.partition, data.PARTITIONERS, "partition"),
                **counts,
                seed=seed,
                train_fraction=config.data.train_fraction,
                valid_fraction=config.data.valid_fraction,
                test=config.data.test,
                held_fraction=config.data.held_fraction,
                **config.data.partition_options,
            )
        )
    dataset = datasets[next(iter(datasets))]
    builder = resolve(config.model.name, models.MODELS, "model")
    known = {} if dataset.vocabulary is None else {"vocabulary": dataset.vocabulary}
    if known and not accepts(builder, "vocabulary"):
        texts = {name: each for name, each in models.MODELS.items() if accepts(each, "vocabulary")}
        raise ValueError(f"{unknown('model', config.model.name, texts)} for the texts of {config.data.dataset}")
    if not known and is_required(builder, "vocabulary"):
        asked = f"{config.model.name}, which asks for a vocabulary"
        raise ValueError(f"expected a data set of texts for the model {asked}, got {config.data.dataset}")
    if dataset.classes is None and builder in models.MODELS.values():
        raise ValueError(
            f"expected a dataset of classes for the model {config.model.name}, got {config.data.dataset}, whose labels "
            "are no classes; a model of one's own, module:function, may have another loss"
        )
    if not known and accepts(builder, "prepare"):
        known = {"prepare": models.standardise(dataset.mean, dataset.std)}
    defaults = {"prepare": None, "dtype": jnp.float32}
    must = {name: value for name, value in defaults.items() if is_required(builder, name)}
    task = builder(dataset.x.shape[1:], dataset.classes, **(must | known), **config.model.options)
    return data.stack(federations), task


def check(
    config: Config, task: Task, federation: Federation, rehearsed: bool = True, swept: bool = False
) -> dict[str, Plan]:
    """Builds every algorithm once, so that what is wrong with one is said before anything is computed.

    Args:
      config: of the experiment.
      task: its model.
      federation: its data.
      rehearsed: also trace a round of each, which takes a second or two.
      swept: as a cell of a sweep, whose algorithms do not wait for the first one.

    Returns:
      Their plans by label, with one half for everything that standalone models would tell.

    Raises:
      ValueError: what the builder or the round says.
    """
    half = np.full((len(config.seeds), config.data.clients), 0.5, np.float32)  # nothing that measures divide by is 0
    unseen = np.full((len(config.seeds), config.data.unseen), 0.5, np.float32) if config.data.unseen else None
    accuracies = (None, None) if task.score is None else (half, unseen)
    alone = Reference(half, half, accuracies[0], unseen, unseen, accuracies[1])
    local = build_local(config)
    table = np.broadcast_to(half[:, None], (len(half), max(config.rounds, 1), config.data.clients))
    first, known = config.algorithms[0], {"test": table}
    if np.any(np.asarray(federation.clients.valid.size) > 0):
        known["valid"] = table
    plans = {}
    for entry in config.algorithms:
        with about_algorithm(entry.label):
            baselines = None if swept or entry is first else known
            plan = build_plan(config, entry, task, local, alone, federation, baselines, trial=True)
            plan.build(**plan.arguments, **jax.tree.map(lambda leaf: leaf[0], dict(plan.by_seed)))
            if rehearsed:
                rehearse(plan, federation)
        plans[entry.label] = plan
    return plans


def estimates(config: Config) -> dict[str, Memory]:
    """What every algorithm of a config would hold, by label; nothing is trained."""
    federation, task = build_federation(config)
    given: dict[str, Any] = {name: getattr(config, name) for name in ("rounds", "seeds", "evaluate_every")}
    given["execution"] = Execution(**config.execution.model_dump())
    plans = check(config, task, federation, rehearsed=False)  # the estimate traces them
    return {label: estimate(plan, federation, **given) for label, plan in plans.items()}


def population(federation: Federation) -> int:
    unseen = 0 if federation.unseen is None else federation.unseen.id.shape[-1]
    return federation.clients.id.shape[-1] + unseen


def _cost(metrics: xr.Dataset) -> str:
    """How a run was mapped to devices, and what it cost."""
    clients, devices = int(metrics["execution_clients"]), int(metrics["execution_devices"])
    words = {"trial": "trial", "compile": "compiling", "train": "training", "evaluate": "evaluation"}
    spent = {word: float(metrics[f"seconds_{purpose}"]) for purpose, word in words.items()}
    seconds = ", ".join(f"{word} {each:.1f} s" for word, each in spent.items() if each > 0)
    at_a_time = "one client" if clients == 1 else f"{clients} clients"
    where = "one device" if devices == 1 else f"each of {devices} devices"
    return f"{at_a_time} at a time on {where}; {seconds}"


def join(config: Config, parts: Parts) -> tuple[xr.Dataset, xr.Dataset]:
    order = [entry.label for entry in config.algorithms if entry.label in parts]
    metrics = results.join({label: parts[label][0] for label in order})
    records = results.join({label: parts[label][1] for label in order})
    return results.with_gains(metrics, order[0]).assign_attrs(name=config.name), records


def _diverged(metrics: xr.Dataset) -> tuple[tuple[str, int, int], ...]:
    table = metrics["diverged"].transpose("algorithm", "seed")
    return tuple(
        (str(label), int(seed), int(table.sel(algorithm=label, seed=seed)))
        for label in table["algorithm"].values
        for seed in table["seed"].values
        if int(table.sel(algorithm=label, seed=seed)) >= 0
    )
