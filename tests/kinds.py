"""Which tests are quick, thorough and slow."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pytest


class Part(NamedTuple):
    """One of ``count`` parts of the thorough tests, counted from 0."""

    place: int
    count: int


def parse(text: str) -> Part:
    """The part that ``"K/N"`` names.

    Raises:
      pytest.UsageError: if the text is no such part.
    """
    place, slash, count = text.partition("/")
    if slash and place.isdigit() and count.isdigit() and int(place) < int(count):
        return Part(int(place), int(count))
    raise pytest.UsageError(f"expected --part K/N with K from 0 to N - 1, got {text!r}")


def split(items: Sequence[pytest.Item], part: Part) -> None:
    """Marks the cases that ``sampled`` leaves out ``thorough``, and thorough tests of other parts ``slow``."""
    _leave_out(items)
    for item in items:
        if item.get_closest_marker("thorough") is not None and _hash(f"part {_key(item)}") % part.count != part.place:
            item.add_marker(pytest.mark.slow)


def _leave_out(items: Sequence[pytest.Item]) -> None:
    """Of a function that is ``sampled(share)``, about one case in ``share`` is quick; the other cases are thorough.

    A hash of its name chooses a case, so that the choice does not depend on the other cases. If it chooses no case of a
    function, the first one is quick. Cases that are thorough or slow by themselves are left alone.
    """
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and all(item.get_closest_marker(kind) is None for kind in ("slow", "thorough")):
            cases[item.nodeid.split("[")[0], mark.args[0]].append(item)
    for (_, share), found in cases.items():
        chosen = [item for item in found if _hash(item.nodeid) % share == 0] or found[:1]
        for item in found:
            if item not in chosen:
                item.add_marker(pytest.mark.thorough)


def _key(item: pytest.Item) -> str:
    """What decides the part of a test: its name, or that of its case, which shares programs with other tests."""
    case = item.nodeid.partition("[")[2]
    return case if case and item.get_closest_marker("by_case") is not None else item.nodeid


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
