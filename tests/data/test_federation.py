"""federate, stack, pad, census, from_arrays."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.data import (
    Dataset,
    Partition,
    census,
    federate,
    federations,
    from_arrays,
    load,
    pad,
    row_numbers,
    stack,
)
from tests.drawn import at_most

BLOBS = load("blobs", samples=240, test_samples=40, classes=4, seed=1)
ALONE = load("blobs", samples=200, classes=4, seed=2)


def everything(federation, names=("train", "valid", "test")):
    groups = [False] + ([] if federation.unseen is None else [True])
    return np.concatenate([row for unseen in groups for name in names for row in rows_of(federation, name, unseen)])


def rows_of(federation, name, unseen=False):
    return row_numbers(federation, name, unseen=unseen)


@at_most(25)
@given(
    clients=st.integers(1, 12),
    unseen=st.integers(0, 4),
    seed=st.integers(0, 999),
    train=st.floats(0.01, 0.99),
    valid=st.just(0.0) | st.floats(0.001, 0.99),
    held=st.sampled_from([0.0, 0.1]),
    partition=st.sampled_from(["iid", "dirichlet", "quantity", "mixture"]),
)
def test_each_row_has_one_place(clients, unseen, seed, train, valid, held, partition):
    made: Any = federate(
        BLOBS,
        partition,
        clients=clients,
        unseen=unseen,
        seed=seed,
        train_fraction=train,
        valid_fraction=valid,
        held_fraction=held,
    )
    server = np.asarray(made.held["validation"].index) if held else np.zeros(0, int)
    used = np.concatenate([everything(made), server])
    assert len(np.unique(used)) == len(used)
    assert used.max() < 240, "upstream's test part is for tests"
    np.testing.assert_array_equal(made.held["test"].index, np.arange(240, 280))
    assert np.asarray(made.clients.train.size).min() >= 1
    assert np.asarray(made.clients.test.size).min() >= 1
    np.testing.assert_array_equal(made.clients.id, np.arange(clients))
    assert (made.unseen is None) == (unseen == 0)
    if made.unseen is not None:
        np.testing.assert_array_equal(made.unseen.id, np.arange(unseen))
    for leaf in jax.tree.leaves((made.clients, made.unseen, made.held)):
        assert leaf.dtype == jnp.int32
    assert made.lists.shape == (1 + len(everything(made)),), "each row is stored once, beside what empty lists read"


def test_fractions_are_those_asked_for():
    made = federate(ALONE, clients=4, train_fraction=0.6, valid_fraction=0.2)
    np.testing.assert_array_equal(made.clients.train.size, [24] * 4)
    np.testing.assert_array_equal(made.clients.valid.size, [6] * 4)
    np.testing.assert_array_equal(made.clients.test.size, [20] * 4)
    assert "test" not in made.held


def test_seed_decides_everything():
    one, again, other = (federate(ALONE, "dirichlet", clients=5, unseen=2, seed=seed) for seed in (3, 3, 4))
    assert all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(again)))
    assert not np.array_equal(everything(one), everything(other))


@pytest.mark.parametrize("dataset", [BLOBS, ALONE], ids=["upstream test part", "none"])
def test_a_global_test_set_is_everybodys(dataset):
    made = federate(dataset, clients=4, unseen=2, test="global", train_fraction=0.75)
    held = np.asarray(made.held["test"].index)
    assert made.unseen is not None
    for unseen in (False, True):
        for row in rows_of(made, "test", unseen):
            np.testing.assert_array_equal(row, held)
    trained = everything(made, ("train", "valid"))
    assert not set(trained) & set(held)
    assert len(trained) + len(held) == len(dataset.y)
    assert len(held) == (40 if dataset is BLOBS else 50)


def test_a_function_may_partition():
    def halves(labels, *, clients, unseen, seed, shift=0):
        return [np.arange(k, len(labels), clients + unseen) for k in range(clients + unseen)]

    made = federate(ALONE, halves, clients=3, unseen=1)
    assert set(everything(made) % 4) == {0, 1, 2, 3}
    assert set(np.concatenate(rows_of(made, "train")) % 4) == {0, 1, 2}


def test_whole_numbers_may_be_floats_and_empty():
    made = federate(ALONE, lambda labels, **options: [[], np.array([3.0, 1.0]), range(4, 8)], clients=3)
    assert sorted(everything(made)) == [1, 3, 4, 5, 6, 7]


def test_tiny_clients_keep_a_training_row_first():
    def sizes(labels, **options):
        return Partition(tuple(np.array(rows, int) for rows in ([], [0], [1, 2], [3, 4, 5])))

    made = federate(ALONE, sizes, clients=4, train_fraction=0.1, valid_fraction=0.9)
    np.testing.assert_array_equal(made.clients.train.size, [0, 1, 1, 1])
    np.testing.assert_array_equal(made.clients.test.size, [0, 0, 1, 2])
    assert made.clients.valid.index.shape == (4, 1)


def test_noise_and_fixed_test_rows_reach_the_clients():
    noisy: Any = federate(ALONE, "noise", clients=4, unseen=2, sigma=0.4)
    np.testing.assert_allclose(np.asarray(noisy.clients.noise), [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(noisy.unseen.noise), [0.2, 0.4], rtol=1e-6)
    swapped = federate(ALONE, "mixture", clients=4, complement=True, train_fraction=0.8, holdout=0.1)
    y = np.asarray(ALONE.y)
    train, test = (np.mean(y[rows_of(swapped, part)[0]] < 2) for part in ("train", "test"))
    assert train < 0.2
    assert test > 0.8
    assert abs(int(swapped.clients.test.size[0]) / int(swapped.clients.train.size[0]) - 0.25) < 0.1
    assert {"distribution_0", "distribution_1"} <= set(swapped.held)


def test_deployment_rows_are_the_share_of_later_rows_that_validation_rows_are_of_training_rows():
    options = {"clients": 4, "unseen": 2, "complement": True, "train_fraction": 0.5}
    made: Any = federate(ALONE, "mixture", **options, valid_fraction=0.25)
    assert made.unseen.deployment is not None
    y = np.asarray(ALONE.y)
    for unseen in (False, True):
        found = {part: row_numbers(made, part, unseen=unseen) for part in ("train", "valid", "test", "deployment")}
        mixed = {part: np.mean(y[rows[0]] < 2) for part, rows in found.items()}
        assert max(mixed["train"], mixed["valid"]) < 0.3
        assert min(mixed["test"], mixed["deployment"]) > 0.7
        later = len(found["test"][0]) + len(found["deployment"][0])
        assert len(found["deployment"][0]) == round(later / 4)
    everybody = np.concatenate([rows for part in made.clients.parts for rows in row_numbers(made, part)])
    assert len(set(everybody.tolist())) == len(everybody)
    assert federate(ALONE, "mixture", **options).clients.deployment is None
    one = federate(ALONE, "mixture", **options, valid_fraction=0.25, deployment_fraction=0.5)
    assert len(row_numbers(one, "deployment")[0]) > len(row_numbers(made, "deployment")[0])
    both = stack([made, federate(ALONE, "mixture", **options, valid_fraction=0.25, seed=1)])
    for own, alone in zip(row_numbers(both, "deployment")[:4], row_numbers(made, "deployment"), strict=True):
        np.testing.assert_array_equal(own, alone)


@pytest.mark.in_turn
def test_rotated_copies_follow_the_examples():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 4, 4, 1)).astype(np.uint8), rng.integers(0, 4, 60).astype(np.int32)
    made = federate(Dataset(x, y, 4, 50), "mixture", clients=2, pattern="30:70", rotate=True, held_fraction=0.1)
    stored = np.asarray(made.examples.x)
    originals = {image.tobytes(): label for image, label in zip(x[:50], y[:50], strict=True)}
    used = everything(made)
    turned = used[used >= 60]
    assert len(turned) == len(stored) - 60 > 0
    for row in turned:
        back = np.rot90(stored[row], k=-1)
        assert originals[np.ascontiguousarray(back).tobytes()] == made.examples.y[row]


def test_natural_owners_become_clients_and_strays_stay_out():
    made: Any = load("synthetic", clients=5, unseen=2, cap=70)
    dealt = federate(made, "natural", unseen=2)
    assert dealt.clients.id.shape == (5,)
    total = np.asarray(dealt.clients.train.size) + np.asarray(dealt.clients.test.size)
    for row, size in zip(rows_of(dealt, "train"), total, strict=True):
        (owner,) = set(made.owner[row])
        assert size == (made.owner == owner).sum()


def test_from_arrays_takes_names_as_owners():
    x, y = np.arange(12.0).reshape(12, 1), np.arange(12) % 2
    made = from_arrays(x, y, ["b", "a", "c"] * 4, test_data=(x[:3], y[:3]), test="global")
    assert made.examples.x.dtype == jnp.float32
    assert [set(row % 3) for row in rows_of(made, "train")] == [{1}, {0}, {2}]
    np.testing.assert_array_equal(made.held["test"].index, [12, 13, 14])


def seeds_of(dataset, partition="dirichlet", **options):
    return [federate(dataset, partition, clients=4, seed=seed, **options) for seed in (1, 2, 3)]


def assert_rows_equal(stacked, number, single):
    """Every client of the stack reads the very examples that it reads in its own federation."""
    for name in ("train", "valid", "test"):
        one, many = getattr(single.clients, name), getattr(stacked.clients, name)
        np.testing.assert_array_equal(many.size[number], one.size)
        moved_rows = rows_of(stacked, name)[number * len(one.size) : (number + 1) * len(one.size)]
        for moved, row in zip(moved_rows, rows_of(single, name), strict=True):
            np.testing.assert_array_equal(stacked.examples.x[moved], single.examples.x[row])
            np.testing.assert_array_equal(stacked.examples.y[moved], single.examples.y[row])


def test_a_number_of_seeds_is_the_seeds_from_zero():
    found = federations(BLOBS, "dirichlet", clients=4, seeds=2)
    for seed, each in enumerate(found):
        expected = federate(BLOBS, "dirichlet", clients=4, seed=seed)
        chex.assert_trees_all_equal((each.clients, each.lists), (expected.clients, expected.lists))


@pytest.mark.thorough
def test_stack_keeps_shared_examples_once():
    single = federations(BLOBS, "dirichlet", clients=4, unseen=1, seeds=(1, 2, 3))
    assert single[0].examples.x is single[1].examples.x
    for each in (single, seeds_of(BLOBS, unseen=1)):
        many: Any = stack(each)
        assert (many.examples.x.shape, many.clients.id.shape) == (BLOBS.x.shape, (3, 4))
        assert many.clients.noise is None
        assert (many.unseen.train.index.shape[:2], many.held["test"].index.shape) == ((3, 1), (3, 40))
        for number, federation in enumerate(each):
            assert_rows_equal(many, number, federation)


@pytest.mark.thorough
def test_stack_lays_different_examples_end_to_end():
    data = [load("synthetic", clients=3, cap=60, seed=seed) for seed in (1, 2)]
    single = [federate(each, "natural", seed=seed) for seed, each in enumerate(data)]
    many = stack([*single, single[0]])
    assert len(many.examples.y) == len(data[0].y) + len(data[1].y)
    for number, federation in enumerate([*single, single[0]]):
        assert_rows_equal(many, number, federation)


def test_stack_fills_missing_noise_with_zero():
    plain, noisy = federate(ALONE, clients=4, unseen=1), federate(ALONE, "noise", clients=4, unseen=1)
    many: Any = stack([plain, noisy])
    np.testing.assert_array_equal(many.clients.noise[0], [0] * 4)
    np.testing.assert_array_equal(many.clients.noise[1], noisy.clients.noise)
    assert many.unseen.noise is not None


@pytest.mark.thorough
def test_pad_changes_nothing_real():
    made = federate(BLOBS, "dirichlet", clients=4, unseen=1)
    longer = pad(made, 150, fill=7)
    assert longer.clients.train.index.shape == (4, max(150, made.clients.train.index.shape[1]))
    for name in ("train", "valid", "test"):
        for a, b in zip(rows_of(made, name), rows_of(longer, name), strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(longer.held["test"].index[40:], 7)
    assert longer.held["test"].index.shape == (150,)
    stacked = pad(stack([made, made]), 150)
    assert stacked.clients.valid.index.shape == (2, 4, 150)


def test_pad_and_stack_while_tracing():
    made = federate(BLOBS, clients=5, unseen=2, held_fraction=0.1, seed=3)
    tables = (made.clients, made.unseen, made.held)

    def both(tables):
        traced = made._replace(clients=tables[0], unseen=tables[1], held=tables[2])
        many = pad(stack([traced, traced]), 150, fill=7)
        return many.clients, many.unseen, many.held

    chex.assert_trees_all_equal(jax.jit(both)(tables), both(tables))


@pytest.mark.thorough
def test_census_counts_by_id_whatever_the_order():
    made = federate(BLOBS, "quantity", clients=5, valid_fraction=0.3)
    order = np.array([3, 0, 4, 1, 2])
    mixed = made._replace(clients=jax.tree.map(lambda leaf: leaf[order], made.clients))
    for counted in (census(made), census(mixed)):
        np.testing.assert_array_equal(counted.train, made.clients.train.size)
        np.testing.assert_array_equal(counted.valid, made.clients.valid.size)
    assert jax.vmap(census)(stack([made, made])._replace(examples=None, held={}, lists=None)).train.shape == (2, 5)
