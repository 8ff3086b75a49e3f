"""Cohorts: distinct clients, uniform, and at no cost of the population where it is large and all available."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import cohorts
from fljax.protocol import Available


@pytest.mark.in_turn
def test_a_small_cohort_of_a_million_touches_no_array_of_a_million() -> None:
    draw = lambda key: cohorts.sample_uniform(key, Available(10**6), 100)  # noqa: E731
    text = str(jax.make_jaxpr(draw)(jax.random.key(0)))
    assert "[1000000" not in text
    id, present = jax.jit(draw)(jax.random.key(1))
    assert bool(present.all())
    assert len(np.unique(id)) == 100
    assert 0 <= int(id.min()) < 100_000
    assert 900_000 < int(id.max()) < 10**6


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("available", "rows"),
    [
        (Available(cohorts.LARGE - 1), 10),
        (Available(cohorts.LARGE), cohorts.SMALL),  # more than a 64th
        (Available(cohorts.LARGE, jnp.arange(cohorts.LARGE) % 2 == 0), 10),
    ],
)
def test_other_cohorts_are_drawn_as_ever(available: Available, rows: int) -> None:
    key = jax.random.key(3)
    score = -jax.random.uniform(key, (available.population,))
    if available.among is not None:
        score = jnp.where(available.among, score, -jnp.inf)
    id, present = cohorts.sample_uniform(key, available, rows)
    np.testing.assert_array_equal(id, jax.lax.top_k(score, rows)[1])
    assert bool(present.all())


@pytest.mark.in_turn
def test_every_client_is_as_likely_in_every_place(monkeypatch: Any) -> None:
    monkeypatch.setattr(cohorts, "LARGE", 0)
    population, rows, draws = 192, 3, 20_000
    keys = jax.random.split(jax.random.key(5), draws)
    id = np.asarray(jax.jit(jax.vmap(lambda key: cohorts.sample_uniform(key, Available(population), rows)[0]))(keys))
    assert (np.diff(np.sort(id), axis=1) > 0).all()
    for place in range(rows):
        count = np.bincount(id[:, place], minlength=population)
        # The statistic of chi squared has mean N - 1 and variance 2 (N - 1).
        statistic = ((count - draws / population) ** 2).sum() * population / draws
        assert abs(statistic - (population - 1)) < 5 * np.sqrt(2 * (population - 1))


def test_cohorts_of_members_are_nested() -> None:
    """Who is drawn of more members is also drawn of fewer, if it is one of them: scores belong to ids."""
    more, fewer = (jnp.isin(jnp.arange(8), jnp.asarray(ids)) for ids in ([0, 2, 3, 5, 7], [0, 3, 7]))
    drawn = []
    for members in (more, fewer):
        id, present = cohorts.sample_uniform(jax.random.key(4), Available(8).without(~members), 2)
        assert bool(present.all())
        drawn.append(set(np.asarray(id).tolist()))
    assert drawn[0] & {0, 3, 7} <= drawn[1] <= {0, 3, 7}


@pytest.mark.parametrize("rows", [6, 9])
def test_a_cohort_with_a_row_for_every_client_is_in_the_order_of_ids(rows: int) -> None:
    """Those that are available come first."""
    some, everybody = jnp.asarray([True, False, True, True, False, True]), jnp.ones(6, bool)
    for among, order, filled in ((None, range(6), 6), (everybody, range(6), 6), (some, [0, 2, 3, 5, 1, 4], 4)):
        id, present = cohorts.sample_uniform(jax.random.key(0), Available(6, among), rows)
        np.testing.assert_array_equal(id, order)
        np.testing.assert_array_equal(present, np.arange(6) < filled)
