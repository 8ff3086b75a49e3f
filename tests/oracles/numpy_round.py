"""One round of FedAvg and INCFL on logistic regression, written out in NumPy without fljax.

Parameters are ``{"w": [d, K], "b": [K]}``; a client is ``Client(x [n, d], y [n], batches)`` with its batches given as
lists of positions in its own data. Only clients that take part are passed. Everything is in double precision.

Source: FedAvg, Algorithm 1; INCFL, section 3 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Params = dict[str, np.ndarray]


class Client(NamedTuple):
    """The training data of one client, without padding, and the batches that it takes in this round."""

    x: np.ndarray
    y: np.ndarray
    batches: Sequence[Sequence[int]]


def probabilities(params: Params, x: np.ndarray) -> np.ndarray:
    """Softmax of ``x w + b``."""
    logits = x @ params["w"] + params["b"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss(params: Params, x: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy."""
    return float(-np.log(probabilities(params, x)[np.arange(len(y)), y]).mean())


def gradient(params: Params, x: np.ndarray, y: np.ndarray) -> Params:
    """Of the mean cross-entropy: ``x^T (p - onehot(y)) / n``."""
    error = probabilities(params, x)
    error[np.arange(len(y)), y] -= 1
    return {"w": x.T @ error / len(y), "b": error.sum(axis=0) / len(y)}


def local_sgd(
    params: Params,
    client: Client,
    rate: float,
    slope: Callable[[Params, np.ndarray, np.ndarray], Params] = gradient,
    momentum: float = 0.0,
) -> Params:
    """One step per batch by ``slope(params, x, y)``: ``v <- momentum v + slope``, then ``params - rate v``."""
    speed = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    for rows in client.batches:
        found = slope(params, client.x[rows], client.y[rows])
        speed = {name: momentum * speed[name] + found[name] for name in params}
        params = {name: params[name] - rate * speed[name] for name in params}
    return params


def updates(model: Params, clients: Sequence[Client], rate: float) -> list[Params]:
    """New minus old of every client."""
    trained = [local_sgd(model, client, rate) for client in clients]
    return [{name: new[name] - model[name] for name in model} for new in trained]


def added(model: Params, moves: Sequence[Params], weights: np.ndarray) -> Params:
    """``model + sum_k weights_k moves_k``."""
    return {
        name: model[name] + sum(weight * move[name] for weight, move in zip(weights, moves, strict=True))
        for name in model
    }


def fedavg_round(
    model: Params, clients: Sequence[Client], rate: float, *, by_size: bool = True, server_lr: float = 1.0
) -> Params:
    """``w + server_lr sum_k a_k Delta_k``: a_k is the client's part of the samples, or of the clients."""
    mass = np.array([len(client.y) if by_size else 1.0 for client in clients], float)
    return added(model, updates(model, clients, rate), server_lr * mass / mass.sum())


def surrogate_slope(gap: np.ndarray, surrogate: str) -> np.ndarray:
    """The derivative of each surrogate, from its textbook form."""
    sigma = 1 / (1 + np.exp(-gap))
    slopes = {
        "sigmoid": sigma * (1 - sigma),
        "softplus": sigma,
        "relu": np.where(gap > 0, 1.0, 0.0),
        "hinge": np.where(1 + gap > 0, 1.0, 0.0),
        "exp": np.exp(np.clip(gap, None, 20)),
    }
    return slopes[surrogate]


def incfl_round(
    model: Params,
    clients: Sequence[Client],
    rate: float,
    threshold: np.ndarray,
    *,
    surrogate: str = "sigmoid",
    gap_scale: float = 1.0,
    normalise: str = "sum",
    eps: float = 1e-8,
    server_lr: float = 1.0,
) -> tuple[Params, np.ndarray, np.ndarray]:
    """``w + server_lr / (sum_k q_k + eps) sum_k q_k Delta_k``; also returns the gaps and q.

    The loss behind the gap is over all rows, at the model before training. With ``normalise="mean"`` the step is
    multiplied by the number of clients.
    """
    gap = np.array([loss(model, client.x, client.y) for client in clients]) - threshold
    q = gap_scale * surrogate_slope(gap_scale * gap, surrogate)
    factor = server_lr * (len(clients) if normalise == "mean" else 1) / (q.sum() + eps)
    return added(model, updates(model, clients, rate), factor * q), gap, q
