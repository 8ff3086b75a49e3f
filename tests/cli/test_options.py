"""Options that commands get as one value."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from typer.testing import CliRunner

from fljax.cli.running import RunOptions, changes_of, with_options

Loud = Annotated[bool, typer.Option("--loud", help="Shout.")]


class Pair(NamedTuple):
    first: Annotated[str, typer.Option(metavar="WORD")] = "one"
    second: int = 2


def test_a_value_is_an_option_for_each_of_its_fields() -> None:
    seen: list[Any] = []

    def command(name: str, pair: Pair, *, loud: Loud = False) -> int:
        """Says what it was given."""
        seen.append((name, pair, loud))
        return 0

    app = typer.Typer()
    app.command()(with_options(command))
    assert CliRunner().invoke(app, ["a"]).exit_code == 0
    assert CliRunner().invoke(app, ["a", "--first", "x", "--second", "3", "--loud"]).exit_code == 0
    assert seen == [("a", Pair("one", 2), False), ("a", Pair("x", 3), True)]
    text = CliRunner().invoke(app, ["--help"]).output
    assert "Says what it was given." in text
    places = [text.index(each) for each in ("--first", "WORD", "--second", "--loud")]
    assert places == sorted(places)


def test_what_options_change_in_a_config() -> None:
    assert changes_of(RunOptions()) == []
    assert changes_of(RunOptions(["rounds=2"], seeds=3)) == ["rounds=2", "seeds=3"]
