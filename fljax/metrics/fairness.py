"""How evenly clients fare: the spread of a value over clients, its worst tenth, and Jain's index.

The last axis is the clients; see ``fljax.metrics.formulas`` for other axes and NaN. The Gini coefficient is there, too.
"""

from __future__ import annotations

from jaxtyping import Float, Real

from fljax.metrics.arrays import Array, aligned, mean_over


def spread_over_clients(values: Float[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``sqrt((1/M) sum_k (x_k - mean(x))^2)``: the standard deviation over clients, of all of them and so with M.

    Source: T. Li et al., "Fair Resource Allocation in Federated Learning" (2020), Definition 1, compares variances.
    """
    xp, values = aligned(values)
    valid = ~xp.isnan(values)
    off = xp.where(valid, values - mean_over(xp, values, valid)[..., None], 0.0)
    return xp.sqrt(mean_over(xp, off * off, valid))


def worst_share(values: Float[Array, "*#batch client"], *, share: float = 0.1) -> Float[Array, "*batch"]:
    """The mean of the ``ceil(share M)`` smallest values over the M clients that have one.

    Args:
      values: ``x_k``, of which higher is better.
      share: of the clients, above 0 and at most 1; 0.1 is the worst decile, 1 gives the mean.

    Raises:
      ValueError: if ``share`` is out of range.

    Source: T. Li et al., "Fair Resource Allocation in Federated Learning" (2020), Table 1 ("worst 10%").
    """
    if not 0 < share <= 1:
        raise ValueError(f"expected share to be above 0 and at most 1, got {share!r}")
    xp, values = aligned(values)
    valid = ~xp.isnan(values)
    ordered = xp.sort(xp.where(valid, values, xp.inf), axis=-1)
    # 0.1 of 10 clients is 1 client, whatever the rounding of the product.
    count = xp.ceil(xp.sum(valid, axis=-1, keepdims=True).astype(values.dtype) * share - 1e-4)
    place = xp.arange(values.shape[-1]).astype(values.dtype)
    worst = xp.reshape(place, (1,) * (values.ndim - 1) + (-1,)) < count
    return mean_over(xp, ordered, worst)


def jain_index(values: Real[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``(sum_k x_k)^2 / (M sum_k x_k^2)``: 1 if all clients have the same value, ``1/M`` if one client has everything.

    Args:
      values: ``x_k``, at least 0.

    Returns:
      In [1/M, 1]; 1 if all values are 0, NaN if no client has a value.

    Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination" (1984).
    """
    xp, values = aligned(values)
    values = values if xp.issubdtype(values.dtype, xp.floating) else values.astype(float)
    valid = ~xp.isnan(values)
    mean, square = mean_over(xp, values, valid), mean_over(xp, values * values, valid)
    index = xp.where(square > 0, mean * mean / xp.where(square > 0, square, 1.0), 1.0)
    return xp.where(xp.any(valid, axis=-1), index, xp.nan)
