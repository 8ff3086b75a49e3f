"""Judging one client: loss and accuracy over all rows of a subset, and checks of the task.

Programs traced inside ``counting`` report every gradient and every pass that one client computes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from fljax.core import platforms, trees
from fljax.core.loops import repeat
from fljax.protocol import Subset, Task
from fljax.training.batches import fetch

# "gradient_steps": gradients of one batch. "forward_passes": inference passes of a model over all rows of a subset.
Kind = Literal["gradient_steps", "forward_passes"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_COUNTS: ContextVar[dict[str, int] | None] = ContextVar("counts", default=None)


@contextlib.contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts by kind, which grow while programs run that are traced in the block; ``jax.effects_barrier`` waits."""
    counts: dict[str, int] = dict.fromkeys(KINDS, 0)
    token = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(token)


def tally(kind: Kind, value: Array) -> None:
    """Adds 1 to a count whenever ``value`` is computed; under ``vmap`` once for each of its values."""
    counts = _COUNTS.get()
    if counts is not None:
        jax.debug.callback(functools.partial(_add, counts, kind), value)


def _add(counts: dict[str, int], kind: str, value: Any) -> None:
    counts[kind] += 1


# Rows evaluated at a time: their activations should fit a CPU's caches.
AT_ONCE = 128
# From so many parts of a list on, a client's parts without rows are left out.
LONG = 8
# Models judged at a time on an accelerator.
SIDE_BY_SIDE = 8


def evaluate(
    task: Task,
    predict: Callable[..., Array],
    subset: Subset,
    *,
    key: Key[Array, ""] | None = None,
    ragged: bool | None = None,
) -> tuple[Float[Array, ""], Any]:
    """Mean loss and mean score over ALL rows of a subset: one inference pass.

    Args:
      task: gives ``prepare``, ``loss`` and ``score``.
      predict: ``x -> logits`` on prepared ``x``.
      subset: the rows; padding is masked.
      key: key for the noise of the features, if the subset has noise; None: clean features.
      ragged: whether to stop after the real rows; for index lists that are far longer than their number of rows. None:
        if the lists have room for ``LONG`` parts.

    Returns:
      ``(loss, accuracy)``; both NaN for a subset without rows. The accuracy of a task without a score is None.

    Raises:
      ValueError: if the task's loss or score is not one number per sample.
    """
    capacity, size = subset.rows.index.shape[-1], subset.rows.size

    def sums(position: Array) -> tuple[Array, Array | None]:
        x, y = fetch(task, subset, position, key)
        logits = predict(x)

        def add(values: Array) -> Array:
            return jnp.sum(jnp.where(position < size, values, 0))

        loss = task.losses(logits, y)
        return add(loss), None if task.score is None else add(task.scores(logits, y).astype(loss.dtype))

    parts = -(-capacity // AT_ONCE)
    if parts <= 1:
        loss, score = sums(jnp.arange(capacity))
    else:
        length = -(-capacity // parts)
        places = jnp.arange(parts * length).reshape(parts, length)
        if parts >= LONG if ragged is None else ragged:
            # Under jit, so that one trace serves for the shapes and for the loop.
            some = jax.jit(sums)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(some, places[0]))

            def more(part: Array, total: PyTree) -> PyTree:
                return jax.tree.map(jnp.add, total, some(places[part]))

            loss, score = repeat(-(-size // length), more, nothing, most=parts)
        else:
            loss, score = jax.tree.map(jnp.sum, jax.lax.map(sums, places))
    tally("forward_passes", loss)
    count = size.astype(loss.dtype)
    with jax.debug_nans(False):  # a subset without rows has no loss
        count = jnp.where(count > 0, count, jnp.nan)
        return loss / count, None if score is None else score / count


def check_score(task: Task, user: str) -> None:
    """Raises a ValueError if the task has no score; ``user`` names what needs it."""
    if task.score is None:
        raise ValueError(
            f"expected a task with a score for {user}, which compares accuracies, got one without; "
            "task_from_module(..., score=...) gives it one"
        )


def check_classes(task: Task, user: str) -> None:
    """Raises a ValueError if the task has no ``classes``; ``user`` names what needs them."""
    if task.classes is None:
        raise ValueError(f"expected a task of classes for {user}, got one with classes = None")


def evaluate_each(
    task: Task, models: PyTree, subset: Subset, predict: Callable[..., Array] | None = None, *, ragged: bool = False
) -> tuple[Float[Array, " K"], Any]:
    """``evaluate`` of several models (leaves ``[K, ...]``) on the same rows.

    ``predict`` is ``(model, x) -> logits``; None: the task's logits. Models are mapped by ``map_models``: on the
    server's rows, several devices share them.
    """

    def one(model: PyTree) -> tuple[Array, Any]:
        return evaluate(task, lambda x: (predict or task.logits)(model, x), subset, ragged=ragged)

    return map_models(one, models, subset.spread)


def map_models(function: Callable[[Any], PyTree], models: PyTree, spread: Any = None) -> PyTree:
    """``function`` of every model (leaves ``[K, ...]``), stacked.

    Compiled for a CPU, models run one after another, which took CNN-A half the time of eight side by side. Compiled for
    an accelerator, ``SIDE_BY_SIDE`` models run at a time.

    Args:
      function: of one model.
      models: leaves ``[K, ...]``.
      spread: ``Subset.spread`` of the server's rows: several devices share the models. None: one device computes all.
    """
    if spread is not None:
        return spread(function, models)
    function = jax.jit(function)  # one trace serves for both forms
    return platforms.choose(
        models,
        cpu=lambda models: jax.lax.map(function, models),
        default=lambda models: jax.lax.map(function, models, batch_size=SIDE_BY_SIDE),
    )


def counted_scores(
    loss: Float[Array, "*#N"], accuracy: Float[Array, "*#N"] | None, counts: Bool[Array, "*#N"]
) -> tuple[Float[Array, "*N"], Any]:
    """A client's scores in the form of metrics: NaN if the client does not count. A missing accuracy stays None.

    One score may be that of all clients ``[N]``, of which ``counts`` says who counts.

    Other NaN losses come from diverged models and become infinite.
    """
    with jax.debug_nans(False):
        loss = jnp.where(jnp.isnan(loss), jnp.inf, loss)
    return trees.or_nan(counts, loss), None if accuracy is None else trees.or_nan(counts, accuracy)
