"""Comparisons of pytrees, which raise an AssertionError that names the leaf."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fljax.core.trees import numbers_of


def _pairs(a: Any, b: Any) -> list[tuple[str, np.ndarray, np.ndarray]]:
    first, second = jax.tree.structure(a), jax.tree.structure(b)
    if first != second:
        raise AssertionError(f"expected equal structures, got {first} and {second}")
    flat, _ = jax.tree_util.tree_flatten_with_path(a)
    others = jax.tree.leaves(b)
    pairs = [
        (jax.tree_util.keystr(path), numbers_of(x), numbers_of(y)) for (path, x), y in zip(flat, others, strict=True)
    ]
    for path, x, y in pairs:
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            raise AssertionError(f"{path} is {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}")
    return pairs


def _difference(path: str, x: np.ndarray, y: np.ndarray) -> str:
    if x.dtype.kind != "f":
        return f"{path} differs in {int(np.sum(x != y))} of {x.size} entries"
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return f"{path} is not finite in one of them"
    known = np.isfinite(x) & np.isfinite(y)
    return f"{path} differs by up to {float(np.max(np.abs(x[known] - y[known]), initial=0.0)):.2g}"


def assert_same(a: Any, b: Any) -> None:
    """Equal bit for bit (NaN equals NaN)."""
    for path, x, y in _pairs(a, b):
        if not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            raise AssertionError(_difference(path, x, y))


def assert_close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Equal up to rounding."""
    for path, x, y in _pairs(a, b):
        if not np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise AssertionError(_difference(path, x, y))


def is_same(a: Any, b: Any) -> bool:
    """Whether all leaves are equal."""
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for _, x, y in _pairs(a, b))


def assert_finite(tree: Any) -> None:
    """No floating leaf holds NaN or infinity."""
    for path, x, _ in _pairs(tree, tree):
        if x.dtype.kind == "f" and not np.all(np.isfinite(x)):
            raise AssertionError(f"{path} is not finite")


def shapes(tree: Any) -> Any:
    """Shape, dtype and weak type of every leaf."""
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype), bool(getattr(leaf, "weak_type", False))), tree)
