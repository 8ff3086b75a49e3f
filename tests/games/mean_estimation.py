"""Clients that estimate a mean: ``F_i(w) = (w - c_i)^2 / 2``, one row each, and one full step of length 1/4 a round."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax.algorithms import fedavg
from fljax.engine import Plan
from fljax.protocol import ClientData, Examples, Federation, Rows, Task
from fljax.training import Local

TARGETS = (0.0, 1.0, 5.0)


def _predict(params: Any, x: Float[Array, "b 1"], key: Any = None) -> Float[Array, " b"]:
    return params["w"] + 0 * x[:, 0]


def _loss(found: Float[Array, " b"], y: Float[Array, " b"]) -> Float[Array, " b"]:
    return jnp.square(found - y) / 2


TASK = Task(lambda key: {"w": jnp.zeros(())}, _predict, _loss)
PLAN = Plan(
    fedavg,
    {"task": TASK, "local": Local(0.25, 1, steps=1), "clients_per_round": None, "weights": "uniform"},
)


def estimation(targets: tuple[float, ...] = TARGETS) -> Federation:
    """Each client has its target as its training row and as its test row."""
    count = len(targets)
    rows = Rows(jnp.arange(count, dtype=jnp.int32)[:, None], jnp.ones(count, jnp.int32))
    none = rows._replace(size=jnp.zeros(count, jnp.int32))
    examples = Examples(jnp.zeros((count, 1), jnp.float32), jnp.asarray(targets, jnp.float32))
    return Federation(examples, ClientData(jnp.arange(count, dtype=jnp.int32), rows, none, rows))


def fixed_point(scale: Any, targets: Any = TARGETS) -> np.ndarray:
    """``w* = sum_i s_i c_i / sum_i s_i``: where scaled updates cancel; ``[...]`` of ``[..., N]``."""
    return (np.asarray(scale) @ np.asarray(targets)) / np.sum(scale, axis=-1)


def utilities(scale: Any, targets: Any = TARGETS) -> np.ndarray:
    """``u_i = -(w* - c_i)^2 / 2``, ``[..., N]``."""
    return -((fixed_point(scale, targets)[..., None] - np.asarray(targets)) ** 2) / 2
