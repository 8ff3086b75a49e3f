"""What formulas of metrics share: arrays of NumPy or JAX with the same number of axes, and means over known clients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core.labels import check_unlabelled
from fljax.protocol import NumpyArray

Array = jax.Array | NumpyArray

# Equal differences of accuracies may differ by this many machine precisions (eps).
ROUNDING = 8


def aligned(*values: Any) -> tuple[Any, ...]:
    """The namespace, then the arrays with the same number of axes (new axes in front)."""
    xp: Any = jnp if any(isinstance(v, jax.Array) for v in values) else np
    if sum(np.ndim(v) > 0 for v in values) > 1:
        check_unlabelled("values by client", values)
    arrays = [v if isinstance(v, Array | np.generic) else xp.asarray(v) for v in values]
    rank = max(a.ndim for a in arrays)
    if rank == 0:
        raise ValueError("expected arrays whose last axis is the clients, got a scalar")
    # Plain Python numbers take the dtype of the arrays. Means and counts are float32 or wider.
    dtype = next(a.dtype for a in arrays if a.ndim)
    arrays = [a if hasattr(v, "ndim") else a.astype(dtype) for v, a in zip(values, arrays, strict=True)]
    arrays = [a.astype(xp.float32) if a.dtype.itemsize == 2 and a.dtype.kind not in "iu" else a for a in arrays]
    return xp, *(xp.reshape(a, (1,) * (rank - a.ndim) + a.shape) for a in arrays)


def without_rounding(xp: Any, threshold: Any, gain: Any) -> Any:
    """The threshold, lower by as much as rounding may move a difference of two fractions."""
    return threshold - ROUNDING * float(xp.finfo(gain.dtype).eps)


def mean_over(xp: Any, values: Any, valid: Any) -> Any:
    """Mean of the valid values over the last axis; NaN if there are none."""
    n = xp.sum(valid, axis=-1)
    total = xp.sum(xp.where(valid, values, 0.0), axis=-1)
    return xp.where(n > 0, total / xp.maximum(n, 1).astype(total.dtype), xp.nan)


def fraction(compare: Any, a: Any, b: Any) -> Any:
    """The share of clients with both values for which ``compare(a, b)`` holds; NaN if there are none."""
    xp, a, b = aligned(a, b)
    return mean_over(xp, compare(a, b).astype(a.dtype), ~(xp.isnan(a) | xp.isnan(b)))


def sum_over(xp: Any, values: Any, valid: Any) -> Any:
    """Sum of the valid values over the last axis; NaN if there are none."""
    total = xp.sum(xp.where(valid, values, 0.0), axis=-1)
    return xp.where(xp.any(valid, axis=-1), total, xp.nan)
