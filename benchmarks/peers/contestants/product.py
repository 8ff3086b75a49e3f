"""A float32 matrix product of NumPy, XLA or torch on all cores: the reference of the throughput table."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from protocol import Driver, arguments, serve

driver = Driver()
options = arguments(library="NumPy")

import numpy as np  # noqa: E402


def by_numpy(left: np.ndarray, right: np.ndarray) -> Callable[[], Any]:
    """NumPy's product."""
    return lambda: left @ right


def by_xla(left: np.ndarray, right: np.ndarray) -> Callable[[], Any]:
    """XLA's product, compiled for one device that has all cores."""
    import jax
    import jax.numpy as jnp

    product, a, b = jax.jit(jnp.matmul), jnp.asarray(left), jnp.asarray(right)
    return lambda: jax.block_until_ready(product(a, b))


def by_torch(left: np.ndarray, right: np.ndarray) -> Callable[[], Any]:
    """Torch's product."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, b = torch.from_numpy(left), torch.from_numpy(right)
    return lambda: torch.mm(a, b)


BY_LIBRARY = {"NumPy": by_numpy, "XLA": by_xla, "torch": by_torch}
prepared: dict[int, Callable[[], Any]] = {}


def product_of(size: int) -> Callable[[], Any]:
    """The product of two random matrices ``[size, size]``, compiled and with its threads awake."""
    if size not in prepared:
        generator = np.random.default_rng(0)
        left, right = (generator.random((size, size), np.float32) for _ in range(2))
        prepared[size] = BY_LIBRARY[options.library](left, right)
    prepared[size]()
    return prepared[size]


def rate(size: int) -> float:
    """GFLOP/s; the best of three."""
    product, spent = product_of(size), []
    for _ in range(3):
        began = time.perf_counter()
        product()
        spent.append(time.perf_counter() - began)
    return 2 * size**3 / min(spent) / 1e9


packages = {"NumPy": (), "XLA": ("jax", "jaxlib"), "torch": ("torch",)}[options.library]
serve(driver, packages, product=lambda question: {"gflops": rate(question["size"])})
