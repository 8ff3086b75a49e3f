"""Results go through pickle, and states back into models."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import ditto, fedavg
from fljax.protocol import Task
from fljax.training import Local
from tests.laws.compare import assert_same
from tests.refusals import refuses
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

LOCAL = Local(0.2, batch_size=2, steps=3)
FEDERATION = tiny_federation()
X = np.linspace(-1, 1, 4 * int(np.prod(FEDERATION.examples.x.shape[1:]))).reshape(4, *FEDERATION.examples.x.shape[1:])
X = X.astype(np.float32)
FEATURES = int(np.prod(X.shape[1:]))


def init(key: Any) -> Any:
    return {"w": 0.1 * jax.random.normal(key, (FEATURES, 3))}


def logits(params: Any, x: Any, key: Any = None) -> Any:
    return x.reshape(x.shape[0], -1) @ params["w"]


def loss(out: Any, y: Any) -> Any:
    return -jax.nn.log_softmax(out)[jnp.arange(out.shape[0]), y]


IMPORTABLE = logistic_regression()._replace(
    init=init, logits=logits, loss=loss, features=None, prepare=None, roles=None
)


def with_closures() -> Task:
    """A task whose functions are made inside a function."""
    scale = 0.1

    def start(key: Any) -> Any:
        return {"w": scale * jax.random.normal(key, (FEATURES, 3))}

    return IMPORTABLE._replace(init=start, logits=lambda params, x, key=None: logits(params, x, key))


CLOSURES = with_closures()


def simulate(task: Task, build: Any = ditto) -> Any:
    plan = engine.Plan(build, {"task": task, "local": LOCAL, "clients_per_round": 3})
    return engine.simulate(plan, FEDERATION, rounds=2, seeds=(5, 9))


@pytest.fixture(scope="module")
def importable():
    return simulate(IMPORTABLE)


@pytest.fixture(scope="module")
def closures():
    return simulate(CLOSURES)


def assert_equal(found, result):
    assert found.metrics.identical(result.metrics)
    assert found.records.identical(result.records)
    assert found.diverged == result.diverged
    assert_same(found.state, result.state)


def assert_predicts(found, result):
    for arguments in ({"client": 1}, {"client": 2, "seed": 1}, {"client": 0, "unseen": True}):
        np.testing.assert_array_equal(found.predict(x=X, **arguments), result.predict(x=X, **arguments))
    own, other = result.deployed(1), result.deployed(2)
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(other), strict=True))
    jax.tree.map(np.testing.assert_array_equal, found.deployed(1), own)


@pytest.fixture
def _without_cloudpickle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


@pytest.mark.thorough
@pytest.mark.usefixtures("_without_cloudpickle")
def test_a_result_whose_functions_can_be_imported_goes_through_pickle(importable):
    again = pickle.loads(pickle.dumps(importable))
    assert_equal(again, importable)
    assert_predicts(again, importable)
    # Once more, before anything of it was used.
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(importable))))
    assert_predicts(twice, importable)
    # And a run goes on from its state.
    plan = engine.Plan(ditto, {"task": IMPORTABLE, "local": LOCAL, "clients_per_round": 3})
    more = [engine.simulate(plan, FEDERATION, rounds=1, seeds=(5, 9), initial=r.state) for r in (again, importable)]
    np.testing.assert_array_equal(more[0].metrics["test_loss"], more[1].metrics["test_loss"])


@pytest.mark.thorough
@pytest.mark.usefixtures("_without_cloudpickle")
def test_without_importable_functions_everything_else_survives(closures):
    again = pickle.loads(pickle.dumps(closures))
    assert_equal(again, closures)
    refuses(lambda: again.predict(1, X), "this result was pickled without its models: expected functions of the plan")
    refuses(lambda: again.deployed(1), "local")


@pytest.mark.in_turn
def test_with_cloudpickle_any_function_will_do(closures):
    pytest.importorskip("cloudpickle")
    assert_predicts(pickle.loads(pickle.dumps(closures)), closures)


_OF_FLAX = """
import pickle

import cloudpickle
import flax.linen as nn
import jax
import numpy as np

from fljax import models


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


x = np.ones((2, 4), "float32")
for task in (models.mlp((4,), 3, hidden=[4]), models.task_from_module(Linen(), x)):
    params, again = task.init(jax.random.key(0)), pickle.loads(cloudpickle.dumps(task))
    np.testing.assert_array_equal(again.logits(params, x), task.logits(params, x))
"""


@pytest.mark.thorough
def test_tasks_of_linen_modules_go_through_pickle():
    """In another process: the checks of annotations in tests add what cannot be pickled."""
    pytest.importorskip("cloudpickle")
    done = subprocess.run([sys.executable, "-c", _OF_FLAX], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def refuse():
    raise TypeError("made by hand only")


class Unloadable:
    """As jax.custom_vjp is in recent versions of JAX: it can be pickled, and not be read again."""

    def __call__(self, x):
        return x

    def __reduce__(self):
        return refuse, ()


@pytest.mark.in_turn
def test_what_pickle_cannot_load_is_said_in_a_sentence():
    pytest.importorskip("cloudpickle")
    plain = Unloadable()
    task = CLOSURES._replace(logits=lambda params, x, key=None: plain(logits(params, x, key)))
    result = engine.simulate(
        engine.Plan(fedavg, {"task": task, "local": LOCAL, "clients_per_round": 3}), FEDERATION, rounds=0
    )
    again = pickle.loads(pickle.dumps(result))
    refuses(lambda: again.predict(1, X), "this result's models cannot be read from the pickle: TypeError: made by")


@pytest.mark.thorough
def test_an_algorithm_instead_of_a_plan(closures):
    """Its functions are always made inside a function."""
    result = engine.simulate(fedavg(IMPORTABLE, LOCAL, clients_per_round=3), FEDERATION, rounds=1)
    again = pickle.loads(pickle.dumps(result))
    assert again.metrics.identical(result.metrics)


@pytest.mark.in_turn
def test_copies(closures):
    again = copy.deepcopy(closures)
    assert_equal(again, closures)
    assert_predicts(again, closures)
    again.metrics["test_loss"][:] = 0
    assert (closures.metrics["test_loss"] != 0).any()


@pytest.mark.thorough
def test_a_missing_module_is_said(importable, monkeypatch):
    data = pickle.dumps(importable).replace(b"tests.engine.test_trained", b"tests.engine.test_removed")
    again = pickle.loads(data)
    assert_equal(again, importable)
    refuses(lambda: again.predict(1, X), "need the code that trained them, which cannot be imported")


@pytest.mark.thorough
def test_models_from_the_arrays_of_a_state(importable):
    plan = engine.Plan(ditto, {"task": IMPORTABLE, "local": LOCAL, "clients_per_round": 3})
    arrays = engine.arrays_of(importable.state)
    assert all(isinstance(values, np.ndarray) for values in arrays.values())
    models = engine.restore(plan, FEDERATION, arrays, seeds=(5, 9))
    assert_predicts(models, importable)
    on = engine.simulate(plan, FEDERATION, rounds=1, seeds=(5, 9), initial=models.state)
    assert on.metrics["evaluated_round"].values.tolist() == [2, 3]
    first, *others = arrays
    for wrong, words in (
        ({name: arrays[name] for name in others}, "expected the arrays of a state of this algorithm"),
        (arrays | {first: arrays[first][:1]}, r"expected .* to be"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.restore(plan, FEDERATION, wrong, seeds=(5, 9))
    refuses(lambda: engine.restore(plan, FEDERATION, arrays, seeds=(5, 8)), "expected the seeds of the state")


@pytest.mark.thorough
def test_half_precision_survives_a_file(tmp_path, importable):
    half = IMPORTABLE._replace(init=init_half)
    plan = engine.Plan(fedavg, {"task": half, "local": LOCAL, "clients_per_round": 3})
    result = engine.simulate(plan, FEDERATION, rounds=0)
    np.savez(tmp_path / "a.npz", **engine.arrays_of(result.state))  # type: ignore[arg-type]
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        models = engine.restore(plan, FEDERATION, dict(file), seeds=1)
    jax.tree.map(np.testing.assert_array_equal, models.deployed(1), result.deployed(1))
    assert jax.tree.leaves(models.deployed(1))[0].dtype == jnp.bfloat16


def init_half(key: Any) -> Any:
    return {"w": init(key)["w"].astype(jnp.bfloat16)}
