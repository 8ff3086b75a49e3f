"""Dropout is on in training whatever the module calls its flag, and a module in which it stays off is refused."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax.models import task_from_module
from fljax.models.modules import EVALUATING, TRAINING
from tests.refusals import refuses

X = jnp.ones((4, 5))

LINEN = """
class Net(nn.Module):
    @nn.compact
    def __call__(self, x, {flag}: bool = {default}):
        return nn.Dropout(0.5)(nn.Dense(64)(x), deterministic={off})
"""
NNX = """
class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.dense = nnx.Linear(5, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, {flag}: bool = {default}):
        return self.dropout(self.dense(x), deterministic={off})
"""


def net(source: str, flag: str, *, trains: bool) -> Any:
    """A class whose dropout goes by one keyword; without it the module evaluates."""
    off = f"not {flag}" if trains else flag
    namespace: dict[str, Any] = {"nn": nn, "nnx": nnx}
    exec(source.format(flag=flag, default=not trains, off=off), namespace)
    return namespace["Net"]() if source is LINEN else namespace["Net"]


def dropped(task):
    """Shares of the outputs that training and evaluation set to zero."""
    params = task.init(jax.random.key(0))
    trained, judged = task.logits(params, X, jax.random.key(1)), task.logits(params, X)
    return float(jnp.mean(trained == 0)), float(jnp.mean(judged == 0))


@pytest.mark.thorough
@pytest.mark.parametrize("source", [LINEN, NNX], ids=["linen", "nnx"])
@pytest.mark.parametrize("flag", [*TRAINING, *EVALUATING])
def test_every_usual_flag_switches_dropout_on_in_training_only(source, flag):
    trained, judged = dropped(task_from_module(net(source, flag, trains=flag in TRAINING), X))
    assert 0.3 < trained < 0.7
    assert judged == 0


@pytest.mark.in_turn
def test_training_loses_what_dropout_takes():
    """A half of the outputs being lost, the others are doubled: training and evaluation agree in the mean."""
    task = task_from_module(net(LINEN, "training", trains=True), X)
    params = task.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 400)
    mean = jnp.mean(jax.vmap(lambda key: task.logits(params, X, key))(keys), axis=0)
    np.testing.assert_allclose(mean, task.logits(params, X), atol=0.25)


@pytest.mark.parametrize("source", [LINEN, NNX], ids=["linen", "nnx"])
def test_a_flag_of_another_name_is_refused(source):
    with pytest.raises(ValueError, match=r"expected dropout to be on in training, got .*valid names.*training"):
        task_from_module(net(source, "noisy", trains=True), X)


class Mixed(nn.Module):
    """One layer that the flag reaches and one that it does not."""

    rate: float = 0.5

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5)(nn.Dense(8)(x), deterministic=not train)
        return nn.Dropout(self.rate, deterministic=True)(x)


class MixedNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.5):
        self.dense = nnx.Linear(5, 8, rngs=rngs)
        self.first = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.second(self.first(nnx.relu(self.dense(x))), deterministic=True))


class Attending(nn.Module):
    """Attention draws its own dropout."""

    reached: bool

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(8)(x)[:, None, :]
        layer = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.5)
        return layer(x, x, deterministic=not train if self.reached else True)[:, 0]


@pytest.mark.parametrize(
    ("module", "layer"),
    [(Mixed(), "Dropout"), (MixedNnx, "second"), (Attending(reached=False), "MultiHeadDotProductAttention")],
)
def test_one_layer_that_stays_off_is_enough(module, layer):
    refuses(lambda: task_from_module(module, X), rf"expected dropout to be on in training, got {layer} in ")


@pytest.mark.thorough
@pytest.mark.parametrize("module", [Mixed(rate=0.0), lambda rngs: MixedNnx(rngs, 0.0), Attending(reached=True)])
def test_no_dropout_is_no_dropout_that_is_off(module):
    task = task_from_module(module, X)
    params = task.init(jax.random.key(0))
    one, two = (task.logits(params, X, jax.random.key(seed)) for seed in (1, 2))
    assert not np.array_equal(one, two)


def test_modules_that_cannot_be_called_are_refused():
    class Needs(nn.Module):
        @nn.compact
        def __call__(self, x, mode):
            return nn.Dense(3)(x)

    class Always(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))

    refuses(lambda: task_from_module(Needs(), X), r"expected Needs to be called with examples.*also needs 'mode'")
    refuses(lambda: task_from_module(Always(), X), r"expected Always to draw random numbers in training only")


def test_dropout_behind_a_flag_is_looked_at_in_training():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool = False):
            return nn.Dropout(0.5, deterministic=True)(x) if train else nn.Dense(2)(x)

    refuses(lambda: task_from_module(Net(), X), "expected dropout to be on in training")


@pytest.mark.in_turn
def test_dropout_beside_batch_statistics():
    class Net(nn.Module):
        off: bool = False

        @nn.compact
        def __call__(self, x, train: bool = False):
            x = nn.BatchNorm(use_running_average=not train)(x)
            return nn.Dense(2)(nn.Dropout(0.5, deterministic=self.off or not train)(x))

    task = task_from_module(Net(), X)
    params = task.init(jax.random.key(0))
    x = jnp.arange(X.size, dtype=X.dtype).reshape(X.shape) % 7
    one, other = (task.logits(params, x, jax.random.key(seed)) for seed in (0, 1))
    assert not np.allclose(one, other)
    refuses(lambda: task_from_module(Net(off=True), X), "expected dropout to be on in training")
