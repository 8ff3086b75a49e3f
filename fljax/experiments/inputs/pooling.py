"""Pooled (centralised) training as a baseline: one client has the rows of all clients, and all clients are judged.

Training has the settings of the experiment. So with ``steps``, a run has as many steps as a client that is in every
cohort; with ``epochs``, a round passes over all rows as often as all clients together do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PyTree

from fljax.data import row_numbers
from fljax.engine import Block, Models, Plan
from fljax.engine.rounds.states import by_id
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup
from fljax.metrics.registry import COMPUTE
from fljax.protocol import ClientData, Federation, Labelled, Rows
from fljax.results import Reference, Result, metrics_dataset, metrics_of_runs


@runtime_checkable
class Callbacks(Protocol):
    """A callback with a history."""

    def __call__(self, block: Block) -> bool: ...

    def replay(self, blocks: Sequence[Block]) -> bool: ...


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
        lists = row_numbers(federation, part)
        values = [np.concatenate(lists[place * clients : (place + 1) * clients]) for place in range(seeds)]
        return _table([[rows] for rows in values], stacked)

    def everybody(part: str) -> Rows:
        groups = [row_numbers(federation, part)]
        groups += [] if unseen is None else [row_numbers(federation, part, unseen=True)]
        counts = [len(group) // seeds for group in groups]
        values = [
            [rows for group, count in zip(groups, counts, strict=True) for rows in group[place * count :][:count]]
            for place in range(seeds)
        ]
        return _table(values, stacked)

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


class OfPooled:
    """A callback whose blocks have the metrics of a pooled run in the form of all others."""

    at_start = True

    def __init__(self, callback: Callbacks, setup: Setup, reference: Reference) -> None:
        self._callback, self._setup, self._reference = callback, setup, reference

    def __call__(self, block: Block) -> bool:
        return self._callback(self._converted(block))

    def replay(self, blocks: Sequence[Block]) -> bool:
        return self._callback.replay([self._converted(block) for block in blocks])

    def _converted(self, block: Block) -> Block:
        setup = self._setup
        evaluated = by_client(block.metrics, setup.clients, setup.unseen)
        metrics = metrics_of_runs(setup.seeds, evaluated, [self._reference])
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
