"""Contributions in rounds of IAFL and of other algorithms: rounds in NumPy, server rows, and what is refused."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import config, training
from fljax.algorithms import cgsv_iafl, fedavg, iafl, qffl
from fljax.algorithms.measuring import Sample, check_measure, measured_from, measured_in, with_contributions
from fljax.contributions import RoundMeasure, RunRecord, estimate
from fljax.core import trees
from fljax.engine import rollout
from fljax.experiments.inputs.setup import resolve_setup
from fljax.protocol import Available, Census, Cohort, Round, Rows, Subset, unlabelled
from fljax.testing import logistic_regression, tiny_federation
from fljax.testing.federation import Linear
from tests.algorithms.oracle_tools import LOST, POPULATION, STEPS, agrees, at, rate_of, run
from tests.algorithms.rounds_tools import TASK, close, federation, history, missing, numpy_client
from tests.algorithms.test_rewards_rounds import drawn, models_and_reference
from tests.oracles import numpy_rewards as oracle
from tests.oracles import numpy_round
from tests.precision import enable_x64

pytestmark = pytest.mark.usefixtures("quick_compilation")

MEMORY, KAPPA, RECOVERY = 0.4, 0.3, 0.4


def measured(**settings: Any) -> RoundMeasure:
    return RoundMeasure("cosine", **({"memory": MEMORY, "options": {"normalised": True}} | settings))


@pytest.fixture(scope="module", params=[pytest.param("single", marks=pytest.mark.thorough), "double"])
def rounds(request):
    """IAFL that shuts out whoever is below the mean: a run, and the tolerance."""
    with enable_x64(request.param == "double"):
        algorithm = iafl(TASK, STEPS, contribution=measured(filter_below=0.9), kappa=KAPPA, recovery=RECOVERY)
        yield run(algorithm), 1e-10 if request.param == "double" else 1e-5


@pytest.mark.in_turn
def test_iafl_that_measures_contributions(rounds):
    ran, tolerance = rounds

    def step(round, state):
        models, reference, known = state
        assert not known.filtered[list(round.clients)].any(), "who was shut out is not selected"
        recovered = round.record["recovered"]
        moves = oracle.updates(models, round.clients, round.rate)
        flat = {id: np.concatenate([move[name].ravel() for name in sorted(move)]) for id, move in moves.items()}
        scores = oracle.cosines(flat, normalised=True)
        known = oracle.contributions_round(known, scores, MEMORY, 0.9)
        np.testing.assert_allclose(round.record["contribution"], known.contribution, atol=10 * tolerance)
        np.testing.assert_array_equal(round.record["filtered"], known.filtered)
        np.testing.assert_array_equal(np.isnan(round.record["score"]), [id not in scores for id in range(POPULATION)])
        worth = np.where(known.filtered, 0, np.maximum(known.contribution, 0))
        rates = np.array(oracle.iafl_rates(list(worth), worth.max(), KAPPA)) * ~known.filtered
        np.testing.assert_allclose(round.record["rate"], rates, atol=10 * tolerance)
        assert not (recovered & known.filtered).any()
        subsets, own = drawn(round, round.present & ~known.filtered[round.record["cohort_id"]])
        used = {id: client for id, client in round.clients.items() if not known.filtered[id]}
        after = oracle.iafl_round(models, reference, used, round.rate, subsets, own, recovered)
        return *after, known

    nothing = oracle.Known(np.zeros(POPULATION), np.zeros(POPULATION, int), np.zeros(POPULATION, bool))
    start = *models_and_reference(ran.by_state(0)), nothing
    reads = lambda state: (*models_and_reference(state), None)  # noqa: E731
    *_, known = agrees(ran, step, STEPS, reads, tolerance, start=start)
    assert 0 < known.filtered.sum() < 4
    kept = ran.states.server.book.filtered[1]
    assert kept.any(), "somebody is shut out in round 0, so that round 1 is without"


@pytest.mark.thorough
def test_the_first_round_is_that_of_cgsv_iafl():
    """Clients of one size have equal weights in the first round of both, and none is at the floor of CGSV."""
    data = federation((4, 4, 4, 4, 4), range(5), capacity=4)
    with enable_x64(True):
        options: dict[str, Any] = {"kappa": KAPPA, "recovery": RECOVERY}
        ours = history(lambda _: iafl(TASK, STEPS, contribution=measured(memory=0.5), **options), data, 1)
        theirs = history(lambda _: cgsv_iafl(TASK, STEPS, alpha=0.5, **options), data, 1)
        np.testing.assert_allclose(ours[1]["rate"], theirs[1]["rate"], rtol=1e-5)
        close(ours[0].server.models.values, theirs[0].server.models.values, 1e-10)


DATA = tiny_federation()


def held_round(rows: str = "validation") -> tuple[Any, Round, Sample]:
    """The tiny federation's task, a round of three of five clients, and their updates."""
    data, task, random = DATA, logistic_regression(), np.random.default_rng(0)
    model = Linear(*(np.float32(0.3 * random.normal(size=shape)) for shape in ((4, 3), (3,))))
    update = jax.tree.map(lambda leaf: np.float32(random.normal(size=(4, *leaf.shape))), model)
    cohort = Cohort(jnp.asarray([3, 0, 1, 4]), jnp.zeros(4, jnp.int32), jnp.asarray([True, True, False, True]))
    held = {rows: Subset(data.examples, data.held[rows])}
    return task, Round(jax.random.key(1), jnp.int32(0), cohort, held), Sample(model, update, jnp.ones(4))


def measured_once(chosen: RoundMeasure, task: Any, sample: Sample, round: Round) -> tuple[np.ndarray, np.ndarray]:
    """Contributions and scores after one round: one program."""
    census = Census(jnp.ones(5, jnp.int32), jnp.ones(5, jnp.int32))

    @jax.jit
    def play(sample, round):
        after, info = measured_in(chosen, task, measured_from(chosen, task, sample.model, census), sample, round)
        return after.contribution, unlabelled(info)["score"]

    check_measure(chosen, task)
    return jax.tree.map(np.asarray, play(sample, round))


@pytest.mark.in_turn
def test_shapley_values_of_a_round_on_rows_of_the_server():
    """FedSV by NumPy: the mean over all orders of what a client adds to minus the loss."""
    task, round, sample = held_round()
    found, score = measured_once(RoundMeasure("fed_shapley", judged_by="loss"), task, sample, round)
    index = np.asarray(round.held["validation"].rows.index)[: int(round.held["validation"].rows.size)]
    x, y = (np.asarray(part)[index].astype(int if place else float) for place, part in enumerate(DATA.examples[:2]))
    model, update = (
        {"w": np.asarray(tree.weight, float), "b": np.asarray(tree.bias, float)}
        for tree in (sample.model, sample.update)
    )

    def value(members):
        rows = [row for row, id in ((0, 3), (1, 0), (3, 4)) if id in members]
        step = {name: leaf[rows].mean(axis=0) if rows else 0 for name, leaf in update.items()}
        return -numpy_round.loss({name: model[name] + step[name] for name in model}, x, y)

    expected = np.zeros(5)
    for order in itertools.permutations((0, 3, 4)):
        for place, id in enumerate(order):
            expected[id] += (value(order[: place + 1]) - value(order[:place])) / 6
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(score, np.where(expected == 0, np.nan, expected), atol=1e-6)
    assert np.abs(expected).max() > 1e-2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "judged_by"),
    [
        ("in_run_leave_one_out", "accuracy"),
        ("digfl", "loss"),
        ("first_order", "loss"),
        ("gtg_shapley", "loss"),
        ("cffl_reputation", "accuracy"),
    ],
)
def test_estimators_on_rows_of_the_server(name, judged_by):
    """The contributions are those of the same estimator on the record of the round."""
    task, round, sample = held_round()
    found, score = measured_once(RoundMeasure(name, judged_by=judged_by), task, sample, round)
    rows = round.held["validation"]

    def judged(model):
        loss, accuracy = training.evaluate(task, lambda x: task.logits(model, x), rows)
        return -loss if judged_by == "loss" else accuracy

    here = round.cohort.present
    share = jnp.where(here, 1, 0) / jnp.sum(here)
    step = jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, 1), sample.update)
    models = jax.tree.map(lambda w, d: jnp.stack([w, w + d]), sample.model, step)
    record = RunRecord(models, trees.take(sample.update, None), sample.weight[None], here[None], round.cohort.id[None])
    slopes = jax.vmap(jax.grad(lambda model: training.evaluate(task, lambda x: task.logits(model, x), rows)[0]))(models)
    options = {} if name in ("digfl", "first_order") else {"utility": judged}
    expected = estimate(name, record._replace(gradients=slopes), clients=5, key=jax.random.key(2), **options).by_round[
        0
    ]
    tolerance = 0.2 if name == "gtg_shapley" else 1e-5  # other orders are drawn
    np.testing.assert_allclose(found, expected, atol=tolerance)
    np.testing.assert_array_equal(np.isnan(score), [False, True, True, False, False])
    assert np.abs(expected).max() > 1e-3


def test_the_head_is_that_of_the_task():
    """ShapFed's rows are the columns of the head: here of the bias alone, whose cosines are signs."""
    task, round, sample = held_round()
    found, _ = measured_once(RoundMeasure("shapfed"), task, sample, round)
    bias = np.asarray(sample.update.bias)[[0, 1, 3]]
    expected = (np.sign(bias) * np.sign(bias.sum(axis=0))).mean(axis=1)
    np.testing.assert_allclose(found[[3, 0, 4]], expected, atol=1e-6)


def test_statistics_count_in_no_direction():
    task, round, sample = held_round()
    task = task._replace(roles=lambda tree: Linear("statistic", "trained"))
    other = sample._replace(update=sample.update._replace(weight=100 * sample.update.weight))
    first, second = (measured_once(RoundMeasure(), task, each, round)[0] for each in (sample, other))
    np.testing.assert_array_equal(first, second)


@functools.cache
def recorded(**settings: Any) -> Any:
    """FedAvg by size, plain and with contributions."""
    plain = fedavg(TASK, STEPS)
    wrapped = with_contributions(plain, RoundMeasure("cosine", **settings), stacked=True)
    return tuple(history(functools.partial(_built, missing(each, LOST)), federation(), 2) for each in (plain, wrapped))


def _built(algorithm: Any, numbers: Any) -> Any:
    return algorithm


@pytest.mark.in_turn
def test_contributions_beside_an_algorithm_change_nothing():
    (plain, _), (states, records) = recorded()
    close(states.server.inner.model, plain.server.model, 1e-6)
    for t in range(2):
        clients = {id: numpy_client(federation(), id, t, STEPS) for id in (0, 1, 2, 3, 4) if id and id not in LOST[t]}
        model = at(plain.server.model, t)
        moves = oracle.updates([model] * POPULATION, clients, rate_of(STEPS, t))
        flat = {id: np.concatenate([move[name].ravel() for name in sorted(move)]) for id, move in moves.items()}
        sizes = {id: len(client.y) for id, client in clients.items()}
        total = np.sum([sizes[id] * move for id, move in flat.items()], axis=0)
        expected = [
            flat[id] @ total / np.linalg.norm(flat[id]) / np.linalg.norm(total) if id in flat else np.nan
            for id in range(POPULATION)
        ]
        np.testing.assert_allclose(records["score"][t], expected, rtol=1e-4)


def test_contributions_beside_an_algorithm_know_the_members():
    """The law of coalitions has what they change; here, that they follow who leaves."""
    wrapped = with_contributions(qffl(TASK, STEPS, clients_per_round=None), "rffl_reputation")
    members = jnp.asarray([True, True, False, True, True])
    count = jnp.ones(POPULATION, jnp.int32)
    server = wrapped.init_server(jax.random.key(0), Census(count, count, members))
    np.testing.assert_array_equal(server.members, members)
    available = Available(POPULATION).without(~members).without(jnp.arange(POPULATION) == 4)
    after, cohort, _ = wrapped.select(jax.random.key(0), jnp.int32(0), server, None, available)
    assert np.asarray(after.members).tolist() == [True, True, False, True, False]
    assert int(cohort.present.sum()) == 3
    assert wrapped.init_server(jax.random.key(0), Census(count, count)).members is None


@pytest.mark.thorough
def test_an_algorithm_that_shuts_clients_out():
    (plain, _), (states, records) = recorded(filter_below=1.0)
    gone = records["filtered"][0]
    assert 0 < gone.sum() < 4
    present = records["cohort_id"][1][records["cohort_present"][1]]
    assert not gone[present].any()
    assert np.abs(states.server.inner.model["w"][1] - plain.server.model["w"][1]).max() > 1e-3


@pytest.mark.thorough
def test_rows_of_the_server_in_a_run():
    """FedSV in q-FFL, on the rows that the server has."""
    data = federation()
    data = data._replace(held={"validation": Rows(jnp.arange(4, dtype=jnp.int32), jnp.int32(4))})
    wrapped = with_contributions(qffl(TASK, STEPS, q=1.0), RoundMeasure("fed_shapley", judged_by="loss"))
    _, records = history(functools.partial(_built, wrapped), data, 2)
    assert np.isfinite(records["contribution"]).all()
    assert np.abs(records["score"][:, 1:]).max() > 1e-3


@pytest.mark.thorough
def test_gradients_through_rounds_are_finite_and_right():
    """Client 4 has no training rows here: its update is zero, and a cosine with it must not spoil the others."""
    data = tiny_federation(dtype=np.float64)
    empty = data.clients.train._replace(size=data.clients.train.size.at[0].set(0))
    data = data._replace(clients=data.clients._replace(train=empty))

    def loss(numbers):
        rate, memory = numbers
        chosen = measured(memory=memory, filter_below=0.2)
        algorithm = iafl(
            logistic_regression(jnp.float64), STEPS._replace(learning_rate=rate), contribution=chosen, kappa=KAPPA
        )
        state, _ = rollout(algorithm, data, rounds=2)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(state.server.models))

    with enable_x64(True):
        at = jnp.asarray([0.2, 0.5])
        slope = jax.jit(jax.grad(lambda numbers: loss(tuple(numbers))))(at)
        moved = [float(jax.jit(lambda numbers: loss(tuple(numbers)))(at.at[0].add(step))) for step in (1e-5, -1e-5)]
        np.testing.assert_allclose(slope[0], (moved[0] - moved[1]) / 2e-5, rtol=1e-5)
        assert slope[1] == 0


def lengths(updates: Any, weights: Any, present: Any, *, scale: float = 1.0) -> Any:
    """A measure of one's own, for configs: the lengths of updates."""
    return scale * jnp.sqrt(sum(jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(updates)))


CONFIG: dict[str, Any] = {
    "rounds": 2,
    "seeds": 1,
    "data": {"dataset": "blobs", "partition": "iid", "clients": 3},
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 8, "steps": 1},
}


def of_config(contribution: Any) -> Any:
    return config.parse(CONFIG | {"algorithms": [{"name": "iafl", "contribution": contribution}]})


def chosen_by(contribution: Any) -> Any:
    """What the algorithm of a config gets."""
    return resolve_setup(of_config(contribution)).algorithms[0].contribution


def test_measures_in_a_config():
    assert chosen_by("cosine") == RoundMeasure("cosine")
    table = {"name": "cosine", "normalised": True, "memory": 0.9, "filter_below": 0.2, "filter_after": 3}
    expected = RoundMeasure("cosine", 0.9, 0.2, 3, options={"normalised": True})
    assert chosen_by(table) == expected
    found = chosen_by({"name": "tests.algorithms.test_measuring:lengths", "scale": 2.0})
    assert isinstance(found, RoundMeasure)
    assert callable(found.measure)
    assert found.options == {"scale": 2.0}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "cosine", "memori": 0.5}, r"contribution: expected one of the keys memory, .*did you mean 'memory'"),
        ({"name": "cosine", "free_riders": [1]}, r"contribution.free_riders: expected none for 'cosine'"),
        ({"name": "cosine", "memory": "long"}, r"contribution.memory"),
        ({"name": "size", "memory": 0.5}, r"contribution: expected one of the keys .*, got 'memory'"),
        ({"name": "cosine", "judged_by": "score"}, r"contribution.judged_by"),
    ],
)
def test_what_a_config_may_not_say(table, message):
    with pytest.raises(config.ConfigError, match=message):
        of_config(table)
