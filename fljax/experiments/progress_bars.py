"""Progress of experiments on stderr: bars, and messages above them.

Tables and progress share one console. It prints texts literally, so that none of them drives the terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from fljax.core.plain import plain

if TYPE_CHECKING:
    from fljax.results.events import Event, OnEvent


class PlainConsole(Console):
    """A console without markup and emoji (``:moon``) in labels, whose texts are ``plain``."""

    def __init__(self, *, width: int | None = None, stderr: bool = False) -> None:
        super().__init__(width=width, stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Texts of cells, before their width is measured."""
        return super().render_str(plain(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything else, such as what bars say; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


# Times left are estimated from all evaluations so far: rich's own 30 seconds may be less than one block of rounds.
WHOLE_RUN = 10.0**9


class _Time(TimeRemainingColumn):
    """The time left; of a bar that is finished or has no length, the time that has passed."""

    def render(self, task: Task) -> Text:
        return TimeElapsedColumn().render(task) if task.total is None else super().render(task)


class _Words(TextColumn):
    """Text that is cut where the terminal is too narrow, so that the other columns stay."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def progress_bars(quiet: bool) -> Progress:
    """Progress bars with the time left, or the time taken; messages are printed above them."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Words("{task.fields[speed]}", markup=False, table_column=Column()),
        _Time(compact=True, elapsed_when_finished=True),
        console=PlainConsole(stderr=True),
        speed_estimate_period=WHOLE_RUN,
        disable=quiet,
    )


def listener(progress: Progress) -> Any:
    """Returns a function that shows training events as one bar per algorithm, and other events as lines above."""
    bars: dict[str, Any] = {}
    began: dict[str, float] = {}
    done: dict[str, int] = {}
    # Standalone models are one program, which is silent until it ends: a bar without a length shows the time.
    alone: list[Any] = []

    def listen(event: Event) -> None:
        if event.stage in ("train", "standalone"):
            for task in alone:
                progress.update(task, total=1, completed=1)
            alone.clear()
        if event.stage == "train":
            if event.label not in bars:
                bars[event.label] = progress.add_task(event.label, total=event.rounds, speed="")
                began[event.label] = event.seconds
            done[event.label] = event.round
            elapsed = event.seconds - began[event.label]
            speed = f"{event.round / elapsed:.1f} {event.unit}/s" if event.round and elapsed > 0 else ""
            speed = ", ".join(filter(None, [event.message, speed]))
            progress.update(bars[event.label], completed=event.round, speed=speed)
            return
        if event.message and not progress.disable:
            start = f"{event.label}: " if event.label else ""
            progress.console.print(f"{start}{event.message}", highlight=False)
        if event.stage == "standalone":
            alone.append(progress.add_task("standalone", total=None, speed=""))
        elif event.stage == "saved" and done.get(event.label):
            progress.update(bars[event.label], total=done[event.label])  # fewer rounds if it stopped early

    return listen


@contextlib.contextmanager
def listening(progress: bool | OnEvent) -> Iterator[OnEvent | None]:
    """The listener of a run's events: that of bars if ``progress`` is True, the user's function, or None."""
    if callable(progress):
        yield progress
        return
    with progress_bars(quiet=not progress) as bars:
        yield listener(bars) if progress else None
