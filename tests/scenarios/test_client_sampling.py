"""Client sampling: how often clients are drawn, against all ordered draws, and all algorithms inside."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import config
from fljax.algorithms import fedavg
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.states import by_id, initial_state, poll
from fljax.experiments.run import run as run_config
from fljax.protocol import Available, Poll
from fljax.scenarios import client_sampling
from tests.experiments.test_decisions import RAW
from tests.laws.cases import ALGORITHMS, EIGHT
from tests.scenarios.tools import LOCAL, TASK, losses, run, taking_part
from tests.toys.federation import tiny_federation

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

DRAWS = 20_000
DATA = by_id(tiny_federation())
ABLE = np.array([True, True, True, False, True])
PAIR = fedavg(TASK, LOCAL, clients_per_round=2)
ASKED = PAIR._replace(poll=Poll(lambda key, seat, down, client, data: seat.id + 1))
NINES, OWN, ENDLESS = (9.0,) * 5, (0.5, 1.0, 2.0, 8.0, 4.0), (np.inf,) * 4 + (1.0,)
# Algorithms, and the weights in round 3.
CASES: dict[str, tuple[Any, Any]] = {
    "size": (client_sampling(PAIR, by="size"), DATA.clients.train.size),
    "loss": (client_sampling(PAIR, by="loss"), None),
    "contribution": (client_sampling(PAIR, by="contribution", contribution=(NINES, NINES, OWN)), OWN),
    "numbers": (client_sampling(PAIR, by=(0.0, 2.0, 1.0, 1.0, 5.0)), (0, 2, 1, 1, 5)),
    "by round": (client_sampling(PAIR, by=(OWN, NINES, NINES)), OWN),
    "a function": (client_sampling(ASKED, by=lambda round, ballots: ballots ** (round - 1)), np.arange(1, 6) ** 2),
    "few": (client_sampling(PAIR, by=(0.0, -1.0, 3.0, 1.0, np.nan)), (0, 0, 3, 0, 0)),
    "one endless": (client_sampling(PAIR, by=(np.inf, 1.0, 0.0, 1.0, np.nan)), (1e30, 1, 0, 1, 0)),
    "all endless": (client_sampling(PAIR, by=ENDLESS), (1e30, 1e30, 1e30, 0, 1)),
}


def chances(weight: Any) -> np.ndarray:
    """``[N, N]``, how probable each pair of clients is, by all ordered draws; the diagonal has single clients."""
    weight, found = np.where(ABLE, weight, 0).astype(float), np.zeros((5, 5))
    for first, second in itertools.permutations(range(5), 2):
        left = np.delete(weight, first).sum()
        chance = weight[first] / weight.sum() * weight[second] / max(left, 1e-9)
        found[first, second] += chance
        found[second, first] += chance
    alone = weight / weight.sum() * (np.count_nonzero(weight) == 1)
    return found + np.diag(found.sum(axis=0) + alone)


def drawn(algorithm: Any, state: Any) -> np.ndarray:
    """Who is in the cohort of the state's round, ``[DRAWS, N]``."""
    ballots = state.ballots
    if algorithm.poll is not None:
        ballots = poll(algorithm, DATA, state.seed, state.round, state.server, state.clients, Layout(5, 1, 5))

    def one(key: Any) -> Any:
        available = Available(5, jnp.asarray(ABLE))
        cohort = algorithm.select(key, state.round, state.server, ballots, available)[1]
        return jnp.zeros(5, int).at[cohort.id].add(cohort.present)

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), DRAWS)))


def agrees(found: np.ndarray, chance: np.ndarray) -> None:
    np.testing.assert_array_less(np.abs(found - chance), 5 * np.sqrt(chance * (1 - chance).clip(0) / DRAWS) + 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_clients_and_pairs_are_drawn_in_proportion(name: str) -> None:
    algorithm, weight = CASES[name]
    state = initial_state(algorithm, DATA, jnp.uint32(0))
    if name == "loss":
        state = run(algorithm, tiny_federation(), 2)[0][-1]
        weight = losses(state.server.inner.model, tiny_federation())
    found = drawn(algorithm, state._replace(round=jnp.int32(3)))
    agrees(found.T @ found / DRAWS, chances(weight))


def test_samplings_inside_each_other_are_independent() -> None:
    """If both drew by the same numbers, the inner one would often take the client that the outer one took first."""
    nested = client_sampling(client_sampling(PAIR, by=NINES, clients=1), by=OWN, clients=2)
    found = drawn(nested, initial_state(nested, DATA, jnp.uint32(0))).mean(axis=0)
    agrees(found, np.diag(chances(OWN)) / 2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_selects_among_those_that_are_drawn(name: str) -> None:
    inner = ALGORITHMS[name].build(TASK, LOCAL, **ALGORITHMS[name].example)
    samplings: Any = {"by": "size", "clients": 5}, {"by": (1.0, 0.0, 2.0, 0.0, 3.0)}

    @jax.jit
    def selected() -> Any:
        found = []
        for algorithm in (inner, *(client_sampling(inner, **options) for options in samplings)):
            at = initial_state(algorithm, DATA, jnp.uint32(1))
            found.append(algorithm.select(jax.random.key(2), at.round, at.server, at.ballots, Available(5))[:2])
        return found

    plain, everybody, three = selected()
    jax.tree.map(np.testing.assert_array_equal, plain, (everybody[0].inner, everybody[1]))
    present = np.asarray(three[1].id)[np.asarray(three[1].present)]
    assert set(present.tolist()) <= {0, 2, 4}
    assert present.size or not plain[1].present.any()


@pytest.mark.thorough
@pytest.mark.parametrize("name", EIGHT)
def test_drawing_everybody_changes_nothing(name: str) -> None:
    inner = ALGORITHMS[name].build(TASK, LOCAL, **ALGORITHMS[name].example)
    plain, records = run(inner, tiny_federation(), 2)
    for by in ("size", "loss", "contribution"):
        sampled = client_sampling(inner, by=by, clients=5, contribution=OWN)  # type: ignore[arg-type]
        found, others = run(sampled, tiny_federation(), 2)
        jax.tree.map(np.testing.assert_array_equal, plain[-1].server, found[-1].server.inner)
        jax.tree.map(np.testing.assert_array_equal, plain[-1].clients, found[-1].clients)
        assert list(map(taking_part, records)) == list(map(taking_part, others))


@pytest.mark.thorough
def test_samplings_of_a_config() -> None:
    scenarios = [[{"name": "client_sampling", "by": by}] for by in ("size", "loss", "contribution", [1, 0, 1, 0, 0, 0])]
    entries = [{"name": "fedavg", "label": f"{each[0]['by']}", "scenarios": each} for each in scenarios]
    entries.append({"name": "iafl", "contribution": [0, 0, 0, 0, 1, 1], "scenarios": scenarios[2]})
    records = run_config(config.parse({**RAW, "algorithms": entries})).records
    for label, expected in {"iafl": {4, 5}, "[1, 0, 1, 0, 0, 0]": {0, 2}}.items():
        own = records.sel(algorithm=label)
        assert set(own["cohort_id"].values[own["cohort_present"].values == 1].tolist()) == expected
