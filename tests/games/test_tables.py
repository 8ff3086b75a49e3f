"""Tables of coalitions: by code, labelled, on the disk."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from fljax import games
from fljax.games.tables import in_braces
from tests.contributions.games import THREE
from tests.games.known import THREE_SEEDS, among, table_of
from tests.refusals import refuses


def assert_equal(one: games.CoalitionTable, other: games.CoalitionTable) -> None:
    for name, values in one._asdict().items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(values, getattr(other, name), err_msg=name)
            assert values.dtype == getattr(other, name).dtype
        else:
            assert values == getattr(other, name), name


def test_values_by_code() -> None:
    some = among(table_of(THREE), [7, 2, 0])
    found = games.by_code(some)
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(found[0])), [0, 2, 7])
    np.testing.assert_array_equal(found[0, [0, 2, 7]], THREE[[0, 2, 7]])
    assert not games.is_complete(some)


def test_the_values_of_a_coalition() -> None:
    table = table_of(THREE_SEEDS)
    np.testing.assert_array_equal(games.value_of(table, [2, 0]), THREE_SEEDS[:, 5])
    np.testing.assert_array_equal(games.value_of(table, []), THREE_SEEDS[:, 0])
    refuses(lambda: games.value_of(among(table, [0, 1]), [0, 1]), r"expected a coalition of the table, got \{0, 1\}")


def test_labelled_tables() -> None:
    dataset = games.to_dataset(table_of(THREE_SEEDS))
    assert float(dataset["value"].sel(seed=1, coalition=5)) == THREE_SEEDS[1, 5]
    assert dataset["member"].sel(coalition=5).values.tolist() == [1, 0, 1]
    assert_equal(games.from_dataset(dataset), table_of(THREE_SEEDS))
    with pytest.raises(ValueError, match="a dataset without payoff, baseline"):
        games.from_dataset(dataset.drop_vars("payoff").drop_attrs().assign_attrs(metric="m", payoff="p"))


def test_tables_on_the_disk(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "worth.nc"
    values = THREE_SEEDS.copy()
    values[0, 3] = np.nan
    tables = {"a/b µ": table_of(values, diverged=np.isnan(values)), "other": table_of(THREE, metric="-average_loss")}
    games.save(path, tables, 'name = "x"', data="123", code="cpython-311:0")
    saved = games.load(path)
    assert (saved.data, saved.code) == ("123", "cpython-311:0")
    assert list(saved.tables) == list(tables)
    for label, table in tables.items():
        assert_equal(saved.tables[label], table)
    assert saved.config == 'name = "x"'
    games.save(path, tables)
    assert games.load(path)[1:5] == ("", saved.fljax, "", "")
    path.write_bytes(path.read_bytes()[:-300])
    refuses(lambda: games.load(path), r"expected .* to be a whole file")
    refuses(lambda: games.load(tmp_path / "absent.nc"), "to be readable")


def test_many_clients_have_no_codes(tmp_path: pathlib.Path) -> None:
    members = np.ones((1, 70), bool)
    table = table_of(THREE)._replace(
        values=np.array([[0.5]]),
        members=members,
        payoffs=np.zeros((1, 1, 70)),
        diverged=np.zeros((1, 1), bool),
        names=tuple(map(str, range(70))),
    )
    games.save(tmp_path / "many.nc", {"x": table})
    assert_equal(games.load(tmp_path / "many.nc").tables["x"], table)


def test_diverged_coalitions_are_named() -> None:
    assert games.divergences(table_of(THREE)) is None
    gone = np.zeros((3, 8), bool)
    gone[1, [0, 5]] = True
    table = table_of(THREE_SEEDS, diverged=gone)
    assert games.divergences(table) == "2 runs of 24 diverged and have no value: {} with seed 1, {0, 2} with seed 1"
    assert "2 runs diverged" in repr(table)
    many = games.divergences(table_of(THREE_SEEDS, diverged=np.ones((3, 8), bool)))
    assert many is not None
    assert many.endswith("and 16 more")
    assert in_braces(np.zeros(3, bool)) == "{}"
