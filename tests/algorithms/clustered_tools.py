"""What the tests of algorithms with models of clusters share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core.trees import take
from fljax.training import Local
from tests.algorithms.rounds_tools import TASK

SMALL = Local(0.3, 3, epochs=2, decay=0.9)


def scattered(key):
    """Other parameters for another key, unlike those of TASK."""
    dtype = jnp.result_type(float)
    return {"w": jax.random.normal(key, (3, 4), dtype), "b": 0.3 * jax.random.normal(key, (4,), dtype)}


SCATTERED = TASK._replace(init=scattered)


def starting(algorithm, models):
    """The algorithm with given initial models of the clusters, ``[C, ...]``."""
    inner = algorithm.init_server
    return algorithm._replace(init_server=lambda key, census: inner(key, census)._replace(models={"w": models}))


def permuted(algorithm, order):
    """The algorithm with its clusters in another order."""
    inner = algorithm.init_server

    def init_server(key, census):
        server = inner(key, census)
        return server._replace(models=take(server.models, jnp.asarray(order)))

    return algorithm._replace(init_server=init_server)


def models(states):
    """Models of clusters on the clients of ``quadratic``, ``[rounds + 1, C, d]``."""
    return np.asarray(states.server.models["w"], np.float64)
