"""The laws that every algorithm obeys: one test per law, on every case."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.engine.rounds.states import Purpose, by_id, client_key, local_data, round_key
from fljax.protocol import Seat
from fljax.testing import laws
from tests.laws.cases import (
    ALGORITHMS,
    CASES,
    EIGHT,
    LOCAL,
    ROUNDS,
    UNLIKE,
    Bench,
    bench,
    chosen,
    federation,
    with_numbers,
)
from tests.laws.compare import assert_close, assert_same, is_same, shapes
from tests.toys.quick import QUICK

pytestmark = pytest.mark.by_case


@pytest.fixture(scope="module", params=chosen(CASES))
def case(request: pytest.FixtureRequest) -> Bench:
    """The programs of one case; the scope groups tests by case, for workers that share the work."""
    return bench(request.param)


def test_law_01_everything_runs_under_one_jit_and_never_recompiles(case: Bench) -> None:
    """Seed, rounds and numbers are all traced, so that no value of theirs can lead to another program."""
    state = jax.eval_shape(case.whole, case.numbers, federation(), jnp.uint32(0), jnp.int32(2))
    assert shapes(state) == shapes(case.start())
    case.simulate(rounds=ROUNDS)
    traces = case.traces
    case.simulate(rounds=3, seeds=(7, 8))
    assert case.traces == traces + 1  # labels are checked anew; shapes are known, and nothing is compiled


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_law_02_state_keeps_structure_shapes_and_dtypes(case: Bench, double: bool) -> None:
    """In double precision a task of single precision must keep its dtype as well."""
    laws.keeps_shapes(case, double)


def test_law_03_how_clients_are_mapped_does_not_matter(case: Bench) -> None:
    side_by_side = case.run(case.start())
    one_by_one = jax.tree.map(lambda leaf: leaf[0], case.simulate(rounds=ROUNDS).state)
    assert_close(side_by_side, one_by_one)
    assert_same(side_by_side, case.run(case.start()))


@pytest.mark.parametrize("name", chosen(dict.fromkeys((*EIGHT, *UNLIKE))))
def test_law_03_chunks_of_two(name: str) -> None:
    laws.maps_clients(bench(name))


def test_law_04_order_of_clients_and_of_rows_does_not_matter(case: Bench) -> None:
    laws.ignores_order(case)


def test_law_20_empty_rows_count_for_nothing(case: Bench) -> None:
    laws.leaves_out_empty_rows(case)


def test_law_05_who_is_absent_keeps_its_state(case: Bench) -> None:
    laws.keeps_absent_clients(case)


def test_law_06_nan_of_the_absent_and_of_padding_is_never_read(case: Bench) -> None:
    laws.never_reads_nan(case)


def test_law_07_the_seed_reaches_the_clients(case: Bench) -> None:
    data, algorithm, state = by_id(federation()), case.algorithm(), case.start()

    def train(seed: Any, round: Any, id: Any, slot: Any) -> Any:
        """What client 0 does with the key of somebody else's seat."""
        key = client_key(round_key(seed, Purpose.TRAIN, round), id, slot)
        zero = jnp.int32(0)
        client, kept = jax.tree.map(lambda leaf: leaf[0], (data.clients, state.clients))
        seat = Seat(zero, zero, zero)
        down = algorithm.down(state.server, seat)
        return algorithm.train(key, Seat(zero, zero, zero), down, kept, local_data(data, client))

    program = jax.jit(train, compiler_options=QUICK)
    seat = lambda axis, value: program(*(jnp.int32(value if axis == other else 0) for other in range(4)))  # noqa: E731
    # Seed, round, id and slot each lead to other batches, and not to the same ones. Several of each: two draws from
    # few rows may agree.
    found = [[seat(axis, value) for value in range(1, 5)] for axis in range(4)]
    found.append([seat(0, 0)] * 4)
    for i, some in enumerate(found):
        for others in found[:i]:
            assert not all(map(is_same, some, others))


def test_law_08_hyper_parameters_are_traced_and_seeds_mapped(case: Bench) -> None:
    first = case.simulate(rounds=ROUNDS)
    for position, seed in enumerate((0, 3)):
        alone = case.run(case.start(seed=seed))
        assert_close(alone, jax.tree.map(lambda leaf, i=position: leaf[i], first.state))
    faster = {"local": LOCAL._replace(learning_rate=2 * LOCAL.learning_rate)}
    faster |= with_numbers(case.case, jax.tree.map(lambda value: 0.9 * value, case.numbers))
    plan = case.plan._replace(arguments={**case.plan.arguments, **faster})
    traces = case.traces
    second = case.simulate(plan=plan, rounds=ROUNDS, seeds=(4, 0))
    assert case.traces == traces + 1  # labels are checked anew; shapes are known, and nothing is compiled
    other_seed, same_seed = (jax.tree.map(lambda leaf, i=i: leaf[i], second.state) for i in range(2))
    start = jax.tree.map(lambda leaf: leaf[0], first.state)
    assert not is_same(start, same_seed)
    assert not is_same(start, other_seed)


def test_law_09_an_empty_round_changes_no_model(case: Bench) -> None:
    laws.survives_empty_rounds(case)


def test_law_10_loss_falls(case: Bench) -> None:
    metrics = case.simulate(rounds=40).metrics
    # Strangers bring few rows of their own: whoever trains on those alone soon learns them by heart.
    for name, part in (("test_loss", 0.8), ("unseen_test_loss", 1.0)):
        if name.startswith("unseen_") and np.isnan(metrics[name].values).all():
            # Whoever has no model for strangers says so; for anybody else this would be a fault.
            assert case.algorithm().counts is not None
            continue
        loss = metrics[name].mean([dim for dim in metrics[name].dims if dim != "evaluated_round"]).values
        assert loss[-1] < part * loss[0], name


def test_law_11_nothing_sent_has_the_shape_of_a_clients_data(case: Bench) -> None:
    laws.sends_no_rows(case)


def test_law_13_a_run_taken_up_again_was_never_interrupted(case: Bench) -> None:
    whole, half = case.simulate(rounds=4), case.simulate(rounds=2)
    rest = case.simulate(rounds=2, initial=half.state)
    assert_same(whole.state, rest.state)
    clock = [name for name in whole.metrics if str(name).startswith("seconds_")]
    # Contributions are those of the round before, of which a run that is taken up has no record at first.
    recorded = [name for name in whole.metrics if name == "contribution_correlation"]
    left, right = (metrics.drop_vars(clock) for metrics in (whole.metrics.sel(evaluated_round=[2, 4]), rest.metrics))
    assert left.drop_vars(recorded).identical(right.drop_vars(recorded))
    last = [metrics.isel(evaluated_round=1)[recorded] for metrics in (left, right)]
    assert last[0].identical(last[1])
    assert whole.records.sel(round=[2, 3]).identical(rest.records)


def test_law_14_strangers_do_not_depend_on_any_clients_own_entry(case: Bench) -> None:
    laws.keeps_strangers_apart(case)


def test_law_21_peers_are_a_fixed_number_of_clients(case: Bench) -> None:
    laws.names_peers_by_id(case)


def test_law_22_who_left_keeps_its_row_and_does_not_count(case: Bench) -> None:
    laws.leaves_out_who_left(case)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_law_12_every_keyword_is_documented_and_every_module_cites_its_source(name: str) -> None:
    build = ALGORITHMS[name].build
    text = inspect.getdoc(build) or ""
    for keyword in inspect.signature(build).parameters:
        assert re.search(rf"^\s*(\w+, )*{keyword}(, \w+)*:|^\s*{keyword}:", text, re.MULTILINE) or (
            re.search(rf"^\s*{keyword}: ", text, re.MULTILINE)
        ), keyword
    module = sys.modules[build.__module__].__doc__ or ""
    assert "Source:" in module
