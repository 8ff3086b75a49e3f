"""Mixtures of source distributions: shares, complements, rotation, blocks, clusters."""

import numpy as np
import pytest

from fljax.data.mixtures import block_mixture, class_clusters, mixture

LABELS = np.tile(np.arange(10), 200)


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


def test_complement_swaps_the_mixture_of_test_rows():
    split = mixture(LABELS, clients=10, pattern="10:90", complement=True, test_fraction=0.25)
    assert split.test is not None
    np.testing.assert_allclose([first_share(r) for r in split.rows], [0.1] * 5 + [0.9] * 5, atol=0.01)
    np.testing.assert_allclose([first_share(r) for r in split.test], [0.9] * 5 + [0.1] * 5, atol=0.01)
    assert abs(len(split.test[0]) / (len(split.test[0]) + len(split.rows[0])) - 0.25) < 0.01


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
    with pytest.raises(ValueError, match="source distributions"):
        mixture(LABELS, clients=4, size=5000)


@pytest.mark.parametrize("pattern", ["10:80", "liner", "a:b", ""])
def test_an_unknown_pattern_is_one_sentence(pattern):
    with pytest.raises(ValueError, match="expected one of the patterns"):
        mixture(LABELS, clients=4, pattern=pattern)


def test_one_class_cannot_be_two_distributions():
    with pytest.raises(ValueError, match="at least 2 classes"):
        mixture(np.zeros(50, int), clients=2)


def test_the_server_keeps_a_share_of_each_distribution():
    split = mixture(LABELS, clients=4, holdout=0.2)
    assert set(split.held) == {"distribution_0", "distribution_1"}
    assert [len(rows) for rows in split.held.values()] == [200, 200]
    assert [first_share(rows) for rows in split.held.values()] == [1.0, 0.0]


def test_blocks_mix_their_own_with_the_others():
    split = block_mixture(LABELS, clients=20, blocks=5)
    assert split.group is not None
    np.testing.assert_array_equal(split.group, np.repeat(np.arange(5), 4))
    for client, rows in enumerate(split.rows):
        own = np.mean(LABELS[rows] // 2 == split.group[client])
        assert abs(own - (client % 4 + 0.5) / 4) < 0.02


def test_class_clusters_are_consecutive_classes():
    split = class_clusters(LABELS, clients=9, unseen=3, k=3)
    assert split.group is not None
    np.testing.assert_array_equal(split.group, [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2])
    for client, rows in enumerate(split.rows):
        assert set(LABELS[rows] // 3) == {split.group[client]}
        assert len(rows) == 150
