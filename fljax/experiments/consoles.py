"""The one console of tables and progress: it prints texts literally, and none of them drives the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fljax.core.texts.plain import plain


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
