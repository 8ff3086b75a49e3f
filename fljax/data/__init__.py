"""Data: sources, partitioners, federations.

``federate(load("fashion_mnist"), "dirichlet", clients=100, beta=0.5)`` gives the Federation that algorithms
run on.
"""

from __future__ import annotations

from fljax.data.assignment import Partition
from fljax.data.datasets import Dataset, dataset
from fljax.data.federation import federate, federations, from_arrays, place
from fljax.data.partition import PARTITIONERS
from fljax.data.sources import SOURCES, load, status
from fljax.data.tables import census, pad, stack

__all__ = [
    "PARTITIONERS",
    "SOURCES",
    "Dataset",
    "Partition",
    "census",
    "dataset",
    "federate",
    "federations",
    "from_arrays",
    "load",
    "pad",
    "place",
    "stack",
    "status",
]
