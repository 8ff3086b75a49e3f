"""Gradients and inference passes are counted where programs are traced for it, and only there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core.loops import repeat
from fljax.training.evaluation import counting, tally


def work(turns: jax.Array) -> jax.Array:
    """One gradient in each turn of a loop with a traced number of turns, and three passes side by side."""

    def one(turn: jax.Array, carry: jax.Array) -> jax.Array:
        del turn
        value, slope = jax.value_and_grad(jnp.square)(carry)
        tally("gradient_steps", value)
        return carry - 0.1 * slope

    def judged(model: jax.Array) -> jax.Array:
        tally("forward_passes", model)
        return model

    return repeat(turns, one, jnp.float32(1), most=9) + jnp.sum(jax.vmap(judged)(jnp.arange(3.0)))


def test_every_turn_and_every_lane_counts() -> None:
    plain = jax.jit(work)(jnp.int32(4))
    with counting() as counts:
        counted = jax.jit(lambda turns: work(turns))
        np.testing.assert_array_equal(counted(jnp.int32(4)), plain)
        jax.effects_barrier()
        assert counts == {"gradient_steps": 4, "forward_passes": 3}
        counted(jnp.int32(2))
        jax.effects_barrier()
        assert counts == {"gradient_steps": 6, "forward_passes": 6}
    assert "callback" not in str(jax.make_jaxpr(lambda turns: work(turns))(jnp.int32(1)))
