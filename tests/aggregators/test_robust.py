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
from tests.aggregators.test_clipping import flat, stacked
from tests.drawn import at_most
from tests.oracles import numpy_robust as numpys
from tests.precision import enable_x64
from tests.refusals import refusals, refuses

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]

X = np.array([(0, 0), (1, 0.1), (0.2, 0.9), (1.1, 1.2), (0.5, 0.4), (0.3, 0.7), (10, 10)])
# The row that Krum chooses differs with n - f - 1 neighbours, or with fourth powers.
VARIANTS = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (0.5, 0.5), (0.25, 0.75), (10, 10)])
ROWS, S, D = X.astype(np.float32), 12, 5
REFERENCE, CENTRE, WEIGHTS = (np.linspace(*ends, dtype=np.float32) for ends in ((-1, 2, D), (1, 0, D), (1, S, S)))
SEEDS, MASKS = st.integers(0, 10**6), st.integers(0, 2**S - 1)
jitted = functools.cache(jax.jit)
drawn = lambda seed: np.random.default_rng(seed).normal(size=(S, D)) + 0.5  # noqa: E731
bits = lambda mask: np.array([bool(mask >> place & 1) for place in range(S)])  # noqa: E731


def fltrust(updates: Any, reference: Any, present: Any = None) -> Any:
    return ag.weighted_sum(updates, ag.fltrust_weights(updates, reference, present=present))


def mixed(updates: Any, f: Any, present: Any = None) -> Any:
    return ag.coordinate_median(ag.nearest_neighbour_mixing(updates, f, present=present), present=present)


of = lambda rule, **options: lambda x, f, present=None: rule(x, present=present, **options)  # noqa: E731
numpys_median = lambda x, f, at: numpys.geometric_median(x, at, at @ x / at.sum(), 60)  # noqa: E731
numpys_clipped = lambda x, f, at: at @ numpys.clipped(x, 1.5) / at.sum()  # noqa: E731
numpys_centred = lambda x, f, at: CENTRE + numpys.clipped(x - CENTRE, 1.5).mean(axis=0)  # noqa: E731
numpys_fltrust = lambda x, f, at: numpys.fltrust(x, REFERENCE.astype(float))  # noqa: E731
# By name: the rule; in NumPy, from the rows present, f and their places; whether it ignores the order of rows (not with
# weights by place, nor Bulyan, whose last picks tie), commutes with translations and with changes of scale, and is in
# the range of honest values beside far rows.
ALL = "order translation scale box"
RULES: dict[str, tuple[Any, Any, str]] = {
    "median": (of(ag.coordinate_median), lambda x, f, at: np.median(x, axis=0), ALL),
    "trimmed mean": (ag.trimmed_mean, lambda x, f, at: numpys.trimmed_mean(x, f), ALL),
    "krum": (ag.krum, lambda x, f, at: numpys.multi_krum(x, f, 1), ALL),
    "multi-krum": (ag.multi_krum, lambda x, f, at: numpys.multi_krum(x, f), ALL),
    "geometric median": (of(ag.geometric_median, weights=WEIGHTS, iterations=60), numpys_median, "translation scale"),
    "clipped mean": (of(ag.clipped_mean, bound=1.5, weights=WEIGHTS), numpys_clipped, ""),
    "centred clipping": (of(ag.centred_clipping, bound=1.5, centre=stacked(CENTRE)), numpys_centred, "order"),
    "fltrust": (of(fltrust, reference=stacked(REFERENCE)), numpys_fltrust, "order"),
    "bulyan": (ag.bulyan, lambda x, f, at: numpys.bulyan(x, f), "translation scale box"),
    "mixing": (mixed, lambda x, f, at: np.median(numpys.nearest_neighbour_mixing(x, f), axis=0), ALL),
}
NUMBERS: tuple[tuple[Any, Any], ...] = (
    (lambda x: ag.coordinate_median(x), (0.5, 0.7)),
    (lambda x: ag.trimmed_mean(x, 1), (0.62, 0.66)),
    (lambda x: ag.krum_scores(x, 1), (2.85, 3.42, 2.14, 4.01, 1.22, 1.61, 695.09)),
    (lambda x: ag.krum(x, 0.15), X[4]),
    (lambda x: ag.krum(VARIANTS, 1), VARIANTS[5]),
    (lambda x: ag.multi_krum(x, 1), (0.25, 0.5)),
    (lambda x: ag.multi_krum(x, 1, keep=6), (0.516667, 0.55)),
    (lambda x: ag.geometric_median(x), (0.515727, 0.634141)),
    (lambda x: ag.geometric_median(x, iterations=300), (0.480715, 0.620326)),
    (lambda x: ag.geometric_median(np.array([(0.0, 0), (2, 0), (0, 2)]), iterations=300), (0.422650, 0.422650)),
    (lambda x: ag.clipped_mean(x, 1.0), (0.482553, 0.506252)),
    (lambda x: ag.centred_clipping(x, 1.0), (0.482553, 0.506252)),
    (lambda x: ag.centred_clipping(x, 1.0, iterations=2), (0.612934, 0.644640)),
    (lambda x: ag.centred_clipping(x, 1.0, iterations=3), (0.631605, 0.664364)),
    (lambda x: fltrust(x, np.array([0.6, 0.6])), (0.532669, 0.584947)),
    (
        lambda x: (lambda w: w / w[6])(ag.fltrust_weights(x, np.array([0.6, 0.6])) * jnp.linalg.norm(x, axis=1)),
        (0, 0.773957, 0.843661, 0.999056, 0.993884, 0.928477, 1),
    ),
    (lambda x: ag.bulyan(x, 1), (0.333333, 0.4)),
    (lambda x: jnp.stack([ag.assumed_byzantine(b, jnp.arange(100) < n) for b, n in ((0.29, 100), (0.3, 9))]), (29, 2)),
    (lambda x: ag.nearest_neighbour_mixing(x, 1)[6], (2.183333, 2.216667)),
)


@pytest.mark.parametrize("place", range(len(NUMBERS)))
def test_printed_numbers(place: int) -> None:
    call, expected = NUMBERS[place]
    with enable_x64(True):
        np.testing.assert_allclose(jax.jit(call)(X), expected, atol=6e-7)


def test_the_transcription_has_printed_numbers() -> None:
    assert numpys.bulyan_picks(X, 1) == [4, 5, 2, 0, 1]
    np.testing.assert_allclose(numpys.geometric_median(X, np.ones(7), np.zeros(2), 3, 0.1), [0.495342, 0.54569], 2e-6)


@pytest.mark.parametrize("name", RULES)
@given(SEEDS, MASKS, MASKS, st.integers(0, 4))
@at_most(40)
def test_is_numpys_of_the_rows_present(name: str, seed: int, mask: int, broken: int, f: int) -> None:
    """Absent rows and rows with NaN or infinity make no difference; too few rows degrade a rule; nobody: zeros."""
    rule, oracle, _ = RULES[name]
    rows, bad = drawn(seed), bits(broken) & (np.arange(S) % 2 == 0)
    rows[bad, seed % D] = [np.nan, np.inf, -np.inf][seed % 3]
    at = bits(mask) & ~bad
    expected = oracle(rows[at], f, WEIGHTS[at].astype(float)) if at.any() else np.zeros(D)
    with enable_x64(True):
        found = jitted(rule)(stacked(rows), jnp.asarray(f), present=jnp.asarray(bits(mask)))
    np.testing.assert_allclose(flat(found), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_laws_hold_where_the_table_says_so_and_fail_elsewhere(name: str) -> None:
    rule, _, laws = RULES[name]
    rows, move = drawn(3), np.linspace(-2, 3, D)
    with enable_x64(True):
        results = [flat(jitted(rule)(stacked(x), jnp.asarray(1))) for x in (rows, rows[::-1], rows + move, 3 * rows)]
    expected = {"order": results[0], "translation": results[0] + move, "scale": 3 * results[0]}
    for law, one in zip(expected, results[1:], strict=True):
        assert np.allclose(one, expected[law], rtol=1e-4) == (law in laws), law


FAR = {"together": (1e6, 1e6), "apart": (1e6, -1e6), "one farther": (1e6, -1e12), "huge": (3e38, 3e38)}


@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("name", RULES)
def test_far_rows_in_single_precision(name: str, kind: str) -> None:
    """2 of 12: the result is within the range of honest values, or as near as the rule's bound says."""
    rows = drawn(5)
    rows[0], honest, rows[-1] = FAR[kind][0], rows[1:-1], FAR[kind][1]
    found = flat(jitted(RULES[name][0])(stacked(rows, jnp.float32), 2))
    most = {"clipped mean": 1.5, "centred clipping": np.linalg.norm(CENTRE) + 1.5, "fltrust": np.linalg.norm(REFERENCE)}
    if "box" in RULES[name][2]:
        assert ((found >= honest.min(axis=0) - 1e-5) & (found <= honest.max(axis=0) + 1e-5)).all()
    elif name in most:
        assert np.linalg.norm(found) <= most[name] * (1 + 1e-5)
    else:  # with a sixth of all weight, 2 (5 / 6) / (4 / 6) times the honest diameter
        assert np.linalg.norm(found - honest.mean(axis=0)) <= 2.5 * np.sqrt(numpys.distances(honest).max())


def test_distances_of_honest_rows_keep_their_digits() -> None:
    """Beside rows at 1e6, and where all rows share 1024."""
    for rows in (np.where(np.arange(S)[:, None] < 10, drawn(6), 1e6), drawn(6) + 1024):
        rows = rows.astype(np.float32)
        expected = list(numpys.krum_scores(rows.astype(float), 2, list(range(12))).values())[:10]
        np.testing.assert_allclose(jitted(ag.krum_scores)(stacked(rows), 2)[:10], expected, rtol=1e-5)


@pytest.mark.parametrize("far", [1e6, 1e22, 1e30])
def test_attackers_cannot_move_the_centre_of_distances(far: float) -> None:
    """4 of 11: two move the mean, one stands at it, and one at the mean of the nearer half."""
    rows = np.random.default_rng(0).normal(size=(11, 5)).astype(np.float32)
    rows[:4] = far * np.eye(5)[0] * np.array([[1], [1], [2 / 9.8], [2 / 49]])
    scores = numpys.krum_scores(rows.astype(float), 4, list(range(11)))
    np.testing.assert_array_equal(ag.krum(rows, 4), rows[min(scores, key=scores.__getitem__)])
    assert np.abs(ag.multi_krum(rows, 4)).max() < 5
    slopes = jax.grad(lambda x: jnp.sum(ag.geometric_median(x)))(far * jnp.asarray(rows[4:]))
    assert jnp.isfinite(slopes).all()


@pytest.mark.parametrize("size", [1, 2, 4, 10])
@given(SEEDS, MASKS)
@at_most(20)
def test_buckets(size: int, seed: int, mask: int) -> None:
    """Each present row is in one bucket; absent rows and the places of rows make no difference."""
    rows, at, moved = drawn(seed), bits(mask), np.random.default_rng(seed).permutation(S)
    id = 7 * moved
    call = functools.partial(jitted(ag.bucketing, static_argnums=2), jax.random.key(seed))
    means, there = call(stacked(rows), size, id=jnp.asarray(id), present=jnp.asarray(at))
    sizes = np.clip(at.sum() - size * np.arange(-(-S // size)), 0, size)
    np.testing.assert_array_equal(there, sizes > 0)
    np.testing.assert_allclose(sizes @ flat(means), rows[at].sum(axis=0), rtol=1e-4, atol=1e-5)
    rows[~at], id[~at] = np.nan, 200
    again, _ = call(stacked(rows[moved]), size, id=jnp.asarray(id[moved]), present=jnp.asarray(at[moved]))
    np.testing.assert_allclose(flat(again), flat(means), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_gradients_are_finite_and_lanes_are_single_calls(name: str) -> None:
    """With equal rows, rows of 0, absent rows and NaN; half precision is kept."""
    rule, rows = RULES[name][0], np.stack([drawn(seed) for seed in range(3)]).astype(np.float32)
    rows[0, 2], rows[1, 3], rows[2, 1], rows[2, 2] = rows[0, 3], 0, rows[2].mean(axis=0), np.nan
    present = jnp.asarray(np.arange(3 * S).reshape(3, S) % 4 > 0)
    call = lambda x, at: rule(stacked(x), 1, present=at)  # noqa: E731
    lanes = flat(jax.jit(jax.vmap(call))(jnp.asarray(rows), present))
    single = [flat(jitted(rule)(stacked(rows[lane]), 1, present=present[lane])) for lane in range(3)]
    np.testing.assert_allclose(lanes, single, rtol=2e-5, atol=1e-6)
    slope = jax.grad(lambda x, at: sum(jnp.sum(leaf) for leaf in call(x, at).values()))
    assert np.isfinite(jax.jit(jax.vmap(slope))(jnp.asarray(rows), present)).all()
    half = jax.eval_shape(lambda: rule(stacked(rows[0], jnp.bfloat16), 1))
    assert {leaf.dtype for leaf in half.values()} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_the_network_sorts(size: int) -> None:
    """Blocks that overlap; derivatives are those of ``jnp.sort``."""
    reduce = lambda rows, factor: jnp.tensordot(jnp.arange(1.0, size + 1) * factor, rows, 1)  # noqa: E731
    call = lambda rows: sorting.of_sorted(reduce, rows, (jnp.asarray(2),))  # noqa: E731
    for columns in (0, 1, 700):
        rows = jnp.asarray(np.random.default_rng(size).integers(-9, 9, (size, columns)), jnp.float32)
        np.testing.assert_array_equal(call(rows), 2 * np.arange(1, size + 1) @ np.sort(rows, axis=0))
    slope = jax.grad(lambda rows: jnp.sum(call(rows)))(rows)
    np.testing.assert_array_equal(slope, 2 + 2 * np.argsort(np.argsort(rows, 0, "stable"), 0, "stable"))


LEAST = {ag.trimmed_mean: (2, 1), ag.krum: (2, 3), ag.bulyan: (4, 3), ag.nearest_neighbour_mixing: (2, 1)}


@pytest.mark.parametrize("rule", LEAST)
def test_too_few_rows_are_refused(rule: Any) -> None:
    """If all is known; with a mask they degrade the rule."""
    call = lambda n, f, mask=None: jax.eval_shape(lambda x: rule(x, f, present=mask), jnp.ones((n, 2)))  # noqa: E731
    for f in (1, np.int32(2)):
        least = LEAST[rule][0] * int(f) + LEAST[rule][1]
        call(least, f)
        call(least - 1, f, jnp.ones(least - 1, bool))
        refuses(lambda f=f, n=least - 1: call(n, f), [f"at least {least} updates", f"f = {f}", f"got {least - 1}"])
    call(11, 0.2)


@pytest.mark.unchecked
@refusals(
    (lambda: ag.trimmed_mean(ROWS, -1), "a whole number of at least 0, or a share below 1", "got -1"),
    (lambda: ag.krum(ROWS, 1.0), "a whole number of at least 0, or a share below 1", "got 1.0"),
    (lambda: ag.multi_krum(ROWS, 1, keep=8), "keep from 1 to all 7 updates", "keep=8"),
    (lambda: ag.geometric_median(ROWS, jnp.ones(2)), "weights of shape [S], which is [7] here, got [2]"),
    (lambda: ag.clipped_mean(ROWS, -1.0), "bound to be a finite number above 0, got -1.0"),
    (lambda: ag.centred_clipping(ROWS, 1.0, jnp.ones(3)), "a leaf of shape [...], which is [2] here, got [3]"),
    (lambda: ag.coordinate_median({"a": jnp.ones((2, 1)), "b": jnp.ones(3)}), "updates of 2 rows", "float32[3]"),
    (lambda: ag.coordinate_median(jnp.ones((2, 1), int)), "floating updates of 2 rows", "int"),
    (lambda: ag.coordinate_median(ROWS, present=jnp.ones(3, bool)), "present of shape [S], which is [7] here, got [3]"),
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)
