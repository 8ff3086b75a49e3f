"""The kinds of figure by name, drawn as ``fljax report --figures`` and ``fljax export --figures`` ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fljax.core.names import unknown
from fljax.report.kinds.by_client import client_curves, client_spread, confusion_matrices, contribution_accuracy
from fljax.report.kinds.by_method import metric_pairs, polled_loss, surrogate_weights
from fljax.report.kinds.sources import MissingError, Source, read

ALL = "all"


class Kind(NamedTuple):
    """A kind of figure."""

    sentence: str  # what it shows
    draw: Callable[..., Figure]  # (source, ...) -> Figure
    metrics: tuple[str, ...] = ()  # the names of its arguments that are metrics
    clients: bool = False  # whether it has an argument ``clients``


KINDS = {
    "client_curves": Kind("chosen clients over rounds, by contribution or rate", client_curves, ("metric",), True),
    "contribution_accuracy": Kind("accuracy against contribution, a point for each client", contribution_accuracy),
    "client_spread": Kind("the spread of a metric over clients, by method", client_spread, ("metric",)),
    "confusion_matrices": Kind("confusion matrices of chosen clients and of all", confusion_matrices, clients=True),
    "metric_pairs": Kind("one metric against another, a point for each method", metric_pairs, ("x", "y")),
    "polled_loss": Kind("losses on test rows and on training rows over rounds", polled_loss),
    "surrogate_weights": Kind("weights of clients by their gap, on the surrogate's curve", surrogate_weights),
}


class Asked(NamedTuple):
    """Figures that somebody asks for: arguments of ``draw_kinds``."""

    names: tuple[str, ...]
    clients: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()


class Drawn(NamedTuple):
    """Figures by name, and a sentence for every one that was left out since its data are missing."""

    figures: dict[str, Figure]
    missing: tuple[str, ...] = ()


def draw_kinds(
    source: Source, names: Sequence[str], *, clients: Sequence[int] = (), metrics: Sequence[str] = ()
) -> Drawn:
    """The figures of these names.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      names: of ``KINDS``; "all": all for which the results have data.
      clients: ids for ``client_curves``; empty: it chooses.
      metrics: for the one figure among ``names`` that takes metrics; empty: it chooses.

    Raises:
      ValueError: if a name is unknown, if a figure that was asked for by name lacks data, if clients or metrics are
        given for a figure that takes none, or as the figure itself.
    """
    if not names:
        raise ValueError(f"expected names of figures, got none; valid names are {', '.join((*KINDS, ALL))}")
    for name in names:
        if name not in (*KINDS, ALL):
            raise ValueError(unknown("figure", name, (*KINDS, ALL)))
    chosen = KINDS if ALL in names else {name: KINDS[name] for name in names}
    options = {name: _options(kind, clients, metrics) for name, kind in chosen.items()}
    _check_takers(chosen, clients, metrics)
    material = read(source)
    figures, missing = dict[str, Figure](), list[str]()
    for name, kind in chosen.items():
        try:
            figures[name] = kind.draw(material, **options[name])
        except MissingError as error:
            if ALL not in names:
                raise
            missing.append(str(error))
    return Drawn(figures, tuple(missing))


def _options(kind: Kind, clients: Sequence[int], metrics: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"clients": clients} if clients and kind.clients else {}
    if len(kind.metrics) == len(metrics):
        options |= dict(zip(kind.metrics, metrics, strict=True))
    return options


def _check_takers(chosen: dict[str, Kind], clients: Sequence[int], metrics: Sequence[str]) -> None:
    """Raises a ValueError unless what is given has one figure that takes it."""
    here = ", ".join(chosen)
    if clients and not any(kind.clients for kind in chosen.values()):
        takers = " or ".join(name for name, kind in KINDS.items() if kind.clients)
        raise ValueError(f"expected clients for the figure {takers}, got them for {here}")
    if metrics and sum(len(kind.metrics) == len(metrics) for kind in chosen.values()) != 1:
        takers = ", ".join(f"{name} ({len(kind.metrics)})" for name, kind in KINDS.items() if kind.metrics)
        raise ValueError(f"expected metrics for one figure of {takers}, got {len(metrics)} for {here}")
