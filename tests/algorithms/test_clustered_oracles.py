"""What IFCA, and any algorithm with models of clusters, must equal: FedAvg with one, separated groups with two."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, fedem, fedsoft, ifca
from fljax.algorithms.clustered import initial_models, row_losses
from fljax.core.trees import take
from fljax.engine.rounds.evaluate import Judge
from fljax.engine.rounds.states import initial_state
from fljax.protocol import Examples, Rows, Subset
from fljax.training import AT_ONCE, Local
from tests.algorithms import quadratic
from tests.algorithms.clustered_tools import SCATTERED, SMALL, models, permuted, starting
from tests.algorithms.quadratic import ETA, START, how, run
from tests.algorithms.rounds_tools import TASK, close, federation, history, stored
from tests.oracles import numpy_clustered as oracle
from tests.toys.quick import QUICK

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

ROUNDS, STEPS = 4, 3
# Two groups of clients that are far from each other, and models on either side.
GROUPS = np.array([[4.0, 4.0, 4.0], [5.0, 3.0, 4.5], [-4.0, -5.0, -3.0], [-4.5, -3.0, -4.0], [-3.5, -4.0, -5.0]])
SIDES = np.array([[-1.0, -0.5, -1.0], [1.0, 0.5, 0.8]])
MEMBERS = [[2, 3, 4], [0, 1]]


@pytest.mark.quick
@pytest.mark.sampled(2)
@pytest.mark.parametrize("averaging", ["model", "gradient"])
def test_ifca_with_one_cluster_is_uniform_fedavg(averaging, exact):
    def build(values):
        task, local = quadratic.quadratic(values["start"]), how(STEPS, values["rate"])
        return ifca(task, local, clusters=1, averaging=averaging, server_lr=values["server_lr"])

    states, records = run(build, ROUNDS, rate=ETA, server_lr=0.7)
    steps = STEPS if averaging == "model" else 1
    close(models(states)[:, 0], quadratic.follow(START, steps, ROUNDS, server_lr=0.7), exact)
    np.testing.assert_array_equal(records["chosen_cluster"], 0)


@pytest.mark.thorough
def test_gradients_are_those_of_fedavg_with_one_step_of_all_rows(exact):
    """Also with weight decay and a rate that falls."""
    local = Local(0.3, 7, steps=1, decay=0.7, weight_decay=0.1)
    found, _ = history(lambda _: ifca(TASK, local, clusters=1, averaging="gradient", weights="size"), federation(), 3)
    wanted, _ = history(lambda _: fedavg(TASK, local), federation(), 3)
    close(take(found.server.models, (slice(None), 0)), wanted.server.model, exact)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("build", "weights"),
    [
        (functools.partial(ifca, clusters=1), "uniform"),
        (functools.partial(ifca, clusters=1, weights="size"), "size"),
        (functools.partial(fedem, clusters=1), "size"),
    ],
    ids=["ifca", "ifca by size", "fedem"],
)
def test_one_cluster_is_fedavg_with_the_same_batches(build, weights, exact):
    """Ragged clients, small batches, and only some of the clients."""
    options: dict[str, Any] = {"clients_per_round": 3, "server_lr": 0.8}
    found, records = history(lambda _: build(SCATTERED, SMALL, **options), federation(), 3)
    wanted, others = history(lambda _: fedavg(SCATTERED, SMALL, weights=weights, **options), federation(), 3)
    np.testing.assert_array_equal(records["cohort_id"], others["cohort_id"])
    close(take(found.server.models, (slice(None), 0)), wanted.server.model, 10 * exact)
    close(records["weight"], others["weight"], exact)


@pytest.mark.parametrize("averaging", ["model", "gradient"])
def test_ifca_finds_separated_groups(averaging, x64):
    def build(values):
        algorithm = ifca(quadratic.quadratic(values["start"]), how(2), averaging=averaging)
        return starting(algorithm, values["sides"])

    data = quadratic.clients(GROUPS, 1.0)
    states, records = run(build, 60, data=data, sides=SIDES)
    by_id = np.argsort(records["cohort_id"], axis=1)
    chosen, weight = (np.take_along_axis(records[name], by_id, axis=1) for name in ("chosen_cluster", "weight"))
    np.testing.assert_array_equal(chosen, np.broadcast_to([1, 1, 0, 0, 0], (60, 5)))
    for cluster, members in enumerate(MEMBERS):
        centre = GROUPS[members].mean(axis=0)
        steps = np.arange(61) * (2 if averaging == "model" else 1)
        path = centre + ((1 - ETA) ** steps)[:, None] * (SIDES[cluster] - centre)
        close(models(states)[:, cluster], path, 1e-12)
        np.testing.assert_allclose(models(states)[-1, cluster], centre, atol=1e-7)
        np.testing.assert_allclose(weight[:, members], 1 / len(members), rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("build", [ifca, fedem], ids=["ifca", "fedem"])
def test_permuted_clusters_give_permuted_results(build, exact):
    order = np.array([2, 0, 1])
    algorithm = build(SCATTERED, SMALL, clusters=3, clients_per_round=3)
    plain, records = history(lambda _: algorithm, federation(), 3)
    other, others = history(lambda _: permuted(algorithm, order), federation(), 3)
    expected = jax.tree.map(lambda leaf: leaf[:, order], plain.server.models)
    close(other.server.models, expected, 10 * exact)
    if build is ifca:
        there = records["cohort_present"]
        np.testing.assert_array_equal(order[others["chosen_cluster"][there]], records["chosen_cluster"][there])
        assert np.ptp(records["chosen_cluster"][there]) > 0
    else:
        close(other.clients.mixture, plain.clients.mixture[:, :, order], 10 * exact)


def test_equal_models_are_all_of_the_first_cluster():
    """And a model that nobody chose stays bit for bit."""

    def build(values):
        algorithm = ifca(quadratic.quadratic(values["start"]), how(STEPS), clusters=3)
        return starting(algorithm, values["equal"])

    states, records = run(build, 2, equal=np.array([START, START, START + 50]))
    np.testing.assert_array_equal(records["chosen_cluster"][0], 0)
    close(models(states)[:2, 0], quadratic.follow(START, STEPS, 1), 1e-6)
    np.testing.assert_array_equal(models(states)[1, 1:], models(states)[0, 1:])
    np.testing.assert_array_equal(models(states)[2, 2], models(states)[0, 2])


def test_losses_of_rows_in_parts():
    """Clients of more rows than are evaluated at a time, fewer, and none; what lies beyond them is never read."""
    rng = np.random.default_rng(0)
    count = 2 * AT_ONCE + 5
    x = rng.normal(size=(count + 1, 3))
    x[-1] = np.nan
    y = rng.integers(0, 4, count + 1)
    examples = Examples(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32))
    both = {"w": jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32), "b": jnp.zeros((2, 4))}
    order = rng.permutation(count)
    program = jax.jit(
        jax.vmap(lambda size, index: row_losses(TASK, both, Subset(examples, Rows(index, size)))),
        compiler_options=QUICK,
    )
    sizes = np.array([0, 3, AT_ONCE + 1, count])
    index = np.where(np.arange(count)[None, :] < sizes[:, None], order[None, :], count)
    found = np.asarray(program(jnp.asarray(sizes, jnp.int32), jnp.asarray(index, jnp.int32)))
    assert found.shape == (4, 2, count)
    for row, size in enumerate(sizes):
        np.testing.assert_array_equal(found[row, :, size:], 0)
        own = order[:size]
        for c in range(2):
            params = {name: np.asarray(leaf[c], np.float64) for name, leaf in both.items()}
            np.testing.assert_allclose(found[row, c, :size], oracle.row_losses(params, x[own], y[own]), rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("build", [ifca, fedsoft, fedem], ids=["ifca", "fedsoft", "fedem"])
def test_a_stranger_gets_what_somebody_with_its_rows_gets_who_never_trained(build):
    algorithm = build(SCATTERED, SMALL, clusters=3)
    data = stored(federation())
    state = initial_state(algorithm, data, jnp.uint32(7))
    found = []
    for id in (1, 2, 3, 4):
        client = take(data.clients, id)
        seen, _ = Judge(algorithm, data, state, state.round).deploy(client, take(state.clients, id))
        stranger, _ = Judge(algorithm, data, state, state.round, known=False).deploy(client._replace(id=jnp.int32(0)))
        close(stranger, seen)
        found.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(seen)]))
    assert max(np.abs(other - found[0]).max() for other in found) > 0.01


@pytest.mark.parametrize("build", [ifca, fedsoft, fedem], ids=["ifca", "fedsoft", "fedem"])
def test_without_rounds_models_are_the_initial_ones(build):
    algorithm = build(SCATTERED, SMALL, clusters=3)
    data = stored(federation())
    start = initial_state(algorithm, data, jnp.uint32(7))
    plain = initial_state(fedavg(SCATTERED, SMALL), data, jnp.uint32(7)).server.model
    jax.tree.map(np.testing.assert_array_equal, take(start.server.models, 0), plain)
    weights = np.asarray(start.server.models["w"])
    assert all(np.abs(weights[i] - weights[j]).max() > 0.1 for i in range(3) for j in range(i))
    alike = initial_models(SCATTERED, jax.random.key(0), 3, alike=True)["w"]
    np.testing.assert_array_equal(alike, np.broadcast_to(alike[:1], alike.shape))
