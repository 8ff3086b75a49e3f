"""Pytree helpers: values, transforms, strict broadcasting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.core import trees

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture
def tree():
    return {"w": jnp.arange(12, dtype=jnp.float32).reshape(2, 3, 2), "b": jnp.ones(2), "n": jnp.arange(2)}


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert jnp.asarray(x).dtype == jnp.asarray(y).dtype


def test_size_and_bytes(tree):
    assert (trees.size(tree), trees.bytes_of(tree)) == (12 + 2 + 2, 4 * 16)
    assert trees.bytes_of({"a": np.zeros(3, np.uint8)}) == 3
    shapes = jax.eval_shape(lambda: tree)
    assert (trees.size(shapes), trees.bytes_of(shapes)) == (16, 64)
    assert trees.size(()) == trees.bytes_of(()) == 0
    assert trees.size({"a": 1.0}) == 1


def test_where(tree):
    zeros = trees.zeros_like(tree)
    for transform in (lambda f: f, jax.jit):
        equal(transform(trees.where)(jnp.asarray(True), tree, zeros), tree)
        equal(transform(trees.where)(jnp.asarray(False), tree, zeros), zeros)
    equal(trees.where(True, tree, zeros), tree)


def test_where_rows(tree):
    zeros = trees.zeros_like(tree)
    out = jax.jit(trees.where_rows)(jnp.array([False, True]), tree, zeros)
    for name in tree:
        np.testing.assert_array_equal(out[name][0], zeros[name][0])
        np.testing.assert_array_equal(out[name][1], tree[name][1])
    # A scalar mask under vmap is one row of the same thing.
    equal(jax.vmap(trees.where)(jnp.array([False, True]), tree, zeros), out)


def test_where_rows_stops_nan():
    a = {"w": jnp.full((2, 3), jnp.nan)}
    out = trees.where_rows(jnp.array([False, False]), a, trees.zeros_like(a))
    assert not jnp.isnan(out["w"]).any()


@pytest.mark.in_turn
def test_take(tree):
    equal(trees.take(tree, 1), {name: leaf[1] for name, leaf in tree.items()})
    index = jnp.array([1, 1, 0])
    equal(jax.jit(trees.take)(tree, index), {name: leaf[index] for name, leaf in tree.items()})
    one = jax.vmap(trees.take, in_axes=(None, 0))({"a": np.arange(3.0, dtype=np.float32)}, index)
    np.testing.assert_array_equal(one["a"], [1.0, 1.0, 0.0])


def test_arithmetic(tree):
    equal(trees.subtract(trees.add(tree, tree), tree), tree)
    floats = {"w": tree["w"], "h": jnp.ones(3, jnp.bfloat16)}
    equal(trees.scale(floats, 2.0), trees.add(floats, floats))
    equal(trees.scale(floats, jnp.float32(2)), trees.add(floats, floats))
    with pytest.raises(ValueError, match="floating leaves"):
        trees.scale(tree, 0.5)


def test_adding_a_step_keeps_the_dtype_and_is_computed_in_the_wider_one():
    model, step = {"w": jnp.asarray([1.0, 2.0], jnp.bfloat16)}, {"w": jnp.asarray([0.5, 0.25], jnp.float32)}
    found = trees.add_scaled(model, step, 2.0)["w"]
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), [2, 2.5])


def test_wide_is_floating_and_at_least_single_precision():
    for given, expected in ((jnp.bfloat16, "float32"), (jnp.float16, "float32"), (jnp.float32, "float32")):
        assert (trees.wide(jnp.ones(2, given)).dtype, trees.floating(jnp.ones(2, given)).dtype) == (expected, given)
    assert trees.wide(jnp.ones(2, jnp.int32)).dtype == trees.wide(True).dtype == jnp.result_type(float)


@pytest.mark.in_turn
def test_gradients(tree):
    def loss(factor, w):
        rows = trees.where_rows(jnp.array([True, False]), {"w": w}, trees.zeros_like({"w": w}))
        return jnp.sum(trees.scale(trees.take(rows, 0), factor)["w"])

    by_factor, by_w = jax.grad(loss, (0, 1))(jnp.float32(3), tree["w"])
    assert by_factor == tree["w"][0].sum()
    np.testing.assert_array_equal(by_w, np.stack([np.full((3, 2), 3.0), np.zeros((3, 2))]))


@pytest.mark.in_turn
def test_any_new_nonfinite(tree):
    bad = tree | {"b": jnp.array([jnp.inf, jnp.nan])}
    check = jax.jit(trees.any_new_nonfinite)
    assert not check(tree, tree)
    assert check(bad, tree)
    assert check(tree | {"b": jnp.array([jnp.inf, 1.0])}, tree)
    assert not check(bad, bad)
    assert not check(tree, bad)
    assert not trees.any_new_nonfinite((), ())
    stacked = jax.tree.map(lambda *x: jnp.stack(x), tree, bad)
    np.testing.assert_array_equal(jax.vmap(trees.any_new_nonfinite, in_axes=(0, None))(stacked, tree), [False, True])


def test_cast(tree):
    half = trees.cast(tree, jnp.bfloat16)
    assert half["w"].dtype == half["b"].dtype == jnp.bfloat16
    assert half["n"].dtype == tree["n"].dtype
    equal(trees.cast(half, jnp.float32), tree)


@pytest.mark.in_turn
def test_ratio_guards_values_and_gradients():
    by = jnp.asarray([0.0, 2.0, jnp.nan])
    np.testing.assert_array_equal(trees.ratio(jnp.ones(3), by, 7.0), [7.0, 0.5, jnp.nan])
    slopes = jax.grad(lambda value, by: jnp.sum(trees.ratio(value, by)), argnums=(0, 1))(jnp.ones(2), by[:2])
    np.testing.assert_array_equal(slopes[0], [0.0, 0.5])
    np.testing.assert_array_equal(slopes[1], [0.0, -0.25])


@pytest.mark.in_turn
@pytest.mark.parametrize("by", [1e-25, 1e-19, 3.0, 1e19, 1e25])
@pytest.mark.parametrize("mode", [jax.jacrev, jax.jacfwd])
def test_derivatives_of_a_ratio_do_not_need_the_square_of_what_divides(mode, by):
    """``by**-2`` is 0 or infinite in single precision at the ends."""
    value = jnp.float32(0.3 * by)
    first, second = jax.jit(mode(trees.ratio, argnums=(0, 1)))(value, jnp.float32(by))
    np.testing.assert_allclose(first, 1 / by, rtol=1e-6)
    np.testing.assert_allclose(second, -0.3 / by, rtol=1e-6)


@pytest.mark.in_turn
def test_a_ratio_is_a_quotient_for_every_transformation():
    value, by = jnp.linspace(-1, 2, 6).reshape(3, 2), jnp.asarray([[0.5], [0.0], [4.0]])

    def transformed(ratio):
        both, mapped, repeated = (0, 1), jax.vmap(ratio), jax.checkpoint(ratio)
        total = lambda value, by: jnp.sum(jnp.square(repeated(value, by)))  # noqa: E731
        return (
            mapped(value, by),
            jax.jacrev(mapped, both)(value, by),
            jax.vmap(jax.jacfwd(ratio, both))(value, by),
            jax.hessian(total, both)(value, by),  # forward over reverse
            jax.jacrev(jax.jacrev(total, both), both)(value, by),
        )

    plain = lambda value, by: jnp.where(by == 0, 0, value / jnp.where(by == 0, 1, by))  # noqa: E731
    found, expected = (jax.jit(transformed, static_argnums=0)(each) for each in (trees.ratio, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), found, expected)


@pytest.mark.parametrize("value", [3, 3.0, np.float64(3), jnp.int32(3), jnp.float32(3), jnp.bfloat16(3)])
def test_a_ratio_has_the_dtype_of_a_division(value):
    found, expected = trees.ratio(value, 2), jnp.asarray(value) / 2
    assert found.dtype == expected.dtype
    assert found == expected == 1.5


def test_a_subnormal_divisor_is_zero_on_a_cpu():
    """XLA flushes it, so value and derivatives agree that it is 0."""
    found = jax.jit(jax.value_and_grad(trees.ratio, argnums=(0, 1)))(jnp.float32(1e-30), jnp.float32(1e-40))
    np.testing.assert_array_equal(jax.tree.leaves(found), 0)


@pytest.mark.in_turn
def test_rows_go_where_somebody_is_present():
    tree = {"a": jnp.arange(8.0).reshape(4, 2), "b": jnp.zeros(4, jnp.int32)}
    index, present = jnp.asarray([3, 0, 9]), jnp.asarray([True, True, False])
    rows = {"a": jnp.full((3, 2), jnp.nan).at[:2].set(1.0), "b": jnp.asarray([5, 6, 7])}
    found = trees.set_rows(tree, index, present, rows)
    np.testing.assert_array_equal(found["a"], [[1, 1], [2, 3], [4, 5], [1, 1]])
    np.testing.assert_array_equal(found["b"], [6, 0, 0, 5])
    more = trees.add_rows(
        jnp.ones(4), jnp.asarray([1, 1, 2]), jnp.asarray([True, True, False]), jnp.asarray([2.0, 3, 4])
    )
    np.testing.assert_array_equal(more, [1, 6, 1, 1])
    table = trees.set_rows(
        jnp.zeros((2, 3), bool), (jnp.asarray([1, 0]), jnp.asarray([2, 1])), jnp.asarray([True, False]), True
    )
    np.testing.assert_array_equal(table, [[False] * 3, [False, False, True]])


def test_split_and_merge() -> None:
    tree = {"a": {"b": jnp.ones(2)}, "c": jnp.zeros(3), "d": (jnp.ones(1), jnp.zeros(1))}
    chosen = [True, False, False, True]
    first, second = trees.split(tree, chosen)
    assert (trees.paths_of(first), trees.paths_of(second)) == (["a/b", "d/1"], ["c", "d/0"])
    for merged in (trees.merge(first, second), trees.merge(second, first)):
        assert jax.tree.structure(merged) == jax.tree.structure(tree)
        assert trees.paths_of(merged) == ["a/b", "c", "d/0", "d/1"]
        assert all(one is other for one, other in zip(jax.tree.leaves(merged), jax.tree.leaves(tree), strict=True))


def test_difference_names_the_first_leaf_that_is_not_alike():
    one = {"a": jnp.zeros(2), "b": jnp.zeros((), jnp.int32)}
    assert trees.difference(one, one) is None
    assert trees.difference(one, one | {"a": jnp.zeros(3)}) == "expected float32[2], got float32[3] at ['a']"
    half = one | {"a": jnp.zeros(2, jnp.bfloat16)}
    assert trees.difference(one, half) == "expected float32[2], got bfloat16[2] at ['a']"
    assert trees.difference(one, half, exact=False) is None
    assert trees.difference(one, one | {"b": 0.5}, exact=False) == "expected int32[], got float32[] at ['b']"
    assert trees.difference((), 1.0) == "expected PyTreeDef(()), got PyTreeDef(*)"


def test_a_fraction_is_not_added_to_whole_numbers():
    with pytest.raises(ValueError, match=r"expected a tree of floating leaves to add float32 to, got .* dtype int32"):
        trees.add_scaled({"h": jnp.zeros(2, jnp.int32)}, {"h": jnp.full(2, 0.5)})
    assert trees.add_scaled(jnp.ones(2, jnp.int32), jnp.ones(2, jnp.int32)).tolist() == [2, 2]
