"""Law 19: a client whose message is dropped is an absent client."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import RoundOptions
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol import Federation, unlabelled
from fljax.results.non_finite import NonFinite
from tests.laws.cases import ALGORITHMS, LOCAL, POPULATION, SIDE_BY_SIDE, TASK, chosen, federation
from tests.laws.compare import assert_close, assert_finite, assert_same
from tests.toys.federation import spoil_client
from tests.toys.not_finite import leaves_out, sends_nan
from tests.toys.quick import QUICK

pytestmark = pytest.mark.by_case

# The two rounds are different programs, and in one algorithm XLA rounds a division by the sum of the cohort otherwise.
ROUNDED = ("cgsv_iafl",)
NOBODY = jnp.zeros(POPULATION, bool)
EVERYBODY = ~NOBODY
ROUNDS = 2


class Programs:
    """A round of an algorithm in which messages are dropped, and one in which the same clients are absent."""

    def __init__(self, name: str) -> None:
        case = ALGORITHMS[name]
        self.algorithm = case.build(TASK, LOCAL, **case.example)
        self.dropped = self._program(sends_nan, "drop", SIDE_BY_SIDE)
        self.absent = self._program(leaves_out, "freeze", SIDE_BY_SIDE)

    @functools.cached_property
    def start(self) -> Any:
        """The state before round 0."""
        begin = lambda: initial_state(self.algorithm, by_id(federation()), jnp.uint32(0))  # noqa: E731
        return jax.jit(begin, compiler_options=QUICK)()

    def _program(self, wrap: Any, non_finite: NonFinite, layout: Layout) -> Any:
        @functools.partial(jax.jit, compiler_options=QUICK)
        def step(data: Federation, state: Any, who: Any) -> Any:
            algorithm = wrap(self.algorithm, who)
            return engine.one_round(algorithm, by_id(data), layout, state, options=RoundOptions(non_finite=non_finite))

        return step

    def of_lanes(self, lanes: int) -> Any:
        """The round in which messages are dropped, with chunks of clients."""
        return self._program(sends_nan, "drop", Layout(lanes, 1, POPULATION))


programs = functools.cache(Programs)


def without_counts(info: Any) -> dict[str, Any]:
    """The records that both rounds have; a dropped client is present in the cohort's own record."""
    apart = ("dropped", "dropped_messages", "cohort_present")
    return {name: values for name, values in unlabelled(info).items() if name not in apart}


def assert_equal(name: str, expected: Any, found: Any) -> None:
    """Equal bit for bit, up to rounding in ``ROUNDED``."""
    if name in ROUNDED:
        assert_close(expected, found, 1e-6)
    else:
        assert_same(expected, found)


def member(info: Any, place: int) -> jax.Array:
    """``[N]``: the client in one of the filled rows of a cohort."""
    found = unlabelled(info)
    ids = np.asarray(found["cohort_id"])[np.asarray(found["cohort_present"])]
    return jnp.arange(POPULATION) == int(ids[place % len(ids)])


@pytest.mark.sampled(50)
@pytest.mark.in_turn
@pytest.mark.parametrize("name", chosen(ALGORITHMS))
def test_law_19_who_is_dropped_is_absent(name: str) -> None:
    case, data = programs(name), federation()
    # Where all is finite, nothing is changed.
    state, info = case.dropped(data, case.start, NOBODY)
    expected, healthy = case.absent(data, case.start, NOBODY)
    assert_equal(name, expected, state)
    assert_equal(name, without_counts(healthy), without_counts(info))
    assert not info["dropped"].values.any()

    state, expected = case.start, case.start
    for round in range(ROUNDS):
        _, healthy = case.absent(data, expected, NOBODY)
        who = member(healthy, round)
        state, info = case.dropped(data, state, who)
        expected, without = case.absent(data, expected, who)
        assert_equal(name, expected, state)
        assert_equal(name, without_counts(without), without_counts(info))
        found, present = unlabelled(info), np.asarray(healthy["cohort_present"].values)
        np.testing.assert_array_equal(found["cohort_present"], present)
        np.testing.assert_array_equal(found["dropped"], np.asarray(who)[np.asarray(found["cohort_id"])] & present)
        assert int(found["dropped_messages"]) == np.asarray(found["dropped"]).sum() > 0
    assert_finite(state)

    # If nobody is left, the round is an empty one.
    state, info = case.dropped(data, state, EVERYBODY)
    expected, _ = case.absent(data, expected, EVERYBODY)
    assert_equal(name, expected, state)
    assert (int(state.diverged), int(state.round)) == (-1, ROUNDS + 1)


@pytest.mark.parametrize("name", chosen(ALGORITHMS))
def test_law_19_who_has_nan_in_its_data_is_absent(name: str) -> None:
    """Not where clients are polled: what they answer from such data changes who is selected, and no message is left."""
    case = programs(name)
    if case.algorithm.poll is not None:
        return
    who = member(case.absent(federation(), case.start, NOBODY)[1], 1)
    data = spoil_client(federation(), int(np.argmax(who)))
    state, info = case.dropped(data, case.start, NOBODY)
    expected, without = case.absent(data, case.start, who)
    assert_equal(name, expected, state)
    assert_equal(name, without_counts(without), without_counts(info))
    assert int(info["dropped_messages"]) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("iafl", "standalone")))
def test_law_19_in_chunks(name: str) -> None:
    """Where the client is present, its chunk is another one, so sums differ by rounding."""
    case = programs(name)
    who = member(case.absent(federation(), case.start, NOBODY)[1], 0)
    expected, _ = case.absent(federation(), case.start, who)
    assert_close(expected, case.of_lanes(2)(federation(), case.start, who)[0])
