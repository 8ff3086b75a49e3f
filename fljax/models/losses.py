"""Losses and scores of tasks: one number per sample, from a model's outputs and the labels."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"]) -> Float[Array, " b"]:
    """Softmax cross-entropy with integer labels, per sample, in nats; the mean over places, e.g. of a text.

    A label that is not a class gives NaN.

    Raises:
      ValueError: if labels are not whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    # A negative label would index from the end; too large a label gives a visible NaN.
    y = jnp.where(y < 0, logits.shape[-1], y)
    return _per_sample(optax.softmax_cross_entropy_with_integer_labels(logits, y))


def correct(logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"]) -> Float[Array, " b"]:
    """1 where the label has the largest logit, else 0; the mean over places, e.g. of a text.

    Raises:
      ValueError: if labels are not whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    return _per_sample((jnp.argmax(logits, axis=-1) == y).astype(logits.dtype))


def squared_error(prediction: Float[Array, "b ..."], y: Array) -> Float[Array, " b"]:
    """The mean squared difference of each sample; ``y`` may omit a last axis of length 1.

    Raises:
      ValueError: if labels and predictions differ in shape.
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
