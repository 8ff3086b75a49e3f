"""Loops with a traced number of iterations that reverse mode can differentiate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Bool, Int, PyTree

Body = Callable[[Int[Array, ""], PyTree], PyTree]


def repeat(
    count: int | Int[Array, ""],
    body: Body,
    carry: PyTree,
    *,
    most: int,
    until: Callable[[PyTree], Bool[Array, ""]] | None = None,
) -> PyTree:
    """``body(count - 1, ... body(1, body(0, carry)))``, at most ``most`` (static), until ``until(carry)`` is true."""
    # A traced ``count`` is the trip count of a while loop, so no iteration is wasted. JAX cannot differentiate that in
    # reverse mode, so differentiation uses a scan of ``most`` iterations; those beyond ``count`` change nothing.
    # Forward mode is not supported if ``count`` is traced or ``until`` is given.
    if until is not None:

        def step(turn: Array, ended_and_carry: PyTree) -> PyTree:
            return _with_end(until, body(turn, ended_and_carry[1]))

        return _loop(jnp.asarray(count), step, _with_end(until, carry), most)[1]
    if isinstance(count, int | np.integer):
        whole = min(int(count), most)
        return jax.lax.fori_loop(0, whole, lambda turn, carry: body(jnp.asarray(turn, jnp.int32), carry), carry)
    return _loop(count, lambda turn, state: (state[0], body(turn, state[1])), (jnp.asarray(False), carry), most)[1]


def _with_end(until: Callable[[PyTree], Array], carry: PyTree) -> tuple[Array, PyTree]:
    return jnp.asarray(until(carry), bool), carry


def _loop(count: Array, body: Body, carry: tuple[Array, PyTree], most: int) -> tuple[Array, PyTree]:
    """Like ``repeat``, for a carry with a flag as first part: whether the loop has ended."""
    if getattr(jax.config, "jax_disable_jit", False):
        with contextlib.suppress(jax.errors.ConcretizationTypeError):  # under a vmap
            return _loop_in_python(int(count), body, carry, most)
    start = jnp.zeros((), jnp.int32)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, carry))

    def flat_body(turn: Array, *leaves: Array) -> list[Array]:
        after = body(turn, jax.tree.unflatten(structure, leaves))
        if jax.tree.structure(after) != structure:
            raise TypeError(
                f"expected a body that keeps the carry's structure, {structure}, got {jax.tree.structure(after)}"
            )
        return jax.tree.leaves(after)

    # The body's captured arrays become arguments, so that the rule below can give their derivatives.
    closed = jax.make_jaxpr(flat_body)(start, *leaves)
    real = [bool(jnp.issubdtype(jnp.result_type(entry), jnp.inexact)) for entry in closed.consts]

    def turn_of(smooth: list[Array], fixed: list[Array], turn: Array, leaves: list[Array]) -> list[Array]:
        parts = iter(smooth), iter(fixed)
        constants = [next(parts[0] if entry else parts[1]) for entry in real]
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))(turn, *leaves)

    def goes_on(count: Array, turn: Array, leaves: list[Array]) -> Array:
        return (turn < count) & ~leaves[0]

    @jax.custom_vjp
    def run(count: Array, fixed: list[Array], smooth: list[Array], leaves: list[Array]) -> list[Array]:
        def one(state: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
            return state[0] + 1, turn_of(smooth, fixed, *state)

        return jax.lax.while_loop(lambda state: goes_on(count, *state), one, (start, leaves))[1]

    def forward(count: Any, fixed: Any, smooth: Any, leaves: Any) -> tuple[list[Array], Callable[..., Any]]:
        turns, others = count.value, [entry.value for entry in fixed]
        # Only perturbed arguments have cotangents; the examples of a data set, for example, have none.
        varied: tuple[dict[int, Any], ...] = tuple(
            {place: entry.value for place, entry in enumerate(part) if entry.perturbed} for part in (smooth, leaves)
        )

        def bounded(constants: dict[int, Any], begin: dict[int, Any]) -> list[Array]:
            last = jnp.maximum(turns - 1, 0)

            def one(leaves: list[Array], turn: Array) -> tuple[list[Array], None]:
                on = goes_on(turns, turn, leaves)
                # An iteration beyond the count is computed and discarded. It repeats a valid turn number with inputs
                # without derivatives, so it cannot make a gradient NaN.
                stopped_constants = {
                    place: jnp.where(on, entry, jax.lax.stop_gradient(entry)) for place, entry in constants.items()
                }
                stopped = [jnp.where(on, entry, jax.lax.stop_gradient(entry)) for entry in leaves]
                every: list[Any] = [stopped_constants.get(place, entry.value) for place, entry in enumerate(smooth)]
                after = turn_of(every, others, jnp.minimum(turn, last), stopped)
                return [jnp.where(on, new, old) for new, old in zip(after, leaves, strict=True)], None

            first = [begin.get(place, entry.value) for place, entry in enumerate(leaves)]
            return jax.lax.scan(one, first, jnp.arange(most, dtype=jnp.int32))[0]

        return jax.vjp(bounded, *varied)

    def backward(pullback: Callable[..., Any], cotangent: list[Any]) -> tuple[None, None, list[Any], list[Any]]:
        constants, begin = pullback([_instantiated(entry) for entry in cotangent])
        return (
            None,
            None,
            [constants.get(place) for place in range(sum(real))],
            [begin.get(i) for i in range(len(leaves))],
        )

    run.defvjp(forward, backward, symbolic_zeros=True)
    pairs = list(zip(closed.consts, real, strict=True))
    smooth, fixed = ([constant for constant, entry in pairs if entry == kind] for kind in (True, False))
    turns = jnp.clip(count, 0, most).astype(jnp.int32)
    return jax.tree.unflatten(structure, run(turns, fixed, smooth, leaves))


def _loop_in_python(count: int, body: Body, carry: tuple[Array, PyTree], most: int) -> tuple[Array, PyTree]:
    """``_loop`` without tracing the body, as JAX's own loops are without ``jit``."""
    carry = jax.tree.map(jnp.asarray, carry)
    for turn in range(min(count, most)):
        if carry[0]:
            break
        carry = jax.tree.map(jnp.asarray, body(jnp.asarray(turn, jnp.int32), carry))
    return carry


def _instantiated(cotangent: Any) -> Any:
    """The cotangent as an array. Symbolic zeros become zeros, of dtype float0 for whole numbers."""
    if not isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return cotangent
    kind: Any = cotangent
    shape, dtype = kind.shape, kind.dtype
    return np.zeros(shape, dtype) if dtype == jax.dtypes.float0 else jnp.zeros(shape, dtype)
