"""A robust rule in place of every sum of an algorithm: NumPy's rounds, what stays as it is, and refusals."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, fedem, fednova, ifca, scaffold
from fljax.engine.rounds.states import by_id
from fljax.scenarios import availability, byzantine, drift, median_clipped, robust
from fljax.training import Local
from tests.laws.cases import ALGORITHMS, REFUSED
from tests.oracles import numpy_robust as oracle
from tests.scenarios.test_median_clipped import BAD
from tests.scenarios.tools import LOCAL, TASK, everybody, flat, run, sent, uniform
from tests.toys.statistics import watched_regression

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
FULL = Local(0.5, 9, steps=3, shuffle=False)  # full batches, so no key counts


def servers(algorithm: Any, federation: Any, rounds: int = 1) -> tuple[Any, list[Any], list[Any]]:
    """The Server before round 0, those after each round, and the records."""
    states, records = run(algorithm, federation, rounds)
    return states[0].server, [state.server for state in states[1:]], records


# Of FedNova's numbers of steps the median is taken.
@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if f"robust({name})" not in REFUSED | {"robust(fednova)"}]
)
def test_the_mean_is_the_algorithm(name: str, federation: Any) -> None:
    """Weights, clusters, second sums, personal models and the server's optimizer stay as they are."""
    case = ALGORITHMS[name]
    inner = case.build(TASK, Local(0.1, 4, steps=2), **case.example)
    plain, same = (run(each, federation, 2) for each in (inner, robust(inner, rule="mean")))
    for one, other in zip(*(jax.tree.leaves(states[-1]._replace(seed=())) for states, _ in (plain, same)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    assert plain[1][0].keys() == same[1][0].keys()


def sums(up: Any, server: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each sum and each model: what its clients send, and what moves by the rule at the server."""
    if hasattr(up, "cluster"):
        return [(flat(up.update, 1)[up.cluster == c], flat(server.models, 1)[c]) for c in np.unique(up.cluster)]
    if hasattr(server, "models"):  # rows are [client, component, d]
        return list(zip(flat(up.update, 2).swapaxes(0, 1), flat(server.models, 1), strict=True))
    first = (flat(up.update, 1), flat(server.model))
    return [first, (flat(up.control, 1), flat(server.control))] if hasattr(up, "control") else [first]


@pytest.mark.parametrize(("inner", "rule", "numpy"), [
    (uniform(), "coordinate_median", functools.partial(np.median, axis=0)),
    (uniform(), "trimmed_mean", functools.partial(oracle.trimmed_mean, f=1)),
    (uniform(), "krum", functools.partial(oracle.multi_krum, f=1, keep=1)),
    (uniform(), "clipped_mean", lambda rows: oracle.clipped(rows, 0.5).mean(axis=0)),
    (uniform(), lambda updates, present: jax.tree.map(lambda leaf: leaf[3], updates), lambda rows: rows[3]),
    (everybody(scaffold), "krum", functools.partial(oracle.multi_krum, f=1, keep=1)),
    (everybody(fedem, clusters=3), "krum", functools.partial(oracle.multi_krum, f=1, keep=1)),
    (everybody(ifca, clusters=4), "coordinate_median", functools.partial(np.median, axis=0)),
    (everybody(ifca, clusters=4), "trimmed_mean", functools.partial(oracle.trimmed_mean, f=1)),
])  # fmt: skip
def test_one_round_is_numpys(inner: Any, rule: Any, numpy: Any, federation: Any) -> None:
    """A vector moves by the rule: the model, SCAFFOLD's control variate, each component and cluster, with its own f."""
    _, up = sent(inner, federation)
    before, (after,), records = servers(robust(inner, rule=rule, byzantine=1, bound=0.5), federation)
    for (rows, start), (_, found) in zip(sums(up, before), sums(up, after), strict=True):
        np.testing.assert_allclose(found, start + numpy(rows), rtol=1e-4, atol=1e-6)
    sizes = np.bincount(up.cluster, minlength=4) if hasattr(up, "cluster") else np.array(5)
    assert sizes.max() < 5 or not sizes.ndim
    if rule in ("trimmed_mean", "krum"):
        np.testing.assert_array_equal(records[0]["assumed_byzantine"], np.clip((sizes - 1) // 2, 0, 1))


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_centre_is_the_last_rounds(iterations: int, federation: Any) -> None:
    """In turn for one iteration, and stacked for more."""
    inner, bound = fedavg(TASK, FULL, weights="uniform", clients_per_round=None), 0.3
    states, _ = run(robust(inner, rule="centred_clipping", bound=bound, iterations=iterations), federation, 2)
    centre = np.zeros(15)
    for before, after in itertools.pairwise(state.server for state in states):
        _, up = sent(inner._replace(init_server=lambda *_, server=before.inner: server), federation)
        for _ in range(iterations):
            centre = centre + oracle.clipped(flat(up.update, 1) - centre, bound).mean(axis=0)
        for found in (flat(after.inner.model) - flat(before.inner.model), flat(after.centre)):
            np.testing.assert_allclose(found, centre, rtol=1e-3, atol=1e-5)


def test_the_server_trains_as_a_client_would(federation: Any) -> None:
    """The server's own rows are one client's."""
    root = jax.tree.map(lambda leaf: leaf[2], by_id(federation).clients.train)
    held = federation._replace(held={**federation.held, "root": root})
    inner = fedavg(TASK, FULL, clients_per_round=None)
    rows = flat(sent(inner, held)[1].update, 1)
    before, (after,), _ = servers(robust(inner, rule="fltrust", rows="root"), held)
    step = flat(after.model) - flat(before.model)
    np.testing.assert_allclose(step, oracle.fltrust(rows, rows[2]), rtol=1e-4, atol=1e-6)


def test_the_servers_rows_do_not_drift(federation: Any) -> None:
    _, (_, after), _ = servers(robust(drift(uniform(), at=1), rule="fltrust"), federation, 2)
    assert np.isfinite(flat(after.model)).all()


def test_a_bound_is_for_updates_alone(federation: Any) -> None:
    """Not for FedNova's part of the work, below 1, by which it multiplies the mean."""
    inner = fednova(TASK, LOCAL._replace(steps=None, epochs=2), weights="uniform", clients_per_round=None)
    _, up = sent(inner, federation)
    before, (after,), _ = servers(robust(inner, rule="clipped_mean", bound=0.1), federation)
    step = np.median(up.work) * oracle.clipped(flat(up.update, 1), 0.1).mean(axis=0)
    np.testing.assert_allclose(flat(after.model) - flat(before.model), step, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("defence", [
    median_clipped,
    functools.partial(robust, rule="multi_krum"),
    functools.partial(robust, rule="bulyan", byzantine=0),
    functools.partial(robust, rule="geometric_median", before="mixing"),
    functools.partial(robust, rule="trimmed_mean", before="bucketing", byzantine=1),
    functools.partial(robust, rule="mean", before="bucketing", bucket_size=5),
])  # fmt: skip
def test_it_does_not_matter_where_an_attack_at_the_client_stands(defence: Any, federation: Any) -> None:
    """And absent clients and their NaN count for nothing."""
    attack: dict[str, Any] = {"who": jnp.asarray(BAD), "noise": 50.0}
    trace = np.array([[1, 1, 1, 1, 0]])
    pair = defence(byzantine(uniform(), **attack)), byzantine(defence(uniform()), **attack)
    inside, outside = (servers(availability(each, trace=trace), federation, 2)[1][-1] for each in pair)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(inside), jax.tree.leaves(outside))


@pytest.mark.parametrize("rule", ["mean", "krum", "centred_clipping"])
def test_statistics_take_the_coordinate_median(rule: Any, federation: Any) -> None:
    inner = fedavg(watched_regression(), LOCAL, clients_per_round=None)
    middle = np.median(sent(inner, federation)[1].update.mean, axis=0)
    _, (after,), _ = servers(robust(inner, rule=rule), federation)
    np.testing.assert_allclose(getattr(after, "inner", after).model.mean, middle, rtol=1e-5, atol=1e-6)


def test_f_is_lowered_where_few_come(federation: Any) -> None:
    trace = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    _, after, records = servers(availability(robust(uniform(), byzantine=2), trace=trace), federation, 4)
    assert [int(record["assumed_byzantine"]) for record in records] == [2, 0, 0, 0]
    np.testing.assert_array_equal(flat(after[-1]), flat(after[-2]))


@pytest.mark.parametrize(("build", "options", "words"), [
    (lambda: ALGORITHMS["cgsv"].build(TASK, LOCAL, **ALGORITHMS["cgsv"].example), {}, "adds up updates"),
    (lambda: median_clipped(uniform()), {}, "in median_clipped"),
    (uniform, {"rule": "krum", "byzantine": 2}, "at least 7 clients in a round for robust with byzantine = 2, got 5"),
    (uniform, {"rule": "bulyan"}, "at least 7 clients"),
    (uniform, {"byzantine": 2, "before": "bucketing"}, "at least 9 clients"),
    (uniform, {"rule": "fltrust", "rows": "root"}, "got 'root'; it has test, validation"),
    (lambda: everybody(ifca), {"rule": "centred_clipping"}, "of one model"),
    (lambda: everybody(fedem), {"rule": "centred_clipping"}, "of one model"),
    (lambda: everybody(ifca), {"rule": "fltrust"}, "of one model for fltrust"),
    (lambda: ALGORITHMS["fedproto"].build(TASK, LOCAL), {}, "adds up something else of FedProtoUp"),
    (lambda: robust(uniform()), {}, "in robust that adds up something else of Sent"),
    (uniform, {"rule": lambda updates, present: updates}, "to return one update"),
    (uniform, {"rule": lambda updates: updates}, "to take"),
])  # fmt: skip
def test_refusals(build: Any, options: Any, words: str, federation: Any) -> None:
    with pytest.raises(ValueError, match=words):
        servers(robust(build(), **options), federation)
