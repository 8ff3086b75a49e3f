"""Which tests are quick, thorough and slow."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pytest

QUICKLY = pytest.mark.compiled_quickly  # of tests that are thorough since they are ``in_turn``
QUICK_FILE = "quick_compilation"  # the fixture of files whose thorough tests are compiled quickly, too


class Part(NamedTuple):
    """One of ``count`` parts of the thorough tests, counted from 0."""

    place: int
    count: int


def parse(text: str) -> Part:
    """The part that ``"K/N"`` names."""
    place, slash, count = text.partition("/")
    if slash and place.isdigit() and count.isdigit() and int(place) < int(count):
        return Part(int(place), int(count))
    raise pytest.UsageError(f"expected --part K/N with K from 0 to N - 1, got {text!r}")


def split(items: Sequence[pytest.Item], part: Part) -> None:
    """Marks tests that are ``in_turn`` and cases that ``sampled`` leaves out ``thorough``.

    Thorough tests and those with drawn examples are marked ``slow`` if they are of other parts.
    """
    _put_off([item for item in items if item.get_closest_marker("sampled") is None and _is_quick(item)])
    _leave_out(items)
    for item in items:
        takes_turns = any(item.get_closest_marker(kind) is not None for kind in ("thorough", "hypothesis"))
        if takes_turns and _hash(f"part {_key(item)}") % part.count != part.place:
            item.add_marker(pytest.mark.slow)


def compiles_as_users_do(item: pytest.Item) -> bool:
    """Whether a test is thorough or slow by itself, and not only ``in_turn``."""
    return not _is_quick(item) and item.get_closest_marker(QUICKLY.name) is None


def compiles_quickly(item: pytest.Item) -> bool:
    """Whether a test is compiled with few optimisations: a quick one, or any of a file that asks for it."""
    asked = QUICK_FILE in getattr(item, "fixturenames", ())
    return asked or not (compiles_as_users_do(item) or item.get_closest_marker("optimised") is not None)


def _is_quick(item: pytest.Item) -> bool:
    return all(item.get_closest_marker(kind) is None for kind in ("slow", "thorough"))


def _put_off(items: Sequence[pytest.Item]) -> None:
    """Makes those that are ``in_turn`` thorough. They are compiled as quick tests are. A file may have exceptions."""
    for item in items:
        if item.get_closest_marker("in_turn") is not None and item.get_closest_marker("quick") is None:
            item.add_marker(QUICKLY)
            item.add_marker(pytest.mark.thorough)


def _leave_out(items: Sequence[pytest.Item]) -> None:
    """Of a function that is ``sampled(share)``, about one case in ``share`` is quick; the other cases are thorough.

    A hash of its name chooses a case, so that the choice does not depend on the other cases. If it chooses no case of a
    function, the first one is quick. Cases that are thorough or slow by themselves are left alone. Cases of a function
    that is ``in_turn``, too, are compiled as quick ones.
    """
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and _is_quick(item):
            cases[item.nodeid.split("[")[0], mark.args[0]].append(item)
    for (_, share), found in cases.items():
        chosen = [item for item in found if _hash(item.nodeid) % share == 0] or found[:1]
        for item in found:
            if item not in chosen:
                _put_off([item])
                item.add_marker(pytest.mark.thorough)


def _key(item: pytest.Item) -> str:
    """What decides the part of a test: its name, or that of its case or of its file, where these share programs."""
    if item.get_closest_marker("by_case") is not None:
        values = getattr(getattr(item, "callspec", None), "params", {})
        case = values.get("case", values.get("name"))
        if case is not None:
            return f"{case}]"
    return item.nodeid.partition("::")[0] if item.get_closest_marker(QUICKLY.name) is not None else item.nodeid


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
