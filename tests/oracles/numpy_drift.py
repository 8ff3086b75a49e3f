"""One round of FedNova, FedDyn and MOON, written out in NumPy without fljax.

Parameters and clients are those of ``numpy_baselines``; MOON's parameters have the two layers of ``numpy_personal``.
Everything is in double precision.

Sources: FedNova, Theorem 1 and section 4; FedDyn, Algorithm 1; MOON, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.oracles.numpy_baselines import Clients, mean, mixed, moved, plus, shares, zeros
from tests.oracles.numpy_personal import proto_gradient, representation
from tests.oracles.numpy_round import Params, gradient

# --- FedNova ------------------------------------------------------------------------------------------------


def accumulated(steps: int, rate: float, momentum: float, mu: float) -> float:
    """The norm of a client's vector of accumulated gradients, step by step as the authors' code adds it up."""
    counter, total = 0.0, 0.0
    for _ in range(steps):
        counter = momentum * counter + 1
        total = (1 - rate * mu) * total + counter
    return total


def fednova_round(
    model: Params,
    clients: Clients,
    rate: float,
    *,
    momentum: float = 0.0,
    mu: float = 0.0,
    by_size: bool = True,
    server_lr: float = 1.0,
    factors: Mapping[int, float] = {},  # of the rate, by id
) -> Params:
    """``w + server_lr tau sum_k p_k Delta_k / A_k`` with ``tau = sum_k p_k A_k``."""
    normalised, norms = [], []
    for id, client in clients.items():
        y, speed, factor = model, zeros(model), factors.get(id, 1.0)
        for rows in client.batches:
            slope = plus(gradient(y, client.x[rows], client.y[rows]), plus(y, model, -1), mu)
            speed = plus(slope, speed, momentum)
            y = plus(y, speed, -rate * factor)
        norms.append(factor * accumulated(len(client.batches), rate * factor, momentum, mu))
        normalised.append(mixed([plus(y, model, -1)], [1 / norms[-1]]))
    part = shares(clients, by_size)
    effective = sum(share * norm for share, norm in zip(part, norms, strict=True))
    return plus(model, mixed(normalised, part), server_lr * effective)


# --- FedDyn -------------------------------------------------------------------------------------------------


class Dynamic(NamedTuple):
    """The server's model and correction h, and the clients' corrections g_k by id (of all clients with data)."""

    model: Params
    correction: Params
    own: Mapping[int, Params]


def feddyn_round(state: Dynamic, clients: Clients, rate: float, alpha: Mapping[int, float]) -> Dynamic:
    """Every step is ``y <- y - rate (g(y) + alpha_k (y - w + g_k))``; then g_k, h and w."""
    ends, own, total = [], dict(state.own), zeros(state.model)
    for id, client in clients.items():
        y = state.model
        for rows in client.batches:
            pull = plus(plus(y, state.model, -1), state.own[id])
            y = plus(y, plus(gradient(y, client.x[rows], client.y[rows]), pull, alpha[id]), -rate)
        change = plus(y, state.model, -1)
        own[id], total = plus(state.own[id], change), plus(total, change)
        ends.append(y)
    correction = plus(state.correction, total, 1 / len(state.own))
    return Dynamic(plus(mean(ends), correction), correction, own)


# --- MOON ---------------------------------------------------------------------------------------------------


def contrast_slope(z: np.ndarray, shared: np.ndarray, earlier: Sequence[np.ndarray], temperature: float) -> np.ndarray:
    """The derivative by z of ``-log(exp(s_g / T) / (exp(s_g / T) + sum_b exp(s_b / T)))``, for one row."""
    others = [shared, *earlier]
    lengths = [np.linalg.norm(z) * np.linalg.norm(other) for other in others]
    cosines = np.array([z @ other / length for other, length in zip(others, lengths, strict=True)])
    part = np.exp(cosines / temperature)
    by_cosine = part / part.sum() / temperature
    by_cosine[0] -= 1 / temperature
    slopes = [
        other / length - cosine * z / (z @ z) for other, length, cosine in zip(others, lengths, cosines, strict=True)
    ]
    return np.einsum("m,mz->z", by_cosine, np.stack(slopes))


def moon_round(
    model: Params,
    earlier: Mapping[int, Sequence[Params]],
    clients: Clients,
    rate: float,
    *,
    mu: float,
    temperature: float,
    buffer: int,
) -> tuple[Params, dict[int, list[Params]]]:
    """The model after the round, and each client's last trained models, the newest first."""
    after, ends = {id: list(models) for id, models in earlier.items()}, []
    for id, client in clients.items():
        y, before = model, earlier[id] or [model]
        for rows in client.batches:
            x, labels = client.x[rows], client.y[rows]
            z, shown = representation(y, x), representation(model, x)
            old = [representation(other, x) for other in before]
            back = np.stack(
                [contrast_slope(z[i], shown[i], [other[i] for other in old], temperature) for i in range(len(x))]
            )
            slope = proto_gradient(y, x, labels, {}, 0.0)
            slope["inner"] = slope["inner"] + mu * x.T @ (back * (1 - z**2)) / len(labels)
            y = plus(y, slope, -rate)
        after[id] = [y, *after[id]][:buffer]
        ends.append(y)
    return moved(model, ends, shares(clients, True), 1.0), after
