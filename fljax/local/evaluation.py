"""Judging one client: loss and accuracy over all rows of a subset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from fljax.local.batches import fetch
from fljax.types import Subset, Task

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Key, PyTree

# Rows that are evaluated at a time: what a network computes for them should stay in a CPU's caches.
AT_ONCE = 128
# Models that are judged at a time on an accelerator.
SIDE_BY_SIDE = 8


def evaluate(
    task: Task,
    predict: Callable[..., Array],
    subset: Subset,
    *,
    key: Key[Array, ""] | None = None,
    ragged: bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean loss and accuracy over ALL rows of a subset: one inference pass.

    Args:
      task: gives ``prepare`` and ``loss``.
      predict: ``x -> logits`` on prepared ``x``.
      subset: the rows; padding is masked.
      key: of the noise of the features, if the subset has noise; None: clean features.
      ragged: stop where the rows end, not where the index list does: for lists that are far longer than their rows.
        The result has no derivative then.

    Returns:
      ``(loss, accuracy)``; both NaN for a subset without rows.
    """
    capacity, size = subset.rows.index.shape[-1], subset.rows.size

    def sums(position: Array) -> tuple[Array, Array]:
        x, y = fetch(task, subset, position, key)
        logits = predict(x)
        correct = (jnp.argmax(logits, axis=-1) == y).astype(logits.dtype)
        add = lambda values: jnp.sum(jnp.where(position < size, values, 0))  # noqa: E731
        return add(task.loss(logits, y)), add(correct)

    parts = -(-capacity // AT_ONCE)
    if parts <= 1:
        loss, correct = sums(jnp.arange(capacity))
    else:
        each = -(-capacity // parts)
        places = jnp.arange(parts * each).reshape(parts, each)
        if ragged:
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(sums, places[0]))
            more = lambda part, total: jax.tree.map(jnp.add, total, sums(places[part]))  # noqa: E731
            loss, correct = jax.lax.fori_loop(0, -(-size // each), more, nothing)
        else:
            loss, correct = jax.tree.map(jnp.sum, jax.lax.map(sums, places))
    count = size.astype(loss.dtype)
    count = jnp.where(count > 0, count, jnp.nan)
    return loss / count, correct / count


def evaluate_each(
    task: Task,
    models: PyTree,
    subset: Subset,
    predict: Callable[..., Array] | None = None,
    *,
    ragged: bool = False,
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """``evaluate`` of several models, whose leaves are ``[K, ...]``, on the same rows.

    ``predict`` is ``(model, x) -> logits``; None: the task's logits.

    On a CPU one after another, which took CNN-A half the time of eight side by side; elsewhere ``SIDE_BY_SIDE`` at a
    time.
    """

    def one(model: PyTree) -> tuple[Array, Array]:
        return evaluate(task, lambda x: (predict or task.logits)(model, x), subset, ragged=ragged)

    return jax.lax.map(one, models, batch_size=None if jax.default_backend() == "cpu" else SIDE_BY_SIDE)


def judged(
    loss: Float[Array, ""], accuracy: Float[Array, ""], counts: Bool[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A client's scores as metrics want them.

    NaN means that a client does not count; a loss that is NaN for another reason is that of a diverged model, which is
    as bad as can be: infinite.
    """
    loss = jnp.where(jnp.isnan(loss), jnp.inf, loss)
    return jnp.where(counts, loss, jnp.nan), jnp.where(counts, accuracy, jnp.nan)
