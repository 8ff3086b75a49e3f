"""The table of a game: what each coalition of clients reaches when it trains alone, labelled, saved and loaded."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from fljax.contributions.solutions import LARGEST
from fljax.core.files import write
from fljax.results import stores
from fljax.results.identity import RECORD

# Codes of more clients do not fit a whole number of 64 bits.
_MOST_CODED = 62
_SHOWN = 8  # coalitions in a sentence


class Cost(NamedTuple):
    """What a table costs.

    Attributes:
      runs: coalitions times seeds.
      client_steps: gradient steps of all clients in all runs; NaN if they are not known.
      bytes: of the table in memory.
      seconds: wall time; NaN before it is known. A table that was resumed has the time of its last process.
    """

    runs: int
    client_steps: float
    bytes: int
    seconds: float


class CoalitionTable(NamedTuple):
    """The values of M coalitions of N clients with R seeds.

    Attributes:
      values: ``[R, M]``, ``v(S)``; NaN where the run has diverged.
      members: ``[M, N]``, whether a client belongs to a coalition. All ``2^N`` coalitions are in the order of codes.
      payoffs: ``[R, M, N]``, the payoff of each client: the accuracy on its own test rows of the model that it uses, or
        minus the loss. For a client outside the coalition see ``outside`` of ``coalitions``.
      diverged: ``[R, M]``, whether a NaN or infinity appeared in the run.
      metric: what ``values`` are, ``average_accuracy`` or ``-average_loss``.
      payoff: what ``payoffs`` are, ``test_accuracy`` or ``-test_loss``.
      baseline: what ``v(empty)`` is: "initial" is the value of the untrained model, "chance" is 1 / classes; or a
        number.
      seeds: the R seeds.
      names: the N names of the clients; their ids if they have none.
      cost: of all runs.
      notes: sentences about runs of few members; "" if there are none.
    """

    values: Float[np.ndarray, "seeds M"]
    members: Bool[np.ndarray, "M N"]
    payoffs: Float[np.ndarray, "seeds M N"]
    diverged: Bool[np.ndarray, "seeds M"]
    metric: str
    payoff: str
    baseline: str
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    cost: Cost
    notes: str = ""

    def __repr__(self) -> str:
        """Sizes, the metric, and the mean value over seeds of all clients and of nobody."""
        coalitions, clients = self.members.shape
        words = f"{coalitions} coalitions of {clients} clients, {len(self.seeds)} seeds, {self.metric}"
        gone = int(self.diverged.sum())
        return f"CoalitionTable({words}{f', {gone} runs diverged' if gone else ''})"


def is_complete(table: CoalitionTable) -> bool:
    """Whether the table has all ``2^N`` coalitions, of at most 16 clients."""
    count, clients = table.members.shape
    return clients <= LARGEST and count == 2**clients


def by_code(table: CoalitionTable) -> Float[np.ndarray, "seeds coalitions"]:
    """``[R, 2^N]``: the values of all coalitions by code; NaN for coalitions that the table does not have.

    Raises:
      ValueError: if there are more than 16 clients.
    """
    clients = table.members.shape[1]
    if clients > LARGEST:
        raise ValueError(f"expected at most {LARGEST} clients for the values of all 2^N coalitions, got {clients}")
    values = np.full((len(table.seeds), 2**clients), np.nan)
    values[:, codes_of(table.members)] = table.values
    return values


def codes_of(members: Bool[np.ndarray, "M N"]) -> np.ndarray:
    """``[M]``: the code of each coalition, of at most 62 clients."""
    return np.asarray(members) @ (1 << np.arange(members.shape[1], dtype=np.int64))


def value_of(table: CoalitionTable, members: Sequence[int]) -> Float[np.ndarray, " seeds"]:
    """``[R]``: the values of the coalition with these clients, by id.

    Raises:
      ValueError: if the table has no such coalition.
    """
    clients = table.members.shape[1]
    row = np.isin(np.arange(clients), np.asarray(members, int))
    place = np.flatnonzero((table.members == row[None, :]).all(axis=1))
    if not len(place):
        raise ValueError(f"expected a coalition of the table, got {in_braces(row)}; it has {len(table.members)} others")
    return table.values[:, place[0]]


def in_braces(row: Bool[np.ndarray, " N"]) -> str:
    """A coalition by the ids of its members: ``{0, 2}``; of nobody ``{}``."""
    return "{" + ", ".join(map(str, np.flatnonzero(row).tolist())) + "}"


def divergences(table: CoalitionTable) -> str | None:
    """A sentence that names the coalitions that have diverged; None: there are none."""
    places = np.argwhere(table.diverged)
    if not len(places):
        return None
    several = len(table.seeds) > 1
    named = [
        in_braces(table.members[coalition]) + (f" with seed {table.seeds[seed]}" if several else "")
        for seed, coalition in places[:_SHOWN]
    ]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    runs, have = ("run", "has") if len(places) == 1 else ("runs", "have")
    return f"{len(places)} {runs} of {table.diverged.size} diverged and {have} no value: {', '.join(named)}{more}"


# --- Labelled and on the disk ------------------------------------------------------------------------------------


def to_dataset(table: CoalitionTable) -> xr.Dataset:
    """The table as labelled arrays over ``seed``, ``coalition`` and ``client``.

    The coordinate ``coalition`` has codes, of up to 62 clients; ``name`` has the names of the clients.
    """
    axes = ("seed", "coalition")
    count, clients = table.members.shape
    coordinates: dict[str, Any] = {
        "seed": list(table.seeds),
        "client": np.arange(clients),
        "name": ("client", np.asarray(table.names, dtype=str)),
    }
    coordinates["coalition"] = codes_of(table.members) if clients <= _MOST_CODED else np.arange(count)
    return xr.Dataset(
        {
            "value": (axes, table.values),
            "payoff": ((*axes, "client"), table.payoffs),
            "member": (("coalition", "client"), table.members.astype(np.int8)),
            "diverged": (axes, table.diverged.astype(np.int8)),
            **{name: ((), number) for name, number in table.cost._asdict().items()},
        },
        coordinates,
        {"metric": table.metric, "payoff": table.payoff, "baseline": table.baseline, "notes": table.notes},
    )


def from_dataset(dataset: xr.Dataset) -> CoalitionTable:
    """The table of labelled arrays, the inverse of ``to_dataset``.

    Raises:
      ValueError: if the dataset is no such table.
    """
    lacking = [name for name in ("value", "payoff", "member", "diverged") if name not in dataset]
    lacking += [name for name in ("metric", "payoff", "baseline") if name not in dataset.attrs]
    if lacking:
        raise ValueError(f"expected a table of coalitions, got a dataset without {', '.join(lacking)}")
    return CoalitionTable(
        values=np.asarray(dataset["value"].transpose("seed", "coalition").values, float),
        members=dataset["member"].transpose("coalition", "client").values.astype(bool),
        payoffs=np.asarray(dataset["payoff"].transpose("seed", "coalition", "client").values, float),
        diverged=dataset["diverged"].transpose("seed", "coalition").values.astype(bool),
        **{name: str(dataset.attrs[name]) for name in ("metric", "payoff", "baseline")},
        seeds=tuple(dataset["seed"].values.tolist()),
        names=tuple(map(str, dataset["name"].values.tolist())),
        cost=Cost(
            int(dataset["runs"]), float(dataset["client_steps"]), int(dataset["bytes"]), float(dataset["seconds"])
        ),
        notes=str(dataset.attrs.get("notes", "")),
    )


class SavedTables(NamedTuple):
    """What a file of tables has.

    Attributes:
      tables: by label of the algorithm.
      config: the text of the config that they are of; "" without one.
      fljax: the version that wrote them.
      data: a checksum of the data that they are of; "" if it is not known.
      code: of a value function, ``fljax.core.sameness.code_of``; "" of a metric, or if it is not known.
      record: of settings and code, as JSON; "" of an older fljax.
    """

    tables: dict[str, CoalitionTable]
    config: str
    fljax: str
    data: str = ""
    code: str = ""
    record: str = ""


def save(
    path: str | pathlib.Path, tables: dict[str, CoalitionTable], config: str = "", *, data: str = "", code: str = ""
) -> None:
    """Writes tables into one netCDF file, atomically, each in a group of its own.

    Args:
      path: the file.
      tables: by label, for example of the algorithm.
      config: the text of the config that they are of.
      data: a checksum of the data that they are of.
      code: a checksum of the value function's code.

    Raises:
      OSError: if the disk has no room, or the folder does not exist.
    """
    datasets = {label: to_dataset(table) for label, table in tables.items()}
    root = stores.origin(config).assign_attrs(data=data, code=code)
    write(pathlib.Path(path), stores.encoded_by_label(root, datasets, listed="labels", group="table"))


def load(path: str | pathlib.Path) -> SavedTables:
    """Reads the tables of a file that ``save`` wrote.

    Raises:
      ValueError: if the file cannot be read, is damaged, or has no tables.
    """
    root, datasets = stores.read_by_label(pathlib.Path(path), "tables of coalitions", listed="labels", group="table")
    tables = {label: from_dataset(dataset) for label, dataset in datasets.items()}
    known = {name: str(root.attrs.get(name, "")) for name in ("data", "code")}
    known |= {name: str(root[name].values) if name in root else "" for name in ("config", "fljax", RECORD)}
    return SavedTables(tables, **known)
