"""The certificate of a mechanism, from its runs to the verdict: mean estimation, whose gains are known."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from fljax.engine import RunsDone
from fljax.engine.checkpoints import Checkpoint, Stopped
from fljax.games.strategic import certificates
from fljax.games.strategic.certificates import best_attack, cost_of, judged
from fljax.games.strategic.playing import Stages
from fljax.games.strategic.splitting import DIFFERENT, FEE, KNOWN_GAIN, mean_estimation
from fljax.scenarios import Strategy
from tests.games.played import GAINS, unilateral
from tests.games.strategic.test_certificates import assert_equal
from tests.refusals import refuses

PLAN, FEDERATION = mean_estimation(DIFFERENT)
LIES = {"update times 2": Strategy(own=2.0)}
ROUNDS = 60


def certify(**changes: Any) -> games.Certificate:
    settings: dict[str, Any] = {"rounds": ROUNDS, "seeds": 5, "tolerance": 0.1, "deviations": LIES, "candidates": 6}
    return games.certify(PLAN, FEDERATION, **settings | changes)


@pytest.fixture(scope="module")
def told() -> list[RunsDone]:
    return []


@pytest.fixture(scope="module")
def certificate(told: list[RunsDone], tmp_path_factory: pytest.TempPathFactory) -> games.Certificate:
    return certify(on_block=told.append, checkpoint=tmp_path_factory.mktemp("runs"))


@pytest.mark.in_turn
def test_the_certificate_of_mean_estimation(certificate: games.Certificate, told: list[RunsDone]) -> None:
    """Client 2 gains 63/32 by doubling its update, and more by a larger factor, which the attack finds."""
    assert (certificate.verdict, certificate.worst) == ("VIOLATED", 2)
    np.testing.assert_allclose(certificate.bounds.mean[2], KNOWN_GAIN, atol=1e-4)
    assert certificate.rationality is not None
    assert certificate.rationality.share == pytest.approx(1)  # alone, each client has its own mean
    assert all(control.passed for control in certificate.controls)
    assert certificate.controls[-1].name == FEE
    attack: Any = certificate.attack
    assert (attack.client, attack.candidates) == (2, 6)
    ((field, factor),) = attack.strategy
    assert field == "own"
    reached = -((5 - (1 + 5 * factor) / (2 + factor)) ** 2) / 2 + 4.5
    assert (attack.mean, attack.searched) == (pytest.approx(reached, abs=2e-2), pytest.approx(attack.mean, abs=1e-6))
    assert attack.mean > KNOWN_GAIN
    assert (told[-1].done, told[-1].runs) == (5 * (1 + 3 + 1) + 5 * (1 + 6), 60)
    assert_equal(games.certificate_of(games.certificate_dataset(certificate)), certificate)


def test_another_tolerance_needs_no_runs() -> None:
    first = judged(games.certificate(unilateral(GAINS), tolerance=0.05), 0.05, known=False)
    assert first.controls == ()
    attack = games.Attack(0, (("own", 2.0),), 10, 0.3, 0.2, 0.1, 0.3)
    known = games.Control("known", "VIOLATED", "VIOLATED", 1.0, 1.0, 1.0)
    beside = judged(first._replace(controls=(known,)), 0.05, attack=attack)
    assert [control.name for control in beside.controls] == ["known", FEE]
    assert (first.verdict, beside.verdict) == ("CERTIFIED", "VIOLATED")  # by the attack alone
    assert beside.verdicts == first.verdicts
    wider = judged(beside, 0.15)
    assert (wider.verdict, wider.tolerance, wider.attack) == ("INCONCLUSIVE", 0.15, attack)
    assert judged(beside, 0.31).verdict == "CERTIFIED"
    assert [control.name for control in wider.controls] == ["known", FEE]
    refuses(lambda: judged(first, -1.0), "expected tolerance to be at least 0, got -1")


def test_the_best_attack_is_reported_with_other_seeds() -> None:
    """Of two candidates the second one gains most with seeds 0 and 1, and 0.1 with the others."""
    gains = np.array([[0.0, 0.9], [0.0, 0.7], [0.3, 0.1], [0.3, -0.1], [0.3, 0.3]])
    payoffs = np.zeros((5, 3, 1))
    payoffs[:, 1:, 0] = gains
    table = games.PayoffTable(payoffs, np.array([[0], [1], [2]]), ("honest", "a", "b"), tuple(range(5)))
    strategies = {"a": Strategy(own=2.0, effort=1.0), "b": Strategy(own=1.0, effort=0.25)}
    attack = best_attack(games.unilateral_gains(table), strategies, 0.95)
    assert (attack.client, attack.strategy, attack.candidates) == (0, (("effort", 0.25),), 2)
    assert (attack.searched, attack.mean) == (pytest.approx(0.8), pytest.approx(0.1))
    assert attack.low < 0.1 < attack.high


def test_an_honest_run_that_diverged_counts_the_same_in_the_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest payoff of all is that of client 0 while client 2 lies; no candidate does as much harm."""
    payoffs = np.zeros((5, 2, 3))
    payoffs[4, 0] = np.nan
    choices = np.array([[0, 0, 0], [0, 0, 1]])
    tables = [games.PayoffTable(payoffs, choices, ("honest", name), tuple(range(5))) for name in (*LIES, "candidate 0")]
    tables[0] = tables[0]._replace(payoffs=np.where(np.arange(10).reshape(5, 2, 1) == 1, [-10.0, 0, 0], payoffs))
    monkeypatch.setattr(certificates, "payoffs", lambda *_, **__: tables.pop(0))
    found: Any = certify(candidates=1, controls=False)
    assert found.gains.gains[4].tolist() == [10]
    assert found.attack.mean == pytest.approx(10 / 3)  # with the last three seeds


def test_what_it_costs() -> None:
    """Of 3 clients: honest, 3 cells, 3 alone, and the honest run and 6 candidates of the attack."""
    cost = cost_of(PLAN, FEDERATION, rounds=2, seeds=5, cells=3, candidates=6, outside="mechanism")
    assert (cost.runs, cost.client_steps) == (5 * (1 + 3 + 3 + 1 + 6), 2 * 5 * (3 * 11 + 3))
    models = cost_of(PLAN, FEDERATION, rounds=2, seeds=5, cells=3, candidates=6)
    assert (models.runs, models.client_steps) == (5 * (1 + 3 + 1 + 1 + 6), 2 * 5 * 3 * 12)
    some = cost_of(PLAN, FEDERATION, rounds=2, seeds=5, cells=14, outside=None)
    assert some.runs == 5 * (1 + 14)
    assert cost_of(PLAN, FEDERATION, rounds=2, seeds=5, cells=14, outside=None, splits=3).runs == 5 * (1 + 14 + 1 + 3)


def test_the_stages_have_checkpoints_and_counts_of_their_own() -> None:
    told: list[RunsDone] = []
    stages = Stages({"checkpoint": Checkpoint("folder", 3.0), "on_block": told.append, "block": 7}, 70)
    with stages.of("attack", 35) as arguments:
        assert (arguments["checkpoint"], arguments["block"]) == (Checkpoint(pathlib.Path("folder/attack"), 3.0), 7)
        arguments["on_block"](RunsDone(5, 35, 1.0, 5))
    assert told == [RunsDone(40, 70, 1.0, 5)]
    with Stages({"checkpoint": "folder"}, 1).of("a", 0) as first, Stages({}, 1).of("a", 0) as none:
        assert (first, none) == ({"checkpoint": Checkpoint(pathlib.Path("folder/a"))}, {})
    with pytest.raises(Stopped, match="stopped after 43 of 70 runs") as raised, stages.of("", 35):
        raise Stopped(8, 35, 8, "runs")
    assert (raised.value.saved, raised.value.unit) == (43, "runs")
    with pytest.raises(Stopped, match="stopped after 8 of 70 runs") as raised, stages.of("", 0):
        raise Stopped(8, 35, None, "runs")
    assert raised.value.saved is None


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 4}, "expected at least 5 seeds for a certificate, got 4"),
        ({"tolerance": -0.1}, "expected tolerance to be at least 0, got -0.1"),
        ({"confidence": 1.0}, "expected confidence to be between 0 and 1, got 1.0"),
        ({"method": "hoeffding"}, "expected one of the methods bonferroni, max_t, got 'hoeffding'"),
        ({"candidates": -1}, "expected candidates to be a whole number of at least 0, got -1"),
        ({"identities": 0}, "expected identities to be a whole number of at least 1, got 0"),
        ({"candidates": 2.5}, "expected candidates to be a whole number of at least 0, got 2.5"),
        ({"max_runs": 10}, "expected at most 10 runs, got 60 runs, .*; max_runs allows more, and fewer seeds"),
        ({"deviations": {"a": Strategy(flip=0.5)}}, "got 'a' of one which never reads labels of classes"),
    ],
)
def test_bad_questions_are_refused_before_anything_runs(changes: dict[str, Any], words: str) -> None:
    refuses(lambda: certify(**changes), words)
