"""Warm starts of every kind; frozen leaves are held once, never trained, stacked or sent."""

from __future__ import annotations

import pathlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from flax import serialization

from fljax import config as configuration
from fljax import data, engine, models
from fljax.algorithms import fedavg, fedbn, scaffold
from fljax.core import trees
from fljax.engine.programs.program import partition_plan
from fljax.engine.programs.shapes import measure
from fljax.experiments import run as experiment
from fljax.experiments.inputs import setup
from fljax.models import freeze, task_from_module
from fljax.protocol import roles
from fljax.training import Local
from tests.laws.compare import assert_close, assert_same
from tests.refusals import refuses
from tests.toys.quick import quick_programs

FEDERATION = data.federate(data.load("blobs"), "iid", clients=4)
X = FEDERATION.examples.x
LOCAL = Local(0.1, 8, steps=2)


class Net_starting(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x.reshape(x.shape[0], -1)))
        return nn.Dense(3)(x)


NET = models.task_from_module(Net_starting(), X[:1], classes=3)
TASK = models.logistic_regression(X.shape[1:], 3)
STARTING_PARAMS = jax.jit(TASK.init)(jax.random.key(7))


def _plan(task: Any = TASK, build: Any = fedavg) -> engine.Plan:
    return engine.Plan(build, {"task": task, "local": LOCAL, "clients_per_round": None})


def _simulate(plan: Any, **arguments: Any) -> Any:
    given: dict[str, Any] = {"rounds": 0, "seeds": 2} | arguments
    return engine.simulate(plan, FEDERATION, **given)


@pytest.mark.in_turn
def test_every_seed_starts_from_the_parameters() -> None:
    result = _simulate(_plan(), initial_model=STARTING_PARAMS)
    for seed in (0, 1):
        assert_same(result.deployed(2, seed=seed), STARTING_PARAMS)
    assert_same(
        engine.common_models(result.deployed), jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), STARTING_PARAMS)
    )
    same = models.start_from(TASK, STARTING_PARAMS)
    assert_same(_simulate(fedavg(same, LOCAL, clients_per_round=None)).deployed(1), STARTING_PARAMS)
    alone = engine.standalone(same, FEDERATION, LOCAL._replace(learning_rate=1e-30), seeds=2, keep_models=True)
    first = jax.tree.map(lambda leaf: leaf[1, 3], alone.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-20), first, STARTING_PARAMS)


def test_other_parameters_do_not_recompile() -> None:
    other = jax.tree.map(lambda leaf: leaf + 1, STARTING_PARAMS)
    specs = [partition_plan(_plan(models.start_from(TASK, each)), FEDERATION) for each in (STARTING_PARAMS, other)]
    assert specs[0][0] == specs[1][0]
    assert trees.size(specs[0][1].traced) >= trees.size(STARTING_PARAMS)


@pytest.mark.in_turn
def test_what_does_not_fit_is_one_sentence() -> None:
    path = trees.paths_of(STARTING_PARAMS)[0]
    leaves, structure = jax.tree.flatten(STARTING_PARAMS)
    wrong = jax.tree.unflatten(structure, [leaves[0][..., None], *leaves[1:]])
    with pytest.raises(ValueError, match=rf"like those of the task, {path} as float32\[.*\], got float32\[.*, 1\]"):
        models.start_from(TASK, wrong)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), STARTING_PARAMS)
    refuses(lambda: _simulate(_plan(), initial_model=half), rf"{path} as float32\[.*\], got bfloat16")
    refuses(lambda: models.start_from(TASK, {}), rf"{path} as float32\[.*\], got no such leaf")
    with pytest.raises(ValueError, match=r"got an Algorithm.*; build it of fljax\.models\.start_from\(task, params\)"):
        _simulate(fedavg(TASK, LOCAL, clients_per_round=None), initial_model=STARTING_PARAMS)
    state = _simulate(_plan()).state
    with pytest.raises(ValueError, match=r"expected at most one of initial, .*, and initial_model, got both"):
        _simulate(_plan(), initial_model=STARTING_PARAMS, initial=state)


@pytest.mark.in_turn
@pytest.mark.parametrize("task", [TASK, NET])
def test_files_of_parameters(task: Any, tmp_path: pathlib.Path) -> None:
    params = task.init(jax.random.key(3))
    arrays = dict(zip(trees.paths_of(params), map(np.asarray, jax.tree.leaves(params)), strict=True))
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    (tmp_path / "b.msgpack").write_bytes(serialization.to_bytes(params))
    (tmp_path / "c.msgpack").write_bytes(serialization.to_bytes({"params": params}))
    orbax.checkpoint.PyTreeCheckpointer().save(tmp_path / "orbax", params)
    with orbax.checkpoint.StandardCheckpointer() as other:
        other.save(tmp_path / "standard", {"params": params})
    for name in ("a.npz", "b.msgpack", "c.msgpack", "orbax", "standard"):
        assert_same(models.load_params(tmp_path / name, task), params)
    first, *_ = arrays
    np.savez(tmp_path / "less.npz", **{name: each for name, each in arrays.items() if name != first})  # type: ignore[arg-type]
    refuses(lambda: models.load_params(tmp_path / "less.npz", task), f"expected '{first}' among the arrays of")
    np.savez(tmp_path / "more.npz", **arrays, further=np.zeros(1))  # type: ignore[arg-type]
    refuses(lambda: models.load_params(tmp_path / "more.npz", task), r"expected no arrays in .* but .*, got 'further'")
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"of parameters, got .*bad\.npz', which cannot be read"):
        models.load_params(tmp_path / "bad.npz", task)
    refuses(lambda: models.load_params(tmp_path / "none.npz", task), "which does not exist")


def test_collections_of_flax(tmp_path: pathlib.Path) -> None:
    variables = Net_starting().init(jax.random.key(0), X[:1])
    (tmp_path / "a.msgpack").write_bytes(serialization.to_bytes(variables))
    found = models.load_params(tmp_path / "a.msgpack", NET)
    np.testing.assert_array_equal(found["BatchNorm_0"]["mean"], variables["batch_stats"]["BatchNorm_0"]["mean"])
    np.testing.assert_array_equal(found["Dense_0"]["kernel"], variables["params"]["Dense_0"]["kernel"])


@pytest.mark.thorough
def test_configs(tmp_path: pathlib.Path) -> None:
    raw: dict[str, Any] = {
        "seeds": 2,
        "rounds": 2,
        "save_models": "last",
        "data": {"dataset": "blobs", "partition": "iid", "clients": 5},
        "model": {"name": "logistic_regression"},
        "local": {"learning_rate": 0.5, "batch_size": 4, "steps": 2},
        "standalone": {"steps": 2},
        "algorithms": [{"name": "fedavg", "label": "a:b"}, {"name": "standalone"}],
    }

    def run(folder: pathlib.Path, **model: Any) -> Any:
        own = raw | {"model": raw["model"] | model}
        with quick_programs():
            return experiment.run(configuration.parse(own, name="tiny"), directory=folder).models["a:b"]

    first = run(tmp_path / "first")
    name = f"{tmp_path / 'first'}:a:b"
    second = run(tmp_path / "second", initial=name, initial_seed=1)
    loss, before = second.metrics.test_loss, first.metrics.test_loss
    # The same data for the same seed.
    np.testing.assert_allclose(loss.isel(seed=1, evaluated_round=0), before.isel(seed=1, evaluated_round=-1), rtol=1e-5)
    np.testing.assert_array_equal(second.state.round, [2, 2])
    task = models.logistic_regression((4,), 3)
    for initial, seed, words in (
        (name, None, r"model\.initial: expected model\.initial_seed, one of the seeds \[0, 1\] of"),
        (name, 5, r"to be one of the seeds \[0, 1\] of .*, got 5"),
        (f"{tmp_path / 'first'}:a:c", 0, "expected one of the labels a:b, standalone, got 'a:c'"),
        (str(tmp_path / "first"), 0, "expected a run folder with a label"),
        (
            f"{tmp_path / 'first'}:standalone",
            0,
            "a model that all clients share, got 'standalone', which has none",
        ),
        (str(tmp_path / "none") + ":a", 0, "which is no run folder"),
        (None, 1, r"expected model\.initial = 'RUN:LABEL' with it, got 1 alone"),
    ):
        with pytest.raises(ValueError, match=words):
            setup.with_initial(task, initial, seed)


class Net_frozen(nn.Module):
    def setup(self) -> None:
        self.backbone, self.norm, self.head = nn.Dense(16), nn.BatchNorm(), nn.Dense(3)
        self.adapter = nn.Dense(16, kernel_init=nn.initializers.zeros)

    def features(self, x: Any, train: bool = False) -> Any:
        x = self.norm(self.backbone(x.reshape(x.shape[0], -1)), use_running_average=not train)
        return x + self.adapter(nn.relu(x))

    def __call__(self, x: Any, train: bool = False) -> Any:
        return self.head(self.features(x, train))


WHOLE = task_from_module(
    Net_frozen(), X[:1], classes=3, statistics="frozen", head=lambda path: path.startswith("head/")
)
FROZEN_PARAMS = WHOLE.init(jax.random.key(5))


def _backbone(path: str) -> bool:
    return path.startswith(("backbone/", "norm/"))


@pytest.mark.in_turn
def test_params_are_the_trained_leaves() -> None:
    task: Any = freeze(WHOLE, FROZEN_PARAMS, _backbone)
    params = task.init(jax.random.key(5))
    assert [each.shape for each in jax.tree.leaves(params)] == [(16,), (16, 16), (3,), (16, 3)]
    np.testing.assert_allclose(task.logits(params, X[:5]), WHOLE.logits(FROZEN_PARAMS, X[:5]), rtol=1e-6)
    assert task.roles(params)["head"] == {"kernel": "head", "bias": "head"}
    # Drawn anew for each seed, or as given.
    assert not np.allclose(task.init(jax.random.key(6))["head"]["kernel"], FROZEN_PARAMS["head"]["kernel"])
    given = freeze(WHOLE, FROZEN_PARAMS, _backbone, draw=False).init(jax.random.key(6))
    np.testing.assert_array_equal(given["head"]["kernel"], FROZEN_PARAMS["head"]["kernel"])


@pytest.mark.thorough
def test_training_equals_training_of_the_whole_model_whose_backbone_has_no_gradient() -> None:
    task = freeze(WHOLE, FROZEN_PARAMS, _backbone, draw=False)
    result = engine.simulate(_plan(task), FEDERATION, rounds=2)

    def logits(params: Any, x: Any, key: Any = None) -> Any:
        return WHOLE.logits(
            {name: jax.lax.stop_gradient(part) if _backbone(f"{name}/") else part for name, part in params.items()},
            x,
            key,
        )

    still = WHOLE._replace(logits=logits, init=lambda key: FROZEN_PARAMS)
    expected = engine.simulate(_plan(still), FEDERATION, rounds=2)
    np.testing.assert_allclose(result.metrics.test_loss, expected.metrics.test_loss, rtol=1e-5)
    for name in ("adapter", "head"):
        assert_close(result.deployed(0)[name], expected.deployed(0)[name])


@pytest.mark.in_turn
def test_frozen_leaves_are_neither_stacked_nor_sent() -> None:
    spec, inputs = partition_plan(_plan(freeze(WHOLE, FROZEN_PARAMS, _backbone), scaffold), FEDERATION)
    trained = trees.bytes_of(freeze(WHOLE, FROZEN_PARAMS, _backbone).init(jax.random.key(0)))
    shapes = measure(spec, inputs, 1)
    assert shapes.model == trained
    assert shapes.wire.up == 2 * trained  # the update, and the change of the control variate
    # One copy among the arguments of the program, though logits and features hold the arrays.
    frozen = trees.size(FROZEN_PARAMS) - trees.size(freeze(WHOLE, FROZEN_PARAMS, _backbone).init(jax.random.key(0)))
    assert WHOLE.features is not None
    assert sum(np.size(leaf) for leaf in inputs.traced if np.ndim(leaf)) == frozen


def test_init_may_be_traced_again_and_again() -> None:
    task = freeze(WHOLE, FROZEN_PARAMS, _backbone)
    shapes = [jax.eval_shape(task.init, jax.random.key(0)) for _ in range(2)]
    assert shapes[0] == shapes[1]
    assert len(roles.roles_of(task, shapes[0])) == 4


@pytest.mark.in_turn
def test_backbones_of_equal_shapes_share_a_program() -> None:
    first, second = (freeze(WHOLE, WHOLE.init(jax.random.key(seed)), _backbone) for seed in (1, 2))
    specs = [partition_plan(_plan(task), FEDERATION)[0] for task in (first, second)]
    assert specs[0] == specs[1]
    losses = [engine.simulate(_plan(task), FEDERATION, rounds=1).metrics.test_loss for task in (first, second)]
    assert not np.allclose(losses[0], losses[1])


@pytest.mark.in_turn
def test_an_algorithm_without_a_plan() -> None:
    task = freeze(WHOLE, FROZEN_PARAMS, _backbone)
    found = engine.simulate(fedavg(task, LOCAL, clients_per_round=None), FEDERATION, rounds=1)
    np.testing.assert_allclose(
        found.metrics.test_loss,
        engine.simulate(_plan(task), FEDERATION, rounds=1).metrics.test_loss,
        rtol=1e-5,
    )


def test_errors() -> None:
    task = freeze(WHOLE, FROZEN_PARAMS, _backbone)
    refuses(lambda: freeze(task, FROZEN_PARAMS, _backbone), "choose all leaves at once")
    with pytest.raises(ValueError, match=r"not all, got 10 of 10; valid names are adapter/bias"):
        freeze(WHOLE, FROZEN_PARAMS, lambda path: True)
    moving = task_from_module(Net_frozen(), X[:1], classes=3)
    with pytest.raises(ValueError, match=r"got 'norm/mean'; make the task with .*statistics='frozen'"):
        freeze(moving, FROZEN_PARAMS, _backbone)
    refuses(lambda: freeze(moving, FROZEN_PARAMS, lambda path: False), "got 0 of 10")
    with pytest.raises(ValueError, match="expected params like those of the task"):
        freeze(WHOLE, {**FROZEN_PARAMS, "head": {"kernel": jnp.zeros((16, 4)), "bias": jnp.zeros(4)}}, _backbone)
    with pytest.raises(ValueError, match="expected own to be layers, statistics or names of leaves, got 'x'"):
        fedbn(WHOLE, LOCAL, own=("x",))
