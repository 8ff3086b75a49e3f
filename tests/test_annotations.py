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
from fljax.engine.loop.checkpointing import function_name
from fljax.protocol import sums
from fljax.protocol.sums import Part
from tests import annotations


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


def define(wrap, default=0):
    def add(x: int, y: int = default) -> int:
        return x + y + default

    return wrap(typechecker=None)(add)


def test_functions_of_one_definition_share_what_is_wrapped():
    """At the first call; those with other defaults do not, and each is the one that is called."""
    wrapped = []

    def wrap(function, typechecker):
        wrapped.append(str(inspect.signature(function)))
        return function

    once = annotations.at_first_call(wrap)
    one, same, other = define(once, 1), define(once, 1), define(once, 300)
    assert wrapped == []
    assert [each(10, y=5) for each in (one, same, other, one)] == [16, 16, 315, 16]
    assert wrapped == ["(x: 'int', y: 'int' = 1) -> 'int'", "(x: 'int', y: 'int' = 300) -> 'int'"]


def test_a_checked_function_may_call_others_of_its_definition():
    def counts_down(below):
        def total(n: int) -> int:
            return n + below(n - 1)

        return once(typechecker=None)(total)

    once = annotations.at_first_call(lambda function, typechecker: function)
    assert counts_down(counts_down(lambda n: 10 * n))(4) == 4 + 3 + 20


def test_the_numbers_that_a_checked_function_holds_are_those_of_the_function():
    """A run's identity has them, before and after calls."""

    def decay_by(wrap, rate):
        def decayed(x: float) -> float:
            return rate * x

        return wrap(decayed)

    once = annotations.at_first_call(lambda function, typechecker: lambda *args: function(*args))
    plain, checked = decay_by(lambda function: function, 0.5), decay_by(once(typechecker=None), 0.5)
    names = [function_name(plain), function_name(checked)]
    assert checked(3.0) == 1.5
    assert {*names, function_name(checked)} == {function_name(decay_by(lambda function: function, 0.5))}
    assert function_name(decay_by(once(typechecker=None), 0.25)) not in names
