"""Work of the devices that begins before earlier work has ended: at most two blocks are on the devices at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax

# Blocks that may be on the devices: one that is computed, and one that is moved meanwhile.
AHEAD = 2


class Pipeline:
    """Keeps the number of unfinished blocks small.

    JAX's calls return before the devices have computed. So the host can read and move the next block meanwhile.
    """

    def __init__(self) -> None:
        self._begun: deque[tuple[Any, Callable[[], None] | None]] = deque()

    def make_room(self) -> None:
        """Waits until another block may begin."""
        while len(self._begun) >= AHEAD:
            self._end()

    def begun(self, results: Any, then: Callable[[], None] | None = None) -> None:
        """Notes a block by its results; ``then`` is called once they are there."""
        self._begun.append((results, then))

    def finish(self) -> None:
        """Waits for all blocks."""
        while self._begun:
            self._end()

    def _end(self) -> None:
        results, then = self._begun.popleft()
        jax.block_until_ready(results)
        if then is not None:
            then()
