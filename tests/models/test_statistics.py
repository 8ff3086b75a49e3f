"""BatchNorm in linen and nnx modules: running averages as leaves of params."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax import training
from fljax.models import task_from_module
from fljax.protocol import Examples, Rows, Subset, TrainingBatch, roles
from fljax.training import Local
from tests.laws.compare import assert_close
from tests.refusals import refuses

pytestmark = pytest.mark.in_turn

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
    task: Any = task_from_module(module, X)
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
    assert_close(slope, alone, 1e-4)

    kernel = next(each for name, each in params.items() if name.lower().startswith("conv"))
    maps = jax.lax.conv_general_dilated(
        jnp.asarray(X[:5]), kernel["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
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
    # A derivative of evaluation, such as one through rounds, sees running averages.
    slope = jax.grad(lambda p: jnp.sum(task.loss(task.logits(p, X), Y)))(params)
    assert np.any(slope["norm"]["mean"])
    held = jax.grad(lambda p: jnp.sum(task.loss(task.logits(roles.hold_statistics(task, p), X), Y)))(params)
    assert not np.any(held["norm"]["mean"])
    np.testing.assert_array_equal(held["norm"]["scale"], slope["norm"]["scale"])


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


@MODULES
def test_parts_without_rows_have_no_gradient(module: Any) -> None:
    """``full_gradient`` reads the capacity in parts, some of which may be empty; so may a client's rows."""
    task = task_from_module(module, X)
    params = task.init(jax.random.key(0))
    examples = Examples(jnp.concatenate([X, jnp.full((1, *X.shape[1:]), jnp.nan)]), jnp.append(Y, 0))

    def slope(capacity: int, size: int) -> Any:
        index = jnp.where(jnp.arange(capacity) < size, jnp.arange(capacity) % 7, 7)
        rows = Rows(index, jnp.asarray(size))
        return jax.jit(lambda key: training.full_gradient(task, params, Subset(examples, rows), key))(jax.random.key(0))

    assert_close(slope(300, 100), slope(128, 100), 1e-4)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(slope(300, 0)))


def test_nnx_layers_keep_narrow_dtypes() -> None:
    dtypes = []

    class Net(Nnx):
        def __call__(self, x: Any) -> Any:
            dtypes.append(self.norm(self.conv(x)).dtype)
            return super().__call__(x)

    task = task_from_module(Net, X, compute_dtype="bfloat16")
    params = task.init(jax.random.key(0))
    dtypes.clear()
    task.logits(params, X)
    jax.grad(_mean_loss(task, jnp.asarray(X), jnp.ones(7, bool)))(params)
    assert set(dtypes) == {jnp.dtype("bfloat16")}


@pytest.mark.quick
def test_traces_of_nnx_modules_leave_nothing_behind() -> None:
    """flax keeps every class of a layer."""
    task = task_from_module(Nnx, X)
    params = task.init(jax.random.key(0))

    def trace() -> int:
        jax.make_jaxpr(jax.grad(_mean_loss(task, jnp.asarray(X), jnp.ones(7, bool))))(params)
        return len(_subclasses(nnx.BatchNorm))

    trace()
    assert trace() == trace()


def _subclasses(kind: type) -> list[type]:
    return [kind, *(each for one in kind.__subclasses__() for each in _subclasses(one))]


class Masked(nn.Module):
    """A module with a mask of its own, and a BatchNorm that passes no mask on."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = x.reshape(x.shape[0], -1)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x, mask=x > 0)
        x = Plain(use_running_average=not train, momentum=0.5)(x)
        return nn.Dense(3)(x)


class Plain(nn.BatchNorm):
    def __call__(self, x: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__call__(x)


def test_masks_of_a_module_are_kept_within_the_real_rows() -> None:
    task = task_from_module(Masked(), X)
    params = task.init(jax.random.key(0))
    real = jnp.arange(7) < 5
    spoilt = jnp.asarray(X).at[5:].set(1e6)
    slope = jax.grad(_mean_loss(task, spoilt, real))(params)
    alone = jax.grad(_mean_loss(task, X[:5], real[:5]))(params)
    assert_close(slope, alone, 1e-4)


@pytest.mark.quick
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
    refuses(lambda: task_from_module(Folded(), X), r"one row for each of 1 examples, got an input of shape \(4, 8\)")
    refuses(lambda: task_from_module(Twice(), X), "of different names, got mean as both in Twice")
    with pytest.raises(ValueError, match="expected statistics to be averaged or frozen, got 'kept'"):
        task_from_module(Linen(), X, statistics="kept")  # pyright: ignore[reportArgumentType]


@pytest.mark.quick
@pytest.mark.parametrize("statistics", ["averaged", "frozen"])
def test_modules_that_cannot_be_trained(statistics: Any) -> None:
    class Counted(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            count = self.variable("batch_stats", "count", jnp.zeros, (), jnp.int32)
            if train:
                count.value += 1
            return nn.Dense(3)(x.reshape(x.shape[0], -1))

    with pytest.raises(ValueError, match=r"that a training step can change .* got Counted: "):
        task_from_module(Counted(), X, statistics=statistics)


@pytest.mark.quick
@pytest.mark.unchecked
def test_errors_of_nnx_modules() -> None:
    class Always(Nnx):
        def __call__(self, x: Any) -> Any:
            return self.out(self.norm(self.conv(x), use_running_average=False).reshape(x.shape[0], -1))

    class NoMask(nnx.BatchNorm):
        def __call__(self, x: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().__call__(x)

    class Other(Nnx):
        def __init__(self, rngs: nnx.Rngs) -> None:
            super().__init__(rngs)
            self.norm = NoMask(3, rngs=rngs)

    with pytest.raises(ValueError, match="to use its running averages in evaluation, got use_running_average=False"):
        task_from_module(Always, X)
    refuses(lambda: task_from_module(Other, X), "expected a BatchNorm whose __call__ takes a mask of rows, got NoMask")
