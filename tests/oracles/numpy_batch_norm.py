"""NumPy transcription of rounds of FedAvg, FedBN and SiloBN: batch normalisation before a softmax regression."""

from __future__ import annotations

from typing import Any

import numpy as np

EPSILON, MOMENTUM = 1e-5, 0.9

Params = dict[str, np.ndarray]  # scale, bias, mean, var of the normalisation; kernel, offset of the last layer


def local_training(params: Params, x: np.ndarray, y: np.ndarray, *, steps: int, rate: float) -> Params:
    """Full-batch gradient descent; running averages move in every step."""
    own = {name: leaf.copy() for name, leaf in params.items()}
    for _ in range(steps):
        mean, var = x.mean(axis=0), x.var(axis=0)
        unit = (x - mean) / np.sqrt(var + EPSILON)
        h = unit * own["scale"] + own["bias"]
        z = h @ own["kernel"] + own["offset"]
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        p /= len(y)
        into = p @ own["kernel"].T
        slopes = {"kernel": h.T @ p, "offset": p.sum(0), "scale": (into * unit).sum(0), "bias": into.sum(0)}
        for name, slope in slopes.items():
            own[name] = own[name] - rate * slope
        own["mean"] = MOMENTUM * own["mean"] + (1 - MOMENTUM) * mean
        own["var"] = MOMENTUM * own["var"] + (1 - MOMENTUM) * var
    return own


def rounds(
    start: Params,
    clients: list[tuple[np.ndarray, np.ndarray]],
    count: int,
    *,
    private: tuple[str, ...],
    server_lr: float = 1.0,
    **local: Any,
) -> tuple[Params, list[Params]]:
    """Shared and clients' models after ``count`` rounds; shared statistics are averaged at any ``server_lr``."""
    shared = {name: leaf.copy() for name, leaf in start.items()}
    own = [{name: start[name].copy() for name in private} for _ in clients]
    for _ in range(count):
        total, sums = 0, {name: np.zeros_like(leaf) for name, leaf in shared.items() if name not in private}
        for k, (x, y) in enumerate(clients):
            if not len(y):
                continue
            trained = local_training({**shared, **own[k]}, x, y, **local)
            own[k] = {name: trained[name] for name in private}
            total += len(y)
            for name in sums:
                sums[name] += len(y) * (trained[name] - shared[name])
        for name, step in sums.items():
            shared[name] += (1.0 if name in ("mean", "var") else server_lr) * step / total
    return shared, [{**shared, **each} for each in own]
