"""Logistic regression as a Task, by hand: 4 features, 3 classes, 15 parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.models import correct
from fljax.protocol import Task

FEATURES, CLASSES = 4, 3


class Linear(NamedTuple):
    """``logits = x @ weight + bias``."""

    weight: Any  # [FEATURES, CLASSES]
    bias: Any  # [CLASSES]


def _features(params: Linear, x: Any) -> Any:
    return x @ params.weight


def _logits(params: Linear, x: Any, key: Any = None) -> Any:
    return _features(params, x) + params.bias[None, :]


def _loss(logits: Any, y: Any) -> Any:
    chosen = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def logistic_regression(dtype: Any = jnp.float32) -> Task:
    """The Task; parameters and prepared examples are of ``dtype``. The bias counts as the head."""

    def init(key: Any) -> Linear:
        return Linear(0.3 * jax.random.normal(key, (FEATURES, CLASSES), dtype), jnp.zeros((CLASSES,), dtype))

    return Task(
        init=init,
        logits=_logits,
        loss=_loss,
        features=_features,
        prepare=lambda x: x.astype(dtype),
        roles=lambda tree: Linear("trained", "head"),
        classes=CLASSES,
        width=CLASSES,
        score=correct,
    )
