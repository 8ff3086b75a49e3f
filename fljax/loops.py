"""Loops with a traced number of turns that reverse mode can differentiate.

Floor 0: imports JAX only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Int, PyTree


def repeat(
    count: int | Int[Array, ""], body: Callable[[Int[Array, ""], PyTree], PyTree], carry: PyTree, *, most: int
) -> PyTree:
    """``body(count - 1, ... body(1, body(0, carry)))``.

    A traced ``count`` is the trip count of a while loop, so that no turn is computed in vain. JAX cannot differentiate
    such a loop in reverse mode. Where it is differentiated, it is a scan of ``most`` turns instead, of which those
    beyond ``count`` leave the carry as it is.

    Args:
      count: how many turns; below 0 is 0, and above ``most`` is ``most``.
      body: ``(turn, carry) -> carry``; the carry keeps its structure, shapes and dtypes.
      carry: what the first turn is given.
      most: the largest number of turns, static.

    Returns:
      The carry after the last turn.
    """
    start = jnp.zeros((), jnp.int32)
    if isinstance(count, int):
        return jax.lax.fori_loop(start, min(count, most), body, carry)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, carry))

    def flat_body(turn: Array, *leaves: Array) -> list[Array]:
        return jax.tree.leaves(body(turn, jax.tree.unflatten(structure, leaves)))

    # What the body closes over becomes an argument, so that the rule below knows its derivative.
    closed = jax.make_jaxpr(flat_body)(start, *leaves)
    real = [jnp.issubdtype(jnp.result_type(each), jnp.inexact) for each in closed.consts]

    def turn_of(smooth: list[Array], fixed: list[Array], turn: Array, leaves: list[Array]) -> list[Array]:
        parts = iter(smooth), iter(fixed)
        constants = [next(parts[0] if each else parts[1]) for each in real]
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))(turn, *leaves)

    @jax.custom_vjp
    def loop(count: Array, fixed: list[Array], smooth: list[Array], leaves: list[Array]) -> list[Array]:
        return jax.lax.fori_loop(start, count, lambda turn, leaves: turn_of(smooth, fixed, turn, leaves), leaves)

    def forward(
        count: Array, fixed: list[Array], smooth: list[Array], leaves: list[Array]
    ) -> tuple[list[Array], Callable[..., Any]]:
        def bounded(smooth: list[Array], leaves: list[Array]) -> list[Array]:
            def one(leaves: list[Array], turn: Array) -> tuple[list[Array], None]:
                after = turn_of(smooth, fixed, turn, leaves)
                return [jnp.where(turn < count, new, old) for new, old in zip(after, leaves, strict=True)], None

            return jax.lax.scan(one, leaves, jnp.arange(most, dtype=jnp.int32))[0]

        return jax.vjp(bounded, smooth, leaves)

    def backward(pullback: Callable[..., Any], cotangent: list[Array]) -> tuple[None, None, Any, Any]:
        return None, None, *pullback(cotangent)

    loop.defvjp(forward, backward)
    constants: dict[bool, list[Array]] = {each: [] for each in (False, True)}
    for constant, each in zip(closed.consts, real, strict=True):
        constants[bool(each)].append(constant)
    turns = jnp.clip(count, 0, most).astype(jnp.int32)
    return jax.tree.unflatten(structure, loop(turns, constants[False], constants[True], leaves))
