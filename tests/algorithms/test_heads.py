"""FedPer, FedRep and FedBABU: rounds of ragged clients against NumPy, numbers by hand, and edges."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg_finetune, fedbabu, fedper, fedrep
from fljax.algorithms.heads import learning_of
from fljax.core import trees
from fljax.models import task_from_module
from fljax.protocol import Examples, LocalData, Rows, Seat, Subset, Task
from fljax.training import Local, RateSchedule, Stream
from tests.algorithms.oracle_tools import EPOCHS, STEPS, WITH_DATA, agrees, deployed, judged, rate_of, run, stranger
from tests.algorithms.rounds_tools import TASK, close, federation, history, numpy_client
from tests.oracles import numpy_personal as oracle
from tests.toys.quick import QUICK

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

FIRST_HEAD = np.array([0.2, -0.4, 0.1, 0.3])
HEADED = TASK._replace(
    init=lambda key: TASK.init(key) | {"b": jnp.asarray(FIRST_HEAD, jnp.result_type(float))},
    roles=lambda tree: {"w": "trained", "b": "head"},
)
ONE, THREE = EPOCHS._replace(epochs=1), EPOCHS._replace(epochs=3)


@pytest.mark.parametrize(
    ("build", "how", "options", "of_head", "known", "unseen"),
    [
        (fedper, STEPS, {"tune_epochs": 2}, None, None, EPOCHS),
        (fedper, EPOCHS, {"tune_epochs": 2, "weights": "uniform"}, None, None, EPOCHS),
        (fedbabu, STEPS, {"tune_epochs": 2, "weights": "size"}, None, EPOCHS, EPOCHS),
        (fedbabu, EPOCHS, {"tune_epochs": 2}, None, EPOCHS, EPOCHS),
        (fedrep, STEPS, {}, STEPS, None, STEPS),
        (fedrep, STEPS, {"head_epochs": 2, "final_epochs": 1}, EPOCHS, ONE, ONE),
        (fedrep, EPOCHS, {"head_steps": 3, "final_epochs": 3, "weights": "uniform"}, STEPS, THREE, THREE),
    ],
)
def test_rounds(build, how, options, of_head, known, unseen, tolerance):
    """``known`` and ``unseen`` are what clients train before they use their model: FedRep the head, others all."""
    by_size = options.get("weights", "uniform" if build is fedbabu else "size") == "size"

    def step(round, state):
        phases = [("wb" if build is fedper else "w", round.clients)]
        if of_head is not None:
            heads = {id: numpy_client(federation(), id, round.t, of_head, Stream.HEAD) for id in round.clients}
            phases.insert(0, ("b", heads))
        return oracle.heads_round(state, phases, round.rate, by_size)

    def used(state, id, local, **options):
        judge, _, data = judged(ran, **options)
        client = numpy_client(data, id, 0, local or EPOCHS, key=judge.key(trees.take(data.clients, id)))
        moving, rate = ("b", rate_of(how, 2)) if build is fedrep else ("wb", rate_of(how, 0))
        return oracle.descended(state.model(id), client, rate, moving if local else "")

    ran = run(build(HEADED, how, **options))
    reads = lambda state: (state.server.shared["w"], dict(enumerate(state.clients.own["b"])))  # noqa: E731
    start = oracle.Heads(ran.by_state(0).server.shared["w"], dict.fromkeys(range(5), FIRST_HEAD))
    state = agrees(ran, step, how, reads, tolerance, start=start)
    for id in (0, 3, 4):  # of which client 0 has no data
        close(deployed(ran, id)[0], used(state, id, known), tolerance)
    close(stranger(ran), used(start._replace(body=state.body), 2, unseen, known=False), tolerance)


# ``F_i = (b h_i - c_i)^2 / 2`` with ``c = (1, 2)``.
PRODUCT = Task(
    init=lambda key: {"b": jnp.ones(()), "h": jnp.full((), 0.5)},
    logits=lambda params, x, key=None: params["b"] * params["h"] - x,
    loss=lambda logits, y: 0.5 * jnp.square(logits[:, 0]),
)
PAIR = federation((1, 1), range(2), capacity=1, x=np.array([[1.0], [2.0]]), y=np.zeros(2, int))
BOTH, ALL_HEAD = {"b": "trained", "h": "head"}, {"b": "head", "h": "head"}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("build", "roles", "head", "steps", "own", "shared"),
    [
        (fedper, BOTH, 0.5, 1, {"h": [0.75, 1.25]}, {"b": 1.25}),
        (fedrep, BOTH, 0.0, 1, {"h": [0.5, 1.0]}, {"b": 1.3125}),
        (fedbabu, BOTH, 0.5, 1, {"h": [0.5, 0.5]}, {"b": 1.25}),
        (fedbabu, BOTH, 0.5, 2, {"h": [0.5, 0.5]}, {"b": 1.46875}),
        # Without a body nothing is shared, and FedBABU trains nothing.
        (fedper, ALL_HEAD, 0.5, 1, {"b": [1.125, 1.375], "h": [0.75, 1.25]}, {}),
        (fedrep, ALL_HEAD, 0.5, 1, {"b": [1.125, 1.375], "h": [0.75, 1.25]}, {}),
        (fedbabu, ALL_HEAD, 0.5, 1, {"b": [1.0, 1.0], "h": [0.5, 0.5]}, {}),
    ],
)
def test_one_round_by_hand(build, roles, head, steps, own, shared):
    start = lambda key: {"b": jnp.ones(()), "h": jnp.full((), head)}  # noqa: E731
    algorithm = build(PRODUCT._replace(init=start, roles=lambda tree: roles), Local(0.5, 1, steps=steps))
    states, _ = history(lambda _: algorithm, PAIR, 1)
    for found, expected in ((states.clients.own, own), (states.server.shared, shared)):
        assert {name: leaf[1].tolist() for name, leaf in found.items() if leaf is not None} == expected


@pytest.mark.parametrize("build", [fedbabu, fedper, fedavg_finetune])
def test_tuning_has_no_schedule_over_rounds(build):
    """A warm-up begins at a rate of 0."""
    warming = RateSchedule("warmup_cosine_decay_schedule", (("decay_steps", 50), ("warmup_steps", 5)))
    found = [stranger(run(build(HEADED, STEPS._replace(schedule=each)), lost=(WITH_DATA,))) for each in (None, warming)]
    jax.tree.map(np.testing.assert_array_equal, *found)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return nn.Dense(4, name="head")(nn.BatchNorm(use_running_average=not train, name="norm")(x))


HEAD, SCALES, STATISTICS = {"head/kernel", "head/bias"}, {"norm/scale", "norm/bias"}, {"norm/mean", "norm/var"}


@pytest.mark.parametrize(("part", "moves", "headless"), [("head", HEAD, set()), ("trained", SCALES, HEAD | SCALES)])
def test_what_is_held_keeps_its_bits_and_statistics_move(part, moves, headless):
    """Also with momentum and decay, which move leaves whose gradient is zero."""
    hard = Local(0.2, 2, steps=3, options=(("momentum", 0.9),), weight_decay=0.1)
    x, rows = jnp.asarray(np.random.default_rng(0).normal(1, 2, size=(6, 3)), jnp.float32), jnp.arange(6)
    subset = Subset(Examples(x, rows % 4), Rows(rows, jnp.int32(6)))

    @functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def trained(task, before):
        zero, data = jnp.zeros((), jnp.int32), LocalData(subset, subset, subset)
        return learning_of(part, task, hard).train(jax.random.key(1), Seat(zero, zero, zero), before, data).params

    def changed(**options):
        task = task_from_module(Net(), x[:1], classes=4, **options)
        before = jax.tree.map(lambda leaf: leaf + 0.5, task.init(jax.random.key(0)))
        pairs = zip(trees.paths_of(before), *map(jax.tree.leaves, (before, trained(task, before))), strict=True)
        return {path for path, one, other in pairs if (one != other).any()}

    is_head = lambda path: path.startswith("head")  # noqa: E731
    assert changed(head=is_head) == moves | STATISTICS
    assert changed(head=is_head, statistics="frozen") == moves
    assert changed() == headless | (STATISTICS if headless else set())
