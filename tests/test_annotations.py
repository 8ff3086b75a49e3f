"""The annotations of fljax are checked: in every test of some packages, and of all where CI says so."""

from __future__ import annotations

import inspect
import os
import pickle

import jax.numpy as jnp
import jaxtyping
import pytest

from fljax import metrics
from fljax.algorithms import REGISTRY
from fljax.protocol import sums
from fljax.protocol.sums import Part


def test_a_wrong_shape_is_an_error():
    parts = Part(jnp.ones((3, 2)), jnp.ones(3))
    sums.add_up(parts, jnp.ones(3, bool))
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'present'"):
        sums.add_up(parts, jnp.ones((3, 1), bool))


def test_a_wrong_dtype_is_an_error():
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'present'"):
        sums.add_up(Part(jnp.ones((3, 2)), jnp.ones(3)), jnp.ones(3))


def test_sizes_of_one_name_are_equal():
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'standalone_loss'"):
        metrics.incentivised_participation_rate(jnp.ones((2, 3)), jnp.ones((2, 4)))


@pytest.mark.unchecked
def test_a_test_may_say_that_it_gives_wrong_types():
    with pytest.raises(ValueError, match="expected floating leaves to add up"):
        sums.add_up(Part(jnp.ones((3, 2), int), jnp.ones(3)), jnp.ones(3))


@pytest.mark.thorough
@pytest.mark.skipif(not os.environ.get("FLJAX_CHECK_TYPES"), reason="FLJAX_CHECK_TYPES=1 checks these annotations")
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_checked_functions_are_what_they_were(name):
    """Their signatures, and pickle, find the function itself."""
    build = REGISTRY[name].build
    assert hasattr(build, "__wrapped__")
    assert "task" in inspect.signature(build).parameters
    assert pickle.loads(pickle.dumps(build)) is build
