"""How many examples hypothesis draws."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

QUICK, CI = 10, 100  # examples of the profiles, where a test says no number


def at_most(examples: int) -> Any:
    """A decorator: a test draws ``examples``, with the profile ``quick`` at most 10."""
    most = settings().max_examples
    return settings(max_examples=examples if most >= CI else min(examples, most), deadline=None)
