"""The arguments that an experiment gives to each kind of builder; they are not options of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fljax.contributions.measures import FACTS


class Offer(NamedTuple):
    """The arguments that an experiment gives to one kind of builder; they are not options of a config.

    Attributes:
      positional: the number of arguments given by position.
      named: further arguments, given to builders that have a parameter of that name.
    """

    positional: int = 0
    named: frozenset[str] = frozenset()


OFFERS: Mapping[str, Offer] = {
    "algorithm": Offer(
        0,
        frozenset({"task", "local", "contribution", "clustering", "reference", "threshold", "clients_per_round"}),
    ),
    "scenario": Offer(
        1, frozenset({"learning_rate", "batch_size", "shuffle", "threshold", "contribution", "reference", "baseline"})
    ),
    "dataset": Offer(0, frozenset({"clients", "unseen", "seed", "folder"})),
    "partition": Offer(1, frozenset({"clients", "unseen", "seed", "owner", "part", "classes", "unseen_owners"})),
    "callback": Offer(0, frozenset({"folder", "label", "cells", "seeds", "rounds"})),
    "contribution": Offer(0, frozenset(FACTS)),
    "model": Offer(2, frozenset({"prepare", "dtype", "vocabulary"})),
    "optimizer": Offer(1),
}
