"""The families of weights: rounds against NumPy, the members that are FedAvg, and reports that say odd things."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, learnt, weighted
from fljax.protocol import Census, Cohort, Round
from fljax.protocol.messages import Report, Sent
from tests.algorithms import oracle_tools
from tests.algorithms.oracle_tools import STEPS, agrees
from tests.algorithms.rounds_tools import TASK, close
from tests.oracles import numpy_weighted as oracle
from tests.oracles.numpy_round import added, updates

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Numbers that no binary fraction equals; the last two are logarithms of a clip and of a server's rate.
THETA = [*np.round(0.7 * np.sin(np.arange(1, 21)), 3).tolist(), np.log(0.9), np.log(0.8)]
RULE = partial(learnt, theta=THETA, hidden=2)


def run(build, **arguments):
    return oracle_tools.run(build(TASK, STEPS, clients_per_round=None, **arguments))


@pytest.mark.parametrize(("p", "q", "clip"), [(0.6, 1.7, None), (-0.4, -2.3, 0.9), (None, None, 0.9)])
def test_rounds(p, q, clip, tolerance):
    tokens = np.zeros(oracle_tools.POPULATION)

    def step(round, model):
        clients = list(round.clients.values())
        moves, asked = updates(model, clients, round.rate), oracle.reports(model, clients)
        mass = oracle.learnt(moves, asked, THETA, 2) if p is None else asked[0] ** p * asked[1] ** q
        close(round.record["weight"][round.present], mass / mass.sum(), tolerance)
        np.testing.assert_array_equal(round.record["weight"][~round.present], 0)
        tokens[list(round.clients)] += 0.7 * mass / mass.sum()
        close(round.record["tokens"], tokens, tolerance)
        return added(model, moves, 0.8 * mass / mass.sum() * np.minimum(1, (clip or np.inf) / oracle.lengths(moves)[0]))

    build = RULE if p is None else partial(weighted, size_power=p, loss_power=q, clip=clip, server_lr=0.8)
    agrees(run(build, payment=0.7), step, STEPS, lambda state: state.server.model, tolerance)


CLIPPED = partial(weighted, clip=jnp.float32(1e9))
MEMBERS = {"size": [weighted, CLIPPED], "uniform": [partial(weighted, size_power=0.0), partial(learnt, hidden=0)]}


@pytest.mark.parametrize("weights", MEMBERS)
def test_members_that_are_fedavg(weights, exact):
    usual = run(fedavg, weights=weights)
    for found in map(run, MEMBERS[weights]):
        close(found.last.server.model, usual.last.server.model, exact)
        assert type(found.last.server) is type(usual.last.server)  # without tokens
        np.testing.assert_allclose(found.records["weight"], usual.records["weight"], rtol=5 * exact)


def weights(build, size=(4, 1, 9), loss=(0.5, 2.0, np.nan)):
    """The weights of three clients, the last of them absent."""
    algorithm, key, number = build(TASK, STEPS, payment=1.0), jax.random.key(0), jnp.arange(3, dtype=jnp.int32)
    server = algorithm.init_server(key, Census(number, number))
    update = jax.tree.map(lambda leaf: jnp.ones((3, *leaf.shape)), server.model)
    up = Sent(update, Report(jnp.array(loss), jnp.array(size), jnp.array([0.5, 0.2, np.nan])))
    cohort = Cohort(number, jnp.zeros_like(number), number < 2)
    after, info = algorithm.aggregate(server, up, Round(key, number[0], cohort, {}))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.model))
    np.testing.assert_array_equal(after.tokens, info["weight"].values)
    return info["weight"].values


def test_odd_reports():
    found = partial(weights, partial(weighted, loss_power=1.0))
    close(found(), [0.5, 0.5, 0])
    for each in (found, partial(weights, RULE)):
        np.testing.assert_array_equal(each(size=(4, 0, 9)), [1, 0, 0], "no rows, no weight")
        np.testing.assert_array_equal(each(size=(0, 0, 9)), 0)
    np.testing.assert_array_equal(found(loss=(0.5, np.inf, 1)), [0, 1, 0])
    close(found(loss=(0, 4e-10, 1)), [0.5, 0.5, 0])  # as 1e-10
    close(weights(partial(weighted, size_power=0.0, loss_power=-40.0), loss=(1e-8, 2e-8, 1)), [1, 2.0**-40, 0])
    assert weights(RULE, loss=(0.5, np.inf, 1))[:2].min() > 0
