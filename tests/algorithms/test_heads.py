"""FedPer, FedRep and FedBABU: rounds of ragged clients against NumPy, numbers by hand, and edges."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.algorithms import fedavg, fedavg_finetune, fedbabu, fedper, fedrep, standalone
from fljax.algorithms.heads import learning_of
from fljax.core import trees
from fljax.models import task_from_module
from fljax.protocol import Examples, LocalData, Rows, Seat, Subset, Task
from fljax.training import Local, RateSchedule, Stream
from tests.algorithms.oracle_tools import (
    EPOCHS,
    NOTHING,
    STEPS,
    WITH_DATA,
    Run,
    agrees,
    deployed,
    judged,
    modes,
    rate_of,
    run,
    stranger,
    taking_part,
)
from tests.algorithms.rounds_tools import TASK, batches_of, close, engine_key, federation, history, own_rows, stored
from tests.oracles import numpy_heads as oracle
from tests.oracles.numpy_round import Client, local_sgd
from tests.toys.quick import QUICK

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

FIRST_HEAD = np.array([0.2, -0.4, 0.1, 0.3])


def task_of(**roles: str) -> Task:
    """Logistic regression whose two leaves have these roles, and whose bias does not start at zero."""
    start = lambda key: TASK.init(key) | {"b": jnp.asarray(FIRST_HEAD, jnp.result_type(float))}  # noqa: E731
    return TASK._replace(init=start, roles=(lambda tree: dict(roles)) if roles else None)


HEADED = task_of(w="trained", b="head")
ALL_BODY, ALL_HEAD = task_of(), task_of(w="head", b="head")


@functools.partial(jax.jit, static_argnames="how", compiler_options=QUICK)
def _drawn(key: Any, rows: Rows, how: Local) -> Any:
    return training.draw(jax.random.fold_in(key, 0), Subset(NOTHING, rows), how)


def client_of(key: Any, id: int, how: Local) -> Client:
    """A client for NumPy that draws its batches with this key."""
    rows = trees.take(stored(federation()).clients.train, id)
    x, y = own_rows(federation(), id)
    return Client(x.astype(np.float64), y, batches_of(_drawn(key, rows, how)))


def of_deployment(ran: Run, id: int, how: Local, known: bool = True) -> Client:
    judge, _, data = judged(ran, known=known)
    return client_of(judge.key(trees.take(data.clients, id)), id, how)


def reads(state: Any) -> Any:
    return state.server.shared["w"], dict(enumerate(state.clients.own["b"]))


def start_of(ran: Run) -> oracle.Heads:
    return oracle.Heads(ran.by_state(0).server.shared["w"], dict.fromkeys(range(5), FIRST_HEAD))


@modes
@pytest.mark.parametrize("weights", ["size", pytest.param("uniform", marks=pytest.mark.thorough)])
def test_fedper(how, weights, tolerance):
    ran = run(fedper(HEADED, how, weights=weights, tune_epochs=2))
    step = lambda round, state: oracle.fedper_round(state, round.clients, round.rate, by_size=weights == "size")  # noqa: E731
    state = agrees(ran, step, how, reads, tolerance, start=start_of(ran))
    for id in (0, 3):  # of which client 0 has no data
        close(deployed(ran, id)[0], state.model(id), tolerance)
    tuning = how._replace(steps=None, epochs=2)
    expected = local_sgd({"w": state.body, "b": FIRST_HEAD}, of_deployment(ran, 2, tuning, False), rate_of(how, 0))
    close(stranger(ran), expected, tolerance)


@pytest.mark.parametrize(
    ("how", "options", "of_head", "of_final"),
    [
        (STEPS, {}, STEPS, STEPS),
        pytest.param(
            EPOCHS,
            {"head_steps": 4, "final_epochs": 3, "weights": "uniform"},
            EPOCHS._replace(epochs=None, steps=4),
            EPOCHS._replace(epochs=3),
            marks=pytest.mark.thorough,
        ),
        (STEPS, {"head_epochs": 2, "final_epochs": 1}, EPOCHS, EPOCHS._replace(epochs=1)),
    ],
    ids=["steps", "head_steps", "head_epochs"],
)
def test_fedrep(how, options, of_head, of_final, tolerance):
    def step(round, state):
        keys = {id: jax.random.fold_in(engine_key(jnp.int32(id), round.t), int(Stream.HEAD)) for id in round.clients}
        heads = {id: client_of(key, id, of_head) for id, key in keys.items()}
        return oracle.fedrep_round(state, round.clients, heads, round.rate, by_size=options.get("weights") != "uniform")

    ran = run(fedrep(HEADED, how, **options))
    state = agrees(ran, step, how, reads, tolerance, start=start_of(ran))
    rate = rate_of(how, 2)
    for id in (3, 4):
        model = state.model(id)
        if "final_epochs" in options:
            model = oracle.descended(model, of_deployment(ran, id, of_final), rate, ("b",))
        close(deployed(ran, id)[0], model, tolerance)
    fresh = {"w": state.body, "b": FIRST_HEAD}
    close(stranger(ran), oracle.descended(fresh, of_deployment(ran, 2, of_final, False), rate, ("b",)), tolerance)


@modes
def test_fedbabu(how, tolerance):
    ran = run(fedbabu(HEADED, how, tune_epochs=2))
    step = lambda round, state: oracle.fedbabu_round(state, round.clients, round.rate)  # noqa: E731
    state = agrees(ran, step, how, reads, tolerance, start=start_of(ran))
    tuning = how._replace(steps=None, epochs=2)
    for id in WITH_DATA[:2]:
        expected = local_sgd(state.model(id), of_deployment(ran, id, tuning), rate_of(how, 0))
        close(deployed(ran, id)[0], expected, tolerance)
    close(stranger(ran), local_sgd(state.model(2), of_deployment(ran, 2, tuning, False), rate_of(how, 0)), tolerance)


# --- By hand ------------------------------------------------------------------------------------------------

# ``F_i = (b h_i - c_i)^2 / 2`` with ``c = (1, 2)``.
PRODUCT = Task(
    init=lambda key: {"b": jnp.ones(()), "h": jnp.full((), 0.5)},
    logits=lambda params, x, key=None: params["b"] * params["h"] - x,
    loss=lambda logits, y: 0.5 * jnp.square(logits[:, 0]),
    roles=lambda tree: {"b": "trained", "h": "head"},
)
PAIR = federation((1, 1), range(2), capacity=1, x=np.array([[1.0], [2.0]]), y=np.zeros(2, int))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("build", "head", "steps", "heads", "body"),
    [
        (fedper, 0.5, 1, [0.75, 1.25], 1.25),
        (fedrep, 0.0, 1, [0.5, 1.0], 1.3125),
        (fedbabu, 0.5, 1, [0.5, 0.5], 1.25),
        (fedbabu, 0.5, 2, [0.5, 0.5], 1.46875),
    ],
)
def test_one_round_by_hand(build, head, steps, heads, body):
    task = PRODUCT._replace(init=lambda key: {"b": jnp.ones(()), "h": jnp.full((), head)})
    algorithm = build(task, Local(0.5, 1, steps=steps))
    states, _ = history(lambda numbers: algorithm, PAIR, 1)
    assert states.clients.own["h"][1].tolist() == heads
    assert states.server.shared["b"][1].tolist() == body
    zero = jnp.int32(0)
    down = algorithm.down(trees.take(states.server, 1), Seat(zero, zero, zero))
    assert (trees.paths_of(down), trees.paths_of(states.clients.own)) == (["b"], ["h"])


# --- Edges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "weights"), [(functools.partial(fedper, tune_epochs=0), "size"), (fedrep, "size"), (fedbabu, "uniform")]
)
def test_without_a_head_they_are_fedavg(build, weights):
    found = run(build(ALL_BODY, EPOCHS, clients_per_round=3))
    expected = run(fedavg(ALL_BODY, EPOCHS, clients_per_round=3, weights=weights))
    jax.tree.map(np.testing.assert_array_equal, found.states.server.shared, expected.states.server.model)
    assert not jax.tree.leaves(found.states.clients)
    if build is not fedbabu:
        jax.tree.map(np.testing.assert_array_equal, deployed(found, 3)[0], deployed(expected, 3)[0])


def test_without_a_body_clients_train_alone():
    nobody = ((), ())
    found = run(fedper(ALL_HEAD, EPOCHS, clients_per_round=None), lost=nobody)
    alone = run(standalone(ALL_HEAD, EPOCHS), lost=nobody)
    jax.tree.map(np.testing.assert_array_equal, found.states.clients.own, alone.states.clients.model)
    kept = run(fedbabu(ALL_HEAD, EPOCHS), lost=nobody).states
    assert (kept.clients.own["w"] == kept.clients.own["w"][:1]).all()
    fitted = run(fedrep(ALL_HEAD, EPOCHS), lost=nobody).states
    assert not jax.tree.leaves(fitted.server.shared)
    assert (fitted.clients.own["w"][1:, list(WITH_DATA)] != fitted.clients.own["w"][:-1, list(WITH_DATA)]).any()


# Each of these moves leaves whose gradient is zero.
HARD = Local(0.2, 2, steps=3, optimizer="sgd", options=(("momentum", 0.9),), weight_decay=0.1)


def test_the_head_of_fedbabu_never_changes():
    ran = run(fedbabu(HEADED, HARD))
    assert (ran.states.clients.own["b"] == FIRST_HEAD.astype(np.float32)).all()
    assert taking_part(ran.by_round()[0])
    assert (np.diff(ran.states.server.shared["w"], axis=0) != 0).all()


@pytest.mark.parametrize("build", [fedbabu, fedper, fedavg_finetune])
def test_tuning_has_no_schedule_over_rounds(build):
    """A warm-up begins at a rate of 0."""
    schedule = RateSchedule("warmup_cosine_decay_schedule", (("decay_steps", 50), ("warmup_steps", 5)))
    found = [
        stranger(run(build(HEADED, STEPS._replace(schedule=each)), lost=(WITH_DATA,))) for each in (None, schedule)
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return nn.Dense(4, name="head")(nn.BatchNorm(use_running_average=not train, name="norm")(x))


@pytest.mark.parametrize(
    ("part", "moves"),
    [("head", {"head/kernel", "head/bias"}), ("trained", {"norm/scale", "norm/bias"})],
)
def test_what_is_held_keeps_its_bits_and_statistics_move(part, moves):
    x = jnp.asarray(np.random.default_rng(0).normal(1, 2, size=(6, 3)), jnp.float32)
    subset = Subset(Examples(x, jnp.arange(6, dtype=jnp.int32) % 4), Rows(jnp.arange(6, dtype=jnp.int32), jnp.int32(6)))

    def changed(task: Task) -> set[str]:
        before = jax.tree.map(lambda leaf: leaf + 0.5, task.init(jax.random.key(0)))
        learn = jax.jit(learning_of(part, task, HARD).train, compiler_options=QUICK)
        zero, data = jnp.zeros((), jnp.int32), LocalData(subset, subset, subset)
        after = learn(jax.random.key(1), Seat(zero, zero, zero), before, data).params
        pairs = zip(trees.paths_of(before), *map(jax.tree.leaves, (before, after)), strict=True)
        return {path for path, one, other in pairs if (one != other).any()}

    made = functools.partial(task_from_module, Net(), x[:1], classes=4)
    assert changed(made(head=lambda path: path.startswith("head"))) == moves | {"norm/mean", "norm/var"}
    assert changed(made(head=lambda path: path.startswith("head"), statistics="frozen")) == moves
    headless = changed(made())
    assert headless == (set() if part == "head" else {"head/kernel", "head/bias"} | moves | {"norm/mean", "norm/var"})
