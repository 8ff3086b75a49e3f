"""What commands that run experiments share: the folder of the results, and progress."""

from __future__ import annotations

import datetime
import json
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fljax.cli.environment import environment

if TYPE_CHECKING:
    from fljax.config import Config
    from fljax.folders import Event

# Options of every command that runs experiments.
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds, from 0.")]
Out = Annotated[pathlib.Path | None, typer.Option(help="Folder of the results; runs/NAME-TIME if not given.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with --out, or with the latest run of this name.")]
Cache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep compiled programs for later runs, in ~/.cache/fljax.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Draw no pictures.")]
NoImport = Annotated[
    bool,
    typer.Option("--no-import", help="Refuse import paths, as FLJAX_NO_IMPORT=1 does for all commands."),
]
SaveModels = Annotated[
    bool, typer.Option("--save-models", help="Save trained models; fljax.saved_models.load gives them back.")
]
ConfigFile = Annotated[pathlib.Path, typer.Argument(help="A TOML file.")]


def folder_of(config: Config, out: pathlib.Path | None, resume: bool) -> pathlib.Path:
    """Where results go.

    Raises:
      ValueError: there is nothing to resume, or the folder holds results that would be lost.
    """
    if resume and out is None:
        runs = sorted(pathlib.Path("runs").glob(f"{config.name}-[0-9]*"))
        if not runs:
            raise ValueError(f"expected an earlier run of {config.name!r} in 'runs' to resume, got none")
        return runs[-1]
    if out is None:
        return pathlib.Path("runs") / f"{config.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if (out / "results.nc").exists() and not resume:
        raise ValueError(f"expected a folder without results, or --resume, got {str(out)!r}, which holds some")
    return out


def prepare(folder: pathlib.Path, config: Config, resume: bool) -> None:
    """Makes the folder and writes what was asked for and where it runs, before anything is computed."""
    from fljax.config import dumps

    text, written = dumps(config), folder / "config.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if resume and written.exists() and written.read_text(encoding="utf-8") != text:
            raise ValueError(f"expected the config of the run in {str(folder)!r} to resume it, got a changed one")
        written.write_text(text, encoding="utf-8")
        found = json.dumps(environment(), indent=2) + "\n"
        (folder / "environment.json").write_text(found, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"expected a folder to write in, got {str(folder)!r} ({error.strerror})") from None


def progress_bars(quiet: bool) -> Progress:
    """Bars on stderr, with lines above them."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True, markup=False, emoji=False),
        disable=quiet,
    )


def listener(progress: Progress) -> Any:
    """Turns events into bars, one for each algorithm; anything else is a line above them."""
    bars: dict[str, Any] = {}
    began: dict[str, float] = {}

    def listen(event: Event) -> None:
        if event.stage == "train":
            if event.label not in bars:
                bars[event.label] = progress.add_task(event.label, total=event.rounds, speed="")
                began[event.label] = event.seconds
            elapsed = event.seconds - began[event.label]
            speed = f"{event.round / elapsed:.1f} rounds/s" if event.round and elapsed > 0 else ""
            speed = ", ".join(filter(None, [event.message, speed]))
            progress.update(bars[event.label], completed=event.round, speed=speed)
        elif event.message and not progress.disable:
            start = f"{event.label}: " if event.label else ""
            progress.console.print(f"{start}{event.message}", highlight=False)

    return listen
