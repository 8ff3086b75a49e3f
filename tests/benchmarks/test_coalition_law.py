"""The report of the law of coalitions over the registry."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from benchmarks import coalition_law
from benchmarks.coalition_law import Line, table


def test_seconds_are_those_of_cases_that_were_computed() -> None:
    lines = [Line("fedavg", "equal", "equal", ""), Line("iafl", "loss differs", "equal", "")]
    assert ", 3 s in the last process. Equal:" in table(lines, 3.2)
    joined = table(lines, None)
    assert "last process" not in joined
    assert "Equal in the first form: 1 of 2" in joined


def test_finished_cases_are_joined(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    names, computed = list(coalition_law.CASES)[:2], list[str]()

    def line_of(name: str) -> Line:
        computed.append(name)
        return Line(name, "equal", "equal", "")

    monkeypatch.setattr(coalition_law, "line_of", line_of)
    work = tmp_path / "work"
    for some, told in ((names[:1], True), (names, True), (names, False)):
        monkeypatch.setattr("sys.argv", ["law", "--only", ",".join(some), "--work", str(work)])
        coalition_law.main()
        assert ("in the last process" in capsys.readouterr().out) == told
    assert computed == names
    assert [json.loads(line)[0] for line in work.read_text().splitlines()] == names
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
