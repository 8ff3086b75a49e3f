"""Convolution, GroupNorm and pooling on images whose batch is the innermost axis: ``[channels, height, width, batch]``.

On a CPU, the long (width x batch) axis makes patches cheap to write and every product a plain matrix product; no layer
transposes. Three rules were chosen on ``cnn_b`` alone (5 x 5 kernels, batch 50; AVX-512, an L2 cache of 1 MiB):

- *Squares.* Few output channels make a thin product. Before a 2 x 2 max-pool, the four pixels of a square are four
  times the channels: [24, 108] x [108, n], not [6, 75] x [75, 4n]; 36/25 of the arithmetic, a third of the patches.
- *Blocks.* ``in_blocks`` applies a network to a few images at a time, so that patches stay in the cache.
- *Recomputation.* The backward pass recomputes patches instead of storing them, as they are larger than all else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Pairs = Sequence[tuple[int, int]]


def convolve(
    x: Float[Array, "c h w b"],
    kernel: Float[Array, "kh kw c o"],
    strides: Sequence[int] = (1, 1),
    padding: str | Pairs = "VALID",
    dilation: Sequence[int] = (1, 1),
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
) -> Float[Array, "o h2 w2 b"]:
    """The values of ``lax.conv_general_dilated``, with the batch innermost and a kernel in flax's layout."""
    x = _padded(x, kernel.shape, strides, padding, dilation)
    options = (tuple(strides), tuple(dilation), precision, preferred_element_type)
    if kernel.shape[:2] == (1, 1):  # no patches, nothing to recompute
        return _product(x, kernel, *options)
    return jax.checkpoint(_product, static_argnums=(2, 3, 4, 5))(x, kernel, *options)


def convolve_squares(
    x: Float[Array, "c h w b"], kernel: Float[Array, "kh kw c o"], padding: str | Pairs = "VALID"
) -> Float[Array, "4 o h2 w2 b"]:
    """A convolution of stride 1 whose output is arranged in 2 x 2 squares for a max-pool."""
    # Output pixel ``(2 i + p, 2 j + q)`` is at ``[2 p + q, :, i, j]``; a remainder at the edge is dropped.
    if not worth_squares(kernel.shape):
        return squares(convolve(x, kernel, padding=padding))
    return convolve_parted(part(x, kernel.shape, padding), kernel)


def part(x: Float[Array, "c h w b"], kernel: Sequence[int], padding: str | Pairs) -> Float[Array, "c4 h2 w2 b"]:
    """The padded images arranged in squares, the input of ``convolve_parted``."""
    x = _padded(x, kernel, (1, 1), padding, (1, 1))
    c, h, w, b = x.shape
    # One square of outputs reads (k + 1) x (k + 1) pixels, rounded up to whole squares.
    sizes = [2 * ((n - k + 1) // 2 + k // 2) for n, k in zip((h, w), kernel[:2], strict=True)]
    config = [(0, 0, 0), (0, sizes[0] - h, 0), (0, sizes[1] - w, 0), (0, 0, 0)]
    x = x if sizes == [h, w] else lax.pad(x, jnp.zeros((), x.dtype), config)
    return squares(x).reshape(4 * c, sizes[0] // 2, sizes[1] // 2, b)


def convolve_parted(x: Float[Array, "c4 h2 w2 b"], kernel: Float[Array, "kh kw c o"]) -> Float[Array, "4 o h3 w3 b"]:
    """The second step of ``convolve_squares``: convolves squares with the kernel shifted to each pixel of a square."""
    y = convolve(x, widen_kernel(kernel, 2))
    return y.reshape(4, kernel.shape[-1], *y.shape[1:])


def kernel_taps(kernel: Sequence[int], side: int) -> tuple[int, int]:
    """How many neighbouring squares of the input the square of an output reads, along height and along width."""
    down, right = (1 + -(-(size - 1) // side) for size in kernel[:2])
    return down, right


def widen_kernel(kernel: Float[Array, "kh kw c o"], side: int) -> Float[Array, "down right c2 o2"]:
    """The kernel shifted to each pixel of a square of ``side x side``, as a kernel on ``kernel_taps`` squares."""
    (kh, kw, c, o), (down, right) = kernel.shape, kernel_taps(kernel.shape, side)
    spare = down * side - kh, right * side - kw
    shifted = [
        jnp.pad(kernel, ((p, spare[0] - p), (q, spare[1] - q), (0, 0), (0, 0)))
        for p in range(side)
        for q in range(side)
    ]
    wide = jnp.stack(shifted, axis=3).reshape(down, side, right, side, c, side * side * o)
    return wide.transpose(0, 2, 1, 3, 4, 5).reshape(down, right, side * side * c, side * side * o)


def squares(x: Float[Array, "c h w b"]) -> Float[Array, "4 c h2 w2 b"]:
    """Arranges images in 2 x 2 squares, in the layout of ``convolve_squares``."""
    c, h, w, b = x.shape
    x = x[:, : h // 2 * 2, : w // 2 * 2].reshape(c, h // 2, 2, w // 2, 2, b)
    return x.transpose(2, 4, 0, 1, 3, 5).reshape(4, c, h // 2, w // 2, b)


@jax.custom_jvp
def largest(x: Float[Array, "4 c h w b"]) -> Float[Array, "c h w b"]:
    """The maximum of every square: max-pooling. The first of equal maxima receives the gradient."""
    # The derivative of ``max`` stores all of ``x``; this one stores one byte for every square.
    return x.max(0)


@largest.defjvp
def _largest_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    top = largest(x)
    which = jnp.where(x[2] == top, 2, 3)
    which = jnp.where(x[0] == top, 0, jnp.where(x[1] == top, 1, which)).astype(jnp.int8)
    return top, _taken(which, tangent)


@functools.partial(jax.checkpoint, prevent_cse=False)  # stores ``which``, and not the four masks
def _taken(which: Array, tangent: Array) -> Array:
    return jnp.where(which[None] == jnp.arange(4, dtype=jnp.int8).reshape(4, 1, 1, 1, 1), tangent, 0).sum(0)


def whole(x: Float[Array, "4 c h w b"]) -> Float[Array, "c h2 w2 b"]:
    """The inverse of ``squares``."""
    _, c, h, w, b = x.shape
    return x.reshape(2, 2, c, h, w, b).transpose(2, 3, 0, 4, 1, 5).reshape(c, 2 * h, 2 * w, b)


def group_norm(
    x: Float[Array, "*c_h w b"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    groups: int,
    epsilon: float = 1e-6,
    *,
    axis: int = 0,
) -> Float[Array, "*c_h w b"]:
    """flax's ``nn.GroupNorm`` over each image and group of channels, which are ``axis`` 0 or 1; in float32 at least."""
    *outer, c = x.shape[: axis + 1]
    grouped = x.reshape(*outer, groups, c // groups, *x.shape[axis + 1 :])
    wide = grouped.astype(jnp.float32 if x.dtype.itemsize < 4 else x.dtype)
    others = tuple(i for i in range(wide.ndim - 1) if i != axis)
    mean = wide.mean(others)
    variance = jnp.maximum((wide * wide).mean(others) - mean * mean, 0)
    # One factor and one shift per channel and image, so the image is read twice and written once.
    rate = lax.rsqrt(variance + epsilon)
    factor = scale.astype(wide.dtype).reshape(groups, -1, 1) * rate[:, None]
    shift = bias.astype(wide.dtype).reshape(groups, -1, 1) - mean[:, None] * factor
    among = (*range(axis), *range(axis + 2, wide.ndim - 1))
    y = wide * jnp.expand_dims(factor, among) + jnp.expand_dims(shift, among)
    return y.astype(x.dtype).reshape(x.shape)


def in_blocks(
    network: Callable[[Array], Float[Array, "o h2 w2 b"]],
    x: Float[Array, "b h w c"],
    patch: int,
    enter: Callable[[Float[Array, "c h w b"]], Array] = lambda x: x,
) -> Float[Array, "b h2 w2 o"]:
    """Applies ``network`` to images, channels last, a few at a time; exact if it treats them independently."""
    # ``patch``: entries of one image's largest matrix of patches. ``enter`` is applied outside the loop, inside which
    # XLA would fuse the change of layout into every read of its result.
    batch = x.shape[0]
    size = block_size(batch, patch)
    count = -(-batch // size)
    if count <= 1:
        return network(enter(x.transpose(3, 1, 2, 0))).transpose(3, 1, 2, 0)
    x = jnp.pad(x, ((0, count * size - batch), (0, 0), (0, 0), (0, 0)))
    blocks = jax.vmap(enter)(x.reshape(count, size, *x.shape[1:]).transpose(0, 4, 2, 3, 1))
    y = lax.map(lambda block: network(block).transpose(3, 1, 2, 0), blocks)
    return y.reshape(count * size, *y.shape[2:])[:batch]


CACHED = 2**18


def block_size(batch: int, patch: int) -> int:
    """Images per block, such that the patches of a block have at most 256 Ki numbers (1 MiB in float32)."""
    # Blocks are of nearly equal size. The whole batch is one block if fewer than 8 images would fit.
    limit = CACHED // max(1, patch)
    if limit < 8 or batch <= limit:
        return max(1, batch)
    return -(-batch // -(-batch // limit))


def patch_size(kernel: Sequence[int], pixels: int, *, squared: bool) -> int:
    """Number of entries in the matrix of patches of one image with ``pixels`` outputs, by pixel or by square."""
    kh, kw, c, _ = kernel
    return c * (kh // 2 + 1) * (kw // 2 + 1) * pixels if squared else c * kh * kw * pixels


def output_size(
    size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: str | Pairs, dilation: Sequence[int]
) -> tuple[int, ...]:
    """Height and width of the output; raises ValueError if the padded image is smaller than the kernel."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel[:2], dilation, strict=True)]
    around = pads(size, kernel, strides, padding, dilation)
    sizes = [n + low + high for n, (low, high) in zip(size, around, strict=True)]
    for need, have in zip(reach, sizes, strict=True):
        if have < need:
            raise ValueError(f"expected at least {need} pixels, got {have}")
    return tuple((n - r) // s + 1 for n, r, s in zip(sizes, reach, strides, strict=True))


def worth_squares(kernel: Sequence[int]) -> bool:
    """Whether a kernel of this shape is faster on squares: few output channels."""
    kh, kw, _, o = kernel
    return o <= 16 and min(kh, kw) >= 3


def pads(
    size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: str | Pairs, dilation: Sequence[int]
) -> Pairs:
    """The padding ``(low, high)`` for height and for width, from a name or from pairs."""
    if not isinstance(padding, str):
        return padding
    reach = [(k - 1) * d + 1 for k, d in zip(kernel[:2], dilation, strict=True)]
    pairs = lax.padtype_to_pads(size, reach, strides, padding)
    return [(int(low), int(high)) for low, high in pairs]  # older releases of JAX give NumPy's integers


def _padded(
    x: Array, kernel: Sequence[int], strides: Sequence[int], padding: str | Pairs, dilation: Sequence[int]
) -> Array:
    output_size(x.shape[1:3], kernel, strides, padding, dilation)
    around = pads(x.shape[1:3], kernel, strides, padding, dilation)
    if all(low == high == 0 for low, high in around):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in around), (0, 0, 0)])


def _product(
    x: Array, kernel: Array, strides: tuple[int, ...], dilation: tuple[int, ...], precision, preferred
) -> Array:
    """Convolution of an already padded ``x``: extracts patches and computes one matrix product."""
    (kh, kw, c, o), (_, h, w, b) = kernel.shape, x.shape
    rows, columns = (
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip((h, w), (kh, kw), dilation, strides, strict=True)
    )
    down = functools.partial(lax.slice_in_dim, axis=1, stride=strides[0])
    across = functools.partial(lax.slice_in_dim, axis=2, stride=strides[1])
    step = 1
    if strides[1] == 1:  # merge width and batch into one axis for longer contiguous copies
        x, step = x.reshape(c, h, w * b), b
    windows = []
    for i in range(kh):
        top = i * dilation[0]
        lines = down(x, top, top + (rows - 1) * strides[0] + 1)
        for j in range(kw):
            left = j * dilation[1] * step
            span = columns * b if step == b and strides[1] == 1 else (columns - 1) * strides[1] + 1
            windows.append(across(lines, left, left + span))
    patches = jnp.concatenate(windows).reshape(kh * kw * c, rows * columns * b)
    matrix = kernel.reshape(kh * kw * c, o)
    # XLA's fast product does not accept this transposed left side; on thin matrices (LeNet's) that costs nothing.
    y = lax.dot_general(
        matrix, patches, (((0,), (0,)), ((), ())), precision=precision, preferred_element_type=preferred
    )
    return y.reshape(o, rows, columns, b)
