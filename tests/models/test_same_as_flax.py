"""The built-in convolutional networks equal the same networks made of flax's own layers; half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.core import trees
from fljax.models import cnn, lines, mlp, planes, resnet18
from tests.precision import enable_x64

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def optimised(quick_compilation):
    """A large network runs so long without optimisation that compiling it well is quicker."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


class Plain(nn.Module):
    blocks: tuple
    kernel: int
    padding: str
    groups: int | None

    @nn.compact
    def __call__(self, x):
        i = 0
        for block in self.blocks:
            for width in block:
                x = nn.Conv(width, (self.kernel,) * 2, padding=self.padding, name=f"conv_{i}")(x)
                x = nn.relu(nn.GroupNorm(self.groups, name=f"norm_{i}")(x) if self.groups else x)
                i += 1
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(5, name="dense_0")(x.reshape(x.shape[0], -1)))
        return nn.Dense(3, name="head")(x)


class PlainResNet18(nn.Module):
    @nn.compact
    def __call__(self, x):
        def normalised(x, path, width, size=3, stride=1):
            conv = nn.Conv(width, (size, size), stride, padding=size // 2, name=f"{path}.conv")
            return nn.GroupNorm(width // 16, name=f"{path}.norm")(conv(x))

        x = nn.relu(normalised(x, "stem", 64))
        for i in range(8):
            width, stride = 64 * 2 ** (i // 2), 2 if i in (2, 4, 6) else 1
            y = nn.relu(normalised(x, f"block_{i}.first", width, 3, stride))
            y = normalised(y, f"block_{i}.second", width)
            x = normalised(x, f"block_{i}.shortcut", width, 1, stride) if stride == 2 else x
            x = nn.relu(x + y)
        return nn.Dense(3, name="head")(x.mean((1, 2)))


def flattened(params):
    """flax's names cannot hold a slash, so the plain ResNet's layers are named by dotted paths."""
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        *layers, name = [str(key.key) for key in path]
        flat.setdefault(".".join(layers), {})[name] = leaf
    return flat


def both(task, module, shape, batch, names: Callable[[Any], Any] = lambda params: params):
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.standard_normal((batch, *shape))), jnp.asarray(rng.integers(0, 3, batch))
    drawn = jax.eval_shape(task.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(0.1 * rng.standard_normal(leaf.shape)), drawn)

    @jax.jit
    def run(params, x):  # arguments: constants as large as a ResNet's would be folded by the compiler
        def results(logits):
            loss = lambda params: jnp.mean(task.loss(logits(params), y))  # noqa: E731
            return logits(params), jax.grad(loss)(params)

        return (
            results(lambda params: task.logits(params, x)),
            results(lambda params: module.apply({"params": names(params)}, x)),
        )

    ours, theirs = run(params, x)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.in_turn
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("shape", "batch", "blocks", "kernel", "padding", "groups"),
    [
        ((20, 19, 3), 50, ((6,), (16,)), 5, "VALID", None),
        ((9, 8, 2), 3, ((4, 6), (17,)), 3, "SAME", None),
        ((8, 9, 1), 3, ((4,), (6, 4)), 3, "SAME", 2),
    ],
)
def test_cnn(x64, shape, batch, blocks, kernel, padding, groups):
    options = {"blocks": blocks, "kernel": kernel, "padding": padding, "groups": groups}
    both(cnn(shape, 3, dense=(5,), dtype=jnp.float64, **options), Plain(**options), shape, batch)


@pytest.mark.thorough
@pytest.mark.parametrize(("batch", "cached"), [(2, planes.CACHED), (32, 1000)])
def test_resnet18(batch, cached, x64, optimised, monkeypatch):
    monkeypatch.setattr(planes, "CACHED", cached)
    by_line = lines.worth_lines((8, 8), batch, (3, 3, 64, 64), (1, 1), "SAME", (1, 1), jnp.float64)
    assert by_line == (batch == 32)
    both(resnet18((8, 8, 3), 3, dtype=jnp.float64), PlainResNet18(), (8, 8, 3), batch, flattened)


@pytest.mark.thorough
def test_resnet18_is_as_the_paper_says():
    assert trees.size(jax.eval_shape(resnet18((32, 32, 3), 10).init, jax.random.key(0))) == 11_178_762


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_half_precision(name):
    with jax.numpy_dtype_promotion("strict"), enable_x64(False):
        if name == "mlp":
            shape, make = (6,), lambda **o: mlp((6,), 3, hidden=(8,), dropout=0.0, **o)
        else:
            shape, make = (8, 8, 2), lambda **o: cnn((8, 8, 2), 3, blocks=((4,), (4,)), dense=(5,), groups=2, **o)
        full, half = make(), make(compute_dtype="bfloat16")
        assert full is make(compute_dtype=jnp.float32)
        params = jax.jit(full.init)(jax.random.key(0))
        assert jax.tree.map(lambda a: a.dtype, jax.eval_shape(half.init, jax.random.key(0))) == jax.tree.map(
            lambda a: a.dtype, params
        )
        x = jnp.asarray(np.random.default_rng(0).standard_normal((512, *shape)), jnp.float32)
        y = jnp.arange(512) % 3

        def gradient(task):
            return jax.jit(jax.grad(lambda p: jnp.mean(task.loss(task.logits(p, x), y))))(params)

        products = str(jax.make_jaxpr(half.logits)(params, x))
        assert "bf16" in products
        assert half.features is not None
        assert half.features(params, x).dtype == half.logits(params, x).dtype == jnp.float32
        exact, rounded = gradient(full), gradient(half)
        assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {jnp.dtype("float32")}
        # Of the whole gradient and over many samples: rounding sends single pixels through other branches of ReLU and
        # max-pool, which shows in small leaves of small batches. flax's layers in bfloat16 are off by as much:
        # 0.017 here, 0.073 with 16 samples (single leaves: 0.06 and 0.2).
        norm = lambda tree: jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))  # noqa: E731
        assert norm(trees.subtract(exact, rounded)) <= 0.04 * norm(exact)
