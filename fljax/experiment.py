"""From a config to results: one federation and one standalone pass per seed, every algorithm on the same split."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr

from fljax import algorithms, data, models, results, scenarios
from fljax.config import AlgorithmEntry, Config, dumps
from fljax.engine import Block, Execution, Plan, simulate, standalone
from fljax.local import Local
from fljax.naming import resolve
from fljax.results import Reference, Result
from fljax.types import Algorithm, Federation, Task


class Event(NamedTuple):
    """What happens in a run, for progress bars and the log.

    Attributes:
      stage: "data", "standalone", "train", "note" or "saved".
      label: of the algorithm, or "".
      round: rounds done.
      rounds: rounds asked for.
      seconds: since the run began.
      message: one sentence, or "".
    """

    stage: str
    label: str
    round: int
    rounds: int
    seconds: float
    message: str


class Outcome(NamedTuple):
    """All algorithms side by side.

    Attributes:
      metrics: over ``algorithm, seed, evaluated_round, client | unseen``.
      records: over ``algorithm, seed, round, row``.
      diverged: ``(label, seed, round)`` of runs in which a NaN or infinity appeared.
      models: what ``simulate`` returned, by label (absent for those that were resumed).
    """

    metrics: xr.Dataset
    records: xr.Dataset
    diverged: tuple[tuple[str, int, int], ...]
    models: dict[str, Result]


class Composed(NamedTuple):
    """A builder inside wrappers; hashable, so that equal configs share compiled programs."""

    build: Callable[..., Algorithm]
    wrappers: tuple[Callable[..., Algorithm], ...] = ()

    def __call__(
        self, arguments: Mapping[str, Any], options: tuple[Mapping[str, Any], ...], **by_seed: Any
    ) -> Algorithm:
        algorithm = self.build(**(_offered(self.build, by_seed) | dict(arguments)))
        for wrap, chosen in zip(self.wrappers, options, strict=True):
            algorithm = wrap(algorithm, **(_offered(wrap, by_seed) | dict(chosen)))
        return algorithm


OnEvent = Callable[[Event], None]


def run(
    config: Config,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
) -> Outcome:
    """Runs every algorithm of a config and saves after each.

    Args:
      config: validated.
      directory: where ``results.nc`` (metrics; records in the group "records"), ``metrics.csv`` and ``log.jsonl`` go;
        None: nothing is saved.
      resume: skip algorithms that ``directory`` already holds.
      on_event: told what happens.

    Raises:
      ValueError: if the data cannot be partitioned as asked, or the results to resume are of another config.
    """
    tell = teller(directory, on_event)
    finished = resumed(config, directory) if resume and directory is not None else {}
    federation, task = build_federation(config, tell)
    local = build_local(config)
    execution = Execution(**config.execution.model_dump())
    check(config, task)
    tell("standalone", "", 0, config.rounds, f"training {population(federation)} standalone models per seed")
    reference = standalone(task, federation, standalone_local(config, local), seeds=config.seeds, execution=execution)
    if config.participation.clients_per_round > config.data.clients:
        asked = config.participation.clients_per_round
        tell(
            "note",
            "",
            0,
            0,
            f"clients_per_round = {asked} is more than the population: all {config.data.clients} take part",
        )

    parts = dict(finished)
    kept: dict[str, Result] = {}
    for entry in config.algorithms:
        label = entry.label
        if label in parts:
            tell("note", label, config.rounds, config.rounds, "already in the results, not repeated")
            continue

        def progress(block: Block, label: str = label) -> None:
            tell("train", label, block.round, block.rounds, "")

        tell("train", label, 0, config.rounds, "")
        kept[label] = simulate(
            build_plan(config, entry, task, local, reference),
            federation,
            rounds=config.rounds,
            seeds=config.seeds,
            reference=reference,
            evaluate_every=config.evaluate_every,
            callbacks=(progress,),
            execution=execution,
        )
        parts[label] = (kept[label].metrics, kept[label].records)
        tell("note", label, config.rounds, config.rounds, _cost(kept[label].metrics))
        for seed, round in kept[label].diverged:
            tell(
                "note",
                label,
                round,
                config.rounds,
                f"diverged in round {round} of seed {seed}; frozen there",
            )
        if directory is not None:
            save(directory, *join(config, parts))
            tell("saved", label, config.rounds, config.rounds, "")
    metrics, records = join(config, parts)
    return Outcome(metrics, records, _diverged(metrics), kept)


def build_federation(config: Config, tell: Callable[..., None] | None = None) -> tuple[Federation, Task]:
    """The federations of all seeds, stacked, and the task on them.

    Sources and partitioners are given ``clients``, ``unseen`` and ``seed`` if they ask for them.
    """
    source = resolve(config.data.dataset, data.SOURCES, "dataset")
    options = dict(config.data.dataset_options)
    counts = {"clients": config.data.clients, "unseen": config.data.unseen}
    by_seed = "seed" in inspect.signature(source).parameters
    datasets = {}
    federations = []
    for seed in config.seeds:
        given = _asked(source, counts | ({"seed": seed} if by_seed else {}), options)
        which = seed if by_seed else config.seeds[0]
        if which not in datasets:
            read = data.load(source, folder=config.data.folder, **given)
            # Placed once, so that the federations of all seeds share one copy on the device.
            datasets[which] = read._replace(x=jnp.asarray(read.x), y=jnp.asarray(read.y, jnp.int32))
            if tell is not None:
                found = datasets[which]
                tell(
                    "data",
                    "",
                    0,
                    0,
                    f"{config.data.dataset}: {len(found.y)} examples, {found.classes} classes",
                )
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
    task = builder(
        dataset.x.shape[1:],
        dataset.classes,
        prepare=models.standardise(dataset.mean, dataset.std),
        **config.model.options,
    )
    return data.stack(federations), task


def check(config: Config, task: Task) -> None:
    """Builds every algorithm once, so that what is wrong with one is said before anything is computed.

    Raises:
      ValueError: what the builder says.
    """
    nothing = np.zeros((1, config.data.clients), np.float32)
    for entry in config.algorithms:
        plan = build_plan(config, entry, task, build_local(config), Reference(nothing, nothing, nothing))
        plan.build(**plan.arguments, **{name: values[0] for name, values in plan.by_seed.items()})


def build_local(config: Config) -> Local:
    """Local training of a config."""
    chosen = config.local
    return Local(
        learning_rate=chosen.learning_rate,
        batch_size=chosen.batch_size,
        steps=chosen.steps,
        epochs=chosen.epochs,
        optimizer=chosen.optimizer,
        options=tuple(sorted(chosen.options.items())),
        decay=chosen.decay,
        weight_decay=chosen.weight_decay,
    )


def build_plan(config: Config, entry: AlgorithmEntry, task: Task, local: Local, reference: Reference) -> Plan:
    """The plan of one algorithm: its builder is given what it asks for by the names of its parameters."""
    local = _own_local(entry, local)
    found = resolve(entry.name, algorithms.REGISTRY, "algorithm")
    build = getattr(found, "build", found)
    chosen = (*entry.scenarios, *config.scenarios)
    found_wrappers = [resolve(scenario.name, scenarios.REGISTRY, "scenario") for scenario in chosen]
    wrappers = tuple(getattr(each, "build", each) for each in found_wrappers)
    rows = min(config.participation.clients_per_round, config.data.clients)
    fixed = _asked(build, {"task": task, "local": local, "clients_per_round": rows}, entry.options)
    own = {"learning_rate": local.learning_rate, "batch_size": local.batch_size}
    options = tuple(_asked(wrap, own, scenario.options) for wrap, scenario in zip(wrappers, chosen, strict=True))
    measured = {"threshold": reference.threshold, "contribution": reference.test_accuracy}
    given = ((build, fixed), *zip(wrappers, options, strict=True))
    wanted = {name for each, own in given for name in _offered(each, measured) if name not in own}
    by_seed = {name: values for name, values in measured.items() if name in wanted}
    return Plan(Composed(build, wrappers), {"arguments": fixed, "options": options}, by_seed)


def _offered(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is offered, that which the function has parameters for."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in names}


def _asked(function: Callable[..., Any], offered: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and of what is offered that which the function has parameters for."""
    return _offered(function, offered) | dict(given)


def standalone_local(config: Config, local: Local) -> Local:
    chosen = config.standalone.model_dump(exclude_none=True)
    return local._replace(**({"steps": None, "epochs": None} | chosen))


def _own_local(entry: AlgorithmEntry, local: Local) -> Local:
    """Local training of one algorithm."""
    own = entry.local.model_dump(exclude_none=True)
    if own.keys() & {"steps", "epochs"}:
        own = {"steps": None, "epochs": None} | own
    return local._replace(**own)


def population(federation: Federation) -> int:
    unseen = 0 if federation.unseen is None else federation.unseen.id.shape[-1]
    return federation.clients.id.shape[-1] + unseen


def teller(directory: pathlib.Path | None, on_event: OnEvent | None) -> Callable[..., None]:
    began = time.perf_counter()

    def tell(stage: str, label: str, round: int, rounds: int, message: str) -> None:
        event = Event(stage, label, round, rounds, round_seconds(time.perf_counter() - began), message)
        if directory is not None:
            with open(directory / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(event._asdict()) + "\n")
        if on_event is not None:
            on_event(event)

    return tell


def round_seconds(seconds: float) -> float:
    """Milliseconds are enough for a log."""
    return float(np.round(seconds, 3))


def _cost(metrics: xr.Dataset) -> str:
    """How a run was mapped to devices, and what it cost."""
    clients, devices = int(metrics["execution_clients"]), int(metrics["execution_devices"])
    words = {"trial": "trial", "compile": "compiling", "train": "training", "evaluate": "evaluation"}
    spent = {word: float(metrics[f"seconds_{purpose}"]) for purpose, word in words.items()}
    seconds = ", ".join(f"{word} {each:.1f} s" for word, each in spent.items() if each > 0)
    at_a_time = "one client" if clients == 1 else f"{clients} clients"
    where = "one device" if devices == 1 else f"each of {devices} devices"
    return f"{at_a_time} at a time on {where}, about {float(metrics['execution_memory']) / 2**20:.0f} MiB; {seconds}"


Parts = Mapping[str, tuple[xr.Dataset, xr.Dataset]]


def join(config: Config, parts: Parts) -> tuple[xr.Dataset, xr.Dataset]:
    order = [entry.label for entry in config.algorithms if entry.label in parts]
    metrics = results.join({label: parts[label][0] for label in order})
    records = results.join({label: parts[label][1] for label in order})
    return results.with_gains(metrics, order[0]).assign_attrs(name=config.name), records


def save(directory: pathlib.Path, metrics: xr.Dataset, records: xr.Dataset) -> None:
    """Written beside and moved into place, so that a run that dies leaves the last complete file."""
    fresh = directory / ".results.nc"
    metrics.to_netcdf(fresh, engine="h5netcdf")
    records.to_netcdf(fresh, engine="h5netcdf", mode="a", group="records")
    os.replace(fresh, directory / "results.nc")
    scalar = lambda dims: dims[:1] == ("algorithm",) and dims[-2:] == ("seed", "evaluated_round")  # noqa: E731
    scalars = [str(name) for name, values in metrics.items() if scalar(values.dims)]
    table = metrics[scalars].to_dataframe().reset_index()
    table.to_csv(directory / ".metrics.csv", index=False)
    os.replace(directory / ".metrics.csv", directory / "metrics.csv")


def load(directory: pathlib.Path) -> tuple[xr.Dataset, xr.Dataset]:
    """(metrics, records) of a run folder.

    Raises:
      ValueError: if the folder holds no results.
    """
    path = directory / "results.nc"
    if not path.is_file():
        raise ValueError(f"expected a run folder with results.nc, got {directory}")
    return (
        xr.load_dataset(path, engine="h5netcdf"),
        xr.load_dataset(path, engine="h5netcdf", group="records"),
    )


def resumed(
    config: Config, directory: pathlib.Path, grid: str | None = None
) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Results of an interrupted run by label, if it was of the same config (and of the same grid, if it is a sweep)."""
    if not (directory / "results.nc").is_file():
        return {}
    stored = directory / "config.toml"
    if stored.is_file() and stored.read_text(encoding="utf-8") != dumps(config):
        raise ValueError(f"expected the config of the results in {directory} to resume them, got a changed one")
    metrics, records = load(directory)
    if metrics.attrs.get("grid") != grid:
        kinds = {True: "fljax run", False: "fljax sweep"}
        other, own = kinds["grid" not in metrics.attrs], kinds[grid is None]
        raise ValueError(f"expected results of {own} in {directory} to resume them, got those of another {other}")
    labels = [str(label) for label in metrics["algorithm"].values]
    return {
        label: (metrics.sel(algorithm=label, drop=True), records.sel(algorithm=label, drop=True)) for label in labels
    }


def _diverged(metrics: xr.Dataset) -> tuple[tuple[str, int, int], ...]:
    table = metrics["diverged"].transpose("algorithm", "seed")
    return tuple(
        (str(label), int(seed), int(table.sel(algorithm=label, seed=seed)))
        for label in table["algorithm"].values
        for seed in table["seed"].values
        if int(table.sel(algorithm=label, seed=seed)) >= 0
    )
