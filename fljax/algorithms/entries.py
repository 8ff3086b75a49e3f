"""Entries of the registry: what builds an algorithm, checks of its hyper-parameters, and the papers it is from."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtyping import Array, Int, Key, PyTree, Real

from fljax.protocol import Algorithm, Census, InitServer
from fljax.training import Local


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
      build: ``build(task, local, **hyper_parameters) -> Algorithm``.
      summary: one line for tables.
      references: keys of its sources in ``references.bib``.
      example: hyper-parameters beyond the defaults with which the laws are tested; arrays are for 5 clients.
      needs_all: whether every client must be polled in every round.
      needs_all_unless: hyper-parameters with which a part of the clients is enough.
      differentiable: hyper-parameters that rounds are differentiable in (``fljax.rollout``), with the arguments of
        ``example``; a field of a NamedTuple by its dotted name, e.g. ``"tokens.initial"``.
      flat: floats with zero gradient by construction in ``fljax.rollout``: results depend on them only through
        rounding, ranks or discrete choices, or not at all.
      reads: what of single clients the server must read, in words; "" if sums over clients are enough. So secure sums
        hide everything of a client with "", all but these numbers if there are no updates among them, and are
        impossible otherwise.
    """

    build: Callable[..., Algorithm]
    summary: str
    references: tuple[str, ...]
    example: dict[str, Any] = {}
    needs_all: bool = False
    differentiable: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()
    needs_all_unless: dict[str, Any] = {}
    reads: str = ""

    def asks_all(self, options: Mapping[str, Any]) -> bool:
        """Whether every client must be polled in every round, with these hyper-parameters."""
        return self.needs_all and not any(options.get(name) == it for name, it in self.needs_all_unless.items())


def require_plain_sgd(local: Local, algorithm: str) -> None:
    """Raises a ValueError unless the local optimizer is plain SGD, whose step length the algorithm must know."""
    if local.optimizer != "sgd" or local.options:
        got = f"{local.optimizer!r}" + (f" with {dict(local.options)}" if local.options else "")
        raise ValueError(f"expected the local optimizer 'sgd' without options for {algorithm}, got {got}")


def with_work(local: Local, of: str, epochs: int | None, steps: int | None) -> Local:
    """``local`` with an algorithm's option ``OF_epochs`` or ``OF_steps``, if one is given; a ValueError if both are."""
    if epochs is not None and steps is not None:
        raise ValueError(
            f"expected at most one of {of}_epochs and {of}_steps, got {of}_epochs={epochs}, {of}_steps={steps}"
        )
    return local if epochs is None and steps is None else local._replace(epochs=epochs, steps=steps)


def require_fresh(local: Local, algorithm: str, why: str) -> None:
    """Raises a ValueError if clients keep their optimizer's state, which the algorithm has no use for."""
    if local.keep:
        raise ValueError(f"expected local training without keep for {algorithm}, {why}, got keep = True")


def with_checked_threshold(threshold: Array, init_server: InitServer) -> InitServer:
    """``init_server`` that first checks that ``threshold`` is one number or ``[N]``, and raises a ValueError if not."""

    def init(key: Key[Array, ""], census: Census) -> PyTree:
        population = census.train.shape[0]
        if threshold.shape not in ((), (population,)):
            raise ValueError(
                f"expected threshold to be one number or one for each of {population} clients, got shape "
                f"{threshold.shape}; thresholds of several seeds go to by_seed of a Plan"
            )
        return init_server(key, census)

    return init


def threshold_of(threshold: Real[Array, "*N"], id: Int[Array, "*S"]) -> Real[Array, "*of"]:
    """The thresholds of one or some clients: one number for all, or ``[N]`` by id."""
    return threshold if threshold.ndim == 0 else threshold[id]


def bibtex(keys: Sequence[str]) -> str:
    """BibTeX of papers: the entries of ``references.bib`` with these keys, in this order, with empty lines between."""
    return "\n\n".join(_entries()[key] for key in keys)


@functools.cache
def _entries() -> dict[str, str]:
    """Every entry by its key. An entry begins with ``@`` at the start of a line."""
    text = importlib.resources.files("fljax").joinpath("algorithms", "references.bib").read_text(encoding="utf-8")
    entries = [entry.strip() for entry in re.split(r"^(?=@)", text, flags=re.MULTILINE) if entry.strip()]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}
