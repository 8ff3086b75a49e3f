"""All names by kind."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fljax.cli.catalogue.docstrings import docstring_of, first_sentence
from fljax.config import shipped
from fljax.core.names import nearest, resolve, shown, unknown
from fljax.core.signatures import accepts

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
    "callbacks": ("fljax.engine.callbacks", "CALLBACKS"),
    "partitions": ("fljax.data", "PARTITIONERS"),
    "models": ("fljax.models", "MODELS"),
    "metrics": ("fljax.metrics.registry", "METRICS"),
}


def entries(kind: str) -> Mapping[str, Any]:
    """What fljax has of a kind, by name; ``kind`` is a key of ``KINDS``.

    Raises:
      ValueError: if there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(unknown("list", kind, KINDS))
    if kind == "configs":
        return {name: first_sentence(shipped.about(path)) for name, path in shipped.configs().items()}
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
    """The entries with this name by kind, a key of ``KINDS``; of an import path the algorithm's builder.

    Args:
      name: of an entry, or ``"module:name"``.
      imports: as for ``fljax.core.names.resolve``.

    Raises:
      ValueError: if nothing has this name; the sentence names the most similar one.
    """
    every = {kind: entries(kind) for kind in KINDS}
    names = (name, f"{name.partition(':')[0]}:NAME")  # such as "tfds:NAME"
    found = {kind: own[each] for kind, own in every.items() for each in names if each in own}
    if not found and ":" in name:
        builder = resolve(name, every["algorithms"], "algorithm", imports=imports)
        if not callable(builder) or not accepts(builder, "task"):
            raise ValueError(
                f"expected an algorithm, a function of (task, local, ...), got {shown(name)}, which is none"
            )
        return {"algorithms": builder}
    if not found:
        close = nearest(name, [each for own in every.values() for each in own])
        question = f" (did you mean {close!r}?)" if close is not None else ""
        raise ValueError(f"expected a name that fljax list prints (of {', '.join(KINDS)}), got {shown(name)}{question}")
    return found
