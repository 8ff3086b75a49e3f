"""Clients that train on a share of their rows are clients that have no other rows."""

from __future__ import annotations

import fractions
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, iafl
from fljax.engine.rounds.states import local_data
from fljax.protocol import Census, Poll, Seat
from fljax.protocol.messages import Report
from fljax.scenarios import effort
from fljax.scenarios.effort import rows_used
from tests.scenarios.tools import LOCAL, POPULATION, TASK, run
from tests.toys.federation import TRAIN, tiny_federation

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHARE: Any = np.array([1.0, 0.5, 0.3, 0.1, 0.75])
USED = (7, 2, 2, 1, 3)  # ceil(share n) of 7, 3, 5, 9 and 4 rows


def test_rows_are_shares_rounded_up() -> None:
    for share in (0.001, 0.1, 0.3, 1 / 3, 0.5, 0.7, 0.9, 1.0):
        exact = fractions.Fraction(share).limit_denominator(1000)
        size = np.arange(1, 200)
        expected = [math.ceil(exact * int(n)) for n in size]
        np.testing.assert_array_equal(rows_used(jnp.asarray(size), jnp.float32(share)), expected)
    np.testing.assert_array_equal(rows_used(jnp.asarray([0, 5]), jnp.float32(0.0)), [0, 1])  # a traced share


def _seen_by_a_poll(options: dict[str, Any], seat: Seat, id: int) -> Any:
    """The report of a client of which a poll asks its number of rows and its contribution."""

    def ask(key: Any, seat: Seat, down: Any, client: Any, data: Any) -> Report:
        return Report(size=data.train.rows.size, contribution=jnp.float32(0.8))

    inner = fedavg(TASK, LOCAL)._replace(poll=Poll(ask))
    algorithm, federation = effort(inner, **options), tiny_federation()
    place = int(np.flatnonzero(np.asarray(federation.clients.id) == id)[0])
    data = local_data(federation, jax.tree.map(lambda leaf: leaf[place], federation.clients))
    assert algorithm.poll is not None
    return algorithm.poll.ask(jax.random.key(0), seat, (), (), data)


def _seat(round: int, id: int, known: bool = True) -> Seat:
    return Seat(jnp.int32(round), jnp.int32(id), jnp.int32(0), known)


def test_polls_see_the_same_rows_and_contributions_may_follow() -> None:
    table = np.stack([SHARE, np.ones(POPULATION)])
    for id, expected in enumerate(USED):
        found = _seen_by_a_poll({"share": SHARE}, _seat(3, id), id)
        assert (int(found.size), float(found.contribution)) == (expected, pytest.approx(0.8))
        found = _seen_by_a_poll({"share": table, "scale_contribution": True}, _seat(2, id), id)
        assert (int(found.size), float(found.contribution)) == (expected, pytest.approx(0.8 * SHARE[id]))
        assert int(_seen_by_a_poll({"share": table}, _seat(3, id), id).size) == TRAIN[id]
    assert (
        int(_seen_by_a_poll({"share": 0.5, "scale_contribution": True}, _seat(0, -1, known=False), 0).size) == TRAIN[0]
    )


def test_the_server_counts_the_rows_of_round_0() -> None:
    counted = fedavg(TASK, LOCAL)._replace(init_server=lambda key, census: census.train)
    census = Census(jnp.asarray(TRAIN), jnp.asarray(TRAIN))
    table = np.stack([SHARE, np.ones(POPULATION)])
    for share in (SHARE, table):
        np.testing.assert_array_equal(effort(counted, share=share).init_server(jax.random.key(0), census), USED)


@pytest.mark.thorough
def test_a_run_is_that_of_clients_with_fewer_rows() -> None:
    federation = tiny_federation()
    ids = np.asarray(federation.clients.id)
    train = federation.clients.train
    fewer = train._replace(size=jnp.asarray(np.asarray(USED)[ids], jnp.int32))
    inner = fedavg(TASK, LOCAL, clients_per_round=3)
    expected, _ = run(inner, federation._replace(clients=federation.clients._replace(train=fewer)), 2)
    found, records = run(effort(inner, share=SHARE), federation, 2)
    np.testing.assert_allclose(found[-1].server.model.weight, expected[-1].server.model.weight, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(records[1]["effort"], SHARE, rtol=1e-6)


@pytest.mark.thorough
def test_effort_decides_what_iafl_rewards() -> None:
    """Rates are ``(p_i / max p)^(1 - kappa)`` with ``p_i = share_i contribution_i``."""
    contribution: Any = np.array([0.9, 0.4, 1.0, 0.7, 0.2])
    inner = iafl(TASK, LOCAL, contribution=contribution, kappa=0.5)
    _, records = run(effort(inner, share=SHARE, scale_contribution=True), tiny_federation(), 2)
    scaled = SHARE * contribution
    np.testing.assert_allclose(records[0]["contribution"], scaled, rtol=1e-6)
    np.testing.assert_allclose(records[0]["rate"], np.sqrt(scaled / scaled.max()), rtol=1e-5)
