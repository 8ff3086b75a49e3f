"""Updates that are clipped to the median norm: NumPy's numbers, edges, and what makes no difference."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.aggregators import clip, clip_to_median

pytestmark = pytest.mark.in_turn

RANDOM = np.random.default_rng(0)


def stacked(rows: Any, dtype: Any = None) -> Any:
    """Rows of five or six numbers, or one, as the leaves of a pytree."""
    rows = jnp.asarray(rows, dtype)
    return {"w": rows[..., :4].reshape(*rows.shape[:-1], 2, 2), "b": rows[..., 4:]}


def flat(tree: Any) -> np.ndarray:
    w, b = (np.asarray(tree[name], np.float64) for name in ("w", "b"))
    return np.concatenate([w.reshape(*b.shape[:-1], -1), b], axis=-1)


def oracle(rows: np.ndarray, present: np.ndarray, times: float = 1.0) -> np.ndarray:
    """Each present row is shortened to ``times`` the lower median of the norms of the present rows."""
    norms = np.sqrt(np.square(rows).sum(axis=1))
    if not present.any():
        return rows
    bound = times * statistics.median_low(norms[present].tolist())
    share = np.where(present & (norms > bound), bound / np.where(norms > 0, norms, 1), 1)
    return rows * share[:, None]


def test_by_hand() -> None:
    """Norms 5, 1 and 10: the bound is 5, or 2.5."""
    updates = {"x": jnp.asarray([[3.0, 4.0], [0.0, 1.0], [-6.0, 8.0]])}
    np.testing.assert_allclose(clip_to_median(updates)["x"], [[3, 4], [0, 1], [-3, 4]], rtol=1e-6)
    np.testing.assert_allclose(clip_to_median(updates, times=0.5)["x"], [[1.5, 2], [0, 1], [-1.5, 2]], rtol=1e-6)


@pytest.mark.thorough
@given(
    st.lists(st.sampled_from([0.0, 1e-3, 1.0, 7.0, 1e4]), min_size=1, max_size=7),
    st.integers(0, 127),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_is_numpys(sizes: list[float], mask: int, times: float) -> None:
    rows = np.random.default_rng(mask).normal(size=(len(sizes), 6)) * np.asarray(sizes)[:, None]
    present = np.asarray([bool(mask >> place & 1) for place in range(len(sizes))])
    found = flat(clip_to_median(stacked(rows), present=jnp.asarray(present), times=times))
    np.testing.assert_allclose(found, oracle(rows, present, times), rtol=1e-5)


@pytest.mark.quick
@given(st.lists(st.sampled_from([0.0, 1e-30, 1.0, 1e30]), min_size=1, max_size=7), st.integers(0, 127), st.booleans())
def test_a_fixed_bound_is_numpys(sizes: list[float], mask: int, each: bool) -> None:
    rows = np.random.default_rng(mask).normal(size=(len(sizes), 6)) * np.asarray(sizes)[:, None]
    present = np.asarray([bool(mask >> place & 1) for place in range(len(sizes))])
    bound = np.linspace(0.5, 2, len(sizes)) if each else np.full(len(sizes), 1.5)
    found = flat(clip(stacked(rows), jnp.asarray(bound) if each else 1.5, present=jnp.asarray(present)))
    norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    expected = rows * np.where(present, np.minimum(1, bound / norms), 1)[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-37)


@pytest.mark.quick
def test_an_update_without_a_direction_is_not_made_finite() -> None:
    found = flat(clip(stacked(np.array([[1.0, np.nan, 2, 0, 0, 0], [3, 4, 0, 0, 0, 0]])), 1.0))
    assert np.isnan(found[0, 1])
    assert not found[0, [0, 2]].any()
    np.testing.assert_allclose(found[1, :2], [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("attackers", [1, 2, 3])
def test_half_of_the_rows_cannot_raise_the_bound(attackers: int) -> None:
    """The lower of two medians: with 3 of 6 rows of any size no row is longer than the longest honest one."""
    honest = RANDOM.normal(size=(6, 6))
    longest = np.linalg.norm(honest[attackers:], axis=1).max()
    for size in (1e3, 1e30):
        rows = honest.copy()
        rows[:attackers] *= size
        found = flat(clip_to_median(stacked(rows)))
        assert np.linalg.norm(found, axis=1).max() <= longest * (1 + 1e-5)
        assert np.isfinite(found).all()


def test_absent_rows_are_never_read() -> None:
    rows = RANDOM.normal(size=(5, 6))
    present = np.array([True, False, True, True, False])
    spoilt = np.where(present[:, None], rows, np.nan)
    found = flat(clip_to_median(stacked(spoilt), present=jnp.asarray(present)))
    np.testing.assert_allclose(found[present], oracle(rows, present)[present], rtol=1e-5)
    assert np.isnan(found[~present]).all()


def test_zeros_half_precision_and_nothing() -> None:
    zeros = clip_to_median(stacked(np.zeros((3, 6))))
    assert not flat(zeros).any()
    found = clip_to_median(stacked(RANDOM.normal(size=(3, 6)) * [[1], [2], [90]], jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.bfloat16)}
    assert np.linalg.norm(flat(found), axis=1)[2] < 10
    assert clip_to_median(()) == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_the_longest(bad: float) -> None:
    """Two of five rows: they do not lower the bound of the others, and stay what the engine finds."""
    rows = RANDOM.normal(size=(5, 6)) * [[1], [2], [3], [4], [5]]
    sizes = np.where(np.arange(5)[:, None] > 2, 1e9, 1)
    spoilt = rows.copy()
    spoilt[3:, 1] = bad
    found = flat(clip_to_median(stacked(spoilt)))
    np.testing.assert_allclose(found[:3], oracle(rows * sizes, np.ones(5, bool))[:3], rtol=1e-5)
    assert not np.isfinite(found[3:]).all(axis=1).any()
    most = np.where(np.arange(5)[:, None] > 1, bad, rows)
    np.testing.assert_allclose(flat(clip_to_median(stacked(most)))[:2], rows[:2], rtol=1e-6)


def test_without_updates_the_bound_has_no_derivative() -> None:
    """A round to which nobody comes must not spoil the gradient of a run by NaN."""
    rows, nobody = jnp.asarray(RANDOM.normal(size=(3, 6))), jnp.zeros(3, bool)
    slope = jax.grad(lambda times: jnp.sum(clip_to_median(rows, present=nobody, times=times)))(1.0)
    assert slope == 0
    assert clip_to_median(jnp.zeros((0, 6))).shape == (0, 6)


@pytest.mark.parametrize("clipped", [clip_to_median, functools.partial(clip, bound=1.5)])
def test_a_row_of_zeros_has_finite_gradients(clipped: Callable[[Any], Any]) -> None:
    """Beside rows that are shortened; it is not, so its gradient is that of what is summed."""
    rows = jnp.asarray(RANDOM.normal(size=(5, 6)) * [[1], [2], [3], [50], [0]])
    slope = jax.grad(lambda rows: jnp.sum(clipped(rows)))(rows)
    assert np.isfinite(slope).all()
    np.testing.assert_array_equal(slope[4], 1)
