"""The law of coalitions over the registry.

A run on some of five clients is compared with the run of a federation that holds only these, in double precision. In
the first form the members are the first three clients, with drawn batches and cohorts of two; in the second form they
are others, with full batches and all members in each round, and with options with which nothing is drawn by id. The
cases are those of ``tests/laws/test_coalitions.py``. Equal: to a part of the largest entry (``CLOSE`` of
``fljax/testing/coalitions.py``), all scores of members, unseen clients and server models, and measured contributions.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from benchmarks.reporting import Row, names_in
from fljax.testing.coalitions import OTHERS, compare_with_members_alone, equals_its_members_alone
from tests.laws.coalition_cases import CASES, DRAWN, IN_ORDER, WITHOUT_DRAWS, whole, without_draws


def measure(options: Namespace) -> Iterator[Row]:
    """Both forms of each case, or the reason why one is left out."""
    for name in names_in(options.only or ",".join(CASES), tuple(CASES), "case"):
        second = f"not compared: {DRAWN[name]}" if name in DRAWN else outcome(name, True)
        chosen = {} if name in DRAWN else WITHOUT_DRAWS.get(name, {})
        words = [f"{key} = {shown(value)}" for key, value in chosen.items()]
        yield f"`{name}`", outcome(name, False), second, ", ".join([*words, *(["rows in order"] * (name in IN_ORDER))])


def outcome(name: str, second: bool) -> str:
    """ "equal", or the sentence that says what differs."""
    try:
        if second:
            case, local = without_draws(name)
            compare_with_members_alone(case, OTHERS, local, None)
        else:
            equals_its_members_alone(whole(name))
    except AssertionError as error:
        return str(error).partition(" is ")[0] + " differs"
    return "equal"


def shown(value: Any) -> str:
    """A value; of a record, the fields that are not the default."""
    if not hasattr(value, "_field_defaults"):
        return str(value)
    changed = {key: entry for key, entry in value._asdict().items() if entry != value._field_defaults.get(key)}
    return f"{type(value).__name__}({', '.join(f'{key}={entry}' for key, entry in changed.items())})"
