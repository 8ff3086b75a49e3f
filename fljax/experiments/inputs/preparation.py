"""What algorithms get before they run: facts for contributions, baselines, initial clusters, and the plan with them.

A scenario with a parameter ``baseline``, but no option for it, compares clients with the first algorithm in rounds that
are multiples of its ``every``. The first one is evaluated there too: these accuracies are over ``decision_round``.

Pooled (centralised) training is a baseline: one client has the rows of all clients, and all clients are judged. It has
the settings of the experiment. So with ``steps``, a run has as many steps as a client that is in every cohort; with
``epochs``, a round passes over all rows as often as all clients together do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PyTree

from fljax import contributions
from fljax.contributions import Labels, RoundMeasure
from fljax.core.names import name_of
from fljax.core.values import accepts, argument_of, arguments_for, is_required, parameters_of
from fljax.data import row_numbers
from fljax.engine import Block, Models, Plan, as_declared
from fljax.engine.programs.shapes import built
from fljax.engine.rounds.states import by_id
from fljax.experiments.inputs import clustering
from fljax.experiments.inputs.setup import AlgorithmSetup, Given, Setup, clients_of, with_requirement
from fljax.metrics.registry import COMPUTE
from fljax.protocol import Algorithm, ClientData, Federation, Labelled, Rows
from fljax.results import Reference, Result, metrics_dataset, metrics_of_runs
from fljax.results.events import Parts
from fljax.training import check_classes

# Variables of the one client that say something of all: averages over validation rows, and what it computes. Other
# metrics on request are of the training and validation rows of each client, which are not judged here: they are NaN.
_OF_VALIDATION = ("average_valid_accuracy", "average_valid_loss")
_OF_THE_POOL = (*_OF_VALIDATION, *COMPUTE)


def pooled(federation: Federation) -> Federation:
    """One client with the training and validation rows of all seen clients, which are unseen clients now."""
    # Rows that several clients have are as often in the pool; its client has no test rows.
    features, names = federation.features, federation.names
    federation = by_id(federation)
    seen, unseen = federation.clients, federation.unseen
    if seen.noise is not None and np.any(np.asarray(seen.noise) != 0):
        raise ValueError("expected clients without noise on their features to pool their rows, got clients with noise")
    ids = np.asarray(seen.id)
    stacked, clients = ids.shape[:-1], ids.shape[-1]
    seeds = ids.size // clients

    def joined(part: str) -> Rows:
        return _table([[np.concatenate(own)] for own in _by_seed(row_numbers(federation, part), seeds)], stacked)

    def everybody(part: str) -> Rows:
        kinds = (False,) if unseen is None else (False, True)
        groups = [_by_seed(row_numbers(federation, part, unseen=kind), seeds) for kind in kinds]
        return _table([list(itertools.chain(*of_seed)) for of_seed in zip(*groups, strict=True)], stacked)

    nothing = Rows(jnp.zeros((*stacked, 1, 1), jnp.int32), jnp.zeros((*stacked, 1), jnp.int32))
    number = clients + (0 if unseen is None else unseen.id.shape[-1])
    all_have = seen.deployment is not None and (unseen is None or unseen.deployment is not None)
    everyone = ClientData(jnp.zeros((*stacked, 1), jnp.int32), joined("train"), joined("valid"), nothing)
    strangers = ClientData(
        jnp.broadcast_to(jnp.arange(number, dtype=jnp.int32), (*stacked, number)),
        everybody("train"),
        everybody("valid"),
        everybody("test"),
        deployment=everybody("deployment") if all_have else None,
    )
    whole = federation._replace(clients=everyone, unseen=strangers, lists=None)
    return whole._replace(features=features, names=names)


def _by_seed(lists: Sequence[np.ndarray], seeds: int) -> list[Sequence[np.ndarray]]:
    """Lists of the clients of each seed, which stand one after another."""
    count = len(lists) // seeds
    return [lists[place * count : (place + 1) * count] for place in range(seeds)]


def _table(lists: Sequence[Sequence[np.ndarray]], stacked: tuple[int, ...]) -> Rows:
    """Row numbers by seed and client as a padded table ``[*stacked, clients, most]``."""
    size = np.array([[len(rows) for rows in of_seed] for of_seed in lists], np.int32)
    table = np.zeros((*size.shape, max(int(size.max(initial=0)), 1)), np.int32)
    for place, of_seed in enumerate(lists):
        for client, rows in enumerate(of_seed):
            table[place, client, : len(rows)] = rows
    shape = (*stacked, size.shape[1])
    return Rows(jnp.asarray(table.reshape(*shape, -1)), jnp.asarray(size.reshape(shape)))


def by_client(values: Mapping[str, np.ndarray], clients: int, unseen: int) -> dict[str, Labelled]:
    """What a pooled run measured of everybody, ``[runs, N + U]``, as ``[runs, N]`` and ``unseen_...`` ``[runs, U]``."""
    by_name: dict[str, Labelled] = {}
    for name, numbers in values.items():
        plain = name.removeprefix("unseen_")
        # Scalars over clients are computed again.
        if plain == name:
            continue
        if np.ndim(numbers) == 2:
            by_name[plain] = Labelled(numbers[..., :clients], ("client",))
            if unseen:
                by_name[name] = Labelled(numbers[..., clients:], ("unseen",))
            if plain.startswith("score_"):
                by_name |= _averages(plain, numbers, clients, unseen)
        # Without unseen clients, its rows are those of the seen ones.
        elif plain.startswith("pooled_score_") and not unseen:
            by_name[plain] = Labelled(numbers, ())
    return by_name


def _averages(plain: str, numbers: np.ndarray, clients: int, unseen: int) -> dict[str, Labelled]:
    groups = {"": numbers[..., :clients]} | ({"unseen_": numbers[..., clients:]} if unseen else {})
    by_name: dict[str, Labelled] = {}
    for prefix, values in groups.items():
        known = np.isfinite(values)
        total, count = np.where(known, values, 0).sum(axis=-1), known.sum(axis=-1)
        by_name[f"{prefix}average_{plain}"] = Labelled(np.where(count > 0, total / np.maximum(count, 1), np.nan), ())
    return by_name


def metrics_by_client(metrics: xr.Dataset, reference: Reference | None, clients: int, unseen: int) -> xr.Dataset:
    """The metrics of a run on ``pooled(federation)`` in the form of all others, with everybody's ``reference``."""
    rounds = metrics["evaluated_round"].values.tolist()
    evaluations = []
    for place, done in enumerate(rounds):
        at = metrics.isel(evaluated_round=place)
        values = {
            str(name): np.asarray(at[name].transpose("seed", ...).values)
            for name, of_name in metrics.items()
            if "evaluated_round" in of_name.dims
        }
        evaluations.append((done, by_client(values, clients, unseen)))
    sizes = metrics["unseen_test_rows"].transpose("seed", "unseen").values
    test_rows = {"test_rows": sizes[:, :clients], "unseen_test_rows": sizes[:, clients:]}
    by_name = metrics_dataset(metrics["seed"].values.tolist(), evaluations, reference, test_rows=test_rows)
    for name, values in metrics.items():
        if name in _OF_THE_POOL or not {"evaluated_round", "client", "unseen"} & set(values.dims):
            by_name[str(name)] = (values.dims, values.values, values.attrs)
    for name in by_name.data_vars:
        source = f"unseen_{str(name).removeprefix('unseen_')}"
        if "score_" in str(name) and source in metrics:
            by_name[name] = by_name[name].assign_attrs(metrics[source].attrs)
    return by_name


def setup_of(setup: Setup, entry: AlgorithmSetup) -> Setup:
    """The setup in which an algorithm runs: that of the experiment, or the one with pooled rows."""
    if not entry.pooled:
        return setup
    federation = pooled(setup.federation) if setup.pool is None else setup.pool
    extra = tuple(name for name in setup.extra_metrics if name in COMPUTE)
    return setup._replace(federation=federation, clients_per_round=1, extra_metrics=extra)


def with_pool(setup: Setup) -> Setup:
    """The setup with its pooled federation, made once, if an algorithm needs it."""
    return setup._replace(pool=pooled(setup.federation) if any(entry.pooled for entry in setup.algorithms) else None)


def check_pooled(entry: AlgorithmSetup, plan: Plan) -> None:
    """Raises a ValueError if a pooled algorithm needs numbers of each client, which a pool of rows has not."""
    if entry.pooled and (plan.by_seed or entry.clustering is not None):
        needed = ", ".join(plan.by_seed) or "clustering"
        raise ValueError(
            f"expected an algorithm without numbers of each client for pooled = true, such as fedavg, got one with "
            f"{needed}"
        )


def block_by_client(block: Block, setup: Setup, reference: Reference) -> Block:
    """A block of a pooled run, for callbacks, with metrics in the form of all others."""
    evaluated = by_client(block.metrics, setup.clients, setup.unseen)
    metrics = metrics_of_runs(setup.seeds, evaluated, [reference])
    averages = {name: block.metrics[name] for name in _OF_VALIDATION if name in block.metrics}
    return block._replace(metrics=metrics | averages)


class PooledModels(NamedTuple):
    """``(client, ..., seed=0, unseen=False)`` of a pooled run, whose clients are all unseen ones."""

    function: Callable[..., Any]  # ``deployed`` or ``predict`` of the run
    clients: int  # the number of seen ones
    unseen: int

    def parts(self) -> Any:
        """Raises a ValueError: ``Comparison.save`` keeps no models of pooled runs."""
        raise ValueError(
            "expected algorithms that are not pooled to save a comparison with models, got a pooled one; save_models "
            "of a config keeps its models"
        )

    def __call__(self, client: int, *arguments: Any, seed: int = 0, unseen: bool = False) -> PyTree | Array:
        """The model, or the logits of raw examples, of seen client ``client`` or unseen client number ``client``."""
        count = self.unseen if unseen else self.clients
        if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < count:
            raise ValueError(f"expected a client below {count}, got {client!r}")
        return self.function(int(client) + self.clients * unseen, *arguments, seed=seed, unseen=True)


def models_by_client(models: Models, setup: Setup) -> Models:
    """The models of a pooled run, asked for by the clients of the experiment."""
    sizes = setup.clients, setup.unseen
    deployed: Any = PooledModels(models.deployed, *sizes)
    predict: Any = PooledModels(models.predict, *sizes)
    return Models(models.state, deployed, predict)


def result_by_client(result: Result, reference: Reference | None, clients: int, unseen: int) -> Result:
    """The Result of a pooled run in the form of all others; arguments as for ``metrics_by_client``."""
    deployed, predict = (PooledModels(function, clients, unseen) for function in (result.deployed, result.predict))
    metrics = metrics_by_client(result.metrics, reference, clients, unseen)
    return result._replace(metrics=metrics, deployed=deployed, predict=predict, best=None)


_SPLITS = ("valid", "test")
_NAMED = 5  # classes in a sentence


def initial_clusters(setup: Setup, entry: AlgorithmSetup, chosen: clustering.ByF1, trial: bool) -> Any:
    """The initial clusters of all seeds; a ``trial`` trains nothing and returns a placeholder."""
    count = argument_of(entry.build, entry.options, "clusters", None)
    clustering.check_clustering(setup.federation, chosen.rows, count, chosen.late, setup.seeds)
    check_classes(setup.task, "clustering")
    if trial:
        return clustering.placeholder(setup.task, count, setup.clients, len(setup.seeds))
    return clustering.by_f1(
        setup.task,
        entry.local,
        setup.federation,
        clusters=count,
        seeds=setup.seeds,
        execution=setup.execution,
        **chosen._asdict(),
    )


def check_test_rows(federation: Federation) -> None:
    """Raises a ValueError if no client has rows to test on, and the server has no test rows."""
    groups = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    tested = [each.test for each in groups] + [rows for name, rows in federation.held.items() if name == "test"]
    if any(np.any(np.asarray(rows.size) > 0) for rows in tested):
        return
    most = max(int(np.max(np.asarray(each.train.size), initial=0)) for each in groups)
    why = ": every client has one row at most" if most <= 1 else ""
    raise ValueError(
        f'expected clients with test rows, got none{why}; test = "global" tests all clients on the same rows, and '
        "fljax.simulate trains without any"
    )


def absent_classes(setup: Setup) -> str | None:
    """A sentence on the classes of which no client that trains has a training row; None: there are none."""
    classes, federation = setup.task.classes, setup.federation
    if classes is None:
        return None
    labels, rows = np.asarray(federation.examples.y), row_numbers(federation)
    seeds, lacking = len(rows) // setup.clients, set[int]()
    for own in _by_seed(rows, seeds):
        lacking |= set(range(classes)) - set(np.unique(labels[np.concatenate(own)]).tolist())
    if not lacking:
        return None
    names: Any = federation.names.classes
    if names is None or len(names) != classes:
        names = range(classes)
    shown = ", ".join(str(names[each]) for each in sorted(lacking)[:_NAMED]) + (
        ", ..." if len(lacking) > _NAMED else ""
    )
    seed_words = " in some seed" if seeds > 1 else ""
    return f"no client that trains has a training row of {len(lacking)} of {classes} classes{seed_words}: {shown}"


def untested_clients(setup: Setup) -> str | None:
    """A sentence if more than half of the clients that train have no test rows, while others have; None otherwise."""
    sizes = np.asarray(setup.federation.clients.test.size).reshape(-1)
    untested = int(np.sum(sizes == 0))
    if untested * 2 <= len(sizes) or untested == len(sizes):
        return None
    seed_words = " over all seeds" if len(sizes) > setup.clients else ""
    return f"{untested} of {len(sizes)} clients{seed_words} have no test rows, so metrics over clients leave them out"


def facts_to_tell(setup: Setup) -> list[str]:
    """The sentences of the functions above, and one on a cohort that is larger than the population."""
    told, asked, clients = [absent_classes(setup), untested_clients(setup)], setup.clients_per_round, setup.clients
    if asked > clients:
        told.append(f"clients_per_round = {asked} is more than the population: all {clients} take part")
    return [words for words in told if words is not None]


def required_of(setup: Setup, reference: Reference, trial: bool = False) -> Reference:
    """The reference with what the clients of an experiment require; ``trial``: it has placeholders."""
    names = [setup.federation.names] if setup.world is None else setup.world.names
    clients = clients_of(setup.federation, names, len(setup.seeds))
    found = with_requirement(reference, setup.requirement, _thresholds(setup), clients, trial=trial)
    return found if setup.judges_alone else without_validation(found)


def without_validation(reference: Reference) -> Reference:
    """The reference that plans read: plans do not depend on whether standalone models have validation losses."""
    return reference._replace(valid_loss=None, unseen_valid_loss=None)


def _thresholds(setup: Setup) -> list[Given]:
    """The thresholds that algorithms and scenarios were given."""
    found: list[Given] = []
    for each in setup.algorithms:
        entry = each.by_id(labels(setup).clients, setup.clients)
        own: Mapping[str, Any] = entry.options
        if entry.plan is not None:
            own = {**entry.plan.arguments, **entry.plan.by_seed}
        found += [Given(entry.label, own["threshold"])] if "threshold" in own else []
        for wrap, options in entry.scenarios:
            if "threshold" in options:
                found.append(Given(f"{name_of(wrap)} around {entry.label}", options["threshold"]))
    return found


def check_requirement(parts: Parts, reference: Reference, setup: Setup) -> None:
    """Raises a ValueError if earlier results were judged by other numbers of the user."""
    # Losses of standalone models are not compared: those of two runs may differ by rounding.
    if setup.requirement is None or setup.requirement.value is None:
        return
    for label, (metrics, _) in parts.items():
        if "required_loss" not in metrics:
            continue
        clients = slice(setup.clients)  # other cells of a sweep may have more
        earlier = metrics["required_loss"].isel(client=clients).transpose("seed", "client").values
        if not np.array_equal(earlier, np.asarray(reference.required, earlier.dtype), equal_nan=True):
            raise ValueError(
                f"expected the requirement that the results of {label} were judged by, got another one; a run with "
                "another requirement needs another folder"
            )


def reads_contribution(build: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether a builder reads its parameter ``contribution``: always, or if its option ``by`` says so."""
    by = argument_of(build, options, "by", "contribution")
    return is_required(build, "contribution") or (isinstance(by, str) and by == "contribution")


def asks_for_baseline(wrap: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether a scenario compares clients with the first algorithm."""
    return "baseline" in parameters_of(wrap) and "baseline" not in options


def decision_rounds(setup: Setup) -> tuple[int, ...]:
    """Numbers of rounds (including 0) after which a scenario compares clients with the first algorithm."""
    found: set[int] = set()
    for entry in setup.algorithms[1:]:
        for wrap, options in entry.scenarios:
            if asks_for_baseline(wrap, options):
                found |= set(range(0, setup.rounds, argument_of(wrap, options, "every", 1)))
    if found and setup.stop is not None:
        raise ValueError(
            "stop: expected none where a scenario compares clients with the first algorithm, which must run to its "
            "end, got early stopping; the baseline of such a scenario may be given as a number"
        )
    return tuple(sorted(found))


def baselines_of(setup: Setup, parts: Parts) -> dict[str, np.ndarray] | None:
    """Tables ``[seeds, rounds, N]`` of the first algorithm's accuracies by rows; None before it has run."""
    label, decisions = setup.labels[0], list(decision_rounds(setup))
    if label not in parts:
        return None
    metrics, found = parts[label][0], {}
    for split in _SPLITS:
        name = f"decision_{split}_accuracy"
        if not decisions or f"{split}_accuracy" not in metrics:
            continue
        if name not in metrics or not set(decisions) <= set(metrics["decision_round"].values.tolist()):
            raise ValueError(
                f"expected results of {label} in every round in which a scenario decides, got results without some of "
                "them (it was stopped early, or an earlier version of fljax saved none); run it again"
            )
        # Row t is after t rounds; NaN in rounds without a decision.
        values = metrics[name].transpose("seed", "decision_round", "client").sel(decision_round=decisions).values
        found[split] = np.full((values.shape[0], setup.rounds, values.shape[2]), np.nan, values.dtype)
        found[split][:, decisions] = values
    return found


def baseline(
    label: str, asking: Sequence[tuple[Callable[..., Any], Mapping[str, Any]]], baselines: Mapping[str, Any] | None
) -> Any:
    """The baseline ``[seeds, rounds, N]`` of the scenarios that ask for one, on the rows of their ``split``."""
    advice = "its baseline may be given as a number"
    if baselines is None:
        raise ValueError(
            "expected a scenario that asks for a baseline on an algorithm after the first one, which is the baseline, "
            f"and not in a sweep, got one on {label}; {advice}"
        )
    splits = set()
    for wrap, own in asking:
        splits.add(argument_of(wrap, own, "split", "test"))
    if len(splits) > 1 or not splits <= baselines.keys():
        raise ValueError(
            f"expected the baseline of {label} on rows that the first algorithm is judged on, got "
            f"{', '.join(sorted(splits))}; valid names are {', '.join(baselines)} (valid needs "
            f"data.valid_fraction above 0); {advice}"
        )
    return baselines[splits.pop()]


def facts(federation: Federation, reference: Reference) -> dict[str, Any]:
    """The arguments that contribution measures may have, by client id; no accuracies if the task has no score."""
    clients = federation.clients
    size = np.take_along_axis(np.asarray(clients.train.size), np.argsort(clients.id, axis=-1), axis=-1)
    size = np.broadcast_to(size, reference.test_loss.shape)  # one federation may be that of all seeds
    alone = {"standalone_loss": reference.test_loss}
    if reference.test_accuracy is not None:
        alone["standalone_accuracy"] = reference.test_accuracy
    return {"size": size, "population": size.shape[-1], **alone}


def labels(setup: Setup) -> Labels:
    """What a run calls its seeds, rounds and clients, for tables of contributions."""
    shared = [setup.federation.names] * len(setup.seeds)
    names = shared if setup.world is None else setup.world.names
    return Labels(setup.seeds, setup.rounds, [each.clients for each in names], [each.unseen for each in names])


class Composed(NamedTuple):
    """A builder inside wrappers; hashable, so that equal configs share compiled programs."""

    build: Callable[..., Algorithm]
    wrappers: tuple[Callable[..., Algorithm], ...] = ()

    def __call__(
        self, arguments: Mapping[str, Any], options: tuple[Mapping[str, Any], ...], **by_seed: Any
    ) -> Algorithm:
        algorithm = built("the builder", self.build, self.build(**arguments_for(self.build, by_seed, arguments)))
        for wrap, chosen in zip(self.wrappers, options, strict=True):
            algorithm = built("the scenario", wrap, wrap(algorithm, **arguments_for(wrap, by_seed, chosen)))
        return algorithm


def build_plan(
    setup: Setup,
    entry: AlgorithmSetup,
    reference: Reference,
    baselines: Mapping[str, np.ndarray] | None = None,  # [seeds, rounds, N], by the rows that they are of
    *,
    trial: bool = False,  # a placeholder for initial clusters, which are otherwise found by training
) -> Plan:
    """The plan of one algorithm: its builder receives arguments by the names of its parameters."""
    if entry.plan is not None:
        return entry.plan
    entry = entry.by_id(labels(setup).clients, setup.clients)
    build, local = entry.build, entry.local
    offered = {"task": setup.task, "local": local, "clients_per_round": min(setup.clients_per_round, setup.clients)}
    offered |= {"contribution": entry.contribution} if isinstance(entry.contribution, RoundMeasure) else {}
    fixed = arguments_for(build, offered, entry.options)
    own = {name: getattr(local, name) for name in ("learning_rate", "batch_size", "shuffle")}
    wrappers = tuple(wrap for wrap, _ in entry.scenarios)
    options = tuple(arguments_for(wrap, own, given) for wrap, given in entry.scenarios)
    required = reference.threshold if reference.required is None else reference.required
    known: dict[str, Any] = {"threshold": required, "contribution": None, "reference": without_validation(reference)}
    wrapping = tuple(zip(wrappers, options, strict=True))
    wanted = {
        name
        for each, given in ((build, fixed), *wrapping)
        for name in arguments_for(each, known)
        if name not in given and (name != "contribution" or reads_contribution(each, given))
    }
    if "contribution" in wanted:
        if isinstance(entry.contribution, RoundMeasure):
            asks = f"expected contributions that are known before the run for client_sampling around {entry.label}"
            raise ValueError(f"{asks}, got {entry.contribution.measure!r}, which is measured in rounds")
        measured = facts(setup.federation, reference)
        known["contribution"] = contributions.measure(entry.contribution, measured, labels(setup))
    by_seed = {name: values for name, values in known.items() if name in wanted}
    asking = [(wrap, given) for wrap, given in wrapping if asks_for_baseline(wrap, given)]
    if asking:
        by_seed["baseline"] = baseline(entry.label, asking, baselines)
    if entry.clustering is not None:
        by_seed["clustering"] = initial_clusters(setup, entry, entry.clustering, trial)
    elif is_required(build, "clustering"):
        fixed["clustering"] = None
    fixed, options = as_declared(build, fixed), tuple(itertools.starmap(as_declared, wrapping))
    return Plan(Composed(build, wrappers), {"arguments": fixed, "options": options}, by_seed)


def reads_requirement(entry: AlgorithmSetup) -> bool:
    """Whether a run of the algorithm depends on what clients require; its metrics do in any case."""
    builders = () if entry.plan is not None else (entry.build, *(wrap for wrap, _ in entry.scenarios))
    return any(accepts(each, name) for each in builders for name in ("threshold", "reference"))
