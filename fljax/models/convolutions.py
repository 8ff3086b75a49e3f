"""Convolution and pooling that are fast when every client has its own kernels, in any flax module.

Under ``vmap`` over clients, ``lax.conv_general_dilated`` becomes a grouped convolution: slow on CPUs, and its weight
gradient inside loops. For a CPU, patches and one matrix product become a batched product, and the batch is the
innermost axis (``planes``, and ``lines`` for large images). A TPU has XLA's own: by XLA's estimate for a v5e, a LeNet
then trains 14 times as many client-steps per second. ``fljax.core.gpu_rules`` says the form for a GPU.

Flax modules take it as an argument: ``nn.Conv(16, (3, 3), conv_general_dilated=convolution)``; so does ``nnx.Conv``.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fljax.core import gpu_rules, platforms
from fljax.models import channels_last, lines, planes


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

    On a CPU, two-dimensional, channels-last, ungrouped convolutions (``("NHWC", "HWIO", "NHWC")``, flax's layout) with
    any stride, padding and kernel dilation are computed as a matrix product; they promote two dtypes. All other calls
    go to ``lax.conv_general_dilated``, also calls with an additional argument that is not None (``out_sharding``, in
    newer releases of JAX and ``nnx.Conv``). The platform is the one that the program is compiled for.
    """
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    handled = (
        lhs.ndim == 4
        and numbers == lax.conv_dimension_numbers(lhs.shape, rhs.shape, ("NHWC", "HWIO", "NHWC"))
        and (lhs_dilation is None or tuple(lhs_dilation) == (1, 1))
        and feature_group_count == batch_group_count == 1
        and all(value is None for value in rest.values())
    )

    def plain(lhs: Array, rhs: Array) -> Array:
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

    if not handled:
        return plain(lhs, rhs)
    dtype = np.promote_types(lhs.dtype, rhs.dtype)
    lhs, rhs = lhs.astype(dtype), rhs.astype(dtype)
    dilation = (1, 1) if rhs_dilation is None else tuple(rhs_dilation)

    def on_cpu(lhs: Array, rhs: Array) -> Array:
        return _batch_innermost(lhs, rhs, window_strides, padding, dilation, precision, preferred_element_type)

    def on_others(lhs: Array, rhs: Array) -> Array:
        form = gpu_rules.read().convolution(rhs.shape[-1])
        if form != "grouped" and dilation == (1, 1) and precision is None and preferred_element_type is None:
            return channels_last.CONVOLUTIONS[form](lhs, rhs, tuple(window_strides), padding)
        return plain(lhs, rhs)

    return platforms.choose(lhs, rhs, cpu=on_cpu, tpu=plain, default=on_others)


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


def max_pool(x: Float[Array, "b h w c"], size: int = 2) -> Float[Array, "b h2 w2 c"]:
    """The maximum of each ``size`` x ``size`` window with stride ``size``; a remainder at the edge is dropped.

    On a CPU it is a reshape and a reduction, since the gradient of ``lax.reduce_window`` (select and scatter) is slow
    there under ``vmap``; equal maxima share the gradient. On a TPU it is ``lax.reduce_window``; of equal maxima, the
    first receives the gradient. On a GPU it is one of both, as ``fljax.core.gpu_rules`` says.
    """

    def by_reshape(x: Array) -> Array:
        b, h, w, c = x.shape
        x = x[:, : h // size * size, : w // size * size, :]
        return x.reshape(b, h // size, size, w // size, size, c).max(axis=(2, 4))

    def by_windows(x: Array) -> Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, size, size, 1), "VALID")

    on_others = by_windows if gpu_rules.read().pooling == "windows" else by_reshape
    return platforms.choose(x, cpu=by_reshape, tpu=by_windows, default=on_others)
