"""Cohorts that are spread: over a mesh of automatic or explicit axes, and over a mapped axis by ``axis_name``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fljax import aggregators as ag

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]

S, N, C = 4, 4, 2
CLIENTS = PartitionSpec("clients")


@pytest.fixture(scope="module")
def data():
    """Row 2 is absent and holds NaN; the others train clients 3, 1 and 0."""
    rng = np.random.default_rng(0)
    there = np.array([True, True, False, True])
    number = lambda *shape: jnp.asarray(rng.uniform(0.1, 1, shape), jnp.float32)  # noqa: E731
    rows = lambda x: jnp.where(there.reshape((-1,) + (1,) * (x.ndim - 1)), x, jnp.nan)  # noqa: E731
    return {
        "updates": {"w": rows(number(S, 3, 2)), "b": rows(number(S).astype(jnp.bfloat16))},
        "gap": rows(number(S) - 0.5),
        "weights": jnp.where(there, number(S), 0),
        "matrix": jnp.where(there[:, None], number(S, 3), 0),  # transposed, so that rows are clients everywhere
        "present": jnp.asarray(there),
        "ids": jnp.asarray([3, 1, 2, 0]),
        "membership": jnp.asarray(there[:, None] & np.array([[1, 0], [1, 1], [1, 1], [0, 1]], bool)),
        "by_client": number(N),
        "by_both": number(N, C),
        "counts": jnp.asarray(rng.integers(0, 3, (N, C))),
        "tokens": jnp.asarray([5, 6, 7, 8]),
    }


def models():
    return {"w": jnp.ones((C, 3, 2)), "b": jnp.ones(C, jnp.bfloat16)}


def of_rows(x, axis_name=None) -> Any:
    """Every aggregator of a cohort's rows; ``"mine"``: those whose results are rows or columns of it."""
    key = jax.random.key(1)
    split: Any = {"axis_name": axis_name}
    there, some = {"present": x["present"]}, {"present": x["present"], "ids": x["ids"]}
    unit = jax.tree.map(lambda leaf: jnp.where(jnp.isnan(leaf), 0, leaf), ag.cgsv_normalised(x["updates"], length=0.5))
    rates = ag.iafl_rates(jnp.asarray([0.9, 0.2, 0.6, 0.4]))
    reputation = jnp.full(N, 0.25)
    total = ag.weighted_sum(x["updates"], x["weights"], **split)
    alphas = ag.member_weights(x["membership"], x["weights"], **split)
    shapley = functools.partial(ag.shapley_first_order, models(), x["updates"], alphas, **split)
    whole = {
        "mix": ag.mix(x["matrix"].T, x["updates"], **split),
        "weighted_sum": total,
        "weighted_mean": ag.weighted_mean(x["updates"], x["weights"], **split),
        "incfl": ag.incfl_update(x["updates"], x["gap"], **there, **split),
        "incfl_mean": ag.incfl_update(x["updates"], x["gap"], normalise="mean", eps=0.5, **there, **split),
        "cluster_means": ag.cluster_means(x["updates"], x["membership"], x["weights"], **split),
        "qffl": ag.qffl_update(x["updates"], x["gap"] + 1, q=2.0, learning_rate=0.1, **there, **split),
        "reputation": ag.cgsv_reputation(reputation, x["updates"], total, **some, **split),
        "reputation_in_order": ag.cgsv_reputation(reputation, unit, total, **split),
        "iafl": ag.iafl_rewards(key, x["updates"], rates, **some, **split),
        "iafl_in_order": ag.iafl_rewards(key, unit, rates, **split),
        "iafl_nobody": ag.iafl_rewards(key, x["updates"], rates, present=jnp.zeros_like(x["present"]), **split),
    }
    mine = {
        "unit": unit,
        "clipped": ag.clip_to_median(x["updates"], times=0.7, **there, **split),
        "q": ag.incfl_weights(x["gap"], surrogate="softplus"),
        "alphas": alphas.T,
        "shapley": shapley().T,
        "shapley_of_models": shapley(normalised=False, models=models()).T,
        "subsets": ag.iafl_subsets(key, rates, **some, **split).T,
        "subsets_in_order": ag.iafl_subsets(key, rates, **split).T,
        "reference": ag.iafl_reference(key, rates, **some, **split).T,
    }
    return {"whole": whole, "mine": mine}


def of_clients(x):
    """Every aggregator of arrays by client, which have no ``axis_name``."""
    key, by_client, by_both = jax.random.key(1), x["by_client"], x["by_both"]
    full = jax.tree.map(lambda leaf: jnp.where(jnp.isnan(leaf), 0, leaf), x["updates"])
    total = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.asarray(1.0, jnp.bfloat16)}
    chosen = ag.schedule(key, x["membership"], by_both, x["counts"], jnp.full(C, 0.5), slots=2)
    return {
        "importance": ag.importance_weights(by_both),
        "projection": ag.simplex_projection(by_client),
        "mw": ag.mw_weights(by_client, x["present"]),
        "shares": ag.cgsv_shares(by_client),
        "cgsv": ag.cgsv_rewards(total, by_client),
        "attack": ag.min_max(x["updates"], x["present"]),
        "rates": ag.iafl_rates(by_client),
        "rank": ag.rank_rewards(full, by_client, present=x["present"]),
        "bids": ag.bid_preferences(by_both, x["tokens"], key=key),
        "affordable": ag.affordable(by_both, by_both > 0.2, x["tokens"], price=4),
        "exploration": ag.exploration_share(x["counts"]),
        "utility": ag.cluster_utility(by_client, by_client),
        "schedule": chosen,
        "slot_rows": ag.slot_rows(chosen),
        "recorded": ag.record_slots(by_both, chosen, jnp.arange(2.0 * C * C).reshape(C, 2 * C)),
        "member_accuracy": ag.member_accuracy(by_both, x["counts"] >= 0),
        "settled": ag.settle_tokens(
            x["tokens"],
            jnp.asarray([3, 9]),
            jnp.full(C, 0.4),
            x["membership"],
            by_both,
            x["counts"],
            jnp.full(C, 0.5),
            key=key,
        ),
    }


def robust(x):
    """Every robust rule, which has no ``axis_name``, either."""
    row, of = {"w": jnp.ones((3, 2)), "b": jnp.ones(())}, functools.partial
    counted = (ag.trimmed_mean, ag.krum_scores, ag.multi_krum, ag.bulyan, ag.nearest_neighbour_mixing)
    calls = [ag.coordinate_median, *(of(rule, byzantine=1) for rule in counted), of(ag.clipped_mean, bound=0.9)]
    calls += [of(ag.geometric_median, weights=x["weights"]), of(ag.centred_clipping, bound=0.9, centre=row)]
    calls += [of(ag.fltrust_weights, reference=row), of(ag.bucketing, jax.random.key(0), size=2, id=x["ids"])]
    return [call(updates=x["updates"], present=x["present"]) for call in calls]


def everything(x):
    return {"rows": of_rows(x), "clients": of_clients(x), "robust": robust(x)}


@pytest.fixture(scope="module")
def expected(data):
    return jax.jit(everything)(data)


def same(found, expected):
    for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        tolerance = 1e-2 if "'b'" in jax.tree_util.keystr(path) else 1e-5
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path))


def on_mesh(kind, spec, data):
    mesh = jax.make_mesh((2,), ("clients",), axis_types=(kind,))
    return mesh, jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), data)


@pytest.mark.parametrize("spec", [CLIENTS, PartitionSpec()], ids=["sharded", "replicated"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_every_aggregator_on_a_mesh(kind, spec, data, expected):
    _, placed = on_mesh(kind, spec, data)
    same(jax.jit(everything)(placed), expected)


def test_calls_outside_of_jit_and_gradients(data, expected):
    mesh, placed = on_mesh(AxisType.Explicit, CLIENTS, data)
    results: Any = expected["rows"]["whole"]
    same(ag.weighted_mean(placed["updates"], placed["weights"]), results["weighted_mean"])
    same(ag.incfl_update(placed["updates"], placed["gap"], present=placed["present"]), results["incfl"])
    # What is sharded beside the clients stays sharded, and so are the rows of the matrix.
    wide = jax.device_put(jnp.ones((2, 6)), NamedSharding(mesh, PartitionSpec(None, "clients")))
    mixed = ag.mix(jnp.ones((3, 2)), {"w": wide})["w"]
    np.testing.assert_array_equal(mixed, np.full((3, 6), 2))
    assert not mixed.sharding.is_fully_replicated
    rows = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, CLIENTS))
    mixed = ag.mix(rows, {"w": rows.T})["w"]
    np.testing.assert_array_equal(mixed, np.full((4, 4), 2))
    assert mixed.sharding.spec[0] == "clients"


def by_lane(x):
    return jax.tree.map(lambda leaf: leaf.reshape(2, leaf.shape[0] // 2, *leaf.shape[1:]), x)


def test_split_over_a_mapped_axis(data, expected):
    """Every lane holds half of the rows, and gets what one call with all of them gives."""
    found = jax.jit(jax.vmap(functools.partial(of_rows, axis_name="lanes"), axis_name="lanes"))(by_lane(data))
    for lane in range(2):
        same(jax.tree.map(lambda leaf, lane=lane: leaf[lane], found["whole"]), expected["rows"]["whole"])
    same(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found["mine"]), expected["rows"]["mine"])


def test_split_over_devices(data, expected):
    mesh = jax.make_mesh((2,), ("clients",), axis_types=(AxisType.Auto,))
    split = jax.shard_map(
        functools.partial(of_rows, axis_name="clients"),
        mesh=mesh,
        in_specs=CLIENTS,
        out_specs={"whole": PartitionSpec(), "mine": CLIENTS},
    )
    same(jax.jit(split)(data), expected["rows"])


def test_gradients_through_a_split(data):
    """The largest power of q-FFL, a maximum over devices, is a constant of differentiation."""
    loss = jnp.where(data["present"], data["gap"] + 1, 1)
    updates, present = jnp.nan_to_num(data["updates"]["w"]), data["present"]

    def step(loss, updates, present, axis_name=None):
        moved = ag.qffl_update(updates, loss, q=2.0, learning_rate=0.1, present=present, axis_name=axis_name)
        return jnp.sum(moved + ag.incfl_update(updates, loss, present=present, axis_name=axis_name))

    def on_lanes(loss):
        lanes = jax.vmap(functools.partial(step, axis_name="lanes"), axis_name="lanes")
        return lanes(loss.reshape(2, 2), by_lane(updates), present.reshape(2, 2))[0]

    np.testing.assert_allclose(jax.jit(jax.grad(on_lanes))(loss), jax.grad(step)(loss, updates, present), rtol=1e-4)
