"""The toy algorithms of tests/toys as plain NumPy loops, one client after another.

``available[t]`` is the list of ids that can take part in round t (all of them do); ``batches(round, id, slot)`` gives
the positions of each step; ``train``, ``valid`` are lists of ``(x, y)`` by id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.oracles.logistic_regression import Params, add, combine, loss_and_accuracy, sgd

Rows = Sequence[tuple[np.ndarray, np.ndarray]]
Batches = Callable[[int, int, int], Sequence[np.ndarray]]


def models_per_client(
    start: Params,
    train: Rows,
    available: Sequence[Sequence[int]],
    batches: Batches,
    learning_rate: float,
    contribution: Sequence[float],
    recovered: Sequence[Any],
) -> tuple[list[Params], Params]:
    """Models by id, and the reference."""
    models, reference = [start for _ in train], start
    for round, present in enumerate(available):
        models = [reference if recovered[round][i] and present else model for i, model in enumerate(models)]
        trained = {k: sgd(models[k], *train[k], batches(round, k, 0), learning_rate) for k in present}
        update = {k: add(trained[k], models[k], -1) for k in present}
        if not present:
            continue
        moved = []
        for i, model in enumerate(models):
            weight = np.array([1.0 if k == i else contribution[i] / max(contribution) for k in present])
            moved.append(add(model, combine(weight / weight.sum(), [update[k] for k in present], model)))
        models = moved
        reference = add(reference, combine([1 / len(present)] * len(present), list(update.values()), reference))
    return models, reference


def clusters(
    start: Sequence[Params],
    train: Rows,
    valid: Rows,
    available: Sequence[Sequence[int]],
    batches: Batches,
    learning_rate: float,
    price: float,
    poll_every: int,
) -> tuple[list[Params], np.ndarray, list[tuple[int, int]]]:
    """Cluster models, tokens, and the extra (client, slot) of every round."""
    models, tokens, extra = list(start), np.zeros(len(train)), []
    ballots = np.zeros((2, len(train), len(start)))
    for round, present in enumerate(available):
        if round % poll_every == 0:
            for k in present:
                ballots[:, k] = np.transpose([loss_and_accuracy(model, *valid[k]) for model in models])
        best = ballots[0].argmin(axis=1)
        for k in present:
            tokens[k] += price * ballots[1, k, best[k]]
        seats = [(k, int(best[k])) for k in present]
        if present:
            richest = max(present, key=lambda k: (tokens[k], -k))
            extra.append((richest, int(best[richest] + 1) % len(models)))
            seats.append(extra[-1])
        moved = []
        for c, model in enumerate(models):
            members = [k for k, slot in seats if slot == c]
            updates = [add(sgd(model, *train[k], batches(round, k, c), learning_rate), model, -1) for k in members]
            sizes = np.array([len(train[k][1]) for k in members], float)
            moved.append(add(model, combine(sizes / sizes.sum(), updates, model)) if members else model)
        models = moved
    return models, tokens, extra


def control_variates(
    start: Params,
    train: Rows,
    available: Sequence[Sequence[int]],
    batches: Batches,
    learning_rate: float,
) -> tuple[Params, Params, list[Params]]:
    """The model, the server's control variate, and the clients' ones by id."""
    zero = combine([], [], start)
    model, control, own = start, zero, [zero for _ in train]
    for round, present in enumerate(available):
        updates, changes = [], []
        for k in present:
            steps = batches(round, k, 0)
            trained = sgd(model, *train[k], steps, learning_rate, correction=add(control, own[k], -1))
            updates.append(add(trained, model, -1))
            fresh = add(add(own[k], control, -1), updates[-1], -1 / (len(steps) * learning_rate))
            changes.append(add(fresh, own[k], -1))
            own[k] = fresh
        if present:
            share = [1 / len(present)] * len(present)
            model = add(model, combine(share, updates, model))
            control = add(control, combine([1 / len(train)] * len(present), changes, control))
    return model, control, own
