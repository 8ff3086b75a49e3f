"""Games whose best mechanism is known in closed form."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fljax
from fljax import algorithms, data, models, training, trees
from fljax.algorithms.single_model import SingleModel, single_model
from fljax.protocol.messages import Sent


class Point(nn.Module):
    """A model that is one number."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        w = self.param("w", nn.initializers.zeros, (1,))
        return jnp.broadcast_to(w, (x.shape[0], 1))


_X, _Y = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
TASK = models.task_from_module(Point(), _X, loss=models.squared_error, example_y=_Y)
LOCAL = fljax.Local(0.5, 1, steps=1)  # one step ends at the client's target
SAME = {"task": TASK, "local": LOCAL, "clients_per_round": None}


def of_targets(targets: Any) -> fljax.Federation:
    """A client for each target c, with the payoff ``-(w - c)^2``."""
    rows = [(_X, np.array([target], np.float32)) for target in targets]
    return data.from_clients({f"c{k}": {"train": row, "test": row} for k, row in enumerate(rows)}, regression=True)


# A: the targets 0 and 1, and a model s / 2 of FedAvg with the server's rate s. If a client doubles its update, the one
# with the target 1 gains s - 3 s^2 / 4.
UNIFORM = fljax.Plan(algorithms.fedavg, {**SAME, "weights": "uniform"})


def best_rate(tolerance: float) -> float:
    """The rate with the best mean payoff ``-(w^2 + (1 - w)^2) / 2`` at w = s / 2, if a lie may gain the tolerance."""
    return 2 * ((1 + np.sqrt(1 - 3 * tolerance)) / 3 if tolerance < 0.25 else 0.5)


# B: three standard normal targets, and a model that weighs the ordered ones by b, 1 - 2b and b. The mean (b = 1/3) has
# the least loss. The median (b = 0) is the one that nobody moves by a lie (Moulin, 1980).
def ordered(task: Any, local: Any, *, b: float = 0.0, clients_per_round: int | None = None) -> fljax.Algorithm:
    """The server's rule of B."""

    def train(key: Any, seat: Any, down: Any, client: Any, rows: Any) -> Any:
        trained = training.train(key, down, rows.train, task=task, local=local, round=seat.round)
        return Sent(trees.subtract(trained.params, down)), client

    def aggregate(server: Any, up: Any, round: Any) -> Any:
        weights = jnp.stack([b, 1 - 2 * b, b])
        step = jax.tree.map(lambda leaf: jnp.tensordot(weights, jnp.sort(leaf, axis=0), 1), up.update)
        return SingleModel(trees.add(server.model, step), ()), {}

    return single_model(task, clients_per_round=clients_per_round, train=train, aggregate=aggregate)


def of_normal_targets(seed: int) -> fljax.Federation:
    """A federation of B."""
    return of_targets(np.random.default_rng(seed).normal(size=3))


# C: two bidders with uniform values, who pay ``a own + (1 - a) max(second, r)``, and a seller, who has the revenue.
FACTORS = (1.0, 0.5, 0.75, 0.9, 0.97, 0.99, 1.1)
_VALUES = (np.arange(400) + 0.5) / 400


def auction(numbers: Any, profile: Any, seed: int) -> Any:
    """The expected payoffs of both bidders and of the seller, if at most one bidder shades its bid."""
    a, r = float(numbers["a"]), float(numbers["r"])
    bid = np.minimum(_VALUES * FACTORS[profile[:2].max()], 1.0)  # no bid above 1 wins more often

    def of_bidder(bid: Any) -> tuple[float, float]:
        # The other's value is y: the bidder wins below its bid, and pays max(y, r) in part.
        second = np.where(bid < r, 0.0, r * r + (bid * bid - r * r) / 2)
        pays = np.where(bid < r, 0.0, a * bid * bid + (1 - a) * second)
        wins = np.where(bid < r, 0.0, bid)
        return float(np.mean(_VALUES * wins - pays)), float(np.mean(pays))

    honest, liar = of_bidder(_VALUES), of_bidder(bid)
    payoffs = [liar[0] if strategy else honest[0] for strategy in profile[:2]]
    return np.array([*payoffs, 2 * honest[1]])
