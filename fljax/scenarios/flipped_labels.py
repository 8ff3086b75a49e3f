"""Labels of a client that are flipped where they are read, so that no client needs labels of its own in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fljax.protocol import LocalData, Task


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("labels", "number", "key", "share"), meta_fields=("classes",)
)
@dataclass(frozen=True, eq=False)
class FlippedLabels:
    """Labels ``[n]`` read by index: ``classes - 1 - y`` in place of y for a share of the rows, which never changes."""

    labels: Array  # [n], the true ones
    number: Int[Array, " n"] | None  # of the federation's rows; None: they are the indices
    key: Key[Array, ""]  # of the client; rows that draw less than the share are flipped, so shares nest
    share: Float[Array, ""]
    classes: int  # static

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.labels.shape

    @property
    def ndim(self) -> int:
        """The number of axes of the array."""
        return self.labels.ndim

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the array."""
        return self.labels.dtype

    def __getitem__(self, index: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
        truth = self.labels[index]
        number = index if self.number is None else self.number[index]

        def draw(row: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(self.key, row), (), jnp.float32)

        drawn = jax.vmap(draw)(number.reshape(-1)).reshape(number.shape)
        return jnp.where(drawn < self.share, self.classes - 1 - truth, truth)


def with_flipped_labels(task: Task, key: Key[Array, ""], share: Float[Array, ""], data: LocalData) -> LocalData:
    """A client's data in which a share of its training labels is flipped, also of rows for after a drift."""
    if task.classes is None:
        raise ValueError("expected a task of classes for flipped labels, got one without")
    examples = data.train.examples
    labels = FlippedLabels(examples.y, examples.number, key, share, task.classes)
    # In place of an array: training reads labels by index alone.
    flipped = examples._replace(y=labels)  # pyright: ignore[reportArgumentType]
    later = data.later
    if later is not None:
        later = later._replace(train=later.train._replace(examples=flipped))
    return data._replace(train=data.train._replace(examples=flipped), later=later)
