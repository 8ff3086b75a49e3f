"""Clients that adapt their effort: the rule in NumPy, the runs that it plays, and a game whose equilibria are known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms import fedavg, iafl
from fljax.data import from_arrays
from fljax.protocol import Algorithm, PerClient, Task
from fljax.protocol.messages import Report, Sent
from fljax.scenarios import adaptive_effort, effort
from tests.laws.cases import ALGORITHMS
from tests.scenarios.tools import LOCAL, TASK, losses, run, taking_part
from tests.toys.federation import client_rows, tiny_federation

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHARE, COST = np.array([[1, 0.5, 0.7, 0.15, 0.4], [0, 0.1, 0.4, 0.1, 2]], np.float32)
FEDERATION = tiny_federation()


def judge(model: Any, reward: str) -> Any:
    (weight, bias), rows = map(np.asarray, (model.weight, model.bias)), (client_rows(FEDERATION, id) for id in range(5))
    accuracies = [np.mean(np.argmax(x @ weight + bias, axis=1) == y) for x, y in rows]
    return accuracies if reward == "accuracy" else -losses(model, FEDERATION)


@pytest.mark.parametrize("reward", ["accuracy", "loss"])
def test_the_rule_in_numpy(reward: Any) -> None:
    inner = fedavg(TASK, LOCAL._replace(steps=1), clients_per_round=3)
    algorithm = adaptive_effort(inner, cost=COST, share=SHARE, rate=0.3, trial=0.2, reward=reward, split="train")
    states, records = run(algorithm, FEDERATION, 12)
    rewards = np.array([judge(state.server.inner.model, reward) for state in states])
    for id, share in enumerate(SHARE.astype(float)):
        rounds = [round for round, record in enumerate(records) if id in taking_part(record)]
        earned, used = rewards[rounds, id], np.array([records[round]["effort"][id] for round in rounds])
        for k in range(len(rounds)):
            assert np.abs(np.clip([share - 0.2, share + 0.2], 0, 1) - used[k]).min() < 1e-5
            if k > 1 and abs(apart := used[k - 1] - used[k - 2]) > 0.1:
                marginal = ((earned[k] - earned[k - 1]) - (earned[k - 1] - earned[k - 2])) / apart
                share = np.clip(share + 0.3 * (marginal - COST[id]), 0, 1)
        np.testing.assert_allclose(states[-1].clients.share[id], share, atol=1e-5)


@pytest.mark.in_turn
def test_a_run_is_that_of_the_efforts_that_it_records() -> None:
    inner = iafl(TASK, LOCAL, contribution=(0.9, 0.4, 1.0, 0.7, 0.2))
    states, records = run(adaptive_effort(inner, cost=COST, share=SHARE, scale_contribution=True), FEDERATION, 5)
    table = np.stack([record["effort"] for record in records])
    expected, _ = run(effort(inner, share=table, scale_contribution=True), FEDERATION, 5)
    jax.tree.map(np.testing.assert_array_equal, states[-1].server.inner, expected[-1].server)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALGORITHMS)
def test_at_a_rate_of_0_it_is_effort(name: str) -> None:
    inner = ALGORITHMS[name].build(TASK, LOCAL, **ALGORITHMS[name].example)
    found = run(adaptive_effort(inner, cost=1.0, share=SHARE, rate=0.0), FEDERATION, 3)[0][-1]
    found = found._replace(server=found.server.inner, clients=found.clients.inner)
    jax.tree.map(np.testing.assert_array_equal, found, run(effort(inner, share=SHARE), FEDERATION, 3)[0][-1])


X, Y, OWNER = np.zeros((400, 1), np.float32), np.arange(400) % 2, np.repeat(range(4), 100)
DATA = from_arrays(X, Y, OWNER, train_fraction=0.8)
NUMBER = Task(lambda key: (), lambda number, x, key=None: jnp.full((len(x), 1), number), lambda out, y: -out[:, 0])


def game(own: Any) -> Algorithm:
    """A reward for each client: a round adds ``own`` times its share and ``1 - own`` times the mean share of all."""

    def aggregate(server: Any, up: Any, round: Any) -> Any:
        return PerClient(server.values + (own * up.report.size + (1 - own) * jnp.mean(up.report.size)) / 80), {}

    return fedavg(NUMBER, LOCAL, clients_per_round=None)._replace(
        init_server=lambda key, census: PerClient(jnp.zeros(4)),
        send=lambda number, seat: number,
        train=lambda key, seat, down, client, data: (Sent((), Report(size=data.train.rows.size)), client),
        aggregate=aggregate,
        common=lambda number: number,
    )


@jax.jit
def play(cost: Any, own: Any) -> Any:
    algorithm = adaptive_effort(game(own), cost=cost, share=0.5, split="train")
    state, records = fljax.rollout(algorithm, DATA, rounds=80)
    return state.clients.share, records["effort"]


@pytest.mark.in_turn
def test_rewards_that_follow_effort_raise_it_and_a_model_for_all_does_not() -> None:
    """The marginal reward is 1, or 1/4 with one reward for all; clients contribute if the cost is below it."""
    for cost, own, last in ((0.0, 1.0, 1), (0.6, 1.0, 1), (1.4, 1.0, 0), (5.0, 0.0, 0), (0.6, 0.0, 0)):
        shares, efforts = map(np.asarray, play(cost, own))
        np.testing.assert_allclose(shares.mean(), last, atol=0.1)
        assert shares.min() >= 0 <= efforts.min() <= efforts.max() <= 1 >= shares.max()
        assert own == 0 or (efforts * (2 * last - 1) >= 0.5 * (2 * last - 1) - 0.1 - 1e-6).all()  # beyond the start
    early = lambda cost: play(cost, 1.0)[1][9].sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(early)(0.8), (early(0.8001) - early(0.7999)) / 2e-4, rtol=1e-2)
