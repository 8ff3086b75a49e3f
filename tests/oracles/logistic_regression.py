"""Softmax regression in NumPy: loss, gradient, and plain SGD over given batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Params = tuple[np.ndarray, np.ndarray]  # weight [features, classes], bias [classes]


def _probabilities(params: Params, x: np.ndarray) -> np.ndarray:
    scores = x @ params[0] + params[1]
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def loss_and_accuracy(params: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean cross-entropy and share of correct answers."""
    chance = _probabilities(params, x)
    return float(-np.mean(np.log(chance[np.arange(len(y)), y]))), float(np.mean(chance.argmax(axis=1) == y))


def gradient(params: Params, x: np.ndarray, y: np.ndarray) -> Params:
    """Of the mean cross-entropy."""
    error = _probabilities(params, x)
    error[np.arange(len(y)), y] -= 1
    return x.T @ error / len(y), error.mean(axis=0)


def sgd(
    params: Params,
    x: np.ndarray,
    y: np.ndarray,
    batches: Sequence[np.ndarray],
    learning_rate: float,
    correction: Params | None = None,
) -> Params:
    """One step per batch of positions; ``correction`` is added to every gradient."""
    for batch in batches:
        slope = gradient(params, x[batch], y[batch])
        if correction is not None:
            slope = add(slope, correction)
        params = add(params, slope, -learning_rate)
    return params


def add(a: Params, b: Params, factor: float = 1.0) -> Params:
    """``a + factor * b``."""
    return a[0] + factor * b[0], a[1] + factor * b[1]


def combine(weights: Sequence[float], terms: Sequence[Params], like: Params) -> Params:
    """``sum weights[i] * terms[i]``; zeros like ``like`` for an empty sum."""
    total = (np.zeros_like(like[0]), np.zeros_like(like[1]))
    for weight, term in zip(weights, terms, strict=True):
        total = add(total, term, weight)
    return total
