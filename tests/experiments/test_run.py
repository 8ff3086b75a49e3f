"""From a config to results: the joiner, on tiny data."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest

import fljax
from fljax import config as configuration
from fljax.core import trees
from fljax.engine import groups
from fljax.engine.programs import jit
from fljax.experiments import programs, run
from fljax.results import folders, read_lines
from fljax.results.events import Event
from fljax.results.non_finite import NotFinite, diverged_seeds
from tests.refusals import refuses
from tests.toys.configs import BASE, build, build_federation
from tests.toys.not_finite import sends_nan

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run that is saved, its events and its folder."""
    folder = tmp_path_factory.mktemp("run")
    events: list[Event] = []
    return run.run(build(), directory=folder, on_event=events.append), events, folder


@pytest.mark.thorough
def test_every_algorithm_stands_on_the_same_split_with_every_metric(finished):
    outcome, events, _ = finished
    metrics = outcome.metrics
    assert list(metrics["algorithm"].values) == ["fedavg", "incfl"]
    assert (metrics.sizes["client"], metrics.sizes["unseen"]) == (6, 2)
    assert list(metrics["evaluated_round"].values) == [0, 2, 4]
    first = metrics["test_loss"].sel(evaluated_round=0)
    np.testing.assert_array_equal(first.sel(algorithm="fedavg"), first.sel(algorithm="incfl"))
    for name in ("incentivised_participation_rate", "unseen_ipr_loss", "opt_outs", "global_test_loss", "threshold"):
        assert name in metrics
    assert metrics["threshold"].dims == ("seed", "client")
    assert {"weight", "gap", "loss", "bytes_up", "cohort_id"} <= set(outcome.records)
    assert {event.stage for event in events} == {"data", "standalone", "train", "note", "saved"}
    assert outcome.diverged == ()


def test_every_evaluation_is_a_line_with_the_metrics_of_the_table(finished):
    outcome, _, folder = finished
    lines = read_lines(folder)
    assert [(line.label, line.round) for line in lines] == [
        (each, at) for each in ("fedavg", "incfl") for at in (0, 2, 4)
    ]
    table = [str(name) for name, values in outcome.metrics.items() if values.dims[1:] == ("seed", "evaluated_round")]
    for line in lines:
        own = outcome.metrics.sel(algorithm=line.label, evaluated_round=line.round)
        # The losses that clients require are known when the algorithm has ended.
        assert {name for name in table if not name.endswith("opt_outs_by_noise")} == set(line.metrics)
        for name, values in line.metrics.items():
            found = np.array([np.nan if value is None else value for value in values])
            np.testing.assert_allclose(found, own[name].values, rtol=1e-6, atol=1e-7, err_msg=name)


def test_what_a_run_holds_is_told_before_it_trains(finished):
    _, events, _ = finished
    own = [event for event in events if event.label == "incfl"]
    at = next(place for place, event in enumerate(own) if "at once" in event.message)
    assert own[at].stage == "note"
    assert "server" in own[at].message
    assert all(event.round == 0 for event in own[:at])
    assert next(event for event in own[at:] if event.stage == "train").round == 2
    held = trees.bytes_of(finished[0].models["incfl"].state.server)
    assert run.estimates(build())["incfl"].server == held


def test_the_gap_is_the_reported_loss_minus_the_threshold_of_that_client(finished):
    outcome, _, _ = finished
    records, threshold = outcome.records.sel(algorithm="incfl"), outcome.metrics["threshold"].values
    for seed in range(2):
        ids = records["cohort_id"].values[seed].astype(int)
        gap = records["loss"].values[seed] - threshold[seed][ids]
        np.testing.assert_allclose(records["gap"].values[seed], gap, rtol=1e-6)


def test_a_folder_that_is_removed_while_the_run_goes_on_is_made_again_as_a_whole(tmp_path):
    events: list[Event] = []

    def remove(event: Event) -> None:
        if not any(each.stage == "train" for each in events) and event.stage == "train":
            shutil.rmtree(tmp_path / "run")
        events.append(event)

    run.run(build(algorithms=[{"name": "fedavg"}]), directory=tmp_path / "run", on_event=remove)
    assert any("was removed; it is made again" in event.message for event in events)
    assert fljax.load(tmp_path / "run").metrics.sizes["client"] == 6


def test_what_is_saved_loads_back(finished):
    outcome, _, folder = finished
    metrics, records = folders.load_results(folder)
    np.testing.assert_array_equal(metrics["test_loss"], outcome.metrics["test_loss"])
    np.testing.assert_array_equal(records["bytes_up"], outcome.records["bytes_up"])
    assert (folder / "metrics.csv").read_text().splitlines()[0].startswith("algorithm,")
    assert not list(folder.glob(".*"))


def test_resume_runs_only_what_is_missing(finished, tmp_path):
    outcome, _, folder = finished
    events: list[Event] = []
    (tmp_path / "results.nc").write_bytes((folder / "results.nc").read_bytes())
    again = run.run(build(), directory=tmp_path, resume=True, on_event=events.append)
    assert [(event.stage, event.label) for event in events] == [("note", "fedavg"), ("note", "incfl")]
    np.testing.assert_array_equal(again.metrics["test_loss"], outcome.metrics["test_loss"])
    for name in ("metrics.csv", "config.toml"):  # made again from the results
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_resume_refuses_another_config(finished, tmp_path):
    _, _, folder = finished
    (tmp_path / "results.nc").write_bytes((folder / "results.nc").read_bytes())
    (tmp_path / "config.toml").write_text(configuration.dumps(build(rounds=6)))
    with pytest.raises(ValueError, match=r"expected config\.toml and results\.nc in .* to be of one run"):
        run.run(build(), directory=tmp_path, resume=True)


def test_a_run_never_writes_over_results(finished):
    _, _, folder = finished
    before = (folder / "results.nc").read_bytes()
    refuses(lambda: run.run(build(rounds=6), directory=folder), "expected a folder without results")
    with (
        folders.claim(folder, configuration.dumps(build()), resume=True),
        pytest.raises(ValueError, match="expected a folder that no other process writes to"),
    ):
        run.run(build(), directory=folder, resume=True)
    assert (folder / "results.nc").read_bytes() == before


@pytest.mark.thorough
def test_divergence_freezes_only_its_algorithm(tmp_path):
    wild = {"name": "fedavg", "label": "wild", "server_lr": 3e38}
    events: list[Event] = []
    config = build(rounds=4, algorithms=[wild, {"name": "fedavg"}])
    outcome = run.run(config, directory=tmp_path, on_event=events.append)
    assert {label for label, _, _ in outcome.diverged} == {"wild"}
    assert np.isfinite(outcome.metrics["test_loss"].sel(algorithm="fedavg")).all()
    assert any("diverged" in event.message for event in events)
    assert (tmp_path / "results.nc").is_file()


def sends_nan_in_round_2(algorithm):
    """A scenario: what client 1 sends in round 2 is NaN."""
    return sends_nan(algorithm, np.arange(6) == 1, np.arange(6) == 2)


EVERYBODY = {"participation": {"clients_per_round": 6}}
SPOILT = [
    {"name": "fedavg"},
    {"name": "fedavg", "label": "spoilt", "scenarios": [{"name": f"{__name__}:sends_nan_in_round_2"}]},
    {"name": "incfl"},
]


def test_a_config_says_that_messages_are_dropped(tmp_path):
    config = build(**EVERYBODY, algorithms=SPOILT[:2], non_finite="drop")
    outcome = run.run(config, directory=tmp_path)
    assert outcome.diverged == ()
    metrics, records = folders.load_results(tmp_path)
    assert metrics["dropped_messages"].transpose("algorithm", "seed", "evaluated_round").values.tolist() == [
        [[0, 0, 0]] * 2,
        [[0, 0, 1]] * 2,
    ]
    assert np.argwhere(records["dropped_by_client"].sel(algorithm="spoilt", seed=0).values > 0).tolist() == [[2, 1]]
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert {"diverged", "dropped_messages"} <= set(table[0].split(","))
    assert all(len(line.split(",")) == len(table[0].split(",")) for line in table)


@pytest.mark.thorough
def test_a_config_says_that_a_run_stops(tmp_path):
    """What was computed until then is saved; resuming repeats the algorithm that was stopped, and no other."""
    config = build(**EVERYBODY, algorithms=SPOILT, non_finite="stop")
    for resume in (False, True):
        events: list[Event] = []
        with pytest.raises(NotFinite) as found:
            run.run(config, directory=tmp_path, resume=resume, on_event=events.append)
        assert (found.value.label, found.value.seed, found.value.round, found.value.clients) == ("spoilt", 0, 2, (1,))
        repeated = {event.label for event in events if event.stage == "train"}
        assert repeated == ({"spoilt"} if resume else {"fedavg", "spoilt"})
    metrics, _ = folders.load_results(tmp_path)
    assert metrics["algorithm"].values.tolist() == ["fedavg", "spoilt"]
    assert metrics["diverged"].sel(algorithm="spoilt").values.tolist() == [2, 2]
    assert diverged_seeds(metrics) == {"spoilt": "2 of 2 seeds, round 2"}


@pytest.mark.thorough
def test_options_reach_the_builders():
    several = [
        {"name": "incfl", "label": "fixed", "threshold": 0.5, "clients_per_round": 2},
        {"name": "fedavg", "label": "tuned", "scenarios": [{"name": "finetuned", "steps": 3}]},
        {"name": "fedavg"},
    ]
    outcome = run.run(build(algorithms=several))
    fixed = outcome.records.sel(algorithm="fixed")
    np.testing.assert_allclose(fixed["gap"].values[..., :2], fixed["loss"].values[..., :2] - 0.5, rtol=1e-6)
    assert np.nansum(fixed["cohort_present"].values[..., 2:].astype(float)) == 0
    metrics = outcome.metrics
    np.testing.assert_array_equal(
        metrics["global_test_loss"].sel(algorithm="tuned"), metrics["test_loss"].sel(algorithm="fedavg")
    )
    assert (metrics["test_loss"].sel(algorithm="tuned") != metrics["test_loss"].sel(algorithm="fedavg")).any()


def test_a_cohort_larger_than_the_population_takes_everybody_and_says_so():
    events: list[Event] = []
    config = build(participation={"clients_per_round": 50}, algorithms=[{"name": "fedavg"}])
    outcome = run.run(config, on_event=events.append)
    assert outcome.records.sizes["row"] == 6
    assert any("all 6 take part" in event.message for event in events)


@pytest.mark.thorough
def test_names_may_be_import_paths(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(
        "from fljax.algorithms import fedavg\n"
        "from fljax.models import logistic_regression as own_model\n"
        "def own_average(task, local, *, clients_per_round=2, boost: float = 1.0):\n"
        '    """FedAvg with a boost."""\n'
        "    return fedavg(task, local, clients_per_round=clients_per_round, server_lr=boost)\n"
        "def halves(labels, *, clients, unseen=0, seed=0):\n"
        '    """Rows dealt in turn."""\n'
        "    total = clients + unseen\n"
        "    return [list(range(k, len(labels), total)) for k in range(total)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = {**BASE["data"], "partition": "own_parts:halves", "partition_options": {}}
    config = build(
        data=data,
        model={"name": "own_parts:own_model"},
        algorithms=[{"name": "own_parts:own_average", "label": "own", "boost": 1.0}, {"name": "fedavg"}],
    )
    metrics = run.run(config).metrics
    np.testing.assert_allclose(
        metrics["test_loss"].sel(algorithm="own"), metrics["test_loss"].sel(algorithm="fedavg"), rtol=1e-6
    )


@pytest.mark.thorough
def test_a_source_that_takes_a_seed_is_drawn_anew_for_every_seed():
    config = build(
        data={
            **BASE["data"],
            "dataset": "synthetic",
            "partition": "natural",
            "partition_options": {},
            "dataset_options": {"cap": 60},
        },
        algorithms=[{"name": "fedavg"}],
    )
    federation, _ = build_federation(config)
    assert federation.clients.id.shape == (2, 6)
    metrics = run.run(config).metrics
    assert (metrics["threshold"].sel(seed=0) != metrics["threshold"].sel(seed=1)).all()


@pytest.mark.quick
def test_an_impossible_partition_is_one_sentence(tmp_path):
    data = {**BASE["data"], "partition_options": {"groups": 2, "minimum": 10_000}}
    with pytest.raises(ValueError, match="at least 10000 samples") as caught:
        run.run(build(data=data), directory=pathlib.Path(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_scenarios_are_given_the_thresholds_of_their_seed():
    """Around every algorithm, also those that have no use for thresholds themselves."""
    flexible = {"name": "appeal_based", "after": 1}
    own = {"name": "incfl", "label": "lazy", "scenarios": [{"name": "dropout", "rate": 1.0}]}
    config = build(scenarios=[flexible], algorithms=[{"name": "fedavg"}, {"name": "incfl"}, own])
    outcome = run.run(config)
    records, threshold = outcome.records, outcome.metrics["threshold"].values
    for label in ("fedavg", "incfl"):
        mine = records.sel(algorithm=label)
        appealed = mine["polled_loss"].values < threshold[:, None]
        np.testing.assert_array_equal(mine["appealed"].values.astype(bool), appealed)
        size = np.where(np.arange(4) < 1, 6, appealed.sum(axis=-1))
        np.testing.assert_array_equal(mine["pool_size"].values, size)
        assert (mine["participation"].sum("client") == np.minimum(size, 3)).all()
    assert not records["participation"].sel(algorithm="lazy").any()


def test_one_algorithm_may_have_its_own_learning_rate():
    faster = {"name": "fedavg", "label": "faster", "local": {"learning_rate": 0.4}}
    metrics = run.run(build(algorithms=[{"name": "fedavg"}, faster])).metrics
    whole = run.run(build(local={**BASE["local"], "learning_rate": 0.4}, algorithms=[{"name": "fedavg"}])).metrics
    np.testing.assert_allclose(
        metrics["test_loss"].sel(algorithm="faster"), whole["test_loss"].sel(algorithm="fedavg"), rtol=1e-6
    )
    assert (metrics["threshold"] != whole["threshold"]).any()
    assert (metrics["test_loss"].sel(algorithm="faster") != metrics["test_loss"].sel(algorithm="fedavg")).any()


@pytest.mark.thorough
def test_standalone_models_have_their_own_weight_decay_and_a_constant_rate():
    def thresholds(standalone, **local):
        changes = {"local": {**BASE["local"], **local}, "standalone": {"epochs": 3, **standalone}}
        return run.run(build(**changes, rounds=1, algorithms=[{"name": "fedavg"}])).metrics["threshold"].values

    plain, decayed = thresholds({}), thresholds({"weight_decay": 0.5})
    assert (plain != decayed).all()
    np.testing.assert_array_equal(thresholds({}, weight_decay=0.5), decayed)  # as local, where nothing else is said
    np.testing.assert_array_equal(thresholds({}, decay=0.5), plain)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"local": {**BASE["local"], "optimizer": "adam"}, "algorithms": [{"name": "fedavg"}, {"name": "scaffold"}]},
            "'sgd'",
        ),
        ({"scenarios": [{"name": "finetuned"}]}, "exactly one of steps and epochs for finetuned"),
        (
            {"scenarios": [{"name": "byzantine", "fraction": 10.0}]},
            "fraction to be one number from 0 to 1, got 10",
        ),
        (
            {"scenarios": [{"name": "dropout", "rate": 30.0}]},
            "rate to be one number from 0 to 1, .*, got 30",
        ),
        ({"scenarios": [{"name": "availability", "trace": "nothing.csv"}]}, "expected a trace in a"),
        ({"scenarios": [{"name": "availability", "trace": [[1, 0], [1]]}]}, "as many in each round"),
        ({"algorithms": [{"name": "rank"}]}, "rank_on to name rows that the server has, got 'validation'"),
        ({"algorithms": [{"name": "iafl", "joining": [0.5, 0.5]}]}, "joining to have one entry for each of 6 clients"),
        ({"scenarios": [{"name": "free_riding", "ids": [6]}]}, "ids of clients from 0 to 5 for ids, got"),
        ({"scenarios": [{"name": "dropout", "rate": [0.5, 0.5]}]}, "rate to be one number or one for each of 6"),
        ({"scenarios": [{"name": "dropout", "rate": [[0.5, 0.5]]}]}, r"got shape \(1, 2\)"),
        (
            {"scenarios": [{"name": "free_riding", "who": [[1, 0], [0, 1]]}]},
            "who to have an entry for each of 6 clients",
        ),
        ({"scenarios": [{"name": "free_riding", "who": "abc"}]}, "who to be .*, got 'abc'"),
    ],
)
def test_builders_say_what_is_wrong_before_anything_is_trained(changes, sentence):
    events: list[Event] = []
    refuses(lambda: run.run(build(**changes), on_event=events.append), sentence)
    assert {event.stage for event in events} == {"data"}


def texts(examples=60):
    """Texts of 5 tokens whose label is their first word."""
    from fljax.data import dataset

    x = np.random.default_rng(0).integers(1, 9, (examples, 5))
    x[:, 3:] *= np.random.default_rng(1).integers(0, 2, (examples, 1))
    return dataset(x, x[:, 0] % 2, vocabulary=9)


@pytest.mark.quick
def test_a_model_of_texts_learns_the_vocabulary_from_the_data():
    data = {"dataset": f"{__name__}:texts", "partition": "iid", "clients": 3}
    model = {"name": "text_cnn", "embedding": 4, "maps": 6, "kernels": [2]}
    federation, task = build_federation(build(seeds=1, data=data, model=model))
    assert federation.examples.x.dtype == np.int32
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert params["body"]["embedding"]["embedding"].shape == (9, 4)
    with pytest.raises(ValueError, match=r"models bilstm, text_cnn, got 'mlp' for the texts of"):
        build_federation(build(seeds=1, data=data, model={"name": "mlp"}))
    refuses(lambda: build_federation(build(seeds=1, model={"name": "bilstm"})), "expected texts for bilstm")
    refuses(lambda: build(model={"name": "bilstm", "vocabulary": 9}), "vocabulary")


@pytest.mark.thorough
def test_programs_are_compiled_ahead_for_the_plans_that_run(monkeypatch):
    """Each algorithm's before that of the one before it runs, once, with stand-ins for what is not known yet."""
    steps: list[str] = []
    new: list[int] = []
    ahead: dict[str, Any] = {}
    ran: dict[str, Any] = {}

    def noted(name, kept, function):
        def call(*arguments, **named):
            plan = arguments[0][0] if isinstance(arguments[0], list) else arguments[1]
            label = next(label for label in labels if label not in kept)
            kept[label] = plan
            steps.append(f"{name} {label}")
            known = len(jit.STORE)
            result = function(*arguments, **named)
            new.append(len(jit.STORE) - known)
            return result

        return call

    algorithms = [
        {"name": "fedavg"},
        {"name": "iafl", "contribution": "standalone_accuracy"},
        {"name": "incfl", "scenarios": [{"name": "opting_out", "split": "test"}]},
    ]
    config = build(algorithms=algorithms)
    labels = [entry.label for entry in config.algorithms]
    jit.STORE._kept.clear()  # of what other tests ran
    monkeypatch.setattr(programs, "compile_ahead", noted("compile", ahead, programs.compile_ahead))
    monkeypatch.setattr(run, "run_plans", noted("run", ran, run.run_plans))
    run.run(config)
    assert steps == [
        f"compile {labels[0]}",
        f"compile {labels[1]}",
        f"run {labels[0]}",
        f"compile {labels[2]}",
        f"run {labels[1]}",
        f"run {labels[2]}",
    ]
    for label in labels:
        assert groups([ahead[label], ran[label]]) == [[0, 1]]
    assert new == [3, 3, 0, 2, 0, 0]  # programs; INCFL's clients use the global model, as FedAvg's do


@pytest.mark.parametrize("faulty", ["fedavg", "incfl"])
def test_an_error_of_the_next_programs_does_not_stop_a_run(faulty, monkeypatch, tmp_path):
    """It appears when the next algorithm's turn comes; that of the first algorithm before anything is computed."""
    inner, raised = programs.compile_ahead, []

    def fails(pool, plan, *arguments, **named):
        if plan.build.build.__name__ == faulty:
            raised.append(faulty)
            raise ValueError("expected a program, got none")
        return inner(pool, plan, *arguments, **named)

    monkeypatch.setattr(programs, "compile_ahead", fails)
    if faulty == "fedavg":
        refuses(lambda: run.run(build(), directory=tmp_path), "expected a program, got none")
    else:
        assert list(run.run(build(), directory=tmp_path).metrics["algorithm"].values) == ["fedavg", "incfl"]
    assert raised == [faulty]
