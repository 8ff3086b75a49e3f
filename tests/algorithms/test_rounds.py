"""FedAvg and INCFL: whole rounds against NumPy, and the equalities that the papers promise."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.algorithms import fedavg, incfl
from fljax.core.trees import take
from fljax.protocol import Subset
from fljax.training import Local
from tests.algorithms.oracle_tools import each
from tests.algorithms.rounds_tools import (
    TASK,
    close,
    double,
    engine_key,
    federation,
    history,
    own_rows,
    present_clients,
    stored,
)
from tests.oracles import numpy_round

STEPS, EPOCHS = Local(0.5, 3, steps=3), Local(0.5, 3, epochs=2, decay=0.5)


pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]


SIZE = fedavg(TASK, STEPS, clients_per_round=None)
UNIFORM = fedavg(TASK, STEPS, clients_per_round=None, weights="uniform")
SLOW = fedavg(TASK, EPOCHS, clients_per_round=None, weights="uniform", server_lr=0.8)


@functools.cache
def always(algorithm):
    return lambda numbers: algorithm


def relu(threshold):
    """INCFL whose threshold is an argument of the compiled rounds."""
    return incfl(TASK, STEPS, threshold=threshold, surrogate="relu", clients_per_round=None)


def run(algorithm, data, rounds, threshold=()):
    """Models before round 0 and after each round, and the records."""
    build = relu if algorithm is relu else always(algorithm)
    states, records = history(build, data, rounds, jax.tree.map(jnp.asarray, threshold))
    return each(states.server.model), each(records)


def check_fedavg(algorithm, how, server_lr, tolerance):
    data, by_size = federation(), algorithm is SIZE
    models, records = run(algorithm, data, 2)
    for t, record in enumerate(records):
        clients, ids = present_clients(data, how, record, t)
        assert sorted(ids) == [1, 2, 3, 4]
        rate = how.learning_rate * how.decay**t
        expected = numpy_round.fedavg_round(double(models[t]), clients, rate, by_size=by_size, server_lr=server_lr)
        close(models[t + 1], expected, tolerance)
        mass = np.array([len(client.y) if by_size else 1 for client in clients])
        np.testing.assert_allclose(record["weight"][record["cohort_present"]], mass / mass.sum(), rtol=1e-6)
        np.testing.assert_array_equal(record["weight"][~record["cohort_present"]], 0)


def check_incfl(surrogate, normalise, how, tolerance, gap_scale=1.0):
    data, threshold = federation(), np.array([np.nan, 1.2, 0.4, 2.5, 1.6])  # by id; id 0 has no data
    algorithm = incfl(
        TASK,
        how,
        threshold=jnp.asarray(threshold),
        clients_per_round=4,
        surrogate=surrogate,
        gap_scale=gap_scale,
        normalise=normalise,
        server_lr=0.3,
        eps=0.01,
    )
    models, records = run(algorithm, data, 2)
    for t, record in enumerate(records):
        clients, ids = present_clients(data, how, record, t)
        expected, gap, q = numpy_round.incfl_round(
            double(models[t]),
            clients,
            how.learning_rate * how.decay**t,
            np.asarray(jnp.asarray(threshold), np.float64)[ids],
            surrogate=surrogate,
            gap_scale=gap_scale,
            normalise=normalise,
            server_lr=0.3,
            eps=0.01,
        )
        close(models[t + 1], expected, tolerance)
        here = record["cohort_present"]
        close(record["gap"][here], gap, tolerance)
        close(record["weight"][here], q, 10 * tolerance)


@pytest.mark.parametrize(
    ("algorithm", "how", "server_lr"), [(SIZE, STEPS, 1.0), (SLOW, EPOCHS, 0.8)], ids=["size", "uniform"]
)
def test_fedavg_round(algorithm, how, server_lr):
    check_fedavg(algorithm, how, server_lr, 1e-5)


def test_fedavg_round_in_double_precision(x64):
    check_fedavg(SIZE, STEPS, 1.0, 1e-10)


VARIANTS = [
    ("sigmoid", "sum", STEPS),
    ("softplus", "mean", EPOCHS),
    ("relu", "sum", EPOCHS),
    ("exp", "mean", STEPS),
    ("hinge", "sum", STEPS),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("surrogate", "normalise", "how"), VARIANTS)
def test_incfl_round(surrogate, normalise, how):
    check_incfl(surrogate, normalise, how, 1e-5)


@pytest.mark.parametrize(("surrogate", "normalise", "how"), [("sigmoid", "mean", EPOCHS), VARIANTS[3]])
def test_incfl_round_in_double_precision(surrogate, normalise, how, x64):
    check_incfl(surrogate, normalise, how, 1e-10)


def test_incfl_round_with_a_scaled_gap(x64):
    check_incfl("sigmoid", "sum", STEPS, 1e-10, gap_scale=6.0)


FULL = Local(0.5, 100, steps=1)


def mean_loss(data, id):
    """``params -> F_id(params)`` over the rows of one client, without padding."""
    x, y = map(jnp.asarray, own_rows(data, id))
    return lambda params: TASK.loss(TASK.logits(params, x), y).mean()


def test_one_full_batch_step_is_gradient_descent():
    data = federation((5, 3, 7), (2, 0, 1))
    models, _ = run(fedavg(TASK, FULL, clients_per_round=None), data, 3)
    sizes = np.asarray(stored(data).clients.train.size)

    losses = [mean_loss(data, k) for k in range(3)]

    def objective(params):
        return sum(float(n / sizes.sum()) * loss(params) for loss, n in zip(losses, sizes, strict=True))

    descent = jax.jit(lambda p: jax.tree.map(lambda w, g: w - 0.5 * g, p, jax.grad(objective)(p)))
    for before, after in itertools.pairwise(models):
        close(after, descent(before))


def test_equal_sizes_make_both_weightings_agree():
    data = federation((3, 3, 3, 3, 3))
    close(*(run(algorithm, data, 2)[0][-1] for algorithm in (SIZE, UNIFORM)))


def test_identical_clients_are_centralised_training():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(5, 3)), rng.integers(0, 4, 5)
    data = federation((5, 5, 5), (0, 1, 2), x=np.tile(x, (3, 1)), y=np.tile(y, 3))
    models, _ = run(fedavg(TASK, Local(0.5, 5, steps=3), clients_per_round=2), data, 2)
    alone = numpy_round.Client(x, y, [range(5)] * 6)
    close(models[-1], numpy_round.local_sgd(double(models[0]), alone, 0.5), 1e-5)


def test_direction_is_the_gradient_of_the_objective(x64):
    data, rho = federation((5, 3, 7), (2, 0, 1)), jnp.array([1.0, 0.4, 2.0])
    algorithm = incfl(TASK, FULL, threshold=rho, clients_per_round=None, server_lr=0.7, eps=0.01)
    (before, after), (record,) = run(algorithm, data, 1)

    losses = [mean_loss(data, k) for k in range(3)]

    def objective(params):
        return sum(jax.nn.sigmoid(loss(params) - rho[k]) for k, loss in enumerate(losses)) / 3

    slope = jax.jit(jax.grad(objective))(before)
    factor = -0.5 * 0.7 / (record["weight"].sum() + 0.01) * 3
    step = jax.tree.map(lambda new, old: new - old, after, before)
    close(step, jax.tree.map(lambda g: factor * g, slope), 1e-9)


def test_clients_at_their_threshold_give_uniform_fedavg():
    data = federation()
    (before, expected), _ = run(UNIFORM, data, 1)
    rho = [numpy_round.loss(double(before), *own_rows(data, k)) if k else 9.0 for k in range(5)]
    models, (record,) = run(incfl(TASK, STEPS, threshold=jnp.array(rho), clients_per_round=None, eps=0.0), data, 1)
    close(models[-1], expected)
    np.testing.assert_allclose(record["weight"], np.where(record["cohort_present"], 0.25, 0), rtol=1e-6)


def test_clients_content_with_anything_freeze_the_model():
    data = federation()
    models, (_, record) = run(relu, data, 2, jnp.inf)
    jax.tree.map(np.testing.assert_array_equal, models[-1], models[0])
    assert (record["weight"] == 0).all()
    assert np.isnan(record["loss"]).tolist() == (~record["cohort_present"]).tolist()


@pytest.mark.quick
def test_relu_with_all_above_their_threshold_is_uniform_fedavg():
    data = federation()
    models, _ = run(relu, data, 1, 0.0)
    close(models[-1], run(UNIFORM, data, 1)[0][-1])


def test_a_threshold_is_a_number_or_one_per_client():
    data = federation()
    number, each = (run(relu, data, 1, rho) for rho in (1.3, np.full(5, 1.3)))
    close(number[0][-1], each[0][-1])
    weight = number[1][0]["weight"]
    assert 0 < weight.sum() < 4
    # By client id, wherever the client sits.
    first = int(number[1][0]["cohort_id"][np.argmax(weight)])
    _, (record,) = run(relu, data, 1, np.where(np.arange(5) == first, 99.0, 1.3))
    np.testing.assert_array_equal(record["weight"], np.where(record["cohort_id"] == first, 0, weight))


@pytest.mark.thorough
def test_tuning_changes_the_loss_but_not_the_update():
    data = federation()
    algorithm = incfl(TASK, STEPS, threshold=0.0, surrogate="relu", clients_per_round=None, tune_steps=4)
    (before, after), (record,) = run(algorithm, data, 1)
    close(after, run(UNIFORM, data, 1)[0][-1])  # all weights are 1, whatever the loss
    train = jax.jit(functools.partial(training.train, task=TASK, local=Local(0.5, 3, steps=4)))
    fall = []
    for row, id in enumerate(record["cohort_id"]):
        if record["cohort_present"][row]:
            key = engine_key(jnp.int32(id), 0)
            own = Subset(data.examples, take(stored(data).clients.train, int(id)))
            tuned = train(jax.random.fold_in(key, 3), before, own).params
            loss = numpy_round.loss(double(tuned), *own_rows(data, id))
            np.testing.assert_allclose(record["loss"][row], loss, rtol=1e-5)
            fall.append(numpy_round.loss(double(before), *own_rows(data, id)) - loss)
    assert len(fall) == 4
    assert max(fall) > 0.1
