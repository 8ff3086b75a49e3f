"""What the baselines must equal: closed forms on the clients of ``quadratic``, and others where a parameter is off."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import REGISTRY, afl, fedavg, fedprox, mwfed, perfedavg, pfedme, qffl, scaffold
from fljax.algorithms.fedprox import work
from fljax.core.trees import take, zeros_like
from fljax.engine.rounds.states import initial_state, local_data
from fljax.protocol import Rows, Seat
from fljax.training import Local, OptimizerSettings
from tests.algorithms.quadratic import (
    CENTRES,
    CURVATURE,
    ETA,
    START,
    clients,
    follow,
    how,
    quadratic,
    run,
    trained,
)
from tests.algorithms.rounds_tools import SEED, TASK, close, federation, history, stored
from tests.toys.quick import QUICK

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

# --- Reductions to others -----------------------------------------------------------------------------------


def frozen(algorithm):
    """SCAFFOLD whose control variates stay zero."""

    def train(*arguments):
        up, client = algorithm.train(*arguments)
        return up._replace(control=zeros_like(up.control)), zeros_like(client)

    return algorithm._replace(train=train)


REDUCTIONS = {
    "afl": functools.partial(afl, mixture_learning_rate=0.0),
    "fedavg": functools.partial(fedavg, weights="size"),
    "fedprox": functools.partial(fedprox, mu=0.0),
    "qffl": functools.partial(qffl, q=0.0),
    "mwfed": functools.partial(mwfed, factor=1.0, threshold=0.6),
    "scaffold": lambda *task, **options: frozen(scaffold(*task, **options)),
    "perfedavg": functools.partial(perfedavg, alpha=0.0, hessian="exact"),
}


def steps_of(name):
    """AFL has one whatever it is asked for."""
    return 1 if name == "afl" else 3


@functools.cache
def reduced(name):
    def build(values):
        server = OptimizerSettings("sgd", (("momentum", values["momentum"]),))
        return REDUCTIONS[name](
            quadratic(values["start"]),
            how(steps_of(name), values["rate"]),
            clients_per_round=None,
            server_lr=values["server_lr"],
            server_optimizer=server,
        )

    return build


@pytest.mark.thorough
@pytest.mark.parametrize("name", REDUCTIONS)
def test_equals_uniform_fedavg(name, exact):
    for momentum, server_lr in ((0.0, 1.0), (0.9, 0.5)):
        states, _ = run(reduced(name), 3, rate=ETA, momentum=momentum, server_lr=server_lr)
        close(states.server.model["w"], follow(START, steps_of(name), 3, momentum, server_lr), exact)


def use(build, part="server.model", **options):
    """A builder or its name, and the part of the state that has the models."""
    build = REGISTRY[build].build if isinstance(build, str) else build
    return functools.partial(build, **options), operator.attrgetter(part)


UNIFORM, ALONE = use("fedavg", weights="uniform"), use("standalone", "clients.model")
FEATURED = TASK._replace(features=lambda params, x: x @ params["w"])
ALL_HEAD = TASK._replace(roles=lambda tree: dict.fromkeys(tree, "head"))
ADAM = {"weights": "uniform", "server_optimizer": "adam", "server_lr": 0.1}
SAME = {  # bit for bit
    "fednova, as many steps": (TASK, use("fednova"), use("fedavg")),
    "moon, mu 0": (FEATURED, use("moon", mu=0), use("fedavg")),
    "fedper, no head": (TASK, use("fedper", "server.shared"), use("fedavg")),
    "fedrep, no head": (TASK, use("fedrep", "server.shared"), use("fedavg")),
    "fedbabu, no head": (TASK, use("fedbabu", "server.shared"), UNIFORM),
    "fedper, no body": (ALL_HEAD, use("fedper", "clients.own"), ALONE),
}
ALIKE = {
    "fedprox, mu 0": (TASK, use("fedprox", mu=0.0), use("fedavg")),
    "qffl, q 0": (TASK, use("qffl", q=0.0), UNIFORM),
    "scaffold, no variates": (TASK, use(REDUCTIONS["scaffold"]), UNIFORM),
    "ditto": (TASK, use("ditto", regularisation=3.0, personal_epochs=1, **ADAM), use("fedavg", **ADAM)),
    "apfl, alpha 0": (TASK, use("apfl", alpha=0.0), UNIFORM),
    "apfl, alpha 1": (TASK, use("apfl", "clients.own", alpha=1.0), ALONE),
    "fedala, rate 0": (TASK, use("fedala", layers=1, weight_learning_rate=0.0, most_epochs=3), use("fedavg")),
    "fedfomo, nothing sent": (TASK, use("fedfomo", "server.models.values", models_sent=0), ALONE),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAME | ALIKE)
def test_equals_another_with_the_same_batches(name, exact):
    """Clients with two batches in each epoch, mostly ragged, but for one without rows."""
    (task, *both), data = (SAME | ALIKE)[name], federation((5, 0, 6, 4, 4), capacity=6)
    local, tolerance = Local(0.3, 3, epochs=2, decay=0.7), 0 if name in SAME else 10 * exact
    found, expected = (part(history(lambda _, build=build: build(task, local), data, 3)[0]) for build, part in both)
    assert np.ptp(expected["w"], axis=0).max() > 0.1
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=tolerance, atol=tolerance)


# --- FedProx ------------------------------------------------------------------------------------------------


def test_fedprox_solves_the_proximal_problem(x64):
    def build(values):
        return fedprox(quadratic(values["start"]), how(3, values["rate"]), mu=values["mu"], clients_per_round=None)

    for mu in (0.0, 0.01, 2.0, 1e6):
        rate = min(ETA, 1 / (2 + mu))
        states, _ = run(build, 1, mu=mu, rate=rate)
        solution = (CURVATURE[:, None] * CENTRES + mu * START) / (CURVATURE + mu)[:, None]
        ends = solution + ((1 - rate * (CURVATURE + mu)) ** 3)[:, None] * (START - solution)
        close(states.server.model["w"][1], ends.mean(axis=0), 1e-12)
        if mu == 1e6:  # nobody moves
            assert np.abs(states.server.model["w"][1] - START).max() < 1e-5
    # With the rate 1 / (a + mu) a single step is the exact solution.
    states, _ = run(build, 1, clients(curvature=1.5), mu=2.0, rate=1 / 3.5)
    close(states.server.model["w"][1], ((1.5 * CENTRES + 2 * START) / 3.5).mean(axis=0), 1e-12)


def test_the_first_step_of_fedprox_is_fedavgs(exact):
    def build(values):
        return fedprox(quadratic(values["start"]), how(1), mu=values["mu"], clients_per_round=None)

    for mu in (0.0, 5.0):
        close(run(build, 2, mu=mu)[0].server.model["w"], follow(START, 1, 2), exact)


# --- SCAFFOLD -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [Local(0.1, 3, steps=5), Local(0.1, 3, epochs=5)], ids=["steps", "epochs"])
def test_work_of_stragglers(local):
    rows, times = Rows(jnp.arange(8, dtype=jnp.int32), jnp.int32(7)), 1 if local.steps else 3
    count = jax.jit(jax.vmap(lambda key: work(key, local, rows, 0.4)))(jax.random.split(jax.random.key(1), 20_000))
    found = np.bincount(np.asarray(count), minlength=5 * times + 1)[::times] / 20_000
    np.testing.assert_allclose(found, [0, 0.08, 0.08, 0.08, 0.08, 0.68], atol=0.015)
    np.testing.assert_allclose(found.sum(), 1)


@functools.cache
def scaffolded(steps, option: Any = "II", clients_per_round=None):
    def build(values):
        return scaffold(quadratic(values["start"]), how(steps), option=option, clients_per_round=clients_per_round)

    return build


def test_scaffold_with_one_step_is_gradient_descent(exact):
    states, _ = run(scaffolded(1), 4)
    close(states.server.model["w"], follow(START, 1, 4), exact)
    for t in range(4):  # c_k is the gradient that was used, c their mean
        slopes = CURVATURE[:, None] * (states.server.model["w"][t] - CENTRES)
        close(states.clients.control["w"][t + 1], slopes, 10 * exact)
        close(states.server.control["w"][t + 1], slopes.mean(axis=0), 10 * exact)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_begins_as_fedavg_and_finds_what_fedavg_misses(option, x64):
    states, _ = run(scaffolded(3, option), 40)
    close(states.server.model["w"][1], follow(START, 3, 1)[1], 1e-12)
    optimum = (CURVATURE[:, None] * CENTRES).sum(axis=0) / CURVATURE.sum()
    close(states.server.model["w"][-1], optimum, 1e-6)
    assert np.abs(follow(START, 3, 40)[-1] - optimum).max() > 0.02  # client drift
    # Identical clients have no drift.
    same: dict[str, Any] = {"centres": CENTRES[[1] * 4], "curvature": CURVATURE[[1] * 4]}
    states, _ = run(scaffolded(3, option), 40, clients(**same))
    if option == "II":
        close(states.server.model["w"], follow(START, 3, 40, **same), 1e-12)


@pytest.mark.parametrize("option", [pytest.param("I", marks=pytest.mark.slow), "II"])
def test_scaffold_with_a_tenth_of_the_clients(option, x64):
    """c moves by the cohort's sum over ALL clients: over the cohort alone it runs away."""
    rng = np.random.default_rng(5)
    centres, curvature = rng.normal(size=(100, 3)), rng.uniform(0.5, 2.0, 100)
    data, rounds = clients(centres, curvature), 400
    states, records = run(scaffolded(3, option, 10), rounds, data)
    assert (records["cohort_present"].sum(axis=1) == 10).all()
    means = states.clients.control["w"].mean(axis=1)
    np.testing.assert_allclose(states.server.control["w"], means, atol=1e-12)
    optimum = (curvature[:, None] * centres).sum(axis=0) / curvature.sum()
    distance = np.linalg.norm(states.server.model["w"] - optimum, axis=1)
    assert distance.max() < 3
    assert distance[-1] < 1e-3
    if option == "II":  # FedAvg stays at a distance: it is drawn to each cohort's own mean
        usual, _ = run(lambda v: fedavg(quadratic(v["start"]), how(3), clients_per_round=10), rounds, data)
        usual = np.linalg.norm(usual.server.model["w"] - optimum, axis=1)
        assert usual.max() < 3
        assert usual[-50:].mean() > 100 * distance[-1]


# --- Per-FedAvg ---------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.sampled(3)
@pytest.mark.parametrize("hessian", ["none", "exact", "difference"])
def test_perfedavg_factors(hessian, x64):
    def build(values):
        task = quadratic(values["start"])
        return perfedavg(task, how(2), alpha=values["alpha"], hessian=hessian, clients_per_round=None)

    for alpha in (0.0, 0.2):
        states, _ = run(build, 1, alpha=alpha)
        power = 1 if hessian == "none" else 2
        factor = (1 - ETA * CURVATURE * (1 - alpha * CURVATURE) ** power) ** 2
        wanted = (CENTRES + factor[:, None] * (START - CENTRES)).mean(axis=0)
        close(states.server.model["w"][1], wanted, 1e-12 if hessian != "difference" else 1e-9)


def test_perfedavg_rests_at_the_minimum_of_the_meta_loss(x64):
    def build(values):
        return perfedavg(
            quadratic(values["start"]), how(1), alpha=values["alpha"], hessian="exact", clients_per_round=None
        )

    weight = CURVATURE * (1 - 0.2 * CURVATURE) ** 2
    minimum = (weight[:, None] * CENTRES).sum(axis=0) / weight.sum()
    close(run(build, 200, alpha=0.2, start=minimum)[0].server.model["w"], np.tile(minimum, (201, 1)), 1e-12)
    close(run(build, 200, alpha=0.2)[0].server.model["w"][-1], minimum, 1e-9)


@pytest.mark.parametrize(("round", "rate"), [(0, 0.3), (2, 0.075)])
def test_perfedavg_deploys_with_the_rate_of_the_round(round, rate):
    algorithm = perfedavg(quadratic(START), how(1)._replace(decay=0.5), alpha="local", clients_per_round=None)
    data, model = stored(clients()), {"w": jnp.asarray(START, jnp.float32)}
    seat = Seat(jnp.int32(round), jnp.int32(2), jnp.int32(0))
    found = algorithm.deploy(jax.random.key(0), seat, model, (), local_data(data, take(data.clients, 2)))
    close(found["w"], START - rate * CURVATURE[2] * (START - CENTRES[2]))


# --- pFedMe -------------------------------------------------------------------------------------------------


def exact_prox(steps, curvature):
    """pFedMe whose personal models are exact proximal points, after one step."""
    return lambda values: pfedme(
        quadratic(values["start"]),
        how(steps),
        regularisation=values["lambda"],
        personal_learning_rate=1 / (curvature + values["lambda"]),
        personal_steps=1,
        server_lr=values["beta"],
        clients_per_round=None,
    )


def test_pfedme_follows_the_moreau_gradient(x64):
    curvature, steps = 1.5, 3
    data, build = clients(curvature=curvature), exact_prox(steps, curvature)
    for strength, beta in ((2.0, 1.0), (3.0, 0.6), (0.0, 1.0), (2.0, 0.0)):
        states, _ = run(build, 1, data, **{"lambda": strength, "beta": beta})
        slope = strength * curvature / (curvature + strength)  # of the Moreau envelope: slope (y - c)
        before, ends = trained(START, steps - 1, curvature=slope), trained(START, steps, curvature=slope)
        close(states.server.model["w"][1], (1 - beta) * START + beta * ends.mean(axis=0), 1e-12)
        personal = (curvature * CENTRES + strength * before) / (curvature + strength)
        close(states.clients.personal["w"][1], personal, 1e-12)
        if strength * beta == 0:
            np.testing.assert_allclose(states.server.model["w"][1], START, rtol=1e-12)


@pytest.mark.parametrize(("times", "swings", "converges"), [(0.9, False, True), (1.9, True, True), (2.5, True, False)])
def test_where_pfedme_is_stable(x64, times, swings, converges):
    """1 and 2 are the bounds of ``eta lambda`` where curvature is large; with the exact prox."""
    curvature, strength, steps = 1000.0, times / ETA, 12
    build, numbers = exact_prox(1, curvature), {"lambda": strength, "beta": 1.0}
    states, _ = run(build, steps, clients(curvature=curvature), **numbers)
    distance = states.server.model["w"] - CENTRES.mean(axis=0)
    factor = 1 - ETA * strength * curvature / (curvature + strength)
    close(distance[1:], factor * distance[:-1], 1e-6 * max(1.0, abs(factor) ** steps))
    assert (factor < 0) == swings
    assert (np.abs(distance[-1]).max() < np.abs(distance[0]).max()) == converges


def test_pfedme_without_regularisation_only_decays():
    """lambda = 0 is no division by zero where weights decay."""
    local = how(2)._replace(weight_decay=0.1)
    algorithm = pfedme(quadratic(jnp.asarray(START, jnp.float32)), local, regularisation=0.0, clients_per_round=None)
    states, _ = history(lambda _: algorithm, clients(), 1)
    close(states.server.model["w"][1], START * (1 - ETA * 0.1) ** 2)


# --- All ----------------------------------------------------------------------------------------------------

ALL = {
    "afl": afl,
    "fedprox": fedprox,
    "mwfed": functools.partial(mwfed, threshold=1.0),
    "perfedavg": functools.partial(perfedavg, alpha=0.2),
    "pfedme": pfedme,
    "qffl": qffl,
    "scaffold": scaffold,
}


@functools.partial(jax.jit, compiler_options=QUICK)
def untrained(data):
    """What client 2 is shown and would use before the first round."""
    found = {}
    for name, build in ALL.items():
        algorithm = build(quadratic(jnp.asarray(START, jnp.float32)), how(2), clients_per_round=None)
        state = initial_state(algorithm, data, jnp.uint32(SEED))
        seat = Seat(jnp.int32(0), jnp.int32(2), jnp.int32(0))
        down, own = algorithm.down(state.server, seat), take(state.clients, 2)
        arguments = (jax.random.key(0), seat, down, own, local_data(data, take(data.clients, 2)))
        found[name] = algorithm.common(down), algorithm.deploy(*arguments)
    return found


@pytest.mark.quick
def test_without_rounds_the_model_is_the_initial_one():
    for name, (shared, deployed) in untrained(stored(clients())).items():
        np.testing.assert_array_equal(shared["w"], START.astype(np.float32))
        moved = START - 0.2 * CURVATURE[2] * (START - CENTRES[2]) if name == "perfedavg" else START
        close(deployed["w"], moved)
