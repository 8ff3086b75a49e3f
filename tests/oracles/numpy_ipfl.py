"""Rounds of IP-FL on softmax regression, written out in NumPy with loops, without fljax.

Random numbers are given as ``[N, C]``: those of a draw, and lots, of which the smallest is first where values tie.
Parameters are as in ``numpy_round``.

Source: IP-FL, Algorithms 1 and 2, equations (7)-(13), appendix H.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from tests.oracles import numpy_round

Params = dict[str, np.ndarray]


class Rules(NamedTuple):
    """Hyper-parameters by the spec's symbols."""

    slots: int
    bid: str = "threshold"
    price: int | tuple[int, ...] = 1  # by cluster
    integer: bool = True
    ranked: str = "members"
    random_slots: int | None = None
    fill: int | None = 10
    normalised: bool = True
    importance: str = "least_loss"
    profile_on: str = "matched"
    least_gain: float | None = None


class Books(NamedTuple):
    """T_k, P_c, Amax_c, phi_kc, n_kc, who trained in the last round, and what clients gained by a cluster."""

    tokens: np.ndarray
    pools: np.ndarray
    best: np.ndarray
    phi: np.ndarray
    count: np.ndarray
    members: list[list[int]]
    gained: np.ndarray | None = None


def accuracies(models: list[Params], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``a_kc`` of one client."""
    return np.array([np.mean(numpy_round.probabilities(model, x).argmax(axis=1) == y) for model in models])


def worth(models: list[Params], x: np.ndarray, y: np.ndarray, rule: str) -> np.ndarray:
    """What one client bids and weighs by: accuracies, FedSoft's shares of rows, or the most accurate model alone."""
    accuracy = accuracies(models, x, y)
    if rule == "accuracy":
        return accuracy
    losses = np.array([-np.log(numpy_round.probabilities(model, x)[np.arange(len(y)), y]) for model in models])
    if rule == "argmax":
        best = max(range(len(models)), key=lambda c: (accuracy[c], -losses[c].mean()))
        return np.array([float(c == best) for c in range(len(models))])
    count = np.zeros(len(models))
    for row in losses.T:
        count[np.flatnonzero(row == row.min())] += 1 / np.sum(row == row.min())
    return count / len(y)


def importance(worth: np.ndarray) -> np.ndarray:
    """``u_k`` of one client, equation (7)."""
    return worth / worth.sum() if worth.sum() > 0 else np.full(len(worth), 1 / len(worth))


def personalised(models: list[Params], worth: np.ndarray) -> Params:
    """Equation (8)."""
    shares = importance(worth)
    return {name: np.tensordot(shares, np.stack([m[name] for m in models]), 1) for name in models[0]}


def down(amount: float, integer: bool) -> Any:
    """A whole number of tokens, if they are whole."""
    return math.floor(amount + 1e-9) if integer else amount


def settle(
    books: Books, accuracy: dict[int, np.ndarray], by_phi: np.ndarray, by_count: np.ndarray, rules: Rules
) -> Books:
    """Equations (9)-(13) for the members of the last round; ``by_phi`` and ``by_count`` are lots."""
    tokens, pools, best = books.tokens.copy(), books.pools.copy(), books.best.copy()
    gained = np.zeros(books.phi.shape) if books.gained is None else books.gained.copy()
    for c, members in enumerate(books.members):
        before = tokens.copy()
        for k in members:
            tokens[k] -= cost(c, rules)
            pools[c] += cost(c, rules)
        gained[:, c] -= before - tokens
        before = tokens.copy()
        if not members:
            continue
        mean = np.mean([accuracy[k][c] for k in members])
        if best[c] > 0:
            utility = min(max((mean - best[c]) / best[c], 0), 1)
            each = down(down(pools[c] * (1 - utility), rules.integer) / len(members), rules.integer)
            for k in members:
                tokens[k] += each
                pools[c] -= each
        best[c] = max(best[c], mean)
        n, pool = len(members), pools[c]
        for place, k in enumerate(sorted(members, key=lambda k: (-books.phi[k, c], by_phi[k, c]))):
            given = down((n - place) * pool / (n * (n + 1)), rules.integer)
            tokens[k] += given
            pools[c] -= given
        ranked = members if rules.ranked == "members" else range(len(tokens))
        n, pool = len(ranked), pools[c]
        for place, k in enumerate(sorted(ranked, key=lambda k: (-books.count[k, c], by_count[k, c]))):
            given = down((n - place) * pool / (n * (n + 1) / 2), rules.integer)
            tokens[k] += given
            pools[c] -= given
        gained[:, c] += tokens - before
    return books._replace(tokens=tokens, pools=pools, best=best, members=[[] for _ in books.members], gained=gained)


def willing(books: Books, k: int, c: int, rules: Rules) -> bool:
    """Whether what a client gained by a cluster, for each time it trained for it, lets it bid again."""
    if rules.least_gain is None or books.count[k, c] == 0:
        return True
    assert books.gained is not None
    return bool(books.gained[k, c] / books.count[k, c] >= rules.least_gain)


def bids(
    books: Books, worth: dict[int, np.ndarray], draw: np.ndarray, lot: np.ndarray, rules: Rules
) -> list[list[int]]:
    """Who bids for each cluster: Algorithm 2, as far as tokens go."""
    clusters = len(books.pools)
    found: list[list[int]] = [[] for _ in range(clusters)]
    for k in sorted(worth):
        u = importance(worth[k])
        if rules.bid == "threshold":
            wanted = [c for c in range(clusters) if u[c] >= 1 / clusters - 1e-6]
        elif rules.bid == "argmax":
            wanted = [min(range(clusters), key=lambda c: (-u[c], lot[k, c]))]
        else:
            wanted = [int(np.argmax(draw[k]))]
        for c in affordable(sorted(wanted, key=lambda c: (-u[c], lot[k, c])), books.tokens[k], rules):
            found[c] += [k] * willing(books, k, c, rules)
    return found


def cost(c: int, rules: Rules) -> int:
    """The price of cluster c."""
    return rules.price[c] if isinstance(rules.price, tuple) else rules.price


def affordable(clusters: list[int], tokens: float, rules: Rules) -> list[int]:
    """The clusters, in this order, whose prices the tokens still cover; the others are passed over."""
    taken: list[int] = []
    for c in clusters:
        if sum(cost(other, rules) for other in [*taken, c]) <= tokens:
            taken.append(c)
    return taken


def candidates(
    books: Books, worth: dict[int, np.ndarray], draw: np.ndarray, lot: np.ndarray, t: int, rules: Rules
) -> tuple[list[list[int]], list[bool]]:
    """Bidders, and in clusters without any those whom chance may ask and who can pay for it."""
    found = bids(books, worth, draw, lot, rules) if t > 0 else [[] for _ in books.pools]
    at_random = [not who and (t == 0 or rules.fill is None or t < rules.fill) for who in found]
    for k in sorted(worth):
        left = books.tokens[k] - sum(cost(c, rules) for c, who in enumerate(found) if k in who)
        open_to = [c for c in range(len(found)) if at_random[c] and willing(books, k, c, rules)]
        asked = sorted(open_to, key=lambda c, k=k: (-draw[k, c], c))
        for c in affordable(asked, left, rules):
            found[c].append(k)
    return found, at_random


def schedule(
    books: Books,
    found: list[list[int]],
    at_random: list[bool],
    draw: np.ndarray,
    lot: np.ndarray,
    eligible: int,
    rules: Rules,
) -> list[list[int]]:
    """K_p by contribution, K_r at random."""
    chosen = []
    for c, who in enumerate(found):
        unexplored = sum(books.count[k, c] == 0 for k in range(len(books.tokens))) - (len(books.tokens) - eligible)
        share = max(0.2, 0.9 * unexplored / eligible)
        random_slots = math.ceil(share * rules.slots - 1e-6) if rules.random_slots is None else rules.random_slots
        random_slots = rules.slots if at_random[c] else random_slots
        phi = np.where(books.count[:, c] > 0, books.phi[:, c], 0)
        merit = lambda k, c=c, phi=phi: (books.count[k, c] == 0, -phi[k], lot[k, c])  # noqa: E731
        top = sorted(who, key=merit)[: rules.slots - random_slots]
        rest = sorted((k for k in who if k not in top), key=lambda k, c=c: -draw[k, c])
        chosen.append(top + rest[: rules.slots - len(top)])
    return chosen


def aggregate(
    models: list[Params],
    books: Books,
    trained: list[dict[int, tuple[Params, int]]],
    held: dict[str, tuple[np.ndarray, np.ndarray]],
    judged: dict[int, tuple[np.ndarray, np.ndarray]],
    rules: Rules,
) -> tuple[list[Params], Books]:
    """``trained[c][k]``: a member's new model and its samples; contributions by appendix H.

    ``held`` are the server's rows by name, ``judged`` the validation rows of each client.
    """
    phi, count, new = books.phi.copy(), books.count.copy(), []
    for c, members in enumerate(trained):
        mean = models[c]
        if members:
            alpha = np.array([size for _, size in members.values()]) / sum(size for _, size in members.values())
            mean = {n: np.tensordot(alpha, np.stack([m[n] for m, _ in members.values()]), 1) for n in models[c]}
        new.append(mean)
    slopes = profile(models, new, trained, held, judged, rules)
    for c, members in enumerate(trained):
        total, mean, slope = sum(size for _, size in members.values()), new[c], slopes[c]
        for k, (model, size) in members.items():
            other = mean if rules.normalised else {name: 0 * leaf for name, leaf in mean.items()}
            phi[k, c] = -size / total * sum(np.sum(slope[n] * (model[n] - other[n])) for n in mean)
            count[k, c] += 1
    return new, books._replace(phi=phi, count=count, members=[sorted(members) for members in trained])


def profile(
    before: list[Params],
    after: list[Params],
    trained: list[dict[int, tuple[Params, int]]],
    held: dict[str, tuple[np.ndarray, np.ndarray]],
    judged: dict[int, tuple[np.ndarray, np.ndarray]],
    rules: Rules,
) -> list[Params]:
    """The gradient of each cluster's model on the rows that stand for it."""
    if rules.profile_on == "members":
        found = []
        for model, members in zip(before, trained, strict=True):
            parts = [(len(judged[k][1]), numpy_round.gradient(model, *judged[k])) for k in members]
            total = max(sum(n for n, _ in parts), 1)
            found.append({name: sum((n * g[name] for n, g in parts), 0 * model[name]) / total for name in model})
        return found
    if rules.profile_on == "distributions":
        sets = [rows for name, rows in sorted(held.items()) if name.startswith("distribution_")]
        loss = lambda c, d: row_losses(after[c], *sets[d]).mean()  # noqa: E731
        orders = itertools.permutations(range(len(sets)), len(after))
        best = min(orders, key=lambda order: sum(loss(c, d) for c, d in enumerate(order)))
        return [numpy_round.gradient(model, *sets[d]) for model, d in zip(after, best, strict=True)]
    if rules.profile_on != "matched":
        return [numpy_round.gradient(model, *held[rules.profile_on]) for model in after]
    x, y = held["validation"]
    losses = np.stack([row_losses(model, x, y) for model in after])
    least = losses == losses.min(axis=0)
    found = []
    for c, model in enumerate(after):
        weight = least[c] / least.sum(axis=0)
        weight = weight if weight.sum() > 0 else np.ones(len(y))
        each = [numpy_round.gradient(model, x[[row]], y[[row]]) for row in range(len(y))]
        found.append({n: np.average([g[n] for g in each], axis=0, weights=weight) for n in model})
    return found


def row_losses(model: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -np.log(numpy_round.probabilities(model, x)[np.arange(len(y)), y])
