"""Data: sources, partitioners, federations.

``federate(load("fashion_mnist"), "dirichlet", clients=100, beta=0.5)`` gives the Federation that algorithms
run on.
"""

from __future__ import annotations

from fljax.data.assignment import Partition
from fljax.data.clients import dataset_from_clients, from_clients
from fljax.data.counts import ClientCounts, count_clients, name_text
from fljax.data.datasets import Dataset, count_owners, dataset
from fljax.data.federation import federate, federations, from_arrays, place
from fljax.data.frames import dataset_from_frame, from_frame
from fljax.data.partition import PARTITIONERS
from fljax.data.sources import SOURCES, absolute, find_source, load, own_source, status
from fljax.data.tables import census, pad, stack

__all__ = [
    "PARTITIONERS",
    "SOURCES",
    "ClientCounts",
    "Dataset",
    "Partition",
    "absolute",
    "census",
    "count_clients",
    "count_owners",
    "dataset",
    "dataset_from_clients",
    "dataset_from_frame",
    "federate",
    "federations",
    "find_source",
    "from_arrays",
    "from_clients",
    "from_frame",
    "load",
    "name_text",
    "own_source",
    "pad",
    "place",
    "stack",
    "status",
]
