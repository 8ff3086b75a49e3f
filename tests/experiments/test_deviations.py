"""Deviations that a command asks for."""

from __future__ import annotations

import pathlib

import pytest

from fljax.config.keys import ConfigError
from fljax.experiments.inputs.entrants import chosen_of, deviations_of, read_deviations
from fljax.games.strategic.playing import Messages, usual_deviations
from fljax.scenarios import ByReport, Strategy
from tests.games.strategic.test_functions import doubled
from tests.refusals import refuses

READS = Messages(("loss",), True, False, True)


def test_names_are_those_of_usual_deviations() -> None:
    assert deviations_of(None) is None
    assert deviations_of("zero rider, bid plus 1,zero rider") == ("zero rider", "bid plus 1")
    refuses(lambda: deviations_of(""), r"expected one of the deviations no effort, .*, got '' *")


def test_a_file_of_strategies(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lies.toml"
    path.write_text('["double update"]\nown = 2.0\n[both]\neffort = 0.5\nfactor = {loss = 0.5, size = 10.0}\n')
    expected = {
        "double update": Strategy(own=2.0),
        "both": Strategy(effort=0.5, factor=ByReport(loss=0.5, size=10.0)),
    }
    assert read_deviations(path) == expected == deviations_of(str(path))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", ValueError, "expected at least one deviation in .*, got none"),
        ("own = 2.0", ValueError, "expected a table of numbers for each deviation of .*, got own = 2.0"),
        ("[a", ValueError, "to be a TOML file, got"),
        ("[a]\nowned = 2.0", ConfigError, "a: .*owned"),
        ("[a]\nown = 'two'", ConfigError, "a.own"),
        ("[a]\nown = [1.0, 2.0]", ValueError, "expected one number for each field of the deviation 'a', got"),
        ("[a.factor]\nsizes = 2.0", ConfigError, "a.factor: .*sizes"),
    ],
)
def test_other_files_are_refused(tmp_path: pathlib.Path, text: str, error: type[Exception], words: str) -> None:
    path = tmp_path / "lies.toml"
    path.write_text(text)
    refuses(lambda: read_deviations(path), words, error)


def test_what_is_tried_of_an_algorithm() -> None:
    usual = usual_deviations(READS)
    assert chosen_of(None, READS) == (usual, {})
    some = chosen_of(("size times 10", "zero rider", "loss times 0"), READS)
    assert list(some.deviations) == ["zero rider", "loss times 0"]
    why = "which never reads size (it asks for loss)"
    assert some.left_out == {"size times 10": why}
    lies = {"lie": Strategy(factor=ByReport(size=2.0)), "double": Strategy(own=2.0)}
    assert chosen_of(lies, READS) == ({"double": Strategy(own=2.0)}, {"lie": why})


def test_functions_by_import_path(tmp_path: pathlib.Path) -> None:
    """As a name beside usual ones, and as a line of a file; refused where nothing is imported."""
    path = "tests.games.strategic.test_functions:doubled"
    named = deviations_of(f"zero rider, {path}")
    assert named == {"zero rider": Strategy(own=0.0), path: doubled}
    (tmp_path / "lies.toml").write_text(f'twice = "{path}"\n["three times"]\nown = 3.0\n')
    assert deviations_of(str(tmp_path / "lies.toml")) == {"twice": doubled, "three times": Strategy(own=3.0)}
    for text in (path, str(tmp_path / "lies.toml")):
        with pytest.raises(ValueError, match="import"):
            deviations_of(text, imports=False)
