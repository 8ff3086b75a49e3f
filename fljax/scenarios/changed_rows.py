"""Rows of a client that are changed where they are read, so that no client needs examples of its own in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int, Key, Shaped

from fljax.core import trees
from fljax.protocol import LocalData, Task
from fljax.protocol.data import AsArray


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("rows", "change", "number", "key", "share"), meta_fields=()
)
@dataclass(frozen=True, eq=False)
class ChangedRows(AsArray):
    """``x`` or ``y`` of examples read by index: ``change`` of a share of the rows, which never changes."""

    rows: Any  # [n, ...], as they are stored: an array, or what is read by index as one
    change: Partial  # of rows [b, ...]
    number: Int[Array, " n"] | None  # of the federation's rows; None: they are the indices
    key: Key[Array, ""]  # rows that draw less than the share are changed, so shares nest
    share: Float[Array, ""]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.rows.shape

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the array."""
        return self.rows.dtype

    def __getitem__(self, index: Int[Array, " b"]) -> Shaped[Array, "b ..."]:
        rows = self.rows[index]
        number = index if self.number is None else self.number[index]
        draws = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(self.key, row), (), jnp.float32))(number)
        return trees.where_rows(draws < self.share, self.change(rows), rows)


def with_changed_rows(data: LocalData, key: Key[Array, ""], share: Float[Array, ""], **changes: Partial) -> LocalData:
    """A client's data in which ``x`` or ``y`` of a share of its training rows changes, also of those after a drift."""
    examples = data.train.examples
    # In place of arrays: training reads rows by index alone.
    changed = examples._replace(
        **{name: ChangedRows(getattr(examples, name), to, examples.number, key, share) for name, to in changes.items()}
    )
    train, later = data.train._replace(examples=changed), data.later
    if later is not None:
        later = later._replace(train=later.train._replace(examples=changed))
    return data._replace(train=train, later=later)


def with_flipped_labels(task: Task, key: Key[Array, ""], share: Float[Array, ""], data: LocalData) -> LocalData:
    """A client's data in which ``classes - 1 - y`` stands for a share of its training labels y."""
    if task.classes is None:
        raise ValueError("expected a task of classes for flipped labels, got one without")
    last = jnp.asarray(task.classes - 1, data.train.examples.y.dtype)
    return with_changed_rows(data, key, share, y=Partial(jnp.subtract, last))
