"""IP-FL's Gaussian example: closed forms against simulation, who gains, and regrouping by the nearest centroid."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fljax import theory
from tests.drawn import at_most
from tests.refusals import refuses

RUNS = 200_000  # the relative standard error of a mean of squares of normal numbers is sqrt(2 / RUNS), 0.3 %
SETTING = {"within_variance": 0.7, "difference": 1.5, "noise_variance": 12.0}
RAGGED = [3, 20, 7, 11, 5, 40, 9]
GROUPS = [0, 1, 0, 0, 1, 1, 0]
variances = st.floats(0, 50, allow_subnormal=False)


def plainly(sizes, membership, m, v, b, s2):
    """The equations, term by term, for client m."""
    total = sum(sizes)
    a = [size / total for size in sizes]
    others = [j for j in range(len(sizes)) if j != m]
    elsewhere = sum(a[j] for j in others if membership[j] != membership[m])
    federated = (1 - a[m]) ** 2 * v + v * sum(a[j] ** 2 for j in others) + elsewhere**2 * b**2 + s2 / total
    own = [j for j in range(len(sizes)) if membership[j] == membership[m]]
    size = sum(sizes[j] for j in own)
    a = {j: sizes[j] / size for j in own}
    cluster = (1 - a[m]) ** 2 * v + v * sum(a[j] ** 2 for j in own if j != m) + s2 / size
    return s2 / sizes[m], federated, cluster


def test_the_equations_term_by_term():
    found = theory.mixture_errors(RAGGED, GROUPS, **SETTING)
    for m in range(len(RAGGED)):
        np.testing.assert_allclose(
            [each[m] for each in found], plainly(RAGGED, GROUPS, m, *SETTING.values()), rtol=1e-12
        )


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 50), variances, st.floats(-5, 5), variances)
def test_equal_sizes(own, other, samples, v, b, s2):
    spread = {"within_variance": v, "difference": b, "noise_variance": s2}
    whole = theory.mixture_errors([samples] * (own + other), [0] * own + [1] * other, **spread)
    closed = theory.equal_mixture_errors(own, other, samples, **spread)
    np.testing.assert_allclose([each[0] for each in whole], closed, rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("client", [0, 1, 5])
@pytest.mark.parametrize("sizes", [RAGGED, [8] * 7], ids=["ragged", "equal"])
def test_simulation(sizes, client):
    found = theory.simulate_mixture(jax.random.key(3), sizes, GROUPS, client=client, runs=RUNS, **SETTING)
    expected = theory.mixture_errors(sizes, GROUPS, **SETTING)
    for simulated, exact in zip(found, expected, strict=True):
        assert (simulated.shape, simulated.mean()) == ((RUNS,), pytest.approx(exact[client], rel=0.02))
    if sizes != RAGGED:
        own = GROUPS.count(GROUPS[client])
        closed = theory.equal_mixture_errors(own, len(GROUPS) - own, 8, **SETTING)
        np.testing.assert_allclose([each.mean() for each in found], closed, rtol=0.02)
        gain = theory.cluster_gain(own, 8, within_variance=0.7, noise_variance=12.0)
        assert found.local.mean() - found.cluster.mean() == pytest.approx(gain, rel=0.05)


@pytest.mark.in_turn
def test_other_clients_are_correlated_given_ones_own_mean():
    """With independent ``theta_j`` the spread within the cluster would count 2 v sum_{j != m} a_j^2, far less here."""
    spread = {"within_variance": 1.0, "difference": 0.0, "noise_variance": 1e-6}
    found = theory.simulate_mixture(jax.random.key(0), [5] * 7, [0] * 7, client=4, runs=RUNS, **spread)
    assert found.cluster.mean() == pytest.approx(6 / 7, rel=0.02)  # independent: 12 / 49


@pytest.mark.thorough
def test_runs_depend_on_the_key_alone():
    def errors(seed):
        found = theory.simulate_mixture(jax.random.key(seed), RAGGED, GROUPS, client=2, runs=50, **SETTING)
        return np.stack(found)

    np.testing.assert_array_equal(errors(1), errors(1))
    assert np.all(errors(1) != errors(2))


@given(st.integers(2, 50), st.integers(1, 100), variances, variances)
def test_the_cluster_beats_oneself_iff_clients_differ_less_than_their_averages_err(own, samples, v, s2):
    assume(abs(s2 / samples - v) > 1e-6)
    errors = theory.equal_mixture_errors(own, 3, samples, within_variance=v, difference=1.0, noise_variance=s2)
    gain = theory.cluster_gain(own, samples, within_variance=v, noise_variance=s2)
    assert errors.local - errors.cluster == pytest.approx(gain, rel=1e-6, abs=1e-9)
    assert (errors.cluster < errors.local) == (v < s2 / samples) == (gain > 0)


def test_what_the_gain_grows_with():
    clients, noise, within = np.arange(1, 30), np.linspace(3.0, 20, 20), np.linspace(0, 0.9, 20)
    assert theory.cluster_gain(1, 10, within_variance=0.1, noise_variance=3.0) == 0
    assert np.all(np.diff(theory.cluster_gain(clients, 10, within_variance=0.1, noise_variance=3.0)) > 0)
    assert np.all(np.diff(theory.cluster_gain(5, 10, within_variance=0.1, noise_variance=noise)) > 0)
    assert np.all(np.diff(theory.cluster_gain(5, 10, within_variance=within, noise_variance=3.0)) < 0)
    # Where clients differ more than that, more of them make it worse.
    assert np.all(np.diff(theory.cluster_gain(clients, 10, within_variance=0.5, noise_variance=3.0)) < 0)


def test_more_samples_do_not_help_the_federated_estimate():
    samples = np.array([1, 10, 100, 1e4, 1e8])
    far = theory.equal_mixture_errors(6, 4, samples, within_variance=0.0, difference=3.0, noise_variance=2.0)
    assert np.all(far.federated > (0.4 * 3) ** 2)
    assert far.federated[-1] == pytest.approx(1.44)
    assert far.cluster[-1] < 1e-8
    one = theory.equal_mixture_errors(6, 4, samples, within_variance=0.0, difference=0.0, noise_variance=2.0)
    assert one.federated[-1] < 1e-8


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 100), variances, st.floats(-5, 5), variances)
@at_most(300)
def test_when_the_cluster_beats_the_federation(own, other, samples, v, b, s2):
    everybody = own + other
    apart = (other / everybody * b) ** 2
    worth = (1 / own - 1 / everybody) * (s2 / samples - v)
    assume(abs(apart - worth) > 1e-9)  # no ties
    errors = theory.equal_mixture_errors(own, other, samples, within_variance=v, difference=b, noise_variance=s2)
    assert (errors.cluster < errors.federated) == (apart > worth)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": [0, 1, 2]}, r"expected a list of sizes above 0, one for each client, got \[0, 1, 2\]"),
        ({"membership": [0, 1]}, "expected a cluster, 0 or 1, for each of 3 clients"),
        ({"membership": [0, 1, 2]}, "expected a cluster, 0 or 1, for each of 3 clients"),
        ({"noise_variance": -1.0}, "expected variances of at least 0, got 0.7 within clusters and -1.0 of a sample"),
        ({"client": 3}, "expected a client from 0 to 2, got 3"),
    ],
)
def test_wrong_arguments(change, words):
    given = {"sizes": [3, 4, 5], "membership": [0, 1, 0], **SETTING, "client": 0, "runs": 2} | change
    refuses(lambda: theory.simulate_mixture(jax.random.key(0), **given), words)


def test_reassignment_by_hand():
    found = theory.reassign([0.0, 1.0, 10.0, 11.0], [0, 1, 0, 1], clusters=2)
    # Centroids 5 and 6: the ones below 5.5 go to the first.
    np.testing.assert_array_equal(found.membership, [0, 0, 1, 1])
    np.testing.assert_array_equal(found.centroids, [[0.5], [10.5]])
    np.testing.assert_array_equal(found.errors, [100, 1])


def test_a_client_between_two_centroids_stays():
    found = theory.reassign([0.0, 2.0, 1.0, 3.0, -1.0], [0, 1, 1, 1, 0], clusters=2)
    np.testing.assert_array_equal(found.membership, [0, 1, 1, 1, 0])
    assert len(found.errors) == 1


def test_empty_clusters():
    never = theory.reassign([0.0, 1.0, 5.0], [0, 0, 2], clusters=3)
    np.testing.assert_array_equal(never.centroids, [[0.5], [np.nan], [5]])
    left = theory.reassign([0.0, 10.0, 1.0, 11.0, 5.6], [0, 0, 1, 1, 2], clusters=3)
    assert set(left.membership) <= {0, 1, 2}
    assert np.all(np.isfinite(left.centroids))
    with pytest.raises(ValueError, match=r"from 0 to 1, got points of shape \(2, 1\) and \[0, 2\]"):
        theory.reassign([0.0, 1.0], [0, 2], clusters=2)


@given(st.data())
@at_most(150)
def test_the_error_falls_until_nobody_moves(data):
    clients, clusters = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    coordinates = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, allow_subnormal=False))
    points = np.array(data.draw(st.lists(st.tuples(coordinates, coordinates), min_size=clients, max_size=clients)))
    start = data.draw(st.lists(st.integers(0, clusters - 1), min_size=clients, max_size=clients))
    found = theory.reassign(points, start, clusters=clusters)
    assert np.all(np.diff(found.errors) < 0)
    # Another pass changes nothing, and everybody is where it is nearest, up to rounding.
    again = theory.reassign(points, found.membership, clusters=clusters)
    np.testing.assert_array_equal(again.membership, found.membership)
    distance = np.square(points[:, None] - found.centroids).sum(-1)
    mine = distance[np.arange(clients), found.membership]
    assert np.all(mine <= np.nanmin(distance, axis=-1) + 1e-9 * (1 + np.square(points).sum()))
    assert found.errors[-1] == pytest.approx(mine.sum(), rel=1e-9, abs=1e-9)


def test_errors_of_coalitions():
    """Donahue and Kleinberg's uniform federation of 5, 5 and 25 samples."""
    members = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]], bool)
    errors = theory.coalition_errors([5, 5, 25], members, within_variance=1.0, noise_variance=10.0)
    np.testing.assert_allclose(np.diagonal(errors[:3]), [2, 2, 0.4])
    np.testing.assert_allclose(errors[3, :2], 1.5)
    np.testing.assert_allclose(errors[4, [0, 2]], [1.722222, 0.388889], atol=5e-7)
    np.testing.assert_allclose(errors[5], [1.551020, 1.551020, 0.408163], atol=5e-7)
    np.testing.assert_array_equal(np.isnan(errors), ~members)


def test_the_coalition_of_all_is_one_cluster():
    spread = {"within_variance": 0.7, "noise_variance": 12.0}
    whole = theory.mixture_errors(RAGGED, [0] * len(RAGGED), difference=0.0, **spread)
    np.testing.assert_allclose(theory.coalition_errors(RAGGED, np.ones(7), **spread), whole.federated, rtol=1e-12)
    refuses(lambda: theory.coalition_errors([5, 0], [1, 1], **spread), "above 0")
