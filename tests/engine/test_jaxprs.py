"""What traced programs tell."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fljax.engine.devices.client_mapping import arguments_read, is_all_true, step_bytes, steps_differ

MATRIX = 4 * 64 * 64
X, KERNEL = (jax.ShapeDtypeStruct((64, 64), jnp.float32) for _ in range(2))


def bytes_of(function: Any, *arguments: Any, platform: str = "tpu") -> int:
    """Of the function's step."""
    return step_bytes(jax.make_jaxpr(function)(*arguments).jaxpr, platform)


def two_products(x: Any, kernel: Any) -> Any:
    return jnp.tanh(x @ kernel) @ kernel


def test_it_is_found_whether_steps_differ() -> None:
    """JAX 0.12 dropped numbers of operands from its loops; a form that is not known has equal steps."""
    x = jnp.zeros((8, 8))
    fixed = jax.make_jaxpr(lambda x: lax.fori_loop(0, 9, lambda i, c: c @ x, x))(x).jaxpr
    counted = jax.make_jaxpr(jax.jit(lambda x, n: lax.fori_loop(0, n, lambda i, c: c @ x, x)))(x, 3).jaxpr
    assert not steps_differ(fixed)
    assert steps_differ(counted)
    assert not steps_differ(object())


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x, jnp.ones(4, bool)), True),
        (lambda x: (x, jax.jit(lambda: jnp.ones(4, bool))()), True),
        (lambda x: (x, jnp.zeros(4, bool)), False),
        (lambda x: (x, x[0] > 0), False),
        (lambda x: (x, jnp.ones(4, bool) & (x[0, :4] < 3)), False),
        (lambda x: (x, jnp.broadcast_to(x[0, 0] > 0, 4)), False),
    ],
)
def test_it_is_found_whether_a_result_is_written_as_true(function: Any, expected: bool) -> None:
    assert is_all_true(jax.make_jaxpr(function)(X).jaxpr, 1) is expected
    assert not is_all_true(object(), 1)


def test_every_operation_reads_and_writes() -> None:
    """Three operations write a matrix; two of them read two, one reads one."""
    assert bytes_of(two_products, X, KERNEL) == 8 * MATRIX
    assert bytes_of(jax.jit(two_products), X, KERNEL) == 8 * MATRIX
    assert bytes_of(lambda x: x.reshape(-1), X) == 0
    assert step_bytes(object(), "tpu") == 0


def test_a_read_by_index_moves_what_it_gives() -> None:
    row = 4 * 64
    assert bytes_of(lambda x: lax.dynamic_slice_in_dim(x, 3, 1), X) == 2 * row
    assert bytes_of(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, 3, 0), X, jnp.ones((1, 64))) == 2 * row
    # One index is normalised first, in scalars.
    assert 2 * row <= bytes_of(lambda x, i: x[i], X, jnp.zeros((1,), jnp.int32)) < 3 * row


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_of_a_loop_one_turn_counts(loop: str) -> None:
    """The code outside moves more than one turn, but less than all turns."""
    body = lambda _, x: jnp.tanh(x)  # noqa: E731

    def function(x: Any, kernel: Any, turns: Any) -> Any:
        return lax.fori_loop(0, 9 if loop == "scan" else turns, body, two_products(x, kernel))

    found = bytes_of(function, X, KERNEL, 3)
    assert 2 * MATRIX <= found < 2 * MATRIX + 64  # and the loop's counter


def test_inner_loops_count_with_all_their_turns_and_with_what_they_stack_up() -> None:
    """A recurrent network in a loop over steps; the outputs of its 5 turns are kept."""

    def step(_: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda x, _: (jnp.tanh(x), jnp.tanh(x)), x, None, length=5)[1], axis=0)

    found = bytes_of(lambda x: lax.fori_loop(0, 9, step, x), X)
    of_turns, of_results, of_the_sum = 5 * 4 * MATRIX, (1 + 5) * MATRIX, (5 + 1) * MATRIX
    assert found >= of_turns + of_results + of_the_sum
    assert found < of_turns + of_results + of_the_sum + 64


def test_code_that_moves_more_than_the_loop_counts() -> None:
    """Beside the loop's result."""
    short = lambda x, kernel: lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x), two_products(x, kernel))  # noqa: E731
    assert 9 * MATRIX <= bytes_of(short, X, KERNEL) < 9 * MATRIX + 64


def test_a_choice_without_a_branch_for_the_platform_is_not_known() -> None:
    function = lambda x: lax.platform_dependent(x, cpu=jnp.tanh, cuda=jnp.sin)  # noqa: E731
    assert bytes_of(function, X, platform="tpu") == 0
    assert bytes_of(function, X, platform="gpu") == 2 * MATRIX


def test_the_platform_has_its_own_branch() -> None:
    def function(x: Any, kernel: Any) -> Any:
        return lax.platform_dependent(
            x, kernel, cpu=two_products, cuda=lambda x, kernel: x @ kernel, default=lambda x, kernel: jnp.tanh(x)
        )

    found = {name: bytes_of(jax.vmap(function, (0, None)), X, KERNEL, platform=name) for name in ("cpu", "gpu", "tpu")}
    assert (found["tpu"], found["gpu"], found["cpu"]) == (2 * MATRIX, 3 * MATRIX, 8 * MATRIX)


def test_of_other_conditions_the_branch_that_moves_the_most_counts() -> None:
    function = lambda x, kernel, sure: lax.cond(sure, two_products, lambda x, kernel: x, x, kernel)  # noqa: E731
    assert 8 * MATRIX <= bytes_of(function, X, KERNEL, True) < 8 * MATRIX + 64


def test_arguments_read() -> None:
    def read(function: Any) -> list[bool]:
        one = jnp.float32(1)
        return arguments_read(jax.make_jaxpr(function)(one, one, one).jaxpr)

    def looped(count: Any) -> Any:  # the loop overwrites what it begins with, if it has a turn
        return lambda a, b, c: jax.lax.fori_loop(0, count(b), lambda _, x: c, a)

    assert read(lambda a, b, c: a + 0 * jax.jit(lambda x, y: x)(a, b)) == [True, False, False]
    assert read(looped(lambda b: b.astype(int))) == [True, True, True]
    assert read(looped(lambda b: 0)) == [True, False, True]
    assert read(lambda a, b, c: jax.lax.cond(a > 0, lambda x, y: x, lambda x, y: 2 * x, b, c)) == [True, True, False]
    assert read(lambda a, b, c: jax.lax.scan(lambda x, _: (x * c, x), a, None, length=3)[0]) == [True, False, True]
    assert read(lambda a, b, c: jax.vmap(lambda x: jnp.sin(x) + b)(jnp.ones(2))) == [False, True, False]
