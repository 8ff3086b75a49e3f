"""Clients ``F_k(w) = a_k / 2 ||w - c_k||^2``: K steps lead from w to ``c_k + (1 - eta a_k)^K (w - c_k)``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from fljax.protocol import Task
from fljax.training import Local
from tests.algorithms.rounds_tools import federation, history

START = np.array([0.5, -0.3, 0.8])
CENTRES = np.array([[1.0, 0.2, -0.5], [-0.7, 0.4, 0.3], [0.1, -1.2, 0.9], [0.6, 0.6, 1.5]])
CURVATURE: Any = np.array([0.5, 1.0, 2.0, 1.5])
ETA = 0.3


def quadratic(start):
    """The task: the last column of x is the square root of a client's curvature, the others are its centre."""
    return Task(
        init=lambda key: {"w": start},
        logits=lambda params, x, key=None: x[:, -1:] * (params["w"][None, :] - x[:, :-1]),
        loss=lambda logits, y: 0.5 * jnp.sum(jnp.square(logits), axis=1),
    )


def clients(centres=CENTRES, curvature: Any = CURVATURE):
    """Two rows for each client, whose mean is its centre; their spread adds a constant to the loss."""
    count = len(centres)
    spread = np.where(np.arange(2)[:, None, None] == 0, 0.1, -0.1)
    x = np.concatenate(
        [
            (centres + spread).swapaxes(0, 1).reshape(2 * count, -1),
            np.repeat(np.sqrt(np.broadcast_to(curvature, count)), 2)[:, None],
        ],
        axis=1,
    )
    return federation((2,) * count, range(count), capacity=2, x=x, y=np.zeros(2 * count, int))


def losses(w, centres=CENTRES, curvature: Any = CURVATURE):
    return curvature / 2 * (((w - centres) ** 2).sum(axis=1) + centres.shape[1] * 0.1**2)


def trained(w, steps, rate=ETA, centres=CENTRES, curvature: Any = CURVATURE):
    """Where K local steps lead every client, ``[M, d]``."""
    return centres + ((1 - rate * np.broadcast_to(curvature, len(centres))) ** steps)[:, None] * (w - centres)


def follow(w, steps, rounds, momentum: Any = 0.0, server_lr: Any = 1.0, **others: Any):
    """Models of uniform FedAvg (FedAvgM with a momentum), ``[rounds + 1, d]``."""
    found, speed = [w], 0.0
    for _ in range(rounds):
        speed = momentum * speed + trained(found[-1], steps, **others).mean(axis=0) - found[-1]
        found.append(found[-1] + server_lr * speed)
    return np.array(found)


def numbers(**values):
    """Arguments of a compiled program in the precision of the test."""
    return {name: jnp.asarray(value, jnp.result_type(float)) for name, value in values.items()}


def run(build, rounds, data=None, **values):
    """States and records; ``build`` takes a task that starts at ``values["start"]``, and all values."""
    values = numbers(**({"start": START} | values))
    return history(build, clients() if data is None else data, rounds, values)


def how(steps, rate=ETA):
    return Local(rate, 2, steps=steps)
