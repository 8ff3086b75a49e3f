"""Losses and scores of tasks: from what a model says and the labels to one number per sample."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"]) -> Float[Array, " b"]:
    """Softmax cross-entropy with integer labels, per sample, in nats; the mean over places, e.g. of a text.

    NaN for a label that is none of the classes.

    Raises:
      ValueError: if labels are no whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    # A negative label would count from the end; one that is too large gives NaN, which is seen.
    y = jnp.where(y < 0, logits.shape[-1], y)
    return _per_sample(optax.softmax_cross_entropy_with_integer_labels(logits, y))


def correct(logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"]) -> Float[Array, " b"]:
    """1 where the largest logit is that of the label, else 0; the mean over places, e.g. of a text.

    Raises:
      ValueError: if labels are no whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    return _per_sample((jnp.argmax(logits, axis=-1) == y).astype(logits.dtype))


def squared_error(prediction: Float[Array, "b ..."], y: Array) -> Float[Array, " b"]:
    """The squared difference, per sample; the mean over several numbers. A last axis of length 1 may be left out of y.

    Raises:
      ValueError: if labels have another shape than predictions.
    """
    if prediction.shape not in (y.shape, (*y.shape, 1)):
        raise ValueError(
            f"expected labels of the shape of the model's predictions, {list(prediction.shape)}, got {list(y.shape)}"
        )
    return _per_sample(jnp.square(prediction - y.reshape(prediction.shape).astype(prediction.dtype)))


def _per_sample(values: Array) -> Float[Array, " b"]:
    return values if values.ndim == 1 else jnp.mean(values.reshape(values.shape[0], -1), axis=1)


def _check_classes(logits: Array, y: Array) -> None:
    if y.shape != logits.shape[:-1] or not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(
            f"expected a whole-number label for each vector of logits, of shape {list(logits.shape[:-1])}, got "
            f"{y.dtype} of shape {list(y.shape)}; other labels need a loss and a score of their own"
        )
