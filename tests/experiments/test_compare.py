"""``fljax.compare`` and ``fljax.run_config``: what ``fljax run`` does, as functions of values."""

from __future__ import annotations

import copy
import functools
import io
import pathlib
import tomllib
from typing import Any

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

import fljax
from fljax import algorithms, data, report, scenarios
from fljax.cli.printing import as_table
from fljax.contributions import Measure
from fljax.engine.checkpoints import Stopped, StopRequest
from fljax.experiments.inputs.entrants import entrants
from fljax.experiments.inputs.setup import AlgorithmSetup
from fljax.report import write
from fljax.report.tables import main_table
from tests.refusals import refuses
from tests.toys.configs import BASE
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_programs")]

TASK, LOCAL = logistic_regression(), fljax.Local(0.1, 2, steps=2)
HOW: dict[str, Any] = {"rounds": 3, "seeds": 2, "clients_per_round": 3, "progress": False, "evaluate_every": 1}


def compare(entries: Any, federation: Any = None, **changes: Any) -> fljax.Comparison:
    """A short comparison on the tiny federation."""
    how: Any = HOW | changes
    return fljax.compare(entries, tiny_federation() if federation is None else federation, TASK, LOCAL, **how)


@pytest.fixture(scope="module")
def comparison() -> fljax.Comparison:
    return compare(["fedavg", algorithms.incfl, ("iafl", {"kappa": 0.5})])


def test_all_algorithms_and_metrics_are_in_one_dataset(comparison: fljax.Comparison) -> None:
    metrics = comparison.metrics
    assert comparison.labels == ("fedavg", "incfl", "iafl")
    assert metrics["average_accuracy"].dims == ("algorithm", "seed", "evaluated_round")
    assert (metrics["evaluated_round"].values.tolist(), metrics["seed"].values.tolist()) == ([0, 1, 2, 3], [0, 1])
    for name in ("incentivised_participation_rate", "unseen_ipr_loss", "opt_outs", "threshold"):
        assert name in metrics
    assert comparison.records.sizes["round"] == 3
    assert set(comparison.results) == set(comparison.labels)
    assert comparison.diverged == ()


@pytest.mark.thorough
def test_it_is_what_simulate_gives_with_thresholds_of_standalone_models(comparison: fljax.Comparison) -> None:
    federation = tiny_federation()
    alone = fljax.standalone(TASK, federation, LOCAL._replace(steps=100), seeds=2)
    arguments = {"task": TASK, "local": LOCAL, "clients_per_round": 3}
    plan = fljax.Plan(algorithms.incfl, arguments, {"threshold": alone.threshold})
    result = fljax.simulate(plan, federation, rounds=3, seeds=2, reference=alone, evaluate_every=1)
    found = comparison.metrics.sel(algorithm="incfl")
    for name in ("test_loss", "incentivised_participation_rate", "threshold"):
        np.testing.assert_allclose(found[name].values, result.metrics[name].values, rtol=1e-5, err_msg=name)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(comparison.results["incfl"].predict(3, x), result.predict(3, x), rtol=1e-4, atol=1e-6)


@pytest.mark.quick
def test_the_last_evaluation_of_each_algorithm() -> None:
    rounds = {"fedavg": 4, "incfl": 2}
    metrics = xr.Dataset(
        {
            "rounds_done": ("algorithm", list(rounds.values())),
            "average_accuracy": (("algorithm", "seed", "evaluated_round"), [[[0.1, 0.5, 0.9]], [[0.2, 0.7, np.nan]]]),
        },
        {"algorithm": list(rounds), "seed": [0], "evaluated_round": [0, 2, 4]},
    )
    last = fljax.Comparison("name", metrics, xr.Dataset(), {}).last
    assert last["average_accuracy"].values.tolist() == [[0.9], [0.7]]
    assert "evaluated_round" not in last.dims


def test_the_table_is_that_of_the_command(comparison: fljax.Comparison) -> None:
    table = comparison.table()
    assert list(table.index) == list(comparison.labels)
    assert {"IPR", "average", "average unseen"} <= set(table.columns)
    values = comparison.metrics["average_accuracy"].sel(algorithm="incfl", evaluated_round=3).values
    assert table.loc["incfl", "average"] == f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"
    written = io.StringIO()
    Console(file=written, width=150).print(as_table(main_table(comparison.metrics)[0]))
    printed = written.getvalue()
    assert all(cell in printed for cell in table.to_numpy().ravel())
    numbers = comparison.summary().set_index(["algorithm", "metric"])
    np.testing.assert_allclose(numbers.loc[("incfl", "average_accuracy"), "mean"], values.mean())


def test_its_texts_have_the_numbers(comparison: fljax.Comparison) -> None:
    lines = repr(comparison).splitlines()
    assert lines[0] == "Comparison of 3 algorithms. Test results after round 3, mean ± std over 2 seeds"
    assert lines[2].startswith("  incfl: IPR ")
    page = comparison._repr_html_()
    assert page.startswith("<table>")
    assert page.count("<tr>") == 4


def test_every_text_says_which_seeds_diverged(comparison: fljax.Comparison) -> None:
    rounds = np.where(comparison.metrics["algorithm"].values[:, None] == "incfl", [[-1, 2]], [[-1, -1]])
    found = comparison._replace(metrics=comparison.metrics.assign(diverged=(("algorithm", "seed"), rounds)))
    words = "1 of 2 seeds, round 2"
    assert found.table()["diverged"].to_dict() == {each: words * (each == "incfl") for each in found.labels}
    assert set(found.summary().query("algorithm == 'incfl'")["diverged"]) == {words}
    assert set(found.summary().query("algorithm != 'incfl'")["diverged"]) == {""}
    assert f"diverged {words}" in repr(found).splitlines()[2]
    assert found._repr_html_().count(words) == 1
    result = comparison.results["incfl"]._replace(diverged=((1, 2),))
    assert "seed 1 in round 2" in repr(result)
    assert "seed 1 in round 2" in result._repr_html_()
    assert "diverged" not in comparison.results["incfl"]._repr_html_()


def test_the_page_holds_everything(comparison: fljax.Comparison, tmp_path: Any) -> None:
    path = comparison.report(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "data:image/png" in text
    assert "made_by = &#34;fljax.compare&#34;" in text
    refuses(lambda: comparison.report(tmp_path / "none" / "page.html"), "expected a file to write the page to")


def test_a_saved_folder_is_loaded_and_reported(comparison: fljax.Comparison, tmp_path: Any, monkeypatch: Any) -> None:
    folder = comparison.save(tmp_path / "run")
    run = fljax.load(folder)
    assert run.labels == comparison.labels
    assert run.metrics.identical(comparison.metrics)
    assert run.records.equals(comparison.records)
    assert "3 rounds" in repr(run)
    assert run.records_of("incfl")["weight"].dims[0] == "seed"
    refuses(lambda: run.config, r"has results of fljax.compare, whose data and model are values of Python")
    refuses(lambda: run.models("incfl"), r"expected models in .*, which Comparison.save\(folder, models='last'\)")
    assert "comparison.toml" in write(folder)[1].read_text(encoding="utf-8")
    assert run.table().equals(comparison.table())
    assert run.summary().equals(comparison.summary())
    assert str(report.summary(run)) == str(report.summary(comparison)) == str(report.summary(comparison.metrics))
    assert run.report(tmp_path / "page.html").read_text(encoding="utf-8").count("<h2>") > 2
    for number in (2, 3):  # nothing is lost at the end of a script
        with pytest.warns(UserWarning, match=f"has results already, so these go to '.*run-{number}'"):
            assert fljax.load(comparison.save(folder)).metrics.identical(comparison.metrics)
    assert comparison.save(folder, overwrite=True) == folder
    monkeypatch.chdir(folder)
    for relative in (".", "../run"):
        with pytest.warns(UserWarning, match="has results already"):
            assert comparison.save(relative).resolve().parent == tmp_path


@pytest.mark.thorough
def test_a_plan_and_an_algorithm_run_as_they_are(comparison: fljax.Comparison) -> None:
    plan = fljax.Plan(algorithms.fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": 3})
    entries = {"a": plan, "b": algorithms.fedavg(TASK, LOCAL, clients_per_round=3)}
    found = compare(entries)
    expected = comparison.metrics["test_loss"].sel(algorithm="fedavg").values
    for label in entries:
        np.testing.assert_allclose(found.metrics["test_loss"].sel(algorithm=label).values, expected, rtol=1e-5)


@pytest.mark.quick
def test_options_may_have_local_contribution_and_scenarios() -> None:
    other = LOCAL._replace(steps=5)
    measure = Measure("size")
    (entry,) = entrants(
        [("iafl", {"local": other, "contribution": measure}, ["dropout", ("clipped", {"norm": 1.0})])], LOCAL, ()
    )
    assert entry == AlgorithmSetup(
        "iafl",
        algorithms.iafl,
        {},
        ((scenarios.dropout, {}), (scenarios.clipped, {"norm": 1.0})),
        other,
        measure,
    )


@pytest.mark.quick
@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("fedavg", "expected a list of algorithms"),
        ([], "expected a list of algorithms"),
        (["fedavgg"], r"expected one of the algorithms .*did you mean 'fedavg'\?"),
        (["fedavg", "fedavg"], "two entries 'fedavg'"),
        ([("incfl", {"epz": 1})], r"expected one of the options .*got 'epz' \(did you mean 'eps'\?\) for incfl"),
        ([("incfl", 3)], "expected a name, a builder"),
        ([3], "expected a name, a builder"),
        ([("incfl", {}, [3])], "expected a scenario as a name"),
        ([algorithms.fedavg(TASK, LOCAL)], "expected a label for an Algorithm"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_one_sentence(given: Any, sentence: str) -> None:
    refuses(lambda: entrants(given, LOCAL, ()), sentence)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 0}, "expected rounds to be a positive whole number, got 0"),
        ({"evaluate_every": 1.5}, "expected evaluate_every to be a positive whole number, got 1.5"),
        ({"seeds": 0}, "expected a positive number of seeds"),
        ({"federation": TASK}, "expected federation to be a Federation, got Task"),
        ({"callbacks": [3]}, "expected callbacks to be a list of functions of a Block, got \\[3\\]"),
        ({"opt_out_threshold": [0.1, 0.2]}, "one for each of 5 clients by id, got .0.1, 0.2."),
        ({"opt_out_threshold": [[0.1], [0.2, 0.3]]}, r"one for each of 5 clients by id, got \[\[0.1\], "),
        ({"opt_out_threshold": float("nan")}, "opt_out_threshold to be one finite number, .* got nan"),
        ({"opt_out_threshold": "0.1"}, "opt_out_threshold to be one finite number, .* got '0.1'"),
        (
            {"opt_out_threshold": xr.DataArray(np.zeros(5), {"client": list("abcde")}, ("client",))},
            "opt_out_threshold to be without labels, .* got a DataArray",
        ),
    ],
)
@pytest.mark.unchecked
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], sentence: str) -> None:
    refuses(lambda: compare(["fedavg"], **changes), sentence)


@pytest.mark.thorough
def test_progress_and_callbacks_see_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    events, blocks = [], []
    stop = fljax.stop_early("average_accuracy", patience=1, minimum_change=2.0)
    how = {"seeds": 1, "progress": events.append, "callbacks": [stop, blocks.append]}
    found = compare(["fedavg", "fedprox"], **how)
    trained = dict.fromkeys(event.label for event in events if event.stage == "train")
    assert list(trained) == ["fedavg", "fedprox"]
    assert list(dict.fromkeys(block.label for block in blocks)) == ["fedavg", "fedprox"]
    # Each algorithm stops after as many evaluations, since histories begin anew.
    assert [block.round for block in blocks] == [1, 2] * 2 or [block.round for block in blocks] == [1] * 2
    assert set(found.metrics["rounds_done"].values.tolist()) == {blocks[-1].round}
    assert capsys.readouterr().err == ""
    compare(["fedavg"], progress=True)
    assert "fedavg" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_stopped_comparison_goes_on_from_its_checkpoints(comparison: fljax.Comparison, tmp_path: Any) -> None:
    entries = ["fedavg", "incfl"]
    stop = StopRequest()
    seen: list[str] = []

    def ask(event: Any) -> None:
        seen.append(f"{event.label}: {event.message}")
        if event.stage == "train" and event.label == "incfl" and event.round == 1:
            stop.make()

    with pytest.raises(Stopped):
        compare(entries, checkpoint=tmp_path, stop=stop, progress=ask)
    again: list[str] = []
    found = compare(entries, checkpoint=tmp_path, progress=lambda event: again.append(event.message))
    assert "standalone models are those of the earlier process" in again
    for name in ("test_loss", "incentivised_participation_rate"):
        expected = comparison.metrics[name].sel(algorithm=entries).values
        np.testing.assert_allclose(found.metrics[name].values, expected, rtol=1e-5)
    refuses(lambda: compare(entries, checkpoint=tmp_path, seeds=3), r"expected the config of the checkpoints")


@pytest.mark.thorough
def test_run_config_is_fljax_run(tmp_path: Any) -> None:
    raw = copy.deepcopy(BASE)
    found = fljax.run_config(raw, ["rounds=2"], folder=tmp_path / "run", progress=False)
    assert raw == BASE
    assert found.metrics["evaluated_round"].values.tolist() == [0, 2]
    run = fljax.load(tmp_path / "run")
    assert run.config.rounds == 2
    assert run.metrics.identical(found.metrics)
    copied = fljax.load(found.save(tmp_path / "copy"))
    assert copied.config == run.config
    refuses(lambda: found.save(tmp_path / "run", overwrite=True), "expected a folder that no run writes to")
    refuses(lambda: fljax.run_config({"rounds": 2}, progress=False), "expected")


@pytest.mark.thorough
def test_one_federation_per_seed() -> None:
    """The first seed is as on its federation alone; the second has other data, and other thresholds."""
    both = [tiny_federation(0), tiny_federation(1)]
    found, single = compare(["fedavg"], both), compare(["fedavg"], both[0])
    for name in ("threshold", "test_loss"):
        expected = single.metrics[name].isel(seed=0)
        np.testing.assert_allclose(found.metrics[name].isel(seed=0), expected, rtol=1e-5, err_msg=name)
        assert not np.allclose(found.metrics[name].isel(seed=1), single.metrics[name].isel(seed=1))
    assert found.metrics.identical(compare(["fedavg"], data.stack(both)).metrics.assign(seconds(found.metrics)))


def seconds(metrics: xr.Dataset) -> dict[str, xr.DataArray]:
    """What differs between two equal runs."""
    return {str(name): values for name, values in metrics.items() if str(name).startswith("seconds_")}


def test_what_compare_refuses(tmp_path: pathlib.Path) -> None:
    """Each would be a silent fault: too few clients, a stop that nobody hears, the folder of a run."""
    federation, task, local = tiny_federation(), logistic_regression(), fljax.Local(0.1, batch_size=2, steps=1)
    part = [("afl", {"updates": "model"})]  # is not refused
    fljax.compare(part, federation, task, local, rounds=1, clients_per_round=2, progress=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").touch()
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (["fedavg", "afl"], {"clients_per_round": 2}, "afl: expected all .* clients in every round, which this"),
        (["fedavg"], {"stop": StopRequest()}, "expected a checkpoint with stop, got none"),
        (["fedavg"], {"checkpoint": tmp_path / "run"}, "expected a folder of its own for checkpoints, got .*config"),
    ]
    for given, arguments, words in cases:
        with pytest.raises(ValueError, match=words):
            fljax.compare(given, federation, task, local, rounds=1, progress=False, **arguments)


@pytest.mark.thorough
def test_checkpoints_are_of_one_task_and_of_one_partial(tmp_path: pathlib.Path) -> None:
    federation, task, local = tiny_federation(), logistic_regression(), fljax.Local(0.1, batch_size=2, steps=1)

    def run(mu: float, task: Any = task) -> Any:
        mine = {"mine": functools.partial(algorithms.fedprox, mu=mu)}
        return fljax.compare(mine, federation, task, local, rounds=1, progress=False, checkpoint=tmp_path / "at")

    run(0.1)
    run(0.1)
    refuses(lambda: run(0.2), "numbers in the algorithm's functions differ")
    other = task._replace(loss=lambda logits, y: 2 * task.loss(logits, y))
    refuses(lambda: run(0.1, other), "the code of the checkpoints .*: .*the code of the task's loss differs")


@pytest.mark.unchecked
def test_a_table_of_contributions_needs_names_of_its_dimensions() -> None:
    """Three rounds and three seeds: nothing else says what the rows are."""
    values = np.arange(15.0).reshape(3, 5)
    table = xr.DataArray(values, dims=("round", "client"))
    for given in ({"contribution": values}, {"contribution": values.tolist()}):
        with pytest.raises(
            ValueError, match=r'or dims=\("round", "client"\), got an array of shape \(3, 5\) without names'
        ):
            compare(["iafl"], seeds=3, **given)
    refuses(lambda: compare([("iafl", {"contribution": values})], seeds=3), r"xr\.DataArray\(values, dims=")
    with pytest.raises(
        ValueError, match="one contribution for each client where joining is 'contribution', got one per"
    ):
        compare([("iafl", {"joining": "contribution"})], contribution=table)


@pytest.mark.thorough
@pytest.mark.unchecked
def test_contributions_of_seeds_and_rounds_in_any_order(tmp_path: pathlib.Path) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (3, 3, 5)).astype(np.float32)
    table = xr.DataArray(values, {"seed": [4, 2, 0], "client": [4, 3, 2, 1, 0]}, ("seed", "round", "client"))
    entries = {"all": "iafl", "own": ("iafl", {"contribution": table[0, 0].drop_vars("client")})}
    found = compare(entries, seeds=[2, 4], contribution=table.transpose("client", "round", "seed"))
    recorded = found.records["contribution"].transpose("algorithm", "seed", "round", "client")
    np.testing.assert_array_equal(recorded.sel(algorithm="all"), values[[1, 0], :, ::-1])
    np.testing.assert_array_equal(recorded.sel(algorithm="own"), np.broadcast_to(values[0, 0], (2, 3, 5)))
    folder = found.save(tmp_path / "saved", models="last")
    again = fljax.load(folder, algorithms=entries, task=TASK, local=LOCAL).models("all")
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(again.predict(1, x, seed=1), found.results["all"].predict(1, x, seed=1))


@pytest.mark.thorough
def test_opt_outs_have_a_threshold() -> None:
    found = compare(["fedavg", "fedprox"], opt_out_threshold=[0.0, 0.1, -2.0, -2.0, -2.0])
    assert found.metrics["opt_out_threshold"].dims == ("client",)
    own = found.metrics.sel(algorithm="fedavg")  # which gains nothing over itself
    assert (own["opt_outs"] == 1).all()
    np.testing.assert_allclose(own["participation_rate"], 0.8)
    assert tomllib.loads(found.origin["comparison.toml"])["opt_out_threshold"] == [0.0, 0.1, -2.0, -2.0, -2.0]
