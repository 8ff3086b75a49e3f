"""``fljax compare``: runs beside each other, as a table, and what their configs differ in."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fljax.cli.commands.results import columns_of
from fljax.cli.printing import as_table, console, print_json
from fljax.cli.running import Json, Metrics
from fljax.core.plain import tell

if TYPE_CHECKING:
    from fljax.report.methods import Compared

MOST_KEYS = 12  # differences of configs that are printed


def compare(
    runs: Annotated[list[pathlib.Path], typer.Argument(help="Folders of runs; differences are from the first.")],
    metrics: Metrics = None,
    as_json: Json = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Methods x runs for one metric, with average ranks; sweeps, too.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="With --ranks: the table for a paper, with booktabs.")] = False,
) -> None:
    """Print metrics of several runs side by side, with differences from the first run, and how their configs differ."""
    if ranks:
        _print_ranks(runs, metrics or ["average_accuracy"], as_json, latex)
        return
    if latex:
        raise ValueError("expected --latex with --ranks, got it without")
    if len(runs) < 2:
        raise ValueError(f"expected at least two folders of runs, got {len(runs)}")
    from fljax.report.methods import compare_runs
    from fljax.results import folders

    names = _names(runs)
    found = compare_runs({name: folders.load_results(folder)[0] for name, folder in names.items()})
    changes = _changes(names)
    if as_json:
        different = {name: {key: list(pair) for key, pair in keys.items()} for name, keys in changes.items()}
        lines = [
            {
                "run": each.run,
                **each.row._asdict(),
                "difference": each.difference and each.difference._asdict(),
                "diverged": each.diverged,
            }
            for each in found
        ]
        print_json({"metrics": lines, "configs": different})
        return
    columns = columns_of({each.row.metric for each in found if each.row.seeds}, metrics or ())
    # Cells have two lines; a narrow terminal wraps headings.
    console(120).print(_comparison(found, columns))
    _print_changes(changes, next(iter(names)))


def _print_ranks(runs: Sequence[pathlib.Path], metrics: Sequence[str], as_json: bool, latex: bool) -> None:
    """Prints methods beside runs and cells of sweeps, for one metric."""
    from fljax.report import methods
    from fljax.results import folders

    if as_json and latex:
        raise ValueError("expected one of --json and --latex with --ranks, got both")
    if len(metrics) > 1:
        raise ValueError(f"expected one --metric with --ranks, got {' and '.join(metrics)}")
    loaded = {name: folders.load_results(run)[0] for name, run in _names(runs).items()}
    found = methods.method_table(loaded if len(runs) > 1 else next(iter(loaded.values())), metrics[0])
    if as_json:
        print_json(methods.as_json(found))
        return
    if latex:
        tell(found.latex(), end="")
        return
    heads, lines = methods.lines_of(found)
    console(120).print(as_table([heads, *lines], caption=methods.note(found)))


def _names(runs: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Folders by name; by path if two have one name."""
    short = [folder.resolve().name for folder in runs]
    names = [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, runs, strict=True)]
    if len({folder.resolve() for folder in runs}) < len(runs):
        raise ValueError("expected different folders of runs, got one of them twice")
    return dict(zip(names, runs, strict=True))


def _comparison(found: Sequence[Compared], columns: Mapping[str, str]) -> Table:
    from fljax.report.tables import cell, digits_of, with_spread

    by_line: dict[tuple[str, str], dict[str, Compared]] = {}
    for each in found:
        by_line.setdefault((each.run, each.row.algorithm), {})[each.row.metric] = each
    (first, label), *_ = by_line
    marked = any(each.diverged for each in found)

    def shown(each: Compared | None) -> str:
        if each is None:
            return "–"
        if each.difference is None:
            return cell(each.row)
        mean, std, _ = each.difference
        return f"{cell(each.row)}\n{with_spread(mean, std, digits_of(each.row.metric), '+')}"

    lines = [["run/algorithm", *columns.values(), *["diverged"] * marked]]
    for (run, algorithm), line in by_line.items():
        marks = [next(iter(line.values())).diverged] * marked
        lines.append([f"{run}/{algorithm}", *(shown(line.get(name)) for name in columns), *marks])
    return as_table(
        lines,
        "Test results at the last evaluation, mean ± std over seeds",
        f"second line: difference from the same algorithm in {first}, or from {label} if it is not there",
        words=["diverged"],
        show_lines=True,
    )


def _changes(runs: Mapping[str, pathlib.Path]) -> dict[str, dict[str, tuple[str, str]]]:
    """Where config, settings and code of each other run differ from those of the first, with both values, by key."""
    from fljax.results import folders
    from fljax.results.identity import WITHOUT_EFFECT, differences

    texts = {name: folders.config_of(folder) for name, folder in runs.items()}
    (_, there), *others = texts.items()
    if there is None:
        return {}
    changes = {name: differences(there, text, (*WITHOUT_EFFECT, "name")) for name, text in others if text is not None}
    first, *records = [json.loads(folders.record_in(folder)[0] or "{}") for folder in runs.values()]
    for (name, _), record in zip(others, records, strict=True):
        both = {key: (first[key], record[key]) for key in first if key in record}  # an older fljax has none
        changes.get(name, {}).update({key: pair for key, pair in both.items() if pair[0] != pair[1]})
    return changes


def _print_changes(changes: Mapping[str, Mapping[str, tuple[str, str]]], first: str) -> None:
    for name, keys in changes.items():
        if not keys:
            tell(f"{name} has the config of {first}.")
            continue
        tell(f"The config of {name} differs from that of {first}:")
        for key, (there, here) in list(keys.items())[:MOST_KEYS]:
            tell(f"  {key}: {there} -> {here}")
        if len(keys) > MOST_KEYS:
            tell(f"  and {', '.join(list(keys)[MOST_KEYS:])}")
