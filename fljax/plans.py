"""From a config's entries to plans: every builder is given what it asks for by the names of its parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax import algorithms, contributions, preparation, results, scenarios
from fljax.arguments import arguments_for, is_required
from fljax.config import AlgorithmEntry, Config
from fljax.engine import Plan, as_declared
from fljax.naming import resolve
from fljax.results import Reference
from fljax.training import Local
from fljax.types import Algorithm, Federation, Task


class Composed(NamedTuple):
    """A builder inside wrappers; hashable, so that equal configs share compiled programs."""

    build: Callable[..., Algorithm]
    wrappers: tuple[Callable[..., Algorithm], ...] = ()

    def __call__(
        self, arguments: Mapping[str, Any], options: tuple[Mapping[str, Any], ...], **by_seed: Any
    ) -> Algorithm:
        algorithm = self.build(**arguments_for(self.build, by_seed, arguments))
        for wrap, chosen in zip(self.wrappers, options, strict=True):
            algorithm = wrap(algorithm, **arguments_for(wrap, by_seed, chosen))
        return algorithm


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


def standalone_local(config: Config, local: Local) -> Local:
    """How standalone models are trained: as the config says, and else as all others."""
    chosen = config.standalone.model_dump(exclude_none=True)
    return local._replace(**({"steps": None, "epochs": None} | chosen))


def _own_local(entry: AlgorithmEntry, local: Local) -> Local:
    """Local training of one algorithm."""
    own = entry.local.model_dump(exclude_none=True)
    if own.keys() & {"steps", "epochs"}:
        own = {"steps": None, "epochs": None} | own
    return local._replace(**own)


def build_plan(
    config: Config,
    entry: AlgorithmEntry,
    task: Task,
    local: Local,
    reference: Reference,
    federation: Federation,
    baselines: Mapping[str, np.ndarray] | None = None,
    *,
    trial: bool = False,
) -> Plan:
    """The plan of one algorithm: its builder is given what it asks for by the names of its parameters.

    Contributions are as the entry's ``contribution`` says (``fljax.contributions.measure``), or standalone accuracies.
    ``baselines`` are the accuracies ``[seeds, rounds, N]`` that the first algorithm of the config has after so many
    rounds, by the rows that they are of. In a ``trial`` nothing is trained to find where clusters start.

    Raises:
      ValueError: if a scenario asks for a baseline and there is none on its rows.
    """
    local = _own_local(entry, local)
    found = resolve(entry.name, algorithms.REGISTRY, "algorithm")
    build = getattr(found, "build", found)
    chosen = (*entry.scenarios, *config.scenarios)
    found_wrappers = [resolve(scenario.name, scenarios.REGISTRY, "scenario") for scenario in chosen]
    wrappers = tuple(getattr(each, "build", each) for each in found_wrappers)
    rows = min(config.participation.clients_per_round, config.data.clients)
    fixed = arguments_for(build, {"task": task, "local": local, "clients_per_round": rows}, entry.options)
    own = {"learning_rate": local.learning_rate, "batch_size": local.batch_size}
    options = tuple(arguments_for(wrap, own, scenario.options) for wrap, scenario in zip(wrappers, chosen, strict=True))
    measure = fixed.pop("contribution", "standalone_accuracy")
    known: dict[str, Any] = {"threshold": reference.threshold, "contribution": None, "reference": reference}
    started = fixed.pop("clustering", None)
    wrapping = tuple(zip(wrappers, options, strict=True))
    given = ((build, fixed), *wrapping)
    wanted = {name for each, own in given for name in arguments_for(each, known) if name not in own}
    if "contribution" in wanted:
        known["contribution"] = contributions.measure(measure, preparation.facts(federation, reference))
    by_seed = {name: values for name, values in known.items() if name in wanted}
    asking = [(wrap, own) for wrap, own in wrapping if preparation.asks_for_baseline(wrap, own)]
    if asking:
        by_seed["baseline"] = preparation.baseline(entry.label, asking, baselines)
    if started is not None and started.name != "random":
        by_seed["clustering"] = preparation.initial_clusters(
            config, started, build, fixed, task, local, federation, trial
        )
    elif is_required(build, "clustering"):
        fixed["clustering"] = None
    fixed, options = as_declared(build, fixed), tuple(itertools.starmap(as_declared, wrapping))
    return Plan(Composed(build, wrappers), {"arguments": fixed, "options": options}, by_seed)


def with_required_loss(plan: Plan, reference: Reference) -> Reference:
    """The reference with the ``threshold`` that the config gives the algorithm, or else one of its scenarios."""
    given = (plan.arguments["arguments"], *plan.arguments["options"])
    own = next((options["threshold"] for options in given if "threshold" in options), None)
    return results.with_threshold(reference, own)
