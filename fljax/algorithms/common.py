"""Parts that algorithms share: uniform selection, and everything of an algorithm with one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.types import Aggregate, Algorithm, Census, Cohort, Select, Task

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key, PyTree

    from fljax.types import Info


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
      build: ``build(task, local, **hyper_parameters) -> Algorithm``.
      summary: one line for tables.
      reference: BibTeX of its source.
      example: hyper-parameters beyond the defaults with which the laws are tested; arrays are for 5 clients.
    """

    build: Callable[..., Algorithm]
    summary: str
    reference: str
    example: dict[str, Any] = {}


class OneModel(NamedTuple):
    """Server of every algorithm with a single model."""

    model: PyTree


def cohort_size(clients_per_round: int | None, population: int) -> int:
    """Rows of the cohort: ``min(clients_per_round, population)``; None: all.

    Raises:
      ValueError: if it is not positive.
    """
    if clients_per_round is not None and clients_per_round < 1:
        raise ValueError(f"expected a positive clients_per_round, got {clients_per_round}")
    return population if clients_per_round is None else min(clients_per_round, population)


def sample_uniform(
    key: Key[Array, ""], available: Bool[Array, " N"], rows: int
) -> tuple[Int[Array, " rows"], Bool[Array, " rows"]]:
    """``min(rows, number available)`` clients without replacement: ids, and which rows are filled."""
    score = jax.random.uniform(key, available.shape)
    # Not a sort: of a million clients that alone would take half a second. Ties go to the lower id.
    _, id = jax.lax.top_k(jnp.where(available, -score, -jnp.inf), min(rows, available.shape[0]))
    id = id.astype(jnp.int32)
    return id, available[id]


def select_uniform(clients_per_round: int | None) -> Select:
    """The usual ``select``: a uniform sample of those available, without replacement, each in slot 0."""

    def select(key: Any, round: Any, server: Any, ballots: Any, available: Any) -> tuple[Any, Cohort, Info]:
        rows = cohort_size(clients_per_round, available.shape[0])
        id, present = sample_uniform(key, available, rows)
        return server, Cohort(id, jnp.zeros_like(id), present), {}

    return select


def init_model(task: Task) -> Callable[[Any, Census], OneModel]:
    """``init_server`` of an algorithm with one model: the task's initial parameters."""
    return lambda key, census: OneModel(task.init(key))


def send_model(server: OneModel, seat: Any) -> PyTree:
    """Down is the model itself."""
    return server.model


def deploy_model(key: Any, seat: Any, down: PyTree, client: Any, data: Any) -> PyTree:
    """The client uses the model that it is shown."""
    return down


def one_model(
    task: Task,
    *,
    clients_per_round: int | None,
    train: Callable[..., tuple[Any, Any]],
    aggregate: Aggregate,
    **others: Any,
) -> Algorithm:
    """An algorithm with one model, drawn uniformly, shown to everybody and used as it is; ``others`` replace parts."""
    usual = Algorithm(
        task=task,
        init_server=init_model(task),
        send=send_model,
        train=train,
        aggregate=aggregate,
        select=select_uniform(clients_per_round),
        deploy=deploy_model,
        predict=task.logits,
        shared=deploy_model,
    )
    return usual._replace(**others)


def share(weights: Float[Array, " S"]) -> Float[Array, " S"]:
    """Weights divided by their sum, for the record; zeros where the sum is zero."""
    total = jnp.sum(weights)
    return jnp.where(total == 0, jnp.zeros_like(weights), weights / jnp.where(total == 0, 1, total))
