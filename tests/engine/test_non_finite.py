"""What a run does about clients whose messages or states are not finite, and who is named."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data as federations
from fljax import engine
from fljax.algorithms import fedavg, incfl, scaffold, standalone
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import RoundOptions
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol import Algorithm, Federation, Task
from fljax.results.non_finite import Divergence, NotFinite
from fljax.training import Local
from tests.laws.compare import assert_close, assert_finite, assert_same
from tests.toys.federation import tiny_federation
from tests.toys.not_finite import leaves_out, sends_nan
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.in_turn

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
POPULATION, ROUNDS = 5, 4
WHO = np.arange(POPULATION) == 3
IN_ROUND_2 = np.arange(ROUNDS) == 2
SEEDS = (5, 9)


def _build(task: Task, local: Local, wrong: Any, server_lr: Any = 1.0) -> Algorithm:
    """FedAvg with all clients, in which client 3 is not finite in the rounds ``wrong [rounds]``."""
    return sends_nan(fedavg(task, local, clients_per_round=None, server_lr=server_lr), WHO, wrong)


def _plan(*wrong: Any, **arguments: Any) -> engine.Plan:
    """Rounds in which client 3 is not finite, for each seed."""
    return engine.Plan(_build, {"task": TASK, "local": LOCAL, **arguments}, {"wrong": jnp.asarray(wrong)})


NEVER = np.zeros(ROUNDS, bool)
PLAN = _plan(NEVER, IN_ROUND_2)


def _simulate(federation: Federation, plan: Any = PLAN, **arguments: Any) -> Any:
    return engine.simulate(plan, federation, **{"rounds": ROUNDS, "seeds": SEEDS, "evaluate_every": 2} | arguments)


def _of(place: int, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


# --- Freeze -------------------------------------------------------------------------------------------------


def test_who_made_a_seed_diverge_is_named(federation: Federation) -> None:
    result = _simulate(federation)
    assert (result.diverged, result.divergences) == (((9, 2),), (Divergence(9, 2, (3,)),))
    words = "diverged in round 2 of seed 9, in which client 3 sent values that are not finite"
    assert str(result.divergences[0]) == words
    marks = result.metrics["diverged_by"]
    assert marks.dims == ("seed", "client")
    assert np.argwhere(marks.values).tolist() == [[1, 3]]
    # No round looks for it.
    assert not {"dropped", "not_finite", "dropped_messages"} & set(result.records)
    assert "dropped_messages" not in result.metrics


def test_nobody_is_named_where_the_server_itself_diverges(federation: Federation) -> None:
    result = _simulate(federation, _plan(NEVER, server_lr=np.inf), seeds=(5,))
    assert result.divergences == (Divergence(5, 0, ()),)
    assert "the server's step gave values that are not finite, from messages that are" in str(result.divergences[0])
    assert not result.metrics["diverged_by"].any()


def test_nobody_is_named_for_a_round_of_an_earlier_run(federation: Federation) -> None:
    first = _simulate(federation)
    later = _simulate(federation, rounds=2, evaluate_every=2, initial=first.state)
    assert later.divergences == (Divergence(9, 2, None),)
    assert str(later.divergences[0]) == "diverged in round 2 of seed 9"


@pytest.mark.thorough
def test_who_is_named_in_a_sweep_with_a_federation_for_each_seed(federation: Federation) -> None:
    stacked = federations.stack([federation, tiny_federation(1)])
    plans = [_plan(NEVER, IN_ROUND_2, server_lr=rate) for rate in (0.5, 1.0)]
    plans.append(_plan(NEVER, NEVER, server_lr=0.7))
    found = engine.sweep(plans, stacked, rounds=ROUNDS, seeds=SEEDS)
    assert [result.divergences for result in found] == [(Divergence(9, 2, (3,)),)] * 2 + [()]


# --- Drop ---------------------------------------------------------------------------------------------------


def test_dropped_messages_are_counted(federation: Federation) -> None:
    result = _simulate(federation, non_finite="drop")
    assert result.diverged == result.divergences == ()
    assert_finite(result.state)
    records = result.records
    assert (records["dropped"].dims, records["dropped"].dtype) == (("seed", "round", "row"), bool)
    seed, round, row = np.nonzero(records["dropped"].values)
    assert (seed.tolist(), round.tolist()) == ([1], [2])
    assert records["cohort_id"].values[1, 2, row[0]] == 3
    assert records["dropped_by_client"].dims == ("seed", "round", "client")
    assert np.argwhere(records["dropped_by_client"].values).tolist() == [[1, 2, 3]]
    assert records["dropped_messages"].values.tolist() == [[0, 0, 0, 0], [0, 0, 1, 0]]
    # It trained, sent its message and has no weight.
    assert (records["participation"].values[1, 2, 3], records["client_weight"].values[1, 2, 3]) == (1, 0)
    assert (records["bytes_up"].values == records["bytes_up"].values[0, 0]).all()
    assert result.metrics["dropped_messages"].dims == ("seed", "evaluated_round")
    assert result.metrics["dropped_messages"].values.tolist() == [[0, 0, 0], [0, 0, 1]]
    rest = _simulate(
        federation, rounds=2, evaluate_every=2, initial=_simulate(federation, rounds=2, non_finite="drop").state
    )
    assert rest.diverged == ((9, 2),)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "execution",
    [
        engine.Execution("scan", "scan", devices=1),
        pytest.param(engine.Execution(2, "vmap", devices=1), marks=pytest.mark.thorough),
        pytest.param(engine.Execution("vmap", "scan", devices=2), marks=pytest.mark.thorough),
        engine.Execution(2, "vmap", devices=2),
    ],
)
def test_however_clients_and_seeds_are_mapped(federation: Federation, execution: engine.Execution) -> None:
    plan = _plan(~NEVER, IN_ROUND_2)
    expected = _simulate(federation, plan, non_finite="drop", execution=engine.Execution("vmap", "vmap", devices=1))
    found = _simulate(federation, plan, non_finite="drop", execution=execution)
    assert_close(expected.state, found.state)
    assert found.records["dropped_messages"].values.tolist() == [[1, 1, 1, 1], [0, 0, 1, 0]]
    without = leaves_out(fedavg(TASK, LOCAL, clients_per_round=None), WHO)
    absent = engine.simulate(without, federation, rounds=ROUNDS, seeds=(5,), execution=execution)
    assert_close(_of(0, absent.state), _of(0, found.state))


@pytest.mark.thorough
def test_devices_that_take_whole_runs(federation: Federation) -> None:
    wrong = [IN_ROUND_2 if seed % 3 == 0 else NEVER for seed in range(8)]
    found = _simulate(federation, _plan(*wrong), seeds=8, non_finite="drop", execution=engine.Execution(devices=2))
    assert bool(found.metrics["execution_runs_apart"])
    assert found.records["dropped_messages"].values[:, 2].tolist() == [1, 0, 0, 1, 0, 0, 1, 0]
    frozen = _simulate(federation, _plan(*wrong), seeds=8, execution=engine.Execution(devices=2))
    assert frozen.divergences == tuple(Divergence(seed, 2, (3,)) for seed in (0, 3, 6))


@pytest.mark.parametrize("build", [scaffold, pytest.param(standalone, marks=pytest.mark.thorough)])
def test_the_state_of_a_dropped_client_is_kept(federation: Federation, build: Any) -> None:
    others = {} if build is standalone else {"clients_per_round": None}
    plain = build(TASK, LOCAL, **others)
    dropped = engine.simulate(
        sends_nan(plain, WHO, IN_ROUND_2), federation, rounds=3, evaluate_every=3, non_finite="drop"
    )
    before = engine.simulate(plain, federation, rounds=2, evaluate_every=2)
    of_client = lambda result: jax.tree.map(lambda leaf: leaf[0, 3], result.state.clients)  # noqa: E731
    assert_close(of_client(before), of_client(dropped))
    assert dropped.diverged == ()


def test_the_server_may_still_diverge(federation: Federation) -> None:
    """Messages that are finite may add up to what is not."""
    plan = _plan(~NEVER, server_lr=np.inf)
    result = _simulate(federation, plan, seeds=(5,), non_finite="drop")
    assert result.divergences == (Divergence(5, 0, ()),)
    # Rounds after that are none of the run.
    assert result.records["dropped_messages"].values.tolist() == [[1, 0, 0, 0]]


def test_reports_may_be_infinite_but_not_nan(federation: Federation) -> None:
    infinite = incfl(TASK, LOCAL, threshold=jnp.inf)
    assert (
        not engine.simulate(infinite, federation, rounds=2, evaluate_every=2, non_finite="drop")
        .records["dropped"]
        .any()
    )

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        up, client = infinite.train(key, seat, down, client, data)
        loss = jnp.where(seat.id == 3, jnp.nan, up.report.loss)
        return up._replace(report=up.report._replace(loss=loss)), client

    lost = engine.simulate(infinite._replace(train=train), federation, rounds=2, evaluate_every=2, non_finite="drop")
    assert (lost.records["dropped_by_client"].values[0].tolist(), lost.diverged) == ([[0, 0, 0, 1, 0]] * 2, ())


# --- Stop ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(federation: Federation) -> tuple[NotFinite, list[engine.Block]]:
    """What stops a run of six rounds in its second block, at round 2, and its blocks."""
    blocks: list[engine.Block] = []
    plan = _plan(np.arange(6) == 3, np.arange(6) == 2)
    with pytest.raises(NotFinite) as found:
        _simulate(federation, plan, rounds=6, non_finite="stop", callbacks=[blocks.append])
    return found.value, blocks


def test_a_run_stops_after_the_block_and_says_who(stopped: tuple[NotFinite, list[engine.Block]]) -> None:
    stop, blocks = stopped
    assert (stop.seed, stop.round, stop.clients, stop.plan) == (9, 2, (3,), 0)
    words = "the run was stopped, since client 3 sent values that are not finite in round 2 of seed 9"
    assert str(stop) == words
    assert str(stop.of("mine", {"rate": 0.1})) == words.replace("the run", "mine") + ", rate = 0.1"
    assert [block.round for block in blocks] == [2, 4]
    assert blocks[-1].diverged == ((5, 3), (9, 2))


def test_what_was_computed_before_a_stop_is_there(stopped, federation):
    (result,) = stopped[0].results
    assert result.metrics["evaluated_round"].values.tolist() == [0, 2, 4]
    assert result.divergences == (Divergence(5, 3, (3,)), Divergence(9, 2, (3,)))
    found = result.records["not_finite"]
    assert np.argwhere(found.any("row").values).tolist() == [[0, 3], [1, 2]]
    # Each seed is frozen before its round.
    before = _simulate(federation, _plan(NEVER, NEVER), rounds=2, evaluate_every=2)
    assert_same(_of(1, before.state.server), _of(1, result.state.server))


def test_a_stopped_run_is_not_taken_up(stopped: tuple[NotFinite, list[engine.Block]], federation: Federation) -> None:
    (result,) = stopped[0].results
    with pytest.raises(NotFinite, match="values that are not finite appeared in round 2 of seed 9") as found:
        _simulate(federation, initial=result.state, non_finite="stop")
    assert found.value.clients is None
    assert found.value.results[0].records.sizes["round"] == 0


@pytest.mark.quick
def test_what_stops_a_run_can_be_pickled(stopped: tuple[NotFinite, list[engine.Block]]) -> None:
    stop = NotFinite(Divergence(*stopped[0].args[0]), (), 1, "mine", {"rate": 0.1})
    again = pickle.loads(pickle.dumps(stop))
    assert (str(again), again.round, again.clients) == (str(stop), stop.round, stop.clients)


def test_a_message_without_weight_stops_a_run_too(federation: Federation) -> None:
    """FedAvg's server leaves it out; with "freeze" the run goes on."""
    inner = fedavg(TASK, LOCAL, clients_per_round=None)
    stream: Any = inner.aggregate

    def contribute(server: Any, seat: Any, up: Any) -> Any:
        part, row = stream.contribute(server, seat, up)
        return part._replace(weight=jnp.where(seat.id == 3, 0.0, part.weight)), row

    algorithm = sends_nan(inner._replace(aggregate=stream._replace(contribute=contribute)), WHO)
    assert engine.simulate(algorithm, federation, rounds=1).diverged == ()
    with pytest.raises(NotFinite, match="client 3 sent"):
        engine.simulate(algorithm, federation, rounds=1, non_finite="stop")


def test_a_sweep_stops_as_a_whole(federation: Federation) -> None:
    plans = [_plan(NEVER, NEVER, server_lr=0.5), _plan(NEVER, IN_ROUND_2, server_lr=1.0)]
    with pytest.raises(NotFinite) as found:
        engine.sweep(plans, federation, rounds=ROUNDS, seeds=SEEDS, non_finite="stop")
    assert (found.value.plan, found.value.seed, found.value.round, found.value.clients) == (1, 9, 2, (3,))
    assert [result.divergences for result in found.value.results] == [(), (Divergence(9, 2, (3,)),)]


@pytest.mark.quick
def test_nothing_stops_a_run_in_which_all_is_finite(federation: Federation) -> None:
    plan = _plan(NEVER, NEVER)
    usual, result = _simulate(federation, plan), _simulate(federation, plan, non_finite="stop")
    assert_close(usual.state, result.state)
    assert not result.records["not_finite"].any()


# --- Names and programs -------------------------------------------------------------------------------------


def count(jaxpr: Any, name: str) -> int:
    """How often a primitive is in a jaxpr, inner ones included."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    found = sum(str(equation.primitive) == name for equation in inner.eqns)
    for equation in inner.eqns:
        parts = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda part: hasattr(part, "eqns"))
        found += sum(count(part, name) for part in parts if hasattr(getattr(part, "jaxpr", part), "eqns"))
    return found


def test_freezing_looks_at_no_message(federation: Federation) -> None:
    """So the usual program is as fast as one that knows nothing of this."""
    data = by_id(federation)
    algorithm = fedavg(TASK, LOCAL)
    state = jax.eval_shape(lambda: initial_state(algorithm, data, jnp.uint32(0)))

    def looks(non_finite: Any) -> int:
        options = RoundOptions(non_finite=non_finite)
        step = lambda state: engine.one_round(algorithm, data, Layout(2, 1, 5), state, options=options)  # noqa: E731
        return count(jax.make_jaxpr(step)(state), "is_finite")

    leaves = len(jax.tree.leaves(jax.eval_shape(TASK.init, jax.random.key(0))))
    assert looks("drop") == looks("stop") == looks("freeze") + leaves  # those of the update
