"""One round of FedNova, FedDyn and MOON, written out in NumPy without fljax.

Parameters and clients are those of ``numpy_baselines``; MOON's parameters have the two layers of ``numpy_personal``.
Everything is in double precision.

Sources: FedNova, Theorem 1 and section 4; FedDyn, Algorithm 1; MOON, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.oracles.numpy_baselines import Clients, mean, moved, plus, pulled, shares
from tests.oracles.numpy_personal import proto_gradient, representation
from tests.oracles.numpy_round import Params, local_sgd


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
    ends, norms = [], []
    for id, client in clients.items():
        factor = factors.get(id, 1.0)
        ends.append(local_sgd(model, client, rate * factor, pulled(model, mu), momentum))
        norms.append(factor * accumulated(len(client.batches), rate * factor, momentum, mu))
    part = np.array(shares(clients, by_size))
    return moved(model, ends, list(part / np.array(norms)), server_lr * float(part @ norms))


class Dynamic(NamedTuple):
    """The server's model and correction h, and the clients' corrections g_k by id (of all clients with data)."""

    model: Params
    correction: Params
    own: Mapping[int, Params]


def feddyn_round(state: Dynamic, clients: Clients, rate: float, alpha: Mapping[int, float]) -> Dynamic:
    """Every step is ``y <- y - rate (g(y) + alpha_k (y - w + g_k))``; then g_k, their mean h, and w."""
    ends, own = [], dict(state.own)
    for id, client in clients.items():
        ends.append(local_sgd(state.model, client, rate, pulled(plus(state.model, own[id], -1), alpha[id])))
        own[id] = plus(own[id], plus(ends[-1], state.model, -1))
    correction = mean(list(own.values()))
    return Dynamic(plus(mean(ends), correction), correction, own)


def contrast_slope(z: np.ndarray, others: np.ndarray, temperature: float) -> np.ndarray:
    """The derivative by z ``[b, z]`` of ``-log(exp(s_0 / T) / sum_m exp(s_m / T))``, of cosines with ``[m, b, z]``."""
    length = np.linalg.norm(z, axis=1) * np.linalg.norm(others, axis=2)
    cosine = (z * others).sum(axis=2) / length
    part = np.exp(cosine / temperature)
    part /= part.sum(axis=0)
    part[0] -= 1
    slopes = others / length[..., None] - cosine[..., None] * z / (z * z).sum(axis=1, keepdims=True)
    return np.einsum("mb,mbz->bz", part / temperature, slopes)


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
        others = [model, *(earlier[id] or [model])]

        def slope(y: Params, x: np.ndarray, labels: np.ndarray, others: list[Params] = others) -> Params:
            z, found = representation(y, x), proto_gradient(y, x, labels, {}, 0.0)
            back = contrast_slope(z, np.stack([representation(other, x) for other in others]), temperature)
            return plus(found, {"inner": x.T @ (back * (1 - z**2)) / len(labels), "head": np.zeros(1)}, mu)

        ends.append(local_sgd(model, client, rate, slope))
        after[id] = [ends[-1], *after[id]][:buffer]
    return moved(model, ends, shares(clients, True), 1.0), after
