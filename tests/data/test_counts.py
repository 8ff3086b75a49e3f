"""count_clients: what each client of a federation has."""

from __future__ import annotations

import jax
import numpy as np

from fljax.data import count_clients, federate, from_clients, load
from fljax.data.counts import name_text


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
    assert found.clients == (0, 1, 2, 0, 1)
    assert found.unseen.tolist() == [False] * 3 + [True] * 2
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
