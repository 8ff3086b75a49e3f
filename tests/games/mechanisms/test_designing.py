"""``design``: games with known answers, candidates on federations that they never saw, and searches that go on."""

from __future__ import annotations

import pathlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fljax import Plan, algorithms, data, games
from fljax.engine.checkpoints import Checkpoint, Stopped, StopRequest
from fljax.games import Around, Baseline, Design, Interval, design
from fljax.games.mechanisms.designing import DESIGNED
from fljax.games.mechanisms.playing import of_plan
from fljax.games.mechanisms.searching import Space
from fljax.games.mechanisms.tables import _certified_from
from fljax.scenarios import ByReport, Strategy
from tests.compiled import compilations
from tests.games.mechanisms import known
from tests.games.played import GAINS, unilateral

DOUBLE = {"double": Strategy(own=2.0)}
ONE: dict[str, Any] = {"pool": 1, "resample": 1, "validation": 1, "fresh": 5}
RATE = {"server_lr": Interval(0.0, 2.5)}


def rates(**options: Any) -> Design:
    """A: the rate of FedAvg with the targets 0 and 1."""
    same: dict[str, Any] = {
        "rounds": 1,
        "deviations": DOUBLE,
        "worse_off": 1.0,
        "candidates": 0,
        "over": RATE,
        "budget": 2_000,
    }
    same |= {"mechanism": known.UNIFORM, "federations": lambda seed: known.of_targets([0.0, 1.0])}
    return design(**{**ONE, **same, **options})


def auctions(**options: Any) -> Design:
    """C: the auction of two bidders, for its revenue."""
    over = {"a": Interval(0.0, 1.0), "r": Interval(0.0, 1.0)}
    same: dict[str, Any] = {
        "clients": 3,
        "deviators": [0, 1],
        "outside": None,
        "penalty": 1_000.0,
        "tolerance": [0.0],
        "budget": 4_000,
    }
    lies = [f"times {factor:g}" for factor in known.FACTORS[1:]]
    return design(known.auction, over=over, deviations=lies, objective=revenue, **{**ONE, **same, **options})


def revenue(payoffs: Any) -> Any:
    return payoffs[2]


@pytest.mark.thorough
def test_the_front_of_a_rate_in_closed_form() -> None:
    tolerances = [0.0, 0.05, 0.15, 0.25]
    found = rates(tolerance=tolerances, budget=8_000)
    assert found.runs <= 8_000
    for tolerance, chosen in zip(tolerances, found.chosen[DESIGNED], strict=True):
        best = known.best_rate(tolerance)
        assert float(chosen.arguments["server_lr"]) == pytest.approx(best, abs=1e-3)
        assert chosen.fresh.objective == pytest.approx(-((best / 2) ** 2 + (1 - best / 2) ** 2) / 2, abs=1e-3)
        assert chosen.fresh.regret == pytest.approx(tolerance, abs=1e-3)
        assert chosen.fresh.objective == pytest.approx(float(chosen.objective.mean()))
    # A lie that the search did not know gains 1/9 where it has no regret.
    plan, federation = found.plan(0.0), known.of_targets([0.0, 1.0])
    unseen = {"half more": Strategy(own=1.5)}
    certificate = games.certify(plan, federation, rounds=1, tolerance=0.05, deviations=unseen, candidates=0)
    assert certificate.verdict == "VIOLATED"
    assert certificate.bounds.mean.max() == pytest.approx(1 / 9, abs=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("budget", "payment"), [(None, 0.3), (0.2, 0.1)])
def test_the_least_payment_for_which_clients_take_part(budget: float | None, payment: float) -> None:
    """An honest client has -1/4 from the model, its effort costs 1/10, and it gets half of the payment."""
    options: dict[str, Any] = {"mechanism": Plan(algorithms.weighted, known.SAME), "tolerance": [1.0], "worse_off": 0.0}
    options |= {"over": {"payment": Interval(0.0, 1.0)}, "objective": lambda payoffs: -payoffs.sum(), "budget": 800}
    # The second client takes part for 3/10, which a budget of 1/5 does not pay.
    options |= {"outside": np.array([-0.3, -0.2]), "utility": games.Utility(cost=0.1, price=1.0, budget=budget)}
    chosen = rates(**options).chosen[DESIGNED][0]
    assert float(chosen.arguments["payment"]) == pytest.approx(payment, abs=0.02)
    assert chosen.fresh.objective == pytest.approx(0.7 - chosen.arguments["payment"], abs=1e-5)
    assert chosen.fresh.worse_off == (0 if budget is None else 0.5)


@pytest.mark.thorough
def test_the_mean_without_a_bound_of_regret_and_nearly_the_median_with_one() -> None:
    lies = {f"times {factor}": Strategy(own=float(factor)) for factor in (2, 5, 15, 40)}
    sizes: dict[str, Any] = {"pool": 200, "resample": 60, "validation": 200, "fresh": 100, "budget": 90_000}
    options: dict[str, Any] = {"rounds": 1, "worse_off": 1.0, "roles": False, "outside": None, "candidates": 0}
    options |= {"over": {"b": Interval(0.0, 1 / 3)}, "tolerance": [0.005, 1.0], "deviations": lies}
    found = design(Plan(known.ordered, known.SAME), known.of_normal_targets, **options, **sizes)
    truthful, free = (float(chosen.arguments["b"]) for chosen in found.chosen[DESIGNED])
    assert truthful <= 0.02
    assert free >= 0.30


@pytest.mark.thorough
@pytest.mark.parametrize("tolerance", [0.0, 0.15])
def test_gradients_from_several_starts_leave_a_local_optimum(tolerance: float) -> None:
    # From the middle of this space, 0.16, slopes lead to 0.01, where a lie gains nothing, either.
    trap = {"server_lr": Interval(0.01, 2.5, log=True)}
    (chosen,) = rates(tolerance=[tolerance], over=trap, search="gradient").chosen[DESIGNED]
    assert float(chosen.arguments["server_lr"]) == pytest.approx(known.best_rate(tolerance), abs=0.02)


def test_slopes_of_payoffs_in_closed_form_by_one_program() -> None:
    game = of_plan(known.UNIFORM, data.stack([known.of_targets([0.0, 1.0])] * 2), DOUBLE, rounds=1)
    profiles, weights = np.tile([[0, 0], [0, 1]], (2, 1, 1)), np.zeros((2, 2, 1, 2))
    weights[:, 0, 0, 0], weights[:, 1, 0, 1] = 1, 10

    def at(rates: list[float], place: int) -> None:
        # The honest model is s / 2, and s if the client with the target 1 doubles.
        found = game.slopes({"server_lr": np.array(rates, np.float32)}, profiles, np.array([place]), weights)
        expected = [-rate / 2 - 20 * (rate - 1) for rate in rates]
        np.testing.assert_allclose(found["server_lr"], expected, rtol=1e-5)

    at([0.5, 1.2], 0)
    with compilations() as seen:
        at([0.1, 2.0], 1)
    assert not seen


@pytest.mark.parametrize("search", ["cma", "random"])
def test_the_best_auction_has_the_second_price_and_a_reserve_of_a_half(search: Any) -> None:
    found = auctions(search=search)
    (chosen,) = found.chosen[DESIGNED]
    assert found.runs <= 4_000
    if search == "cma":
        assert chosen.arguments["a"] <= 0.01
        assert chosen.arguments["r"] == pytest.approx(0.5, abs=0.05)
        assert chosen.fresh.objective == pytest.approx(5 / 12, abs=0.005)
    assert chosen.fresh.objective > 1 / 3
    assert auctions(search=search).chosen[DESIGNED][0].arguments == chosen.arguments
    assert found.chosen[DESIGNED][0].certificate is None


@pytest.mark.parametrize("search", ["cma", "gradient"])
def test_a_search_that_is_killed_three_times_ends_with_the_same_bits(search: str, tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"tolerance": [0.05], "budget": 400, "search": search}
    whole, left = rates(**options), [2, 7, 5]

    def killed(_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            left.pop(0)
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            rates(**options, checkpoint=tmp_path, on_block=killed)
    again = rates(**options, checkpoint=tmp_path)
    (before,), (after,) = whole.chosen[DESIGNED], again.chosen[DESIGNED]
    assert before.arguments == after.arguments
    np.testing.assert_equal(before[2:6], after[2:6])  # NaN are standard errors of one federation
    with pytest.raises(ValueError, match="expected the run of the checkpoints in"):
        rates(**options, checkpoint=tmp_path, seed=1)


def test_baselines_are_tuned_and_paired_by_federation() -> None:
    fixed, tuned = Baseline(known.UNIFORM), Baseline(known.UNIFORM, RATE, budget=400)
    found = rates(tolerance=[0.05], budget=400, baselines={"fixed": fixed, "tuned": tuned})
    (chosen,), (same,) = found.chosen[DESIGNED], found.chosen["tuned"]
    assert chosen.arguments == same.arguments
    assert found.price(0.05, "tuned").mean == 0
    # With the rate 1 both clients have -1/4.
    assert found.chosen["fixed"][0].fresh.objective == pytest.approx(-0.25)
    assert found.price(0.05, "fixed").mean == pytest.approx(chosen.fresh.objective + 0.25)
    assert "fixed at 0.05: objective -0.25, regret 0.25 by double" in repr(found)
    assert found.plan(0.05).arguments["server_lr"] == chosen.arguments["server_lr"]
    for call in (found.plan, lambda tolerance: found.price(tolerance, "tuned")):
        with pytest.raises(ValueError, match=r"expected one of the tolerances 0\.05, got 0\.02"):
            call(0.02)
    with pytest.raises(ValueError, match="'other'"):
        found.price(0.05, "other")


# Its payoffs are accuracies.
SCORED = Plan(algorithms.fedavg, {**known.SAME, "task": known.TASK._replace(score=lambda outputs, y: 0.0 * y)})


def wrong(message: Any, knowledge: Any) -> Any:
    return knowledge


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"over": {}}, "expected at least one argument to search, got none"),
        ({"over": {"rate": Interval(0, 1)}}, "rate"),
        ({"over": {"server_lr": Interval(2, 1)}}, "expected an interval from a lower to a higher end for server_lr"),
        ({"over": {"server_lr": Interval(0, 1, log=True)}}, "expected a positive lower end for server_lr"),
        ({"over": {"server_lr": Interval(-1, 1)}}, "server_lr"),
        ({"over": {"server_lr": Around([0.0], -1.0)}}, "expected a positive scale"),
        ({"over": {"server_lr": 1.0}}, "expected an Interval or an Around for server_lr, got 1.0"),
        ({"fresh": 4}, "expected fresh to be a whole number of at least 5, got 4"),
        ({"resample": 2}, "expected at most the 1 federations of pool for resample, got 2"),
        ({"budget": 10}, "expected a budget of at least 66 runs for designed, for two generations"),
        ({"population": 3}, "expected population to be a whole number of at least 4, got 3"),
        ({"rounds": None}, "expected rounds to be a whole number of at least 1, got None"),
        ({"tolerance": 0.05}, "expected different tolerances of at least 0, got 0.05"),
        ({"outside": "mechanism"}, "expected outside options that all mechanisms share, got 'mechanism'"),
        ({"over": {"played": Interval(0.0, 1.0)}}, "got 'played'"),
        ({"objective": lambda payoffs: payoffs}, "expected the objective .* to return one number"),
        ({"deviations": {"lie": wrong}}, "lie"),
        ({"baselines": {"designed": Baseline(known.UNIFORM)}}, "with a label other than 'designed'"),
        ({"baselines": {"bare": known.UNIFORM}}, "expected a fljax.games.Baseline of a plan"),
        ({"baselines": {"b": Baseline(known.UNIFORM, RATE, 10)}}, "expected a budget of at least 66 runs for b"),
        ({"baselines": {"b": Baseline(known.UNIFORM, {"rate": Interval(0.0, 1.0)})}}, "b: expected one of the arg"),
        ({"tolerance": [0.1, 0.1]}, "expected different tolerances of at least 0"),
        ({"objective": "total"}, "objective"),
        ({"objective": "nash", "outside": None}, "expected payoffs outside for the objective 'nash'"),
        ({"search": "grid"}, "search"),
        ({"search": "gradient", "objective": "participation"}, 'with a gradient .* got "participation"'),
        ({"search": "gradient", "mechanism": SCORED}, r'such as "mean" and Utility\(metric="test_loss"\)'),
        ({"worse_off": 2.0}, "expected worse_off to be a share of clients, got 2.0"),
        ({"penalty": -1.0}, "expected penalty to be a number of at least 0, got -1.0"),
        ({"deviators": [3]}, "expected deviators to be ids of the clients 0 to 1, got 3"),
    ],
)
def test_refusals_before_anything_runs(options: dict[str, Any], words: str) -> None:
    def never(_: Any) -> None:
        raise AssertionError("something ran")

    with pytest.raises(ValueError, match=words):
        rates(**{"tolerance": [0.05], "outside": "standalone", "on_block": never, **options})


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": None}, "expected clients, the number of them, for a function as mechanism, got None"),
        ({"rounds": 3}, "expected no rounds for a function as mechanism"),
        ({"block": 3}, "expected no block for a function as mechanism"),
        ({"baselines": {}}, "expected no baselines for a function as mechanism"),
    ],
)
def test_refusals_of_a_function(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        auctions(**options)
    with pytest.raises(ValueError, match="expected an objective and payoffs with a gradient"):
        auctions(search="gradient")
    with pytest.raises(ValueError, match="expected different names of deviations"):
        design(known.auction, over=RATE, clients=3, deviations=["a", "a"])


@pytest.mark.parametrize("search", ["cma", "random", "gradient"])
def test_a_budget_is_kept_and_the_least_one_suffices(search: str) -> None:
    played = list[int]()
    options: dict[str, Any] = {"search": search, "outside": None, "tolerance": [0.05, 0.1]}
    options["on_block"] = lambda done: played.append(done.block)
    with pytest.raises(ValueError, match="expected a budget of at least") as refused:
        rates(**{**options, "budget": 1})
    least = int(str(refused.value).split("at least ")[1].split(" runs")[0])
    for budget in (least, 3 * least):
        played.clear()
        found = rates(**{**options, "budget": budget})
        assert found.runs <= budget
        # Fresh ones are beside it: for both honest runs, also without the number, and three profiles if they differ.
        different = len({float(chosen.arguments["server_lr"]) for chosen in found.chosen[DESIGNED]})
        slopes = found.runs - sum(played) + 5 * (4 + 3 * different)
        assert slopes % 16 == 0  # of eight points, and of the worst lie
        assert (slopes > 0) == (search == "gradient")


def shocked(numbers: Any, profile: Any, seed: int) -> Any:
    """The best numbers are .7 and .3 on every federation; some federations are better for all."""
    shock = np.random.default_rng(seed).normal()
    return [shock - (numbers["a"] - 0.7) ** 2 - (numbers["r"] - 0.3) ** 2 - profile.any()]


def diverging(numbers: Any, profile: Any, seed: int) -> Any:
    return [-1.0 - numbers["a"] if numbers["a"] <= 0.2 else np.nan]


@pytest.mark.parametrize("search", ["cma", "random"])
def test_luck_of_federations_and_runs_that_diverge_do_not_win(search: Any) -> None:
    over = {"a": Interval(0.0, 1.0), "r": Interval(0.0, 1.0)}
    options: dict[str, Any] = {"clients": 1, "deviations": ["lie"], "tolerance": [0.1], "search": search, "fresh": 5}
    chosen = design(shocked, over=over, budget=10_000, **options).chosen[DESIGNED][0]
    assert float(chosen.arguments["a"]) == pytest.approx(0.7, abs=0.05)
    assert float(chosen.arguments["r"]) == pytest.approx(0.3, abs=0.05)
    chosen = design(diverging, over={"a": over["a"]}, budget=5_000, **options).chosen[DESIGNED][0]
    assert chosen.arguments["a"] <= 0.2
    with pytest.raises(ValueError, match="expected candidates of which some run stays finite"):
        design(diverging, over={"a": Interval(0.3, 1.0)}, budget=5_000, **options)


def test_baselines_do_not_play_what_they_never_read() -> None:
    lies = {**DOUBLE, "no loss": Strategy(factor=ByReport(loss=0.0))}
    plan = Plan(algorithms.qffl, {**known.SAME, "q": 1.0})
    found = rates(
        mechanism=plan, deviations=lies, budget=500, baselines={"b": Baseline(known.UNIFORM)}, tolerance=[1.0]
    )
    certificates = [found.chosen[label][0].certificate for label in (DESIGNED, "b")]
    names = [set(each.gains.deviations) for each in certificates if each is not None]
    assert names == [{"double", "no loss"}, {"double"}]


def test_a_baseline_that_reads_no_lie_has_nothing_to_certify() -> None:
    plan, lies = Plan(algorithms.qffl, {**known.SAME, "q": 1.0}), {"no loss": Strategy(factor=ByReport(loss=0.0))}
    beside = {"b": Baseline(known.UNIFORM, RATE, 300)}
    found = rates(mechanism=plan, deviations=lies, budget=300, baselines=beside, tolerance=[1.0])
    (chosen,) = found.chosen["b"]
    assert (chosen.certificate, chosen.fresh.regret, chosen.fresh.lie) == (None, 0.0, "")
    assert float(chosen.arguments["server_lr"]) == pytest.approx(1.0, abs=0.1)
    dataset = games.design_dataset(found)
    assert dataset["verdict"].values.tolist()[1] == [""]


def test_a_request_to_stop_between_calls_of_one_block_is_heard(tmp_path: pathlib.Path) -> None:
    stop, played = StopRequest(), list[int]()

    def stopped(block: Any) -> None:
        played.append(block.block)
        if len(played) == 5:
            stop.make()

    with pytest.raises(Stopped):
        rates(tolerance=[0.05], budget=400, checkpoint=Checkpoint(tmp_path, stop=stop), on_block=stopped)
    assert len(played) == 5
    again, whole = rates(tolerance=[0.05], budget=400, checkpoint=tmp_path), rates(tolerance=[0.05], budget=400)
    assert again.chosen[DESIGNED][0].arguments == whole.chosen[DESIGNED][0].arguments


def test_a_tolerance_is_certified_where_the_attack_gains_less_too() -> None:
    gains = unilateral(GAINS)
    certificate = games.certificate(gains, tolerance=0.05)
    attacked = certificate._replace(attack=games.Attack(0, (("own", 2.0),), 6, 0.0, 0.1, 0.0, 0.2))
    assert _certified_from(certificate) == max(0.0, certificate.epsilon_high)
    assert _certified_from(attacked) == 0.2
    assert np.isnan(_certified_from(None))


def test_what_two_tolerances_share_is_certified_once_and_judged_at_each() -> None:
    played = list[int]()
    options: dict[str, Any] = {"on_block": lambda done: played.append(done.block), "max_runs": 1, "outside": None}
    found = rates(tolerance=[0.01, 0.3], budget=400, baselines={"fixed": Baseline(known.UNIFORM)}, **options)
    certificates = [chosen.certificate for chosen in found.chosen["fixed"]]
    assert [each.tolerance for each in certificates if each is not None] == [0.01, 0.3]
    different = len({float(chosen.arguments["server_lr"]) for chosen in found.chosen[DESIGNED]})
    assert sum(played) - found.runs == 5 * (2 * 2 + 2 + 3 * (1 + different))  # 2 of what the rate adds


def test_an_argument_that_is_searched_needs_no_default_and_none_is_by_seed() -> None:
    plan = Plan(without_default, known.SAME)
    found = rates(mechanism=plan, over={"b": Interval(0.1, 0.3)}, tolerance=[5.0], budget=200, outside=None)
    assert 0.1 <= float(found.chosen[DESIGNED][0].arguments["b"]) <= 0.3
    with pytest.raises(ValueError, match="expected arguments that are not by seed to search, got b"):
        rates(mechanism=plan._replace(by_seed={"b": np.zeros(7)}), over={"b": Interval(0.1, 0.3)}, outside=None)
    with pytest.raises(ValueError, match=r"by: expected arguments by seed of all 7 federations, got \{3\}"):
        rates(baselines={"by": Baseline(plan._replace(by_seed={"b": np.zeros(3)}))}, outside=None)


def without_default(task: Any, local: Any, *, b: float, clients_per_round: int | None = None) -> Any:
    return algorithms.fedavg(task, local, server_lr=b, clients_per_round=clients_per_round)


@given(low=st.floats(1e-3, 1.0), ratio=st.floats(1.001, 1e3), log=st.booleans())
def test_numbers_are_inside_of_their_interval(low: float, ratio: float, log: bool) -> None:
    space = Space({"x": Interval(low, low * ratio, log=log)})
    found = space.arguments(np.array([[0.0], [0.5], [1.0]]))["x"]
    assert found.dtype == np.float32
    assert low <= float(found.min()) <= float(found.max()) <= low * ratio
    np.testing.assert_allclose(found[[0, 2]], [low, low * ratio], rtol=1e-6)
    assert found[1] == pytest.approx(low * np.sqrt(ratio) if log else low * (1 + ratio) / 2, rel=1e-5)


def test_a_stack_has_all_federations() -> None:
    stacked = data.stack([known.of_targets([0.0, 1.0])] * 3)
    with pytest.raises(ValueError, match=r"a stack of 7 federations \(pool, validation and fresh\), got 3 of them"):
        design(known.UNIFORM, stacked, over=RATE, deviations=DOUBLE, outside=None, rounds=1, **ONE)
