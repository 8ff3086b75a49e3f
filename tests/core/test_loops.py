"""Loops with a traced number of turns: values, gradients, and what they compose with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.core.loops import repeat
from tests.drawn import at_most


def logistic(count: Any, rate: Any, most: int = 7) -> Any:
    """``x <- rate x (1 - x)``, so many times; the rate is closed over."""
    return repeat(count, lambda turn, x: rate * x * (1 - x), jnp.asarray(0.3), most=most)


def by_hand(count: int, rate: float) -> float:
    x = 0.3
    for _ in range(count):
        x = rate * x * (1 - x)
    return x


@at_most(30)
@given(st.integers(-2, 9), st.floats(0.5, 3.5))
def test_values_and_gradients(count: int, rate: float) -> None:
    turns = int(np.clip(count, 0, 7))
    value, slope = VALUE_AND_SLOPE(jnp.int32(count), rate)
    np.testing.assert_allclose(value, by_hand(turns, rate), rtol=1e-5)
    np.testing.assert_allclose(LOGISTIC(jnp.int32(count), rate), by_hand(turns, rate), rtol=1e-5)
    step = 1e-5
    expected = (by_hand(turns, rate + step) - by_hand(turns, rate - step)) / (2 * step)
    np.testing.assert_allclose(slope, expected, rtol=1e-3, atol=1e-3)


LOGISTIC = jax.jit(logistic)
VALUE_AND_SLOPE = jax.jit(jax.value_and_grad(logistic, argnums=1))


def test_a_count_that_python_knows() -> None:
    np.testing.assert_allclose(logistic(3, 2.0), by_hand(3, 2.0), rtol=1e-6)
    np.testing.assert_allclose(logistic(9, 2.0), by_hand(7, 2.0), rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(logistic, argnums=1)(2, 2.0), jax.grad(lambda r: r * r * 0.21 * (1 - r * 0.21))(2.0)
    )


@pytest.mark.thorough
def test_it_maps_and_maps_inside_gradients() -> None:
    counts, rates = jnp.arange(5), jnp.linspace(1.0, 3.0, 5)
    slopes = jax.vmap(jax.grad(logistic, argnums=1))(counts, rates)
    total = jax.grad(lambda rates: jnp.sum(jax.vmap(logistic)(counts, rates)))(rates)
    single = [jax.grad(logistic, argnums=1)(count, rate) for count, rate in zip(counts, rates, strict=True)]
    np.testing.assert_allclose(slopes, single, rtol=1e-5)
    np.testing.assert_allclose(total, single, rtol=1e-5)


def test_whole_numbers_keys_and_choices_may_be_closed_over() -> None:
    """A whole number that depends on what is differentiated has no derivative, and is no obstacle."""

    def drawn(rate: Any, key: Any) -> Any:
        place = jnp.argmax(jnp.stack([rate, 0.5 * rate]))

        def body(turn: Any, carry: Any) -> Any:
            x, seen = carry
            noise = jax.random.uniform(jax.random.fold_in(key, turn))
            return x + rate * noise * (place + 1), seen.at[turn].set(turn + place)

        x, seen = repeat(jnp.int32(3), body, (jnp.zeros(()), jnp.zeros(4, jnp.int32)), most=4)
        return x, seen

    key = jax.random.key(0)
    slope, seen = jax.jit(jax.grad(drawn, has_aux=True))(2.0, key)
    expected = sum(float(jax.random.uniform(jax.random.fold_in(key, turn))) for turn in range(3))
    np.testing.assert_allclose(slope, expected, rtol=1e-6)
    np.testing.assert_array_equal(seen, [0, 1, 2, 0])


@pytest.mark.in_turn
def test_turns_beyond_the_count_spoil_nothing() -> None:
    """The scan of reverse mode computes them, and drops them. The body is not defined at turn 2."""

    def inverse(rate: Any, count: Any) -> Any:
        return repeat(count, lambda turn, x: x + rate / (2.0 - turn), jnp.zeros(()), most=4)

    counts = jnp.asarray([0, 1, 2])
    np.testing.assert_allclose(jax.vmap(jax.grad(inverse), (None, 0))(1.0, counts), [0, 0.5, 1.5])
    total = jax.grad(lambda rate: jnp.sum(jax.vmap(inverse, (None, 0))(rate, counts)))
    np.testing.assert_allclose(jax.jit(total)(1.0), 2)


@pytest.mark.in_turn
def test_what_is_not_differentiated_has_no_cotangent() -> None:
    """A table of a million numbers that the body reads is not carried through the scan."""

    def loss(rate: Any, table: Any, count: Any) -> Any:
        return repeat(count, lambda turn, x: x + rate * table[turn], jnp.zeros(()), most=3)

    table = jnp.arange(10.0**6)
    compiled = jax.jit(jax.vmap(jax.grad(loss), (None, None, 0))).lower(1.0, table, jnp.arange(4)).compile()
    analysis: Any = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes < table.nbytes / 10
    np.testing.assert_allclose(compiled(1.0, table, jnp.arange(4)), [0, 0, 1, 3])


def test_a_body_that_changes_the_carry_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a body that keeps the carry's structure"):
        repeat(jnp.int32(1), lambda turn, x: (x,), jnp.zeros(()), most=2)


def test_forwards_it_is_a_while_loop() -> None:
    text = jax.jit(logistic).lower(jnp.int32(3), 2.0).as_text()
    assert "stablehlo.while" in text
    assert "tensor<7x" not in text


@pytest.mark.in_turn
def test_a_loop_that_ends_by_itself() -> None:
    """``x`` doubles until it is above 10; where it starts is what is differentiated."""

    def doubled(x: Any, count: Any = 9) -> Any:
        return repeat(count, lambda turn, x: 2 * x, x, most=9, until=lambda x: x > 10)

    for begin, count, times in ((1.0, 9, 4), (3.0, 9, 2), (11.0, 9, 0), (1.0, 2, 2)):
        np.testing.assert_allclose(doubled(jnp.asarray(begin), count), begin * 2**times)
        np.testing.assert_allclose(jax.grad(doubled)(begin, jnp.int32(count)), 2.0**times)
    starts = jnp.asarray([1.0, 3.0, 11.0])
    np.testing.assert_allclose(jax.vmap(doubled)(starts), [16, 12, 11])
    np.testing.assert_allclose(jax.vmap(jax.grad(doubled))(starts), [16, 4, 1])
