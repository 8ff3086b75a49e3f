"""A robust rule in place of every sum of an algorithm: NumPy's rounds, what stays as it is, and refusals."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import REGISTRY, fedavg, fedem, ifca, scaffold
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol.sums import Streamed
from fljax.scenarios import availability, byzantine, median_clipped, robust
from fljax.training import Local
from tests.laws.cases import ALGORITHMS
from tests.scenarios.tools import LOCAL, TASK, run, sent
from tests.toys.statistics import watched_regression

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
EVERYBODY: dict[str, Any] = {"clients_per_round": None}
BAD = np.array([False, True, False, False, True])
ADDED = tuple(name for name, case in ALGORITHMS.items() if name in REGISTRY and name != "fedproto"
              and isinstance(case.build(TASK, Local(0.1, 4, steps=2), **case.example).aggregate, Streamed))  # fmt: skip


def uniform(**options: Any) -> Any:
    return fedavg(TASK, LOCAL, clients_per_round=None, weights="uniform", **options)


def flat(tree: Any, axes: int = 0) -> np.ndarray:
    """Leaves of ``[axes..., ...]`` as one vector each."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], axis=axes)


def servers(algorithm: Any, federation: Any, rounds: int = 1) -> tuple[Any, list[Any], list[Any]]:
    """The Server before round 0, those after each round, and the records."""
    states, records = run(algorithm, federation, rounds)
    return states[0].server, [state.server for state in states[1:]], records


def krum_row(rows: np.ndarray, f: int) -> int:
    apart = np.square(rows[:, None] - rows[None]).sum(-1)
    np.fill_diagonal(apart, np.inf)
    return int(np.argmin(np.sort(apart, axis=1)[:, : len(rows) - f - 2].sum(axis=1)))


def shortened(rows: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows * np.minimum(1, bound / np.where(norms > 0, norms, 1))


@pytest.mark.parametrize("name", ADDED)
def test_the_mean_is_the_algorithm(name: str, federation: Any) -> None:
    """Weights, clusters, second sums, personal models and the server's optimizer stay as they are."""
    case = ALGORITHMS[name]
    local = Local(0.1, 4, steps=2)
    plain, same = (
        run(wrap(case.build(TASK, local, **case.example)), federation, 2)
        for wrap in (lambda inner: inner, functools.partial(robust, rule="mean"))
    )
    for one, other in zip(*(jax.tree.leaves(states[-1]._replace(seed=())) for states, _ in (plain, same)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    assert plain[1][0].keys() == same[1][0].keys()


@pytest.mark.parametrize(("rule", "numpy"), [
    ("coordinate_median", lambda rows: np.median(rows, axis=0)),
    ("trimmed_mean", lambda rows: np.sort(rows, axis=0)[1:-1].mean(axis=0)),
    ("krum", lambda rows: rows[krum_row(rows, 1)]),
    ("clipped_mean", lambda rows: shortened(rows, 0.5).mean(axis=0)),
    (lambda updates, present: jax.tree.map(lambda leaf: leaf[3], updates), lambda rows: rows[3]),
])  # fmt: skip
def test_one_round_is_numpys(rule: Any, numpy: Any, federation: Any) -> None:
    """FedAvg moves by the rule; INCFL by its own step from the mean of as many clients."""
    _, up = sent(uniform(), federation)
    before, (after,), records = servers(robust(uniform(), rule=rule, bound=0.5), federation)
    np.testing.assert_allclose(flat(after.model), flat(before.model) + numpy(flat(up.update, 1)), rtol=1e-4, atol=1e-6)
    if rule in ("trimmed_mean", "krum"):
        assert records[0]["assumed_byzantine"] == 1


def test_second_sums_have_a_rule_of_their_own(federation: Any) -> None:
    """SCAFFOLD: the control variate moves by the number of clients over N times the rule."""
    inner = scaffold(TASK, LOCAL, clients_per_round=None)
    _, up = sent(inner, federation)
    before, (after,), _ = servers(robust(inner, rule="krum"), federation)
    for name, found in (("update", after.model), ("control", after.control)):
        rows = flat(getattr(up, name), 1)
        start = flat(before.model if name == "update" else before.control)
        np.testing.assert_allclose(flat(found), start + rows[krum_row(rows, 1)], rtol=1e-4, atol=1e-6)


def test_clusters_have_a_rule_each(federation: Any) -> None:
    inner = ifca(TASK, LOCAL, clusters=4, **EVERYBODY)
    _, up = sent(inner, federation)
    before, (after,), _ = servers(robust(inner, rule="coordinate_median"), federation)
    chosen, rows = np.asarray(up.cluster), flat(up.update, 1)
    assert len(set(chosen)) > 1
    for cluster in set(chosen):
        step = np.median(rows[chosen == cluster], axis=0)
        np.testing.assert_allclose(
            flat(after.models, 1)[cluster], flat(before.models, 1)[cluster] + step, rtol=1e-4, atol=1e-6
        )
    _, _, records = servers(robust(inner, byzantine=1), federation)
    most = np.maximum(np.bincount(chosen, minlength=4) - 1, 0) // 2
    np.testing.assert_array_equal(records[0]["assumed_byzantine"], np.minimum(most, 1))


def test_components_have_a_rule_each(federation: Any) -> None:
    inner = fedem(TASK, LOCAL, clusters=3, **EVERYBODY)
    _, up = sent(inner, federation)
    before, (after,), _ = servers(robust(inner, rule="krum"), federation)
    rows = flat(up.update, 2)  # [client, component, d]
    picked = np.stack([rows[krum_row(rows[:, c], 1), c] for c in range(3)])
    np.testing.assert_allclose(flat(after.models, 1), flat(before.models, 1) + picked, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_centre_is_the_last_rounds(iterations: int, federation: Any) -> None:
    """In turn for one iteration, and stacked for more."""
    algorithm, bound = robust(uniform(), rule="centred_clipping", bound=0.3, iterations=iterations), 0.3
    states, _ = run(algorithm, federation, 2)
    centre = np.zeros(15)
    for before, after in itertools.pairwise(states):
        _, up = _sent_by(uniform(), federation, before)
        rows = flat(up.update, 1)
        for _ in range(iterations):
            centre = centre + shortened(rows - centre, bound).mean(axis=0)
        step = flat(after.server.inner.model) - flat(before.server.inner.model)
        np.testing.assert_allclose(step, centre, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(flat(after.server.centre), centre, rtol=1e-3, atol=1e-5)


def _sent_by(algorithm: Any, federation: Any, state: Any) -> Any:
    """What clients send to a FedAvg server in a later round."""
    from fljax.engine.rounds.states import Purpose, client_key, local_data, round_key
    from fljax.protocol import Seat

    data = by_id(federation)
    key = round_key(state.seed, Purpose.TRAIN, state.round)

    def one(client: Any) -> Any:
        seat = Seat(state.round, client.id, jnp.int32(0))
        return algorithm.train(client_key(key, client.id), seat, state.server.inner.model, (), local_data(data, client))

    return state, jax.vmap(one)(data.clients)[0]


def test_the_server_trains_as_a_client_would(federation: Any) -> None:
    """FLTrust by hand, with full batches so that no key counts; the server's own rows are one client's."""
    data = by_id(federation)
    root = jax.tree.map(lambda leaf: leaf[2], data.clients.train)
    held = federation._replace(held={**federation.held, "root": root})
    inner = fedavg(TASK, Local(0.5, 9, steps=3, shuffle=False), clients_per_round=None)
    _, up = sent(inner, held)
    rows = flat(up.update, 1)
    own = rows[2]
    trust = np.maximum(rows @ own / np.linalg.norm(rows, axis=1) / np.linalg.norm(own), 0)
    step = (trust * np.linalg.norm(own) / np.linalg.norm(rows, axis=1)) @ rows / trust.sum()
    before, (after,), _ = servers(robust(inner, rule="fltrust", rows="root"), held)
    np.testing.assert_allclose(flat(after.model) - flat(before.model), step, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [
    {"rule": "multi_krum"},
    {"rule": "bulyan", "byzantine": 0},
    {"rule": "geometric_median", "before": "bucketing"},
    {"rule": "trimmed_mean", "before": "mixing"},
    {"rule": "mean", "before": "bucketing", "bucket_size": 5},
])  # fmt: skip
def test_it_does_not_matter_where_an_attack_at_the_client_stands(options: Any, federation: Any) -> None:
    """And absent clients and their NaN count for nothing."""
    attack: dict[str, Any] = {"who": jnp.asarray(BAD), "noise": 50.0}
    trace = np.array([[1, 1, 1, 1, 0]])
    inside, outside = (
        servers(availability(each, trace=trace), federation, 2)[1][-1]
        for each in (
            robust(byzantine(uniform(), **attack), **options),
            byzantine(robust(uniform(), **options), **attack),
        )
    )
    for one, other in zip(jax.tree.leaves(inside), jax.tree.leaves(outside), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rule", ["mean", "krum", "centred_clipping"])
def test_statistics_take_the_coordinate_median(rule: str, federation: Any) -> None:
    task = watched_regression()
    inner = fedavg(task, LOCAL, clients_per_round=None)
    _, up = sent(inner, federation)
    _before, (after,), _ = servers(robust(inner, rule=rule), federation)
    after = getattr(after, "inner", after).model
    middle = np.median(np.asarray(up.update.mean), axis=0)
    np.testing.assert_allclose(after.mean, middle, rtol=1e-5, atol=1e-6)


def test_f_is_lowered_where_few_come(federation: Any) -> None:
    trace = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    _, after, records = servers(availability(robust(uniform(), byzantine=2), trace=trace), federation, 4)
    assert [int(record["assumed_byzantine"]) for record in records] == [2, 0, 0, 0]
    np.testing.assert_array_equal(flat(after[-1]), flat(after[-2]))


@pytest.mark.parametrize(("build", "options", "words"), [
    (lambda: ALGORITHMS["cgsv"].build(TASK, LOCAL, **ALGORITHMS["cgsv"].example), {}, "adds up updates"),
    (lambda: median_clipped(uniform()), {}, "in median_clipped"),
    (uniform, {"rule": "krum", "byzantine": 2}, "at least 7 clients in a round for robust with byzantine = 2, got 5"),
    (uniform, {"rule": "bulyan", "byzantine": 0.3}, "a smaller byzantine"),
    (uniform, {"byzantine": 1, "before": "bucketing"}, None),
    (uniform, {"byzantine": 2, "before": "bucketing"}, "at least 9 clients"),
    (uniform, {"byzantine": 0.7}, "a smaller byzantine"),
    (uniform, {"rule": "fltrust", "rows": "root"}, "one of .'test', 'validation'., for fltrust, got 'root'|got 'root'"),
    (lambda: ifca(TASK, LOCAL, **EVERYBODY), {"rule": "centred_clipping"}, "got 2 clusters"),
    (lambda: fedem(TASK, LOCAL, **EVERYBODY), {"rule": "centred_clipping"}, "of one model for centred_clipping"),
    (lambda: ALGORITHMS["fedproto"].build(TASK, LOCAL), {}, "FedProtoUp"),
    (uniform, {"rule": lambda updates, present: updates}, "to return one update"),
    (uniform, {"rule": lambda updates: updates}, "to take"),
])  # fmt: skip
def test_refusals(build: Any, options: Any, words: str | None, federation: Any) -> None:
    if words is None:
        servers(robust(build(), **options), federation)
        return
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(lambda: servers_of(robust(build(), **options), federation))


def servers_of(algorithm: Any, federation: Any) -> Any:
    from fljax.engine.devices.layout import Layout
    from fljax.engine.rounds.round import one_round

    data = by_id(federation)
    return one_round(algorithm, data, Layout(5, 1, 5), initial_state(algorithm, data, jnp.uint32(0)))[0]
