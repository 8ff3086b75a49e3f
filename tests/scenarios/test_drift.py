"""From the round of the drift on, clients are clients that have the later rows and no others."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import by_id, local_data
from fljax.protocol import Poll, Seat
from fljax.scenarios import drift, effort
from fljax.testing.federation import with_lists
from tests.scenarios.tools import LOCAL, POPULATION, TASK, run
from tests.toys.federation import TEST, TRAIN, VALID, tiny_federation

pytestmark = pytest.mark.usefixtures("quick_compilation")


def _data(id: int, *, lists: bool = False, deployment: bool = True) -> Any:
    """The data of one client, whose later training rows are validation rows, and later validation rows test rows."""
    federation = tiny_federation()
    clients = federation.clients._replace(deployment=federation.clients.test if deployment else None)
    federation = federation._replace(clients=clients)
    federation = with_lists(federation, 0) if lists else federation
    place = int(np.flatnonzero(np.asarray(federation.clients.id) == id)[0])
    return local_data(federation, jax.tree.map(lambda leaf: leaf[place], federation.clients))


def _read(data: Any, round: int, id: int, at: Any, known: bool = True) -> tuple[list[int], list[int]]:
    """The training rows and the validation rows that a poll sees in a round."""

    def ask(key: Any, seat: Seat, down: Any, client: Any, data: Any) -> Any:
        return data.train.rows, data.valid.rows

    algorithm: Any = drift(fedavg(TASK, LOCAL)._replace(poll=Poll(ask)), at=at)
    seat = Seat(jnp.int32(round), jnp.int32(id), jnp.int32(0), known)
    train, valid = algorithm.poll.ask(jax.random.key(0), seat, (), (), data)
    lists = [np.asarray(rows.index)[: int(rows.size)].tolist() for rows in (train, valid)]
    return lists[0], lists[1]


@pytest.mark.in_turn
@pytest.mark.parametrize("lists", [False, True], ids=["table", "lists"])
def test_rows_before_and_after(lists: bool) -> None:
    for id in range(POPULATION):
        data = _data(id, lists=lists)
        before, after = _read(data, 1, id, 2), _read(data, 2, id, 2)
        assert [len(rows) for rows in before] == [TRAIN[id], VALID[id]]
        assert [len(rows) for rows in after] == [VALID[id], TEST[id]]
        assert after[0] == before[1]
        # By client: client 3 changes in round 5, the others in round 0.
        assert _read(data, 4, id, [0, 0, 0, 5, 0]) == (before if id == 3 else after)
    assert _read(data, 4, -1, [0, 0, 0, 5, 0], known=False) == before
    assert _read(data, 5, -1, [0, 0, 0, 5, 0], known=False) == after


def test_without_rows_for_validation_there_are_none() -> None:
    data = _data(1, deployment=False)
    assert [len(rows) for rows in _read(data, 3, 1, 3)] == [VALID[1], 0]


@pytest.mark.parametrize("outside", [False, True])
def test_effort_is_a_share_of_the_later_rows_too(outside: bool) -> None:
    def ask(key: Any, seat: Seat, down: Any, client: Any, data: Any) -> Any:
        return data.train.rows.size

    algorithm = fedavg(TASK, LOCAL)._replace(poll=Poll(ask))
    algorithm = effort(drift(algorithm, at=2), share=0.5) if outside else drift(effort(algorithm, share=0.5), at=2)
    assert algorithm.poll is not None
    for round, rows in ((1, TRAIN), (2, VALID)):
        for id in range(POPULATION):
            seat = Seat(jnp.int32(round), jnp.int32(id), jnp.int32(0), True)
            assert algorithm.poll.ask(jax.random.key(0), seat, (), (), _data(id)) == -(-rows[id] // 2)


@pytest.mark.thorough
def test_a_run_goes_on_as_one_of_clients_with_other_rows() -> None:
    federation, inner = tiny_federation(), fedavg(TASK, LOCAL, clients_per_round=3)
    states, records = run(drift(inner, at=1), federation, 3)
    clients = federation.clients
    assert clients.later is not None
    other = by_id(federation._replace(clients=clients._replace(train=clients.later)))
    step = jax.jit(lambda state: one_round(inner, other, Layout(5, 1, 5), state)[0])
    for before, after in itertools.pairwise(states[1:]):
        np.testing.assert_allclose(after.server.model.weight, step(before).server.model.weight, rtol=1e-5, atol=1e-6)
    assert [int(record["drifted"].sum()) for record in records] == [0, 5, 5]


def test_clients_have_rows_for_after_the_drift() -> None:
    with pytest.raises(ValueError, match=r"expected clients with rows for after the drift, .* got clients whose data"):
        _read(_data(1)._replace(later=None), 0, 1, 3)
