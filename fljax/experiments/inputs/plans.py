"""Makes plans from the algorithms of a Setup: every builder receives arguments by the names of its parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax import contributions
from fljax.core.signatures import accepts, arguments_for, is_required
from fljax.engine import Plan, as_declared
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup
from fljax.protocol import Algorithm
from fljax.results import Reference


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


def build_plan(
    setup: Setup,
    entry: AlgorithmSetup,
    reference: Reference,
    baselines: Mapping[str, np.ndarray] | None = None,
    *,
    trial: bool = False,
) -> Plan:
    """The plan of one algorithm: its builder receives arguments by the names of its parameters.

    Args:
      setup: the experiment.
      entry: the algorithm, one of ``setup.algorithms``.
      reference: metrics of standalone models, with what clients require.
      baselines: the accuracies ``[seeds, rounds, N]`` that the first algorithm has after every number of rounds, by the
        rows on which they are measured.
      trial: uses a placeholder for initial clusters, which are otherwise found by training.

    Raises:
      ValueError: if a scenario asks for a baseline and there is none on its rows.
    """
    if entry.plan is not None:
        return entry.plan
    build, local = entry.build, entry.local
    offered = {"task": setup.task, "local": local, "clients_per_round": min(setup.clients_per_round, setup.clients)}
    fixed = arguments_for(build, offered, entry.options)
    own = {name: getattr(local, name) for name in ("learning_rate", "batch_size", "shuffle")}
    wrappers = tuple(wrap for wrap, _ in entry.scenarios)
    options = tuple(arguments_for(wrap, own, given) for wrap, given in entry.scenarios)
    required = reference.threshold if reference.required is None else reference.required
    known: dict[str, Any] = {"threshold": required, "contribution": None, "reference": reference}
    wrapping = tuple(zip(wrappers, options, strict=True))
    wanted = {
        name for each, given in ((build, fixed), *wrapping) for name in arguments_for(each, known) if name not in given
    }
    if "contribution" in wanted:
        facts = preparation.facts(setup.federation, reference)
        known["contribution"] = contributions.measure(entry.contribution, facts, preparation.labels(setup))
    by_seed = {name: values for name, values in known.items() if name in wanted}
    asking = [(wrap, given) for wrap, given in wrapping if preparation.asks_for_baseline(wrap, given)]
    if asking:
        by_seed["baseline"] = preparation.baseline(entry.label, asking, baselines)
    if entry.clustering is not None:
        by_seed["clustering"] = preparation.initial_clusters(setup, entry, entry.clustering, trial)
    elif is_required(build, "clustering"):
        fixed["clustering"] = None
    fixed, options = as_declared(build, fixed), tuple(itertools.starmap(as_declared, wrapping))
    return Plan(Composed(build, wrappers), {"arguments": fixed, "options": options}, by_seed)


def reads_requirement(entry: AlgorithmSetup) -> bool:
    """Whether a run of the algorithm depends on what clients require; its metrics do in any case."""
    builders = () if entry.plan is not None else (entry.build, *(wrap for wrap, _ in entry.scenarios))
    return any(accepts(each, name) for each in builders for name in ("threshold", "reference"))
