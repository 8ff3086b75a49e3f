"""Partitioners whose clients mix several source distributions, as in IP-FL's experiments.

Sources: "IP-FL: Incentivized and Personalized Federated Learning", the section on experiments; Ruan and Joe-Wong,
"FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import numpy as np

from fljax.core.names import unknown
from fljax.core.values import Count, CountOrZero, Range, checked
from fljax.data.arrays import check_count, check_fraction
from fljax.data.partitions.assignment import Partition, begin, count_classes, cut, relative_order, require, take

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
    check_fraction("holdout", holdout)
    first = _first_share(pattern, clients, unseen, rng)
    weights = np.stack([first, 1 - first], axis=1)
    test_share = check_fraction("test_fraction", test_fraction, zero=False) if complement else 0.0
    check_fraction("deployment_fraction", deployment_fraction)
    check_fraction("drift_fraction", drift_fraction)
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
    split = _deal(pools, weights, later, size, holdout, minimum, rng)
    split = split._replace(group=(first < 0.5).astype(np.int32))
    return _turn(split, pools[1], len(labels)) if rotate else split


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
    check_count("blocks", blocks, 2)
    check_fraction("holdout", holdout)
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
    return _deal(pools, weights, None, size, holdout, minimum, rng)._replace(group=block.astype(np.int32))


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
    if check_count("k", k) > count:
        raise ValueError(f"expected k of at most {count}, the number of classes, got {k}")
    check_fraction("holdout", holdout)
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


def _deal(
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
        held={name: rows for name, rows in held.items() if len(rows)},
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


def _turn(split: Partition, turned: np.ndarray, n: int) -> Partition:
    """Replaces the rows in ``turned`` by their rotated copies; makes no copy of an unused row."""
    lists = (split.rows, split.test, split.deployment, split.later)
    used = np.concatenate([*(rows for part in lists for rows in part or ()), *split.held.values()])
    rotated = np.intersect1d(turned, used)
    place = np.arange(n)
    place[rotated] = n + np.arange(len(rotated))
    by_client = {name: getattr(split, name) for name in ("rows", "test", "deployment", "later")}
    moved = {name: tuple(place[rows] for rows in lists) for name, lists in by_client.items() if lists is not None}
    held = {name: place[rows] for name, rows in split.held.items()}
    return split._replace(**moved, held=held, rotated=rotated)
