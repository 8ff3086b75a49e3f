"""Local training without shuffling: batches of consecutive rows, in the order in which a client has them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import algorithms, config, training
from fljax.algorithms import fedavg, mwfed, perfedavg
from fljax.config import ConfigError
from fljax.engine import Execution, Plan, rehearse, simulate, standalone
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import resolve_setup
from fljax.protocol import Algorithm
from fljax.results import Reference
from fljax.scenarios import finetuned
from fljax.testing.federation import logistic_regression, tiny_federation
from fljax.training import Local
from fljax.training import batches as drawing
from tests.algorithms.rounds_tools import SEED, TASK, close, double, federation, history, own_rows
from tests.laws.compare import assert_close
from tests.local_tools import CAPACITY, EPOCHS, KEY, STEPS, batches, real_rows, same
from tests.oracles import numpy_baselines, numpy_round
from tests.toys.configs import BASE
from tests.toys.quick import quick_programs

pytestmark = pytest.mark.usefixtures("quick_compilation")

IN_STEPS, IN_EPOCHS = (how._replace(shuffle=False) for how in (STEPS, EPOCHS))
ROUNDS = 2
IDS = (1, 2, 3, 4)  # those with rows; they have 7, 5, 2 and 3 of them
# By steps, batches wrap around; by epochs, the last ones are partial; two clients have at most 3 rows.
RAGGED = [Local(0.3, 3, steps=4, decay=0.5, shuffle=False), Local(0.3, 3, epochs=2, decay=0.5, shuffle=False)]
TINY = logistic_regression()
ALL_ROWS = Local(0.3, 50, steps=2, shuffle=False)


def in_order(size: int, how: Local) -> list[list[int]]:
    """The batches of a client, written out."""
    every = list(range(size))
    if how.epochs is not None:
        return [every[first : first + how.batch_size] for first in range(0, size, how.batch_size)] * how.epochs
    batch, found, line = min(how.batch_size, size), list[list[int]](), list[int]()
    while len(found) < (how.steps or 0):
        if len(line) < batch:
            line = line + every
        found, line = [*found, line[:batch]], line[batch:]
    return found


@pytest.mark.parametrize("how", [IN_STEPS, IN_EPOCHS, IN_EPOCHS._replace(epochs=1)], ids=["steps", "epochs", "epoch"])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 11, 12])
def test_batches_are_consecutive_rows(size: int, how: Local) -> None:
    found = batches(size, CAPACITY, how)
    assert real_rows(*found) == in_order(size, how)
    assert (found[0][~found[1]] == 0).all()


@pytest.mark.parametrize("how", [IN_STEPS, IN_EPOCHS])
def test_nothing_but_the_rows_decides(how: Local) -> None:
    """Neither the key nor the padding; a client without rows has no batches."""
    expected = real_rows(*batches(5, CAPACITY, how))
    assert expected == real_rows(*batches(5, 9, how))
    same(batches(5, CAPACITY, how), batches(5, CAPACITY, how, key=training.stream(KEY, training.Stream.STEPS)))
    assert not any(real_rows(*batches(0, CAPACITY, how)))


@pytest.mark.parametrize("how", [IN_STEPS, IN_EPOCHS])
def test_fewer_steps_are_a_prefix(how: Local) -> None:
    every, fewer = (real_rows(*batches(7, CAPACITY, how, steps)) for steps in (None, jnp.int32(2)))
    assert fewer == every[:2]


def test_what_is_no_bool_is_refused() -> None:
    with pytest.raises(ValueError, match="expected shuffle to be True or False, got 'no'"):
        batches(5, CAPACITY, STEPS._replace(shuffle="no"))


def rate_of(how: Local, t: int) -> float:
    return float(how.learning_rate * how.decay**t)


def client(id: int, batches: Any) -> numpy_round.Client:
    x, y = own_rows(federation(), id)
    return numpy_round.Client(x.astype(np.float64), y, batches)


def size_of(id: int) -> int:
    return len(own_rows(federation(), id)[1])


def rounds_of(build: Callable[..., Algorithm], how: Local, **options: Any) -> tuple[list[Any], Any]:
    """The server's models before the first round and after each one, and the states."""
    algorithm = build(TASK, how, clients_per_round=None, **options)
    states, records = history(lambda numbers: algorithm, federation(), ROUNDS)
    assert [sorted(each[here]) for each, here in zip(records["cohort_id"], records["cohort_present"], strict=True)] == [
        list(IDS)
    ] * ROUNDS
    return [{name: double(leaf[t]) for name, leaf in states.server.model.items()} for t in range(ROUNDS + 1)], states


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [*RAGGED, ALL_ROWS], ids=["steps", "epochs", "all rows"])
def test_a_round_of_fedavg(how: Local) -> None:
    models, _ = rounds_of(fedavg, how)
    for t in range(ROUNDS):
        clients = [client(id, in_order(size_of(id), how)) for id in IDS]
        close(models[t + 1], numpy_round.fedavg_round(models[t], clients, rate_of(how, t)), 1e-5)


@pytest.mark.in_turn
def test_a_batch_of_all_rows_is_the_same_either_way() -> None:
    shuffled, in_rows = (rounds_of(fedavg, ALL_ROWS._replace(shuffle=shuffle))[0] for shuffle in (True, False))
    close(shuffled[ROUNDS], in_rows[ROUNDS], 1e-6)


@pytest.mark.in_turn
@pytest.mark.parametrize("how", RAGGED, ids=["steps", "epochs"])
def test_the_batches_of_one_step_of_perfedavg_follow_one_another(how: Local) -> None:
    models, _ = rounds_of(perfedavg, how, alpha=0.2)
    # Two batches a step, so twice as many of them in line.
    longer = how._replace(steps=how.steps and 2 * how.steps, epochs=how.epochs and 2 * how.epochs)
    clients = {}
    for id in IDS:
        line, (x, y, _) = in_order(size_of(id), longer), client(id, ())
        clients[id] = numpy_baselines.Triples(x, y, list(zip(line[::2], line[1::2], strict=True)))  # type: ignore[arg-type]
    for t in range(ROUNDS):
        expected = numpy_baselines.perfedavg_round(models[t], clients, rate_of(how, t), 0.2)
        close(models[t + 1], expected, 1e-5)


@pytest.mark.in_turn
def test_perfedavg_adapts_to_rows_in_order() -> None:
    """Before deployment, too."""
    how = RAGGED[0]
    algorithm = perfedavg(TASK, how, alpha=0.2, adaptation_steps=3, clients_per_round=None)
    with quick_programs():
        result = simulate(algorithm, federation(), rounds=1, seeds=[SEED])
    model = double({name: leaf[0] for name, leaf in result.state.server.model.items()})
    own = client(1, in_order(size_of(1), how._replace(steps=3)))
    close(result.deployed(1), numpy_round.local_sgd(model, own, 0.2), 1e-5)


@pytest.mark.in_turn
def test_the_samples_of_mwfed_are_rows_in_order() -> None:
    how, threshold = RAGGED[0], np.array([np.nan, 1.2, 0.4, 2.5, 1.0])
    models, states = rounds_of(mwfed, how, threshold=threshold, factor=3.0, mode="pooled")
    for t in range(ROUNDS):
        samples = numpy_baselines.mwfed_samples(np.asarray(states.server.weights[t], np.float64), 3, len(IDS))
        clients = {id: client(id, [(np.arange(samples[id]) % size_of(id)).tolist()]) for id in IDS}
        assert t == 0 or max(len(each.batches[0]) - len(each.y) for each in clients.values()) > 0
        expected, _ = numpy_baselines.mwfed_pooled_round(models[t], np.ones(5), clients, rate_of(how, t), threshold)
        close(models[t + 1], expected, 1e-5)


@pytest.mark.in_turn
@pytest.mark.parametrize("how", RAGGED, ids=["steps", "epochs"])
def test_standalone_models_and_fine_tuning(how: Local) -> None:
    start = TASK.init(KEY)
    algorithm = finetuned(fedavg(TASK, how), learning_rate=0.2, batch_size=2, steps=3, shuffle=False)
    with quick_programs():
        alone: Any = standalone(TASK, federation(), how, seeds=[SEED], keep_models=True)
        result = simulate(algorithm, federation(), rounds=0, seeds=[SEED])
    for id in IDS:
        trained = numpy_round.local_sgd(double(start), client(id, in_order(size_of(id), how)), 0.3)
        close({name: leaf[0, id] for name, leaf in alone.params.items()}, trained, 1e-5)
        own = client(id, in_order(size_of(id), Local(0.2, 2, steps=3)))
        close(result.deployed(id), numpy_round.local_sgd(double(start), own, 0.2), 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "execution",
    [
        pytest.param(Execution("debug"), id="debug", marks=pytest.mark.thorough),
        pytest.param(Execution(2), id="two at a time"),
        pytest.param(Execution(2, examples="host", client_states="host"), id="on the host"),
    ],
)
def test_it_does_not_matter_how_clients_are_computed(execution: Execution) -> None:
    inner = fedavg(TINY, RAGGED[1], clients_per_round=3)
    algorithm = finetuned(inner, learning_rate=0.2, batch_size=2, steps=2, shuffle=False)
    usual, found = (
        simulate(algorithm, tiny_federation(), rounds=2, evaluate_every=2, execution=each)
        for each in (Execution(5), execution)
    )
    assert_close(found.state.server, usual.state.server)
    for name in ("test_loss", "unseen_test_loss"):
        assert_close(found.metrics[name].values, usual.metrics[name].values)
    alone = [standalone(TINY, tiny_federation(), RAGGED[0], execution=each) for each in (Execution(5), execution)]
    assert_close(alone[0], alone[1])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", sorted(algorithms.REGISTRY))
def test_every_algorithm_takes_rows_in_their_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that train in epochs would shuffle; FedALA alone does, since its share of rows is a sample and no batch."""
    entry, asked, in_order = algorithms.REGISTRY[name], [], drawing._in_order

    def noted(*given: Any) -> Any:
        asked.append(given)
        return in_order(*given)

    def refuse(*given: Any) -> Any:
        raise AssertionError("rows are shuffled")

    monkeypatch.setattr(drawing, "_in_order", noted)
    if name != "fedala":
        monkeypatch.setattr(drawing, "_shuffled", refuse)
    local = Local(0.1, 2, epochs=2, shuffle=False)
    rehearse(Plan(entry.build, {"task": TINY, "local": local} | entry.example), tiny_federation())
    assert asked


def setup_of(**changes: Any) -> Any:
    """The setup of a config that was written and read again."""
    parsed = config.parse(BASE | changes)
    assert config.parse(tomllib.loads(config.dumps(parsed))) == parsed
    return resolve_setup(parsed)


def test_a_config_shuffles_unless_it_says_otherwise() -> None:
    assert "shuffle = true" in config.dumps(config.parse(BASE))
    setup = setup_of()
    assert setup.standalone.shuffle
    assert setup.algorithms[0].local.shuffle


def test_keys_of_a_config() -> None:
    """Of all algorithms, of one of them, and of standalone models."""
    entries = [{"name": "fedavg"}, {"name": "incfl", "local": {"shuffle": True}}]
    setup = setup_of(local=BASE["local"] | {"shuffle": False}, algorithms=entries)
    assert [entry.local.shuffle for entry in setup.algorithms] == [False, True]
    assert not setup.standalone.shuffle
    setup = setup_of(local=BASE["local"] | {"shuffle": False}, standalone={"shuffle": True})
    assert setup.standalone.shuffle
    assert not setup.algorithms[0].local.shuffle


@pytest.mark.parametrize(("own", "expected"), [({}, False), ({"shuffle": True}, True)])
def test_fine_tuning_shuffles_as_local_training_does(own: dict[str, Any], expected: bool) -> None:
    entry = {"name": "fedavg", "scenarios": [{"name": "finetuned", "steps": 1} | own]}
    setup = setup_of(local=BASE["local"] | {"shuffle": False}, algorithms=[entry])
    alone = Reference(*[np.ones((2, 6))] * 3, *[np.ones((2, 2))] * 3)
    (options,) = preparation.build_plan(setup, setup.algorithms[0], alone).arguments["options"]
    assert options["shuffle"] is expected


@pytest.mark.parametrize("table", ["local", "standalone"])
def test_what_a_config_refuses(table: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{table}\.shuffle: expected .*, got 'no'$"):
        config.parse(BASE | {table: BASE[table] | {"shuffle": "no"}})


def test_a_grid_that_an_algorithm_hides() -> None:
    entries = [{"name": "fedavg", "local": {"shuffle": True}}]
    with pytest.raises(ConfigError, match=r"algorithms\.fedavg\.local\.shuffle: expected none in a sweep over local"):
        config.parse_grid(BASE | {"algorithms": entries}, ["local.shuffle=true,false"])
