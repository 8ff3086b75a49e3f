"""Robust aggregation: rules whose result a few arbitrary updates cannot move far, and steps before such a rule.

``updates`` is a pytree of floating leaves ``[S, ...]``; all leaves of a row count as one vector ``x_i``. ``present``
are the n rows of S that count, None: all; rows with NaN or infinity never do. Results have the dtypes of ``updates``.
If nobody is present, they are zeros. One present row is the result, unless a bound or a reference shortens it.

``byzantine`` is f, the number of rows that may be anything: a whole number is a count, a float a share,
``floor(byzantine n)``. If f is known and all of S rows are present, too few are a ValueError; else a rule degrades as
it says. A negative f, a share from 1 on, whole numbers in leaves, and wrong shapes are ValueErrors, too.
Only ``clipped_mean`` and ``geometric_median`` know weights: a large weight is a claim that nobody checks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import check_positive, check_shape, known, on_any_mesh, read_rows, row_norms, shaped
from fljax.aggregators.sorting import of_sorted
from fljax.core.trees import combine, ratio, where_rows

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key, PyTree

    Mask = Bool[Array, " S"] | None
    Weights = Float[Array, " S"] | None
    Number = float | Array

# (a, b): with f Byzantine rows a rule needs a f + b.
NEEDED = {"trimmed_mean": (2, 1), "krum": (2, 3), "multi_krum": (2, 3), "bulyan": (4, 3), "mixing": (2, 1)}


def assumed_byzantine(byzantine: Number, present: Bool[Array, " S"]) -> Int[Array, ""]:
    """f, the number of Byzantine rows that a rule reckons with."""
    return jnp.asarray(number_of(byzantine, jnp.sum(present)), jnp.int32)


def number_of(byzantine: Number, count: int | Array) -> Any:
    """f of ``count`` rows, traced or not. A share of 0.29 of 100 is 29, not 28.999999999999996."""
    whole, found = jnp.issubdtype(jnp.result_type(byzantine), jnp.integer), known(byzantine)
    if found is not None and not 0 <= found < (math.inf if whole else 1):
        raise ValueError(f"expected byzantine to be a whole number of at least 0, or a share below 1, got {byzantine}")
    return byzantine if whole else byzantine * count * (1 + 1e-6) // 1


@on_any_mesh
def coordinate_median(updates: PyTree, *, present: Mask = None) -> PyTree:
    """The median of each entry; of two middle values their midpoint. Source: Yin et al. (ICML 2018)."""
    rows, counted, count = read_rows(updates, present)
    return shaped(of_sorted(_median, jnp.where(counted[:, None], rows, jnp.inf), (count,)), updates)


@on_any_mesh
def trimmed_mean(updates: PyTree, byzantine: Number, *, present: Mask = None) -> PyTree:
    """The mean of each entry without its f largest and f smallest values; n >= 2f + 1, else f is (n - 1) // 2.

    Source: Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML 2018).
    """
    rows, counted, count = read_rows(updates, present)
    cut = jnp.minimum(_reckoned("trimmed_mean", byzantine, present, counted), jnp.maximum(count - 1, 0) // 2)
    total = of_sorted(_sum_between, jnp.where(counted[:, None], rows, jnp.inf), (cut, count - cut))
    return shaped(ratio(total, count - 2 * cut), updates)


@on_any_mesh
def krum_scores(updates: PyTree, byzantine: Number, *, present: Mask = None) -> Float[Array, " S"]:
    """``score_i``: the sum of the n - f - 2 smallest ``||x_i - x_j||^2`` to other rows; infinity of absent rows.

    n >= 2f + 3, else there is at least one neighbour. Some codes have n - f - 1, or other powers of the distance.
    Source: Blanchard et al., "Machine learning with adversaries" (NeurIPS 2017).
    """
    rows, counted, count = read_rows(updates, present)
    found = _reckoned("krum", byzantine, present, counted)
    near = jnp.minimum(jnp.maximum(count - found - 2, 1), count - 1)
    # Columns are sorted: the matrix is symmetric.
    scores = of_sorted(_sum_between, _squared_distances(rows, counted), (jnp.zeros_like(near), near))
    return jnp.where(counted, jnp.minimum(scores, jnp.finfo(scores.dtype).max), jnp.inf)


def krum(updates: PyTree, byzantine: Number, *, present: Mask = None) -> PyTree:
    """The row of least ``krum_scores``, of equal ones the first."""
    return multi_krum(updates, byzantine, keep=1, present=present)


@on_any_mesh
def multi_krum(updates: PyTree, byzantine: Number, *, keep: int | Array | None = None, present: Mask = None) -> PyTree:
    """The mean of the ``keep`` rows of least ``krum_scores``, from 1 to all; None: n - f - 2, at least 1."""
    rows, counted, count = read_rows(updates, present)
    if isinstance(keep, int) and not 1 <= keep <= counted.size:
        raise ValueError(f"expected to keep from 1 to all {counted.size} updates, got keep={keep}")
    scores = krum_scores(jax.lax.stop_gradient(updates), byzantine, present=present)
    kept = jnp.maximum(count - assumed_byzantine(byzantine, counted) - 2, 1) if keep is None else keep
    return shaped(_mean(rows, counted & (_ranks(scores) < kept)), updates)


@on_any_mesh
def geometric_median(
    updates: PyTree, weights: Weights = None, *, iterations: int = 4, smoothing: Number = 1e-5, present: Mask = None
) -> PyTree:
    """``z <- sum_i b_i x_i / sum_i b_i`` with ``b_i = a_i / max(smoothing, ||x_i - z||)``, from the weighted mean on.

    ``weights`` are ``a_i [S]``; None: 1. The limit has the least ``sum_i a_i ||x_i - z||``. An iteration multiplies the
    error that f far rows leave by about f / (n - f), so against rows very far away 4 are few. Source: Pillutla et al.,
    "Robust aggregation for federated learning" (IEEE TSP 2022), with the defaults of their code.
    """
    check_positive("smoothing", smoothing)
    rows, counted, _ = read_rows(updates, present)
    weights = _weights(weights, counted, rows)

    def step(_: Array, middle: Array) -> Array:
        apart = jnp.maximum(smoothing, row_norms([rows - middle[None]]))
        return _mean(rows, weights * ratio(jax.lax.stop_gradient(jnp.min(apart)), apart))

    found = jax.lax.fori_loop(0, iterations, step, _mean(rows, weights))
    return shaped(found, updates)


@on_any_mesh
def clipped_mean(updates: PyTree, bound: Number, weights: Weights = None, *, present: Mask = None) -> PyTree:
    """``sum_i a_i x_i min(1, bound / ||x_i||) / sum_i a_i``, the mean of ``clip``.

    ``weights`` are ``a_i [S]``; None: 1. Source: Sun et al., "Can you really backdoor federated learning?" (2019).
    """
    check_positive("bound", bound)
    rows, counted, _ = read_rows(updates, present)
    weights = _weights(weights, counted, rows)
    return shaped(_mean(rows, weights * jnp.minimum(ratio(bound, row_norms([rows]), 1), 1), jnp.sum(weights)), updates)


@on_any_mesh
def centred_clipping(
    updates: PyTree, bound: Number, centre: PyTree = None, *, iterations: int = 1, present: Mask = None
) -> PyTree:
    """``v <- v + mean_i (x_i - v) min(1, bound / ||x_i - v||)``; f rows move a step by at most ``bound f / n``.

    ``centre`` is the first v, leaves ``[...]``, such as the result of the round before; None: zeros.
    Source: Karimireddy et al., "Learning from history for Byzantine robust optimization" (ICML 2021).
    """
    check_positive("bound", bound)
    rows, counted, count = read_rows(updates, present)
    first = jnp.zeros_like(rows, shape=rows.shape[1:]) if centre is None else _row(centre, updates).astype(rows.dtype)

    def step(_: Array, middle: Array) -> Array:
        apart = rows - middle[None]
        return middle + _mean(apart, counted * jnp.minimum(ratio(bound, row_norms([apart]), 1), 1), count)

    return shaped(jnp.where(count > 0, jax.lax.fori_loop(0, iterations, step, first), 0), updates)


@on_any_mesh
def fltrust_weights(updates: PyTree, reference: PyTree, *, present: Mask = None) -> Float[Array, " S"]:
    """Weights of a sum: ``T_i ||g|| / ||x_i|| / sum_j T_j`` with ``T_i = max(0, cos(x_i, g))``; 0 without any T.

    ``reference`` is g, leaves ``[...]``, of rows that the server trusts. The sum has at most its norm. Weights are 0 of
    rows of 0, or shorter by more than a square can hold.
    Source: Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping" (NDSS 2021).
    """
    rows, counted, _ = read_rows(updates, present)
    goal = _row(reference, updates).astype(rows.dtype)
    norms, length = row_norms([rows]), row_norms([goal[None]])[0]
    long = counted & (norms > length * jnp.sqrt(jnp.finfo(norms.dtype).tiny))
    inverse = jnp.where(long, 1 / jnp.where(long, norms, 1), 0)
    trust = jnp.maximum(jnp.matmul(rows * inverse[:, None], ratio(goal, length), precision="highest"), 0)
    return ratio(trust, jnp.sum(trust)) * (length * inverse)


@on_any_mesh
def bulyan(updates: PyTree, byzantine: Number, *, present: Mask = None) -> PyTree:
    """Per entry the mean of the n - 4f values nearest to the median of n - 2f rows, which Krum picks; n >= 4f + 3.

    Krum picks one row at a time, by max(n' - f - 2, 1) neighbours among the n' left; its last picks tie, and so depend
    on the order of rows. Equally far values share the places left. Else at least one row and one value are taken.
    Source: El Mhamdi et al., "The hidden vulnerability of distributed learning in Byzantium" (ICML 2018).
    """
    rows, counted, count = read_rows(updates, present)
    found = _reckoned("bulyan", byzantine, present, counted)
    picks = jnp.maximum(count - 2 * found, 1)
    picked = _picked(jax.lax.stop_gradient(rows), counted, found, picks)
    counts = (jnp.sum(picked), jnp.maximum(picks - 2 * found, 1))
    return shaped(of_sorted(_mean_near_median, jnp.where(picked[:, None], rows, jnp.inf), counts), updates)


@on_any_mesh
def bucketing(
    key: Key[Array, ""], updates: PyTree, size: int, *, id: Int[Array, " S"] | None = None, present: Mask = None
) -> tuple[PyTree, Bool[Array, " buckets"]]:
    """Means of ``size`` random rows each, ``[ceil(S/size), ...]``, and which are present; one may have fewer rows.

    Rows stand in the order of numbers drawn by ``fold_in(key, id)``, None: 0..S-1, wherever they and absent rows are.
    Source: Karimireddy et al., "Byzantine-robust learning on heterogeneous datasets via bucketing" (ICLR 2022).
    """
    check_positive("size", size)
    rows, present, count = read_rows(updates, present)
    id = jnp.arange(present.size) if id is None else jnp.asarray(id)
    check_shape("id", id, "S", present.size)
    drawn = jax.vmap(lambda one: jax.random.bits(jax.random.fold_in(key, one)))(id)
    buckets = -(-present.size // size)
    order = jnp.pad(jnp.lexsort((id, drawn, ~present)), (0, buckets * size - present.size))
    counted = (jnp.arange(buckets * size) < count).reshape(buckets, size, 1)
    total = jnp.sum(jnp.where(counted, rows[order].reshape(buckets, size, -1), 0), axis=1)
    return shaped(ratio(total, jnp.sum(counted, axis=1)), updates), counted[:, 0, 0]


@on_any_mesh
def nearest_neighbour_mixing(updates: PyTree, byzantine: Number, *, present: Mask = None) -> PyTree:
    """Each row becomes the mean of its n - f nearest rows, itself included; n >= 2f + 1, else f is (n - 1) // 2.

    Rows that do not count stay as they are. Source: Allouah et al., "Fixing by mixing" (AISTATS 2023).
    """
    rows, counted, count = read_rows(updates, present)
    near = count - jnp.minimum(_reckoned("mixing", byzantine, present, counted), jnp.maximum(count - 1, 0) // 2)
    apart = _squared_distances(jax.lax.stop_gradient(rows), counted)
    ranks = _ranks(jnp.where(jnp.eye(counted.size, dtype=bool), -1, apart))
    return where_rows(counted, shaped(_mean(rows, (ranks < near) & counted[None]), updates), updates)


def _row(tree: PyTree, updates: PyTree) -> Float[Array, " d"]:
    """Leaves ``[...]`` as a vector; zeros if one is not finite."""
    jax.tree.map(lambda row, leaf: check_shape("a leaf", row, "...", *jnp.shape(leaf)[1:]), tree, updates)
    return read_rows(jax.tree.map(lambda row: jnp.asarray(row)[None], tree), None)[0][0]


def _weights(weights: Weights, present: Array, rows: Array) -> Float[Array, " S"]:
    weights = jnp.ones(present.shape) if weights is None else jnp.asarray(weights)
    check_shape("weights", weights, "S", present.size)
    return jnp.where(present, weights.astype(rows.dtype), 0)


def _mean(rows: Array, weights: Array, total: Array | None = None) -> Array:
    """``weights @ rows / total``, None: the weights' own; zeros without weight. ``weights`` are ``[..., S]``."""
    weights = weights.astype(rows.dtype)
    return combine(ratio(weights, jnp.sum(weights, axis=-1, keepdims=True) if total is None else total), rows)


def _reckoned(rule: str, byzantine: Number, present: Mask, counted: Array) -> Int[Array, ""]:
    """f; an error if it is known that the rule needs more rows."""
    if present is None and known(byzantine) is not None:
        found, (times, more) = int(number_of(byzantine, counted.size)), NEEDED[rule]
        if counted.size < (least := times * found + more):
            raise ValueError(f"expected at least {least} updates ({times} f + {more}, f = {found}), got {counted.size}")
    return assumed_byzantine(byzantine, counted)


def _median(ordered: Array, count: Array) -> Array:
    low, high = (jnp.take(ordered, jnp.maximum(place, 0), axis=0) for place in ((count - 1) // 2, count // 2))
    return jnp.where(count > 0, low / 2 + high / 2, 0)


def _sum_between(ordered: Array, first: Array, end: Array) -> Array:
    place = jnp.arange(ordered.shape[0])[:, None]
    return jnp.sum(jnp.where((place >= first) & (place < end), ordered, 0), axis=0)


def _mean_near_median(ordered: Array, count: Array, near: Array) -> Array:
    """The mean of the ``near`` values nearest to the median; equally far ones share the places left."""
    place, middle = jnp.arange(ordered.shape[0])[:, None], _median(ordered, count)[None]
    apart = jnp.where(place < count, jnp.abs(ordered - middle), jnp.inf)
    # They are neighbours in the order: of all windows of as many values, the one that reaches least far.
    window = jnp.maximum(apart, jnp.roll(apart, 1 - near, axis=0))
    reach = jnp.min(jnp.where(place <= count - near, window, jnp.inf), axis=0, keepdims=True)
    slack = 8 * jnp.finfo(ordered.dtype).eps * (jnp.abs(middle) + reach)
    inside, tied = apart < reach - slack, jnp.abs(apart - reach) <= slack
    share = ratio((near - jnp.sum(inside, axis=0)).astype(ordered.dtype), jnp.sum(tied, axis=0))
    return jnp.sum(jnp.where(inside, ordered, jnp.where(tied, ordered * share[None], 0)), axis=0) / near


def _ranks(values: Array) -> Int[Array, "*rows S"]:
    """The place of each entry in the order of its row; of equal ones the first comes first."""
    return jnp.argsort(jnp.argsort(values, axis=-1), axis=-1)


def _squared_distances(rows: Array, present: Array) -> Float[Array, "S S"]:
    """``||x_i - x_j||^2`` by one product, at most the largest number; infinity on the diagonal and of absent rows."""
    # The product loses digits where rows are long: outliers cannot move the median far from the other rows.
    centre = of_sorted(_median, jnp.where(present[:, None], rows, jnp.inf), (jnp.sum(present),))
    rows = jnp.where(present[:, None], rows - centre[None], 0)
    products = jnp.matmul(rows, rows.T, precision="highest")
    found = jnp.diagonal(products)[:, None] + jnp.diagonal(products)[None] - (products + products.T)
    found = jnp.where(jnp.isfinite(found), jnp.maximum(found, 0), jnp.finfo(found.dtype).max)
    others = present[:, None] & present[None] & ~jnp.eye(present.size, dtype=bool)
    return jnp.where(others, found, jnp.inf)


def _picked(rows: Array, present: Array, byzantine: Array, picks: Array) -> Bool[Array, " S"]:
    """The rows that Krum picks one after the other."""
    distances = _squared_distances(rows, present)

    def pick(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        left, ranks = state
        near = left[None] & (ranks < jnp.maximum(jnp.sum(left) - byzantine - 2, 1)) & jnp.isfinite(distances)
        scores = jnp.minimum(jnp.sum(jnp.where(near, distances, 0), axis=1), jnp.finfo(distances.dtype).max)
        best = jnp.argmin(jnp.where(left, scores, jnp.inf))
        # Rows behind the picked one move up in the order of each row.
        return left & (jnp.arange(left.size) != best), ranks - (ranks > ranks[:, best][:, None])

    left, _ = jax.lax.fori_loop(0, picks, pick, (present, _ranks(distances)))
    return present & ~left
