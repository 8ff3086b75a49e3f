"""The example of a sum of one's own, on the page about algorithms, runs and computes what it says."""

from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms
from fljax.core import trees
from fljax.engine.rounds.states import Purpose, round_key
from fljax.protocol import Cohort
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

GUIDE = pathlib.Path(__file__).parent.parent / "docs" / "howto" / "own_algorithm.md"


@pytest.fixture(scope="module")
def fednova() -> Any:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "def fednova" in block]
    assert len([line for line in code.splitlines() if line.strip()]) < 40
    names: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), names)  # the guide's own code
    return names["fednova"]


def test_equal_steps_are_fedavg_by_size(fednova: Any) -> None:
    task, federation = logistic_regression(), tiny_federation()
    local = fljax.Local(0.2, 2, steps=3)
    own, usual = (build(task, local, clients_per_round=3) for build in (fednova, algorithms.fedavg))
    run = jax.jit(fljax.rollout, static_argnames=("algorithm", "rounds"))
    one, other = (run(each, federation, rounds=2)[0].server.model for each in (own, usual))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.in_turn
def test_steps_weigh_as_in_the_equation(fednova: Any) -> None:
    """Every client alone gives Delta_k; the round of all follows from these."""
    task, federation = logistic_regression(), tiny_federation()
    local = fljax.Local(0.2, 2, epochs=1)
    algorithm = fednova(task, local)
    state, records = jax.jit(functools.partial(fljax.rollout, algorithm, rounds=1))(federation)
    start = task.init(round_key(jnp.uint32(0), Purpose.INIT_SERVER))
    clients = len(federation.clients.id)
    size = np.empty(clients)
    size[np.asarray(federation.clients.id)] = federation.clients.train.size
    tau = np.empty(clients)
    tau[np.asarray(records["cohort_id"][0])] = records["steps"][0]
    assert len(set(tau.tolist())) > 1
    share = size / size.sum()
    effective = float(share @ tau)
    np.testing.assert_allclose(records["tau"][0], effective, rtol=1e-6)

    @jax.jit
    @jax.vmap
    def update(id: Any) -> Any:
        def only(key: Any, round: Any, server: Any, ballots: Any, available: Any) -> Any:
            ids = jnp.arange(clients, dtype=jnp.int32)
            return server, Cohort(ids, jnp.zeros_like(ids), ids == id), {}

        alone = algorithms.fedavg(task, local, clients_per_round=None)._replace(select=only)
        return trees.subtract(fljax.rollout(alone, federation, rounds=1)[0].server.model, start)

    def expected(begin: Any, updates: Any) -> Any:
        return begin + effective * np.tensordot(share / tau, updates, 1)

    found = jax.tree.map(expected, start, update(jnp.arange(clients)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state.server.model, found)
