"""``simulate``: blocks of rounds, evaluations, callbacks, seeds, divergence, taking up runs, and what it returns."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data as federations
from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.loop import blocks
from fljax.engine.rounds.states import Purpose, round_key
from fljax.protocol import Algorithm, Federation, Task
from fljax.results import Reference
from fljax.training import Local
from tests.laws.compare import assert_close, assert_same, is_same
from tests.refusals import refuses
from tests.toys.clusters import clusters
from tests.toys.federation import TEST, UNSEEN_TEST, tiny_federation
from tests.toys.not_finite import breaks
from tests.toys.task import Linear, logistic_regression

pytestmark = pytest.mark.in_turn

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
PARAMETERS = 15


def _build(task: Task, local: Local, learning_rate: Any, broken: Any) -> Algorithm:
    """FedAvg whose server turns to NaN in round ``broken``."""
    return breaks(fedavg(task, local._replace(learning_rate=learning_rate), clients_per_round=3), broken)


def _plan(learning_rate: Any = (0.2, 0.2), broken: Any = (-1, -1)) -> engine.Plan:
    by_seed = {"learning_rate": jnp.asarray(learning_rate, jnp.float32), "broken": jnp.asarray(broken, jnp.int32)}
    return engine.Plan(_build, {"task": TASK, "local": LOCAL}, by_seed)


def _simulate(federation: Federation, plan: Any = None, **arguments: Any) -> Any:
    arguments = {"rounds": 5, "seeds": (5, 9), "evaluate_every": 2} | arguments
    return engine.simulate(_plan() if plan is None else plan, federation, **arguments)


def _of(position: Any, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[position], tree)


def _without_clock(metrics: Any) -> Any:
    return metrics.drop_vars([name for name in metrics if str(name).startswith("seconds_")])


@pytest.mark.thorough
def test_evaluations_that_do_not_divide_the_rounds(federation: Federation) -> None:
    blocks: list[engine.Block] = []
    result = _simulate(federation, callbacks=[blocks.append])
    assert result.metrics.evaluated_round.values.tolist() == [0, 2, 4, 5]
    assert result.records["round"].values.tolist() == [0, 1, 2, 3, 4]
    assert [(block.round, block.rounds) for block in blocks] == [(2, 5), (4, 5), (5, 5)]
    last = blocks[-1].metrics
    np.testing.assert_array_equal(last["test_loss"], result.metrics.test_loss.sel(evaluated_round=5))
    assert (last["test_loss"].shape, last["unseen_test_loss"].shape) == ((2, len(TEST)), (2, len(UNSEEN_TEST)))
    assert np.asarray(result.state.round).tolist() == [5, 5]
    # The same rounds in other blocks.
    other = _simulate(federation, evaluate_every=None)
    assert_close(result.state, other.state)
    assert other.metrics.evaluated_round.values.tolist() == [0, 1, 2, 3, 4, 5]
    once = _simulate(federation, evaluate_every=5)
    assert once.metrics.evaluated_round.values.tolist() == [0, 5]
    assert_close(result.state, once.state)
    # And with further evaluations between those, of which one is beyond the end.
    further = _simulate(federation, evaluate_at=(3, 1, 4, 99))
    assert further.metrics.evaluated_round.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert_close(result.state, further.state)
    np.testing.assert_allclose(further.metrics["test_loss"], other.metrics["test_loss"], rtol=1e-5)
    np.testing.assert_array_equal(further.records["cohort_id"], result.records["cohort_id"])
    assert {"trial", "train", "compile", "evaluate"} == {
        str(name).removeprefix("seconds_") for name in result.metrics if str(name).startswith("seconds_")
    }


@pytest.mark.thorough
def test_no_rounds_give_the_initial_model(federation: Federation) -> None:
    result = _simulate(federation, rounds=0, evaluate_every=1)
    assert (result.metrics.evaluated_round.values.tolist(), result.records.sizes["round"]) == ([0], 0)
    for position, seed in enumerate((5, 9)):
        expected = TASK.init(round_key(jnp.uint32(seed), Purpose.INIT_SERVER))
        assert_close(result.deployed(0, seed=position), expected, 1e-6)
        assert_close(_of(position, result.state.server.model), expected, 1e-6)


def test_a_callback_stops_the_run_and_the_others_are_still_told(federation: Federation) -> None:
    told: list[int] = []
    stop = lambda block: block.round >= 2  # noqa: E731
    result = _simulate(federation, callbacks=[stop, lambda block: told.append(block.round)])
    assert told == [2]
    assert (result.metrics.evaluated_round.values.tolist(), result.records["round"].values.tolist()) == ([0, 2], [0, 1])
    whole = _simulate(federation)
    rest = _simulate(federation, rounds=3, evaluate_every=3, initial=result.state)
    assert_same(whole.state, rest.state)
    assert rest.metrics.evaluated_round.values.tolist() == [2, 5]
    assert rest.records["round"].values.tolist() == [2, 3, 4]


def test_a_seed_does_not_depend_on_the_others(federation: Federation) -> None:
    both, swapped = _simulate(federation), _simulate(federation, seeds=(9, 7))
    assert_same(_of(1, both.state), _of(0, swapped.state))
    assert not is_same(_of(0, both.state.server), _of(1, both.state.server))
    alone = _simulate(federation, _plan([0.2], [-1]), seeds=(9,))
    assert_close(_of(1, both.state), _of(0, alone.state))
    np.testing.assert_array_equal(both.records.cohort_id.sel(seed=9), alone.records.cohort_id.sel(seed=9))


@pytest.mark.thorough
def test_seeds_with_federations_of_their_own(federation: Federation) -> None:
    other = tiny_federation(1)
    stacked = federations.stack([federation, other])
    found = _simulate(stacked)
    for position, mine in enumerate((federation, other)):
        expected = _simulate(mine)
        assert_close(_of(position, found.state), _of(position, expected.state))
        np.testing.assert_allclose(
            found.metrics.test_loss[position], expected.metrics.test_loss[position], rtol=1e-5, atol=1e-5
        )
        assert_close(found.deployed(3, seed=position), expected.deployed(3, seed=position))
    refuses(lambda: _simulate(stacked, seeds=(1, 2, 3)), "expected one federation per seed")


def test_a_diverged_seed_is_frozen_and_the_others_go_on(federation: Federation) -> None:
    sound = _simulate(federation)
    broken = _simulate(federation, _plan(broken=(-1, 3)))
    assert (broken.diverged, broken.metrics.diverged.values.tolist()) == (((9, 3),), [-1, 3])
    assert sound.diverged == ()
    assert_same(_of(0, sound.state), _of(0, broken.state))
    first, same = (_without_clock(result.metrics).isel(seed=0).to_dict() for result in (sound, broken))
    assert_same(first, same)
    # Frozen before the round in which the NaN appeared; the count of rounds goes on.
    frozen = _simulate(federation, rounds=3, evaluate_every=3)
    assert_same(_of(1, frozen.state.server), _of(1, broken.state.server))
    assert np.asarray(broken.state.round).tolist() == [5, 5]
    assert np.isfinite(broken.metrics.test_loss.values).all()
    # It stays frozen, and stays marked, when the run is taken up again.
    later = _simulate(federation, _plan(broken=(-1, 3)), rounds=2, evaluate_every=2, initial=broken.state)
    assert later.diverged == ((9, 3),)
    assert_same(_of(1, later.state.server), _of(1, broken.state.server))


def test_an_enormous_learning_rate_breaks_its_own_seed_only(federation: Federation) -> None:
    sound, broken = _simulate(federation), _simulate(federation, _plan((3e38, 0.2)))
    assert [seed for seed, _ in broken.diverged] == [5]
    assert_same(_of(1, sound.state), _of(1, broken.state))


@pytest.mark.quick
def test_models_can_be_taken_out_and_used(federation: Federation) -> None:
    result = _simulate(federation)
    x = np.asarray(federation.examples.x[:7])
    for arguments in ({"client": 4, "seed": 1}, {"client": 1, "unseen": True}):
        model = result.deployed(**arguments)
        assert isinstance(model, Linear)
        expected = x @ np.asarray(model.weight) + np.asarray(model.bias)
        np.testing.assert_allclose(result.predict(x=x, **arguments), expected, rtol=1e-5, atol=1e-5)
    for wrong in ({"client": 5}, {"client": -1}, {"client": 2, "unseen": True}, {"client": 0, "seed": 2}):
        with pytest.raises(ValueError, match="expected a client below"):
            result.deployed(**wrong)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda state: _of(slice(0, 1), state), "expected initial to have the shapes of this run"),
        (lambda state: state._replace(clients=jnp.zeros(3)), "expected initial to be a state of this algorithm"),
        (lambda state: state._replace(round=jnp.asarray([1, 2], jnp.int32)), "all seeds of initial at the same round"),
    ],
)
def test_an_initial_state_that_does_not_fit(federation: Federation, alter: Any, message: str) -> None:
    state = _simulate(federation).state
    refuses(lambda: _simulate(federation, initial=alter(state)), message)


@pytest.mark.quick
def test_an_initial_state_can_be_used_twice(federation: Federation) -> None:
    state = _simulate(federation, rounds=2, evaluate_every=2).state
    first = _simulate(federation, rounds=2, evaluate_every=2, initial=state)
    assert_same(first.state, _simulate(federation, rounds=2, evaluate_every=2, initial=state).state)


@pytest.mark.quick
def test_bytes_on_the_wire(federation: Federation) -> None:
    records = _simulate(federation).records
    assert records.cohort_present.values.all()
    assert records.bytes_down.values.tolist() == [[3 * 4 * PARAMETERS] * 5] * 2
    assert records.bytes_up.values.tolist() == [[3 * 4 * (PARAMETERS + 1)] * 5] * 2  # the update and the size


@pytest.mark.thorough
def test_bytes_of_ballots_and_dimensions_of_records(federation: Federation) -> None:
    algorithm = clusters(TASK, LOCAL, clusters=2, poll_every=2)
    result = _simulate(federation, algorithm, rounds=3, evaluate_every=3)
    model, ballot, up = 4 * PARAMETERS, 2 * 2 * 4, 4 * (PARAMETERS + 1)
    down = [(6 + asked) * 2 * model for asked in (5, 0, 5)]  # both cluster models, to each row and to who looks
    assert result.records.bytes_down.values.tolist() == [down] * 2
    assert result.records.bytes_up.values.tolist() == [[6 * up + asked * ballot for asked in (5, 0, 5)]] * 2
    assert result.records.tokens.dims == ("seed", "round", "client")
    assert result.records.cohort_id.dims == ("seed", "round", "row")


def test_an_algorithm_is_a_plan_without_arguments(federation: Federation) -> None:
    fixed = fedavg(TASK, LOCAL, clients_per_round=3)
    assert_close(_simulate(federation, fixed).state, _simulate(federation).state)


def test_a_reference_gives_the_metrics_that_compare(federation: Federation) -> None:
    loss = np.array([[0.0, 9, 9, 9, 9], [9.0, 9, 9, 9, 9]], np.float32)
    reference = Reference(loss, loss, np.full((2, 5), 0.5, np.float32))
    result = _simulate(federation, reference=reference)
    appeal = result.metrics.global_model_appeal.sel(evaluated_round=5).values
    np.testing.assert_allclose(appeal, [0.8, 1.0], atol=1e-6)
    assert "unseen_global_model_appeal" not in result.metrics
    assert "global_model_appeal" not in _simulate(federation).metrics


def test_what_callbacks_take_counts_for_nothing(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(blocks, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))

    def callback(block: engine.Block) -> None:
        clock[0] += 10

    result = engine.simulate(fedavg(TASK, LOCAL), tiny_federation(), rounds=2, evaluate_every=1, callbacks=[callback])
    assert clock[0] == 20
    for purpose in ("compile", "train", "evaluate"):
        assert float(result.metrics[f"seconds_{purpose}"]) == 0


@pytest.mark.unchecked
def test_a_result_is_no_state() -> None:
    result: Any = engine.simulate(fedavg(TASK, LOCAL), tiny_federation(), rounds=1)
    with pytest.raises(ValueError, match=r"expected initial to be Result\.state of an earlier run, got Result"):
        engine.simulate(fedavg(TASK, LOCAL), tiny_federation(), rounds=1, initial=result)


@pytest.mark.unchecked
def test_what_predict_refuses() -> None:
    found = engine.simulate(fedavg(logistic_regression(), Local(0.1, 2, steps=1)), tiny_federation(), rounds=1)
    wrong: tuple[tuple[Any, Any, str], ...] = (
        (
            "north",
            np.ones((2, 3)),
            r"expected a client below 5 and a position of a seed below 1, got 'north', 0; names.clients.index",
        ),
        (2.0, np.ones((2, 3)), "expected a client below 5 and a position of a seed below 1, got 2.0, 0"),
        (5, np.ones((2, 3)), "expected a client below 5 and a position of a seed below 1, got 5, 0"),
        (0, np.ones(3), r"expected x to be a batch of raw examples \[b, \d\], got shape \[3\]"),
        (0, np.ones((2, 9)), r"expected x to be a batch of raw examples \[b, \d\], got shape \[2, 9\]"),
    )
    for client, x, said in wrong:
        with pytest.raises(ValueError, match=said):
            found.predict(client, x)
