"""The forms of convolutional networks for different platforms: the same values and the same gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import models
from fljax.core import gpu_rules, platforms
from fljax.models import channels_last, planes
from tests.laws.compare import assert_close
from tests.platforms import forms_of
from tests.precision import enable_x64

pytestmark = pytest.mark.usefixtures("quick_compilation")  # the forms differ before XLA, in what it is told

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "cnn_a": ((28, 28, 1), {}),
    "cnn_c": ((28, 28, 1), {}),
    "cnn": ((9, 11, 2), {"blocks": ((4, 6), (8,)), "padding": "VALID", "kernel": 2}),
    "resnet18": ((8, 8, 3), {}),
}
LONG = ("cnn_a", "cnn_c", "cnn", "resnet18")
NORMALISED = {"blocks": ((4,), (8, 8)), "groups": 4}


def _value_and_gradient(platform: str, name: str, shape: tuple[int, ...], options: dict[str, Any]) -> Any:
    """Loss and gradients of two clients side by side, each with its own parameters."""
    task = models.MODELS[name](shape, 10, dtype=jnp.float64, **options)
    params = jax.vmap(task.init)(jax.random.split(jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (2, 3, *shape), jnp.float64)

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(task.loss(task.logits(params, x), jnp.arange(3)))

    with forms_of(platform):
        return jax.jit(jax.vmap(jax.value_and_grad(loss)))(params, x)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "platform", "rule"),
    [
        *(
            pytest.param(name, platform, None, marks=[pytest.mark.thorough] * (name in LONG))
            for name in (*NETWORKS, "normalised")
            for platform in ("cuda", "tpu")
        ),
        pytest.param("cnn_a", "cuda", "patches", marks=pytest.mark.thorough),
        pytest.param("resnet18", "cuda", "patches", marks=pytest.mark.thorough),
        ("normalised", "cuda", "patches"),
        ("normalised", "cuda", "tiles"),
    ],
)
def test_networks_are_the_same_in_every_form_and_by_every_rule_for_gpus(name, platform, rule, monkeypatch):
    shape, options = NETWORKS.get(name, ((8, 8, 1), NORMALISED))
    with enable_x64(True):
        arguments = (name if name in NETWORKS else "cnn", shape, options)
        expected = _value_and_gradient("cpu", *arguments)
        if rule is not None:
            monkeypatch.setattr(gpu_rules, "read", lambda: gpu_rules.GpuRules("a test", 1, rule, rule, "windows"))
        found = _value_and_gradient(platform, *arguments)
    assert_close(found, expected, 1e-9)


@pytest.mark.skipif(not platforms.is_supported(), reason="this JAX has no contexts that are part of a trace")
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("cnn", "resnet18"))]
)
def test_a_gradient_for_one_platform_has_no_other_form(name: str) -> None:
    """Nothing asks for the platform, and no convolution is that of accelerators."""
    shape, options = {"mlp": ((3, 3), {"hidden": (4,)})}.get(name) or NETWORKS[name]
    task = models.MODELS[name](shape, 10, **options)
    params, x = jax.eval_shape(task.init, jax.random.key(0)), jax.ShapeDtypeStruct((3, *shape), jnp.float32)
    slope = jax.grad(lambda params, x: jnp.sum(task.loss(task.logits(params, x), jnp.arange(3))))
    with platforms.traced_for("cpu"):
        known = str(jax.make_jaxpr(slope)(params, x))
    assert "platform_index" not in known
    assert "conv_general_dilated" not in known
    assert "platform_index" in str(jax.make_jaxpr(slope)(params, x))


@pytest.mark.thorough
@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 0), (0, 2))])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (2, 3)])
def test_patches_convolve(padding: Any, strides: tuple[int, int]) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 7, 8, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 2, 3, 4))

    def slopes(convolve: Any) -> Any:
        return jax.value_and_grad(lambda x, k: jnp.sum(jnp.sin(convolve(x, k, strides, padding))), (0, 1))(x, kernel)

    found, expected = slopes(channels_last.convolve_patches), slopes(channels_last.convolve)
    assert_close(found, expected, 1e-4)


@pytest.mark.in_turn
@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 5, 7, 2)])
def test_pools_give_the_gradient_to_the_first_of_equal_maxima(shape: tuple[int, ...]) -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, shape), jnp.float32)  # with many ties
    weight = jnp.arange(1.0, 1 + x[:, : shape[1] // 2, : shape[2] // 2].size).reshape(
        shape[0], shape[1] // 2, shape[2] // 2, shape[3]
    )

    def slope(pool: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sum(pool(x) * weight))(x)

    def by_planes(x: Any) -> Any:
        return planes.largest(planes.squares(x.transpose(3, 1, 2, 0))).transpose(3, 1, 2, 0)

    expected = slope(by_planes)
    for pool in (channels_last.window_maximum, channels_last.square_maximum):
        found = slope(pool)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.in_turn
def test_forms_have_second_derivatives() -> None:
    """Per-FedAvg and gradients through rounds need them."""
    x = jax.random.normal(jax.random.key(0), (2, 4, 4, 1))

    def slope(pool: Any, scale: Any) -> Any:
        return jax.grad(lambda s: jnp.sum(jnp.tanh(pool(x * s)) ** 2))(scale)

    found = [
        jax.jvp(lambda s, p=pool: slope(p, s), (jnp.float32(1.1),), (jnp.float32(1),))[1]
        for pool in (channels_last.window_maximum, channels_last.square_maximum)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert abs(float(found[0])) > 0.1
