"""All names by kind, and everything about one of them."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from fljax.cli.catalogue.docstrings import Docstring, Parameter, docstring_of, first_sentence, parameters, plain
from fljax.cli.catalogue.facts import FACTS, uses
from fljax.config import reading
from fljax.config.builders import offer_of
from fljax.core.names import nearest, resolve, shown, unknown
from fljax.core.signatures import accepts

_EMPTY = Docstring((), {}, {}, "")
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
    "contributions": ("fljax.contributions", "MEASURES"),
    "callbacks": ("fljax.engine.callbacks", "CALLBACKS"),
    "partitions": ("fljax.data", "PARTITIONERS"),
    "models": ("fljax.models", "MODELS"),
    "metrics": ("fljax.metrics.registry", "METRICS"),
}


def entries(kind: str) -> Mapping[str, Any]:
    """What fljax has of a kind, by name; ``kind`` is a key of ``KINDS``."""
    if kind not in KINDS:
        raise ValueError(unknown("list", kind, KINDS))
    if kind == "configs":
        return {name: first_sentence(reading.about_config(path)) for name, path in reading.shipped_configs().items()}
    if kind == "datasets":
        from fljax import data

        return {**data.SOURCES, **data.own_forms()}
    if kind == "tables":
        from fljax.published.tables import tables

        return tables()
    module, name = _REGISTRIES[kind]
    return getattr(importlib.import_module(module), name)


def line(entry: Any) -> str:
    """One entry in one sentence."""
    if isinstance(entry, str):
        return entry
    return getattr(entry, "summary", None) or first_sentence(next(iter(docstring_of(entry).paragraphs), ""))


def find(name: str, *, imports: bool = True) -> dict[str, Any]:
    """The entries with this name by kind, a key of ``KINDS``; of an import path the algorithm's builder."""
    every = {kind: entries(kind) for kind in KINDS}
    names = (name, f"{name.partition(':')[0]}:NAME")  # such as "tfds:NAME"
    by_kind = {
        kind: entries_of_kind[form]
        for kind, entries_of_kind in every.items()
        for form in names
        if form in entries_of_kind
    }
    if not by_kind and ":" in name:
        builder = resolve(name, every["algorithms"], "algorithm", imports=imports)
        if not callable(builder) or not accepts(builder, "task"):
            raise ValueError(
                f"expected an algorithm, a function of (task, local, ...), got {shown(name)}, which is none"
            )
        return {"algorithms": builder}
    if not by_kind:
        close = nearest(name, [form for entries_of_kind in every.values() for form in entries_of_kind])
        question = f" (did you mean {close!r}?)" if close is not None else ""
        raise ValueError(f"expected a name that fljax list prints (of {', '.join(KINDS)}), got {shown(name)}{question}")
    return by_kind


class Description(NamedTuple):
    """What is known about one name. Code in texts stands between backticks; what is not known is empty."""

    name: str  # in configs
    kind: str  # in the singular
    summary: str  # one line; "" if the first line of the text below is all there is
    about: tuple[str, ...]  # the paragraphs of its text
    equation: tuple[str, ...]  # those of them that state an equation
    parameters: tuple[Parameter, ...]
    returns: str  # what is returned, and what is recorded
    raises: str  # the errors of mistakes
    facts: Mapping[str, str]  # properties, by what they are about
    source: str  # the publication, with deviations from it
    bibtex: str
    configs: Mapping[str, tuple[str, ...]]  # names of shipped ones with it, each with the tables of its results


def describe(name: str, *, imports: bool = True) -> tuple[Description, ...]:
    """Everything of a name (or the import path of one's own algorithm): a description for each kind that has it."""
    by_kind = find(name, imports=imports)
    return tuple(_description(kind, name, entry) for kind, entry in by_kind.items())


def _description(kind: str, name: str, entry: Any) -> Description:
    builder = getattr(entry, "build", entry)
    docstring = docstring_of(builder) if callable(builder) else _EMPTY
    return Description(
        name=name,
        kind=KINDS[kind],
        summary=_summary(kind, name, entry),
        about=tuple(map(plain, docstring.paragraphs)),
        equation=tuple(map(plain, docstring.equations)),
        parameters=_parameters(kind, name, entry),
        returns=plain(docstring.sections.get("Returns", "")),
        raises=plain(docstring.sections.get("Raises", "")),
        facts=FACTS[kind](name, entry) if kind in FACTS else {},
        source=plain(docstring.source or _header(kind, builder).source),
        bibtex=_bibtex(getattr(entry, "references", ())),
        configs={} if kind == "configs" else uses().get(kind, {}).get(name, {}),
    )


def _bibtex(keys: tuple[str, ...]) -> str:
    if not keys:
        return ""
    from fljax.algorithms.entries import bibtex  # imported here, since algorithms import JAX

    return bibtex(keys)


def _summary(kind: str, name: str, entry: Any) -> str:
    """The registry's line, or for a file about this name alone the longer line at its top."""
    if kind == "configs":
        return reading.about_config(reading.shipped_configs()[name])
    if callable(entry):
        return ""  # the first sentence of the text below
    build = getattr(entry, "build", None)
    alone = build is not None and build.__module__.rpartition(".")[2] == name
    return plain(_header(kind, build).paragraphs[0]) if alone else line(entry)


def _header(kind: str, builder: Any) -> Docstring:
    """What the file of an algorithm or a scenario says of itself."""
    if kind not in ("algorithms", "scenarios"):
        return _EMPTY
    return docstring_of(sys.modules[inspect.unwrap(builder).__module__])


def _parameters(kind: str, name: str, entry: Any) -> tuple[Parameter, ...]:
    builder = getattr(entry, "build", entry)
    if not callable(builder):
        return ()
    described = parameters(builder, offer_of(KINDS[kind], builder))
    gradients: dict[str, str] = dict.fromkeys(getattr(entry, "differentiable", ()), "yes")
    gradients |= dict.fromkeys(getattr(entry, "flat", ()), "zero")
    return tuple(parameter._replace(gradient=gradients.get(parameter.name, "")) for parameter in described)
