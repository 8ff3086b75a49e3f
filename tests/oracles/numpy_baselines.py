"""One round of the baselines on logistic regression, written out in NumPy without fljax.

Parameters and clients are those of ``numpy_round``. ``clients`` maps the ids of those who take part to their data and
batches; what a round changes goes in and comes out, and nothing is changed in place. Everything is in double precision.

Sources: FedProx, Algorithm 2; SCAFFOLD, Algorithm 1; Per-FedAvg, Algorithm 1; pFedMe, Algorithm 1; q-FFL, Algorithm 2;
AFL, Algorithm 1, and agnostic federated averaging; MW-Fed, "One for one, or all for all", section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.numpy_round import Client, Params, gradient, local_sgd, loss, probabilities

Clients = Mapping[int, Client]


# --- Arithmetic of parameters -------------------------------------------------------------------------------


def zeros(like: Params) -> Params:
    """Zeros of the shapes of ``like``."""
    return {name: np.zeros_like(leaf) for name, leaf in like.items()}


def plus(a: Params, b: Params, factor: float = 1.0) -> Params:
    """``a + factor b``."""
    return {name: a[name] + factor * b[name] for name in a}


def mixed(terms: Sequence[Params], weights: Sequence[float]) -> Params:
    """``sum_i weights_i terms_i`` of at least one term."""
    total = zeros(terms[0])
    for term, weight in zip(terms, weights, strict=True):
        total = plus(total, term, weight)
    return total


def mean(terms: Sequence[Params]) -> Params:
    """The plain mean."""
    return mixed(terms, [1 / len(terms)] * len(terms))


def square(params: Params) -> float:
    """The squared norm over all parameters together."""
    return float(sum((leaf**2).sum() for leaf in params.values()))


def moved(model: Params, ends: Sequence[Params], weights: Sequence[float], server_lr: float) -> Params:
    """``model + server_lr sum_k weights_k (end_k - model)``."""
    return plus(model, mixed([plus(end, model, -1) for end in ends], weights), server_lr)


def uniform(count: int) -> list[float]:
    """``count`` weights of sum 1."""
    return [1 / count] * count


def shares(clients: Mapping[int, Any], by_size: bool) -> list[float]:
    """Each client's share of the samples, or of the clients."""
    mass = [len(client.y) if by_size else 1 for client in clients.values()]
    return [each / sum(mass) for each in mass]


# --- FedProx ------------------------------------------------------------------------------------------------


def pulled(anchor: Params, strength: float) -> Callable[..., Params]:
    """The slope ``g(y) + strength (y - anchor)``."""
    return lambda y, *batch: plus(gradient(y, *batch), plus(y, anchor, -1), strength)


def fedprox_round(
    model: Params, clients: Clients, rate: float, mu: float, *, by_size: bool = True, server_lr: float = 1.0
) -> Params:
    """Every step is ``y <- y - rate (g(y) + mu (y - w))``; the server is FedAvg's."""
    ends = [local_sgd(model, client, rate, pulled(model, mu)) for client in clients.values()]
    return moved(model, ends, shares(clients, by_size), server_lr)


# --- SCAFFOLD -----------------------------------------------------------------------------------------------


class Scaffold(NamedTuple):
    """The server's model and variate c, and the clients' variates c_k by id (of all clients that have data)."""

    model: Params
    control: Params
    own: Mapping[int, Params]


def scaffold_round(
    state: Scaffold,
    clients: Clients,
    rate: float,
    option: str,
    *,
    sizes: Mapping[int, int] | None = None,
    server_lr: float = 1.0,
    factors: Mapping[int, float] = {},  # of the rate, by id
) -> Scaffold:
    """``y <- y - rate (g(y) - c_k + c)``, then both variates; c moves by the cohort's sum over ALL clients.

    Clients weigh the same, or by their ``sizes``.
    """
    mass = {id: 1 if sizes is None else sizes[id] for id in state.own}
    ends, own, change = [], dict(state.own), zeros(state.control)
    for id, client in clients.items():
        away, own_rate = plus(state.control, state.own[id], -1), rate * factors.get(id, 1.0)
        y = local_sgd(state.model, client, own_rate, lambda y, *batch, away=away: plus(gradient(y, *batch), away))
        if option == "I":
            own[id] = gradient(state.model, client.x, client.y)
        else:
            way = plus(state.model, y, -1)
            own[id] = plus(plus(state.own[id], state.control, -1), way, 1 / (len(client.batches) * own_rate))
        change = plus(change, plus(own[id], state.own[id], -1), mass[id])
        ends.append(y)
    shares = [mass[id] / sum(mass[each] for each in clients) for id in clients]
    model = moved(state.model, ends, shares, server_lr)
    return Scaffold(model, plus(state.control, change, 1 / sum(mass.values())), own)


# --- Per-FedAvg ---------------------------------------------------------------------------------------------


class Triples(NamedTuple):
    """A client of Per-FedAvg: every step has two or three batches."""

    x: np.ndarray
    y: np.ndarray
    batches: Sequence[Sequence[Sequence[int]]]


def hessian_times(params: Params, x: np.ndarray, direction: Params) -> Params:
    """Hessian of the mean cross-entropy times a direction: it does not depend on the labels.

    With ``p`` the probabilities and ``s = x v_w + v_b`` the change of the logits, that of p is ``p (s - sum_j p_j
    s_j)``.
    """
    chance = probabilities(params, x)
    change = x @ direction["w"] + direction["b"]
    change = chance * (change - (chance * change).sum(axis=1, keepdims=True))
    return {"w": x.T @ change / len(x), "b": change.mean(axis=0)}


def perfedavg_round(
    model: Params,
    clients: Mapping[int, Triples],
    rate: float,
    alpha: float,
    *,
    hessian: str = "none",
    delta: float = 1e-3,
    by_size: bool = False,
    server_lr: float = 1.0,
) -> Params:
    """``z = y - alpha g(y; B1)``, ``v = g(z; B2)``, ``y <- y - rate (v - alpha H(y; B3) v)``; mean of y."""
    ends = []
    for client in clients.values():
        y = model

        def slope(at: Params, rows: Sequence[int], client: Triples = client) -> Params:
            return gradient(at, client.x[rows], client.y[rows])

        for batches in client.batches:
            ahead = plus(y, slope(y, batches[0]), -alpha)
            v = slope(ahead, batches[1])
            if hessian == "exact":
                v = plus(v, hessian_times(y, client.x[batches[2]], v), -alpha)
            elif hessian == "difference":
                both = plus(slope(plus(y, v, delta), batches[2]), slope(plus(y, v, -delta), batches[2]), -1)
                v = plus(v, both, -alpha / (2 * delta))
            y = plus(y, v, -rate)
        ends.append(y)
    return moved(model, ends, shares(clients, by_size), server_lr)


# --- pFedMe -------------------------------------------------------------------------------------------------


def pfedme_round(
    model: Params,
    personal: Mapping[int, Params],
    clients: Clients,
    rate: float,
    *,
    regularisation: float,
    personal_rate: float,
    personal_steps: int,
    decay: float = 0.0,
    beta: float = 1.0,
    by_size: bool = False,
) -> tuple[Params, dict[int, Params]]:
    """K steps of ``theta <- theta - personal_rate (g(theta) + lambda (theta - y) + decay theta)`` for each batch.

    Then ``y <- y - rate lambda (y - theta)``. theta starts at the received model in the first of a round's batches and
    where it was in the others. The server: ``(1 - beta) w + beta mean y``. Also returns the personal models by id.
    """
    ends, kept = [], dict(personal)
    for id, client in clients.items():
        y = theta = model
        for rows in client.batches:
            for _ in range(personal_steps):
                slope = gradient(theta, client.x[rows], client.y[rows])
                slope = plus(plus(slope, plus(theta, y, -1), regularisation), theta, decay)
                theta = plus(theta, slope, -personal_rate)
            y = plus(y, plus(y, theta, -1), -rate * regularisation)
        kept[id] = theta
        ends.append(y)
    return mixed([model, mixed(ends, shares(clients, by_size))], [1 - beta, beta]), kept


# --- q-FFL --------------------------------------------------------------------------------------------------


def qffl_step(updates: Sequence[Params], losses: Sequence[float], rate: float, q: float) -> Params:
    """``-sum D_k / sum h_k`` with ``g_k = -update_k / rate``, straight from the definitions."""
    total, below = zeros(updates[0]), 0.0
    for update, value in zip(updates, losses, strict=True):
        value = max(value, 1e-10)
        g = mixed([update], [-1 / rate])
        total = plus(total, g, value**q)
        below += q * value ** (q - 1) * square(g) + value**q / rate
    return mixed([total], [-1 / below])


def qffl_round(
    model: Params, clients: Clients, rate: float, q: float, *, server_lr: float = 1.0
) -> tuple[Params, dict[int, float]]:
    """The new model, and each client's loss of the received one on all of its rows."""
    updates = [plus(local_sgd(model, client, rate), model, -1) for client in clients.values()]
    losses = {id: loss(model, client.x, client.y) for id, client in clients.items()}
    return plus(model, qffl_step(updates, list(losses.values()), rate, q), server_lr), losses


# --- AFL ----------------------------------------------------------------------------------------------------


class Afl(NamedTuple):
    """w, lambda [N] by id, the mean of w over the rounds so far, and their number."""

    model: Params
    mixture: np.ndarray
    average: Params
    rounds: int


def simplex(point: np.ndarray, mass: float = 1.0) -> np.ndarray:
    """Projection onto ``{x >= 0, sum x = mass}`` without sorting: ``max(point - t, 0)`` with t found by bisection."""
    point = np.asarray(point, float) - np.max(point)  # the projection does not change where all entries move alike
    low, high = -mass - 1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(point - middle, 0).sum() > mass:
            low = middle
        else:
            high = middle
    return np.maximum(point - (low + high) / 2, 0)


def afl_round(state: Afl, clients: Clients, rate: float, mixture_rate: float, *, server_lr: float = 1.0) -> Afl:
    """One gradient step on the mixture, then the mixture's own step; both at the old model, on the same batch.

    The lambda of clients that are absent is kept, and the rest is projected onto what is left; gradients weigh in
    proportion among those present.
    """
    ids = list(clients)
    slopes, losses = [], []
    for client in clients.values():
        (rows,) = client.batches
        slopes.append(gradient(state.model, client.x[rows], client.y[rows]))
        losses.append(loss(state.model, client.x[rows], client.y[rows]))
    mixture = np.array(state.mixture, float)
    left = mixture[ids].sum()
    model = plus(state.model, mixed(slopes, list(mixture[ids] / left)), -server_lr * rate)
    mixture[ids] = simplex(mixture[ids] + mixture_rate * np.array(losses), left)
    rounds = state.rounds + 1
    average = mixed([state.average, model], [state.rounds / rounds, 1 / rounds])
    return Afl(model, mixture, average, rounds)


def afl_model_round(state: Afl, clients: Clients, rate: float, mixture_rate: float, *, server_lr: float = 1.0) -> Afl:
    """``afl_round`` with the updates of whole local trainings in place of gradients.

    Losses are of the received model on the first batch. Those who were not drawn count as absent.
    """
    ids = list(clients)
    first = {id: client.batches[0] for id, client in clients.items()}
    losses = [loss(state.model, each.x[first[id]], each.y[first[id]]) for id, each in clients.items()]
    mixture = np.array(state.mixture, float)
    left = mixture[ids].sum()
    ends = [local_sgd(state.model, client, rate) for client in clients.values()]
    model = moved(state.model, ends, list(mixture[ids] / left), server_lr)
    mixture[ids] = simplex(mixture[ids] + mixture_rate * np.array(losses), left)
    rounds = state.rounds + 1
    average = mixed([state.average, model], [state.rounds / rounds, 1 / rounds])
    return Afl(model, mixture, average, rounds)


# --- MW-Fed -------------------------------------------------------------------------------------------------


def raised(weights: np.ndarray, unsatisfied: Sequence[int], factor: float) -> np.ndarray:
    """Multiplicative weights: ``W_k factor`` where unsatisfied, normalised over all clients."""
    grown = np.array(weights, float)
    grown[list(unsatisfied)] *= factor
    return grown / grown.sum()


def complaints(model: Params, clients: Clients, threshold: np.ndarray) -> list[int]:
    """Ids with ``F_k(w) >= threshold_k``."""
    return [id for id, client in clients.items() if loss(model, client.x, client.y) >= threshold[id]]


def mwfed_steps(weights: np.ndarray, selected: Sequence[int], usual: Mapping[int, int], most: int) -> dict[int, int]:
    """``tau_k = clip(round(tau |S| W_k / sum_S W_j), 1, most tau)``; tau by client, since epochs differ in steps."""
    part = weights[list(selected)].sum()
    return {
        id: int(np.clip(np.round(usual[id] * len(selected) * weights[id] / part), 1, most * usual[id]))
        for id in selected
    }


def mwfed_round(
    model: Params,
    weights: np.ndarray,
    clients: Clients,
    rate: float,
    threshold: np.ndarray,
    steps: Mapping[int, int],
    *,
    factor: float = 2.0,
    server_lr: float = 1.0,
) -> tuple[Params, np.ndarray]:
    """Local steps: client k takes the first ``steps[k]`` of its batches. Complaints are of the received model."""
    ends = [
        local_sgd(model, client._replace(batches=client.batches[: steps[id]]), rate) for id, client in clients.items()
    ]
    unhappy = complaints(model, clients, threshold)
    return moved(model, ends, uniform(len(ends)), server_lr), raised(weights, unhappy, factor)


def mwfed_samples(weights: np.ndarray, batch_size: int, population: int) -> np.ndarray:
    """``round(W_k b M)``, with M the number of clients that have data."""
    return np.round(weights * batch_size * population).astype(int)


def mwfed_pooled_round(
    model: Params,
    weights: np.ndarray,
    clients: Clients,
    rate: float,
    threshold: np.ndarray,
    *,
    factor: float = 2.0,
    server_lr: float = 1.0,
) -> tuple[Params, np.ndarray]:
    """One gradient step on the samples of all clients together: each one's only batch, which may repeat rows."""
    x = np.concatenate([client.x[client.batches[0]] for client in clients.values()])
    y = np.concatenate([client.y[client.batches[0]] for client in clients.values()])
    unhappy = complaints(model, clients, threshold)
    return plus(model, gradient(model, x, y), -server_lr * rate), raised(weights, unhappy, factor)
