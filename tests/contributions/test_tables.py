"""Contributions with named dimensions: what every seed, round and client gets, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fljax import contributions
from fljax.contributions import Labels, Measure
from fljax.contributions.tables import by_round, read_table
from tests.refusals import refuses

pytestmark = pytest.mark.unchecked  # annotations of builders name arrays; tables are read before

FACTS = {"size": np.ones((2, 3), int), "population": 3}
TABLE = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
RUN = Labels((7, 3), rounds=4, clients=[("a", "b", "c"), ("c", "a", "b")])


def measured(chosen: Any, labels: Labels | None = None) -> np.ndarray:
    return contributions.measure(chosen, FACTS, labels)


def test_names_say_what_rows_are() -> None:
    by_seed = measured(xr.DataArray(TABLE, dims=("seed", "client")))
    np.testing.assert_array_equal(by_seed, TABLE)
    by_rounds = measured(xr.DataArray(TABLE, dims=("round", "client")))
    np.testing.assert_array_equal(by_rounds, [TABLE, TABLE])
    whole = np.stack([TABLE, 10 * TABLE])
    for dims in (("seed", "round", "client"), ("client", "seed", "round")):
        found = measured(xr.DataArray(whole, dims=("seed", "round", "client")).transpose(*dims))
        np.testing.assert_array_equal(found, whole)
    np.testing.assert_array_equal(measured(xr.DataArray([1.0, 2.0, 3.0], dims="client")), [[1, 2, 3]] * 2)
    frame = pd.DataFrame({"contribution": [3.0, 2.0, 1.0]}, pd.Index(["c", "b", "a"], name="client"))
    np.testing.assert_array_equal(measured(frame, RUN), [[1, 2, 3], [3, 1, 2]])


def test_a_plain_table_is_refused_whatever_its_shape() -> None:
    for plain in (TABLE, TABLE.tolist(), TABLE[:1], np.ones((5, 3)), np.ones((2, 4, 3))):
        with pytest.raises(ValueError, match=r'xr.DataArray\(values, dims=\("seed", "client"\)\)') as caught:
            measured(plain)
        assert str(np.shape(plain)) in str(caught.value)
    for wrong in ([1, 2], ["a", "b", "c"], [[1], [1, 2]], 3.0):
        with pytest.raises(ValueError, match="expected one contribution for each of 3 clients, got"):
            measured(wrong)


def test_labels_of_clients_are_names_or_ids() -> None:
    ids = xr.DataArray([30.0, 10.0, 20.0], {"client": [2, 0, 1]}, ["client"])
    np.testing.assert_array_equal(measured(ids), [[10, 20, 30]] * 2)
    np.testing.assert_array_equal(measured(ids, RUN), [[10, 20, 30]] * 2)
    # Each seed has its own order of clients.
    names = xr.DataArray([30.0, 10.0, 20.0], {"client": ["c", "a", "b"]}, ["client"])
    np.testing.assert_array_equal(measured(names, RUN), [[10, 20, 30], [30, 10, 20]])
    rounds = xr.DataArray(TABLE, {"client": ["a", "b", "c"]}, ["round", "client"])
    np.testing.assert_array_equal(measured(rounds, RUN), [TABLE, TABLE[:, [2, 0, 1]]])


def test_unseen_clients_which_differ_between_seeds_are_passed_over() -> None:
    """A table must have a row for each client that is seen with some seed, so it has unseen ones of other seeds."""
    drawn = Labels((7, 3), clients=[("a", "b", "c"), ("d", "a", "c")], unseen=[("d",), ("b",)])
    names = xr.DataArray([30.0, 40.0, 10.0, 20.0], {"client": ["c", "d", "a", "b"]}, ["client"])
    np.testing.assert_array_equal(measured(names, drawn), [[10, 20, 30], [40, 10, 30]])
    refuses(lambda: measured(names.assign_coords(client=["c", "d", "e", "b"]), drawn), r"names \(a, b, c\), got 'e'")
    numbers = Labels((7, 3), clients=[("5", "7", "9")] * 2, unseen=[("1",)] * 2)
    ids = xr.DataArray([30.0, 20.0, 10.0], {"client": [2, 1, 0]}, ["client"])
    np.testing.assert_array_equal(measured(ids, numbers), [[10, 20, 30]] * 2)


def test_names_that_are_numbers() -> None:
    run = RUN._replace(clients=[(1, 0, 2)] * 2)
    both = xr.DataArray([5.0, 6.0, 7.0], {"client": [0, 1, 2]}, ["client"])
    with pytest.raises(
        ValueError, match="expected labels of clients that are names or ids, got 0, 1, 2, which are both"
    ):
        measured(both, run)
    np.testing.assert_array_equal(measured(both.assign_coords(client=["0", "1", "2"]), run), [[6, 5, 7]] * 2)
    np.testing.assert_array_equal(measured(both.drop_vars("client"), run), [[5, 6, 7]] * 2)
    others = xr.DataArray([5.0, 6.0, 7.0], {"client": [30, 10, 20]}, ["client"])
    np.testing.assert_array_equal(measured(others, RUN._replace(clients=[(10, 20, 30)] * 2)), [[6, 7, 5]] * 2)


def test_seeds_and_rounds_are_found_by_their_labels() -> None:
    seeds = xr.DataArray([*TABLE, [7, 8, 9]], {"seed": [3, 7, 99]}, ["seed", "client"])
    np.testing.assert_array_equal(measured(seeds, RUN), [TABLE[1], TABLE[0]])
    rounds = xr.DataArray(TABLE, {"round": [2, 0]}, ["round", "client"])  # a row holds until the next round
    np.testing.assert_array_equal(measured(rounds, RUN)[0], TABLE[[1, 1, 0]])
    np.testing.assert_array_equal(measured(rounds, RUN._replace(rounds=1))[0], TABLE[[1]])
    np.testing.assert_array_equal(measured(rounds, RUN._replace(rounds=0))[0], TABLE[[1]])


@pytest.mark.parametrize(
    ("values", "coordinates", "dims", "sentence"),
    [
        (TABLE, {}, ("seeds", "client"), "one of the dimensions seed, round, client, got 'seeds' .*of contributions"),
        (TABLE, {}, ("seed", "round"), "with the dimension client, got seed, round"),
        (TABLE.T, {}, ("seed", "client"), "contributions of 2 seeds, got 3"),
        (TABLE[:, :2], {}, ("seed", "client"), "contributions of 3 clients, got 2"),
        (TABLE, {"seed": [7, 8]}, ("seed", "client"), "contributions of the seeds 7, 3, got none of 3"),
        (TABLE, {"seed": [7, 7]}, ("seed", "client"), "different labels of seed, got 7 twice"),
        (TABLE, {"round": [1, 2]}, ("round", "client"), "whole numbers from 0 on, got 1 as the first"),
        (TABLE, {"round": [0.0, 1.5]}, ("round", "client"), "whole numbers from 0 on, got 0.0 as the first"),
        (TABLE[:0], {}, ("round", "client"), "contributions of at least one round, got none"),
        (TABLE, {"client": [0, 1, 3]}, ("seed", "client"), r"ids from 0 to 2 or names \(a, b, c\), got 3"),
        (TABLE, {"client": ["a", "b", "bb"]}, ("seed", "client"), r"names \(a, b, c\), got 'bb'"),
        (TABLE, {"client": ["a", "b", "b"]}, ("seed", "client"), "different labels of client, got 'b' twice"),
        (TABLE[:, :2], {"client": ["a", "b"]}, ("seed", "client"), "all 3 clients, got none of 'c'"),
        (TABLE > 2, {}, ("seed", "client"), "contributions to be numbers, got bool"),
    ],
)
def test_labels_that_are_refused(values: Any, coordinates: Any, dims: Any, sentence: str) -> None:
    assert "\n" not in refuses(lambda: measured(xr.DataArray(values, coordinates, dims), RUN), sentence)


def test_tables_of_pandas() -> None:
    frame = pd.DataFrame({"client": ["b", "a", "c"], "contribution": [2.0, 1.0, 3.0]})
    expected = [[1, 2, 3], [3, 1, 2]]
    np.testing.assert_array_equal(measured(frame, RUN), expected)
    np.testing.assert_array_equal(measured(frame.set_index("client")["contribution"], RUN), expected)
    np.testing.assert_array_equal(measured(pd.Series([2.0, 1.0, 3.0]), RUN), [[2, 1, 3]] * 2)
    np.testing.assert_array_equal(measured(pd.Series([2.0, 1.0, 3.0], ["b", "a", "c"]), RUN), expected)
    with pytest.raises(ValueError, match="one contribution for each client, got client 1 twice"):
        measured(pd.Series([2.0, 1.0, 3.0], [0, 1, 1]), RUN)
    both = pd.MultiIndex.from_product([[0, 1], ["c", "a", "b"]], names=["round", "client"])
    rounds = pd.Series(np.arange(6.0), both)
    np.testing.assert_array_equal(measured(rounds, RUN)[0], [[1, 2, 0], [4, 5, 3]])
    refuses(lambda: measured(rounds.drop((0, "a")), RUN), "for each round, client, got none for round 0, client a")
    with pytest.raises(ValueError, match="expected one of the columns seed, round, client, contribution, got 'a'"):
        measured(pd.DataFrame(TABLE, columns=["a", "b", "c"]), RUN)
    with pytest.raises(ValueError, match=r"as an xarray\.DataArray, got a Dataset"):
        measured(xr.Dataset({"contribution": ("client", [1.0, 2.0, 3.0])}), RUN)


def test_own_measures_may_name_dimensions(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rising_measure.py").write_text(
        "import xarray as xr\ndef rising(size):\n"
        "    return xr.DataArray([size, 2 * size], dims=('round', 'seed', 'client'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_array_equal(measured("rising_measure:rising"), [[[1] * 3, [2] * 3]] * 2)


def test_builders_take_rounds_and_no_seeds() -> None:
    np.testing.assert_array_equal(by_round(xr.DataArray(TABLE.T, dims=("client", "round"))), TABLE)
    np.testing.assert_array_equal(by_round(xr.DataArray([2.0, 1.0], {"client": [1, 0]}, ["client"])), [1, 2])
    assert by_round(TABLE) is TABLE
    with pytest.raises(ValueError, match=r"a builder makes one seed's algorithm, got seed; fljax\.compare takes"):
        by_round(xr.DataArray(TABLE, dims=("seed", "client")))


ROWS = ["round,client,contribution", "0,a,1", "0,b,2", "0,c,3", "2,c,6", "2,a,4", "2,b,5"]


def file(folder: Any, rows: list[str]) -> str:
    path = folder / "contributions.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.mark.in_turn
def test_a_file_of_rounds(tmp_path: Any) -> None:
    chosen = Measure(file=file(tmp_path, ROWS))
    found = measured(chosen, RUN)
    np.testing.assert_array_equal(found[0], TABLE[[0, 0, 1]])
    np.testing.assert_array_equal(found[1], TABLE[[0, 0, 1]][:, [2, 0, 1]])
    riders = measured(chosen._replace(free_riders=(1,), induced_rate=0.5), RUN)
    np.testing.assert_array_equal(riders[..., [0, 2]], found[..., [0, 2]])
    # The share of the largest of the others in each round: (3 / 2 - 1) / 2 of it.
    np.testing.assert_allclose(riders[0, :, 1], [0.75, 0.75, 1.5])


def test_a_file_of_clients_by_id_and_one_of_seeds(tmp_path: Any) -> None:
    path = file(tmp_path, ["client, contribution", "2,0.5", "0,1e-1", "1,0"])
    np.testing.assert_allclose(measured(Measure(file=path), RUN), [[0.1, 0, 0.5]] * 2)
    rows = ["seed,client,contribution", *(f"{s},{k},{s * 10 + k}" for s in (3, 7) for k in range(3))]
    np.testing.assert_array_equal(measured(Measure(file=file(tmp_path, rows)), RUN), [[70, 71, 72], [30, 31, 32]])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "expected a CSV file of contributions, got .*contributions.csv' .No columns"),
        (["client,contribution"], "expected a row for each client, got none"),
        (["client,value", "a,1"], "expected one of the columns seed, round, client, contribution, got 'value'"),
        (["round,contribution", "0,1"], "expected the columns client and contribution, got no client"),
        (["client,contribution", "a,much"], "expected contributions to be numbers, got 'much'"),
        (["client,contribution", "a,"], "expected contributions to be numbers, got ''"),
        (["client,contribution", "a,nan"], "expected contributions to be finite and at least 0, got nan"),
        (["client,contribution", "a,-1"], "expected contributions to be finite and at least 0, got -1.0"),
        (["client,contribution", "a,1", "a,2"], "expected one contribution for each client, got client a twice"),
        ([*ROWS[:-1]], "expected one contribution for each round, client, got none for round 2, client b"),
        ([ROWS[0], "x,a,1"], "expected the column round to hold whole numbers of at least 0, got 'x'"),
        (["client,contribution", "a,1,2,3"], "expected a CSV file of contributions, .*Length of header"),
        (["client,contribution,contribution", "a,1,2"], "expected one of the columns .* got 'contribution.1'"),
    ],
)
def test_files_that_are_refused(tmp_path: Any, rows: list[str], sentence: str) -> None:
    assert "\n" not in refuses(lambda: measured(Measure(file=file(tmp_path, rows)), RUN), sentence)


def test_a_file_that_is_not_there(tmp_path: Any) -> None:
    path = str(tmp_path / "absent.csv")
    refuses(lambda: read_table(path), re.escape(f"got {path!r} (No such file or directory)"))
    refuses(lambda: read_table(str(tmp_path)), "Is a directory")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00client")
    refuses(lambda: read_table(str(tmp_path / "bytes.csv")), "expected a CSV file of contributions")
