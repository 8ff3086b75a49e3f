"""Deviations that a command asks for: names of usual ones, or a TOML file of strategies with a table for each."""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Mapping
from typing import NamedTuple

from fljax.config.builders import Offer, builder_arguments, checked_options
from fljax.core.names import resolve
from fljax.games.strategic.deviations import Messages, numbers_of, unread, usual_deviations
from fljax.protocol.messages import Report
from fljax.scenarios import Deviation, Strategy

# Names of usual deviations, strategies and functions by name, or None for all usual ones.
Deviations = tuple[str, ...] | Mapping[str, Strategy | Deviation] | None

_ALL = Messages(Report._fields, True, True, True, True)


class Chosen(NamedTuple):
    """The deviations that an algorithm plays."""

    deviations: Mapping[str, Strategy | Deviation]  # by name; empty if it reads none of the requested ones
    left_out: Mapping[str, str]  # reasons for the others by name, as clauses about the algorithm


def deviations_of(text: str | None, *, imports: bool = True) -> Deviations:
    """What an option says: a file that ends in ``.toml``, or names (or import paths of functions) with commas."""
    if text is None:
        return None
    if text.lower().endswith(".toml"):
        return read_deviations(pathlib.Path(text), imports=imports)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    found = {name: resolve(name, usual_deviations(_ALL), "deviation", imports=imports) for name in names}
    return names if all(isinstance(lie, Strategy) for lie in found.values()) else found


def read_deviations(path: pathlib.Path, *, imports: bool = True) -> dict[str, Strategy | Deviation]:
    """The strategies of a file by name; a text is the import path of a function."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected {str(path)!r} to be readable, got: {error.strerror}") from None
    except ValueError as error:  # of TOML, or of UTF-8
        raise ValueError(f"expected {str(path)!r} to be a TOML file, got: {error}") from None
    strategies: dict[str, Strategy | Deviation] = {}
    for name, table in tables.items():
        if isinstance(table, str):
            strategies[name] = resolve(table, {}, "deviation", imports=imports)
            continue
        if not isinstance(table, dict):
            raise ValueError(f"expected a table of numbers for each deviation of {str(path)!r}, got {name} = {table!r}")
        checked = checked_options(name, Strategy, table, Offer(), "key")
        strategies[name] = Strategy(**builder_arguments(Strategy, checked))
        try:
            numbers_of(strategies[name])
        except (TypeError, ValueError):  # a list, which is for several clients or rounds
            raise ValueError(f"expected one number for each field of the deviation {name!r}, got {table}") from None
    if not strategies:
        raise ValueError(f"expected at least one deviation in {str(path)!r}, got none")
    return strategies


def chosen_of(asked: Deviations, messages: Messages) -> Chosen:
    """What is tried of an algorithm with these messages: of the deviations that are asked for those that it reads."""
    if asked is None:
        return Chosen(usual_deviations(messages), {})
    named = strategies_of(asked)
    left_out = unread(named, messages)
    return Chosen({name: strategy for name, strategy in named.items() if name not in left_out}, left_out)


def strategies_of(
    asked: tuple[str, ...] | Mapping[str, Strategy | Deviation],
) -> Mapping[str, Strategy | Deviation]:
    """The strategies that are asked for by name."""
    if isinstance(asked, Mapping):
        return asked
    usual = usual_deviations(_ALL)
    return {name: usual[name] for name in asked}
