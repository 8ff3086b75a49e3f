"""Whole runs: each is what ``simulate`` gives, whatever runs beside it; blocks are saved and taken up again."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import data as federations
from fljax import engine
from fljax.algorithms import ifca, scaffold
from fljax.engine import Over, Plan, RunsDone, runs
from fljax.engine.checkpoints import Checkpoint, Stopped, StopRequest
from fljax.engine.whole_runs import running
from fljax.engine.whole_runs.program import all_scores
from fljax.engine.whole_runs.running import block_length
from fljax.engine.whole_runs.saved import RunFolder, finished
from fljax.experiments.inputs.preparation import Composed
from fljax.protocol import along
from fljax.training import Local
from tests.compiled import compilations
from tests.refusals import refuses
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)
PLAN = Plan(scaffold, {"task": TASK, "local": LOCAL, "clients_per_round": 4})
ROUNDS = 2
MEMBERS = np.array(
    [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]
)
RATES = np.array([1.0, 0.5, 1.0, 2.0, 0.25, 1.5])


def compute(member: Any = MEMBERS, rate: Any = RATES, **others: Any) -> xr.Dataset:
    """The runs of these members and server learning rates, with two seeds."""
    given: dict[str, Any] = {"rounds": ROUNDS, "seeds": (3, 8)} | others
    return runs(PLAN, tiny_federation(), Over({"server_lr": rate}, member), **given)


@pytest.fixture(scope="module")
def table() -> xr.Dataset:
    """Six runs with two seeds; all tests share their program."""
    return compute()


def test_measures_are_labelled(table: xr.Dataset) -> None:
    assert dict(table.sizes) == {"run": 6, "seed": 2, "client": 5, "unseen": 2}
    assert (table["test_loss"].dims, table["seed"].values.tolist()) == (("run", "seed", "client"), [3, 8])
    np.testing.assert_array_equal(table["member"], MEMBERS != 0)
    assert not table["diverged"].any()
    assert np.isfinite(table["test_loss"]).all()  # all clients are judged, members or not
    assert table.attrs["notes"] == "5 of 6 runs have fewer members than the cohort of 4: all take part"


def test_clusters_are_those_of_the_builder_and_of_configs() -> None:
    given = {"task": TASK, "local": LOCAL}
    assert (running._clusters(PLAN), running._clusters(Plan(ifca, given))) == (0, 2)
    assert running._clusters(Plan(ifca, given | {"clusters": 3})) == 3
    of_a_config = Plan(Composed(ifca), {"arguments": given | {"clusters": 4}, "options": ()})
    assert running._clusters(of_a_config) == 4


@pytest.mark.in_turn
def test_a_run_of_all_clients_is_that_of_simulate(table: xr.Dataset) -> None:
    result = engine.simulate(PLAN, tiny_federation(), rounds=ROUNDS, seeds=(3, 8))
    expected = result.metrics["test_loss"].isel(evaluated_round=-1)
    np.testing.assert_allclose(table["test_loss"].isel(run=0), expected, rtol=1e-5)
    # Without rounds nobody has trained, and nobody has where there are no members.
    start = result.metrics["test_loss"].isel(evaluated_round=0)
    np.testing.assert_allclose(table["test_loss"].isel(run=1), start, rtol=1e-6)


@pytest.mark.in_turn
def test_a_run_does_not_depend_on_the_others(table: xr.Dataset) -> None:
    order = [4, 2, 0]
    found = compute(MEMBERS[order], RATES[order])
    assert found.drop_vars("run").equals(table.isel(run=order).drop_vars("run"))


def test_costs_change_the_order_alone(table: xr.Dataset) -> None:
    over = Over({"server_lr": RATES}, MEMBERS, cost=np.arange(1.0, 7))
    assert runs(PLAN, tiny_federation(), over, rounds=ROUNDS, seeds=(3, 8)).identical(table)


def test_a_run_that_diverges_is_marked_and_unknown(table: xr.Dataset) -> None:
    rates = LOCAL._replace(learning_rate=np.where(np.arange(6) == 2, 3e38, LOCAL.learning_rate))
    over = Over({"server_lr": RATES, "local": rates}, MEMBERS)
    found = runs(PLAN, tiny_federation(), over, rounds=ROUNDS, seeds=(3, 8))
    assert found["diverged"].values[:, 0].tolist() == [False, False, True, False, False, False]
    assert np.isnan(found["test_loss"].isel(run=2)).all()
    others = [0, 1, 3, 4, 5]
    assert found.isel(run=others).equals(table.isel(run=others))


class Interrupted(Exception):
    """The process ends."""


@pytest.mark.in_turn
def test_finished_blocks_are_not_computed_again(table: xr.Dataset, tmp_path: pathlib.Path) -> None:
    told: list[RunsDone] = []
    notes: list[str] = []

    def interrupt(done: RunsDone) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        compute(checkpoint=tmp_path / "a", on_block=interrupt)
    kept = sorted(tmp_path.glob("a/runs-*.npz"))
    assert len(kept) == 1
    found = compute(checkpoint=Checkpoint(tmp_path / "a", note=notes.append), on_block=told.append)
    assert found.identical(table)
    assert notes == ["goes on with 8 of 12 runs"]
    assert [done.done for done in told][-1] == 12
    assert told[0].done == 4 + told[0].block
    # A third call computes nothing; a damaged file is computed anew.
    assert compute(checkpoint=tmp_path / "a", on_block=interrupt).identical(table)
    kept[0].write_bytes(b"PK")
    found = compute(checkpoint=Checkpoint(tmp_path / "a", note=notes.append))
    assert found.identical(table)
    assert notes[1:] == [
        "runs-00000.npz is damaged or of other runs; its runs are computed anew",
        "goes on with 4 of 12 runs",
    ]
    refuses(lambda: compute(checkpoint=tmp_path / "a", rounds=3), "another one: rounds is 2 there and 3 here")
    refuses(lambda: compute(rate=2 * RATES, checkpoint=tmp_path / "a"), "another one: numbers of the algorithm differ")
    refuses(lambda: compute(1 - MEMBERS, checkpoint=tmp_path / "a"), "another one: members differ")


@pytest.mark.in_turn
def test_blocks_of_one_length_share_a_program_whatever_the_number_of_runs() -> None:
    """3, 40 and 100 runs, in programs of 32 rows; a run has the bits that it has in programs of another length."""
    rates = np.linspace(0.25, 2, 50)
    compute(None, rates[:2], seeds=(3,), block=32)
    free = compute(None, rates)
    with compilations() as seen:
        for number, seeds in ((3, [8]), (40, [3]), (50, [3, 8])):
            found = compute(None, rates[:number], seeds=seeds, block=32)
            assert found.equals(free.isel(run=slice(number)).sel(seed=seeds))
    assert seen == []


def scaled(algorithm: Any, state: Any, scores: Any, *, scale: float) -> dict[str, Any]:
    """A measure with a number."""
    return {"loss": scale * scores["test_loss"].values}


@pytest.mark.in_turn
@pytest.mark.parametrize("other", [functools.partial(scaled, scale=2.0), (scaled,)])
def test_blocks_of_another_measure_are_not_taken(tmp_path: pathlib.Path, other: Any) -> None:
    def folder(measure: Any) -> RunFolder:
        given: dict[str, Any] = {"rounds": 0, "seeds": (3,), "block": None, "execution": None}
        call, _ = running._prepared(PLAN, tiny_federation(), Over(), measure=all_scores, **given)
        return running._folder(Checkpoint(tmp_path), call._replace(measure=measure))

    finished(folder(functools.partial(scaled, scale=1.0)), {}, 1)
    refuses(lambda: finished(folder(other), {}, 1), r"got another one: measure is .*scaled")


def test_a_request_to_stop_is_heard_after_a_block(tmp_path: pathlib.Path) -> None:
    stop = StopRequest()
    stop.made = True
    with pytest.raises(Stopped, match="stopped after 4 of 12 runs"):
        compute(checkpoint=Checkpoint(tmp_path, stop=stop), execution=engine.Execution(devices=1))


def test_too_many_runs_are_refused_with_their_numbers() -> None:
    # Cohorts of 4, 0, 3, 1, 3 and 3 clients, two seeds, two rounds of two steps.
    words = r"expected at most 11 runs, got 12, which are 112 client-steps and 2 KiB of measures"
    refuses(lambda: compute(max_runs=11), words)


def count_and_model(algorithm: Any, state: Any, scores: Any) -> dict[str, Any]:
    """A whole number, an array without names and one with names."""
    return {"rounds": state.round, "bias": state.server.model.bias} | along("client", loss=scores["test_loss"].values)


@pytest.mark.thorough
def test_a_measure_of_ones_own(table: xr.Dataset) -> None:
    found = runs(
        PLAN, tiny_federation(), Over(member=MEMBERS[:2]), rounds=ROUNDS, seeds=(3, 8), measure=count_and_model
    )
    assert found["rounds"].dtype == np.float64
    assert (found["rounds"] == ROUNDS).all()
    assert found["bias"].dims == ("run", "seed", "bias_axis_0")
    np.testing.assert_allclose(found["loss"], table["test_loss"].isel(run=[0, 1]), rtol=1e-5)
    with pytest.raises(ValueError, match="got 'member'"):
        runs(PLAN, tiny_federation(), Over(), rounds=1, measure=lambda a, state, s: {"member": state.round})


@pytest.mark.thorough
@pytest.mark.devices
def test_devices_take_whole_runs_and_federations_may_differ_by_seed() -> None:
    data = federations.stack([tiny_federation(), tiny_federation(1)])
    given: dict[str, Any] = {"rounds": ROUNDS, "seeds": (3, 8)}
    both = runs(PLAN, data, Over(member=MEMBERS), **given)
    assert both.attrs["execution_devices"] == 2
    turned = runs(PLAN, data, Over(member=MEMBERS[::-1], cost=np.arange(1.0, 7)), **given)
    np.testing.assert_array_equal(turned["test_loss"][::-1], both["test_loss"])
    for place, seed in enumerate((3, 8)):
        alone = runs(PLAN, tiny_federation(place), Over(member=MEMBERS), rounds=ROUNDS, seeds=(seed,))
        np.testing.assert_allclose(alone["test_loss"].isel(seed=0), both["test_loss"].isel(seed=place), rtol=1e-5)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"block": 0}, "expected block to be a positive number of runs, got 0"),
        ({"rounds": -1}, "expected rounds to be a whole number from 0 to 134217727, got -1"),
        ({"execution": engine.Execution("debug")}, "compiled by a fixed rule, got 'debug'"),
        ({"execution": engine.Execution(examples="host")}, "execution.examples to be auto or device"),
        ({"rate": RATES[:5]}, "one row for each run, of at least one run, got member of 6, server_lr of 5"),
        ({"rate": -RATES}, "expected server_lr to be one finite number of at least 0, got -1.0"),
        ({"member": MEMBERS[:, :4]}, "a column for each of 5 clients, got shape"),
        ({"member": 2 * MEMBERS}, "expected member to hold zeros and ones, got 2"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(others: Any, words: str) -> None:
    assert "\n" not in refuses(lambda: compute(**others), words.replace("(", r"\("))


def test_blocks_take_some_seconds() -> None:
    costs = np.array([4.0, 4, 3, 2, 2, 1, 1, 1])
    assert block_length(costs, 15 / 11, 1, 8) == 3  # 4 + 4 + 3 at 15 / 11 seconds
    assert block_length(costs, 100.0, 2, 8) == 2
    assert block_length(costs, 1e-6, 2, 5) == 5
