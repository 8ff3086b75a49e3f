"""One round of methods with models of clients' own, written out in NumPy without fljax.

Parameters and clients are those of ``numpy_round``, where ``w`` is the body and ``b`` the head; FedProto's have two
layers, ``{"inner": [d, z], "head": [z, K]}``. ``clients`` maps the ids of those who take part to their data and
batches; what a round changes goes in and comes out, and nothing is changed in place. Everything is in double precision.

Sources: Ditto, Algorithm 1; FedPer, Algorithms 1 and 2; FedRep, Algorithm 1; FedBABU, Algorithm 1; APFL, Algorithm 1
and section 4.3; FedALA, Algorithm 1; FedFomo, equations 3 and 4; FedProto, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.oracles.numpy_baselines import Clients, mixed, plus, pulled, shares, square
from tests.oracles.numpy_round import Client, Params, fedavg_round, gradient, local_sgd, loss


def ditto_round(
    model: Params,
    personal: Mapping[int, Params],
    clients: Clients,
    own: Clients,
    rate: float,
    personal_rate: float,
    regularisation: float,
    *,
    by_size: bool = True,
) -> tuple[Params, dict[int, Params]]:
    """``v <- v - personal_rate (g(v) + lambda (v - w))`` with the RECEIVED w; the global model is FedAvg's.

    ``own`` has the batches of the personal stream.
    """
    kept = dict(personal)
    for id, client in own.items():
        kept[id] = local_sgd(personal[id], client, personal_rate, pulled(model, regularisation))
    return fedavg_round(model, list(clients.values()), rate, by_size=by_size), kept


class Heads(NamedTuple):
    """The body, which all share, and each client's own head by id."""

    body: np.ndarray
    heads: Mapping[int, np.ndarray]

    def model(self, id: int) -> Params:
        """The whole model of one client."""
        return {"w": self.body, "b": self.heads[id]}


def descended(model: Params, client: Client, rate: float, moving: str) -> Params:
    """Plain SGD of the ``moving`` tensors alone."""
    held = {name: float(name in moving) for name in model}
    return local_sgd(model, client, rate, lambda *at: {name: held[name] * leaf for name, leaf in gradient(*at).items()})


def heads_round(state: Heads, phases: Sequence[tuple[str, Clients]], rate: float, by_size: bool) -> Heads:
    """Clients train the tensors of each phase on its batches; then the mean of the bodies, and each one's own head."""
    ends = {id: state.model(id) for id in phases[0][1]}
    for moving, clients in phases:
        ends = {id: descended(end, clients[id], rate, moving) for id, end in ends.items()}
    bodies = mixed([{"w": end["w"]} for end in ends.values()], shares(phases[0][1], by_size))
    return Heads(bodies["w"], {**state.heads, **{id: end["b"] for id, end in ends.items()}})


class Apfl(NamedTuple):
    """A client's own model v, and its share alpha of the mixture."""

    own: Params
    alpha: float

    def mixture(self, model: Params) -> Params:
        """``alpha v + (1 - alpha) w``."""
        return mixed([self.own, model], [self.alpha, 1 - self.alpha])


def apfl_round(
    model: Params, states: Mapping[int, Apfl], clients: Clients, rate: float, *, adaptive: bool, by_size: bool
) -> tuple[Params, dict[int, Apfl]]:
    """``w`` takes a step, then ``v <- v - rate alpha g(alpha v + (1 - alpha) w)`` on the same batch.

    If ``adaptive``, alpha moves before a round's first step, by the gradient on the first batch.
    """
    after, ends = dict(states), []
    for id, client in clients.items():
        w, own = model, states[id]
        if adaptive:
            rows = client.batches[0]
            slope, away = gradient(own.mixture(w), client.x[rows], client.y[rows]), plus(own.own, w, -1)
            product = sum(float((slope[name] * away[name]).sum()) for name in w)
            own = own._replace(alpha=min(max(own.alpha - rate * product, 0.0), 1.0))
        for rows in client.batches:
            x, y = client.x[rows], client.y[rows]
            w = plus(w, gradient(w, x, y), -rate)
            own = own._replace(own=plus(own.own, gradient(own.mixture(w), x, y), -rate * own.alpha))
        after[id] = own
        ends.append(w)
    return mixed(ends, shares(clients, by_size)), after


class Ala(NamedTuple):
    """A client's local model, its weights for the top tensors by name, and whether it has learned them before."""

    model: Params
    weights: Params
    learned: bool


def ala_start(received: Params, own: Ala) -> Params:
    """Lower tensors as received; of the top ones ``theta + (w - theta) W``."""
    top = {name: own.model[name] + (received[name] - own.model[name]) * weight for name, weight in own.weights.items()}
    return {**received, **top}


def ala_learned(
    received: Params, own: Ala, client: Client, epochs: Iterable[Sequence[Sequence[int]]], rate: float
) -> tuple[Ala, int]:
    """W after learning and the epochs that it took, of ``epochs``, which end where an epoch too many would begin."""
    if all((received[name] == own.model[name]).all() for name in received):
        return own, 0
    losses = []
    for batches in epochs:
        total = 0.0
        for rows in batches:
            theta = ala_start(received, own)
            x, y = client.x[rows], client.y[rows]
            slope, total = gradient(theta, x, y), total + loss(theta, x, y) * len(rows)
            weights = {
                name: np.clip(weight - rate * slope[name] * (received[name] - own.model[name]), 0, 1)
                for name, weight in own.weights.items()
            }
            own = own._replace(weights=weights)
        losses.append(total / sum(map(len, batches)))
        # As the authors' library: it looks at the last 10 losses once there are more than 10.
        if own.learned or (len(losses) > 10 and np.std(losses[-10:]) < 0.1):
            break
    return own._replace(learned=True), len(losses)


def fedala_round(
    model: Params,
    states: Mapping[int, Ala],
    clients: Clients,
    epochs: Mapping[int, Iterable[Sequence[Sequence[int]]]],
    rate: float,
    weight_rate: float,
) -> tuple[Params, dict[int, Ala], dict[int, int]]:
    """Every client learns W, trains from where it leads, and keeps what it trained; the server weighs by size."""
    after, ends, taken = dict(states), {}, {}
    for id, client in clients.items():
        own, taken[id] = ala_learned(model, states[id], client, epochs[id], weight_rate)
        ends[id] = local_sgd(ala_start(model, own), client, rate)
        after[id] = own._replace(model=ends[id])
    sizes = np.array([len(client.y) for client in clients.values()], float)
    return mixed(list(ends.values()), list(sizes / sizes.sum())), after, taken


class Fomo(NamedTuple):
    """Every client's last model, the affinity, who has uploaded a model, and where everybody's last training began."""

    models: Sequence[Params]
    affinity: np.ndarray  # [N, N]
    uploaded: Sequence[bool]
    before: Sequence[Params]


def fomo_received(state: Fomo, id: int, most: int) -> list[int]:
    """Whose models client ``id`` is sent: of those uploaded the largest affinities, ties by id."""
    there = [other for other, uploaded in enumerate(state.uploaded) if uploaded]
    return sorted(there, key=lambda other: (-state.affinity[id, other], other))[:most]


def fomo_start(
    before: Params, own: Params, candidates: Sequence[Params], judge: Callable[[Params], float]
) -> tuple[Params, list[float]]:
    """``before + sum_n a_n (theta_n - before)``, or ``own`` where no candidate is better; and the weights as they are.

    The weights are ``(L(before) - L(theta_n)) / (||theta_n - before|| + 1e-5)``; a is their positive part, normalised.
    """
    distance = [np.sqrt(square(plus(other, before, -1))) for other in candidates]
    weights = [(judge(before) - judge(other)) / (far + 1e-5) for other, far in zip(candidates, distance, strict=True)]
    positive = np.maximum(weights, 0)
    if not positive.sum():
        return own, weights
    away = [plus(other, before, -1) for other in candidates]
    return plus(before, mixed(away, list(positive / positive.sum()))), weights


def fedfomo_round(
    state: Fomo, clients: Clients, valid: Mapping[int, tuple[np.ndarray, np.ndarray]], rate: float, most: int
) -> tuple[Fomo, dict[int, dict[int, float]]]:
    """One round, and each client's weights by candidate: the models sent, and its own trained one if it has one."""
    models, affinity, uploaded = list(state.models), state.affinity.copy(), list(state.uploaded)
    before, given = list(state.before), {}
    for id, client in clients.items():
        candidates: list[int] = sorted({*fomo_received(state, id, most), *([id] if state.uploaded[id] else [])})
        x, y = valid[id]
        start, weights = fomo_start(
            state.before[id],
            state.models[id],
            [state.models[other] for other in candidates],
            lambda model, x=x, y=y: loss(model, x, y),
        )
        given[id] = dict(zip(candidates, weights, strict=True))
        for other, weight in given[id].items():
            affinity[id, other] += weight
        models[id], uploaded[id], before[id] = local_sgd(start, client, rate), True, start
    return Fomo(models, affinity, uploaded, before), given


def representation(params: Params, x: np.ndarray) -> np.ndarray:
    """``tanh(x inner)``."""
    return np.tanh(x @ params["inner"])


def class_means(params: Params, x: np.ndarray, y: np.ndarray) -> dict[int, np.ndarray]:
    """Mean representation of each class that occurs."""
    z = representation(params, x)
    return {int(j): z[y == j].mean(axis=0) for j in np.unique(y)}


def proto_gradient(
    params: Params, x: np.ndarray, y: np.ndarray, prototypes: Mapping[int, np.ndarray], regularisation: float
) -> Params:
    """Of ``mean(CE + lambda mean_z (rep - Cbar_y)^2)``, the second term only where the class has a prototype."""
    z = representation(params, x)
    logits = z @ params["head"]
    error = np.exp(logits - logits.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    back = error @ params["head"].T
    for row, label in enumerate(y):
        if int(label) in prototypes:
            back[row] += regularisation * 2 / z.shape[1] * (z[row] - prototypes[int(label)])
    return {"inner": x.T @ (back * (1 - z**2)) / len(y), "head": z.T @ error / len(y)}


def fedproto_round(
    models: Sequence[Params],
    prototypes: Mapping[int, np.ndarray],
    clients: Clients,
    rate: float,
    regularisation: float,
    *,
    by_count: bool = True,
) -> tuple[list[Params], dict[int, np.ndarray]]:
    """Models by id, and the prototypes of the classes that are known."""
    after, sums, mass = list(models), {}, {}
    for id, client in clients.items():
        slope = lambda params, x, y: proto_gradient(params, x, y, prototypes, regularisation)  # noqa: E731
        model = local_sgd(models[id], client, rate, slope)
        after[id] = model
        for label, mean in class_means(model, client.x, client.y).items():
            weight = int((client.y == label).sum()) if by_count else 1
            sums[label] = sums.get(label, 0) + weight * mean
            mass[label] = mass.get(label, 0) + weight
    return after, {**prototypes, **{label: sums[label] / mass[label] for label in sums}}


def nearest(params: Params, x: np.ndarray, prototypes: Mapping[int, np.ndarray]) -> np.ndarray:
    """``[b, known]`` squared distances to the prototypes, in the order of their classes."""
    known = np.stack([prototypes[label] for label in sorted(prototypes)])
    return ((representation(params, x)[:, None] - known[None]) ** 2).sum(axis=2)
