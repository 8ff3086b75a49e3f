"""Robust rules: printed numbers, NumPy's, laws, far rows, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import aggregators as ag
from fljax.aggregators import sorting
from tests.drawn import at_most
from tests.oracles import numpy_robust as numpys
from tests.precision import enable_x64
from tests.refusals import refusals, refuses

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]

X = np.array([(0, 0), (1, 0.1), (0.2, 0.9), (1.1, 1.2), (0.5, 0.4), (0.3, 0.7), (10, 10)])
ROWS = X.astype(np.float32)
# The rows that Krum chooses differ with n - f - 1 neighbours, or with fourth powers.
VARIANTS = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (0.5, 0.5), (0.25, 0.75), (10, 10)])
TRIANGLE = np.array([(0.0, 0), (2, 0), (0, 2)])
S, D = 9, 5
REFERENCE, CENTRE, WEIGHTS = np.linspace(-1, 2, D), np.linspace(1, 0, D), np.arange(1, S + 1, dtype=np.float32)


def tree(rows: Any, dtype: Any = None) -> Any:
    """Rows ``[..., d]`` as leaves of several axes."""
    rows = jnp.asarray(rows, dtype)
    return {"b": rows[..., 0], "w": rows[..., None, 1:]}


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(tree["b"], float)[..., None], np.asarray(tree["w"], float)[..., 0, :]], axis=-1)


def fltrust(updates: Any, reference: Any, present: Any = None) -> Any:
    return ag.weighted_sum(updates, ag.fltrust_weights(updates, reference, present=present))


def scored(updates: Any, f: Any, present: Any = None) -> Any:
    """The scores of present rows, as if they were one update."""
    scores = ag.krum_scores(updates, f, present=present)
    return tree(jnp.where(jnp.isfinite(scores), scores, 0))


def mixed(updates: Any, f: Any, present: Any = None) -> Any:
    """The median of the rows after mixing: an entry of one row each."""
    return ag.coordinate_median(ag.nearest_neighbour_mixing(updates, f, present=present), present=present)


# By name: the rule, in NumPy (of the rows present, f and their places), whether it ignores the order of rows (not those
# with weights by place, nor Bulyan, whose last picks tie) and commutes with a translation and a change of scale, and
# which bound holds with far rows.
RULES: dict[str, tuple[Any, Any, str, str]] = {
    "median": (
        lambda x, f, present=None: ag.coordinate_median(x, present=present),
        lambda x, f, at: numpys.median(x),
        "order translation scale",
        "box",
    ),
    "trimmed mean": (ag.trimmed_mean, lambda x, f, at: numpys.trimmed_mean(x, f), "order translation scale", "box"),
    "krum": (ag.krum, lambda x, f, at: numpys.multi_krum(x, f, 1), "order translation scale", "box"),
    "multi-krum": (ag.multi_krum, lambda x, f, at: numpys.multi_krum(x, f), "order translation scale", "box"),
    "geometric median": (
        lambda x, f, present=None: ag.geometric_median(x, jnp.asarray(WEIGHTS), present=present),
        lambda x, f, at: numpys.geometric_median(x, WEIGHTS[at].astype(float)),
        "translation scale",
        "",
    ),
    "clipped mean": (
        lambda x, f, present=None: ag.clipped_mean(x, 1.5, jnp.asarray(WEIGHTS), present=present),
        lambda x, f, at: numpys.clipped_mean(x, 1.5, WEIGHTS[at].astype(float)),
        "",
        "1.5",
    ),
    "centred clipping": (
        lambda x, f, present=None: ag.centred_clipping(x, 1.5, tree(CENTRE), iterations=2, present=present),
        lambda x, f, at: numpys.centred_clipping(x, 1.5, CENTRE, 2),
        "order",
        "5",
    ),
    "fltrust": (
        lambda x, f, present=None: fltrust(x, tree(REFERENCE), present),
        lambda x, f, at: numpys.fltrust(x, REFERENCE),
        "order",
        "3.1",
    ),
    "bulyan": (ag.bulyan, lambda x, f, at: numpys.bulyan(x, f), "translation scale", "box"),
    "mixing": (
        mixed,
        lambda x, f, at: numpys.median(numpys.nearest_neighbour_mixing(x, f)),
        "order translation scale",
        "box",
    ),
}
jitted = functools.cache(jax.jit)


def drawn(seed: int, size: int = S) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, D)) + 0.5


NUMBERS: tuple[tuple[Any, Any], ...] = (
    (lambda x: ag.coordinate_median(x), (0.5, 0.7)),
    (lambda x: ag.trimmed_mean(x, 1), (0.62, 0.66)),
    (lambda x: ag.trimmed_mean(x, 0), (1.871429, 1.9)),
    (lambda x: ag.krum_scores(x, 1), (2.85, 3.42, 2.14, 4.01, 1.22, 1.61, 695.09)),
    (lambda x: ag.krum(x, 1), X[4]),
    (lambda x: ag.krum(x, 0.15), X[4]),
    (lambda x: ag.multi_krum(x, 1), (0.25, 0.5)),
    (lambda x: ag.multi_krum(x, 1, keep=6), (0.516667, 0.55)),
    (lambda x: ag.geometric_median(x), (0.515727, 0.634141)),
    (lambda x: ag.geometric_median(x, iterations=300), (0.480715, 0.620326)),
    (lambda x: ag.geometric_median(TRIANGLE, iterations=300), (0.422650, 0.422650)),
    (lambda x: ag.clipped_mean(x, 1.0), (0.482553, 0.506252)),
    (lambda x: ag.centred_clipping(x, 1.0), (0.482553, 0.506252)),
    (lambda x: ag.centred_clipping(x, 1.0, iterations=2), (0.612934, 0.644640)),
    (lambda x: ag.centred_clipping(x, 1.0, iterations=3), (0.631605, 0.664364)),
    (lambda x: fltrust(x, np.array([0.6, 0.6])), (0.532669, 0.584947)),
    (lambda x: ag.bulyan(x, 1), (0.333333, 0.4)),
    (lambda x: ag.nearest_neighbour_mixing(x, 1)[6], (2.183333, 2.216667)),
    (lambda x: ag.krum(VARIANTS, 1), VARIANTS[5]),
)


@pytest.mark.parametrize("place", range(len(NUMBERS)))
def test_printed_numbers(place: int) -> None:
    call, expected = NUMBERS[place]
    with enable_x64(True):
        np.testing.assert_allclose(jax.jit(call)(X), expected, atol=6e-7)


def test_the_transcription_has_printed_numbers() -> None:
    """Trust by row, and the order in which Bulyan picks."""
    assert numpys.bulyan_picks(X, 1) == [4, 5, 2, 0, 1]
    weights = np.asarray(ag.fltrust_weights(ROWS, jnp.array([0.6, 0.6])))
    trust = weights * np.linalg.norm(X, axis=1)
    np.testing.assert_allclose(trust / trust[6], [0, 0.773957, 0.843661, 0.999056, 0.993884, 0.928477, 1], atol=2e-6)
    # From zeros, with another least distance, as in other libraries: the numbers are of the same equation.
    beta = lambda z: 1 / np.maximum(0.1, np.linalg.norm(X - z, axis=1))  # noqa: E731
    last = functools.reduce(lambda z, _: beta(z) @ X / beta(z).sum(), range(3), np.zeros(2))
    np.testing.assert_allclose(last, [0.495342, 0.545690], atol=6e-7)


@pytest.mark.parametrize("name", RULES)
@given(st.integers(0, 10**6), st.integers(1, 2**S - 1), st.integers(0, 2**S - 1), st.integers(0, 4))
@at_most(40)
def test_is_numpys_of_the_rows_present(name: str, seed: int, mask: int, broken: int, f: int) -> None:
    """Absent rows and rows with NaN or infinity make no difference; too few rows degrade a rule."""
    rule, oracle, *_ = RULES[name]
    rows, present = drawn(seed), np.array([bool(mask >> place & 1) for place in range(S)])
    bad = np.array([bool(broken >> place & 1) for place in range(S)]) & (np.arange(S) % 2 == 0)
    rows[bad, seed % D] = [np.nan, np.inf, -np.inf][seed % 3]
    at = present & ~bad
    expected = oracle(rows[at], f, at) if at.any() else np.zeros(D)
    with enable_x64(True):
        found = jitted(rule)(tree(rows), jnp.asarray(f), present=jnp.asarray(present))
    np.testing.assert_allclose(flat(found), expected, rtol=1e-8, atol=1e-9)


@given(st.integers(0, 10**6), st.integers(0, 3))
@at_most(20)
def test_scores_and_mixed_rows_are_numpys(seed: int, f: int) -> None:
    rows = drawn(seed)
    with enable_x64(True):
        scores, mixed = (jitted(rule)(tree(rows), f) for rule in (ag.krum_scores, ag.nearest_neighbour_mixing))
    np.testing.assert_allclose(scores, list(numpys.krum_scores(rows, f).values()), rtol=1e-8)
    np.testing.assert_allclose(flat(mixed), numpys.nearest_neighbour_mixing(rows, f), rtol=1e-8)


@pytest.mark.parametrize("name", RULES)
def test_laws(name: str) -> None:
    """The order of rows makes no difference; other laws hold where the table says so, and fail elsewhere."""
    rule, _, laws, _ = RULES[name]
    rows, move = drawn(3), np.linspace(-2, 3, D)
    with enable_x64(True):
        results = [flat(jitted(rule)(tree(x), jnp.asarray(1))) for x in (rows, rows[::-1], rows + move, 3 * rows)]
    found, *others = results
    for law, one, expected in zip(
        ("order", "translation", "scale"), others, (found, found + move, 3 * found), strict=True
    ):
        assert np.allclose(one, expected, rtol=1e-4) == (law in laws), law


@pytest.mark.parametrize("name", RULES)
def test_one_row_and_nobody(name: str) -> None:
    rule, *_ = RULES[name]
    one, nobody = jnp.arange(S) == 4, jnp.zeros(S, bool)
    rows = drawn(1)
    rows[4] *= 1.4 / np.linalg.norm(rows[4])
    bounded = name in ("fltrust", "centred clipping")
    for dtype in (jnp.float32, jnp.bfloat16):
        found, none = (jitted(rule)(tree(rows, dtype), 1, present=mask) for mask in (one, nobody))
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
        assert bounded or np.allclose(flat(found), rows[4], rtol=1e-6 if dtype == jnp.float32 else 0.02)
        np.testing.assert_array_equal(flat(none), 0)


FAR = {
    "together": np.full((2, D), 1e6),
    "apart": np.array([[1e6] * D, [-1e6] * D]),
    "one farther": np.array([[1e6] * D, [-1e12] * D]),
    "huge": np.full((2, D), 3e38),
}


@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("name", RULES)
def test_far_rows_in_single_precision(name: str, kind: str) -> None:
    """2 of 12: the result is within the range of honest values, or as near as the rule's bound says."""
    rule, _, _, bound = RULES[name]
    honest = drawn(5, 10)
    rows = tree(np.concatenate([FAR[kind][:1], honest, FAR[kind][1:]]), jnp.float32)
    if name == "geometric median":
        found, diameter = flat(ag.geometric_median(rows, iterations=60)), np.sqrt(numpys.distances(honest).max())
        assert np.linalg.norm(found - honest.mean(axis=0)) <= 2 * 10 / (12 - 2 * 2) * diameter
        return
    if name == "clipped mean":
        rule = lambda rows, f: ag.clipped_mean(rows, 1.5)  # noqa: E731
    found = flat(jitted(rule)(rows, 2))
    if bound == "box":
        assert ((found >= honest.min(axis=0) - 1e-5) & (found <= honest.max(axis=0) + 1e-5)).all()
        return
    assert np.linalg.norm(found) <= float(bound)


def test_distances_of_honest_rows_keep_their_digits() -> None:
    """Beside rows at 1e6, and where all rows share 1e3."""
    honest = drawn(6, 10).astype(np.float32)
    for rows, rtol in ((np.concatenate([honest, FAR["together"]]), 1e-5), (honest + 2.0**10, 1e-5)):
        rows = rows.astype(np.float32)
        expected = list(numpys.krum_scores(rows.astype(float), 2).values())[:10]
        np.testing.assert_allclose(jitted(ag.krum_scores)(tree(rows), 2)[:10], expected, rtol=rtol)


@pytest.mark.parametrize("size", [1, 2, 4, 10])
@given(st.integers(0, 10**6), st.integers(0, 2**S - 1))
@at_most(20)
def test_buckets(size: int, seed: int, mask: int) -> None:
    """Each present row is in one bucket; absent rows and the places of rows make no difference."""
    rows, rng = drawn(seed), np.random.default_rng(seed)
    at, id, moved = (
        np.array([bool(mask >> place & 1) for place in range(S)]),
        rng.permutation(100)[:S],
        rng.permutation(S),
    )
    call = jitted(ag.bucketing, static_argnums=2)
    means, there = call(jax.random.key(seed), tree(rows), size, id=jnp.asarray(id), present=jnp.asarray(at))
    sizes = np.clip(at.sum() - size * np.arange(-(-S // size)), 0, size)
    np.testing.assert_array_equal(there, sizes > 0)
    np.testing.assert_allclose(sizes @ flat(means), rows[at].sum(axis=0), rtol=1e-4, atol=1e-5)
    rows[~at], id[~at] = np.nan, 200
    others = {"id": jnp.asarray(id[moved]), "present": jnp.asarray(at[moved])}
    again, _ = call(jax.random.key(seed), tree(rows[moved]), size, **others)
    np.testing.assert_allclose(flat(again), flat(means), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_gradients_are_finite_and_lanes_are_single_calls(name: str) -> None:
    """With equal rows, rows of 0, absent rows and NaN; ``vmap`` of ``jit``."""
    rule, *_ = RULES[name]
    rows = np.stack([drawn(seed) for seed in range(3)]).astype(np.float32)
    rows[0, 2], rows[1, 3], rows[2, 1] = rows[0, 3], 0, rows[2].mean(axis=0)
    rows[2, 2], present = np.nan, jnp.asarray(np.arange(3 * S).reshape(3, S) % 4 > 0)
    lanes = jitted(jax.vmap(lambda x, at: rule(tree(x), 1, present=at)))(jnp.asarray(rows), present)
    for lane in range(3):
        one = flat(jitted(rule)(tree(rows[lane]), 1, present=present[lane]))
        np.testing.assert_allclose(flat(lanes)[lane], one, rtol=2e-5, atol=1e-6)
    total = lambda x, at: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(rule(tree(x), 1, present=at)))  # noqa: E731
    assert np.isfinite(jax.jit(jax.vmap(jax.grad(total)))(jnp.asarray(rows), present)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_the_network_sorts(size: int) -> None:
    """Blocks that overlap, several leaves; derivatives are those of ``jnp.sort``."""
    rng = np.random.default_rng(size)
    leaves = [jnp.asarray(rng.integers(-9, 9, (size, columns)), jnp.float32) for columns in (1, 0, 700)]
    weights = jnp.arange(1.0, size + 1)
    reduce = lambda rows, factor: jnp.tensordot(weights * factor, rows, 1)  # noqa: E731
    found = sorting.of_sorted(reduce, leaves, (jnp.asarray(2),))
    for leaf, one in zip(leaves, found, strict=True):
        np.testing.assert_array_equal(one, 2 * np.asarray(weights) @ np.sort(leaf, axis=0))
    slope = jax.grad(lambda leaf: jnp.sum(sorting.of_sorted(reduce, [leaf], (jnp.asarray(2),))[0]))(leaves[2])
    np.testing.assert_array_equal(slope, 2 + 2 * np.argsort(np.argsort(leaves[2], 0, "stable"), 0, "stable"))


@pytest.mark.parametrize(
    ("rule", "f", "least"),
    [
        (ag.trimmed_mean, 2, 5),
        (ag.krum, 2, 7),
        (ag.krum_scores, 0, 3),
        (ag.multi_krum, np.int32(1), 5),
        (ag.bulyan, 1, 7),
        (ag.nearest_neighbour_mixing, 3, 7),
        (ag.bulyan, 0.2, 7),
        (ag.trimmed_mean, 0.45, 1),
    ],
)
def test_too_few_rows_are_refused(rule: Any, f: Any, least: int) -> None:
    """If all is known; with a mask they degrade the rule."""
    call = lambda rows, present=None: jax.eval_shape(lambda x: rule(x, f, present=present), jnp.ones((rows, 2)))  # noqa: E731
    call(least)
    if least > 1 and isinstance(f, int):
        refuses(lambda: call(least - 1), [f"= {least} updates for f = {f}", f"got {least - 1}"])
        call(least - 1, jnp.ones(least - 1, bool))


@pytest.mark.unchecked
@refusals(
    (lambda: ag.trimmed_mean(ROWS, -1), "a whole number of at least 0, or a share below 1", "got -1"),
    (lambda: ag.krum(ROWS, 1.0), "a whole number of at least 0, or a share below 1", "got 1.0"),
    (lambda: ag.multi_krum(ROWS, 1, keep=8), "keep from 1 to all 7 updates", "keep=8"),
    (lambda: ag.geometric_median(ROWS, smoothing=0.0), "smoothing to be a finite number above 0, got 0.0"),
    (lambda: ag.geometric_median(ROWS, jnp.ones(2)), "weights of shape [S], which is [7] here, got [2]"),
    (lambda: ag.clipped_mean(ROWS, -1.0), "bound to be a finite number above 0, got -1.0"),
    (lambda: ag.centred_clipping(ROWS, 1.0, jnp.ones(3)), "a leaf of shape [...], which is [2] here, got [3]"),
    (lambda: ag.bucketing(jax.random.key(0), ROWS, 0), "size to be a finite number above 0, got 0"),
    (lambda: ag.coordinate_median({"a": jnp.ones((2, 1)), "b": jnp.ones(3)}), "updates of 2 rows", "float32[3]"),
    (lambda: ag.coordinate_median(jnp.ones((2, 1), int)), "floating updates of 2 rows", "int"),
    (lambda: ag.coordinate_median(ROWS, present=jnp.ones(3, bool)), "present of shape [S], which is [7] here, got [3]"),
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)


def test_shares_are_of_the_rows_present() -> None:
    found = [int(ag.assumed_byzantine(share, jnp.arange(100) < n)) for share, n in ((0.29, 100), (0.3, 10), (0.3, 9))]
    assert found == [29, 3, 2]
    assert int(ag.assumed_byzantine(4, jnp.ones(5, bool), 2)) == 2
