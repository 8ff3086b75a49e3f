"""Tables of payoffs of small games with known solutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from fljax.contributions.solutions import members_of
from fljax.games import CoalitionTable, PayoffTable
from fljax.theory import coalition_errors
from tests.games.known import table_of

# Gains of three cells with five seeds, whose bounds are known.
GAINS = np.array(
    [[0.01, 0.02, 0, 0.03, 0.015], [-0.02, -0.01, -0.03, -0.02, -0.02], [0.004, -0.002, 0.001, 0.003, -0.001]]
).T


def unilateral(gains: np.ndarray, *, outside: float | None = 0.4) -> PayoffTable:
    """A table ``[R, 1 + N, N]`` in which client k gains ``gains[:, k]`` by "lie", and each other loses 0.1 of it."""
    seeds, clients = gains.shape
    honest = 0.5 + 0.03 * np.arange(seeds)[:, None] + 0.01 * np.arange(clients)[None]
    payoffs = np.repeat(honest[:, None], clients + 1, axis=1)
    for client in range(clients):
        change = np.where(np.arange(clients) == client, gains[:, [client]], -0.1 * gains[:, [client]])
        payoffs[:, client + 1] += change
    choices = np.concatenate([np.zeros((1, clients), int), np.eye(clients, dtype=int)])
    options = None if outside is None else np.full((seeds, clients), outside)
    return PayoffTable(payoffs, choices, ("honest", "lie"), tuple(range(seeds)), options)


def full(
    utility: Callable[[np.ndarray], Sequence[float] | np.ndarray], values: Sequence[float], clients: int
) -> PayoffTable:
    """A table of one seed with all profiles, of which ``utility`` gives the payoffs ``[N]``."""
    choices = np.array(list(itertools.product(range(len(values)), repeat=clients)))
    payoffs = np.array([utility(np.asarray(values)[row]) for row in choices])
    return PayoffTable(payoffs[None], choices, tuple(map(str, values)), (0,))


def effort(contributions: np.ndarray) -> np.ndarray:
    """Three clients who contribute 1 or nothing to what all have."""
    return 1 - np.exp(-contributions.sum()) - 0.3 * contributions


def mean_estimation(scales: np.ndarray) -> np.ndarray:
    """FedAvg's fixed point if clients with the means 0, 1 and 5 multiply their updates; 0 if nobody sends any."""
    means = np.array([0.0, 1.0, 5.0])
    return -((scales @ means / max(scales.sum(), 1e-9) - means) ** 2) / 2


def two_clients(
    first: Sequence[Sequence[float]] | np.ndarray, second: Sequence[Sequence[float]] | np.ndarray
) -> PayoffTable:
    """A game of two clients by their matrices of payoffs."""
    payoffs = np.stack([np.asarray(first, float), np.asarray(second, float)], axis=-1)
    strategies = len(payoffs)
    choices = np.array(list(itertools.product(range(strategies), repeat=2)))
    return PayoffTable(payoffs.reshape(1, -1, 2), choices, tuple("abcdef"[:strategies]), (0,))


def uniform_federation(seeds: int = 1, noise: float = 0.0) -> CoalitionTable:
    """Clients with 5, 5 and 25 samples; a client outside has what it reaches alone."""
    sizes, members = np.array([5.0, 5.0, 25.0]), members_of(3)
    errors = coalition_errors(sizes, members, within_variance=1.0, noise_variance=10.0)
    payoffs = np.where(members, -np.nan_to_num(errors), -10.0 / sizes)
    drawn = noise * np.random.default_rng(0).normal(size=(seeds, 1, 3))  # of a seed, all runs share it
    return table_of(np.zeros((seeds, 8)), payoffs=payoffs[None] + drawn, payoff="-test_loss")
