"""What a client outside the federation of a run holds."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import data, models
from fljax.data.datasets import training_moments
from fljax.engine.rounds.states import by_id
from fljax.engine.whole_runs.program import Scales, by_themselves, rows_of_members
from tests.toys.federation import tiny_federation


def test_who_is_outside_has_test_rows_alone() -> None:
    """Also where data change during training (``later``) or before use (``deployment``)."""
    stored = by_id(tiny_federation())
    clients = stored.clients._replace(later=stored.clients.train, deployment=stored.clients.valid)
    member = jnp.asarray([True, False, True, False, True])
    parts = rows_of_members(stored._replace(clients=clients), member).clients.parts
    for name, rows in parts.items():
        whole = clients.parts[name].size
        np.testing.assert_array_equal(rows.size, whole if name == "test" else jnp.where(member, whole, 0))


def test_moments_of_members_are_those_of_a_federation_of_them() -> None:
    """Bit by bit, at any offset, and whatever is outside; everybody has those that are given, nobody 0 and 1."""
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(60, 3)) * [1, 1e-3, 1e9] + [1e4, 0, -1e12]).astype(np.float32)
    x[45:] = [[np.nan, np.inf, 3e38]]
    who, y = np.repeat(range(4), 15), np.arange(60) % 2
    made = data.Dataset(x, y, 2, 60, owner=who, standardise=True)
    member = np.array([[1, 1, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    given = [data.federate(made._replace(x=np.nan_to_num(x)), "natural", seed=seed) for seed in (0, 1)]
    plain = data.federate(made._replace(x=np.nan_to_num(x), standardise=False), "natural")
    whole = data.stack([*given, plain])
    scales: Any = Scales.of(whole._replace(examples=whole.examples._replace(x=jnp.asarray(x))))
    for seed, federation in enumerate(given):
        found, trains = scales.of_members(member, np.full(5, seed)), data.row_numbers(federation, "train")
        for run, inside in enumerate(member[:3]):
            expected = training_moments(x, [trains[client] for client in np.flatnonzero(inside)])
            np.testing.assert_array_equal([leaf[run] for leaf in found], expected)
        np.testing.assert_array_equal([leaf[3] for leaf in found], [np.zeros(3), np.ones(3)])
        np.testing.assert_array_equal([leaf[4] for leaf in found], federation.moments)
    np.testing.assert_array_equal(scales.of_members(member, np.full(5, 2)), [np.zeros((5, 3)), np.ones((5, 3))])
    assert Scales.of(plain) is None


@pytest.mark.parametrize(("examples", "unseen"), [("device", 2), ("host", 1)])
def test_models_trained_alone_see_features_in_their_own_units(examples: Any, unseen: int) -> None:
    """Of seen clients and unseen ones; a factor of one client's features, such as another currency, is none."""
    draw = np.random.default_rng(0)
    x, y, who = draw.normal(size=(80, 3)), draw.integers(0, 2, 80), np.repeat(range(4), 20)
    task, local = models.logistic_regression((3,), 2), fljax.Local(0.5, 8, steps=5)
    losses = []
    for unit in (np.ones(4), np.array([1, 8, 1 / 4, 64])):
        made = data.dataset(x * unit[who][:, None], y, owner=who)._replace(standardise=True)
        federation = data.stack(data.federations(made, "natural", seeds=2, unseen=unseen))
        how = fljax.Execution(examples=examples)
        found = fljax.standalone(task, by_themselves(federation), local, seeds=2, execution=how)
        losses.append([found.test_loss, found.unseen_test_loss])
    for one, other in zip(*losses, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
