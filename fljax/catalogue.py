"""What fljax has by name, and what its code says about each: the content of ``fljax list`` and ``fljax show``."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fljax.arguments import OFFERS, Offer
from fljax.config import shipped
from fljax.docstrings import Docstring, docstring_of, first_sentence, plain, states_equation
from fljax.naming import unknown

# The singular of each kind.
KINDS = {
    "algorithms": "algorithm",
    "datasets": "dataset",
    "partitions": "partition",
    "models": "model",
    "metrics": "metric",
    "tables": "table",
    "scenarios": "scenario",
    "contributions": "contribution",
    "callbacks": "callback",
    "configs": "config",
}
_REGISTRIES = {
    "algorithms": ("fljax.algorithms", "REGISTRY"),
    "scenarios": ("fljax.scenarios", "REGISTRY"),
    "contributions": ("fljax.contributions", "CONTRIBUTIONS"),
    "callbacks": ("fljax.tracking", "CALLBACKS"),
    "datasets": ("fljax.data", "SOURCES"),
    "partitions": ("fljax.data", "PARTITIONERS"),
    "models": ("fljax.models", "MODELS"),
    "metrics": ("fljax.metric_names", "METRICS"),
}
# Parameters that the experiment gives, and that an option may replace.
_REPLACEABLE = (
    "threshold",
    "baseline",
    "clients_per_round",
    "learning_rate",
    "batch_size",
    "contribution",
    "clustering",
)

# Types of parameters that configs write in a form of their own.
_SHAPES = {"contribution": "name or table or list of float", "clustering": "name or table"}


class Parameter(NamedTuple):
    """A hyper-parameter or option.

    Attributes:
      name: dotted if it is a field of a table.
      type: in words, as a config writes values.
      default: as a config writes it; None: there is none, so that a value must be given.
      by_experiment: whether the experiment gives a value where the user gives none.
      text: what the docstring says.
    """

    name: str
    type: str
    default: str | None
    by_experiment: bool
    text: str


class Description(NamedTuple):
    """What is known about one name.

    Attributes:
      name: the name in configs.
      kind: in the singular.
      summary: one line.
      equation: paragraphs that state an equation.
      about: other paragraphs.
      parameters: what may be given.
      facts: properties, by what they are about.
      source: the publication, with deviations from it; "" if none is known.
      bibtex: BibTeX of the publications; "" if there is none.
      configs: names of shipped configs that use it.
    """

    name: str
    kind: str
    summary: str
    equation: tuple[str, ...]
    about: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    facts: Mapping[str, str]
    source: str
    bibtex: str
    configs: tuple[str, ...]


def entries(kind: str) -> Mapping[str, Any]:
    """What fljax has of a kind, by name; ``kind`` is a key of ``KINDS``.

    Raises:
      ValueError: if there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(unknown("list", kind, KINDS))
    if kind == "configs":
        return {name: first_sentence(shipped.about(path)) for name, path in shipped.configs().items()}
    if kind == "tables":
        from fljax.reproduce import tables

        return tables()
    module, name = _REGISTRIES[kind]
    return getattr(importlib.import_module(module), name)


def line(entry: Any) -> str:
    """One entry in one sentence."""
    if isinstance(entry, str):
        return entry
    return getattr(entry, "summary", None) or first_sentence(next(iter(docstring_of(entry).paragraphs), ""))


def describe(name: str) -> tuple[Description, ...]:
    """Everything of this name: one description for each kind that has it.

    Raises:
      ValueError: if nothing has this name; the sentence names the most similar one.
    """
    found = {kind: entries(kind) for kind in KINDS}
    having = [kind for kind, own in found.items() if name in own]
    if not having:
        raise ValueError(_unknown(name, found))
    return tuple(_description(kind, name, found[kind][name]) for kind in having)


def _unknown(name: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    from fljax.naming import nearest, shown

    close = nearest(name, [each for own in found.values() for each in own])
    question = f" (did you mean {close!r}?)" if close is not None else ""
    kinds = ", ".join(KINDS)
    return f"expected a name that fljax list prints (of {kinds}), got {shown(name)}{question}"


def _description(kind: str, name: str, entry: Any) -> Description:
    builder = getattr(entry, "build", entry)
    own = docstring_of(builder) if callable(builder) else Docstring((), {}, {}, "")
    found = Description(
        name=name,
        kind=KINDS[kind],
        summary=line(entry),
        equation=tuple(plain(each, "") for each in own.equations),
        about=tuple(plain(each) for each in own.paragraphs if not states_equation(each)),
        parameters=_parameters(builder, OFFERS.get(KINDS[kind], Offer())) if callable(builder) else (),
        facts=_FACTS[kind](name, entry) if kind in _FACTS else {},
        source=plain(own.source or _module_source(kind, builder)),
        bibtex=str(getattr(entry, "reference", "")).strip(),
        configs=() if kind == "configs" else _used_in(kind, name),
    )
    if kind == "configs":
        return found._replace(summary=shipped.about(shipped.configs()[name]))
    # Without a line in a registry, the summary is the first sentence of the text below.
    return found._replace(summary="") if callable(entry) else found


def _module_source(kind: str, builder: Any) -> str:
    """The source of an algorithm or a scenario, which its file's header names."""
    if kind not in ("algorithms", "scenarios"):
        return ""
    return docstring_of(sys.modules[inspect.unwrap(builder).__module__]).source


def _used_in(kind: str, name: str) -> tuple[str, ...]:
    return tuple(each for each, path in shipped.configs().items() if name in shipped.names_in(path)[kind])


# --- Facts --------------------------------------------------------------------------------------------------


def _of_algorithm(name: str, entry: Any) -> dict[str, str]:
    facts = {"aggregation": _aggregation(entry)}
    if entry.needs_all:
        facts["every round asks"] = "all clients"
    if entry.differentiable:
        facts["gradients through rounds"] = ", ".join(entry.differentiable)
    if entry.flat:
        facts["zero gradients"] = ", ".join(entry.flat)
    return {key: value for key, value in facts.items() if value}


def _aggregation(entry: Any) -> str:
    """How the server of an algorithm sums over clients; "" if the algorithm cannot be built from a small task."""
    from fljax import models
    from fljax.streaming import Streamed
    from fljax.training import Local

    try:
        algorithm = entry.build(models.mlp((2,), 2, hidden=(2,)), Local(0.1, 1, 1), **entry.example)
    except Exception:  # what an algorithm asks of its task is its own affair
        return ""
    if isinstance(algorithm.aggregate, Streamed):
        return "streamed: a sum over clients; a round never holds all updates"
    return "stacked: needs the updates of single clients, so that a round holds those of its cohort"


def _of_metric(name: str, entry: Any) -> dict[str, str]:
    from fljax.scalar_metrics import OVER_CLIENTS, is_lower_better

    metric = OVER_CLIENTS.get(name.removeprefix("unseen_"))
    if metric is None:
        return {}
    better = "lower" if is_lower_better(name) else "higher"
    return {"computed from": ", ".join(metric.variables), "better": better}


def _of_dataset(name: str, entry: Any) -> dict[str, str]:
    from fljax.data import status

    return {"where it is": status()[name]}


def _of_config(name: str, entry: Any) -> dict[str, str]:
    path = shipped.configs()[name]
    used = {kind: sorted(names) for kind, names in shipped.names_in(path).items() if names}
    return {"file": str(path)} | {kind: ", ".join(names) for kind, names in used.items()}


_FACTS: Mapping[str, Callable[[str, Any], dict[str, str]]] = {
    "algorithms": _of_algorithm,
    "metrics": _of_metric,
    "datasets": _of_dataset,
    "configs": _of_config,
}


# --- Parameters ---------------------------------------------------------------------------------------------


def _parameters(builder: Callable[..., Any], offer: Offer, prefix: str = "") -> tuple[Parameter, ...]:
    from fljax.config.signatures import annotations_of, record_of

    annotations, texts = annotations_of(builder), docstring_of(builder).arguments
    found: list[Parameter] = []
    for place, each in enumerate(inspect.signature(builder).parameters.values()):
        given = each.name in offer.named
        usual = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        if place < offer.positional or not usual or (given and each.name not in _REPLACEABLE):
            continue
        annotation, record = annotations[each.name], record_of(annotations[each.name])
        default = None if each.default is each.empty else written(each.default)
        text = plain(texts.get(each.name, ""))
        name = f"{prefix}{each.name}"
        if record is not None and isinstance(each.default, record):
            found.append(Parameter(name, "table", "{}", given, text))
            found.extend(_parameters(record, Offer(), f"{name}."))
        else:
            found.append(Parameter(name, _SHAPES.get(name) or type_in_words(annotation), default, given, text))
    return tuple(found)


def written(value: Any) -> str:
    """A default as a config writes it: ``true``, ``"size"``, ``none``."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and value == math.inf:
        return "inf"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__name__", value))
    return repr(value)


def type_in_words(annotation: Any) -> str:
    """A type as words joined by "or"; numbers that may be traced arrays are numbers."""
    from fljax.config.signatures import parts_of

    words = [_word(part) for part in parts_of(annotation)]
    if "float" in words or "int" in words:
        words = [word for word in words if word != "number"]
    return " or ".join(dict.fromkeys(words))


def _word(part: Any) -> str:
    import jax
    from jaxtyping import AbstractArray

    origin = typing.get_origin(part)
    if part in (None, type(None)):
        return "none"
    if origin is Literal:
        return " or ".join(map(written, typing.get_args(part)))
    if part is jax.Array:
        return "number"
    if isinstance(part, type) and issubclass(part, tuple) and hasattr(part, "_fields"):
        return "table"
    if isinstance(part, type) and issubclass(part, AbstractArray):
        axes = str(getattr(part, "dim_str", "")).strip()
        return f"array [{axes}]" if axes else "number"
    if origin is Sequence or origin in (tuple, list):
        inner = [each for each in typing.get_args(part) if each is not Ellipsis]
        return f"list of {type_in_words(inner[0])}" if inner else "list"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if origin is Callable or "Callable" in str(part):
        return "function"
    if part is Any or isinstance(part, types.GenericAlias):
        return "any value"
    return str(getattr(part, "__name__", part))
