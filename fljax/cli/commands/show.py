"""The commands ``fljax cite``, ``doctor``, ``data`` and ``report``."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from fljax.cli.environment import memory, start_jax
from fljax.cli.printing import Json, console, print_json


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
    print(bibtex(found[name].references))


def prepare(
    name: Annotated[str, typer.Argument(help="A data set.")],
    folder: Annotated[pathlib.Path | None, typer.Option(help="Folder with the upstream files.")] = None,
) -> None:
    """Load a data set once, so that later runs find it."""
    from fljax import data

    found = data.load(name, folder=folder)
    shape = " x ".join(str(length) for length in found.x.shape[1:])
    classes = "" if found.classes is None else f", {found.classes} classes"
    print(f"{name}: {len(found.y)} examples of {shape}{classes}")


def status(as_json: Json = False) -> None:
    """Say for each data set where it is, or how to get it."""
    from fljax import data

    found = data.status()
    if as_json:
        print_json(found)
        return
    width = max(len(name) for name in found)
    for name, where in found.items():
        print(f"{name:<{width}}  {where}")


def report_(
    runs: Annotated[list[pathlib.Path], typer.Argument(help="Folders of runs.")],
    as_json: Json = False,
    live: Annotated[
        bool, typer.Option("--live", help="Write the page of one run anew while the run goes on; browsers reload it.")
    ] = False,
) -> None:
    """Draw the picture and the page of runs again."""
    from fljax import report

    if live:
        if len(runs) != 1 or as_json:
            raise ValueError(f"expected one run, and no --json, with --live, got {len(runs)} runs")
        print(f"{runs[0] / 'report.html'} is written anew until the run ends", flush=True)
        report.follow(runs[0])
        return
    written = {str(folder): [str(path) for path in report.write(folder)] for folder in runs}
    if as_json:
        print_json(written)
        return
    for paths in written.values():
        print("\n".join(paths))


def doctor(
    config: Annotated[
        pathlib.Path | None, typer.Option(help="A TOML file: say what a run of it would hold in memory instead.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key of --config; may be repeated.")
    ] = None,
    imports: Annotated[
        bool, typer.Option("--import/--no-import", help="Follow import paths in --config, which runs their code.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show versions, devices, memory and data sets; or what a run would hold in memory."""
    from fljax import data
    from fljax.results.environment import environment

    if config is not None:
        _memory(config, overrides or [], imports, as_json)
        return
    if overrides:
        raise ValueError("expected --config with --set, got --set alone")
    found = {**environment(), "memory": memory(), "data": data.status()}
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, each in value.items():
                print(f"  {name}: {each}")
        else:
            print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _memory(config: pathlib.Path, overrides: Sequence[str], imports: bool, as_json: bool) -> None:
    """Prints the memory of every algorithm, as ``fljax run`` does, without running; its programs are compiled."""
    from fljax.config import load

    chosen = load(config, overrides, imports=imports)
    start_jax()
    from fljax import engine
    from fljax.experiments import run

    found = run.estimates(chosen)
    if as_json:
        missing = {label: engine.shortage(each) for label, each in found.items()}
        print_json({label: {**each._asdict(), "warning": missing[label]} for label, each in found.items()})
        return
    table = Table(title="Memory of a run", caption=f"server, clients: of {_seeds(len(chosen.seeds))}")
    table.add_column("algorithm")
    for head in ("at once", "server", "models", "of", "clients", "data"):
        table.add_column(head, justify="right")
    for label, each in found.items():
        models = each.server // max(each.model, 1)
        sizes = [engine.size(count) for count in (each.peak, each.server, each.model, each.clients, each.data)]
        table.add_row(label, *sizes[:2], str(models), *sizes[2:])
    console(110).print(table)
    for label, each in found.items():
        if each.devices > 1:
            print(f"{label}: on each of {each.devices} devices")
        missing = engine.shortage(each)
        if missing is not None:
            print(f"{label}: {missing}")


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"all {count} seeds"
