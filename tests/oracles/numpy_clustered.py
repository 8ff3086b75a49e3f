"""One round of IFCA, FedSoft and FedEM on logistic regression, written out in NumPy without fljax.

As in numpy_round: parameters are ``{"w": [d, K], "b": [K]}``, and only clients that take part are passed, by id. What
is drawn at random (batches, who is chosen) is given. Everything is in double precision.

Sources: IFCA, Algorithm 1; FedSoft, Algorithm 1; FedEM, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tests.oracles.numpy_round import Client, Params, gradient, local_sgd, probabilities

Clients = Mapping[int, Client]


def combined(terms: Sequence[Params], weights: Sequence[float]) -> Params:
    """``sum_i weights_i terms_i``."""
    return {
        name: np.sum([weight * term[name] for term, weight in zip(terms, weights, strict=True)], axis=0)
        for name in terms[0]
    }


def row_losses(params: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropy of every row."""
    return -np.log(probabilities(params, x)[np.arange(len(y)), y])


def nearest(models: Sequence[Params], client: Client) -> int:
    """``argmin_c F_k(w_c)``, the first one of equal ones."""
    return int(np.argmin([row_losses(model, client.x, client.y).mean() for model in models]))


def ifca_round(
    models: Sequence[Params],
    clients: Clients,
    rate: float,
    *,
    averaging: str = "model",
    by_size: bool = False,
    server_lr: float = 1.0,
) -> tuple[list[Params], dict[int, int], dict[int, float]]:
    """Models, who chose which cluster, and everybody's weight in its cluster."""
    choice = {id: nearest(models, client) for id, client in clients.items()}
    after, share = [], {}
    for cluster, model in enumerate(models):
        members = [id for id in clients if choice[id] == cluster]
        mass = [float(len(clients[id].y)) if by_size else 1.0 for id in members]
        moves = []
        for id in members:
            client = clients[id]
            if averaging == "model":
                moves.append(combined([local_sgd(model, client, rate), model], [1, -1]))
            else:
                moves.append(combined([gradient(model, client.x, client.y)], [-rate]))
        share |= {id: each / sum(mass) for id, each in zip(members, mass, strict=True)}
        after.append(
            combined([model, *moves], [1, *(server_lr * share[id] for id in members)]) if members else dict(model)
        )
    return after, choice, share


def importance(models: Sequence[Params], client: Client, smoother: float) -> list[float]:
    """``u_ks = max(n_ks / N_k, smoother)``; a row counts for the first of the models that have the least loss."""
    count = [0] * len(models)
    for i in range(len(client.y)):
        losses = [row_losses(model, client.x[i : i + 1], client.y[i : i + 1])[0] for model in models]
        count[losses.index(min(losses))] += 1
    return [max(each / len(client.y), smoother) for each in count]


def fedsoft_round(
    models: Sequence[Params],
    personal: Sequence[Params],
    u: Mapping[int, Sequence[float]],
    clients: Clients,
    rate: float,
    regularisation: float,
    chosen: Sequence[Sequence[int]] | None,
) -> tuple[list[Params], list[Params]]:
    """(cluster models, personal models of all); ``chosen[s]`` are those of cluster s, None: all, weighed by v_sk.

    Every step is ``theta <- theta - rate (g(theta) + lambda sum_s u_ks (theta - c_s))``.
    """
    new = list(personal)
    for id, client in clients.items():
        theta = personal[id]
        for rows in client.batches:
            pulls = [combined([theta, model], [1, -1]) for model in models]
            slope = gradient(theta, client.x[rows], client.y[rows])
            slope = combined([slope, *pulls], [1, *(regularisation * each for each in u[id])])
            theta = combined([theta, slope], [1, -rate])
        new[id] = theta
    after = []
    for s, model in enumerate(models):
        members = [id for id in clients if chosen is None or id in chosen[s]]
        mass = [1.0 if chosen is not None else u[id][s] * len(clients[id].y) for id in members]
        weights = [each / sum(mass) for each in mass]
        after.append(combined([new[id] for id in members], weights) if members else dict(model))
    return after, new


def expectation(
    models: Sequence[Params], mixture: Sequence[float], x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Responsibilities ``r [n, C]`` in proportion to ``pi_c exp(-loss)``, and the new mixture, their mean."""
    r = np.zeros((len(y), len(models)))
    for i in range(len(y)):
        likelihood = [
            max(pi, 1e-12) * math.exp(-row_losses(model, x[i : i + 1], y[i : i + 1])[0])
            for pi, model in zip(mixture, models, strict=True)
        ]
        r[i] = np.array(likelihood) / sum(likelihood)
    return r, r.mean(axis=0)


def weighted_gradient(params: Params, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Params:
    """Of ``sum_i weight_i loss_i / n``."""
    error = probabilities(params, x)
    error[np.arange(len(y)), y] -= 1
    error *= weight[:, None]
    return {"w": x.T @ error / len(y), "b": error.sum(axis=0) / len(y)}


def fedem_round(
    models: Sequence[Params],
    mixture: Mapping[int, Sequence[float]],
    clients: Clients,
    rate: float,
    *,
    server_lr: float = 1.0,
) -> tuple[list[Params], dict[int, np.ndarray]]:
    """(components, mixtures of all)."""
    new = {id: np.array(each, float) for id, each in mixture.items()}
    moves: list[list[Params]] = [[] for _ in models]
    for id, client in clients.items():
        r, new[id] = expectation(models, mixture[id], client.x, client.y)
        for c, model in enumerate(models):
            w = model
            for rows in client.batches:
                slope = weighted_gradient(w, client.x[rows], client.y[rows], r[rows, c])
                w = combined([w, slope], [1, -rate])
            moves[c].append(combined([w, model], [1, -1]))
    size = np.array([len(client.y) for client in clients.values()], float)
    weights = server_lr * size / size.sum()
    return [combined([model, *moves[c]], [1, *weights]) for c, model in enumerate(models)], new


def mixed_logits(models: Sequence[Params], mixture: Sequence[float], x: np.ndarray) -> np.ndarray:
    """Logarithm of the mixture of the components' probabilities."""
    return np.log(sum(pi * probabilities(model, x) for pi, model in zip(mixture, models, strict=True)))
