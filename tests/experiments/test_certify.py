"""The certificates of a config's algorithms: what is played, saved and resumed; deviations take no time here."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from fljax.config import Config, dumps, parse
from fljax.engine import RunsDone
from fljax.experiments import certify, whole_runs
from fljax.experiments.certify import CONTROL, Question
from fljax.games import Utility
from fljax.games.strategic.playing import Messages
from fljax.results import Results
from fljax.results.events import Event
from fljax.results.folders import CERTIFICATES, claim, save_results
from fljax.results.identity import begin_checkpoints
from fljax.scenarios import ByReport, Strategy
from tests.games.played import GAINS, unilateral
from tests.refusals import refuses
from tests.toys.configs import THREE_CLIENTS, results

LABELS = ["fedavg", "fedprox"]


def config(**changes: Any) -> Config:
    return parse(THREE_CLIENTS | {"seeds": 5} | changes, name="tiny")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call that would play deviations."""
    calls: list[dict[str, Any]] = []

    def certified(plan: Any, federation: Any, **arguments: Any) -> games.Certificate:
        calls.append({"plan": plan, **arguments})
        for done in (4, 8):  # the folder had two of them
            arguments["on_block"](RunsDone(done, 8, 4.0, 2))
        lie = next(iter(arguments["deviations"]))
        table = unilateral(GAINS + 0.001 * len(calls))._replace(strategies=("honest", lie))
        attack = games.Attack(0, (("own", 2.0),), 6, 0.0, 0.0, 0.0, 0.0)
        return games.certificate(table, tolerance=arguments["tolerance"])._replace(attack=attack)

    monkeypatch.setattr(certify, "certify", certified)
    monkeypatch.setattr(certify, "messages_of", lambda *_: Messages(("size",), True, True, True))  # takes a second
    return calls


def test_every_algorithm_is_certified_and_saved(played: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    events: list[Event] = []
    certificates = certify.run(config(), Question(tolerance=0.02), directory=tmp_path, on_event=events.append)
    assert list(certificates) == [*LABELS, CONTROL]
    saved = games.load_certificates(tmp_path / CERTIFICATES)
    assert list(saved.certificates) == [*LABELS, CONTROL]
    np.testing.assert_array_equal(saved.certificates["fedprox"].gains.gains, certificates["fedprox"].gains.gains)
    assert 'name = "tiny"' in saved.config
    first, _, control = played
    assert (first["seeds"], first["tolerance"], first["candidates"]) == ((0, 1, 2, 3, 4), 0.02, 50)
    assert {"zero rider", "size times 10"} <= first["deviations"].keys()
    assert control["deviations"] == {"size times 10": Strategy(factor=ByReport(size=10.0))}
    assert (control["candidates"], control["outside"], control["controls"]) == (0, None, False)
    assert control["plan"].arguments["weights"] == "size"
    told = {event.message for event in events if event.label == "fedavg"}
    assert "about 8 s left" in told
    assert any(message.startswith(f"{len(first['deviations'])} deviations, ") for message in told)
    assert [event.label for event in events if event.stage == "saved"] == [*LABELS, CONTROL]
    # With 5 seeds: honest, 3 cells, and the attack's honest run and 6 candidates.
    assert [event.rounds for event in events if event.stage == "saved"] == [5 * (1 + 3 + 1 + 6)] * 3
    assert not (tmp_path / "certify").exists()


def test_some_clients_deviate(played: list[dict[str, Any]]) -> None:
    events: list[Event] = []
    certify.run(config(), Question(deviators=(2, 0)), on_event=events.append)
    assert [call["deviators"] for call in played] == [(2, 0)] * 3
    # With 5 seeds: honest, the cells, and the attack's honest run and 50 candidates.
    told = next(event for event in events if event.label == "fedavg" and " deviations, " in event.message)
    assert told.rounds == 5 * (1 + 2 * len(played[0]["deviations"]) + 51)
    with pytest.raises(ValueError, match="expected deviators to be ids of the clients 0 to 2, got 3"):
        certify.run(config(), Question(deviators=(3,)))


@pytest.mark.in_turn
def test_finished_algorithms_are_not_repeated(played: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Another tolerance needs no runs."""
    asked = Question(control=False)
    certificates = certify.run(config(), asked, directory=tmp_path)
    saved = games.load_certificates(tmp_path / CERTIFICATES)
    games.save_certificates(
        tmp_path / CERTIFICATES,
        {"fedavg": certificates["fedavg"]},
        saved.config,
        question=saved.question,
        data=saved.data,
    )
    again = certify.run(config(), asked, directory=tmp_path, resume=True)
    assert (len(played), list(again)) == (3, LABELS)
    wide = certify.run(config(), asked._replace(tolerance=0.5), directory=tmp_path, resume=True)
    assert [wide[label].verdict for label in LABELS] == ["CERTIFIED"] * 2
    assert {entry.tolerance for entry in games.load_certificates(tmp_path / CERTIFICATES).certificates.values()} == {
        0.5
    }
    assert len(played) == 3
    assert list(certify.run(config(), asked._replace(control=True), directory=tmp_path, resume=True))[-1] == CONTROL
    assert len(played) == 4


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            Question(deviations=("zero rider",)),
            r"the deviations of the certificates .* got .*zero rider",
        ),
        (Question(candidates=3), "the candidates of the certificates in .* got 3 in place of 50"),
        (Question(deviators=(1,)), r"the deviators of the certificates in .* got \[1\] in place of null"),
        (Question(outside=None), 'the outside of the certificates in .* got null in place of "standalone"'),
        (Question(identities=2), "the identities of the certificates in .* got 2 in place of 1"),
        (Question(utility=Utility(cost=0.5)), "the cost of the certificates in .* got 0.5 in place of 0.0"),
        (Question(confidence=0.9), "the confidence of the certificates in .* got 0.9 in place of 0.95"),
    ],
)
def test_another_question_is_refused(played, tmp_path, question, words):
    certify.run(config(), directory=tmp_path)
    refuses(lambda: certify.run(config(), question, directory=tmp_path, resume=True), words)
    refuses(lambda: certify.run(config(), directory=tmp_path), "expected a folder without results, or --resume")
    refuses(lambda: certify.run(config(rounds=9), directory=tmp_path, resume=True), r"got a changed one: rounds is")
    with pytest.raises(ValueError, match=r"which holds certificates\.nc"), claim(tmp_path, dumps(config(rounds=9))):
        pass
    certify.run(config(), directory=tmp_path, resume=True)  # what was refused changed nothing in the folder


@pytest.mark.in_turn
def test_other_data_are_refused_where_certificates_are_missing(played, tmp_path, monkeypatch):
    certify.run(config(), directory=tmp_path, question=Question(control=False))
    saved = games.load_certificates(tmp_path / CERTIFICATES)
    monkeypatch.setattr(whole_runs, "checksum_of", lambda _: int(saved.data) + 1)
    with pytest.raises(ValueError, match=r"expected the data of the certificates in .* got other data"):
        certify.run(config(), directory=tmp_path, resume=True)  # the control is missing
    certify.run(config(), Question(control=False), directory=tmp_path, resume=True)


def test_what_is_refused_leaves_a_run_as_it_was(played, tmp_path, monkeypatch):
    one, two = (config(algorithms=[{"name": label} for label in labels]) for labels in (LABELS[:1], LABELS))
    with claim(tmp_path, dumps(one)):
        save_results(tmp_path, Results(*results("fedavg")), dumps(one))

    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = contents()
    with monkeypatch.context() as others:
        others.setattr(whole_runs, "checksum_of", lambda _: 1)
        others.setattr(whole_runs, "check_data", refuse)
        refuses(lambda: certify.run(two, directory=tmp_path, resume=True), "other data")
    assert contents() == before
    with pytest.raises(ValueError, match="in what the algorithms read, got 'loss times 2'"):
        certify.run(two, Question(deviations=("loss times 2",)), directory=tmp_path, resume=True)
    assert (contents(), played) == (before, [])


def refuse(*_: Any) -> None:
    raise ValueError("other data")


@pytest.mark.in_turn
def test_blocks_of_another_question_are_refused(played: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    with claim(tmp_path, dumps(config())):
        begin_checkpoints(tmp_path / "certify", dumps(config()), None)
    (tmp_path / "certify" / "question.json").write_text(certify.in_json(Question(candidates=3)))
    place = tmp_path / "certify" / "checkpoints" / LABELS[0] / "attack"
    place.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"expected the candidates of the saved runs in .* got 50 in place of 3"):
        certify.run(config(), directory=tmp_path, resume=True)
    certify.run(config(), Question(candidates=3), directory=tmp_path, resume=True)
    assert not (tmp_path / "certify").exists()


@pytest.mark.in_turn
def test_blocks_of_another_config_are_refused(played: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    with claim(tmp_path, dumps(config())):
        begin_checkpoints(tmp_path / "certify", dumps(config()), None)
    refuses(lambda: certify.run(config(), directory=tmp_path), r"or --resume, got .* which holds certify/checkpoints")
    with pytest.raises(ValueError, match=r"the config of the checkpoints in .* got a changed one: rounds is"):
        certify.run(config(rounds=9), directory=tmp_path, resume=True)
    certify.run(config(), directory=tmp_path, resume=True)
    places = [pathlib.Path(call["checkpoint"].folder) for call in played[:2]]
    assert places == [tmp_path / "certify" / "checkpoints" / label for label in LABELS]


def test_what_is_refused_before_anything_runs(played: list[dict[str, Any]]) -> None:
    refuses(lambda: certify.run(config(seeds=4)), "seeds: expected at least 5 for a certificate, got 4")
    with pytest.raises(ValueError, match=r"expected at most 7 runs, got [0-9,]+ runs, .*; max_runs allows more"):
        certify.run(config(), Question(max_runs=7))
    with pytest.raises(ValueError, match="an algorithm whose server keeps tokens for a price of tokens, got none"):
        certify.run(config(), Question(utility=Utility(price=1.0)))
    words = r"in what the algorithms read, got '{}' of fedavg, which never reads loss \(.*\) \(likewise of 1 more\)"
    with pytest.raises(ValueError, match=words.format("loss times 2") + "; valid names are no effort, "):
        certify.run(config(), Question(deviations=("zero rider", "loss times 2")))
    lies = {"lie": Strategy(factor=ByReport(loss=2.0)), "double": Strategy(own=2.0)}
    refuses(lambda: certify.run(config(), Question(deviations=lies)), words.format("lie") + "$")
    with pytest.raises(ValueError, match="got 'lie', which is honest"):
        certify.run(config(), Question(deviations=lies | {"lie": Strategy(own=1.0)}))
    with pytest.raises(ValueError, match="other names of deviations than that of splits, got 'split in 2'"):
        certify.run(config(), Question(identities=2, deviations={"split in 2": Strategy(own=2.0)}))
    pooled = config(algorithms=[{"name": "fedavg", "pooled": True}])
    refuses(lambda: certify.run(pooled), "whose clients train for certificates, got fedavg with pooled = true")
    assert not played


LIES = {"inflated": Strategy(factor=ByReport(size=3.0)), "double": Strategy(own=2.0)}


@pytest.mark.parametrize("deviations", [("size times 10", "zero rider"), LIES])
def test_deviations_are_tried_where_they_are_read(played, monkeypatch, tmp_path, deviations):
    """What is left out is told, saved, and remembered at another tolerance."""
    monkeypatch.setattr(certify, "messages_of", reading(fedprox=()))
    events: list[Event] = []
    asked, (first, second) = Question(deviations=deviations, control=False), deviations
    certificates = certify.run(config(), asked, directory=tmp_path, on_event=events.append)
    assert [list(call["deviations"]) for call in played] == [[first, second], [second]]
    why = "which never reads size (it asks for no report)"
    told = [event.message for event in events if event.label == "fedprox"]
    assert f"deviation '{first}' is left out for fedprox, {why}" in told
    assert [certificates[label].left_out for label in LABELS] == [(), ((first, why),)]
    again = certify.run(config(), asked._replace(tolerance=0.5), directory=tmp_path, resume=True)
    saved = games.load_certificates(tmp_path / CERTIFICATES).certificates
    assert again["fedprox"].left_out == saved["fedprox"].left_out == ((first, why),)


def test_an_algorithm_that_reads_no_deviation_has_no_certificate(played, monkeypatch, tmp_path):
    monkeypatch.setattr(certify, "messages_of", reading(fedprox=()))
    events: list[Event] = []
    asked = Question(deviations=("size times 10",), control=False)
    certificates = certify.run(config(), asked, directory=tmp_path, on_event=events.append)
    assert (list(certificates), len(played)) == (["fedavg"], 1)
    told = [event.message for event in events if event.label == "fedprox"]
    assert "no certificate: it reads none of the deviations" in told
    wide = certify.run(config(), asked._replace(tolerance=0.5), directory=tmp_path, resume=True)
    saved = games.load_certificates(tmp_path / CERTIFICATES).certificates
    assert (wide["fedavg"].tolerance, saved["fedavg"].tolerance, len(played)) == (0.5, 0.5, 1)


def test_clients_split_where_no_argument_is_for_each_client(played: list[dict[str, Any]]) -> None:
    """FedAvg's clients do, and those of IAFL with contributions given by hand do not."""
    chosen = config(algorithms=[{"name": "fedavg"}, {"name": "iafl", "contribution": [1.0, 2.0, 3.0]}])
    certificates = certify.run(chosen, Question(identities=2, control=False))
    assert [call["identities"] for call in played] == [2, 1]
    why = "which has an argument of one number for each client"
    assert [entry.left_out for entry in certificates.values()] == [(), (("split in 2", why),)]
    alone = config(algorithms=[{"name": "iafl", "contribution": [1.0, 2.0, 3.0]}])
    with pytest.raises(ValueError, match="got 'split in 2' of iafl, which has an argument of one number for each"):
        certify.run(alone, Question(identities=2))


@pytest.mark.parametrize("identities", [1, 2])
def test_runs_are_counted_as_they_are_told_before(identities: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the deviations, splits have honest runs of their own."""

    def certified(*_: Any, **asked: Any) -> games.Certificate:
        names = ("lie", "split in 2")[: asked.get("identities", 1)]
        table = unilateral(GAINS)
        doubled = table._replace(
            payoffs=np.concatenate([table.payoffs, *[table.payoffs[:, 1:]] * (len(names) - 1)], axis=1),
            choices=np.concatenate([table.choices, *[2 * table.choices[1:]] * (len(names) - 1)]),
            strategies=("honest", *names),
        )
        attack = games.Attack(0, (("own", 2.0),), 6, 0.0, 0.0, 0.0, 0.0)
        return games.certificate(doubled, tolerance=0.1)._replace(attack=attack)

    monkeypatch.setattr(certify, "certify", certified)
    monkeypatch.setattr(certify, "messages_of", lambda *_: Messages(("size",), True, True, True))
    events: list[Event] = []
    asked = Question(identities=identities, deviations=("zero rider",), candidates=6, control=False)
    certify.run(config(seeds=len(GAINS)), asked, on_event=events.append)
    rounds = [event.rounds for event in events if event.label == "fedavg" and event.rounds]
    assert len(rounds) > 1
    assert len(set(rounds)) == 1


def test_a_split_that_nobody_plays_is_refused(played: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """FedProx could play it, and has no certificate; clients of IAFL cannot split."""
    monkeypatch.setattr(certify, "messages_of", reading(fedprox=()))
    chosen = config(algorithms=[{"name": "fedprox", "mu": 0.1}, {"name": "iafl", "contribution": [1.0, 2.0, 3.0]}])
    with pytest.raises(ValueError, match="in what the algorithms read, got 'split in 2' of iafl"):
        certify.run(chosen, Question(identities=2, deviations=("size times 10",), control=False))
    assert not played


def reading(**reports: tuple[str, ...]) -> Any:
    """``messages_of`` in which algorithms, by the name of their builder, read these reports, and others sizes."""

    def messages(plan: Any, _: Any) -> Messages:
        name = "fedprox" if "'mu'" in str(plan.arguments) else "fedavg"
        return Messages(reports.get(name, ("size",)), True, True, True)

    return messages


@pytest.mark.in_turn
def test_a_price_is_no_fault_where_the_algorithm_with_tokens_is_finished(played, tmp_path, monkeypatch):
    """Of two algorithms, of which the second one keeps no tokens, a process was killed after the first."""

    def messages(plan: Any, _: Any) -> Messages:
        return Messages(("size",), True, True, True, tokens="mu" not in str(plan.arguments))

    monkeypatch.setattr(certify, "messages_of", messages)
    asked = Question(utility=Utility(price=1.0), control=False)
    certificates = certify.run(config(), asked, directory=tmp_path)
    saved = games.load_certificates(tmp_path / CERTIFICATES)
    first = {"fedavg": certificates["fedavg"]}
    games.save_certificates(tmp_path / CERTIFICATES, first, saved.config, question=saved.question, data=saved.data)
    assert list(certify.run(config(), asked, directory=tmp_path, resume=True)) == LABELS
    assert [call["utility"].price for call in played] == [1.0, 0.0, 0.0]
    older = saved.question.replace('"budget": null, ', "")
    games.save_certificates(tmp_path / CERTIFICATES, certificates, saved.config, question=older, data=saved.data)
    asked = asked._replace(utility=Utility(price=1.0, budget=3.0))
    refuses(lambda: certify.run(config(), asked, directory=tmp_path, resume=True), "budget .* got 3.0 in place of null")


def test_no_algorithm_has_the_label_of_the_control(played: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="expected labels other than 'fedavg by size \\(control\\)'"):
        certify.run(config(algorithms=[{"name": "fedavg", "label": CONTROL}]))
    assert not played
