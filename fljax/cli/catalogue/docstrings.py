"""What code says of itself, for ``fljax list`` and ``fljax show``: the parts of docstrings, and parameters in words."""

from __future__ import annotations

import inspect
import math
import pathlib
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fljax.config.builders import Offer

_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields", "Example", "Examples")
# What only equations have, between double backticks.
_EQUATION = re.compile(r"<-| = | ~ |\|\||\b(?:sum|min|max|argmin|argmax|mean)_")

_NOTHING = Offer()
# Parameters that the experiment gives, and that an option may replace.
_REPLACEABLE = (
    "threshold",
    "baseline",
    "clients_per_round",
    "learning_rate",
    "batch_size",
    "shuffle",
    "contribution",
    "clustering",
)
# Parameters whose types have words of their own.
_SHAPES = {
    "contribution": "name, table or list of numbers",
    "clustering": "name or table",
    "server_optimizer": "name or table of an optax optimizer",
}
_WORDS = {float: "number", int: "integer", bool: "true or false", str: "text", None: "none", type(None): "none"}
# Arrays by their axes. Lists are another form of them.
_ARRAYS = {"N": "one for each client", "*rounds N": "one for each client (and round)"}


class Docstring(NamedTuple):
    """The parts of a docstring, each without line breaks that say nothing."""

    paragraphs: tuple[str, ...]  # outside of sections, except for the source; a literal block keeps its lines
    arguments: Mapping[str, str]  # the lines of ``Args`` or ``Attributes``, by name
    sections: Mapping[str, str]  # the others, by heading
    source: str  # the paragraph that begins with "Source:", without this word; "" if there is none

    @property
    def equations(self) -> tuple[str, ...]:
        """The paragraphs that state an equation."""
        return tuple(paragraph for paragraph in self.paragraphs if states_equation(paragraph))


def docstring_of(value: Any) -> Docstring:
    """The parts of an object's own docstring, of a partial function's inner one; empty parts if it has none."""
    return parse(getattr(getattr(value, "func", value), "__doc__", None) or "")


def parse(text: str) -> Docstring:
    """The parts of a docstring in Google's style."""
    heading, blocks = "", {"": list[str]()}
    for line in inspect.cleandoc(text).splitlines():
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            heading = line.rstrip(":")
        elif heading and line and not line.startswith(" "):
            heading = ""
        blocks.setdefault(heading, []).append("" if heading and line.rstrip(":") == heading else line)
    paragraphs = _paragraphs(blocks.pop(""))
    arguments: dict[str, str] = {}
    for name in ("Args", "Attributes"):
        arguments |= _entries(blocks.pop(name, []))
    sections = {name: " ".join(" ".join(lines).split()) for name, lines in blocks.items()}
    source = next((paragraph for paragraph in paragraphs if paragraph.startswith("Source:")), "")
    others = tuple(paragraph for paragraph in paragraphs if paragraph != source)
    return Docstring(others, arguments, sections, source.removeprefix("Source:").strip())


def first_sentence(text: str) -> str:
    """A text up to its first full stop at the end or before a capital letter, without the stop."""
    return re.split(r"(?<!et al)\.(?= [A-Z`]|$)", text, maxsplit=1)[0]


def states_equation(paragraph: str) -> bool:
    """Whether a paragraph has an equation between double backticks, or in a literal block that is no config."""
    sentence, _, literal = paragraph.partition("\n")
    block = sentence and literal and not literal.lstrip().startswith("[")
    return bool(block) or any(_EQUATION.search(code) for code in re.findall(r"``(.+?)``", paragraph))


def plain(text: str, mark: str = "`") -> str:
    """A text with ``mark`` for double backticks."""
    return text.replace("``", mark)


def _paragraphs(lines: list[str]) -> tuple[str, ...]:
    joined: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        if not block.strip():
            continue
        if block.startswith("  ") and joined:  # a literal block belongs to the sentence above it
            joined[-1] = f"{joined[-1].removesuffix(':')}\n{block.rstrip()}"
        elif block.startswith("==="):  # a table
            rows = [f"  {line}" for line in block.splitlines() if not line.startswith("===")]
            joined.append("\n".join(["", *rows]))
        else:
            joined.append("" if block.strip() == "::" else " ".join(block.split()))
    return tuple(filter(None, joined))


def _entries(lines: list[str]) -> dict[str, str]:
    """``name: text`` at the least indentation; what is indented more goes on with the text."""
    filled = [line for line in lines if line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    entries: dict[str, str] = {}
    name = ""
    for line in filled:
        match = re.match(rf"\s{{{least}}}(\*{{0,2}}\w[\w, *]*):\s*(.*)", line)
        if match:
            name = match[1]
            entries[name] = match[2]
        elif name:
            entries[name] += f" {line.strip()}"
    return entries


class Parameter(NamedTuple):
    """A hyper-parameter or option."""

    name: str  # dotted if it is a field of a table
    type: str  # in words, as a config writes values
    default: str | None  # as a config writes it; None: there is none, so that a value must be given
    by_experiment: bool  # whether a run of a config gives a value where the config gives none
    text: str  # what the docstring says
    gradient: str = ""  # "yes": rounds are differentiable in it; "zero": zero by construction; "": neither

    @property
    def default_in_words(self) -> str:
        """The default, and whether a run of a config has another one."""
        words = "required" if self.default is None else f"default {self.default}"
        return f"{words}; in a config, the experiment gives it" if self.by_experiment else words


def parameters(builder: Callable[..., Any], offer: Offer = _NOTHING, prefix: str = "") -> tuple[Parameter, ...]:
    """The parameters of a builder, or fields of a NamedTuple, that a user may give; ``offer`` is what others give."""
    from fljax.core.signatures import annotations_of, record_of

    annotations, texts = annotations_of(builder), docstring_of(builder).arguments
    described: list[Parameter] = []
    for place, parameter in enumerate(inspect.signature(builder).parameters.values()):
        by_experiment = parameter.name in offer.named
        usual = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if place < offer.positional or not usual or (by_experiment and parameter.name not in _REPLACEABLE):
            continue
        annotation, record = annotations[parameter.name], record_of(annotations[parameter.name])
        default = None if parameter.default is parameter.empty else written(parameter.default)
        name, text = f"{prefix}{parameter.name}", plain(texts.get(parameter.name, ""))
        if record is not None and isinstance(parameter.default, record):
            kind = f"table (in Python `{record.__module__}.{record.__name__}`)"
            described.append(Parameter(name, kind, "{}", by_experiment, text))
            described.extend(parameters(record, prefix=f"{name}."))
        else:
            described.append(
                Parameter(name, _SHAPES.get(name) or type_in_words(annotation), default, by_experiment, text)
            )
    return tuple(described)


def written(value: Any) -> str:
    """A default as a config writes it: ``true``, ``"size"``, ``none``."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and value == math.inf:
        return "inf"
    if hasattr(value, "_field_defaults"):
        fields = (f"{name} = {written(entry)}" for name, entry in changed_fields(value).items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__name__", value))
    return repr(value)


def changed_fields(record: Any) -> dict[str, Any]:
    """The fields of a NamedTuple that are not its defaults."""
    defaults = record._field_defaults
    return {
        name: value
        for name, value in record._asdict().items()
        if name not in defaults or (value is not defaults[name] and value != defaults[name])
    }


def type_in_words(annotation: Any) -> str:
    """A type as words joined by "or"; numbers that may be traced arrays are numbers."""
    from fljax.core.signatures import parts_of

    parts = parts_of(annotation)
    words = [_word(part) for part in parts]
    if any(word in _ARRAYS.values() for word in words):
        words = [word for word in words if not word.startswith("list of ")]
    if int in parts and float not in parts:
        words = [word for word in words if word != "number"]
    return " or ".join(dict.fromkeys(words))


def _word(part: Any) -> str:
    import jax
    from jaxtyping import AbstractArray

    origin, inside = typing.get_origin(part), typing.get_args(part)
    if part in _WORDS:
        return _WORDS[part]
    if origin is Literal:
        return " or ".join(map(written, inside))
    if part is jax.Array:
        return "number"
    if isinstance(part, type) and issubclass(part, tuple) and hasattr(part, "_fields"):
        return "table"
    if isinstance(part, type) and issubclass(part, AbstractArray):
        axes = str(getattr(part, "dim_str", "")).strip()
        return _ARRAYS.get(axes, f"array [{axes}]") if axes else "number"
    if origin is Sequence or origin in (tuple, list):
        return "list" if inside[:1] in ((), (Any,)) else f"list of {_plural(type_in_words(inside[0]))}"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if origin is Callable or "Callable" in str(part):
        return "function"
    if part is pathlib.Path or "PathLike" in str(part):
        return "path"
    return "any value" if part is Any else str(getattr(part, "__name__", part))


def _plural(words: str) -> str:
    first, of, rest = words.partition(" of ")
    return f"{first}s{of}{rest}" if first in ("number", "integer", "text", "list") else words
