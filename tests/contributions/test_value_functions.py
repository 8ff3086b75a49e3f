"""Shapley values: the definition, games with closed forms, and the error of sampling."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import coalition_value, exact_shapley, monte_carlo_shapley

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation", "x64")]
CLIENTS = 5
BITS = 2 ** np.arange(CLIENTS)


def table(seed):
    """Values of all coalitions of 5 by code, drawn."""
    return np.random.default_rng(seed).normal(size=2**CLIENTS)


def game(values):
    values = jnp.asarray(values)
    return lambda members: values[jnp.sum(jnp.where(members, jnp.asarray(BITS), 0))]


def by_orders(values):
    """The definition: the mean over all orders of arrival."""
    found = np.zeros(CLIENTS)
    for order in itertools.permutations(range(CLIENTS)):
        code = 0
        for client in order:
            found[client] += values[code | BITS[client]] - values[code]
            code |= BITS[client]
    return found / math.factorial(CLIENTS)


@pytest.mark.parametrize("seed", range(3))
def test_the_definition(seed):
    """From which efficiency, additivity and symmetry follow."""
    values = table(seed)
    found = exact_shapley(game(values), CLIENTS)
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, by_orders(values), rtol=1e-12, atol=1e-12)
    codes = np.arange(2**CLIENTS)
    assert exact_shapley(game(values[codes & ~4]), CLIENTS)[2] == 0  # a null player gets nothing, exactly


def test_known_games():
    glove = lambda members: (members[0] & (members[1] | members[2])).astype(float)  # noqa: E731
    np.testing.assert_allclose(exact_shapley(glove, 3), [2 / 3, 1 / 6, 1 / 6], rtol=1e-12)
    votes = jnp.asarray([4, 3, 2, 1])  # a majority of 6 among 10
    wins = lambda members: (jnp.sum(jnp.where(members, votes, 0)) >= 6).astype(float)  # noqa: E731
    np.testing.assert_allclose(exact_shapley(wins, 4), np.array([5, 3, 3, 1]) / 12, rtol=1e-12)
    np.testing.assert_allclose(exact_shapley(lambda members: members[0] * 3, 1), [3.0])


def airport(costs):
    """The runway costs what the largest needs; each piece of it is shared by those who need it."""
    value = lambda members: jnp.max(jnp.where(members, jnp.asarray(costs), 0.0))  # noqa: E731
    pieces = np.diff(costs, prepend=0.0) / np.arange(len(costs), 0, -1)
    return value, np.cumsum(pieces)


@pytest.mark.parametrize("batch_size", [None, 7, 256, 5000])
def test_the_airport_game_for_any_batch_size(batch_size):
    value, expected = airport(np.array([1.0, 2.5, 2.5, 4.0, 7.0, 7.5, 9.0, 12.0, 20.0, 21.0]))
    np.testing.assert_allclose(exact_shapley(value, 10, batch_size=batch_size), expected, rtol=1e-12)


def test_exact_values_under_jit():
    values = table(0)
    compiled = jax.jit(lambda values: exact_shapley(game(values), CLIENTS))
    np.testing.assert_allclose(compiled(values), by_orders(values), rtol=1e-12, atol=1e-12)
    assert exact_shapley(game(jnp.asarray(values, jnp.float32)), CLIENTS).dtype == jnp.float32


@pytest.mark.parametrize("antithetic", [False, True])
def test_sampling_is_within_its_own_errors(antithetic):
    value, expected = airport(np.arange(1.0, 11.0) ** 2)
    sample = jax.jit(lambda key: monte_carlo_shapley(key, value, 10, 400, antithetic=antithetic))
    estimate, error = sample(jax.random.key(0))
    assert estimate.dtype == error.dtype == jnp.float64
    assert (error > 0).all()
    assert (abs(estimate - expected) < 4 * error).all()
    np.testing.assert_allclose(estimate.sum(), 100.0, rtol=1e-12)
    # What is called the standard error is the deviation of the estimate between seeds.
    many, errors = jax.vmap(sample)(jax.random.split(jax.random.key(1), 100))
    np.testing.assert_allclose(many.std(axis=0, ddof=1), errors.mean(axis=0), rtol=0.3)
    np.testing.assert_allclose(many.mean(axis=0), expected, atol=0.5)
    assert (abs(many.mean(axis=0) - expected) < 4 * errors.mean(axis=0) / 10).all()


def test_the_error_falls_with_more_permutations_and_in_pairs():
    value, expected = airport(np.arange(1.0, 9.0))
    key = jax.random.key(3)
    few, error_of_few = monte_carlo_shapley(key, value, 8, 100)
    many, error_of_many = monte_carlo_shapley(key, value, 8, 6400)
    np.testing.assert_allclose(error_of_many, error_of_few / 8, rtol=0.35)
    assert jnp.sum(abs(many - expected)) < jnp.sum(abs(few - expected))
    _, paired = monte_carlo_shapley(key, value, 8, 6400, antithetic=True)
    assert (paired < error_of_many).all()


def test_batches_make_no_difference_to_samples():
    value, _ = airport(np.arange(1.0, 8.0))
    found = [monte_carlo_shapley(jax.random.key(0), value, 7, 30, batch_size=size) for size in (1, 4, 20, 10_000)]
    for other in found[1:]:
        np.testing.assert_allclose(np.stack(other), np.stack(found[0]), rtol=1e-12)


def test_samples_of_an_additive_game_are_exact():
    worth = jnp.asarray([3.0, -1.0, 0.0, 2.0])
    value = lambda members: jnp.sum(jnp.where(members, worth, 0))  # noqa: E731
    estimate, error = monte_carlo_shapley(jax.random.key(0), value, 4, 5)
    np.testing.assert_allclose(estimate, worth, atol=1e-12)
    np.testing.assert_allclose(error, 0, atol=1e-12)
    assert np.isnan(monte_carlo_shapley(jax.random.key(0), value, 4, 1)[1]).all()
    assert np.isnan(monte_carlo_shapley(jax.random.key(0), value, 4, 2, antithetic=True)[1]).all()
    one, none = monte_carlo_shapley(jax.random.key(0), lambda members: 2.0 * members[0], 1, 3)
    assert (one.tolist(), none.tolist()) == ([2.0], [0.0])


MODEL = {"w": np.array([1.0, -1.0]), "b": np.array(0.5)}
UPDATES = {"w": np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 1.0]]), "b": np.array([0.5, 0.0, 1.0])}


def square(params):
    return jnp.sum(params["w"] ** 2) + params["b"] ** 2


@pytest.mark.parametrize("weights", [None, (1.0, 3.0, 2.0)])
def test_a_coalition_is_worth_its_mean_update(weights):
    a = np.ones(3) if weights is None else np.asarray(weights)
    value = coalition_value(UPDATES, MODEL, square, None if weights is None else jnp.asarray(weights))
    worth = jax.jit(value)
    for code in range(8):
        members = np.asarray([code & 1, code & 2, code & 4], bool)
        model = {name: np.asarray(leaf, float) for name, leaf in MODEL.items()}
        if code:
            for name, leaf in UPDATES.items():
                model[name] = model[name] + np.average(leaf[members], axis=0, weights=a[members])
        np.testing.assert_allclose(worth(members), -(sum(model["w"] ** 2) + model["b"] ** 2), rtol=1e-12)
    found = exact_shapley(value, 3)
    np.testing.assert_allclose(found.sum(), worth(np.ones(3, bool)) + square(MODEL), rtol=1e-12)
    estimate, error = monte_carlo_shapley(jax.random.key(0), value, 3, 500)
    assert (abs(estimate - found) <= 4 * error).all()


def test_updates_without_weight_are_never_read():
    broken = {"w": jnp.asarray(UPDATES["w"]).at[1].set(jnp.nan), "b": jnp.asarray(UPDATES["b"]).at[1].set(jnp.inf)}
    value = coalition_value(broken, MODEL, square, jnp.asarray([1.0, 0.0, 2.0]))
    found = exact_shapley(value, 3)
    assert np.isfinite(found).all()
    # Alone it moves nothing, and beside others it changes no mean.
    np.testing.assert_allclose(found[1], 0, atol=1e-12)


def test_code_of_the_host_is_one_sentence():
    def value(members):
        return float(np.asarray(members).sum())

    words = (
        r"expected value to be a function of jax\.numpy, .* \(TracerArrayConversionError\); jax\.pure_callback calls"
    )
    with pytest.raises(ValueError, match=words):
        exact_shapley(value, 3)
    with pytest.raises(ValueError, match=r"expected value to be a function of jax\.numpy"):
        monte_carlo_shapley(jax.random.key(0), lambda members: 1.0 if members[0] else 0.0, 3, 2)

    with pytest.raises(ValueError, match=r"expected value to be a function of jax\.numpy"):
        exact_shapley(lambda members: jnp.arange(3)[members].sum(), 3)

    def called(members):
        return jax.pure_callback(value, jax.ShapeDtypeStruct((), jnp.float64), members, vmap_method="sequential")

    np.testing.assert_allclose(exact_shapley(called, 3), 1)
