"""Code with a form for each platform: where the platform is known, the other forms are not traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax.core import platforms
from fljax.core.platforms import ANY, choose, traced_for

X = jnp.arange(4.0)
told = pytest.mark.skipif(not platforms.is_supported(), reason="this JAX has no contexts that are part of a trace")


def noted() -> tuple[Any, list[str]]:
    """A function with three forms, and the forms that were traced."""
    seen: list[str] = []

    def form(name: str, compute: Any) -> Any:
        def noting(x: Any) -> Any:
            seen.append(name)
            return compute(x)

        return noting

    forms = {"cpu": form("cpu", jnp.sin), "tpu": form("tpu", jnp.cos), "default": form("default", jnp.tanh)}
    return lambda x: choose(x, **forms), seen


@told
@pytest.mark.parametrize(
    ("platform", "form"), [("cpu", "cpu"), ("gpu", "default"), ("tpu", "tpu"), ("metal", "default")]
)
def test_only_the_form_of_a_known_platform_is_traced(platform: str, form: str) -> None:
    function, seen = noted()
    with traced_for(platform):
        program = jax.make_jaxpr(function)(X)
    assert seen == [form]
    assert [eqn.primitive.name for eqn in program.jaxpr.eqns] == [{"cpu": "sin", "tpu": "cos", "default": "tanh"}[form]]


def test_without_a_platform_the_compiler_chooses() -> None:
    function, seen = noted()
    with traced_for(ANY):
        program = jax.jit(function).trace(X)
    assert sorted(set(seen)) == ["cpu", "default", "tpu"]
    names = {"cpu": "sine", "cuda": "tanh", "tpu": "cosine"}
    for platform, name in names.items():
        text = program.lower(lowering_platforms=(platform,)).as_text()
        assert [other for other in names.values() if f"stablehlo.{other}" in text] == [name]


@told
def test_what_was_traced_for_one_platform_is_not_used_for_another() -> None:
    function, seen = noted()
    inner = jax.jit(function)

    def traced(platform: str) -> None:
        with traced_for(platform):
            jax.jit(lambda x: inner(x) + 1).trace(X)  # the outer function is new, the inner one is not

    for platform in ("cpu", "tpu", "cpu", "gpu", "tpu"):
        traced(platform)
    assert seen == ["cpu", "tpu", "default"]


@told
def test_a_form_that_accelerators_share() -> None:
    for platform in ("gpu", "tpu"):
        with traced_for(platform):
            program = jax.make_jaxpr(lambda x: choose(x, cpu=jnp.sin, default=jnp.cos))(X)
        assert program.jaxpr.eqns[0].primitive.name == "cos"


def test_values_and_gradients_are_those_of_the_form() -> None:
    def loss(scale: Any, x: Any) -> Any:
        parts = choose((scale, x), cpu=lambda pair: pair[0] * jnp.sin(pair[1]), default=lambda pair: pair[0] * pair[1])
        return jnp.sum(parts)

    def known(scale: Any, x: Any) -> Any:
        with traced_for("cpu"):
            return jax.vmap(jax.value_and_grad(loss), (0, None))(scale, x)

    value, slope = jax.jit(known)(jnp.asarray([1.0, 2.0]), X)
    np.testing.assert_allclose(slope, np.full(2, np.sin(np.arange(4.0)).sum()), rtol=1e-6)
    np.testing.assert_allclose(value, slope * np.asarray([1.0, 2.0]), rtol=1e-6)


@told
def test_barriers_of_one_form_are_differentiated() -> None:
    """The dense layers of models have one, alone and inside a gradient of a gradient."""

    def cube(x: Any) -> Any:
        return choose(x, cpu=lax.optimization_barrier, default=lambda x: x) ** 3

    with traced_for("cpu"):
        text = str(jax.make_jaxpr(jax.grad(jax.grad(cube)))(2.0))
    assert "optimization_barrier" in text
    assert "platform_index" not in text
