"""Contribution measures, free riders, and what a config may ask for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import contributions
from tests.refusals import refuses

SIZE = np.array([[10, 20, 30, 0], [5, 5, 40, 10]])
ACCURACY = np.array([[0.5, 0.25, 0.75, np.nan], [0.5, 0.5, 1.0, 0.25]], np.float32)
FACTS = {"size": SIZE, "population": 4, "standalone_accuracy": ACCURACY, "standalone_loss": 2 - ACCURACY}


def test_measures():
    np.testing.assert_array_equal(contributions.measure("size", FACTS), SIZE)
    np.testing.assert_array_equal(contributions.measure("standalone_accuracy", FACTS), ACCURACY)
    # 0.5 (1 + k / 4) for k = 1..4, the same for every seed.
    rates = contributions.measure("participation_rate", FACTS)
    np.testing.assert_allclose(rates, [[0.625, 0.75, 0.875, 1.0]] * 2)
    assert set(contributions.CONTRIBUTIONS) == {"size", "participation_rate", "standalone_accuracy"}
    assert all(contributions.measure(name, FACTS).dtype == np.float32 for name in contributions.CONTRIBUTIONS)


def test_numbers_serve_all_seeds():
    np.testing.assert_array_equal(contributions.measure([1, 0.5, 0, 2], FACTS), [[1, 0.5, 0, 2]] * 2)


def test_own_measures_get_what_they_ask_for(tmp_path, monkeypatch):
    (tmp_path / "own_measures.py").write_text(
        "def loss_and_size(size, standalone_loss, *, power=1.0):\n    return size ** power / standalone_loss\n"
        "def short(population):\n    return list(range(population - 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = contributions.Measure("own_measures:loss_and_size", {"power": 2.0})
    np.testing.assert_allclose(contributions.measure(chosen, FACTS), SIZE**2 / (2 - ACCURACY), rtol=1e-6)
    with pytest.raises(ValueError, match=r"'own_measures:short' to have one number for each of 4 clients .* \(3,\)"):
        contributions.measure("own_measures:short", FACTS)
    with pytest.raises(ValueError, match=r"expected one of the contributions size, participation_rate, .* got 'sise'"):
        contributions.measure("sise", FACTS)


def test_free_riders_alone_are_changed():
    found = contributions.free_riders(ACCURACY, [3, 0], 0.125)
    np.testing.assert_array_equal(found, [[0.125, 0.25, 0.75, 0.125], [0.125, 0.5, 1.0, 0.125]])
    by_seed = contributions.free_riders(ACCURACY, [1], jnp.asarray([0.0, 1.0]))
    np.testing.assert_array_equal(by_seed[:, 1], [0, 1])
    np.testing.assert_array_equal(contributions.free_riders(SIZE[0], [], 7.0), SIZE[0])
    np.testing.assert_array_equal(contributions.free_riders(SIZE[0], [2]), [10, 20, 0, 0])
    for ids in ([4], [-1], [1, 1]):
        with pytest.raises(ValueError, match="expected different ids of clients from 0 to 3"):
            contributions.free_riders(ACCURACY, ids)
    traced = jax.jit(lambda values, level: contributions.free_riders(values, (1,), level))
    np.testing.assert_array_equal(traced(SIZE[0], 3.0), [10, 3, 30, 0])


def induced(contribution, ceiling, kappa):
    """gamma' of IAFL, section 5.1."""
    rate = np.minimum(contribution / ceiling, 1) ** (1 - kappa)
    return rate - (rate - 1) / contribution.shape[-1]


@pytest.mark.in_turn
@pytest.mark.parametrize("kappa", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("ceiling", ["max", 2.0])
def test_a_free_rider_has_the_induced_rate_that_was_asked_for(kappa, ceiling):
    """The paper's: gamma' = 0.09, client 6 of 50."""
    own = np.random.default_rng(0).uniform(0.2, 0.9, (2, 50))
    own[:, 6] = 5.0  # what a free rider seemed to have is not the largest of the others
    level = contributions.contribution_at(0.09, own, [6], kappa=kappa, ceiling=ceiling)
    found = np.asarray(contributions.free_riders(own, [6], level), float)
    top = np.delete(own, 6, axis=1).max(axis=1, keepdims=True) if ceiling == "max" else ceiling
    np.testing.assert_allclose(induced(found, top, kappa)[:, 6], 0.09, rtol=1e-5)
    np.testing.assert_allclose(np.delete(found, 6, axis=1), np.delete(own, 6, axis=1), rtol=1e-6)


@pytest.mark.unchecked
def test_induced_rates_at_the_ends():
    own = jnp.asarray([0.2, 0.8, jnp.nan, 0.4])
    assert contributions.contribution_at(1.0, own) == pytest.approx(0.8)
    assert contributions.contribution_at(0.25, own) == 0
    assert contributions.contribution_at(0.1, own) == 0  # a client's own update is a quarter of all
    refuses(lambda: contributions.contribution_at(0.5, own, range(4)), "free riders only")
    with pytest.raises(ValueError, match="expected ceiling to be a positive number or 'max', got 'top'"):
        contributions.contribution_at(0.5, own, ceiling="top")  # type: ignore[arg-type]
    refuses(lambda: contributions.contribution_at(0.5, own[:1]), "expected at least 2 clients")


def test_free_riders_of_a_config():
    chosen = contributions.Measure("size", free_riders=(0, 2), level=1.5)
    np.testing.assert_array_equal(contributions.measure(chosen, FACTS), [[1.5, 20, 1.5, 0], [1.5, 5, 1.5, 10]])
    chosen = contributions.Measure(free_riders=(2,), induced_rate=0.5, ceiling=0.6, kappa=0.5)
    found = contributions.measure(chosen, FACTS)
    np.testing.assert_allclose(found[:, 2], 0.6 * (1 / 3) ** 2, rtol=1e-6)
    np.testing.assert_array_equal(found[:, [0, 1, 3]], ACCURACY[:, [0, 1, 3]])
    relative = contributions.measure(contributions.Measure("size", free_riders=(2,), induced_rate=0.5), FACTS)
    np.testing.assert_allclose(relative[:, 2], [20 / 3, 10 / 3], rtol=1e-6)  # of the largest of the others, by seed


@pytest.mark.unchecked
def test_a_mapping_is_no_measure():
    mapping: Any = {"name": "size", "free_riders": [0, 2], "level": 1.5}
    with pytest.raises(ValueError, match=r"expected one contribution for each of 4 clients, got \{'name': 'size'"):
        contributions.measure(mapping, FACTS)
