"""BatchNorm under FedAvg, FedBN and SiloBN: whole rounds against NumPy, ragged, with a client without rows."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import engine
from fljax.algorithms import fedavg, fedbn
from fljax.core import trees
from fljax.engine.rounds.states import by_id, initial_state
from fljax.models import task_from_module
from fljax.protocol import Federation, roles
from fljax.training import Local
from tests.algorithms.rounds_tools import federation
from tests.oracles import numpy_batch_norm
from tests.precision import enable_x64
from tests.toys.federation import tiny_federation
from tests.toys.quick import QUICK
from tests.toys.statistics import watched_regression

RATE, STEPS, ROUNDS = 0.4, 3, 2


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.BatchNorm(use_running_average=not train, momentum=numpy_batch_norm.MOMENTUM, name="norm")(x)
        return nn.Dense(4, name="head")(x)


# More than any client's rows: every batch is padded, and has all of the client's rows.
LOCAL = Local(RATE, 9, steps=STEPS)


def _named(params: Any) -> dict[str, np.ndarray]:
    flat = {**params["norm"], "kernel": params["head"]["kernel"], "offset": params["head"]["bias"]}
    return {name: np.asarray(leaf) for name, leaf in flat.items()}


def _run(build: Any, **options: Any) -> tuple[Any, list[Any], list[tuple[np.ndarray, np.ndarray]]]:
    data = federation()
    task = task_from_module(Net(), data.examples.x[:1], classes=4, dtype=jnp.zeros(()).dtype)
    algorithm = build(task, LOCAL, clients_per_round=None, **options)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(data: Federation) -> tuple[Any, Any]:
        before = initial_state(algorithm, by_id(data), jnp.uint32(0))
        return before, fljax.rollout(algorithm, data, rounds=ROUNDS, initial=before)[0]

    before, after = run(data)
    rows, size, id = data.clients.train.index, data.clients.train.size, data.clients.id
    examples = data.examples
    own = {int(id[k]): rows[k, : int(size[k])] for k in range(len(id))}
    clients = [(np.asarray(examples.x[own[k]]), np.asarray(examples.y[own[k]])) for k in range(len(id))]
    return _named(_deployed(before, 0)), [_named(_deployed(after, k)) for k in range(len(clients))], clients


def _deployed(state: Any, k: int) -> Any:
    if state.clients == ():
        return state.server.model
    return trees.merge(state.server.shared, trees.take(state.clients.own, k))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("build", "options", "private"),
    [
        pytest.param(fedavg, {"server_lr": 0.5}, (), marks=pytest.mark.thorough),
        (fedbn, {}, ("scale", "bias", "mean", "var")),
        (fedbn, {"own": "statistics"}, ("mean", "var")),
        (fedbn, {"own": ("norm/var", "head"), "weights": "size"}, ("var", "kernel", "offset")),
    ],
    ids=["fedavg", "fedbn", "silobn", "named"],
)
def test_rounds_equal_numpy(build: Any, options: Any, private: tuple[str, ...]) -> None:
    with enable_x64(True):
        start, models, clients = _run(build, **options)
        _, expected = numpy_batch_norm.rounds(
            start,
            clients,
            ROUNDS,
            private=private,
            server_lr=options.get("server_lr", 1.0),
            steps=STEPS,
            rate=RATE,
        )
        for k, (x, _) in enumerate(clients):
            for name, leaf in expected[k].items():
                np.testing.assert_allclose(models[k][name], leaf, rtol=1e-9, atol=1e-12, err_msg=f"{k} {name} {len(x)}")


@pytest.mark.in_turn
def test_unseen_clients_have_no_model() -> None:
    data = federation()
    strangers = data.clients._replace(id=jnp.arange(5))
    task = task_from_module(Net(), data.examples.x[:1], classes=4)
    found = engine.simulate(fedbn(task, LOCAL), data._replace(unseen=strangers), rounds=1).metrics
    assert np.all(np.isnan(found["unseen_test_loss"]))
    assert not np.all(np.isnan(found["test_loss"]))


def test_which_leaves_stay() -> None:
    data = federation()
    task = task_from_module(Net(), data.examples.x[:1], classes=4)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert roles.roles_of(task, shapes).count("statistic") == 2
    server = jax.eval_shape(lambda: initial_state(fedbn(task, LOCAL), data, jnp.uint32(0)).server)
    assert server.shared["norm"] == {"scale": None, "bias": None, "mean": None, "var": None}
    assert server.start["head"] == {"kernel": None, "bias": None}
    # Statistics at the root are in no layer.
    flat, tiny = fedbn(watched_regression(), LOCAL), tiny_federation()
    start = jax.eval_shape(lambda: initial_state(flat, tiny, jnp.uint32(0)))
    assert trees.paths_of(start.server.start) == ["mean", "seven"]
