"""BatchNorm in linen and nnx modules: running averages as leaves of params."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax import roles, training
from fljax.models import task_from_module
from fljax.training import Local
from fljax.types import Examples, Rows, Subset, TrainingBatch

RNG = np.random.default_rng(0)
X = RNG.normal(2, 3, size=(7, 4, 4, 2)).astype(np.float32)
Y = jnp.array([0, 1, 2, 0, 1, 2, 0])
MOMENTUM = 0.75


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(3, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=MOMENTUM, name="norm")(x)
        return nn.Dense(3)(nn.relu(x).reshape(x.shape[0], -1))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(2, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=MOMENTUM, rngs=rngs)
        self.out = nnx.Linear(48, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.norm(self.conv(x))
        return self.out(nnx.relu(x).reshape(x.shape[0], -1))


MODULES = pytest.mark.parametrize("module", [Linen(), Nnx], ids=["linen", "nnx"])


def _mean_loss(task: Any, x: Any, real: Any) -> Any:
    def loss(params: Any) -> Any:
        each = task.loss(task.logits(params, x, TrainingBatch(jax.random.key(0), real)), Y[: len(x)])
        return jnp.sum(jnp.where(real, each, 0)) / jnp.sum(real)

    return loss


@MODULES
def test_roles(module: Any) -> None:
    task = task_from_module(module, X)
    params = task.init(jax.random.key(0))
    assert params["norm"].keys() == {"scale", "bias", "mean", "var"}
    found = task.roles(params)["norm"]
    assert found == {"scale": "trained", "bias": "trained", "mean": "statistic", "var": "statistic"}
    assert roles.roles_of(task_from_module(module, X, statistics="frozen"), params).count("frozen") == 2


@MODULES
def test_running_averages_of_real_rows(module: Any) -> None:
    """The pseudo-gradient of a running average, against NumPy; rows that pad the batch have no influence at all."""
    task = task_from_module(module, X)
    params = task.init(jax.random.key(0))
    real = jnp.arange(7) < 5
    spoilt = jnp.asarray(X).at[5:].set(1e6)
    slope = jax.jit(jax.grad(_mean_loss(task, spoilt, real)))(params)
    alone = jax.jit(jax.grad(_mean_loss(task, X[:5], real[:5])))(params)
    for one, other in zip(jax.tree.leaves(slope), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    kernel = next(each for name, each in params.items() if name.lower().startswith("conv"))
    maps = jax.lax.conv_general_dilated(
        X[:5], kernel["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    maps = np.asarray(maps + kernel["bias"][None, None, None])
    for name, batch, start in (("mean", maps.mean((0, 1, 2)), 0.0), ("var", maps.var((0, 1, 2)), 1.0)):
        new = MOMENTUM * start + (1 - MOMENTUM) * batch
        np.testing.assert_allclose(params["norm"][name] - slope["norm"][name], new, rtol=1e-4, atol=1e-5)


@MODULES
def test_evaluation_uses_running_averages(module: Any) -> None:
    task = task_from_module(module, X)
    params = task.init(jax.random.key(0))
    moved = {**params, "norm": {**params["norm"], "mean": params["norm"]["mean"] + 1.0}}
    assert not np.allclose(task.logits(params, X), task.logits(moved, X))
    np.testing.assert_allclose(
        task.logits(params, X, jax.random.key(0)), task.logits(moved, X, jax.random.key(0)), rtol=1e-5
    )
    # No gradient flows through running averages in evaluation.
    slope = jax.grad(lambda p: jnp.sum(task.loss(task.logits(p, X), Y)))(params)
    assert not np.any(slope["norm"]["mean"])


@MODULES
def test_local_training_sets_running_averages_beside_any_optimizer(module: Any) -> None:
    """Momentum, weight decay and a proximal term act on trained leaves only."""
    task = task_from_module(module, X)
    params = task.init(jax.random.key(0))
    subset = Subset(Examples(jnp.asarray(X), Y), Rows(jnp.arange(7), jnp.asarray(7)))
    still = Local(0.0, 7, steps=2)
    hard = Local(0.0, 7, steps=2, optimizer="adam", weight_decay=0.5)
    expected = training.train(jax.random.key(1), params, subset, task=task, local=still).params
    found = training.train(
        jax.random.key(1), params, subset, task=task, local=hard, adjust=training.proximal(params, 3.0)
    ).params
    assert not np.allclose(expected["norm"]["var"], params["norm"]["var"])
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@MODULES
def test_frozen_statistics(module: Any) -> None:
    """Training and evaluation predict the same, and nothing moves."""
    task = task_from_module(module, X, statistics="frozen")
    params = task.init(jax.random.key(0))
    np.testing.assert_allclose(task.logits(params, X, jax.random.key(0)), task.logits(params, X), rtol=1e-5, atol=1e-5)
    slope = jax.grad(_mean_loss(task, jnp.asarray(X), jnp.ones(7, bool)))(params)
    assert not np.any(slope["norm"]["mean"])
    assert not np.any(slope["norm"]["var"])
    assert np.any(slope["norm"]["scale"])


@MODULES
def test_narrow_dtypes_leave_running_averages_wide(module: Any) -> None:
    """With bfloat16 products, a change of an average below bfloat16's resolution is kept."""
    task = task_from_module(module, X, compute_dtype="bfloat16")
    params = task.init(jax.random.key(0))
    params["norm"]["var"] = params["norm"]["var"] * 300.0
    slope = jax.grad(_mean_loss(task, jnp.asarray(X), jnp.ones(7, bool)))(params)
    wide = task_from_module(module, X)
    expected = jax.grad(_mean_loss(wide, jnp.asarray(X), jnp.ones(7, bool)))(params)
    np.testing.assert_allclose(slope["norm"]["var"], expected["norm"]["var"], rtol=0.02)


@pytest.mark.unchecked
def test_errors() -> None:
    class Always(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x.reshape(x.shape[0], -1)))

    class Folded(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            x = nn.BatchNorm(use_running_average=not train)(x.reshape(-1, 8))
            return nn.Dense(3)(x.reshape(-1, 32))

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.param("mean", nn.initializers.zeros, (2,))
            self.variable("batch_stats", "mean", jnp.zeros, (2,))
            return nn.Dense(3)(x.reshape(x.shape[0], -1))

    with pytest.raises(ValueError, match="change running averages in training only, got a change in evaluation"):
        task_from_module(Always(), X)
    folded = task_from_module(Folded(), X)
    params = folded.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"one row for each of 7 examples, got an input of shape \(28, 8\)"):
        jax.grad(_mean_loss(folded, X, jnp.ones(7, bool)))(params)
    with pytest.raises(ValueError, match="of different names, got mean as both in Twice"):
        task_from_module(Twice(), X)
    with pytest.raises(ValueError, match="expected statistics to be averaged or frozen, got 'kept'"):
        task_from_module(Linen(), X, statistics="kept")  # pyright: ignore[reportArgumentType]
