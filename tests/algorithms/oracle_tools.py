"""The driver of rounds against NumPy: ragged clients, one without data, one lost in each round, both precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.core.trees import take
from fljax.engine.rounds.evaluate import Judge
from fljax.protocol import Algorithm, Examples, Federation
from fljax.training import Local
from tests.algorithms.rounds_tools import close, federation, history, missing, numpy_client, stored
from tests.oracles.numpy_round import Client

# A rate and a decay that no binary fraction equals, so that a rate in the wrong precision shows.
STEPS, EPOCHS = Local(0.3, 3, steps=3, decay=0.7), Local(0.3, 3, epochs=2, decay=0.7)
POPULATION, WITH_DATA = 5, (1, 2, 3, 4)  # client 0 has no data
SIZES = np.array([0.0, 7.0, 5.0, 2.0, 3.0])  # of ``federation()``, by id
LOST = ((1,), (3,))  # by round
NOTHING = Examples(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32))

modes = pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])


class Round(NamedTuple):
    """One round of a run for NumPy: who took part with which batches, and what the run has before and after it."""

    t: int
    rate: float
    clients: dict[int, Client]  # those who took part
    record: dict[str, Any]
    before: Any
    after: Any

    @property
    def present(self) -> np.ndarray:
        return self.record["cohort_present"]

    def by_row(self, values: Any) -> list[Any]:
        """Values by id, in the rows of those present."""
        return [values[id] for id in taking_part(self.record)]


class Run(NamedTuple):
    """States ``[rounds + 1, ...]`` and records ``[rounds, ...]`` of an algorithm."""

    algorithm: Algorithm
    data: Federation
    states: Any
    records: Any

    @property
    def last(self) -> Any:
        return self.by_state(-1)

    def by_state(self, t: int) -> Any:
        """The state after t rounds, in double precision."""
        return at(self.states, t)

    def by_round(self) -> list[dict[str, Any]]:
        return [
            {name: values[t] for name, values in self.records.items()} for t in range(len(self.records["cohort_id"]))
        ]


def run(algorithm: Algorithm, data: Federation | None = None, lost: tuple[tuple[int, ...], ...] = LOST) -> Run:
    """A run of as many rounds as ``lost`` has, in which the clients ``lost[t]`` are selected and do not answer."""
    lossy, data = missing(algorithm, lost), federation() if data is None else data
    return Run(algorithm, data, *history(lambda numbers: lossy, data, len(lost)))


def agrees(
    ran: Run,
    oracle: Callable[[Round, Any], Any],
    how: Local,
    reads: Callable[[Any], Any],
    tolerance: float,
    *,
    start: Any = None,
    to_do: Local | None = None,
) -> Any:
    """Compares a run with an oracle after each round; the oracle's last state.

    Args:
      ran: the run.
      oracle: ``(round, state) -> state after the round``; it may check the records as well.
      how: how clients train.
      reads: what of the run's state is compared with the oracle's state: models, arrays, or tuples, lists and
        dictionaries by id of them.
      tolerance: relative to the largest number of each model or array.
      start: the oracle's state before round 0; None: that of the run.
      to_do: how clients draw their batches where it is not ``how``.
    """
    expected = reads(ran.by_state(0)) if start is None else start
    for t, record in enumerate(ran.by_round()):
        clients = {id: numpy_client(ran.data, id, t, to_do or how) for id in taking_part(record)}
        round = Round(t, rate_of(how, t), clients, record, ran.by_state(t), ran.by_state(t + 1))
        expected = oracle(round, expected)
        alike(reads(round.after), expected, tolerance)
    return expected


def alike(found: Any, expected: Any, tolerance: float) -> None:
    """Each model or array by itself; zeros are equal, and a part that is not read (None) is left out."""
    if found is None:
        return
    if isinstance(expected, dict) and any(isinstance(name, int) for name in expected):
        found, expected = [found[id] for id in expected], list(expected.values())
    if isinstance(expected, tuple | list) and not (expected and np.isscalar(expected[0])):
        for one, other in zip(found, expected, strict=True):
            alike(one, other, tolerance)
    elif any(np.any(leaf) for leaf in jax.tree.leaves(expected)):
        close(found, expected, tolerance)
    else:
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))


def at(tree: Any, t: int) -> Any:
    """One round of stacked trees, in double precision."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[t], np.float64), tree)


def each(tree: Any) -> list[Any]:
    """A tree for each row of leaves ``[rows, ...]``."""
    return [jax.tree.map(lambda leaf, row=row: leaf[row], tree) for row in range(len(jax.tree.leaves(tree)[0]))]


def of_clients(tree: Any) -> dict[int, Any]:
    """By id, of those with data."""
    return {id: each(tree)[id] for id in WITH_DATA}


def stack(models: Any) -> dict[str, np.ndarray]:
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def taking_part(record: Any) -> list[int]:
    return [int(id) for id in record["cohort_id"][record["cohort_present"]]]


def rate_of(how: Local, t: int) -> float:
    return float(how.learning_rate * how.decay**t)


def judged(ran: Run, t: int = -1, **options: Any) -> tuple[Judge, Any, Federation]:
    data, state = stored(ran.data), jax.tree.map(lambda leaf: jnp.asarray(leaf[t]), ran.states)
    return Judge(ran.algorithm, data, state, state.round, **options), state, data


def deployed(ran: Run, id: int, t: int = -1) -> Any:
    """What one seen client would use after the run, or after t rounds, and what all share."""
    judge, state, data = judged(ran, t)
    return judge.deploy(take(data.clients, id), take(state.clients, id))


def stranger(ran: Run) -> Any:
    """What somebody unseen would use, who has the rows of client 2."""
    judge, _, data = judged(ran, known=False)
    return judge.deploy(take(data.clients, 2))[0]
