"""``fljax watch``, which shows the state of a run that another process goes on with."""

from __future__ import annotations

import pathlib
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fljax.cli.printing import Json, console, print_json
from fljax.cli.stopping import Interrupted

if TYPE_CHECKING:
    from fljax.results import Progress, RunState

REFRESH = 1.0  # seconds


def watch(
    run: Annotated[pathlib.Path, typer.Argument(help="The folder of a run.")],
    once: Annotated[bool, typer.Option("--once", help="Print the state once.")] = False,
    as_json: Json = False,
) -> None:
    """Show the progress of a run, its time left and its last metrics, until it ends; Ctrl-C leaves it alone."""
    from fljax.results import read_state

    state = read_state(run)
    if as_json:
        algorithms = [each._asdict() for each in state.algorithms]
        print_json({**state._asdict(), "finished": state.finished, "algorithms": algorithms})
    elif once:
        console(130).print(table(state))
    else:
        terminal = Console(markup=False, emoji=False)
        try:
            with Live(table(state), console=terminal, auto_refresh=False) as live:
                while state.running:
                    time.sleep(REFRESH)
                    state = read_state(run)
                    live.update(table(state), refresh=True)
        except (KeyboardInterrupt, Interrupted) as stop:
            if isinstance(stop, Interrupted) and stop.number != signal.SIGINT:
                raise


def table(state: RunState) -> Table:
    """One line for each algorithm, under the state of the run."""
    from fljax.core.names import duration
    from fljax.metrics.summaries import main_columns

    shown = main_columns({name for each in state.algorithms for name in each.metrics})
    found = Table(title=headline(state), caption="metrics: means over seeds at the last evaluation")
    found.add_column("algorithm")
    found.add_column("state")
    for head in ("round", "rounds/s", "left", "evaluated", *shown.values()):
        found.add_column(head, justify="right")
    marked = any(each.diverged for each in state.algorithms)
    if marked:
        found.add_column("diverged")
    for each in state.algorithms:
        rate = "–" if each.rate is None else f"{each.rate:.3g}"
        left = "–" if each.left is None or each.state != "training" else duration(each.left)
        after = "–" if each.evaluated is None else f"after {each.evaluated}"
        numbers = [_number(each, name) for name in shown]
        numbers += [each.diverged] * marked
        found.add_row(each.label, each.state, f"{each.round} of {each.rounds}", rate, left, after, *numbers)
    return found


def headline(state: RunState) -> str:
    """The state of a run in one line."""
    from fljax.core.names import duration

    if not state.running:
        return f"{state.name}: {'finished' if state.finished else 'ended before it was finished'}"
    words = [f"{state.name}: running for {duration(state.seconds)}", state.stage]
    if state.left is not None:
        words.append(f"about {duration(state.left)} left")
    if state.silent > 60:
        words.append(f"nothing new for {duration(state.silent)}")
    return ", ".join(filter(None, words))


def _number(progress: Progress, name: str) -> str:
    value = progress.metrics.get(name)
    return "–" if value is None else f"{value:.3f}"
