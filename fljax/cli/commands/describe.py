"""What there is to begin with: ``fljax list`` and ``show`` names, ``cite`` papers, ``init`` writes a first config."""

from __future__ import annotations

import importlib.resources
import pathlib
import shlex
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fljax.cli.printing import console, print_json
from fljax.cli.running import KINDS, Json
from fljax.core.names import with_article
from fljax.core.plain import tell

if TYPE_CHECKING:
    from fljax.cli.catalogue import Description

FILE = "experiment.toml"  # that ``fljax init`` writes
WIDEST = 110  # characters in a line of text that is easy to read


def list_(kind: Annotated[str, typer.Argument(help=" | ".join(KINDS))], as_json: Json = False) -> None:
    """List what fljax has of a kind, one sentence each; fljax show NAME says all about one of them."""
    from fljax.cli import catalogue
    from fljax.cli.catalogue import plain

    lines = {name: catalogue.line(entry) for name, entry in catalogue.entries(kind).items()}
    if as_json:
        print_json(lines)
        return
    if not lines:
        tell(f"fljax has no {kind} yet.")
    width = max((len(name) for name in lines), default=0)
    for name, words in lines.items():
        tell(_hanging(f"{name:<{width}}", plain(words), _width()))


def show(
    name: Annotated[
        str, typer.Argument(help="Whatever fljax list prints, or the import path module:name of an algorithm.")
    ],
    imports: Annotated[
        bool, typer.Option("--import/--no-import", help="Follow an import path, which runs its module's code.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Show all about an algorithm, or anything else with a name: equation, hyper-parameters, source, configs."""
    from fljax.cli import catalogue

    found = catalogue.describe(name, imports=imports)
    if as_json:
        print_json([{**each._asdict(), "parameters": [one._asdict() for one in each.parameters]} for each in found])
        return
    terminal = console(WIDEST)
    for place, each in enumerate(found):
        if place:
            tell()
        for line in _lines(each, min(_width() or WIDEST, WIDEST)):
            terminal.print(line, soft_wrap=True)


def _width() -> int | None:
    """The width of the terminal; None where the output is read by other programs, which want one line for each name."""
    return console(WIDEST).width if sys.stdout.isatty() else None


def _hanging(first: str, words: str, width: int | None) -> str:
    """``first`` and ``words``; where that is too wide, the other lines begin below the words."""
    if width is None or len(first) + 24 > width:
        return f"{first}  {words}".rstrip()
    margin = " " * (len(first) + 2)
    whole = textwrap.wrap(words, width - len(margin), break_long_words=False, break_on_hyphens=False) or [""]
    return f"{first}  {f'{chr(10)}{margin}'.join(whole)}".rstrip()


def _lines(each: Description, width: int) -> list[Text]:
    lines = [Text.assemble((each.name, "bold"), f", {with_article(each.kind)}")]
    lines += _indented(each.summary, width, 0)
    for paragraph in each.about:
        equation = paragraph in each.equation
        lines += [Text(), *_indented(paragraph.replace("`", "") if equation else paragraph, width, 2 * equation)]
    if each.parameters:
        word = "Hyper-parameters" if each.kind == "algorithm" else "Options"
        lines += [Text(), Text(word, "bold")]
        for parameter in each.parameters:
            gradient = {"yes": "; differentiable", "zero": "; gradient zero"}.get(parameter.gradient, "")
            value = f"  {parameter.type}; {parameter.default_in_words}{gradient}"
            lines.append(Text.assemble("  ", (parameter.name, "bold"), value))
            lines += _indented(parameter.text, width, 6)
    for title, text in (("Returns", each.returns), ("Raises", each.raises)):
        lines += [Text(), Text(title, "bold"), *_indented(text, width, 2)] if text else []
    if each.facts:
        lines += [Text(), Text("Facts", "bold")]
        for about, words in each.facts.items():
            lines += _indented(f"{about}: {words}", width, 2)
    if each.source or each.bibtex:
        lines += [Text(), Text("Source", "bold"), *_indented(each.source, width, 2)]
        lines += [Text(f"  BibTeX: fljax cite {each.name}")] if each.bibtex else []
    if each.configs:
        lines += [Text(), Text("Shipped configs that use it (fljax run NAME)", "bold")]
        lines += _indented(", ".join(each.configs), width, 2)
    tables = sorted({table for own in each.configs.values() for table in own})
    if tables and each.kind != "table":
        lines += [Text(), Text("Published tables that their results belong to (fljax reproduce TABLE)", "bold")]
        lines += _indented(", ".join(tables), width, 2)
    return lines


def _indented(text: str, width: int, indent: int) -> list[Text]:
    """A paragraph in lines; a literal block in it keeps its own."""
    if not text:
        return []
    sentence, *literal = text.split("\n")
    margin = " " * indent
    wrapped = textwrap.wrap(sentence, width - indent, break_long_words=False, break_on_hyphens=False)
    return [Text(f"{margin}{line}") for line in [*wrapped, *literal]]


def cite(name: Annotated[str, typer.Argument(help="An algorithm or a scenario.")]) -> None:
    """Print BibTeX of the papers that an algorithm or a scenario is from."""
    from fljax import algorithms, scenarios
    from fljax.algorithms.entries import bibtex
    from fljax.core.names import unknown

    found = {**scenarios.REGISTRY, **algorithms.REGISTRY}
    if name not in found:
        raise ValueError(unknown("algorithm or scenario", name, found))
    if not found[name].references:
        cited = ", ".join(each for each, entry in found.items() if entry.references)
        raise ValueError(f"expected an algorithm or a scenario from a paper, got {name}; valid names are {cited}")
    tell(bibtex(found[name].references))


def init(
    path: Annotated[pathlib.Path, typer.Argument(help="The file to write, or a folder to write it in.")] = pathlib.Path(
        FILE
    ),
) -> None:
    """Write a config to start from: every table, with comments; it runs as it is in a few seconds."""
    text = importlib.resources.files("fljax").joinpath("starter.toml").read_text(encoding="utf-8")
    target = path / FILE if path.is_dir() else path
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"expected the path of a file that does not exist yet, got {str(target)!r}") from None
    except OSError as error:
        raise ValueError(f"expected a file to write to, got {str(target)!r} ({error.strerror})") from None
    tell(f"{target} is written; to run it: {shlex.join(['fljax', 'run', str(target)])}")
