"""Small functions on pytrees of arrays.

All functions work under ``jit``, ``vmap`` and ``grad`` and keep dtypes. They broadcast masks explicitly, so they work
with ``jax_numpy_rank_promotion="raise"``. This module imports JAX and NumPy alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, PyTree

Leaf = jax.Array | np.ndarray


def size(tree: PyTree) -> int:
    """Number of entries in all leaves: for params, the number of parameters. Only shapes are read."""
    return sum(math.prod(_struct(leaf).shape) for leaf in jax.tree.leaves(tree))


def bytes_of(tree: PyTree) -> int:
    """Bytes of all leaves; results of ``jax.eval_shape`` are allowed."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in map(_struct, jax.tree.leaves(tree)))


def floating(x: Any) -> Array:
    """``x`` as a floating array: floating dtypes are kept, whole numbers and bools get the default floating dtype."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.result_type(float))


def least_divisor(dtype: Any) -> Array:
    """The least divisor of a quotient with a derivative, which squares the divisor and must not underflow."""
    return 2**10 * jnp.sqrt(jnp.finfo(dtype).tiny)


def wide(x: Any) -> Array:
    """``x`` as a floating array of at least float32: float16 and bfloat16 are too narrow for sums and weights."""
    x = floating(x)
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def widened(tree: PyTree) -> PyTree:
    """Floating leaves as ``wide``; integers, bools and keys are left as they are."""
    return jax.tree.map(lambda x: wide(x) if jnp.issubdtype(_struct(x).dtype, jnp.floating) else x, tree)


def where(mask: Bool[Array, ""] | bool, a: PyTree, b: PyTree) -> PyTree:
    """The tree ``a`` if the scalar ``mask`` is True, otherwise the tree ``b``."""
    return jax.tree.map(lambda x, y: jnp.where(mask, x, y), a, b)


def where_rows(mask: Bool[Array, "*S"], a: PyTree, b: PyTree) -> PyTree:
    """Rows of ``a`` where ``mask`` is True, ``[S]`` over the leading axis of every leaf, otherwise rows of ``b``."""
    mask = jnp.asarray(mask)

    def select(x: Leaf, y: Leaf) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(x) - mask.ndim)), x, y)

    return jax.tree.map(select, a, b)


def split(tree: PyTree, chosen: Sequence[bool]) -> tuple[PyTree, PyTree]:
    """The chosen leaves and the others, as two trees with None in the gaps."""
    leaves, structure = jax.tree.flatten(tree)
    pairs = list(zip(leaves, chosen, strict=True))
    first = [leaf if is_chosen else None for leaf, is_chosen in pairs]
    second = [None if is_chosen else leaf for leaf, is_chosen in pairs]
    return jax.tree.unflatten(structure, first), jax.tree.unflatten(structure, second)


def merge(first: PyTree, second: PyTree) -> PyTree:
    """``first`` with the leaves of ``second`` where it has None; ``split`` makes such trees."""
    return jax.tree.map(lambda a, b: b if a is None else a, first, second, is_leaf=lambda leaf: leaf is None)


def path_of(path: tuple[Any, ...]) -> str:
    """A path of JAX as text, such as ``dense_0/kernel``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def paths_of(tree: PyTree) -> list[str]:
    """The path of each leaf, in order."""
    return [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def take(tree: PyTree, index: Any) -> PyTree:
    """Gather along the leading axis of every leaf: a scalar ``index`` takes one row and drops the axis.

    As in every JAX gather, a negative index counts from the end and a too large index reads the last row.
    """
    return jax.tree.map(lambda x: jnp.asarray(x)[index], tree)


def set_rows(tree: PyTree, index: Any, present: Bool[Array, "*S"], rows: PyTree) -> PyTree:
    """``tree[index_s] = rows_s`` for every present s; other rows are ignored. ``rows`` may be one value for all.

    ``index`` has indices ``[S]`` of the leading axis, distinct where present, or is ``([S], [S])`` for the first axes.
    """
    return jax.tree.map(lambda all, new: _at(all, index, present).set(new, mode="drop"), tree, rows)


def add_rows(tree: PyTree, index: Any, present: Bool[Array, "*S"], rows: PyTree) -> PyTree:
    """``tree[index_s] += rows_s`` for every present s; see ``set_rows``. Indices may repeat."""
    return jax.tree.map(lambda all, new: _at(all, index, present).add(new, mode="drop"), tree, rows)


def _at(all: Leaf, index: Any, present: Array) -> Any:
    first, *others = index if isinstance(index, tuple) else (index,)
    # The index of an absent row is beyond the end; mode="drop" ignores it.
    return jnp.asarray(all).at[(jnp.where(present, first, all.shape[0]), *others)]


def ratio(value: Any, by: Any, otherwise: Any = 0) -> Array:
    """``value / by``, and ``otherwise`` where ``by`` is 0, also in gradients.

    The test is ``by == 0``, so a NaN in ``by`` stays visible in the result. Derivatives are right also where ``by**2``
    or ``by**-2`` is out of the range of the dtype.
    """
    zero, dtype = jnp.asarray(by) == 0, jnp.result_type(value, by)
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)
    return jnp.where(zero, otherwise, _quotient(jnp.asarray(value, dtype), jnp.where(zero, 1, by).astype(dtype)))


@jax.custom_jvp
def _quotient(value: Array, by: Array) -> Array:
    """``value / by``. JAX's own derivative multiplies by ``by**-2``, which is 0 in float32 from about 1e19 on."""
    return value / by


@_quotient.defjvp
def _quotient_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """``d(value / by) = d value / by - value / by * (d by / by)``."""
    value, by = primals
    quotient = _quotient(value, by)
    return quotient, _quotient(tangents[0], by) - quotient * _quotient(tangents[1], by)


def or_nan(known: Any, values: Any) -> Array:
    """``values`` where ``known``, else NaN. ``jax_debug_nans`` does not complain: this NaN says "unknown"."""
    with jax.debug_nans(False):
        return jnp.where(known, values, jnp.nan)


def readable(used: Any, leaf: Any) -> Array:
    """``leaf`` for a product with weights, of which those that are not 0 are ``used``: zeros for NaN without weight."""
    return jnp.where(used | jnp.isfinite(leaf), leaf, jnp.zeros((), leaf.dtype))


@jax.custom_jvp
def combine(weights: Array, rows: Array) -> Array:
    """``sum_s weights[..., s] rows[s]`` in the dtype of ``weights``; rows without weight are not read.

    Derivatives by weights of 0 are those of the product: there only entries that are not finite are left out.
    """
    return _combine(weights, rows, False)


@combine.defjvp
def _combine_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # The value, too, whose zeros may have another sign: one masked copy of the rows serves both.
    return jax.jvp(functools.partial(_combine, finite=jnp.isfinite(primals[1])), primals, tangents)


def _combine(weights: Array, rows: Array, finite: Array | bool) -> Array:
    used = jnp.any(weights != 0, axis=tuple(range(weights.ndim - 1)))
    # The axes of one row stay as they are, since devices may divide one of them.
    read = jnp.where(used.reshape(-1, *[1] * (rows.ndim - 1)) | finite, rows, jnp.zeros((), rows.dtype))
    return jnp.tensordot(weights, read.astype(weights.dtype), axes=1, precision=jax.lax.Precision.HIGHEST)


@jax.custom_jvp
def sloped(value: PyTree, like: PyTree) -> PyTree:
    """``value``; where derivatives are asked for ``like``, which is as large up to rounding, and costs nothing else."""
    return value


@sloped.defjvp
def _sloped_jvp(primals: tuple[PyTree, PyTree], tangents: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    return primals[1], tangents[1]


def root(square: Array) -> Array:
    """The square root, whose derivative at 0 is 0."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def zeros_like(tree: PyTree) -> PyTree:
    """Zeros of the same structure, shapes and dtypes."""
    return jax.tree.map(jnp.zeros_like, tree)


def add(a: PyTree, b: PyTree) -> PyTree:
    """``a + b``, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def add_scaled(tree: PyTree, step: PyTree, rate: Any = 1.0) -> PyTree:
    """``tree + rate * step``, computed in the wider of the two dtypes and cast to the dtype of ``tree``."""

    def one(x: Leaf, y: Leaf) -> Array:
        x = jnp.asarray(x)
        if jnp.issubdtype(y.dtype, jnp.inexact) and not jnp.issubdtype(x.dtype, jnp.inexact):
            raise ValueError(f"expected a tree of floating leaves to add {y.dtype} to, got a leaf of dtype {x.dtype}")
        dtype = x.dtype if x.dtype.itemsize > y.dtype.itemsize else y.dtype
        return (x.astype(dtype) + y.astype(dtype) * jnp.asarray(rate).astype(dtype)).astype(x.dtype)

    return jax.tree.map(one, tree, step)


def subtract(a: PyTree, b: PyTree) -> PyTree:
    """``a - b``, leaf by leaf: an update is ``subtract(new, old)``."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(tree: PyTree, factor: Any) -> PyTree:
    """``factor * tree`` in each leaf's own dtype, floating or complex, to which the factor is cast."""

    def multiply(x: Leaf) -> Array:
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise ValueError(f"expected a tree of floating leaves to scale, got a leaf of dtype {x.dtype}")
        return x * jnp.asarray(factor).astype(x.dtype)

    return jax.tree.map(multiply, tree)


def any_new_nonfinite(new: PyTree, old: PyTree) -> Bool[Array, ""]:
    """Whether a floating leaf of ``new`` has a NaN or infinity where ``old`` was finite; False for an empty tree."""
    wrong = jnp.asarray(False)
    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        if jnp.issubdtype(_struct(x).dtype, jnp.inexact):
            wrong = wrong | jnp.any(~jnp.isfinite(x) & jnp.isfinite(y))
    return wrong


def difference(expected: PyTree, found: PyTree, *, exact: bool = True) -> str | None:
    """How ``found`` differs in structure, shapes or dtypes, as "expected ..., got ..."; None if it does not.

    ``exact``: whether dtypes must be equal; else floats may have another precision.
    """
    first, second = jax.tree.structure(expected), jax.tree.structure(found)
    if first != second:
        return f"expected {first}, got {second}"
    leaves, _ = jax.tree_util.tree_flatten_with_path(expected)
    for (path, one), other in zip(leaves, jax.tree.leaves(found), strict=True):
        a, b = _struct(one), _struct(other)
        floats = jnp.issubdtype(a.dtype, jnp.floating) and jnp.issubdtype(b.dtype, jnp.floating)
        if a.shape != b.shape or (a.dtype != b.dtype and (exact or not floats)):
            words = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in (a, b)]
            return f"expected {words[0]}, got {words[1]}" + f" at {jax.tree_util.keystr(path)}" * bool(path)
    return None


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """Floating leaves as ``dtype``; integers, bools and keys are left as they are."""

    def convert(x: Any) -> Any:
        return jnp.asarray(x).astype(dtype) if jnp.issubdtype(_struct(x).dtype, jnp.floating) else x

    return jax.tree.map(convert, tree)


def like(tree: PyTree, other: PyTree) -> PyTree:
    """``tree`` in the dtypes of ``other``, leaf by leaf; floats never become integers."""

    def one(x: Array, y: Any) -> Array:
        dtype = jnp.asarray(y).dtype
        cuts = jnp.issubdtype(x.dtype, jnp.inexact) and not jnp.issubdtype(dtype, jnp.inexact)
        return x if cuts else x.astype(dtype)

    return jax.tree.map(one, tree, other)


def _struct(leaf: Any) -> Any:
    """The leaf itself if it has a dtype (arrays, ShapeDtypeStruct), else the leaf as an array (numbers)."""
    return leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)


def numbers_of(leaf: Any) -> np.ndarray:
    """A leaf as an array of NumPy; of random keys, their numbers."""
    dtype: Any = getattr(leaf, "dtype", None)
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else leaf)


def as_key(key: Any) -> Array:
    """A key of ``jax.random``, also from a whole number, its seed."""
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if np.ndim(key) == (0 if typed else 1) and (typed or dtype == jnp.uint32):
        return key
    if np.ndim(key) == 0 and not isinstance(key, bool | str) and hasattr(key, "__index__"):
        return jax.random.key(key)
    got = " ".join(repr(key).split())
    raise ValueError(f"expected key to be one key of jax.random, such as jax.random.key(0), or a seed, got {got}")
