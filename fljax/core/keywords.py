"""Keywords that several functions share: said once, and shown in the signature and the docstring of each function."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Returned = TypeVar("Returned")


def shows(
    source: Callable[..., Any], after: str | None = None
) -> Callable[[Callable[P, Returned]], Callable[P, Returned]]:
    """Shows parameters of ``source`` in place of ``**name: Unpack[Keywords]``; ``Keywords`` is their TypedDict."""
    # Type checkers read ``Unpack[Keywords]``; configs, ``fljax list`` and help read the signature and the docstring.
    # ``after`` names the parameter before the shown ones; None: they are the last ones.
    hints = typing.get_type_hints(source)

    def show(function: Callable[P, Returned]) -> Callable[P, Returned]:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        (rest,) = signature.parameters.keys() - {parameter.name for parameter in own}
        keywords: Any = typing.get_args(typing.get_type_hints(function)[rest])[0]
        shared = [
            parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(source).parameters.items()
            if name in keywords.__annotations__
        ]
        place = 1 + [parameter.name for parameter in own].index(after) if after is not None else len(own)
        parameters = [*own[:place], *shared, *own[place:]]
        signature = signature.replace(parameters=parameters)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Returned:
            signature.bind(*args, **kwargs)  # ``Keywords`` may have names that this function does not show
            return function(*args, **kwargs)

        shown: Any = checked
        shown.__signature__ = signature
        types = {parameter.name: parameter.annotation for parameter in parameters}
        shown.__annotations__ = types | {"return": signature.return_annotation}
        if function.__doc__:  # there are none under ``python -OO``
            lines, of_source = ((inspect.getdoc(each) or "").splitlines() for each in (function, source))
            entries, end = _entries(of_source), _entries(lines)[own[place - 1].name].stop
            said = [line for parameter in shared for line in of_source[entries[parameter.name]]]
            shown.__doc__ = "\n".join([*lines[:end], *said, *lines[end:]])
        return checked

    return show


def _entries(lines: list[str]) -> dict[str, slice]:
    """The lines of a docstring that explain a parameter or an attribute, by name."""
    starts = {place: found[1] for place, line in enumerate(lines) if (found := re.match(r"  (\w+): ", line))}
    ends = [
        next((n for n in range(at + 1, len(lines)) if not lines[n].startswith("    ")), len(lines)) for at in starts
    ]
    return {name: slice(start, end) for (start, name), end in zip(starts.items(), ends, strict=True)}
