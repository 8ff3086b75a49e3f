"""One round of IAFL, CGSV, Rank and LG-FedAvg on logistic regression, written out in NumPy without fljax.

As in numpy_round: parameters are ``{"w": [d, K], "b": [K]}``, and only clients that take part are passed, by id. What
is drawn at random (batches, subsets, who recovers) is given. Everything is in double precision.

Source: IAFL, Algorithm 1 and Procedure 2; CGSV, Algorithm 1; LG-FedAvg, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.oracles.numpy_round import Client, Params, added, local_sgd, probabilities


def updates(models: Sequence[Params], clients: Mapping[int, Client], rate: float) -> dict[int, Params]:
    """New minus old of every client that takes part, from its own model."""
    found = {}
    for id, client in clients.items():
        new = local_sgd(models[id], client, rate)
        found[id] = {name: new[name] - models[id][name] for name in new}
    return found


def mean(moves: Sequence[Params]) -> Params:
    """Plain mean."""
    return {name: np.sum([move[name] for move in moves], axis=0) / len(moves) for name in moves[0]}


def iafl_rates(contribution: Sequence[float], ceiling: float, kappa: float) -> list[float]:
    """Equation (1)."""
    return [min(p / ceiling, 1) ** (1 - kappa) for p in contribution]


def subset_sizes(rates: Sequence[float], present: Sequence[bool]) -> list[int]:
    """|S_k|: ceil(gamma_k (J - 1)) of the others that are present, and the client itself if it is present."""
    joined = sum(present)
    sizes = []
    for rate, own in zip(rates, present, strict=True):
        others = joined - own
        product = rate * (joined - 1)
        nearest = round(product)
        needed = nearest if abs(product - nearest) < 1e-6 else math.ceil(product)
        sizes.append(max(0, min(needed, others)) + own)
    return sizes


def iafl_round(
    models: Sequence[Params],
    reference: Params,
    clients: Mapping[int, Client],
    rate: float,
    subsets: Sequence[Sequence[int]],
    reference_subset: Sequence[int],
    recovered: Sequence[bool],
) -> tuple[list[Params], Params]:
    """Local training, rewards, recovery: (models, reference)."""
    moves = updates(models, clients, rate)
    after = []
    for model, subset in zip(models, subsets, strict=True):
        after.append(added(model, [mean([moves[j] for j in subset])], np.ones(1)) if subset else model)
    if reference_subset:
        reference = added(reference, [mean([moves[j] for j in reference_subset])], np.ones(1))
    return [reference if gone else model for model, gone in zip(after, recovered, strict=True)], reference


def _flat(move: Params) -> np.ndarray:
    return np.concatenate([move[name].ravel() for name in sorted(move)])


def cgsv_round(
    models: Sequence[Params],
    server: Params,
    reputation: np.ndarray,
    weight: np.ndarray,
    clients: Mapping[int, Client],
    rate: float,
    *,
    length: float,
    alpha: float,
    beta: float,
) -> tuple[list[Params], Params, np.ndarray]:
    """(models, server's model, reputations) of all clients; ``weight`` is a_k."""
    moves = updates(models, clients, rate)
    unit = {}
    for id, move in moves.items():
        norm = np.linalg.norm(_flat(move))
        unit[id] = {name: length * leaf / (norm + 1e-7) for name, leaf in move.items()}
    total = {name: np.sum([weight[id] * unit[id][name] for id in unit], axis=0) for name in server}
    u = _flat(total)
    new = np.zeros(len(models))
    for id in range(len(models)):
        cosine = 0.0
        if id in unit:
            own = _flat(unit[id])
            cosine = own @ u / max(np.linalg.norm(own) * np.linalg.norm(u), 1e-10)
        new[id] = max(alpha * reputation[id] + (1 - alpha) * cosine, 1e-3)
    new /= new.sum()
    share = np.tanh(beta * new) / np.tanh(beta * new).max()
    after = []
    for model, part in zip(models, share, strict=True):
        reward = {}
        for name, leaf in total.items():
            keep = math.ceil(part * leaf.size - 1e-9)
            ranked = sorted(range(leaf.size), key=lambda i, leaf=leaf: (-abs(leaf.ravel()[i]), i))
            sparse = np.zeros(leaf.size)
            for i in ranked[:keep]:
                sparse[i] = leaf.ravel()[i]
            reward[name] = sparse.reshape(leaf.shape)
        after.append(added(model, [reward], np.ones(1)))
    return after, added(server, [total], np.ones(1)), new


class Known(NamedTuple):
    """What the server knows of contributions: ``r_k``, rounds in which a client took part, and who was shut out."""

    contribution: np.ndarray
    rounds: np.ndarray
    filtered: np.ndarray


def cosines(moves: Mapping[int, np.ndarray], normalised: bool) -> dict[int, float]:
    """The cosine of each flat update with the sum of all, or with the sum of all divided by their lengths."""
    lengths = {id: np.linalg.norm(move) for id, move in moves.items()}
    total = np.sum([move / (lengths[id] if normalised and lengths[id] else 1) for id, move in moves.items()], axis=0)
    found = {}
    for id, move in moves.items():
        product = lengths[id] * np.linalg.norm(total)
        found[id] = float(move @ total / product) if product else 0.0
    return found


def contributions_round(
    known: Known,
    scores: Mapping[int, float],
    memory: float,
    below: float | None = None,
    after: int = 0,
    accumulated: bool = False,
) -> Known:
    """CGSV's recursion or a sum for the clients with a score, and RFFL's rule of shutting out in terms of the mean."""
    contribution, rounds, filtered = (part.copy() for part in known)
    for id, score in scores.items():
        contribution[id] = memory * contribution[id] + (1 if accumulated else 1 - memory) * score
        rounds[id] += 1
    inside = [id for id in range(len(rounds)) if rounds[id] and not filtered[id]]
    mean = np.mean(contribution[inside]) if inside else 0.0
    for id in scores:
        if below is not None and mean > 0 and rounds[id] > after and contribution[id] < below * mean:
            filtered[id] = True
    return Known(contribution, rounds, filtered)


def rank_round(
    models: Sequence[Params], clients: Mapping[int, Client], rate: float, x: np.ndarray, y: np.ndarray
) -> tuple[list[Params], list[float]]:
    """(models, scores): ascending by accuracy on ``x, y`` after training, ties by id."""
    moves = updates(models, clients, rate)
    still = {name: np.zeros_like(leaf) for name, leaf in models[0].items()}
    every = [moves.get(id, still) for id in range(len(models))]
    trained = [added(model, [move], np.ones(1)) for model, move in zip(models, every, strict=True)]
    score = [float((probabilities(model, x).argmax(axis=1) == y).mean()) for model in trained]
    order = sorted(range(len(models)), key=lambda id: (score[id], id))
    after = list(models)
    for place, id in enumerate(order):
        after[id] = added(models[id], [mean([every[j] for j in order[: place + 1]])], np.ones(1))
    return after, score


def lg_fedavg_round(
    models: Sequence[Params], clients: Mapping[int, Client], rate: float, shared: Sequence[str]
) -> list[Params]:
    """Every client's model after the round; all agree in what is shared."""
    moves = updates(models, clients, rate)
    step = mean(list(moves.values())) if moves else None
    after = []
    for id, model in enumerate(models):
        new = dict(model)
        for name in model:
            if name in shared:
                new[name] = model[name] + (step[name] if step else 0)
            elif id in moves:
                new[name] = model[name] + moves[id][name]
        after.append(new)
    return after
