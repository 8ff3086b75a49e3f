"""Mixtures of source distributions: shares, complements, rotation, blocks, clusters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.data import federate, load, row_numbers
from fljax.data.partitions.partition import block_mixture, class_clusters, mixture

LABELS = np.tile(np.arange(10), 200)
ALONE = load("blobs", samples=200, classes=4, seed=2)


def first_share(rows):
    return np.mean(LABELS[rows] < 5)


@pytest.mark.parametrize(("pattern", "low", "high"), [("10:90", 0.1, 0.9), ("30:70", 0.3, 0.7), ("50:50", 0.5, 0.5)])
def test_two_halves_of_clients_take_the_two_percentages(pattern, low, high):
    split = mixture(LABELS, clients=10, unseen=4, pattern=pattern)
    shares = [first_share(rows) for rows in split.rows]
    np.testing.assert_allclose(shares, [low] * 5 + [high] * 5 + [low] * 2 + [high] * 2, atol=0.01)
    assert len({len(rows) for rows in split.rows}) == 1
    assert len(split.rows[0]) == 2000 // 14


def test_linear_pattern_is_half_open_steps():
    shares = [first_share(rows) for rows in mixture(LABELS, clients=10, pattern="linear").rows]
    np.testing.assert_allclose(shares, (np.arange(10) + 0.5) / 10, atol=0.01)


def test_random_pattern_shrinks_everybody_alike_until_it_fits():
    split = mixture(LABELS, clients=7, pattern="random", seed=3)
    sizes = {len(rows) for rows in split.rows}
    assert len(sizes) == 1
    assert 100 <= sizes.pop() <= 2000 // 7


@pytest.mark.parametrize(
    ("share", "more", "counts"),
    [
        (0.25, {}, {"test": 50}),
        (0.25, {"deployment_fraction": 0.4}, {"test": 30, "deployment": 20}),
        (0.5, {"deployment_fraction": 0.1, "drift_fraction": 0.6}, {"test": 30, "deployment": 10, "later": 60}),
    ],
    ids=["test", "deployment", "drift"],
)
def test_rows_that_come_later_have_the_mixture_of_test_rows(share, more, counts):
    how = {"clients": 10, "complement": True, "test_fraction": share}
    without, split = mixture(LABELS, **how), mixture(LABELS, **how, **more)
    assert without.test is not None
    assert without.deployment is without.later is None
    assert (split.later is None) == ("later" not in counts)
    np.testing.assert_allclose([first_share(rows) for rows in split.rows], [0.1] * 5 + [0.9] * 5, atol=0.01)
    for part, count in counts.items():
        found = getattr(split, part)
        assert {len(rows) for rows in found} == {count}
        np.testing.assert_allclose([first_share(rows) for rows in found], [0.9] * 5 + [0.1] * 5, atol=0.01)
    # Training rows do not depend on what later rows are for.
    for rows, others in zip(split.rows, without.rows, strict=True):
        np.testing.assert_array_equal(rows, others)
    assert mixture(LABELS, clients=10, deployment_fraction=0.4).deployment is None


def test_later_rows_are_of_the_new_mixture():
    options = {"clients": 4, "unseen": 2, "complement": True, "train_fraction": 0.5, "valid_fraction": 0.25}
    made = federate(ALONE, "mixture", **options, drift_fraction=0.5)
    y = np.asarray(ALONE.y)
    for unseen in (False, True):
        later = row_numbers(made, "later", unseen=unseen)
        assert np.mean(y[later[0]] < 2) > 0.7
        np.testing.assert_allclose([len(rows) for rows in later], len(row_numbers(made, "train")[0]) / 1.5, atol=2)
    everybody = np.concatenate([rows for part in made.clients.parts for rows in row_numbers(made, part)])
    assert len(set(everybody.tolist())) == len(everybody)


@given(
    clients=st.integers(1, 9),
    unseen=st.integers(0, 4),
    pattern=st.sampled_from(["0:100", "10:90", "33:67", "linear", "random"]),
    share=st.floats(0.05, 0.9),
    deployment=st.floats(0.01, 0.99),
    drift=st.floats(0.01, 0.99),
    rotate=st.booleans(),
    seed=st.integers(0, 9),
)
def test_no_row_is_in_two_parts_and_counts_are_exact(clients, unseen, pattern, share, deployment, drift, rotate, seed):
    drift *= 0.99 - deployment if deployment < 0.5 else 0
    split = mixture(
        LABELS,
        clients=clients,
        unseen=unseen,
        seed=seed,
        pattern=pattern,
        complement=True,
        test_fraction=share,
        deployment_fraction=deployment,
        drift_fraction=drift,
        rotate=rotate,
        holdout=0.1,
    )
    assert split.test is not None
    assert split.deployment is not None
    later = split.later or (np.zeros(0, int),) * len(split.rows)
    used = np.concatenate([*split.rows, *split.test, *split.deployment, *later, *split.held.values()])
    original = np.where(used < len(LABELS), used, np.append(split.rotated, 0)[np.maximum(used - len(LABELS), 0)])
    assert len(set(original.tolist())) == len(original)
    in_first = (lambda rows: np.sum(rows < len(LABELS))) if rotate else (lambda rows: np.sum(LABELS[rows] < 5))
    for rows, tests, deployed, drifted in zip(split.rows, split.test, split.deployment, later, strict=True):
        new = len(tests) + len(deployed) + len(drifted)
        assert len(tests) > 0 or new == 0
        assert len(drifted) == max(min(np.rint(new * deployment) + np.rint(new * drift), new - 1) - len(deployed), 0)
        assert new == np.rint((len(rows) + new) * share)
        assert len(deployed) == min(np.rint(new * deployment), new - 1)
        # Each part has the mixture up to the rounding of one row, or two where a part is what another leaves.
        first = in_first(rows) / len(rows)
        assert abs(in_first(deployed) - (1 - first) * len(deployed)) <= 1 + len(deployed) / len(rows)
        assert abs(in_first(tests) - (1 - first) * len(tests)) <= 2 + len(tests) / len(rows)


def test_rotation_keeps_labels_and_turns_the_second_share():
    split = mixture(LABELS, clients=4, pattern="30:70", rotate=True)
    shares = [np.mean(rows < len(LABELS)) for rows in split.rows]
    np.testing.assert_allclose(shares, [0.3, 0.3, 0.7, 0.7], atol=0.01)
    used = np.concatenate(split.rows)
    assert sorted(used[used >= len(LABELS)] - len(LABELS)) == list(range(len(split.rotated)))
    assert len(used) >= 2000 - 8


@pytest.mark.parametrize("pattern", ["0:100", "100:0"])
def test_extreme_percentages_work(pattern):
    split = mixture(LABELS, clients=4, pattern=pattern, rotate=True)
    assert {tuple(np.unique(rows < len(LABELS))) for rows in split.rows} == {(True,), (False,)}


def test_sizes_may_be_given_or_drawn():
    assert {len(r) for r in mixture(LABELS, clients=4, size=33).rows} == {33}
    sizes = [len(r) for r in mixture(LABELS, clients=10, size=(20, 30), seed=1).rows]
    assert min(sizes) >= 20
    assert max(sizes) <= 30
    assert len(set(sizes)) > 1


def test_the_server_keeps_a_share_of_each_distribution():
    split = mixture(LABELS, clients=4, holdout=0.2)
    assert set(split.held) == {"distribution_0", "distribution_1"}
    assert [len(rows) for rows in split.held.values()] == [200, 200]
    assert [first_share(rows) for rows in split.held.values()] == [1.0, 0.0]


def test_blocks_mix_their_own_with_the_others():
    split: Any = block_mixture(LABELS, clients=20, blocks=5)
    np.testing.assert_array_equal(split.group, np.repeat(np.arange(5), 4))
    for client, rows in enumerate(split.rows):
        own = np.mean(LABELS[rows] // 2 == split.group[client])
        assert abs(own - (client % 4 + 0.5) / 4) < 0.02


@pytest.mark.parametrize("pattern", ["10:90", "70:30", "40:60", "linear", "random"])
@pytest.mark.parametrize("blocks", [2, 4, 5])
def test_patterns_of_blocks(pattern, blocks):
    """Shares of one's own block by the pattern, of the others alike. Two blocks are a mixture."""
    labels = np.repeat(np.arange(20), 200)
    split: Any = block_mixture(labels, clients=20, blocks=blocks, pattern=pattern, size=100, unseen=blocks)
    place = np.searchsorted(np.cumsum([len(part) for part in np.array_split(np.arange(20), blocks)]), labels, "right")
    shares = np.array([np.bincount(place[rows], minlength=blocks) / len(rows) for rows in split.rows])
    own = shares[np.arange(len(shares)), split.group]
    if pattern == "random":
        assert len(set(own[:20])) > 10
    elif pattern == "linear":
        np.testing.assert_array_equal(np.argsort(own[:20][split.group[:20] == 1]), np.arange(20 // blocks))
    else:
        np.testing.assert_allclose(own, max(map(int, pattern.split(":"))) / 100, atol=0.011)  # whole rows
    others = np.where(np.arange(blocks) == split.group[:, None], ((1 - own) / (blocks - 1))[:, None], shares)
    np.testing.assert_allclose(others, ((1 - own) / (blocks - 1))[:, None] + 0 * shares, atol=0.011)
    if blocks == 2 and ":" in pattern:
        larger_first = ":".join(sorted(pattern.split(":"), reverse=True))
        two = mixture(labels, clients=20, unseen=2, pattern=larger_first, size=100)
        np.testing.assert_allclose([np.mean(labels[rows] < 10) for rows in two.rows], shares[:, 0], atol=0.011)
        np.testing.assert_array_equal(two.group, split.group)


def test_class_clusters_are_consecutive_classes():
    split: Any = class_clusters(LABELS, clients=9, unseen=3, k=3)
    np.testing.assert_array_equal(split.group, [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2])
    for client, rows in enumerate(split.rows):
        assert set(LABELS[rows] // 3) == {split.group[client]}
        assert len(rows) == 150
