"""Comparisons of pytrees."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def _pairs(a: Any, b: Any) -> list[tuple[str, np.ndarray, np.ndarray]]:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    flat, _ = jax.tree_util.tree_flatten_with_path(a)
    others = jax.tree.leaves(b)
    return [
        (jax.tree_util.keystr(path), np.asarray(x), np.asarray(y)) for (path, x), y in zip(flat, others, strict=True)
    ]


def assert_same(a: Any, b: Any) -> None:
    """Equal bit for bit (NaN equals NaN)."""
    for path, x, y in _pairs(a, b):
        assert x.dtype == y.dtype, path
        np.testing.assert_array_equal(x, y, err_msg=path)


def assert_close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Equal up to rounding."""
    for path, x, y in _pairs(a, b):
        assert x.dtype == y.dtype, path
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=path)


def is_same(a: Any, b: Any) -> bool:
    """Whether all leaves are equal."""
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for _, x, y in _pairs(a, b))


def assert_finite(tree: Any) -> None:
    """No floating leaf holds NaN or infinity."""
    for path, x, _ in _pairs(tree, tree):
        assert x.dtype.kind != "f" or np.all(np.isfinite(x)), path


def shapes(tree: Any) -> Any:
    """Shape, dtype and weak type of every leaf."""
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype), bool(getattr(leaf, "weak_type", False))), tree)
