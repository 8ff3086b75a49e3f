"""A federation from the data of each client, and counts of what each client has."""

from __future__ import annotations

import jax
import numpy as np

from fljax import data
from fljax.data import count_clients, federate, from_clients, load
from fljax.data.clients import name_text
from fljax.engine.rounds.states import by_id
from fljax.protocol import Names


def examples(rows, seed=0, labels=("no", "yes")):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 3)), draw.choice(labels, rows)


def rows_of(federation, part, client):
    return data.row_numbers(federation, part)[client]


def test_every_key_is_a_client_with_its_rows():
    given = {"zoe": examples(10, 1), "adam": examples(5, 2)}
    made = data.from_clients(given, train_fraction=0.8)
    assert (made.names, made.clients.train.size.tolist()) == (Names(("no", "yes"), ("zoe", "adam")), [8, 4])
    assert made.clients.test.size.tolist() == [2, 1]
    assert made.names.classes is not None
    for client, (x, y) in enumerate(given.values()):
        rows = np.sort(np.concatenate([rows_of(made, part, client) for part in ("train", "test")]))
        np.testing.assert_allclose(made.examples.x[rows], x, rtol=1e-6)
        assert [made.names.classes[each] for each in np.asarray(made.examples.y)[rows]] == y.tolist()


def test_missing_parts_are_split_off():
    made = data.from_clients({1: {"train": examples(10), "test": examples(4)}}, valid_fraction=0.2)
    sizes = [getattr(made.clients, part).size.tolist() for part in ("train", "valid", "test")]
    assert sizes == [[8], [2], [4]]
    made = data.from_clients({1: {"train": examples(10)}}, train_fraction=0.5)
    assert made.clients.test.size.tolist() == [5]


def test_the_server_may_keep_rows_of_parts():
    given = {name: {"train": examples(20, i), "test": examples(5, i)} for i, name in enumerate("abc")}
    made = data.from_clients(given, held_fraction=0.1, unseen=1)
    assert made.names.clients is not None
    assert made.names.unseen is not None
    assert sorted([*made.names.clients, *made.names.unseen]) == ["a", "b", "c"]
    used = np.concatenate([rows_of(made, part, client) for part in ("train", "test") for client in range(2)])
    held = np.asarray(made.held["validation"].index)
    assert not set(used.tolist()) & set(held.tolist())
    tests = np.concatenate([given[name]["test"][0] for name in given])
    kept = np.asarray(made.examples.x)[held]
    assert not any((row == test).all() for row in kept for test in tests)  # of the training rows alone


def test_a_global_test_set():
    made = data.from_clients({"a": examples(5)}, test_data=examples(4, 1), test="global")
    assert (made.held["test"].size, made.clients.test.size.tolist(), made.names.clients) == (4, [4], ("a",))


def test_regression_keeps_numbers():
    given = {"a": (np.ones((4, 2)), [0.5, 1, 2, 3]), "b": (np.ones((2, 2)), [1, 2])}
    made = data.from_clients(given, regression=True)
    assert made.examples.y.dtype == np.float32
    assert made.names.classes is None


def test_names_are_in_no_program():
    given = {name: examples(8, i) for i, name in enumerate("abcd")}
    made = data.from_clients(given)
    assert len(jax.tree.leaves(made)) == len(jax.tree.leaves(made._replace(names=Names())))
    same = jax.jit(lambda federation: federation)(made)
    assert same.names == made.names
    assert by_id(made).names == Names(), "as the engine's programs see it"


def test_stacked_federations_keep_the_names_that_they_share():
    given = {name: examples(8, i) for i, name in enumerate("abcd")}
    made = data.dataset_from_clients(given)
    assert data.stack(data.federations(made, "natural", seeds=[0, 1])).names == Names(("no", "yes"), tuple("abcd"))
    drawn = data.federations(made, "natural", seeds=range(4), unseen=2)
    assert data.stack(drawn).names == Names(("no", "yes"))


def test_owners_of_arrays_are_names_too():
    made = data.from_arrays(np.ones((4, 2)), [0, 1, 0, 1], ["y", "x", "y", "x"])
    assert made.names.clients == ("x", "y")


def test_labels_of_training_rows_by_client():
    x = np.ones((4, 2))
    given = {
        "a": {"train": (x, ["no", "no", "yes", "no"]), "test": (x[:1], ["yes"])},
        "b": {"train": (x[:2], ["yes", "yes"]), "test": (x[:3], ["no"] * 3)},
    }
    found = count_clients(from_clients(given), 2)
    assert (found.clients, found.classes) == (("a", "b"), ("no", "yes"))
    assert found.labels is not None
    assert found.labels.tolist() == [[3, 1], [0, 2]]
    assert (found.train.tolist(), found.valid.tolist(), found.test.tolist()) == ([4, 2], [0, 0], [1, 3])
    assert found.targets is None


def test_unseen_clients_come_last_and_numbers_stand_for_names():
    made = federate(load("blobs", samples=60, classes=4), "iid", clients=3, unseen=2)
    found = count_clients(made, 4)
    assert (found.clients, found.unseen.tolist()) == ((0, 1, 2, 0, 1), [False] * 3 + [True] * 2)
    assert found.classes == (0, 1, 2, 3)
    assert found.labels is not None
    np.testing.assert_array_equal(found.labels.sum(axis=1), found.train)


def test_clients_are_in_the_order_of_their_ids():
    made = federate(load("blobs", samples=60, classes=4), "quantity", clients=3, minimum=2)
    turned = made._replace(clients=jax.tree.map(lambda leaf: leaf[::-1], made.clients))
    for one, other in zip(count_clients(made, 4)[2:6], count_clients(turned, 4)[2:6], strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_to_predict():
    found = count_clients(from_clients({"a": {"train": (np.ones((2, 1)), [0.5, 1.5]), "test": ([[1]], [2.0])}}), None)
    assert (found.labels, found.classes) == (None, ())
    assert found.targets is not None
    assert sorted(found.targets[0].tolist()) == [0.5, 1.5]


def test_names_with_spaces_are_quoted():
    assert [name_text(each) for each in ("a b", " ", "", 3, True)] == ["a b", "' '", "''", "3", "True"]
