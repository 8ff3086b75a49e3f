"""The worth of a config's clients: what is retrained, saved and resumed; retraining takes no time here."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from fljax.config import Config, dumps, parse
from fljax.contributions import ESTIMATORS
from fljax.core.sameness import code_of
from fljax.engine import RunsDone
from fljax.experiments import whole_runs, worth
from fljax.experiments.worth import TABLES, Question
from fljax.games.values import name_of_value
from fljax.report.estimators import estimator_sentences
from fljax.results.events import Event
from fljax.results.folders import claim
from fljax.results.identity import begin_checkpoints
from tests.contributions.games import THREE
from tests.games.known import among, table_of
from tests.refusals import refuses
from tests.toys.configs import THREE_CLIENTS


def config(**changes: Any) -> Config:
    return parse(THREE_CLIENTS | changes, name="tiny")


@pytest.fixture
def retrained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call that would retrain coalitions."""
    calls: list[dict[str, Any]] = []

    def coalitions(plan: Any, federation: Any, **arguments: Any) -> games.CoalitionTable:
        calls.append({"plan": plan, **arguments})
        for done in (4, 8):  # the folder had two of them
            arguments["on_block"](RunsDone(done, 8, 4.0, 2))
        return table_of(THREE + 0.01 * len(calls), notes="few members" if len(calls) == 1 else "")

    monkeypatch.setattr(worth, "coalitions", coalitions)
    return calls


def test_every_algorithm_is_retrained_and_saved(retrained: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    events: list[Event] = []
    question = Question(baseline="chance")
    tables = worth.run(config(), question, directory=tmp_path, on_event=events.append).tables
    assert list(tables) == ["fedavg", "fedprox"]
    saved = games.load(tmp_path / TABLES)
    np.testing.assert_array_equal(saved.tables["fedprox"].values, tables["fedprox"].values)
    assert 'name = "tiny"' in saved.config
    for call in retrained:
        assert (call["baseline"], call["seeds"], call["value"]) == ("chance", (0,), "average_accuracy")
        assert call["reference"] is None
    told = {event.message for event in events if event.label == "fedavg"}
    assert {"about 8 s left", "few members"} <= told
    assert any(message.startswith("8 coalitions, 8 runs, ") for message in told)
    assert [event.label for event in events if event.stage == "saved"] == ["fedavg", "fedprox"]
    assert {event.unit for event in events} == {"runs"}
    assert not (tmp_path / "worth").exists()


@pytest.mark.in_turn
def test_finished_algorithms_are_not_repeated(retrained: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    asked = Question(baseline="initial")
    tables = worth.run(config(), asked, directory=tmp_path).tables
    games.save(tmp_path / TABLES, {"fedavg": tables["fedavg"]}, games.load(tmp_path / TABLES).config)
    again = worth.run(config(), asked, directory=tmp_path, resume=True).tables
    assert (len(retrained), list(again)) == (3, ["fedavg", "fedprox"])
    worth.run(config(), asked, directory=tmp_path, resume=True)
    assert len(retrained) == 3


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            Question(value="average_loss"),
            "expected the value of the tables in .* got average_loss in place of average_acc",
        ),
        (Question(baseline=0.5), "expected the baseline of the tables in .* got 0.5 in place of initial"),
        (Question(among=[{0}]), "expected the coalitions of the tables in .* got 1 others in place of 8"),
    ],
)
def test_another_question_is_refused(retrained, tmp_path, question, words):
    worth.run(config(), directory=tmp_path)
    refuses(lambda: worth.run(config(), question, directory=tmp_path, resume=True), words)
    refuses(lambda: worth.run(config(), directory=tmp_path), "expected a folder without results, or --resume")
    refuses(lambda: worth.run(config(rounds=9), directory=tmp_path, resume=True), r"got a changed one: rounds is")
    more = config(algorithms=[*THREE_CLIENTS["algorithms"], {"name": "fedavg", "label": "again"}])
    refuses(lambda: worth.run(more, directory=tmp_path, resume=True), r"got a changed one: algorithms\.2")
    with pytest.raises(ValueError, match=r"which holds worth\.nc"), claim(tmp_path, dumps(config(rounds=9))):
        pass
    worth.run(config(), directory=tmp_path, resume=True)  # what was refused changed nothing in the folder


def value(algorithm: Any, state: Any, scores: Any) -> Any:
    """Another function than that of ``elsewhere``, of the same name."""
    return -scores["test_loss"].values.mean()


@pytest.mark.in_turn
def test_functions_of_one_name_are_different_values(retrained, tmp_path, monkeypatch):
    monkeypatch.setattr(worth, "check_value", lambda *_: None)

    def elsewhere(algorithm: Any, state: Any, scores: Any) -> Any:
        return scores["test_loss"].values.mean()

    elsewhere.__module__, elsewhere.__qualname__, elsewhere.__name__ = "elsewhere", "value", "value"
    worth.run(config(), directory=tmp_path)
    saved = games.load(tmp_path / TABLES)
    tables = {label: table._replace(metric=name_of_value(elsewhere)) for label, table in saved.tables.items()}
    games.save(tmp_path / TABLES, tables, saved.config)
    worth.run(config(), Question(value=elsewhere), directory=tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"the value of the tables in .* in place of elsewhere\.value"):
        worth.run(config(), Question(value=value), directory=tmp_path, resume=True)


@pytest.mark.in_turn
def test_a_changed_function_is_another_value(retrained, tmp_path, monkeypatch):
    monkeypatch.setattr(worth, "check_value", lambda *_: None)
    asked = Question(value=value)
    worth.run(config(), asked, directory=tmp_path)
    saved = games.load(tmp_path / TABLES)
    named = {label: table._replace(metric=name_of_value(value)) for label, table in saved.tables.items()}
    assert saved.code == code_of(value)
    games.save(tmp_path / TABLES, named, saved.config, code=saved.code)
    worth.run(config(), asked, directory=tmp_path, resume=True)
    games.save(tmp_path / TABLES, named, saved.config, code=saved.code[:-1] + "x")
    with pytest.raises(ValueError, match=r"the value of the tables in .* got .*test_worth\.value with another body"):
        worth.run(config(), asked, directory=tmp_path, resume=True)
    games.save(tmp_path / TABLES, named, saved.config, code="cpython-200:0")  # of a version that cannot be compared
    worth.run(config(), asked, directory=tmp_path, resume=True)


@pytest.mark.in_turn
def test_other_data_are_refused_where_tables_are_missing(retrained, tmp_path, monkeypatch):
    """As of ``fljax run --resume``, which does not read the data if nothing is missing."""
    tables = worth.run(config(), directory=tmp_path).tables
    saved = games.load(tmp_path / TABLES)
    games.save(tmp_path / TABLES, {"fedavg": tables["fedavg"]}, saved.config, data=saved.data)
    monkeypatch.setattr(whole_runs, "checksum_of", lambda _: int(saved.data) + 1)
    with pytest.raises(ValueError, match=r"expected the data of the tables in .* to resume them, got other data"):
        worth.run(config(), directory=tmp_path, resume=True)
    assert len(retrained) == 2
    games.save(tmp_path / TABLES, tables, saved.config, data=saved.data)
    worth.run(config(), directory=tmp_path, resume=True)


def test_a_run_in_the_same_folder_keeps_its_checkpoints(retrained, tmp_path):
    with claim(tmp_path, dumps(config())):
        begin_checkpoints(tmp_path, dumps(config()), None)
    (tmp_path / "checkpoints" / "fedavg").mkdir()
    refuses(lambda: worth.run(config(), directory=tmp_path), "which holds checkpoints")
    worth.run(config(), directory=tmp_path, resume=True)
    assert (tmp_path / "checkpoints" / "fedavg").is_dir()
    places = {pathlib.Path(call["checkpoint"].folder) for call in retrained}
    assert places == {tmp_path / "worth" / "checkpoints" / label for label in ("fedavg", "fedprox")}
    assert not (tmp_path / "worth").exists()


def test_blocks_of_another_config_are_refused(retrained: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    with claim(tmp_path, dumps(config())):
        begin_checkpoints(tmp_path / "worth", dumps(config()), None)
    refuses(lambda: worth.run(config(), directory=tmp_path), r"or --resume, got .* which holds worth/checkpoints")
    with pytest.raises(ValueError, match=r"the config of the checkpoints in .* got a changed one: rounds is"):
        worth.run(config(rounds=9), directory=tmp_path, resume=True)
    worth.run(config(), directory=tmp_path, resume=True)


def test_a_pooled_algorithm_has_no_coalitions(retrained: list[dict[str, Any]]) -> None:
    pooled = config(algorithms=[{"name": "fedavg", "pooled": True}])
    refuses(lambda: worth.run(pooled), "whose clients train for coalitions, got fedavg with pooled = true")
    assert not retrained


def test_what_is_refused_before_anything_runs(retrained: list[dict[str, Any]]) -> None:
    refuses(lambda: worth.run(config(), Question(max_runs=7)), "expected at most 7 runs, got 8 runs")
    refuses(lambda: worth.run(config(), Question(value="accuracy")), "expected one of the values")
    assert not retrained


def test_estimators_are_compared_with_the_table(retrained: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Also of a finished folder; what cannot be compared is refused before anything runs."""
    single, few = config(algorithms=[{"name": "fedavg"}]), Question(estimators=["ipss"])
    tables, comparisons = worth.run(single, few, directory=tmp_path)
    compared = comparisons["fedavg"]
    np.testing.assert_array_equal(compared["truth"], games.shapley(tables["fedavg"]))
    again = worth.run(single, few, directory=tmp_path, resume=True).estimators["fedavg"]
    assert again.drop_vars("seconds").identical(compared.drop_vars("seconds"))
    assert len(retrained) == 1
    for question, words in (
        (Question(among="leave_one_out", estimators="all"), "expected all coalitions to compare estimators with, got"),
        (Question(estimators=["digfl"]), r"expected rows of the server, got 'validation'; .* \(held_fraction above 0"),
        (Question("average_loss", estimators=["cffl_reputation"]), "expected a table of accuracies, got none"),
    ):
        with pytest.raises(ValueError, match=words):
            worth.run(single, question)
    assert len(retrained) == 1


def test_all_estimators_are_those_that_the_config_admits(retrained: list[dict[str, Any]]) -> None:
    """Without rows of the server they ask for values of coalitions alone."""
    events: list[Event] = []
    single = config(algorithms=[{"name": "fedavg"}])
    compared = worth.run(single, Question(estimators="all"), on_event=events.append).estimators["fedavg"]
    on_host = {name for name, entry in ESTIMATORS.items() if entry.on_host}
    assert set(compared["estimator"].values) == on_host - {"owen_shapley"}
    words = compared.attrs["left_out"]
    assert words.startswith("estimators left out: ")
    assert "(expected rows of the server, got 'validation'; the server has none (held_fraction above 0" in words
    assert "owen_shapley (expected a budget of at least 7 trainings, got 6)" in words
    assert words in [event.message for event in events if event.label == "fedavg"]
    assert estimator_sentences(compared)[-1] == f"E{words[1:]}."


def test_what_a_config_has_beside(retrained: list[dict[str, Any]]) -> None:
    events: list[Event] = []
    changed = config(stop={"metric": "average_accuracy"}, non_finite="drop", participation={"clients_per_round": 9})
    worth.run(changed, on_event=events.append)
    told = " ".join(event.message for event in events)
    assert "without early stopping of the config" in told
    assert 'non_finite = "drop" is not used' in told
    assert "clients_per_round = 9 is more than the population: all 3 take part" in told


@pytest.mark.in_turn
def test_tables_are_of_these_coalitions(retrained: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    worth.run(config(), directory=tmp_path)
    saved = games.load(tmp_path / TABLES)
    some = {label: among(table, [0, 7]) for label, table in saved.tables.items()}
    games.save(tmp_path / TABLES, some, saved.config)
    tables = worth.run(config(), Question(among=[(), (0, 1, 2)]), directory=tmp_path, resume=True).tables
    assert tables["fedavg"].members.shape == (2, 3)


@pytest.mark.in_turn
def test_estimators_of_a_finished_folder_need_no_runs(retrained: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    single = config(algorithms=[{"name": "fedavg"}])
    worth.run(single, Question(max_runs=8), directory=tmp_path)
    asked = Question(max_runs=7, estimators=["ipss"])
    assert list(worth.run(single, asked, directory=tmp_path, resume=True).estimators) == ["fedavg"]
    with pytest.raises(ValueError, match="expected at most 7 runs, got 8 runs"):
        worth.run(single, Question(max_runs=7), directory=tmp_path / "new")
