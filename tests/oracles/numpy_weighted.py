"""What ``weighted`` and ``learnt`` make of updates and reports of those who take part, in NumPy without fljax."""

from __future__ import annotations

import numpy as np

from tests.oracles.numpy_round import loss, probabilities


def reports(model, clients):
    """Sizes, losses and accuracies of the received model."""
    right = [np.mean(probabilities(model, client.x).argmax(axis=1) == client.y) for client in clients]
    return np.array([[len(client.y) for client in clients], [loss(model, c.x, c.y) for c in clients], right])


def lengths(updates):
    """Norms by their lower median, and updates of norm 1."""
    flat = np.array([np.concatenate([leaf.ravel() for leaf in update.values()]) for update in updates])
    norms = np.linalg.norm(flat, axis=1)
    return norms / np.sort(norms)[(len(norms) - 1) // 2], flat / norms[:, None]


def learnt(updates, reported, theta, hidden):
    """Weights that are not normalised."""
    length, unit = lengths(updates)
    cosine = unit @ unit.mean(axis=0) / np.linalg.norm(unit.mean(axis=0))
    raw = np.array([*np.log(reported[:2]), np.log(length), cosine, reported[2]]).T
    rows = np.clip(raw - raw.mean(axis=0), -6, 6)
    linear, first, bias, second, last = np.split(np.array(theta), np.cumsum([5, 5 * hidden, hidden, hidden]))
    score = rows @ linear + np.tanh(rows @ first.reshape(5, hidden) + bias) @ second + last[0]
    return np.log(1 + np.exp(score)) + 1e-6
