"""What FedSoft must equal: closed forms on the clients of ``quadratic``, standalone, and its draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedsoft, standalone
from fljax.core.trees import take
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import initial_state
from fljax.training import Local
from tests.algorithms import quadratic
from tests.algorithms.clustered_tools import SCATTERED, SMALL, models, permuted, starting
from tests.algorithms.quadratic import CENTRES, CURVATURE, ETA, START, how, run
from tests.algorithms.rounds_tools import TASK, close, federation, history, stored

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROUNDS, STEPS = 4, 3
POPULATION = len(CENTRES)


@pytest.mark.in_turn
@pytest.mark.sampled(3)
@pytest.mark.parametrize("each", [POPULATION, None], ids=["all", "None"])
def test_fedsoft_with_one_cluster_is_proximal_fedavg_of_personal_models(each, exact):
    """``theta_k`` goes from where it is towards ``(a x + lambda c) / (a + lambda)``, and is never reset."""
    pull = 0.8

    def build(values):
        task, local = quadratic.quadratic(values["start"]), how(STEPS, values["rate"])
        return fedsoft(task, local, clusters=1, regularisation=values["pull"], clients_per_cluster=each)

    states, records = run(build, ROUNDS, rate=ETA, pull=pull)
    np.testing.assert_array_equal(records["importance"], 1)
    model, personal = START, np.broadcast_to(START, CENTRES.shape)
    for t in range(ROUNDS):
        rest = (CURVATURE[:, None] * CENTRES + pull * model) / (CURVATURE + pull)[:, None]
        personal = rest + ((1 - ETA * (CURVATURE + pull)) ** STEPS)[:, None] * (personal - rest)
        model = personal.mean(axis=0)  # clients have as many rows
        close(models(states)[t + 1, 0], model, exact)
        close(states.clients.personal["w"][t + 1], personal, exact)


@pytest.mark.sampled(2)
def test_fedsoft_of_all_clients_weighs_them_by_size(exact):
    """``v_k = p_k`` with one cluster."""
    states, _ = history(lambda _: fedsoft(TASK, SMALL, clusters=1, clients_per_cluster=None), federation(), 1)
    size = np.array([0, 7, 5, 2, 3])  # by id
    mean = jax.tree.map(lambda leaf: np.tensordot(size / size.sum(), leaf[1], axes=1), states.clients.personal)
    close(take(states.server.models, (1, 0)), mean, exact)


@pytest.mark.thorough
def test_fedsoft_without_regularisation_is_standalone(exact):
    """The models of the clusters only watch: each is the mean of those that it chose."""

    def build(values):
        task = quadratic.quadratic(values["start"])
        return fedsoft(task, how(STEPS), regularisation=values["pull"], clients_per_cluster=POPULATION)

    states, _ = run(build, ROUNDS, pull=0.0)
    alone, _ = run(lambda values: standalone(quadratic.quadratic(values["start"]), how(STEPS)), ROUNDS)
    close(states.clients.personal["w"], alone.clients.model["w"], exact)
    mean = alone.clients.model["w"].mean(axis=1)[1:, None]
    close(models(states)[1:], np.broadcast_to(mean, models(states)[1:].shape), exact)


@pytest.mark.thorough
def test_without_regularisation_batches_are_those_of_standalone(exact):
    found, _ = history(
        lambda _: fedsoft(SCATTERED, SMALL, regularisation=0.0, clients_per_cluster=None), federation(), 3
    )
    wanted, _ = history(lambda _: standalone(SCATTERED, SMALL), federation(), 3)
    close(found.clients.personal, wanted.clients.model, exact)


@pytest.mark.in_turn
def test_of_equal_models_the_first_has_all_rows():
    def build(values):
        return fedsoft(quadratic.quadratic(values["start"]), how(STEPS), clients_per_cluster=None)

    states, records = run(build, 2)  # the second round goes by the estimate of the first
    np.testing.assert_allclose(records["importance"], np.broadcast_to([1, 1e-4], (2, POPULATION, 2)), rtol=1e-6)
    close(models(states)[1, 0], models(states)[1, 1])  # the same weights v: 1e-4 for everybody


@pytest.mark.in_turn
def test_fedsoft_solves_the_proximal_problem(x64):
    """``theta* = (a x + lambda sum_s u_s c_s) / (a + lambda sum_s u_s)``; clients are of both clusters."""
    starts = np.array([[0.4, 0.1, 0.2], [-0.2, 0.3, 0.5]])

    def build(values):
        task = quadratic.quadratic(values["start"])
        algorithm = fedsoft(
            task,
            how(400, values["rate"]),
            regularisation=values["pull"],
            smoother=values["smoother"],
            clients_per_cluster=None,
        )
        return starting(algorithm, values["starts"])

    for pull, smoother in ((0.01, 0.1), (3.0, 0.3), (1e6, 0.3)):
        rate = 1 / (2 + 2 * pull)
        states, records = run(build, 1, pull=pull, smoother=smoother, starts=starts, rate=rate)
        u = records["importance"][0]
        assert set(u.argmax(axis=1)) == {0, 1}
        assert ((u == smoother) | (u >= 0.5)).all()
        expected = (CURVATURE[:, None] * CENTRES + pull * (u @ starts)) / (CURVATURE + pull * u.sum(axis=1))[:, None]
        close(states.clients.personal["w"][1], expected, 1e-9 if pull >= 1 else 1e-6)
        v = u / u.sum(axis=0)  # clients have as many rows
        close(models(states)[1], v.T @ states.clients.personal["w"][1], 1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2])
def test_clusters_choose_by_importance_and_size(count):
    rounds = 600
    algorithm = fedsoft(TASK, Local(0.0, 1, steps=1), clients_per_cluster=count)  # both models are equal and stay so
    _, records = history(lambda _: algorithm, federation(), rounds)
    p = np.array([0, 7, 5, 2, 3]) / 17  # by id
    # Drawn one after another: first, or second after somebody else.
    likely = p if count == 1 else p + [sum(p[j] * p[i] / (1 - p[j]) for j in range(5) if j != i) for i in range(5)]
    member = records["membership"].astype(float)
    np.testing.assert_array_equal(member.sum(axis=1), count)
    for cluster in range(2):
        # Four standard errors.
        error = np.abs(member[:, :, cluster].mean(axis=0) - likely)
        assert (error <= 4 * np.sqrt(likely * (1 - likely) / rounds)).all()
    correlation = np.corrcoef(member[:, 1, 0], member[:, 1, 1])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(rounds)
    # Somebody that both clusters chose is there once.
    np.testing.assert_array_equal(records["cohort_present"].sum(axis=1), member.any(axis=2).sum(axis=1))


@pytest.mark.thorough
@pytest.mark.parametrize("each", [2, None], ids=str)
def test_who_was_not_asked_is_not_chosen(each):
    algorithm = fedsoft(SCATTERED, SMALL, clients_per_cluster=each)
    data = stored(federation())
    step = jax.jit(lambda state, there: one_round(algorithm, data, Layout(5, 1, 5), state, available=there))
    state, everybody = initial_state(algorithm, data, jnp.uint32(0)), jnp.ones(5, bool)
    asked, joined = [], []
    for there in (everybody.at[jnp.array([1, 2])].set(False), everybody, everybody):
        state, info = step(state, there)
        asked.append(np.asarray(info["importance"].values).any(axis=1).tolist())
        joined.append(np.asarray(info["membership"].values).any(axis=1).tolist())
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server))
    assert asked == [[False, False, False, True, True]] * 2 + [[False, True, True, True, True]]
    assert joined[:2] == asked[:2]
    if each is None:
        assert joined[2] == asked[2]
    nobody, _ = step(state, jnp.zeros(5, bool))
    jax.tree.map(np.testing.assert_array_equal, nobody.server.models, state.server.models)


@pytest.mark.thorough
def test_fedsofts_permuted_clusters_give_permuted_results(exact):
    """Where nobody is drawn, and personal models start from the same one."""
    order = np.array([2, 0, 1])
    algorithm = fedsoft(SCATTERED, SMALL, clusters=3, clients_per_cluster=None)
    inner = algorithm.init_client
    start = {"w": jnp.zeros((3, 4), jnp.result_type(float)), "b": jnp.zeros(4)}
    algorithm = algorithm._replace(init_client=lambda *arguments: inner(*arguments)._replace(personal=start))
    plain, records = history(lambda _: algorithm, federation(), 3)
    other, others = history(lambda _: permuted(algorithm, order), federation(), 3)
    close(other.server.models, jax.tree.map(lambda leaf: leaf[:, order], plain.server.models), 10 * exact)
    close(other.clients.personal, plain.clients.personal, 10 * exact)
    close(others["importance"], records["importance"][:, :, order], exact)
