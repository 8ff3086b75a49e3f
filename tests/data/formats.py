"""Rows of clients in each format that fljax reads: written, and read again."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from fljax import data
from fljax.data.clients import PARTS
from fljax.data.datasets import Dataset
from tests.data.written import leaf, write


class Told(NamedTuple):
    """What a user has; ``part`` is 0 for training, 1 for validation and 2 for test rows."""

    x: np.ndarray  # features [row, feature]
    y: list[Any]
    owner: list[Any]
    part: list[int]

    def where(self, *, part: int | None = None, owner: Any = None) -> Told:
        """Some of the rows, in order."""
        asked = zip(self.part, self.owner, strict=True)
        rows = [at for at, (p, o) in enumerate(asked) if part in (None, p) and owner in (None, o)]
        return Told(self.x[rows], *([each[row] for row in rows] for each in self[1:]))

    def owners(self) -> list[Any]:
        """Each once, as they come."""
        return list(dict.fromkeys(self.owner))

    def frame(self, *names: str) -> pd.DataFrame:
        """A table whose columns of features are called u, v, ..."""
        columns = {name: self.x[:, place] for place, name in zip(range(self.x.shape[1]), "uvw", strict=False)}
        more = {"y": pd.Series(self.y, dtype=object), "who": self.owner, "split": [PARTS[part] for part in self.part]}
        return pd.DataFrame(columns | {name: more[name] for name in ("y", *names)})

    def arrays(self, end: str = "", who: bool = True) -> dict[str, np.ndarray]:
        """Arrays of an .npz file."""
        more = {f"who{end}": np.array(self.owner)} if who else {}
        return {f"x{end}": self.x, f"y{end}": np.array(self.y), **more}

    def parts(self, who: bool = True) -> dict[str, np.ndarray]:
        """The arrays of each part that has rows, in one file."""
        there = [(self.where(part=part), name) for part, name in enumerate(("_train", "_val", "_test"))]
        return {key: each for told, end in there if told.y for key, each in told.arrays(end, who).items()}


Reader = Callable[[Told, pathlib.Path], Dataset]
WHO: dict[str, Any] = {"label": "y", "client": "who"}


def save(frame: pd.DataFrame, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)


def table(told: Told, folder: pathlib.Path, ending: str = "csv") -> Dataset:
    save(told.frame("who", "split"), folder / f"d.{ending}")
    return data.load(str(folder / f"d.{ending}"), **WHO, part="split")


def two_tables(told: Told, folder: pathlib.Path, ending: str = "csv") -> Dataset:
    """The columns of the test file are in another order."""
    save(told.where(part=0).frame("who"), folder / f"d.{ending}")
    save(told.where(part=2).frame("who").iloc[:, ::-1], folder / f"t.{ending}")
    return data.load(str(folder / f"d.{ending}"), **WHO, test_file=f"t.{ending}")


def tables(told: Told, folder: pathlib.Path, ending: str = "csv") -> Dataset:
    """A file for each client, with a column of parts."""
    for owner in told.owners():
        save(told.where(owner=owner).frame("split"), folder / "f" / f"{owner}.{ending}")
    return data.load(f"{folder}/f/", label="y", part="split")


def folders_of_tables(told: Told, folder: pathlib.Path, ending: str = "csv") -> Dataset:
    for part, owner in {(p, o) for p, o in zip(told.part, told.owner, strict=True)}:
        save(told.where(part=part, owner=owner).frame(), folder / "f" / PARTS[part] / f"{owner}.{ending}")
    return data.load(f"{folder}/f/", label="y")


def npz(told: Told, folder: pathlib.Path) -> Dataset:
    write(folder, {"d.npz": told.parts()})
    return data.load(str(folder / "d.npz"), client="who")


def two_npz(told: Told, folder: pathlib.Path) -> Dataset:
    write(folder, {"d.npz": told.where(part=0).arrays(), "t.npz": told.where(part=2).arrays()})
    return data.load(str(folder / "d.npz"), client="who", test_file="t.npz")


def npz_of_clients(told: Told, folder: pathlib.Path) -> Dataset:
    write(folder / "f", {f"{owner}.npz": told.where(owner=owner).parts(who=False) for owner in told.owners()})
    return data.load(f"{folder}/f/")


def folders_of_npz(told: Told, folder: pathlib.Path) -> Dataset:
    for part, name in ((0, "train"), (2, "test")):
        some = told.where(part=part)
        write(folder / "f" / name, {f"{o}.npz": some.where(owner=o).arrays(who=False) for o in some.owners()})
    return data.load(f"{folder}/f/")


def json(told: Told, folder: pathlib.Path) -> Dataset:
    """LEAF's files; a user of the training rows has none."""
    for part, name in ((0, "train"), (2, "test")):
        users = {str(o): told.where(part=part, owner=o) for o in told.where(part=part).owners()}
        content = {user: {"x": rows.x.tolist(), "y": rows.y} for user, rows in users.items()}
        first = next(iter(content))
        files = {"a.json": leaf({first: content.pop(first), "nobody": {"x": [], "y": []}})}
        write(folder / "f" / name, files | ({"b.json": leaf(content)} if content else {}))
    return data.load(f"{folder}/f/")


def frame(told: Told, folder: pathlib.Path) -> Dataset:
    return data.dataset_from_frame(told.frame("who", "split"), **WHO, part="split")


def columns(told: Told, folder: pathlib.Path) -> Dataset:
    found = told.frame("who", "split")
    return data.dataset_from_frame({name: found[name].to_numpy() for name in found}, **WHO, part="split")


def categories(told: Told, folder: pathlib.Path) -> Dataset:
    return data.dataset_from_frame(told.frame("who", "split").astype({"y": "category"}), **WHO, part="split")


def arrow(told: Told, folder: pathlib.Path) -> Dataset:
    found = pytest.importorskip("pyarrow").Table.from_pandas(told.frame("who", "split"))
    return data.dataset_from_frame(found, **WHO, part="split")


def mappings(told: Told, folder: pathlib.Path) -> Dataset:
    def of(owner: Any) -> dict[str, Any]:
        there = [(PARTS[part], told.where(part=part, owner=owner)) for part in sorted(set(told.part))]
        return {part: (rows.x, rows.y) for part, rows in there}

    return data.dataset_from_clients({owner: of(owner) for owner in told.owners()})


def images(told: Told, folder: pathlib.Path, layout: str = "{client}/{part}/{label}") -> Dataset:
    """Grey images whose value is the first feature."""
    pytest.importorskip("PIL")
    rows = enumerate(zip(told.x[:, 0].tolist(), *told[1:], strict=True))
    names = ("train", "val", "test")
    places = ((layout.format(client=o, part=names[p], label=y), at, int(x)) for at, (x, y, o, p) in rows)
    write(folder / "f", {f"{place}/{at:03}.png": value for place, at, value in places})
    return data.load(f"{folder}/f/", client=True)


def of(reader: Callable[..., Dataset], option: str) -> Reader:
    """The reader with another ending or layout."""
    return lambda told, folder: reader(told, folder, option)


PARTS_IN_TWO: dict[str, Reader] = {  # training and test rows alone
    "csv and csv": two_tables,
    "folders of csv": folders_of_tables,
    "npz and npz": two_npz,
    "folders of npz": folders_of_npz,
    "json": json,
}
PARTS_IN_THREE: dict[str, Reader] = {
    "csv": table,
    "csv.gz": of(table, "csv.gz"),
    "csv of clients": tables,
    "csv.gz of clients": of(tables, "csv.gz"),
    "npz": npz,
    "npz of clients": npz_of_clients,
    "frame": frame,
    "columns": columns,
    "categories": categories,
    "arrow": arrow,
    "mappings": mappings,
}
PARQUET: dict[str, Reader] = {
    "parquet": of(table, "parquet"),
    "parquet of clients": of(tables, "parquet"),
}
IMAGES: dict[str, Reader] = {
    "images": images,
    "images by part": of(images, "{part}/{client}/{label}"),
}
