"""Every partitioner: no row twice, sizes as asked, reproducible; and each recipe's own facts."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.data.partitions.assignment import cut, largest_remainders, repair
from fljax.data.partitions.partition import (
    PARTITIONERS,
    classes_per_client,
    cluster_labels,
    dirichlet,
    iid,
    natural,
    noise,
    quantity,
)
from tests.drawn import at_most

LABELS = np.random.default_rng(0).integers(0, 8, 1200)
OWNER = np.random.default_rng(1).integers(-1, 30, 1200)
EXTRA = {"natural": {"owner": OWNER}}
CASES = [(name, EXTRA.get(name, {})) for name in PARTITIONERS]
CASES += [
    ("iid", {"stratified": True}),
    ("dirichlet", {"beta": 0.01, "minimum": 20}),
    ("quantity", {"beta": 0.05}),
    ("classes_per_client", {"k": 8}),
    ("classes_per_client", {"k": 3, "random_first": True}),
    ("cluster_labels", {"groups": 8, "minimum": 30}),
    ("cluster_labels", {"groups": 3, "shares": [0.6, 0.3, 0.1]}),
    ("mixture", {"rotate": True}),
    ("mixture", {"pattern": "linear", "complement": True, "test_fraction": 0.3, "holdout": 0.1}),
    ("mixture", {"pattern": "random", "rotate": True, "complement": True, "holdout": 0.2}),
    ("mixture", {"pattern": "30:70", "size": (5, 20)}),
    ("block_mixture", {"blocks": 3, "holdout": 0.1}),
    ("class_clusters", {"k": 3, "holdout": 0.1}),
]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(CASES)]


def all_rows(split):
    return np.concatenate([*split.rows, *(split.test or ()), *split.held.values()])


def same(one, other):
    return len(one.rows) == len(other.rows) and all(map(np.array_equal, one.rows, other.rows))


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@at_most(8)
@given(clients=st.integers(1, 14), unseen=st.integers(0, 6), seed=st.integers(0, 10**6))
def test_laws_of_every_partitioner(name, options, clients, unseen, seed):
    make = PARTITIONERS[name]
    arguments = {"clients": clients, "unseen": unseen, "seed": seed} | options
    # Only recipes that tie clients to few classes may find no room for them, and then they say so.
    tied = name in ("classes_per_client", "class_clusters", "cluster_labels")
    try:
        split = make(LABELS, **arguments)
    except ValueError:
        if not tied:
            raise
        with pytest.raises(ValueError, match="expected"):
            make(LABELS, **arguments)
        return
    assert len(split.rows) == clients + unseen
    rows = all_rows(split)
    n = len(LABELS)
    assert len(np.unique(rows)) == len(rows), "a row is used twice"
    assert rows.min() >= 0
    assert rows.max() < n + len(split.rotated)
    originals = np.where(rows < n, rows, np.append(split.rotated, 0)[np.maximum(rows - n, 0)])
    assert len(np.unique(originals)) == len(originals), "a row and its rotated copy are both used"
    default = 10 if name in ("dirichlet", "quantity", "cluster_labels") else 1
    assert min(map(len, split.rows)) >= options.get("minimum", default)
    for extra in (split.test, split.noise, split.group):
        assert extra is None or len(extra) == clients + unseen
    assert same(split, make(LABELS, **arguments))


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_another_seed_gives_another_partition(name, options):
    first, second = (PARTITIONERS[name](LABELS, clients=8, seed=seed, **options) for seed in (1, 2))
    assert not same(first, second)


@pytest.mark.in_turn
@at_most(25)
@given(seed=st.integers(0, 999), clients=st.integers(2, 30), beta=st.sampled_from([1e-4, 0.05, 1.0, 1e4]))
def test_tightest_minimum_is_kept_by_construction(seed, clients, beta):
    minimum = len(LABELS) // clients
    for make in (dirichlet, quantity):
        split = make(LABELS, clients=clients, seed=seed, beta=beta, minimum=minimum)
        assert min(map(len, split.rows)) >= minimum
        assert sorted(all_rows(split)) == list(range(len(LABELS)))


def test_iid_sizes_differ_by_one_and_strata_too():
    plain, strata = (iid(LABELS, clients=7, unseen=2, stratified=each) for each in (False, True))
    for split in (plain, strata):
        assert np.ptp([len(rows) for rows in split.rows]) <= 1
    counts = np.array([np.bincount(LABELS[rows], minlength=8) for rows in strata.rows])
    assert np.ptp(counts, axis=0).max() <= 1


def test_dirichlet_concentration_decides_the_skew():
    def largest_share(beta):
        split = dirichlet(LABELS, clients=8, beta=beta)
        return np.mean([np.bincount(LABELS[r]).max() / len(r) for r in split.rows])

    assert largest_share(0.05) > 0.5
    assert largest_share(1000.0) < 0.25


def test_quantity_keeps_labels_iid_and_sizes_unequal():
    sizes = [len(rows) for rows in quantity(LABELS, clients=8, beta=0.5, seed=3).rows]
    assert max(sizes) > 3 * min(sizes)


def test_classes_per_client_holds_k_classes_and_the_cyclic_one():
    split = classes_per_client(LABELS, clients=10, unseen=3, k=3, seed=5)
    for client, rows in enumerate(split.rows):
        held = np.unique(LABELS[rows])
        assert len(held) == 3
        assert client % 8 in held


def test_classes_per_client_with_all_classes_deals_each_class_to_everybody():
    split = classes_per_client(LABELS, clients=5, k=8)
    counts = np.array([np.bincount(LABELS[rows], minlength=8) for rows in split.rows])
    assert np.ptp(counts, axis=0).max() <= 1


def test_cluster_labels_groups_are_consecutive_labels_and_none_is_empty():
    split: Any = cluster_labels(LABELS, clients=6, unseen=4, groups=4, seed=2)
    assert set(split.group) == {0, 1, 2, 3}
    for client, rows in enumerate(split.rows):
        assert set(LABELS[rows] // 2) == {split.group[client]}
    for group in range(4):
        sizes = [len(split.rows[i]) for i in np.flatnonzero(split.group == group)]
        assert np.ptp(sizes) <= 1
    assert len(all_rows(split)) == len(LABELS)


SHARES = [0.55, 0.15, 0.1, 0.2]


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        (SHARES, 20, [11, 3, 2, 4]),
        ([0.55, 0.15, 0.1, 0.1, 0.1], 100, [55, 15, 10, 10, 10]),
        ([0.55, 0.15, 0.1, 0.1, 0.1], 10, [6, 1, 1, 1, 1]),  # of the equal remainders of 5.5 and 1.5 the first
        ([0.47, 0.16, 0.158, 0.12, 0.061, 0.031], 10, [5, 2, 1, 1, 1, 0]),
        ([0.29, 0.71], 100, [29, 71]),  # 0.29 * 100 is below 29 in floating point
        ([0, 1], 3, [0, 3]),
        (SHARES, 0, [0, 0, 0, 0]),
    ],
)
def test_largest_remainders(shares, total, expected):
    np.testing.assert_array_equal(largest_remainders(shares, total), expected)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), st.integers(0, 500))
@at_most(50)
def test_largest_remainders_are_within_one_of_the_quota(weights, total):
    shares = np.array(weights) / sum(weights)
    counts = largest_remainders(shares, total)
    assert counts.sum() == total
    assert (np.abs(counts - shares * total) < 1 + 1e-9).all()


@given(seed=st.integers(0, 10**6))
@at_most(8)
def test_cluster_labels_with_shares(seed):
    split: Any = cluster_labels(LABELS, clients=20, unseen=40, groups=4, seed=seed, minimum=2, shares=SHARES)
    np.testing.assert_array_equal(np.bincount(split.group[:20]), [11, 3, 2, 4])
    np.testing.assert_array_equal(np.bincount(split.group[20:]), [22, 6, 4, 8])
    for group in range(4):
        rows = [split.rows[i] for i in np.flatnonzero(split.group == group)]
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.flatnonzero(group == LABELS // 2))
        assert np.ptp(list(map(len, rows))) <= 1


def test_shares_assign_clients_at_random():
    first, second = (cluster_labels(LABELS, clients=20, groups=4, seed=seed, shares=SHARES) for seed in (0, 1))
    assert not np.array_equal(np.asarray(first.group), np.asarray(second.group))
    assert len(set(np.asarray(first.group)[:11])) > 1


def test_a_group_of_share_0_is_not_used():
    split = cluster_labels(LABELS, clients=6, groups=4, shares=[0.5, 0, 0.5, 0])
    np.testing.assert_array_equal(np.bincount(np.asarray(split.group), minlength=4), [3, 0, 3, 0])
    assert set(LABELS[all_rows(split)]) == {0, 1, 4, 5}


def test_noise_grows_with_the_clients_number():
    split = noise(LABELS, clients=4, unseen=2, sigma=0.8)
    np.testing.assert_allclose(np.asarray(split.noise), [0.2, 0.4, 0.6, 0.8, 0.4, 0.8], rtol=1e-6)


def test_natural_takes_the_unseen_owners_that_it_is_given():
    owner = OWNER.copy()
    owner[OWNER == 4] = -1  # 4 has no rows here
    split: Any = natural(LABELS, clients=5, unseen=2, seed=4, owner=owner, unseen_owners=np.array([4, 9]))
    assert split.owner[5:].tolist() == [4, 9]
    assert not {4, 9} & set(split.owner[:5].tolist())
    assert len(split.rows[5]) == 0
    assert (OWNER[split.rows[6]] == 9).all()


def test_natural_gives_each_client_one_owner():
    split = natural(LABELS, clients=5, unseen=3, seed=4, owner=OWNER)
    owners = [set(OWNER[rows]) for rows in split.rows]
    assert all(len(each) == 1 and -1 not in each for each in owners)
    assert len(set.union(*owners)) == 8
    for rows, owner in zip(split.rows, owners, strict=True):
        assert len(rows) == (next(iter(owner)) == OWNER).sum()
    everybody = natural(LABELS, clients=30, owner=OWNER)
    assert [OWNER[rows[0]] for rows in everybody.rows] == list(range(30))


@at_most(25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 20))
def test_repair_moves_no_more_than_needed(sizes, minimum):
    minimum = min(minimum, sum(sizes) // len(sizes))
    edges = np.cumsum([0, *sizes])
    before = [np.arange(a, b) for a, b in pairwise(edges)]
    after = repair(before, minimum)
    assert sorted(np.concatenate(after)) == list(range(sum(sizes)))
    assert all(len(b) == max(len(a), minimum) or len(b) >= minimum for a, b in zip(before, after, strict=True))
    short = sum(max(minimum - size, 0) for size in sizes)
    assert sum(max(len(b) - len(a), 0) for a, b in zip(before, after, strict=True)) == short


@at_most(25)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=9), st.integers(0, 500))
def test_cut_sums_to_the_total_and_follows_the_fractions(parts, total):
    fractions = np.array(parts) / np.sum(parts)
    counts = cut(fractions, total)
    assert counts.sum() == total
    assert np.all(np.abs(counts - fractions * total) <= 1 + 1e-6)


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
def test_alpha_is_another_name_of_beta(name):
    make = PARTITIONERS[name]
    one, other = (make(LABELS, clients=4, **{key: 0.3}) for key in ("alpha", "beta"))
    assert all(np.array_equal(a, b) for a, b in zip(one.rows, other.rows, strict=True))
    default, half = make(LABELS, clients=4), make(LABELS, clients=4, alpha=0.5)
    assert all(np.array_equal(a, b) for a, b in zip(default.rows, half.rows, strict=True))
