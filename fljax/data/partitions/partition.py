"""Partitioners: pure functions of labels and a ``seed`` to the rows of every client. The registry is PARTITIONERS.

Clients that mix several source distributions are as in the experiments of "IP-FL: Incentivized and Personalized
Federated Learning", and of Ruan and Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local
Updating", AAAI 2022.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from fljax.core.names import unknown
from fljax.core.values import Count, CountOrZero, PositiveFloat, Range, checked
from fljax.data.arrays import check_count, check_fraction
from fljax.data.partitions.assignment import (
    Partition,
    begin,
    check_class_labels,
    count_classes,
    cut,
    draw_groups,
    owners_left,
    relative_order,
    repair,
    require,
    rows_by_owner,
    take,
)

# The largest number of draws when a client has too few rows; afterwards ``repair`` moves rows, or an error is raised.
_DRAWS = 100


@checked
def iid(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    stratified: bool = False,
) -> Partition:
    """Assigns all rows evenly at random; sizes differ by at most 1.

    Args:
      labels: ``[n]``.
      clients: number of seen clients.
      unseen: number of unseen clients.
      seed: seed of the draw.
      minimum: least rows per client.
      stratified: also divide each class evenly: counts per class differ by at most 1.

    Raises:
      ValueError: if a count is out of range, or there are too few rows.
    """
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    order = rng.permutation(len(labels))
    if stratified:
        check_class_labels(labels)
        order = order[np.argsort(labels[order], kind="stable")]
        return Partition(tuple(order[start::everybody] for start in range(everybody)))
    return Partition(tuple(np.array_split(order, everybody)))


@checked
def noise(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    sigma: PositiveFloat = 0.1,
) -> Partition:
    """Feature skew by noise: an IID split, where client i = 1..M trains on ``x + N(0, (sigma i / M)^2)``.

    The noise is in units of standardised features and is drawn when rows are read; test rows have no noise. (NIID-Bench
    divides by M - 1, counts from 0, and calls sigma a variance although it multiplies a standard normal.)

    Args:
      labels: ``[n]``.
      clients: number of seen clients, M.
      unseen: number of unseen clients, numbered 1..unseen with M = unseen.
      seed: seed of the draw.
      minimum: least rows per client.
      sigma: the last client's standard deviation.

    Source: Li et al., "Federated Learning on Non-IID Data Silos" (NIID-Bench), ICDE 2022, section 4; as used
    by IAFL.

    Raises:
      ValueError: if a count or sigma is out of range, or there are too few rows.
    """
    split = iid(labels, clients=clients, unseen=unseen, seed=seed, minimum=minimum)
    position, population = relative_order(clients, unseen)
    return split._replace(noise=(sigma * (position + 1) / population).astype(np.float32))


def _concentration(beta: float | None, alpha: float | None) -> float:
    """The concentration of a Dirichlet distribution, by either of its two names."""
    if beta is not None and alpha is not None:
        raise ValueError(f"expected one of beta and alpha, which are the same, got beta={beta} and alpha={alpha}")
    return alpha if alpha is not None else 0.5 if beta is None else beta


@checked
def dirichlet(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 10,
    beta: PositiveFloat | None = None,
    alpha: PositiveFloat | None = None,
    classes: Count | None = None,
) -> Partition:
    """Label skew Dir(beta): each class is divided among clients in proportions ``p ~ Dirichlet(beta)``.

    Clients that already have ``n / M`` rows or more get no rows of the next class. If a client has fewer than
    ``minimum`` rows, the draw is repeated; after 100 draws, rows are moved from the largest clients instead.

    Args:
      labels: ``[n]``.
      clients: number of seen clients; M also includes the unseen clients.
      unseen: number of unseen clients.
      seed: seed of the draw.
      minimum: least rows per client.
      beta: concentration, 0.5 if not given; near 0 a class goes to few clients, for large beta it is divided evenly.
      alpha: another name of ``beta``, which many papers use.
      classes: number of labels; the largest label plus one if not given.

    Source: Li et al., "Federated Learning on Non-IID Data Silos" (NIID-Bench), ICDE 2022, section 4, and its
    code.

    Raises:
      ValueError: if a count or beta is out of range, beta and alpha are both given, or there are too few rows.
    """
    beta = _concentration(beta, alpha)
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    count = count_classes(labels, classes)
    totals = np.bincount(labels, minlength=count)
    counts = np.zeros((len(totals), everybody), int)
    for _ in range(_DRAWS):
        counts[:] = 0
        for label, total in enumerate(totals):
            is_open = counts.sum(axis=0) < len(labels) / everybody
            p = rng.dirichlet(np.full(everybody, beta)) * is_open
            if p.sum() <= 0:  # underflow: the limit of a small beta
                p = np.zeros(everybody)
                p[rng.choice(np.flatnonzero(is_open) if is_open.any() else everybody)] = 1
            counts[label] = cut(p / p.sum(), total)
        if counts.sum(axis=0).min() >= minimum:
            break
    pieces = [take(rng.permutation(np.flatnonzero(labels == c)), row) for c, row in enumerate(counts)]
    rows = [rng.permutation(np.concatenate(parts)) for parts in zip(*pieces, strict=True)]
    return Partition(tuple(repair(rows, minimum)))


@checked
def quantity(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 10,
    beta: PositiveFloat | None = None,
    alpha: PositiveFloat | None = None,
) -> Partition:
    """Quantity skew: clients' shares of all rows are ``p ~ Dirichlet(beta)``; labels stay IID.

    If a client has fewer than ``minimum`` rows, the draw is repeated; after 100 draws, rows are moved from the largest
    clients.

    Args:
      labels: ``[n]``.
      clients: number of seen clients.
      unseen: number of unseen clients.
      seed: seed of the draw.
      minimum: least rows per client.
      beta: concentration, 0.5 if not given; smaller values give more unequal sizes.
      alpha: another name of ``beta``, which many papers use.

    Source: Li et al., "Federated Learning on Non-IID Data Silos" (NIID-Bench), ICDE 2022, section 4.

    Raises:
      ValueError: if a count or beta is out of range, beta and alpha are both given, or there are too few rows.
    """
    beta = _concentration(beta, alpha)
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    order = rng.permutation(len(labels))
    counts = np.zeros(everybody, int)
    for _ in range(_DRAWS):
        counts = cut(rng.dirichlet(np.full(everybody, beta)), len(labels))
        if counts.min() >= minimum:
            break
    return Partition(tuple(repair(take(order, counts), minimum)))


@checked
def classes_per_client(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    k: Count = 2,
    random_first: bool = False,
    classes: Count | None = None,
) -> Partition:
    """Label skew #C=k: client i gets class ``i mod K`` and k-1 further classes drawn without replacement.

    Each class is divided evenly among its clients; a class without clients is not used. If a client has fewer than
    ``minimum`` rows, the classes are drawn again, with 100 draws at most. With k = K all clients get all classes.

    Args:
      labels: ``[n]``.
      clients: number of seen clients; the numbers i of unseen clients continue from here.
      unseen: number of unseen clients.
      seed: seed of the draw.
      minimum: least rows per client.
      k: classes per client.
      random_first: also draw the first class (NIID-Bench's variant for two classes).
      classes: number of labels K; the largest label plus one if not given.

    Source: Li et al., "Federated Learning on Non-IID Data Silos" (NIID-Bench), ICDE 2022, section 4, and its
    code.

    Raises:
      ValueError: if a count is out of range, or a client would have fewer than ``minimum`` rows.
    """
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    count = count_classes(labels, classes)
    if k > count:
        raise ValueError(f"expected k of at most {count}, the number of classes, got {k}")
    totals = np.bincount(labels, minlength=count)
    sizes = holds = np.zeros(0)
    for _ in range(_DRAWS):
        rank = rng.random((everybody, count))
        if not random_first:
            rank[np.arange(everybody), np.arange(everybody) % count] = -1
        holds = rank.argsort(axis=1).argsort(axis=1) < k
        sizes = (holds * (totals // np.maximum(holds.sum(axis=0), 1))).sum(axis=1)
        if sizes.min() >= minimum:
            break
    pieces: list[list[np.ndarray]] = [[] for _ in range(everybody)]
    for label in range(count):
        holders = np.flatnonzero(holds[:, label])
        if len(holders):
            parts = np.array_split(rng.permutation(np.flatnonzero(labels == label)), len(holders))
            for holder, part in zip(holders, parts, strict=True):
                pieces[holder].append(part)
    rows = [np.concatenate(parts) for parts in pieces]
    require(rows, minimum, "use fewer clients, a larger k or a smaller minimum")
    return Partition(tuple(rows))


@checked
def cluster_labels(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 10,
    groups: Count = 5,
    shares: Sequence[float] | None = None,
    classes: Count | None = None,
) -> Partition:
    """Label groups: consecutive labels form ``groups`` groups, and each client joins one group at random.

    The first clients of a random order join different groups, so that no group is empty. The others choose uniformly
    among the groups that have ``minimum`` rows left for another client. With ``shares``, the groups have fixed numbers
    of clients, and their members are drawn at random. A group's rows are divided evenly among its members, seen and
    unseen together.

    Args:
      labels: ``[n]``.
      clients: number of seen clients.
      unseen: number of unseen clients.
      seed: seed of the draw.
      minimum: least rows per client; 50 in the published settings.
      groups: number of groups G.
      shares: share of the clients in each group, ``[G]`` with the sum 1, e.g. ``[0.55, 0.15, 0.1, 0.1, 0.1]``. The
        method of the largest remainder turns shares into numbers of seen clients and of unseen clients. A group without
        clients leaves its rows unused. None: see above.
      classes: number of labels; the largest label plus one if not given.

    Source: Cho et al., "To Federate or Not To Federate" (INCFL), the section on experiments. The paper does not state
    how clients are assigned: both rules are reconstructions. For CIFAR-10 it prints an IPR of 0.40 with an accuracy of
    100 %. This fits one group with 40 % of the clients, which ``shares`` can express.

    Raises:
      ValueError: if a count or a share is out of range, or the groups have too few rows for all clients.
    """
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    count = count_classes(labels, classes)
    if groups > count:
        raise ValueError(f"expected at most {count} groups, the number of classes, got {groups}")
    blocks = np.array_split(np.arange(count), groups)
    members = [np.flatnonzero(np.isin(labels, block)) for block in blocks]
    if shares is not None:
        group = draw_groups(shares, [len(rows_of_group) for rows_of_group in members], clients, unseen, minimum, rng)
        return _deal_groups(members, group, rng)
    room = np.array([len(rows_of_group) // minimum for rows_of_group in members])
    if room.sum() < everybody:
        raise ValueError(
            f"expected room for {everybody} clients with at least {minimum} samples each, "
            f"got room for {room.sum()} in {groups} groups of labels"
        )
    group, usable = np.zeros(everybody, np.int32), rng.permutation(np.flatnonzero(room))
    for turn, client in enumerate(rng.permutation(everybody)):
        group[client] = usable[turn] if turn < len(usable) else rng.choice(np.flatnonzero(room))
        room[group[client]] -= 1
    return _deal_groups(members, group, rng)


def _deal_groups(members: Sequence[np.ndarray], group: np.ndarray, rng: np.random.Generator) -> Partition:
    """Divides the rows of each group evenly among its clients."""
    rows = [np.zeros(0, int)] * len(group)
    for number, pool in enumerate(members):
        inside = np.flatnonzero(group == number)
        if len(inside):
            for client, part in zip(inside, np.array_split(rng.permutation(pool), len(inside)), strict=True):
                rows[client] = part
    return Partition(tuple(rows), group=group)


@checked
def natural(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    owner: np.ndarray | None,
    part: np.ndarray | None = None,
    unseen_owners: np.ndarray | None = None,
) -> Partition:
    """The natural clients of the data set: each client gets the rows of one owner.

    If there are more owners than clients, the participating owners are drawn at random, and so are the unseen clients
    among them, unless ``unseen`` names them. Seen and unseen clients are numbered separately, in the order of their
    owners.

    Args:
      labels: ``[n]``.
      clients: number of seen clients.
      unseen: number of unseen clients.
      seed: seed of the draw.
      minimum: owners with fewer training rows are excluded.
      owner: owner of each row, ``[n]``, -1 for none.
      part: 0 for training rows, 1 for validation rows, 2 for test rows, ``[n]``; None: all rows are training rows, and
        ``federate`` splits them. It also does so for a part without rows.
      unseen_owners: the owners that are unseen clients; they need no training rows. None: they are drawn.

    Raises:
      ValueError: if the data set has no owners, or not enough owners.
    """
    drawn = unseen if unseen_owners is None else 0
    labels, everybody, rng = begin(labels, clients, drawn, seed, minimum)
    if owner is None:
        raise ValueError("expected a dataset whose rows have owners for the partition natural, got one without")
    owner = np.asarray(owner)
    part = np.zeros(len(owner), np.int8) if part is None else np.asarray(part)
    names = owners_left(owner, part, minimum, unseen_owners)
    if len(names) < everybody:
        raise ValueError(f"expected at least {everybody} owners with at least {minimum} samples each, got {len(names)}")
    chosen = rng.permutation(names)[:everybody]
    others = chosen[clients:] if unseen_owners is None else unseen_owners
    ordered = np.concatenate([np.sort(chosen[:clients]), np.sort(others)])
    train, *own = (rows_by_owner(owner, np.flatnonzero(part == which), ordered) for which in range(3))
    valid, test = (rows if any(map(len, rows)) else None for rows in own)
    return Partition(train, test, valid=valid, owner=ordered.astype(np.int32))


_PATTERNS = ("10:90", "30:70", "40:60", "linear", "random")


@checked
def mixture(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    pattern: str = "10:90",
    rotate: bool = False,
    complement: bool = False,
    test_fraction: Annotated[float, Range(0, 1, below=True)] = 0.4,
    deployment_fraction: Annotated[float, Range(0, 1, below=True)] = 0.0,
    drift_fraction: Annotated[float, Range(0, 1, below=True)] = 0.0,
    size: int | tuple[int, int] | None = None,
    holdout: Annotated[float, Range(0, 1, below=True)] = 0.0,
    classes: Count | None = None,
) -> Partition:
    """Two source distributions A and B; client k draws the fraction ``a_k`` of its rows from A.

    ========  ===========================================================
    pattern   ``a_k`` for k = 0..M-1
    ========  ===========================================================
    "p:q"     ``p/100`` for the first half of the clients, then ``q/100``
    "linear"  ``(k + 1/2) / M``
    "random"  ``U(0, 1)``
    ========  ===========================================================

    A has the rows of the first half of the labels, and B the rows of the second half. With ``rotate``, A is a random
    part of the rows, unchanged, and B has the other rows, rotated by 90 degrees, with the same labels.

    Args:
      labels: ``[n]``.
      clients: number of seen clients, M.
      unseen: number of unseen clients, whose ``a_k`` follow the same pattern with M = unseen.
      seed: seed of the draw.
      minimum: least rows per client.
      pattern: two percentages that sum to 100, e.g. "10:90", or "linear" or "random".
      rotate: make the distributions differ by rotation instead of labels.
      complement: clients' data change after training: their later rows are mixed in the opposite proportion,
        ``1 - a_k`` from A. Training rows, and validation rows that ``federate`` splits off them, keep ``a_k``.
      test_fraction: share of a client's rows that are its later rows; used only with ``complement``. They are test
        rows, except the share ``deployment_fraction``.
      deployment_fraction: share of the later rows that are the client's validation rows when it uses its model, and no
        test rows; at least one test row remains. Used only with ``complement``; ``federate`` gives its
        ``valid_fraction``. With 0 a client whose model depends on validation rows has none of its new data.
      drift_fraction: share of the later rows that the client trains on once its data have changed during training (the
        scenario ``drift``); at least one test row remains. Used only with ``complement``. With 0, data change only
        after training. Test rows are of the new mixture in every round.
      size: rows per client, or (low, high) for a uniform draw of each client's size. If not given, all clients have the
        same size, the largest that the rows allow, at most ``floor(n / all clients)``.
      holdout: share of A and of B that stays with the server, as ``held["distribution_0"]`` and
        ``held["distribution_1"]``.
      classes: number of labels; the largest label plus one if not given.

    Raises:
      ValueError: if an argument is out of range, or there are too few rows.
    """
    labels, _, rng = begin(labels, clients, unseen, seed, minimum)
    first = _first_share(pattern, clients, unseen, rng)
    weights = np.stack([first, 1 - first], axis=1)
    test_share = check_fraction("test_fraction", test_fraction, zero=False) if complement else 0.0
    if complement and deployment_fraction + drift_fraction >= 1:
        raise ValueError(
            "expected deployment_fraction and drift_fraction to leave test rows, got "
            f"{deployment_fraction:g} and {drift_fraction:g}"
        )
    if drift_fraction and not complement:
        raise ValueError("expected complement with drift_fraction, got a mixture that does not change")
    if rotate:
        order = rng.permutation(len(labels))
        # Give A the share that the clients need, so that few rows remain unused.
        part = float(np.mean(first * (1 - test_share) + (1 - first) * test_share))
        pools = take(order, cut(np.array([part, 1 - part]), len(labels)))
    else:
        pools = _class_pools(labels, 2, classes, rng)
    later = _Later(weights[:, ::-1], test_share, deployment_fraction, drift_fraction) if complement else None
    split = _deal_mixture(pools, weights, later, size, holdout, minimum, rng)
    split = split._replace(group=(first < 0.5).astype(np.int32))
    return _with_rotated(split, pools[1], len(labels)) if rotate else split


@checked
def block_mixture(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    blocks: Annotated[int, Range(2)] = 4,
    pattern: str = "linear",
    size: int | tuple[int, int] | None = None,
    holdout: Annotated[float, Range(0, 1, below=True)] = 0.0,
    classes: Count | None = None,
) -> Partition:
    """Several source distributions, consecutive blocks of labels; a client mixes its own block with all the others.

    Clients are assigned evenly and in order to the blocks. A client draws a share of its rows from its own block, and
    the rest evenly from the other blocks. The share of the j-th of m clients of a block is ``(j + 1/2) / m`` with the
    pattern "linear", the larger of both percentages with "p:q", and ``U(0, 1)`` with "random". (The paper does not
    state whether j counts inside the block or over all clients, nor what "p:q" is with more than two distributions:
    these are reconstructions. Two blocks with "p:q" are a ``mixture`` with the larger percentage first: "10:90" is
    "90:10" there.) ``group`` is the block to which a client was assigned, also if most of its rows are of others.

    Args:
      labels: ``[n]``.
      clients: number of seen clients.
      unseen: number of unseen clients, assigned to the blocks in the same way.
      seed: seed of the draw.
      minimum: least rows per client.
      blocks: number of distributions, at least 2.
      pattern: as for ``mixture``.
      size: rows per client, or (low, high) for a uniform draw; the largest size that the rows allow if not given.
      holdout: share of each distribution that stays with the server, as ``held["distribution_<g>"]``.
      classes: number of labels; the largest label plus one if not given.

    Raises:
      ValueError: if an argument is out of range, or there are too few rows.
    """
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    pools = _class_pools(labels, blocks, classes, rng)
    position, population = relative_order(clients, unseen)
    block = position * blocks // population
    start = -(-block * population // blocks)  # the first position of the block: ceil(own * population / blocks)
    end = -(-(block + 1) * population // blocks)
    share = (position - start + 0.5) / (end - start)
    if pattern == "random":
        share = rng.random(everybody)
    elif pattern != "linear":
        share = np.full(everybody, max(_percentages(pattern)))
    weights = np.repeat(((1 - share) / (blocks - 1))[:, None], blocks, axis=1)
    weights[np.arange(everybody), block] = share
    return _deal_mixture(pools, weights, None, size, holdout, minimum, rng)._replace(group=block.astype(np.int32))


@checked
def class_clusters(
    labels: np.ndarray,
    *,
    clients: Count,
    unseen: CountOrZero = 0,
    seed: CountOrZero = 0,
    minimum: Count = 1,
    k: Count = 2,
    holdout: Annotated[float, Range(0, 1, below=True)] = 0.0,
    classes: Count | None = None,
) -> Partition:
    """k classes per client: the rows of classes ``g k .. g k + k - 1`` are divided evenly among cluster g's clients.

    Clients are assigned evenly and in order to the ``floor(K / k)`` clusters; remaining classes are not used.

    Args:
      labels: ``[n]``.
      clients: number of seen clients.
      unseen: number of unseen clients, assigned to the clusters in the same way.
      seed: seed of the draw.
      minimum: least rows per client.
      k: classes per cluster.
      holdout: share of each cluster's rows that stays with the server, as ``held["distribution_<g>"]``.
      classes: number of labels K; the largest label plus one if not given.

    Raises:
      ValueError: if an argument is out of range, or there are too few rows.
    """
    labels, everybody, rng = begin(labels, clients, unseen, seed, minimum)
    count = count_classes(labels, classes)
    if k > count:
        raise ValueError(f"expected k of at most {count}, the number of classes, got {k}")
    clusters = count // k
    position, population = relative_order(clients, unseen)
    group = position * clusters // population
    rows, held = [np.zeros(0, int)] * everybody, {}
    for cluster in range(clusters):
        pool = rng.permutation(np.flatnonzero(labels // k == cluster))
        reserved = int(holdout * len(pool))
        if reserved:
            held[f"distribution_{cluster}"] = pool[:reserved]
        inside = np.flatnonzero(group == cluster)
        for client, part in zip(inside, np.array_split(pool[reserved:], max(len(inside), 1)), strict=False):
            rows[client] = part
    require(rows, minimum, "use fewer clients, fewer classes per client or a smaller minimum")
    return Partition(tuple(rows), group=group.astype(np.int32), held=held)


def _first_share(pattern: str, clients: int, unseen: int, rng: np.random.Generator) -> np.ndarray:
    position, population = relative_order(clients, unseen)
    if pattern == "linear":
        return (position + 0.5) / population
    if pattern == "random":
        return rng.random(len(position))
    low, high = _percentages(pattern)
    return np.where(position < population / 2, low, high)


def _percentages(pattern: str) -> list[float]:
    match = re.fullmatch(r"(\d+):(\d+)", str(pattern))
    if match is None or sum(map(int, match.groups())) != 100:
        raise ValueError(f"{unknown('pattern', str(pattern), _PATTERNS)}; other percentages must sum to 100")
    return [int(percentage) / 100 for percentage in match.groups()]


def _class_pools(labels: np.ndarray, parts: int, classes: int | None, rng: np.random.Generator) -> list[np.ndarray]:
    count = count_classes(labels, classes)
    if count < parts:
        raise ValueError(f"expected at least {parts} classes for {parts} distributions, got {count}")
    blocks = np.array_split(np.arange(count), parts)
    return [rng.permutation(np.flatnonzero(np.isin(labels, block))) for block in blocks]


class _Later(NamedTuple):
    """The rows of clients whose data change after training."""

    weights: np.ndarray  # their mixture, ``[clients, pools]``
    share: float  # of all rows of a client
    deployment: float  # share of these: validation rows when the client uses its model
    drift: float  # share of these: training rows once data have changed; the others are test rows


def _deal_mixture(
    pools: list[np.ndarray],
    weights: np.ndarray,
    later: _Later | None,
    size: int | tuple[int, int] | None,
    holdout: float,
    minimum: int,
    rng: np.random.Generator,
) -> Partition:
    """Assigns the pools to clients by ``weights`` [clients, pools]; without ``size``, uses the largest common size."""
    whole = {f"distribution_{g}": pool[: int(holdout * len(pool))] for g, pool in enumerate(pools)}
    held = {name: rows for name, rows in whole.items() if len(rows)}
    pools = [pool[int(holdout * len(pool)) :] for pool in pools]
    room, everybody = np.array([len(pool) for pool in pools]), len(weights)

    def demand(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if later is None:
            return _shares(weights, sizes), np.zeros(weights.shape, int)
        new = np.rint(sizes * later.share).astype(int)
        return _shares(weights, sizes - new), _shares(later.weights, new)

    if size is None:
        most = room.sum() // everybody
        asked = np.sum(demand(np.full(everybody, most)), axis=(0, 1))
        ratio = np.min(np.where(asked > 0, room / np.maximum(asked, 1), np.inf))
        most = min(most, int(most * min(ratio, 1.0)) + 1)
        # The estimate is wrong only by rounding, so few steps are needed.
        while most > 0 and (np.sum(demand(np.full(everybody, most)), axis=(0, 1)) > room).any():
            most -= 1
        sizes = np.full(everybody, most)
    else:
        sizes = _draw_sizes(size, everybody, rng)
    train, new = demand(sizes)
    asked = (train + new).sum(axis=0)
    if (asked > room).any():
        raise ValueError(
            f"expected at least {asked.tolist()} samples of the source distributions for size {size}, "
            f"got {room.tolist()}"
        )
    if sizes.min() < minimum or (later is not None and sizes.min() < 2):
        raise ValueError(
            f"expected at least {minimum} samples for each client, got {sizes.min()}; "
            "use fewer clients or a smaller minimum"
        )
    deployed, drifted = np.zeros(new.shape, int), np.zeros(new.shape, int)
    if later is not None:
        count = new.sum(axis=1)
        most = np.maximum(count - 1, 0)
        wanted = [np.rint(count * share).astype(int) for share in (later.deployment, later.drift)]
        deployed = _shares(later.weights, np.minimum(wanted[0], most))
        # The difference of two roundings, so that no pool has fewer rows than the parts ask for together.
        drifted = _shares(later.weights, np.minimum(sum(wanted), most)) - deployed
    # Cut each pool into the training rows of all clients, then their test, deployment and later training rows.
    cuts = np.concatenate([train, new - deployed - drifted, deployed, drifted]).T
    parts = [take(pool, cut) for pool, cut in zip(pools, cuts, strict=True)]
    pieces = [rng.permutation(np.concatenate(parts_of_client)) for parts_of_client in zip(*parts, strict=True)]
    rows, tests, deployment, drift = (tuple(pieces[part * everybody : (part + 1) * everybody]) for part in range(4))
    return Partition(
        rows,
        test=None if later is None else tests,
        held=held,
        deployment=deployment if later is not None and later.deployment > 0 else None,
        later=drift if later is not None and later.drift > 0 else None,
    )


def _shares(weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whole numbers near ``weights * sizes`` whose rows sum to ``sizes``."""
    edges = np.floor(np.cumsum(weights, axis=1) * sizes[:, None] + 0.5).astype(int)
    edges[:, -1] = sizes
    return np.diff(edges, axis=1, prepend=0)


def _draw_sizes(size: int | tuple[int, int], everybody: int, rng: np.random.Generator) -> np.ndarray:
    if isinstance(size, (tuple, list)):
        if len(size) != 2 or check_count("size", size[0]) > check_count("size", size[1]):
            raise ValueError(f"expected size as a number or as (low, high), got {size!r}")
        return rng.integers(size[0], size[1] + 1, everybody)
    return np.full(everybody, check_count("size", size))


def _with_rotated(split: Partition, turned: np.ndarray, n: int) -> Partition:
    """Replaces the rows in ``turned`` by their rotated copies; makes no copy of an unused row."""
    parts = {name: getattr(split, name) for name in ("rows", "test", "deployment", "later")}
    by_client = {name: lists for name, lists in parts.items() if lists is not None}
    used = np.concatenate([*(rows for lists in by_client.values() for rows in lists), *split.held.values()])
    rotated = np.intersect1d(turned, used)
    place = np.arange(n)
    place[rotated] = n + np.arange(len(rotated))
    moved = {name: tuple(place[rows] for rows in lists) for name, lists in by_client.items()}
    held = {name: place[rows] for name, rows in split.held.items()}
    return split._replace(**moved, held=held, rotated=rotated)


PARTITIONERS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "classes_per_client": classes_per_client,
    "noise": noise,
    "quantity": quantity,
    "cluster_labels": cluster_labels,
    "mixture": mixture,
    "block_mixture": block_mixture,
    "class_clusters": class_clusters,
    "natural": natural,
}
