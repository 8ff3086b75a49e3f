"""Partitioners: pure functions of labels and a ``seed`` to the rows of every client. The registry is PARTITIONERS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fljax.core.values import Count, CountOrZero, PositiveFloat, checked
from fljax.data.arrays import check_count
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
from fljax.data.partitions.mixtures import block_mixture, class_clusters, mixture

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
    if check_count("k", k) > count:
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
    if check_count("groups", groups) > count:
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
    lists: list[tuple[np.ndarray, ...] | None] = []
    for which in range(3):
        by_owner = rows_by_owner(owner, np.flatnonzero(part == which), ordered)
        lists.append(by_owner if which == 0 or any(map(len, by_owner)) else None)
    assert lists[0] is not None
    return Partition(lists[0], lists[2], valid=lists[1], owner=ordered.astype(np.int32))


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
