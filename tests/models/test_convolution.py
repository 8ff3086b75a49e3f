"""The convolution equals XLA's in value and gradient; pooling equals reduce_window."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax.models import convolution, max_pool

pytestmark = pytest.mark.usefixtures("strict_float64")

NHWC = ("NHWC", "HWIO", "NHWC")


def draws(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


@pytest.mark.in_turn
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("strides", "padding", "dilation", "kernel"),
    [
        ((1, 1), "VALID", None, (3, 3)),
        ((1, 1), "SAME", None, (5, 5)),
        ((2, 2), "SAME", None, (3, 2)),
        ((2, 3), "VALID", (1, 1), (2, 3)),
        ((1, 2), [(1, 2), (0, 1)], (2, 1), (3, 3)),
        ((2, 2), "SAME", None, (1, 1)),
    ],
)
def test_equals_lax(strides, padding, dilation, kernel):
    x, w = draws((2, 8, 7, 3), (*kernel, 3, 4))

    def outputs(f):
        def loss(x, w):
            return jnp.sum(jnp.sin(f(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=NHWC)))

        y = f(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=NHWC)
        return y, *jax.grad(loss, (0, 1))(x, w)

    for ours, theirs in zip(*jax.jit(lambda: (outputs(convolution), outputs(lax.conv_general_dilated)))(), strict=True):
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.in_turn
def test_two_dtypes_are_promoted():
    x, w = draws((2, 6, 6, 3), (3, 3, 3, 4))
    promoted = lambda x, w: convolution(x, w, (1, 1), "SAME", dimension_numbers=NHWC)  # noqa: E731
    expected = promoted(x.astype(jnp.bfloat16).astype(jnp.float32), w.astype(jnp.float32))
    for function in (promoted, jax.jit(promoted)):
        with jax.numpy_dtype_promotion("standard"):
            found = function(x.astype(jnp.bfloat16), w.astype(jnp.float32))
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_other_layouts_are_handed_on():
    x, w = draws((2, 3, 6, 6), (4, 3, 3, 3))
    np.testing.assert_allclose(convolution(x, w, (1, 1), "SAME"), lax.conv(x, w, (1, 1), "SAME"))
    x, w = draws((2, 6, 6, 4), (3, 3, 2, 4))
    options = {"dimension_numbers": NHWC, "feature_group_count": 2}
    np.testing.assert_allclose(
        convolution(x, w, (1, 1), "SAME", **options),
        lax.conv_general_dilated(x, w, (1, 1), "SAME", **options),
    )


@pytest.mark.thorough
def test_kernels_per_client():
    x, w = draws((3, 2, 6, 6, 2), (3, 3, 3, 2, 4))

    def loss(w, x):
        return jnp.sum(max_pool(convolution(x, w, (1, 1), "SAME", dimension_numbers=NHWC)) ** 2)

    together = jax.jit(jax.vmap(jax.grad(loss)))(w, x)
    for i in range(3):
        np.testing.assert_allclose(together[i], jax.grad(loss)(w[i], x[i]), rtol=1e-10)


@pytest.mark.thorough
def test_in_a_flax_layer():
    (x,) = draws((2, 6, 5, 3))
    layers = [
        nn.Conv(4, (3, 3), strides=2, param_dtype=jnp.float64, conv_general_dilated=f) for f in (None, convolution)
    ]
    params = layers[0].init(jax.random.key(0), x)
    theirs, ours = (jnp.asarray(layer.apply(params, x)) for layer in layers)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.in_turn
@pytest.mark.parametrize("shape", [(2, 6, 8, 3), (1, 7, 5, 2)])
def test_max_pool(shape):
    (x,) = draws(shape)

    def theirs(x):
        return nn.max_pool(x, (2, 2), strides=(2, 2))

    np.testing.assert_array_equal(max_pool(x), theirs(x))
    ours, expected = (jax.grad(lambda x, f=f: jnp.sum(f(x) ** 3))(x) for f in (max_pool, theirs))
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
