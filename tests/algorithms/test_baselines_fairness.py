"""What q-FFL, AFL and MW-Fed must equal: closed forms on the clients of ``quadratic``."""

from __future__ import annotations

import numpy as np
import pytest

from fljax.algorithms import afl, mwfed, qffl
from tests.algorithms.quadratic import (
    CENTRES,
    CURVATURE,
    ETA,
    START,
    clients,
    follow,
    how,
    losses,
    quadratic,
    run,
    trained,
)
from tests.algorithms.rounds_tools import close

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

SYMMETRIC = {"centres": np.concatenate([np.eye(3), -np.eye(3)[:1]]), "curvature": 1.5}


def test_qffl_with_equal_losses_shortens_the_mean(x64):
    def build(values):
        return qffl(quadratic(values["start"]), how(1), q=values["q"], clients_per_round=None)

    start, slopes = np.zeros(3), -1.5 * SYMMETRIC["centres"]
    for q in (0.0, 0.1, 1.0, 10.0):
        states, records = run(build, 1, clients(**SYMMETRIC), start=start, q=q)
        loss = losses(start, **SYMMETRIC)[0]
        np.testing.assert_allclose(records["loss"], loss, rtol=1e-12)
        wanted = -ETA * slopes.mean(axis=0) / (1 + q * ETA * 1.5**2 / loss)
        close(states.server.model["w"][1], wanted, 1e-12)


def agnostic(values):
    algorithm = afl(quadratic(values["start"]), how(5, values["rate"]), mixture_learning_rate=values["mixture_rate"])
    inner = algorithm.init_server
    mixed = lambda key, census: inner(key, census)._replace(mixture=values["mixture"])  # noqa: E731
    return algorithm._replace(init_server=mixed)


def test_afl_with_a_fixed_mixture_is_weighted_gradient_descent(exact):
    mixture = np.array([0.1, 0.2, 0.3, 0.4])
    states, records = run(agnostic, 4, rate=ETA, mixture_rate=0.0, mixture=mixture)
    w, found = START, []
    for _ in range(4):
        w = w - ETA * (mixture * CURVATURE) @ (w - CENTRES)
        found.append(w)
    close(states.server.model["w"][1:], np.array(found), exact)
    close(states.server.mixture, np.tile(mixture, (5, 1)), exact)
    means = np.cumsum(found, axis=0) / np.arange(1, 5)[:, None]
    close(states.server.average["w"][1:], means, exact)  # what is deployed
    for t in range(4):
        expected = losses(states.server.model["w"][t].astype(float))
        close(records["loss"][t], expected[records["cohort_id"][t]], 10 * exact)


def test_afl_keeps_equal_losses_equal_and_finds_the_fairest_model(x64):
    alike = {"centres": np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0], [0, -1.0, 0]]), "curvature": 1.0}
    uniform = np.full(4, 0.25)
    states, _ = run(agnostic, 300, clients(**alike), start=np.zeros(3), rate=ETA, mixture_rate=0.5, mixture=uniform)
    np.testing.assert_allclose(states.server.mixture, 0.25, rtol=1e-12)
    # The best for the worst mixture: no other model has a smaller largest loss. Here 0, though most sit elsewhere.
    apart = {"centres": np.array([[1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0], [-1.0, 0, 0]]), "curvature": 1.0}
    states, _ = run(agnostic, 300, clients(**apart), rate=0.1, mixture_rate=0.1, mixture=uniform)
    np.testing.assert_allclose(states.server.average["w"][-1][0], 0, atol=0.05)
    np.testing.assert_allclose(states.server.mixture[-1][3], 0.5, atol=0.05)


def weighted(values):
    algorithm = mwfed(quadratic(values["start"]), how(3), threshold=values["threshold"], clients_per_round=None)
    inner = algorithm.init_server
    given = lambda key, census: inner(key, census)._replace(weights=values["weights"])  # noqa: E731
    return algorithm._replace(init_server=given)


def test_agreement_is_fedavg(x64):
    for threshold in (np.inf, -np.inf):  # all are satisfied, none is
        states, _ = run(weighted, 3, threshold=np.full(4, threshold), weights=np.full(4, 0.25))
        np.testing.assert_allclose(states.server.weights, 0.25, rtol=1e-12)
        close(states.server.model["w"], follow(START, 3, 3), 1e-12)


def test_who_is_at_the_threshold_is_unsatisfied(x64):
    uniform, loss = np.full(4, 0.25), np.empty(4)
    _, records = run(weighted, 1, threshold=np.zeros(4), weights=uniform)
    loss[records["cohort_id"][0]] = records["loss"][0]
    np.testing.assert_allclose(loss, losses(START), rtol=1e-12)
    states, _ = run(weighted, 1, threshold=loss * [1, 1 + 1e-12, 1 - 1e-12, 9], weights=uniform)
    np.testing.assert_allclose(states.server.weights[1] * 6, [2, 1, 2, 1], rtol=1e-12)


def test_one_of_two_who_is_never_satisfied(x64):
    data = clients(CENTRES[:2], CURVATURE[:2])
    states, records = run(weighted, 8, data, threshold=[-np.inf, np.inf], weights=[0.5, 0.5])
    t = np.arange(9)
    np.testing.assert_allclose(states.server.weights[:, 0], 2.0**t / (2.0**t + 1), rtol=1e-12)
    # Weights count from the next round on, and the other one always does a step.
    w = START
    for t in range(8):
        share = 2.0**t / (2.0**t + 1)
        steps = [max(1, round(3 * 2 * part)) for part in (share, 1 - share)]
        ends = [trained(w, count, centres=CENTRES[:2], curvature=CURVATURE[:2])[k] for k, count in enumerate(steps)]
        w = np.mean(ends, axis=0)
        close(states.server.model["w"][t + 1], w, 1e-12)
        np.testing.assert_allclose(records["effort"][t], np.array([2 * share, 2 - 2 * share])[records["cohort_id"][t]])


def test_local_steps_have_bounds(x64):
    """Each client's centre has an axis of its own, along which the number of its steps shows."""
    weights = np.array([0.97, *[0.03 / 13] * 13])
    states, _ = run(
        weighted,
        1,
        clients(np.eye(14), 1.0),
        start=np.zeros(14),
        threshold=np.full(14, np.inf),
        weights=weights,
    )
    steps = np.log(1 - 14 * states.server.model["w"][1]) / np.log(1 - ETA)
    assert 3 * 14 * 0.97 > 30
    np.testing.assert_allclose(steps, [30, *[1] * 13], rtol=1e-6)
