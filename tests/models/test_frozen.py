"""Frozen leaves: held once, never trained, stacked or sent."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, engine
from fljax.algorithms import fedavg, fedbn, scaffold
from fljax.core import trees
from fljax.engine.programs.program import partition_plan
from fljax.engine.programs.shapes import measure
from fljax.models import freeze, task_from_module
from fljax.protocol import roles
from fljax.training import Local

FEDERATION = data.federate(data.load("blobs"), "iid", clients=4)
X = FEDERATION.examples.x
LOCAL = Local(0.1, 8, steps=2)


class Net(nn.Module):
    def setup(self) -> None:
        self.backbone, self.norm, self.head = nn.Dense(16), nn.BatchNorm(), nn.Dense(3)
        self.adapter = nn.Dense(16, kernel_init=nn.initializers.zeros)

    def features(self, x: Any, train: bool = False) -> Any:
        x = self.norm(self.backbone(x.reshape(x.shape[0], -1)), use_running_average=not train)
        return x + self.adapter(nn.relu(x))

    def __call__(self, x: Any, train: bool = False) -> Any:
        return self.head(self.features(x, train))


WHOLE = task_from_module(Net(), X[:1], classes=3, statistics="frozen", head=lambda path: path.startswith("head/"))
PARAMS = WHOLE.init(jax.random.key(5))


def _backbone(path: str) -> bool:
    return path.startswith(("backbone/", "norm/"))


def _plan(task: Any, build: Any = fedavg) -> engine.Plan:
    return engine.Plan(build, {"task": task, "local": LOCAL, "clients_per_round": None})


def test_params_are_the_trained_leaves() -> None:
    task = freeze(WHOLE, PARAMS, _backbone)
    params = task.init(jax.random.key(5))
    assert [each.shape for each in jax.tree.leaves(params)] == [(16,), (16, 16), (3,), (16, 3)]
    np.testing.assert_allclose(task.logits(params, X[:5]), WHOLE.logits(PARAMS, X[:5]), rtol=1e-6)
    assert task.roles is not None
    assert task.roles(params)["head"] == {"kernel": "head", "bias": "head"}
    # Drawn anew for each seed, or as given.
    assert not np.allclose(task.init(jax.random.key(6))["head"]["kernel"], PARAMS["head"]["kernel"])
    given = freeze(WHOLE, PARAMS, _backbone, draw=False).init(jax.random.key(6))
    np.testing.assert_array_equal(given["head"]["kernel"], PARAMS["head"]["kernel"])


@pytest.mark.thorough
def test_training_equals_training_of_the_whole_model_whose_backbone_has_no_gradient() -> None:
    task = freeze(WHOLE, PARAMS, _backbone, draw=False)
    result = engine.simulate(_plan(task), FEDERATION, rounds=2)

    def logits(params: Any, x: Any, key: Any = None) -> Any:
        return WHOLE.logits(
            {name: jax.lax.stop_gradient(part) if _backbone(f"{name}/") else part for name, part in params.items()},
            x,
            key,
        )

    still = WHOLE._replace(logits=logits, init=lambda key: PARAMS)
    expected = engine.simulate(_plan(still), FEDERATION, rounds=2)
    np.testing.assert_allclose(result.metrics.test_loss, expected.metrics.test_loss, rtol=1e-5)
    for name in ("adapter", "head"):
        for one, other in zip(
            jax.tree.leaves(result.deployed(0)[name]), jax.tree.leaves(expected.deployed(0)[name]), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_frozen_leaves_are_neither_stacked_nor_sent() -> None:
    spec, inputs = partition_plan(_plan(freeze(WHOLE, PARAMS, _backbone), scaffold), FEDERATION)
    trained = trees.bytes_of(freeze(WHOLE, PARAMS, _backbone).init(jax.random.key(0)))
    shapes = measure(spec, inputs, 1)
    assert shapes.model == trained
    assert shapes.wire.up == 2 * trained  # the update, and the change of the control variate
    # One copy among the arguments of the program, though logits and features hold the arrays.
    frozen = trees.size(PARAMS) - trees.size(freeze(WHOLE, PARAMS, _backbone).init(jax.random.key(0)))
    assert WHOLE.features is not None
    assert sum(np.size(leaf) for leaf in inputs.traced if np.ndim(leaf)) == frozen


def test_init_may_be_traced_again_and_again() -> None:
    task = freeze(WHOLE, PARAMS, _backbone)
    shapes = [jax.eval_shape(task.init, jax.random.key(0)) for _ in range(2)]
    assert shapes[0] == shapes[1]
    assert len(roles.roles_of(task, shapes[0])) == 4


def test_backbones_of_equal_shapes_share_a_program() -> None:
    first, second = (freeze(WHOLE, WHOLE.init(jax.random.key(seed)), _backbone) for seed in (1, 2))
    specs = [partition_plan(_plan(task), FEDERATION)[0] for task in (first, second)]
    assert specs[0] == specs[1]
    losses = [engine.simulate(_plan(task), FEDERATION, rounds=1).metrics.test_loss for task in (first, second)]
    assert not np.allclose(losses[0], losses[1])


def test_an_algorithm_without_a_plan() -> None:
    task = freeze(WHOLE, PARAMS, _backbone)
    found = engine.simulate(fedavg(task, LOCAL, clients_per_round=None), FEDERATION, rounds=1)
    np.testing.assert_allclose(
        found.metrics.test_loss, engine.simulate(_plan(task), FEDERATION, rounds=1).metrics.test_loss, rtol=1e-5
    )


def test_errors() -> None:
    task = freeze(WHOLE, PARAMS, _backbone)
    with pytest.raises(ValueError, match="choose all leaves at once"):
        freeze(task, PARAMS, _backbone)
    with pytest.raises(ValueError, match=r"not all, got 10 of 10; valid names are adapter/bias"):
        freeze(WHOLE, PARAMS, lambda path: True)
    moving = task_from_module(Net(), X[:1], classes=3)
    with pytest.raises(ValueError, match=r"got 'norm/mean'; make the task with .*statistics='frozen'"):
        freeze(moving, PARAMS, _backbone)
    with pytest.raises(ValueError, match="got 0 of 10"):
        freeze(moving, PARAMS, lambda path: False)
    with pytest.raises(ValueError, match="expected params like those of the task"):
        freeze(WHOLE, {**PARAMS, "head": {"kernel": jnp.zeros((16, 4)), "bias": jnp.zeros(4)}}, _backbone)
    with pytest.raises(ValueError, match="expected own to be layers, statistics or names of leaves, got 'x'"):
        fedbn(WHOLE, LOCAL, own=("x",))
