"""Losses and scores of tasks: one number per sample, from a model's outputs and the labels."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def cross_entropy(
    logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"], *, padding: int | None = None
) -> Float[Array, " b"]:
    """Softmax cross-entropy with integer labels, per sample, in nats; the mean over places, e.g. of a text.

    A label that is not a class gives NaN.

    Args:
      logits: the model's output.
      y: labels.
      padding: places with this label do not count: ``functools.partial(cross_entropy, padding=0)`` is a loss. A sample
        of which all is padding has loss 0.

    Raises:
      ValueError: if labels are not whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    real = _real(y, padding)
    # A negative label would index from the end; too large a label gives a visible NaN.
    classes = jnp.where(y < 0, logits.shape[-1], y)
    # What the loss of padding would be must not reach the gradient, even as 0 * NaN.
    classes = classes if real is None else jnp.where(real, classes, 0)
    return _per_sample(optax.softmax_cross_entropy_with_integer_labels(logits, classes), real)


def correct(
    logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"], *, padding: int | None = None
) -> Float[Array, " b"]:
    """1 where the label has the largest logit, else 0; the mean over places, e.g. of a text.

    Args:
      logits: the model's output.
      y: labels.
      padding: as for ``cross_entropy``.

    Raises:
      ValueError: if labels are not whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    return _per_sample((jnp.argmax(logits, axis=-1) == y).astype(logits.dtype), _real(y, padding))


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


def _real(y: Array, padding: int | None) -> Array | None:
    """Where labels count; None: everywhere."""
    return None if padding is None else y != padding


def _per_sample(values: Array, real: Array | None = None) -> Float[Array, " b"]:
    """The mean of each sample over the places that are ``real``; 0 if there is none."""
    if real is None:
        return values if values.ndim == 1 else jnp.mean(values.reshape(values.shape[0], -1), axis=1)
    values, real = values.reshape(values.shape[0], -1), real.reshape(real.shape[0], -1)
    return jnp.where(real, values, 0).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1)


def _check_classes(logits: Array, y: Array) -> None:
    if y.shape != logits.shape[:-1] or not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(
            f"expected a whole-number label for each vector of logits, of shape {list(logits.shape[:-1])}, got "
            f"{y.dtype} of shape {list(y.shape)}; other labels need a loss and a score of their own"
        )
