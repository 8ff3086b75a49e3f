"""Sums over clients: what ``add_up`` adds, and what becomes of a stacked aggregation."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.engine.devices.client_mapping import fold_lanes
from fljax.protocol import Cohort, Round
from fljax.protocol import sums as streaming
from fljax.protocol.sums import Part, Streamed

pytestmark = pytest.mark.devices

RANDOM = np.random.default_rng(0)
KEY = jax.random.key(0)
VALUES = RANDOM.normal(size=(5, 2, 3))
WEIGHTS = RANDOM.uniform(size=(5, 4))
PRESENT = np.array([True, False, True, True, False])


@pytest.mark.in_turn
@pytest.mark.parametrize("which", [0, slice(None)], ids=["one weight each", "several sums"])
def test_sums_and_their_means(which: int | slice) -> None:
    part = Part({"a": jnp.asarray(VALUES)}, jnp.asarray(WEIGHTS[:, which]))
    total, weight = streaming.add_up(part, jnp.asarray(PRESENT)), (WEIGHTS.T * PRESENT).T[:, which]
    np.testing.assert_allclose(total.value["a"], np.einsum("s...,sij->...ij", weight, VALUES), rtol=1e-5)
    np.testing.assert_allclose(total.weight, weight.sum(axis=0), rtol=1e-6)
    expected = np.einsum("s...,sij->...ij", weight / weight.sum(axis=0), VALUES)
    np.testing.assert_allclose(streaming.mean(total)["a"], expected, rtol=1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_what_weighs_nothing_is_never_read(several: bool) -> None:
    """The absent, and who is present with a weight of zero, whatever they hold; a weight of NaN shows."""
    spoilt = VALUES.copy()
    spoilt[[1, 3]] = np.nan
    weight = (WEIGHTS if several else WEIGHTS[:, 0]).copy()
    weight[3] = 0
    part = Part(jnp.asarray(spoilt), jnp.asarray(weight))
    present = jnp.asarray([True, False, True, True, True])
    assert np.all(np.isfinite(streaming.add_up(part, present).value))
    broken = part._replace(weight=jnp.asarray(part.weight).at[0].set(jnp.nan))
    assert np.all(np.isnan(streaming.mean(streaming.add_up(broken, present))))
    nobody = streaming.add_up(broken, jnp.zeros(5, bool))
    np.testing.assert_array_equal(streaming.mean(nobody), 0)
    np.testing.assert_array_equal(nobody.weight, 0)


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types_are_added_up_in_single_precision(dtype: Any) -> None:
    """A thousand ones: in bfloat16 their sum would stop growing at 256."""
    one = jnp.ones((1, 2), dtype)

    def add(x: Any) -> Any:
        return (Part(x), x), ()

    def sums(summands: Any, real: Any) -> Any:
        return streaming.add_up(summands[0], real)

    for lanes in (1, 8):
        total, _ = fold_lanes(add, sums, jnp.tile(one, (1000, 1)), lanes)
        assert total.value.dtype == total.weight.dtype == jnp.float32
        np.testing.assert_array_equal(total.value, 1000)
        np.testing.assert_array_equal(total.weight, 1000)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("cost", [None, (3, 0, 1, 2, 5, 0, 4)])
def test_chunks_add_up_to_the_whole(lanes: int, devices: int, cost: Any) -> None:
    """Whatever the chunks, every row counts once; the padding of the last one repeats a row and does not."""
    x = jnp.asarray([1.0, 2, 4, 8, 16, 32, 64])
    present = jnp.asarray(cost) > 0 if cost else jnp.ones(7, bool)

    def run(x: Any, present: Any) -> Any:
        def one(row: Any) -> Any:
            return (Part(row[0]), row[1]), 2 * row[0]

        def sums(summands: Any, real: Any) -> Any:
            return streaming.add_up(summands[0], summands[1] & real)

        given = None if cost is None else jnp.asarray(cost)
        return fold_lanes(one, sums, (x, present), lanes, devices, given)

    total, kept = jax.jit(run)(x, present)
    np.testing.assert_array_equal(total.value, jnp.sum(jnp.where(present, x, 0)))
    np.testing.assert_array_equal(total.weight, jnp.sum(present))
    np.testing.assert_array_equal(kept[np.asarray(present)], 2 * x[present])


def test_a_stacked_aggregation_is_one_whose_rows_are_the_messages() -> None:
    def aggregate(server: Any, up: Any, round: Any) -> Any:
        return server + jnp.sum(up * round.cohort.present), {"up": up}

    streamed = streaming.as_streamed(aggregate)
    assert streaming.as_streamed(streamed) is streamed
    cohort = Cohort(jnp.arange(3), jnp.zeros(3, jnp.int32), jnp.asarray([True, False, True]))
    up = jnp.asarray([1.0, jnp.nan, 4.0])
    server, info = streamed(jnp.asarray(10.0), up, Round(KEY, jnp.int32(0), cohort, {}))
    assert server == 15
    np.testing.assert_array_equal(info["up"], [1, 0, 4])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda key, round, server, up, cohort, held: None, "(key, round, server, up, cohort, held)"),
        (lambda server, up: None, "(server, up)"),
        (lambda key, round, server, *rest: None, "(key, round, server, *rest)"),
        (lambda server, up, *, round: None, "(server, up, *, round)"),
    ],
)
def test_an_aggregation_of_other_arguments_is_refused(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"expected aggregate to take (server, up, round), got {words}; ")):
        streaming.as_streamed(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda *arguments: None,
        lambda server, *rest: None,
        lambda server, up, round, again=True: None,
        functools.partial(lambda task, server, up, round: None, "task"),
        np.add,  # whose arguments nobody can read
    ],
)
def test_aggregations_that_take_the_arguments_are_not_refused(function: Any) -> None:
    assert isinstance(streaming.as_streamed(function), Streamed)


def test_within_a_larger_server() -> None:
    def contribute(server: Any, seat: Any, up: Any) -> Any:
        return Part(up * 6 + server), seat.id

    def finish(server: Any, total: Any, rows: Any, round: Any) -> Any:
        return server + total.value, {"id": rows}

    inner = Streamed(contribute, finish)
    outer = streaming.within(inner, lambda server: server[0], lambda server, own: (own, server[1]))
    cohort = Cohort(jnp.asarray([4, 2]), jnp.zeros(2, jnp.int32), jnp.ones(2, bool))
    up, round = jnp.asarray([1.0, 2.0]), Round(KEY, jnp.int32(0), cohort, {})
    alone, info = inner(jnp.asarray(3.0), up, round)
    both, same = outer((jnp.asarray(3.0), "kept"), up, round)
    assert alone == 3 + (1 * 6 + 3) + (2 * 6 + 3)
    assert both == (alone, "kept")
    np.testing.assert_array_equal(info["id"], same["id"])


def test_what_cannot_be_added_up_is_refused() -> None:
    with pytest.raises(ValueError, match="expected floating leaves to add up, got a leaf of dtype int32"):
        streaming.add_up(Part(jnp.arange(3), jnp.ones(3)), jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"expected a weight of one number or \[R\] .*, got shape \(2, 2\)"):
        streaming.add_up(Part(jnp.ones(3), jnp.ones((3, 2, 2))), jnp.ones(3, bool))
