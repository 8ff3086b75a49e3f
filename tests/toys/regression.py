"""A regression that a config can name: a source of data, a model, and what else it needs."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fljax.data import Dataset, dataset
from fljax.models import squared_error, task_from_module
from fljax.protocol import Task


def lines(seed: int = 0, samples: int = 120) -> Dataset:
    """Points on a plane, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 3))
    return dataset(x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=samples))


def few_classes(seed: int = 0) -> Dataset:
    """Three classes."""
    rng = np.random.default_rng(seed)
    return dataset(rng.normal(size=(60, 3)), np.arange(60) % 3)


def linear(input_shape: Any, classes: int | None, *, prepare: Any) -> Task:
    """One number for each sample."""
    assert classes is None
    return task_from_module(nn.Dense(1), jax.ShapeDtypeStruct((1, *input_shape), jnp.float32), loss=squared_error)


def two_classes(input_shape: Any, classes: int, *, prepare: Any) -> Task:
    """A model with too few classes."""
    return task_from_module(nn.Dense(classes - 1), jax.ShapeDtypeStruct((1, *input_shape), jnp.float32))
