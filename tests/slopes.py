"""Derivatives of a function of named floats against differences, in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

STEP = 1e-6
# Slopes of a jump, where there is no derivative; it is finite.
STEEP = 1e4


@functools.cache
def _programs(function: Callable[..., Any]) -> Any:
    """The result as one vector at each of stacked values, and its Jacobian in reverse and in forward mode."""

    def vector(values: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(function(**values)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return ravel_pytree(leaves)[0]

    return jax.jit(jax.vmap(vector)), jax.jit(lambda values: (jax.jacrev(vector)(values), jax.jacfwd(vector)(values)))


def check_slopes(
    function: Callable[..., Any], values: Mapping[str, Any], flat: Collection[str] = (), others: Collection[str] = ()
) -> None:
    """Both modes give central differences, or a number between both slopes; 0 by ``flat``, nothing by ``others``."""
    values = {key: np.asarray(value, np.float64) for key, value in values.items()}
    forward, jacobians = _programs(function)
    modes = jacobians(values)
    for key in values.keys() - set(others):
        at = values[key]
        steps = STEP * np.stack([np.zeros_like(at), *np.eye(at.size).reshape(-1, *at.shape)])
        moved = {name: np.broadcast_to(each, (len(steps), *each.shape)) for name, each in values.items()}
        here, *ahead = np.asarray(forward({**moved, key: at + steps}))
        _, *behind = np.asarray(forward({**moved, key: at - steps}))
        with np.errstate(invalid="ignore"):  # of infinite results
            right, left = (np.stack(ahead) - here) / STEP, (here - np.stack(behind)) / STEP
        smooth = np.maximum(np.abs(right), np.abs(left)) < STEEP
        for slope in (np.asarray(mode[key]).reshape(len(here), -1).T for mode in modes):
            if key in flat:
                np.testing.assert_array_equal(slope, 0, err_msg=key)
                continue
            assert np.isfinite(slope[~np.isnan(right)]).all(), key
            slope, low, high = slope[smooth], np.minimum(left, right)[smooth], np.maximum(left, right)[smooth]
            error = 1e-4 * (1 + np.minimum(np.abs(low), np.abs(high)))
            wrong = ~((low - error <= slope) & (slope <= high + error))
            assert not wrong.any(), f"by {key} {slope[wrong]}, expected from {low[wrong]} to {high[wrong]}: {values}"
