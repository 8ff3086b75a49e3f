"""Headings of the main metrics in tables. Nothing is imported, since every command needs them."""

from __future__ import annotations

from collections.abc import Container

# Headings of the metrics that tables on the terminal show, in their order.
_MAIN = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "preferred_model_accuracy": "preferred",
    "average_accuracy": "average",
    "unseen_average_accuracy": "average unseen",
}
# Also those of a task without accuracies, and where messages that are not finite are dropped.
_LOSSES = {"average_loss": "average loss", "unseen_average_loss": "average loss unseen"}
_DROPPED = {"dropped_messages": "dropped"}


def main_columns(names: Container[str]) -> dict[str, str]:
    """The headings of the main metrics among ``names``, by metric."""
    headings = (_MAIN if "average_accuracy" in names else _MAIN | _LOSSES) | _DROPPED
    return {name: words for name, words in headings.items() if name in names}
