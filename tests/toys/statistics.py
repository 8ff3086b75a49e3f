"""Logistic regressions with statistics, by hand: the running mean of the inputs, and a number that is always 7."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.protocol import Task, TrainingBatch
from fljax.protocol.roles import hold, record
from tests.toys.task import FEATURES, Linear, logistic_regression

SEVEN, MOMENTUM = 7.0, 0.5


_ROLES = {"weight": "trained", "bias": "head", "mean": "statistic", "seven": "statistic"}


class Watched(NamedTuple):
    """A linear model beside its statistics."""

    weight: Any  # [FEATURES, CLASSES]
    bias: Any  # [CLASSES]
    mean: Any  # [FEATURES], the running mean of the inputs
    seven: Any  # [3], 0 before the first step and 7 after it


def watched_regression(dtype: Any = jnp.float32, *, centred: bool = False) -> Task:
    """The toy regression with statistics that nothing reads, or, if ``centred``, are subtracted from the inputs.

    In training a centred model subtracts the mean of the batch, as BatchNorm does.
    """
    plain = logistic_regression(dtype)

    def init(key: Any) -> Watched:
        weight, bias = plain.init(key)
        return Watched(weight, bias, jnp.zeros(FEATURES, dtype), jnp.zeros(3, dtype))

    def logits(params: Watched, x: Any, key: Any = None) -> Any:
        own, statistics = Linear(*params[:2]), params[2:]
        assert key is None or isinstance(key, TrainingBatch)
        if key is None:
            return plain.logits(own, x - params.mean[None, :] if centred else x)
        real = key.real[:, None]
        mean = jnp.sum(jnp.where(real, x, 0), axis=0) / jnp.maximum(jnp.sum(key.real), 1)
        new = (MOMENTUM * hold(statistics[0]) + (1 - MOMENTUM) * mean, jnp.full_like(statistics[1], SEVEN))
        return record(plain.logits(own, x - mean[None, :] if centred else x), statistics, new)

    return plain._replace(
        init=init,
        logits=logits,
        features=lambda params, x: x @ params.weight,
        roles=lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: _ROLES[path[-1].name], tree),
    )
