"""Somebody else's run folder drives no browser, terminal or spreadsheet, changes no file outside, and runs no code."""

from __future__ import annotations

import contextlib
import csv
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import fljax
from fljax.report.page import live_page
from fljax.results import read_state, stores
from tests.drawn import at_most
from tests.report.test_report import results
from tests.toys.command import call
from tests.toys.configs import BASE

pytestmark = pytest.mark.usefixtures("quick_compilation")

FRAGMENTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'", "&lt;", "</pre>", "]]>", "<!--", "{{ 7*7 }}",
    "\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\x07", "\x08", "\x7f", "\r", "\n", "\t", "\u202e", "\u2066", "\u200f",
    "\u2028", "=1+1", "+1", "-2+3", "@SUM(A1)", "=HYPERLINK(\"http://x\")", "[red]", ":moon:", "$x$", "_", "é", "木",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1)
WORDS = TEXTS.map("".join).map(lambda text: text.replace("\0", "")[:60])
PLACES = ("label", "attribute", "seed", "client", "name", "metric", "log", "line", "config", "environment", "origin")
ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "alt", "src", "value", "max"}
KEPT = ["average_accuracy", "test_accuracy", "standalone_test_accuracy", "diverged"]
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "br", "div", "img", "progress", "pre"}
TAGS |= {"table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"}


def write_folder(folder: pathlib.Path, words: str, places: tuple[str, ...]) -> None:
    """A run of two algorithms that is finished, with a text in some of the places where one may stand."""

    def said(place: str, usual: Any) -> Any:
        return words if place in places else usual

    folder.mkdir(exist_ok=True)
    labels = [said("label", "fedavg"), said("label", "incfl") + "2"]
    metrics, records = results(("fedavg", "incfl"), seeds=2, clients=3, unseen=2, evaluations=2, rounds=4)
    metrics, records = metrics[KEPT], records[["weight"]]
    metrics["diverged"][0, 1] = 2
    metrics["diverged_by"] = (("algorithm", "seed", "client"), np.ones((2, 2, 3), np.int8))
    metrics[f"average_{said('metric', 'thing').replace('/', '')}"] = metrics["average_accuracy"]
    metrics = metrics.assign_attrs(name=said("attribute", "made up"), metric=said("attribute", "average_accuracy"))
    changes: dict[str, Any] = {"algorithm": labels}
    changes |= {"seed": [f"{words}{seed}" for seed in range(2)]} if "seed" in places else {}
    changes |= {"client": [f"{words}{client}" for client in range(3)]} if "client" in places else {}
    changes |= {"client_name": ("client", [said("name", f"name {client}") for client in range(3)])}
    raw = BASE | {"name": said("config", "tiny"), "algorithms": [{"name": "fedavg", "label": each} for each in labels]}
    raw |= {"data": BASE["data"] | {"dataset": said("config", "blobs")}}
    groups = {
        "records": records.assign_coords({name: changes[name] for name in ("algorithm", "seed") if name in changes}),
        "origin": stores.origin(tomli_w.dumps(raw)),
    }
    if "origin" in places:
        groups["origin"] = groups["origin"].assign(config=((), words))
    (folder / "results.nc").write_bytes(stores.encoded(metrics.assign_coords(changes), groups))
    (folder / "config.toml").write_bytes(tomli_w.dumps(raw).encode())
    (folder / "environment.json").write_text(json.dumps({"versions": {said("environment", "jax"): words}}))
    event = {"stage": "train", "label": labels[0], "round": 1, "rounds": 4, "seconds": 1.0, "message": words}
    events = [event, event | {"stage": said("log", "note"), "unit": "rounds"}]
    events += [event | {"unit": words}] if "log" in places else []
    line = {"label": labels[0], "round": 1, "rounds": 4, "seconds": 1.0, "seeds": [said("line", 0), 1], "cells": []}
    line |= {"diverged": [[said("line", 1), 1]], "metrics": {"average_accuracy": [0.1, 0.2], words: [0.5, None]}}
    (folder / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def check_printed(text: str) -> None:
    bad = {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    bad -= set("\n\t\u200c\u200d")
    assert not bad, (bad, text)


class Page(html.parser.HTMLParser):
    """Asserts that a page has no element and no attribute that its templates do not have."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        named = dict(attrs)
        assert named.keys() <= ATTRIBUTES
        assert (named.get("src", "data:image/png;base64,") or "").startswith("data:image/png;base64,")
        assert re.fullmatch(r"width=device-width|\d+", named.get("content") or "1")
        assert named.get("class", "note") in ("note", "wide", "figures", "warning")

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def check_page(text: str) -> None:
    page = Page()
    page.feed(text)
    page.close()


def check_csv(text: str) -> None:
    for line in csv.reader(io.StringIO(text, newline="")):
        for cell in line:
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)


READ = [
    ("report", "--target", "average_accuracy=0.1"), ("watch", "--once"), ("watch", "--once", "--json"),
    ("compare", "OTHER"), ("compare", "OTHER", "--json"), ("compare", "OTHER", "--ranks"),
    ("compare", "OTHER", "--ranks", "--latex"), ("compare", "OTHER", "--ranks", "--json"),
    ("export", "--figures", "client_spread"), ("export", "--csv"), ("export", "--latex"),
    ("export", "--gains"), ("export", "--leaving"),
    ("export", "--csv", "--target", "average_accuracy=0.1"), ("export", "--latex", "--target", "average_accuracy=0.1"),
]  # fmt: skip


def check_commands(folder: pathlib.Path, commands: list[tuple[str, ...]]) -> list[int]:
    """Runs commands on a folder; returns their exit codes."""
    codes = []
    for name, *options in commands:
        words = [str(folder.parent / "other") if each == "OTHER" else each for each in options]
        code, out, err = call(name, str(folder), *words)
        codes.append(code)
        check_printed(out + err)
        if "--json" in options:
            assert out.isascii()
        if {"--csv", "--gains", "--leaving"} & {*options}:
            check_csv(out)
        assert "Traceback" not in err
    for page in folder.glob("*.html"):
        check_page(page.read_text())
    for drawing in folder.rglob("*.svg"):
        check_printed(drawing.read_text())
    return codes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    found = tmp_path_factory.mktemp("foreign")
    write_folder(found / "other", "usual", ())
    return found


@pytest.mark.in_turn
@pytest.mark.unchecked  # texts stand for ids of clients
def test_the_commands_work_on_usual_texts(place: pathlib.Path) -> None:
    """Else the property below would check refusals alone."""
    write_folder(place / "run", "usual", PLACES[:5])
    assert set(check_commands(place / "run", READ)) == {0}


@at_most(100)
@given(
    WORDS,
    st.lists(st.sampled_from(PLACES), min_size=1, unique=True).map(tuple) | st.just(PLACES),
    st.lists(st.sampled_from(READ), min_size=1, max_size=2, unique=True),
)
def test_no_text_drives_a_terminal_a_table_or_a_page(place, words, where, commands):
    write_folder(place / "run", words, where)
    check_commands(place / "run", commands)
    check_printed(repr(fljax.load(place / "run")))
    with contextlib.suppress(ValueError):
        check_page(live_page(place / "run", read_state(place / "run"), 5))


@pytest.mark.in_turn
@at_most(20)
@given(WORDS.filter(str.strip))
def test_no_text_in_data_drives_a_terminal(place: pathlib.Path, words: str) -> None:
    rows = [("x", words, "who"), *((number, f"{words}{number % 2}", f"{words}{number % 3}") for number in range(12))]
    with open(place / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    data = {"dataset": "rows.csv", "label": words, "client": "who", "partition": "natural"}
    (place / "data.toml").write_text(tomli_w.dumps(BASE | {"data": data}))
    for options in ([], ["--json"]):
        _, out, err = call("data", "show", str(place / "data.toml"), *options)
        check_printed(out + err)
        assert out.isascii() or not options


# --- Links ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run with models, as ``fljax run`` leaves it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    raw = BASE | {"rounds": 2, "seeds": 1, "algorithms": [{"name": "fedavg"}]}
    (folder.parent / "config.toml").write_text(tomli_w.dumps(raw))
    again = str(folder.parent / "config.toml"), "--out", str(folder), "--save-models", "last", "--no-report"
    assert call("run", *again)[0] == 0
    return folder


# Files that are written as a whole: a link in their place, or in that of their temporary file, is replaced.
PAGES = ("report.png", "report.html", "metrics.csv", "worth.html", "worth.png", "certificates.html")
WRITTEN = (*PAGES, ".report.html.live", *(f".{name}" for name in (*PAGES, "results.nc", "config.toml", "worth.nc")))
# What commands would make or read that a run does not have.
AHEAD = ("worth.nc", "certificates.nc", "comparison.toml", "pictures", "records", "parts", "checkpoints", "worth")


def commands_on(folder: pathlib.Path) -> list[tuple[str, ...]]:
    """Everything that reads or writes a run folder."""
    config, name = str(folder.parent / "config.toml"), str(folder)
    again = (config, "--out", name, "--save-models", "last", "--quiet")
    return [
        ("watch", name, "--once"), ("report", name), ("report", name, "--live"), ("export", name, "--csv"),
        ("report", name, "--figures", "client_curves"), ("export", name, "--pdf"), ("export", name, "--gains"),
        ("run", *again), ("run", *again, "--resume"),
        ("worth", config, "--out", name, "--resume"), ("certify", config, "--out", name, "--set", "seeds=5"),
        ("run", config, "--out", str(folder.parent / "more"), "--set", f"model.initial={name}:fedavg"),
        ("run", *again, "--resume", "--set", "rounds=3"),
    ]  # fmt: skip


def load_all(folder: pathlib.Path) -> None:
    loaded = fljax.load(folder)
    _ = loaded.metrics, loaded.records_of("fedavg"), loaded.config, loaded.names, loaded.models("fedavg", "last")


def contents(folder: pathlib.Path) -> dict[str, Any]:
    """The files of a folder with content and time, links apart."""
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def linked(
    trained: pathlib.Path, place: pathlib.Path, *names: str, dangling: bool = False, pipe: bool = False
) -> pathlib.Path:
    """A copy of a run in which files or folders, or what may become some, are links to outside, or pipes."""
    folder = place / "run"
    shutil.copytree(trained, folder)
    shutil.copy(trained.parent / "config.toml", place)
    for name in names:
        path, target = folder / name, place / "outside" / name
        if pipe:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            shutil.move(path, target)
        elif not dangling:
            target.write_text("outside") if "." in name else target.mkdir()
        path.symlink_to(target)
    return folder


@pytest.mark.thorough
def test_no_command_follows_a_link_or_waits_for_a_pipe_in_a_folder(trained, tmp_path):
    there = sorted(str(path.relative_to(trained)) for path in trained.rglob("*"))
    names = [name for name in there if name not in WRITTEN]
    pipes = {*AHEAD, *WRITTEN, *(name for name in there if not (trained / name).is_dir())}  # which nobody writes to
    cases = [(each, {}) for each in (*names, *AHEAD)] + [(each, {"dangling": True}) for each in AHEAD]
    for number, (name, how) in enumerate([*cases, *((each, {"pipe": True}) for each in sorted(pipes))]):
        place = tmp_path / str(number)
        place.mkdir()
        folder = linked(trained, place, name, **how)
        before = contents(place / "outside")
        for command in commands_on(folder):
            code, out, err = call(*command)
            if command[0] != "watch" or "jsonl" in name:  # which reads few files
                assert code == 2, (name, command, out)
                told = "no links, got the link" in err or "got a pipe, a socket or a device" in err
                assert told or command[0] == "certify" or (how == {"pipe": True} and "no run folder" in err)
        with pytest.raises(ValueError, match=r"no links, got the link|got a pipe, a socket or a device"):
            load_all(folder)
        assert contents(place / "outside") == before, name
    assert {"config.toml", "results.nc", "models", "models/fedavg.npz", "run.lock"} <= set(names)


def test_a_run_that_goes_on_looks_into_no_pipe(trained, tmp_path, monkeypatch):
    home = tmp_path / "runs" / "tiny-20200101-000000"  # which ``--resume`` would choose by the name in its config
    home.mkdir(parents=True)
    os.mkfifo(home / "config.toml")
    monkeypatch.chdir(tmp_path)
    assert call("run", str(trained.parent / "config.toml"), "--resume", "--quiet")[0] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("dangling", [False, True])
def test_no_command_writes_through_a_link_in_a_folder(trained, tmp_path, dangling):
    folder = linked(trained, tmp_path, *WRITTEN, dangling=dangling)
    before = contents(tmp_path / "outside")
    for command in commands_on(folder):
        code, out, err = call(*command)
        assert code == 0 or command[0] in ("certify", "run"), (command, out, err)
    load_all(folder)
    assert contents(tmp_path / "outside") == before


@pytest.mark.in_turn
def test_a_page_replaces_a_link_and_the_folder_may_be_one(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = linked(trained, tmp_path, "report.html")
    (tmp_path / "link").symlink_to(folder)
    before = contents(tmp_path / "outside")
    assert call("report", str(tmp_path / "link"))[0] == 0
    assert contents(tmp_path / "outside") == before
    assert not (folder / "report.html").is_symlink()
    load_all(tmp_path / "link")


# --- Code -------------------------------------------------------------------------------------------------------


@pytest.mark.in_turn
def test_models_of_a_changed_config_import_no_code(trained, tmp_path, monkeypatch):
    """And with ``imports=False`` none of a config that is the one of the results."""
    (tmp_path / "foreign_code.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    text = (folder / "config.toml").read_text()
    changed = text.replace('name = "logistic_regression"', 'name = "foreign_code:build"')
    assert changed != text
    (folder / "config.toml").write_text(changed)
    with pytest.raises(ValueError, match=r"expected the config of the results .* got a changed one: model.name"):
        fljax.load(folder).models("fedavg")
    with pytest.raises(ValueError, match=r"import paths .* are refused|import path"):
        _ = fljax.load(folder, imports=False).config
    assert fljax.load(trained, imports=False).models("fedavg").deployed(0)
    assert "foreign_code" not in sys.modules
