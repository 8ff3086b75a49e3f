"""Helpers for all aggregators: precision, sums over a mapped axis, meshes with explicit axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

# The name of a mapped axis, or several names, as ``jax.lax.psum`` takes them.
AxisName = Hashable

Function = TypeVar("Function", bound=Callable[..., Any])


def sum_over(x: Any, axis_name: AxisName | None) -> Any:
    """The sum of ``x`` over a mapped axis; ``x`` itself where ``axis_name`` is None."""
    return x if axis_name is None else jax.lax.psum(x, axis_name)


def max_over(x: Array, axis_name: AxisName | None) -> Array:
    """The maximum of ``x`` over a mapped axis; its gradient is stopped."""
    x = jax.lax.stop_gradient(x)
    return x if axis_name is None else jax.lax.pmax(x, axis_name)


def gather_over(x: Array, axis_name: AxisName) -> Array:
    """The rows of ``x`` of all devices or lanes, one after the other along the first axis."""
    return jax.lax.all_gather(x, axis_name, tiled=True)


def check_shape(name: str, x: Any, axes: str, *sizes: int) -> None:
    """Raises a ValueError unless ``x`` has the shape ``sizes``, whose names are ``axes``. JAX would broadcast some."""
    if jnp.shape(x) != sizes:
        raise ValueError(f"expected {name} of shape [{axes}], which is {list(sizes)} here, got {list(jnp.shape(x))}")


def along_rows(values: Array, leaf: Array) -> Array:
    """``values [S]`` with axes of length 1, so that they stand beside the rows of a leaf ``[S, ...]``."""
    return values.reshape((-1,) + (1,) * (leaf.ndim - 1))


def sum_rows(leaf: Array) -> Array:
    """The sum of each row of a leaf ``[S, ...]``: ``[S]``."""
    return jnp.sum(leaf, axis=tuple(range(1, leaf.ndim)))


def presence(present: Any, count: int) -> Bool[Array, " S"]:
    """``present`` as ``[S]`` booleans; None: all True."""
    if present is None:
        return jnp.ones(count, bool)
    present = jnp.asarray(present)
    check_shape("present", present, "S", count)
    return present.astype(bool)


def read_rows(updates: PyTree, present: Any) -> tuple[Float[Array, "S d"], Bool[Array, " S"], Int[Array, ""]]:
    """All leaves as one matrix, with zeros for rows that do not count; which rows count; how many."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(updates)]
    size = ([len(leaf) for leaf in leaves if leaf.ndim] or [0 if present is None else np.size(present)])[0]
    counted = presence(present, size)
    for leaf in leaves:
        if leaf.shape[:1] != (size,) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"expected floating updates of {size} rows, got a leaf {leaf.dtype}{list(leaf.shape)}")
    dtype = jnp.result_type(jnp.float32, *leaves)
    parts = [leaf.astype(dtype).reshape(size, math.prod(leaf.shape[1:])) for leaf in leaves]
    rows = jnp.concatenate([jnp.zeros((size, 0), dtype), *parts], axis=1)
    counted &= jnp.all(jnp.isfinite(rows), axis=1)
    return jnp.where(counted[:, None], rows, 0), counted, jnp.sum(counted)


def shaped(values: Float[Array, "*rows d"], updates: PyTree) -> PyTree:
    """Vectors in the shapes and dtypes of ``updates``."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, updates))
    ends = np.cumsum([math.prod(leaf.shape[1:]) for leaf in leaves], dtype=int)
    pairs = zip(jnp.split(values, ends, axis=-1)[:-1], leaves, strict=True)
    return structure.unflatten(x.reshape(*x.shape[:-1], *leaf.shape[1:]).astype(leaf.dtype) for x, leaf in pairs)


def row_norms(leaves: list[Array]) -> Float[Array, " S"]:
    """The norm of each row over all leaves ``[S, ...]``; its derivative at 0 is 0. NaN or infinity: infinite."""
    # Divide by the largest entry first: squares of large entries overflow. Its inverse must not be flushed to 0.
    size = [jnp.max(jnp.abs(leaf), axis=tuple(range(1, leaf.ndim)), initial=0) for leaf in leaves]
    top = jax.lax.stop_gradient(jnp.max(jnp.stack(size), axis=0))
    finite = jnp.isfinite(top)
    unit = jnp.where((top > 0) & finite, jnp.minimum(top, jnp.finfo(top.dtype).max / 2**10), 1)
    squares = sum((sum_rows(jnp.square(leaf / along_rows(unit, leaf))) for leaf in leaves), jnp.zeros_like(unit))
    norms = jnp.where(top > 0, unit * jnp.sqrt(jnp.where(top > 0, squares, 1)), 0)
    return jnp.where(finite, norms, jnp.inf)


def known(value: Any) -> np.ndarray | None:
    """``value`` as an array of NumPy; None if it is traced, or not all on this process."""
    try:
        return np.asarray(value)
    except (jax.errors.TracerArrayConversionError, RuntimeError):
        return None


def check_positive(name: str, value: Any) -> None:
    """Raises a ValueError unless all numbers of ``value`` that are known are finite and above 0."""
    found = known(value)
    if found is not None and not (found.dtype.kind in "biuf" and np.all((found > 0) & np.isfinite(found))):
        raise ValueError(f"expected {name} to be a finite number above 0, got {value}")


# --- Meshes of explicit axes --------------------------------------------------------------------------------


def _with_auto_axes() -> Any:
    """The module with ``auto_axes``."""
    if hasattr(jax.sharding, "auto_axes"):
        return jax.sharding
    import jax.experimental.shard as before  # type: ignore - its place in JAX 0.6, of which newer versions know nothing

    return before


_ON_A_MESH: Any = _with_auto_axes()


@overload
def on_any_mesh(function: Function) -> Function: ...
@overload
def on_any_mesh(*, result: Callable[..., PyTree]) -> Callable[[Function], Function]: ...
def on_any_mesh(function: Any = None, *, result: Callable[..., PyTree] | None = None) -> Any:
    """Makes ``function`` accept arguments that are sharded in any way over a mesh with explicit axes."""
    # JAX refuses operations whose result could be sharded in several ways: here axes are as if they were automatic.
    # ``result`` maps the arguments to a PartitionSpec for each leaf; None: results are replicated.
    if function is None:
        return lambda function: _on_any_mesh(function, result)
    return _on_any_mesh(function, None)


def _on_any_mesh(function: Callable[..., Any], result: Callable[..., PyTree] | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mesh = _explicit_mesh((args, kwargs))
        if mesh is None:
            return function(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = [leaf if isinstance(leaf, jax.Array) else None for leaf in leaves]

        def call(arrays: list[Array | None]) -> Any:
            merged = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
            args, kwargs = jax.tree.unflatten(structure, merged)
            return function(*args, **kwargs)

        spec = PartitionSpec() if result is None else result(*args, **kwargs)
        placed = jax.tree.map(
            lambda part: NamedSharding(mesh, part), spec, is_leaf=lambda part: isinstance(part, PartitionSpec)
        )
        return _ON_A_MESH.auto_axes(call, out_sharding=placed)(arrays)

    return wrapped


def axes_of(x: Any) -> tuple[Any, ...]:
    """The explicit mesh axes over which each dimension of ``x`` is sharded; None for an unsharded dimension."""
    spec = getattr(getattr(jax.typeof(x), "sharding", None), "spec", ()) if isinstance(x, jax.Array) else ()
    return tuple(spec) + (None,) * (jnp.ndim(x) - len(spec))


def _explicit_mesh(tree: PyTree) -> Any:
    """The mesh of the first array in ``tree`` that lives on explicit axes; None if no array does."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", None)
            kinds: tuple[Any, ...] = () if mesh is None else tuple(mesh.axis_types or ())
            # Inside a shard_map over some of the axes, JAX cannot make the other axes automatic.
            if AxisType.Explicit in kinds and AxisType.Manual not in kinds:
                return mesh
    return None
