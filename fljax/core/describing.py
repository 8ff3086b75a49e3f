"""Short texts about values, for ``repr`` and for files that say how a run was made.

Only shapes and types of arrays are read, so tracers and shapes without arrays are described as well as arrays.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST = 5  # entries of a sequence that are shown


def describe(value: Any) -> str:
    """A value in a few words: ``0.1``, ``float32[5]``, ``Local(learning_rate=0.1, batch_size=8)``, ``fedavg``.

    Of a NamedTuple, fields that are functions or have their default value are left out.
    """
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if hasattr(value, "_fields"):
        fields = {name: getattr(value, name) for name in value._fields}
        defaults: Mapping[str, Any] = getattr(value, "_field_defaults", {})
        shown = {
            name: each
            for name, each in fields.items()
            if not callable(each) and not (name in defaults and _is_equal(each, defaults[name]))
        }
        return f"{type(value).__name__}({describe_items(shown)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {describe(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > _MOST else ""
        return "(" + ", ".join(map(describe, value[:_MOST])) + more + ")"
    return name_of(value) if callable(value) else type(value).__name__


def describe_items(values: Mapping[str, Any]) -> str:
    """``name=value, ...`` with short values."""
    return ", ".join(f"{name}={describe(each)}" for name, each in values.items())


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, also inside ``functools.partial``; of another callable, that of its type."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def html_table(heads: Sequence[str], lines: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table as HTML, with all texts escaped."""
    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in line) + "</tr>" for line in lines)
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_equal(value: Any, default: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return value is default or (plain and type(value) is type(default) and value == default)


def cost_in_words(metrics: Mapping[Any, Any]) -> str:
    """A run's mapping to devices and its seconds, from its metrics."""
    clients, devices = int(metrics["execution_clients"]), int(metrics["execution_devices"])
    words = {"trial": "trial", "compile": "compiling", "train": "training", "evaluate": "evaluation"}
    spent = {word: float(metrics[f"seconds_{purpose}"]) for purpose, word in words.items()}
    seconds = ", ".join(f"{word} {each:.1f} s" for word, each in spent.items() if each > 0)
    at_a_time = "one client" if clients == 1 else f"{clients} clients"
    where = "one device" if devices == 1 else f"each of {devices} devices"
    return f"{at_a_time} at a time on {where}; {seconds}"


def duration(seconds: float) -> str:
    """``8 s``, ``3 min 20 s``, ``2 h 5 min``: whole seconds up to an hour, whole minutes above."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
