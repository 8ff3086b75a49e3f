"""Strategic clients: sent updates and reports by their equations, and equal to what other scenarios make of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import aggregators, algorithms, scenarios
from fljax.algorithms.single_model import SingleModel, single_model
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.protocol import Algorithm, Available, Census, LocalData, Rows, Seat, Subset
from fljax.protocol.messages import Report, Sent, updates_of
from fljax.scenarios import ByReport, Strategy, strategic
from fljax.scenarios.changed_rows import with_flipped_labels
from fljax.scenarios.strategic import HONEST, StrategicClient, received_model
from tests.games.test_retraining import few
from tests.precision import enable_x64
from tests.scenarios.tools import LOCAL, TASK
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROUNDS, CLIENTS, SIZE = 3, 2, 4000
RNG = np.random.default_rng(0)
# What the clients of a toy train to, and the models that they receive.
UPDATES = RNG.normal(size=(ROUNDS, CLIENTS, SIZE)).astype(np.float32)
MODELS = RNG.normal(size=(ROUNDS, SIZE)).astype(np.float32)
ROWS = Subset(tiny_federation().examples, Rows(jnp.arange(4), jnp.int32(4)))
DATA = LocalData(ROWS, ROWS, ROWS)  # which toys do not read


def reports(**values: Any) -> Report:
    """What each client reports, ``[N, ...]``."""
    return Report(**{name: jnp.asarray(value) for name, value in values.items()})


def told(updates: Any = UPDATES, report: Any = None) -> Algorithm:
    """Clients send the updates ``[rounds, N, d]``, whatever they receive, and the report of the client."""

    def train(key: Any, seat: Seat, down: Any, client: Any, data: Any) -> tuple[Sent, Any]:
        said = Report() if report is None else jax.tree.map(lambda leaf: jnp.asarray(leaf)[seat.id], report)
        return Sent({"w": jnp.asarray(updates)[seat.round, seat.id]}, said), client

    return single_model(TASK._replace(roles=None), clients_per_round=None, train=train)


def played(algorithm: Algorithm, client: int, rounds: int = ROUNDS, models: Any = MODELS) -> list[Any]:
    """What one client sends in every round, in which it receives ``models``."""
    seat = Seat(jnp.int32(0), jnp.int32(client), jnp.int32(0))
    server = SingleModel({"w": jnp.asarray(models[0])})
    down = algorithm.send(server, seat._replace(first=True))
    kept, found = algorithm.init_client(jax.random.key(7), seat, down, DATA), []
    for round in range(rounds):
        down = algorithm.send(server._replace(model={"w": jnp.asarray(models[round])}), seat)
        key = client_key(round_key(jnp.uint32(0), Purpose.TRAIN, round), jnp.int32(client))
        up, kept = algorithm.train(key, seat._replace(round=jnp.int32(round)), down, kept, DATA)
        found.append(up)
    return found


def in_numpy(strategy: dict[str, Any], client: int) -> np.ndarray:
    """``own Delta^t + stale Delta^{t-1} + echo (w^t - w^{t-1})``, ``[rounds, d]``."""
    own, last = UPDATES[:, client], np.concatenate([np.zeros((1, SIZE)), UPDATES[:-1, client]])
    moved = MODELS - np.concatenate([MODELS[:1], MODELS[:-1]])
    number = {
        name: np.broadcast_to(np.asarray(value), (ROUNDS, CLIENTS))[:, client] for name, value in strategy.items()
    }
    return number["own"][:, None] * own + number["stale"][:, None] * last + number["echo"][:, None] * moved


@pytest.mark.in_turn
@pytest.mark.parametrize("client", range(CLIENTS))
def test_terms_of_the_sent_update(client: int) -> None:
    numbers: dict[str, Any] = {
        "own": np.array([0.5, -1.0]),
        "stale": np.array([2.0, 0.0]),
        "echo": np.array([[0.0, 1], [3, 1], [1, 0]]),
    }
    sent = played(strategic(told(), strategy=Strategy(**numbers)), client)
    found = np.stack([up.update["w"] for up in sent])
    np.testing.assert_allclose(found, in_numpy(numbers, client), rtol=1e-5, atol=1e-5)


@pytest.mark.in_turn
def test_noise_is_relative_to_the_update_or_to_the_change_of_the_model() -> None:
    numbers = {"own": np.array([2.0, 0.0]), "stale": 0.0, "echo": np.array([0.0, 1.0])}
    noisy = strategic(told(), strategy=Strategy(noise=3.0, noise_decay=0.5, own=numbers["own"], echo=numbers["echo"]))
    for client in range(CLIENTS):
        sent = np.stack([up.update["w"] for up in played(noisy, client)])
        noise = sent - in_numpy(numbers, client)
        moved = MODELS - np.concatenate([MODELS[:1], MODELS[:-1]])
        size = np.sqrt(np.mean((UPDATES[:, 0] if client == 0 else moved) ** 2, axis=1))
        expected = 3 * np.arange(1, ROUNDS + 1) ** -0.5 * size
        np.testing.assert_allclose(noise.std(axis=1), expected, rtol=0.05)
        assert abs(np.corrcoef(noise[1:])[0, 1]) < 0.1  # rounds draw anew


def test_a_term_with_coefficient_0_is_not_read() -> None:
    broken = np.where(np.arange(CLIENTS)[None, :, None] == 1, np.nan, UPDATES)
    algorithm = strategic(told(broken), strategy=Strategy(own=[1.0, 0.0], stale=[1.0, 0.0], noise=[1.0, 0.0]))
    for up in played(algorithm, 1):
        assert not np.any(up.update["w"])


@pytest.mark.in_turn
def test_honest_clients_send_their_update_and_report() -> None:
    """To the bit; also what a factor of 1 would round, a size that float32 does not have."""
    report = reports(loss=np.array([np.inf, -0.0]), size=np.array([2**24 + 1, 3], np.int32))
    for up in played(strategic(told(report=report), strategy=HONEST._replace(effort=None, flip=None)), 0):
        np.testing.assert_array_equal(up.report.size, 2**24 + 1)
        assert up.report.loss == np.inf
    sent = played(strategic(told(), strategy=HONEST._replace(effort=None, flip=None)), 1)
    np.testing.assert_array_equal(np.stack([up.update["w"] for up in sent]), UPDATES[:, 1])


def test_false_reports() -> None:
    """``factor value + shift``; sizes are rounded, contributions at least 0."""
    truth = reports(
        loss=np.array([2.0, np.inf]), size=np.array([7, 5], np.int32), contribution=np.array([0.5, 0.5]), bid=np.eye(2)
    )
    factor = ByReport(loss=[0.5, 0.0], size=[1.5, 1.0], bid=[2.0, 1.0])
    shift = ByReport(loss=[1.0, 4.0], contribution=[-1.0, 1.0], bid=[0.0, 1.0])
    algorithm = strategic(told(report=truth), strategy=Strategy(factor=factor, shift=shift))
    one, other = (played(algorithm, client, rounds=1)[0].report for client in range(CLIENTS))
    assert (one.loss, one.size, one.contribution, one.bid.tolist()) == (2.0, 10, 0.0, [2.0, 0.0])
    assert (other.loss, other.size, other.contribution, other.bid.tolist()) == (4.0, 5, 1.5, [1.0, 2.0])


@pytest.mark.parametrize("client", range(CLIENTS))
def test_the_same_as_free_riding_misreporting_and_effort(client: int) -> None:
    who, size = np.array([False, True]), reports(size=np.array([7, 5], np.int32))
    inner = told(report=size)
    lies = Strategy(factor=ByReport(size=np.where(who, 1.7, 1.0)), shift=ByReport(size=np.where(who, 3.0, 0.0)))
    pairs = [
        (scenarios.free_riding(inner, who=who), Strategy(own=np.where(who, 0.0, 1.0))),
        (scenarios.misreporting(inner, report="size", factor=1.7, offset=3.0, who=who), lies),
        (scenarios.effort(counting(), share=[0.5, 1.0]), Strategy(effort=[0.5, 1.0])),
    ]
    for known, numbers in pairs:
        wrapped = strategic(counting() if numbers.effort is not None else inner, strategy=numbers)
        both = (played(algorithm, client, rounds=1) for algorithm in (known, wrapped))
        jax.tree.map(np.testing.assert_array_equal, *both)


def counting() -> Algorithm:
    """Clients send the number of rows on which they train."""

    def train(key: Any, seat: Seat, down: Any, client: Any, data: LocalData) -> tuple[Sent, Any]:
        return Sent(down, Report(size=data.train.rows.size)), client

    return told()._replace(train=train)


@pytest.mark.thorough
def test_honest_runs_equal_runs_without_the_scenario() -> None:
    """In double precision within 1e-12, with every field in the program; a client that deviates changes the model."""
    with enable_x64(True):
        inner = algorithms.incfl(logistic_regression(jnp.float64), LOCAL, threshold=0.9, clients_per_round=None)
        federation = few(2)
        federation = federation._replace(
            examples=federation.examples._replace(x=jnp.asarray(federation.examples.x, jnp.float64))
        )

        @jax.jit
        def models(strategy: Strategy) -> tuple[Any, Any]:
            wrapped = strategic(inner, strategy=strategy)
            return tuple(fljax.rollout(each, federation, rounds=2)[0].server.model for each in (inner, wrapped))

        everybody = jax.tree.map(lambda number: jnp.full(2, number), HONEST)
        plain, honest = models(everybody)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), plain, honest)
        _, false = models(everybody._replace(own=jnp.array([1.0, 2.0])))
        assert not np.allclose(jax.tree.leaves(false)[0], jax.tree.leaves(plain)[0])


@pytest.mark.in_turn
def test_flipped_labels() -> None:
    """``classes - 1 - y`` in a share of the rows, which a larger share has as well; the number of a row counts."""
    index, key = jnp.arange(3000), jax.random.key(1)
    labels = 2 * (index % 2)  # the middle class would stay as it is
    examples: Any = tiny_federation().examples._replace(y=labels)
    subset = Subset(examples, Rows(index, jnp.int32(3000)))

    def flipped(share: float, data: Subset = subset) -> np.ndarray:
        changed = with_flipped_labels(TASK, key, jnp.float32(share), LocalData(data, data, data))
        np.testing.assert_array_equal(changed.test.examples.y, labels)  # those that judge stay true
        return np.asarray(changed.train.examples.y[index])

    np.testing.assert_array_equal(flipped(0.0), labels)
    np.testing.assert_array_equal(flipped(1.0), 2 - np.asarray(labels))
    few_rows, more = (flipped(share) != np.asarray(labels) for share in (0.3, 0.6))
    assert 0.27 < few_rows.mean() < 0.33
    assert not (few_rows & ~more).any()
    moved = subset._replace(examples=examples._replace(number=index[::-1]))
    np.testing.assert_array_equal(flipped(0.3, moved) != np.asarray(labels), few_rows[::-1])
    with pytest.raises(ValueError, match="expected a task of classes for flipped labels"):
        with_flipped_labels(TASK._replace(classes=None), key, jnp.float32(1), LocalData(subset, subset, subset))


@pytest.mark.thorough
def test_the_same_labels_are_flipped_where_examples_are_on_the_host() -> None:
    """There rows are read in blocks of clients, in which they have other places."""
    inner = algorithms.fedavg(TASK, LOCAL, clients_per_round=None)
    found = [
        fljax.simulate(strategic(inner, strategy=Strategy(flip=0.5)), few(3), rounds=2, execution=execution)
        for execution in (fljax.Execution(1), fljax.Execution(1, examples="host"))
    ]
    losses = [run.metrics["test_loss"].values for run in found]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_incfl_weighs_by_reports() -> None:
    """A client with gap 3 beside one with gap 0: q = 0.045177, share 0.153050; with its threshold as its loss 1/2."""
    truth = reports(loss=np.array([4.0, 1.0]), threshold=np.array([1.0, 1.0]))
    honest = [played(told(report=truth), client, rounds=1)[0].report for client in range(2)]
    lies = Strategy(factor=ByReport(loss=[0.0, 1.0]), shift=ByReport(loss=[1.0, 0.0]))
    false = [played(strategic(told(report=truth), strategy=lies), client, rounds=1)[0].report for client in range(2)]
    shares = []
    for said in (honest, false):
        gap = jnp.stack([report.loss - report.threshold for report in said])
        weight = np.asarray(aggregators.incfl_weights(gap))
        shares.append((weight[0], weight[0] / weight.sum()))
    np.testing.assert_allclose(shares[0], (0.045177, 0.153050), atol=1e-6)
    np.testing.assert_allclose(shares[1][1], 0.5)


def test_fedavg_weighs_by_the_size_that_a_client_claims() -> None:
    """Of three equal clients one claims ten times its size: its weight is 10 / 12."""
    updates, size = np.zeros((1, 3, SIZE), np.float32), reports(size=np.full(3, 5, np.int32))
    plain = algorithms.fedavg(TASK, LOCAL, clients_per_round=None)
    inner = plain._replace(train=told(updates, size).train)
    lying = strategic(inner, strategy=Strategy(factor=ByReport(size=[10.0, 1.0, 1.0])))
    masses = []
    for client in range(3):
        (up,) = played(lying, client, rounds=1)
        seat = Seat(jnp.int32(0), jnp.int32(client), jnp.int32(0))
        aggregate: Any = lying.aggregate
        masses.append(float(aggregate.contribute(None, seat, up)[0].weight))
    np.testing.assert_allclose(masses[0] / sum(masses), 0.833333, atol=1e-6)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("ceiling", "claim", "expected"),
    [("max", 1.0, (1, 1, 2)), ("max", 4.0, (2, 1, 2)), ("max", 8.0, (2, 1, 1)), (4.0, 8.0, (2, 1, 2))],
)
def test_iafl_rewards_by_contributions_that_clients_claim(ceiling: Any, claim: float, expected: Any) -> None:
    """``|S_k| - 1 = ceil(gamma_k (N - 1))`` of p = (1, 2, 4): who claims 8 also takes from the others."""
    inner = algorithms.iafl(TASK, LOCAL, contribution=(1.0, 2.0, 4.0), ceiling=ceiling)
    lying: Any = strategic(inner, strategy=Strategy(factor=ByReport(contribution=[claim, 1.0, 1.0])))
    size = jnp.full(3, 5, jnp.int32)
    server = lying.init_server(jax.random.key(0), Census(size, size))
    client = StrategicClient(())
    ballots = [
        lying.poll.ask(jax.random.key(1), Seat(jnp.int32(0), jnp.int32(id), jnp.int32(0)), (), client, DATA)
        for id in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ballots)
    _, _, info = lying.select(jax.random.key(2), jnp.int32(0), server, stacked, Available(3))
    rate: Any = info["rate"]
    np.testing.assert_array_equal(np.ceil(np.asarray(rate.values) * 2), expected)


def test_the_received_model_and_the_updates_of_a_message() -> None:
    update = {"w": jnp.ones(3)}
    assert len(updates_of({"a": Sent(update), "b": 1})) == 1
    assert updates_of(Report()) == []
    assert received_model(told(), {"w": jnp.zeros(3)}, update) is not None
    assert received_model(told(), {"w": jnp.zeros((2, 3))}, update) is None
