"""Warm starts: ``models.start_from``, parameters from files, ``simulate(initial_model=...)`` and configs."""

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
from fljax.algorithms import fedavg
from fljax.core import trees
from fljax.engine.programs.program import partition_plan
from fljax.experiments import run as experiment
from fljax.experiments.inputs import initial_models
from fljax.training import Local
from tests.toys.quick import quick_programs

FEDERATION = data.federate(data.load("blobs"), "iid", clients=4)
X = FEDERATION.examples.x
LOCAL = Local(0.1, 8, steps=2)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x.reshape(x.shape[0], -1)))
        return nn.Dense(3)(x)


NET = models.task_from_module(Net(), X[:1], classes=3)
TASK = models.logistic_regression(X.shape[1:], 3)
PARAMS = TASK.init(jax.random.key(7))


def _plan(task: Any = TASK) -> engine.Plan:
    return engine.Plan(fedavg, {"task": task, "local": LOCAL, "clients_per_round": None})


def _simulate(plan: Any, **arguments: Any) -> Any:
    given: dict[str, Any] = {"rounds": 0, "seeds": 2} | arguments
    return engine.simulate(plan, FEDERATION, **given)


def _assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_every_seed_starts_from_the_parameters() -> None:
    result = _simulate(_plan(), initial_model=PARAMS)
    for seed in (0, 1):
        _assert_same(result.deployed(2, seed=seed), PARAMS)
    _assert_same(engine.common_models(result.deployed), jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), PARAMS))
    same = models.start_from(TASK, PARAMS)
    _assert_same(_simulate(fedavg(same, LOCAL, clients_per_round=None)).deployed(1), PARAMS)
    alone = engine.standalone(same, FEDERATION, LOCAL._replace(learning_rate=1e-30), seeds=2, keep_models=True)
    first = jax.tree.map(lambda leaf: leaf[1, 3], alone.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-20), first, PARAMS)


def test_other_parameters_do_not_recompile() -> None:
    other = jax.tree.map(lambda leaf: leaf + 1, PARAMS)
    specs = [partition_plan(_plan(models.start_from(TASK, each)), FEDERATION) for each in (PARAMS, other)]
    assert specs[0][0] == specs[1][0]
    assert trees.size(specs[0][1].traced) >= trees.size(PARAMS)


def test_what_does_not_fit_is_one_sentence() -> None:
    path = trees.paths_of(PARAMS)[0]
    leaves, structure = jax.tree.flatten(PARAMS)
    wrong = jax.tree.unflatten(structure, [leaves[0][..., None], *leaves[1:]])
    with pytest.raises(ValueError, match=rf"like those of the task, {path} as float32\[.*\], got float32\[.*, 1\]"):
        models.start_from(TASK, wrong)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    with pytest.raises(ValueError, match=rf"{path} as float32\[.*\], got bfloat16"):
        _simulate(_plan(), initial_model=half)
    with pytest.raises(ValueError, match=rf"{path} as float32\[.*\], got no such leaf"):
        models.start_from(TASK, {})
    with pytest.raises(ValueError, match=r"got an Algorithm.*; build it of fljax\.models\.start_from\(task, params\)"):
        _simulate(fedavg(TASK, LOCAL, clients_per_round=None), initial_model=PARAMS)
    state = _simulate(_plan()).state
    with pytest.raises(ValueError, match=r"expected at most one of initial, .*, and initial_model, got both"):
        _simulate(_plan(), initial_model=PARAMS, initial=state)


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
        _assert_same(models.load_params(tmp_path / name, task), params)
    first, *_ = arrays
    np.savez(tmp_path / "less.npz", **{name: each for name, each in arrays.items() if name != first})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"expected '{first}' among the arrays of"):
        models.load_params(tmp_path / "less.npz", task)
    np.savez(tmp_path / "more.npz", **arrays, further=np.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected no arrays in .* but .*, got 'further'"):
        models.load_params(tmp_path / "more.npz", task)
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"of parameters, got .*bad\.npz', which cannot be read"):
        models.load_params(tmp_path / "bad.npz", task)
    with pytest.raises(ValueError, match="which does not exist"):
        models.load_params(tmp_path / "none.npz", task)


def test_collections_of_flax(tmp_path: pathlib.Path) -> None:
    variables = Net().init(jax.random.key(0), X[:1])
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
            initial_models.with_initial(task, initial, seed)
