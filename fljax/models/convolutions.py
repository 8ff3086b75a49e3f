"""Convolution and pooling that are fast when every client has its own kernels.

Under ``vmap`` over clients, ``lax.conv_general_dilated`` becomes a grouped convolution, which is slow on CPUs. Its
weight gradient is slow inside loops. Here a convolution extracts patches and computes one matrix product, which
``vmap`` turns into a batched matrix product. On CPUs the batch becomes the innermost axis (``planes``, and ``lines``
for large images); on other backends channels stay last. The built-in models keep the layouts of ``planes`` and
``lines`` between layers, on every backend.

Any flax module can use this convolution: ``nn.Conv(16, (3, 3), conv_general_dilated=convolution)``, and likewise
``nnx.Conv``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fljax.models import lines, planes


def convolution(
    lhs: Float[Array, "*image"],
    rhs: Float[Array, "*kernel"],
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    **rest: Any,
) -> Float[Array, "*convolved"]:
    """``lax.conv_general_dilated`` (same arguments, same values) as patches times a matrix.

    Two-dimensional, channels-last, ungrouped convolutions (``("NHWC", "HWIO", "NHWC")``, flax's layout) with any
    stride, padding and kernel dilation are computed as a matrix product. All other calls go to
    ``lax.conv_general_dilated``, also calls with an additional argument that is not None (``out_sharding``, in newer
    releases of JAX and ``nnx.Conv``).
    """
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    handled = (
        lhs.ndim == 4
        and numbers == lax.conv_dimension_numbers(lhs.shape, rhs.shape, ("NHWC", "HWIO", "NHWC"))
        and (lhs_dilation is None or tuple(lhs_dilation) == (1, 1))
        and feature_group_count == batch_group_count == 1
        and all(value is None for value in rest.values())
    )
    if not handled:
        return lax.conv_general_dilated(
            lhs,
            rhs,
            window_strides,
            padding,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            dimension_numbers=dimension_numbers,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision=precision,
            preferred_element_type=preferred_element_type,
            **{name: value for name, value in rest.items() if value is not None},
        )
    dilation = (1, 1) if rhs_dilation is None else tuple(rhs_dilation)
    if jax.default_backend() == "cpu":
        return _batch_innermost(lhs, rhs, window_strides, padding, dilation, precision, preferred_element_type)
    kernel = rhs.shape[:2]
    if isinstance(padding, str):
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        padding = lax.padtype_to_pads(lhs.shape[1:3], reach, window_strides, padding)
    config = [(0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0)]
    x = lax.pad(lhs, jnp.zeros((), lhs.dtype), config)
    # Columns first, then rows: windows of windows need kh + kw slices instead of kh * kw.
    for axis in (2, 1):
        x = _windows(x, axis, kernel[axis - 1], window_strides[axis - 1], dilation[axis - 1])
    matrix = rhs.reshape(-1, rhs.shape[-1])
    return jnp.matmul(x, matrix, precision=precision, preferred_element_type=preferred_element_type)


def _batch_innermost(
    x: Array, kernel: Array, strides: Any, padding: Any, dilation: Any, precision: Any, preferred: Any
) -> Array:
    strides, dilation = tuple(strides), tuple(dilation)
    rows, columns = planes.output_size(x.shape[1:3], kernel.shape, strides, padding, dilation)
    plain = strides == dilation == (1, 1) and precision is None and preferred is None
    squared = plain and rows % 2 == columns % 2 == 0 and planes.worth_squares(kernel.shape)
    patch = planes.patch_size(kernel.shape, rows * columns, squared=squared)
    batch = x.shape[0]
    if planes.block_size(batch, patch) == batch and lines.worth_lines(
        x.shape[1:3], batch, kernel.shape, strides, padding, dilation, x.dtype
    ):
        y = lines.convolve(
            x.transpose(1, 3, 2, 0), kernel, padding=padding, precision=precision, preferred_element_type=preferred
        )
        return y.transpose(3, 0, 2, 1)
    if squared:
        return planes.in_blocks(
            lambda x: planes.whole(planes.convolve_parted(x, kernel)),
            x,
            patch,
            lambda x: planes.part(x, kernel.shape, padding),
        )
    return planes.in_blocks(
        lambda x: planes.convolve(
            x, kernel, strides, padding, dilation, precision=precision, preferred_element_type=preferred
        ),
        x,
        patch,
    )


def _windows(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    """Every window along ``axis``; the entries of a window are concatenated along the channels."""
    count = (x.shape[axis] - (size - 1) * dilation - 1) // stride + 1
    if count < 1:
        raise ValueError(f"expected at least {(size - 1) * dilation + 1} pixels, got {x.shape[axis]}")
    starts = [k * dilation for k in range(size)]
    return jnp.concatenate(
        [lax.slice_in_dim(x, s, s + (count - 1) * stride + 1, stride, axis) for s in starts], axis=-1
    )


def max_pool(x: Float[Array, "b h w c"], size: int = 2) -> Float[Array, "b h2 w2 c"]:
    """The maximum of each ``size`` x ``size`` window with stride ``size``; a remainder at the edge is dropped.

    Implemented as a reshape and a reduction, since the gradient of ``lax.reduce_window`` (select and scatter) is slow
    under ``vmap``. Equal maxima share the gradient.
    """
    b, h, w, c = x.shape
    x = x[:, : h // size * size, : w // size * size, :]
    return x.reshape(b, h // size, size, w // size, size, c).max(axis=(2, 4))
