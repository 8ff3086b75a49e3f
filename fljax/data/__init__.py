"""Data: sources, partitioners, federations.

``federate(load("fashion_mnist"), "dirichlet", clients=100, beta=0.5)`` gives the Federation that algorithms
run on.

Data of one's own:

- ``from_clients({"anna": (x, y), "ben": (x2, y2)})``: arrays by client;
- ``from_frame(frame, label="diagnosis", client="hospital")``: a table with a column of clients;
- ``from_arrays(x, y, owners)``: arrays of all clients, with an owner for each row;
- ``federate(load("patients.csv", label="diagnosis"), "dirichlet", clients=10, alpha=0.5)``: a file (.csv, .parquet,
  .npz, LEAF's .json), a folder of images or of one file for each client, ``"tfds:NAME"`` of TensorFlow Datasets, or
  ``"hf:NAME"`` of Hugging Face. A config names them in the same way: ``dataset = "patients.csv"``.

``Federation.names`` has the labels and the clients as the user calls them. ``count_clients`` counts what clients have.
"""

from __future__ import annotations

from fljax.data.clients import ClientCounts, count_clients, dataset_from_clients, from_clients
from fljax.data.datasets import Dataset, dataset
from fljax.data.federation import federate, federations, from_arrays, place, split_identities
from fljax.data.own.frames import dataset_from_frame, from_frame
from fljax.data.partitions.assignment import Partition
from fljax.data.partitions.partition import PARTITIONERS
from fljax.data.registry import SOURCES, load, own_forms, status
from fljax.data.tables import census, choose, pad, row_numbers, stack

__all__ = [
    "PARTITIONERS",
    "SOURCES",
    "ClientCounts",
    "Dataset",
    "Partition",
    "census",
    "choose",
    "count_clients",
    "dataset",
    "dataset_from_clients",
    "dataset_from_frame",
    "federate",
    "federations",
    "from_arrays",
    "from_clients",
    "from_frame",
    "load",
    "own_forms",
    "pad",
    "place",
    "row_numbers",
    "split_identities",
    "stack",
    "status",
]
