"""Arrays that grow, in memory and on the disk, through checkpoints at any row."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.engine import checkpoints
from fljax.engine.checkpoints import Series
from tests.drawn import at_most
from tests.refusals import refuses


def block(first: int, rows: int) -> dict[str, Any]:
    """Rows whose values say which they are; of several dtypes and shapes."""
    at = np.arange(first, first + rows)
    return {
        "loss": np.stack([at + 0.5, -at - 0.5]).astype(np.float32),
        "present": np.stack([at % 2 == 0, at % 3 == 0]),
        "id": np.tile(at[None, :, None], (2, 1, 3)).astype(np.int32),
        "nothing": np.zeros((2, rows, 0), np.int32),
        "half": np.stack([at, at + 1]).astype(np.float16),
    }


def assert_rows(found: Any, rows: int) -> None:
    expected = block(0, rows)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.in_turn
@at_most(40)
@given(
    blocks=st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=8),
    chunk=st.integers(1, 5),
    lost=st.lists(st.integers(1, 6), max_size=3),
)
def test_rows_survive_any_checkpoints(tmp_path_factory, blocks, chunk, lost):
    """Blocks of any length, written or not; after a checkpoint rows are lost and come again, whatever was written."""
    folder = tmp_path_factory.mktemp("series") / "rows"
    rows = sum(count for count, _ in blocks)
    found = Series(folder, rows + 6)
    found.chunk = chunk
    memory = Series()
    done = 0
    for count, written in blocks:
        found.append(block(done, count))
        memory.append(block(done, count))
        done += count
        if written:
            found.write()
            rest = {name: each.copy() for name, each in found.rest().items()}
            saved = (found.written, found.chunk, dict(found.checksums), rest)
            for more in lost:  # of a process that died: it wrote further rows, which are other ones
                gone = Series.resume(folder, rows + 6, *saved)
                gone.append({name: each * 0 for name, each in block(done, more).items()})
                gone.write()
            found = Series.resume(folder, rows + 6, *saved)
    assert len(found) == len(memory) == rows
    for each in (found, memory):
        assert_rows(each.read(), rows)
        assert_rows(joined(each), rows)
        assert each.nbytes == sum(values.nbytes for values in block(0, rows).values())


def joined(found: Series) -> Any:
    """All rows, block by block."""
    blocks = list(found.blocks())
    return {name: np.concatenate([each[name] for each in blocks], axis=1) for name in blocks[0]}


@pytest.mark.in_turn
def test_rows_leave_the_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHUNK", 64)
    found = Series(tmp_path / "rows", 1000)
    for first in range(0, 1000, 10):
        found.append(block(first, 10))
        found.write()
        assert len(found) - found.written < found.chunk <= 8
    assert found.written >= 992
    assert_rows(found.read(), 1000)


def test_many_rows_are_due(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "READ", 38 * 10)  # ten rows
    found, memory = Series(tmp_path / "rows", 100), Series()
    found.chunk = 4
    for first, due in ((0, False), (5, False), (10, True)):
        for each in (found, memory):
            each.append(block(first, 5))
        assert (found.is_due, memory.is_due) == (due, False)
    found.write()
    assert (found.written, found.is_due) == (12, False)
    found.append(block(15, 5))
    assert not found.is_due
    assert_rows(found.read(), 20)


def test_a_new_series_empties_its_folder(tmp_path: pathlib.Path) -> None:
    for rows in (8, 4):
        found = Series(tmp_path / "rows", 8)
        found.chunk = 2
        found.append(block(0, rows))
        found.write()
        assert_rows(found.read(), rows)


def test_without_rows_there_is_nothing(tmp_path: pathlib.Path) -> None:
    for found in (Series(), Series(tmp_path / "rows", 5)):
        found.write()
        assert (len(found), found.read(), found.rest()) == (0, {}, {})
    assert not (tmp_path / "rows").exists()


def test_rows_of_another_run_are_refused(tmp_path: pathlib.Path) -> None:
    found = Series(tmp_path / "rows", 8)
    found.chunk = 2
    found.append(block(0, 4))
    found.write()
    refuses(lambda: Series.resume(tmp_path / "rows", 9, 4, 2, found.checksums, {}), "to have 9 rows, got 8")
    with pytest.raises((OSError, ValueError)):
        Series.resume(tmp_path / "nowhere", 8, 4, 2, found.checksums, {})


@pytest.mark.parametrize("how", ["missing", "other"])
def test_a_damaged_chunk_is_noticed(tmp_path: pathlib.Path, how: str) -> None:
    """zarr reads a missing chunk as zeros."""
    found = Series(tmp_path / "rows", 8)
    found.chunk = 2
    found.append(block(1, 5))
    found.write()
    saved = (8, found.written, found.chunk, found.checksums, found.rest())
    chunk = tmp_path / "rows/loss/c/0/1"
    if how == "missing":
        chunk.unlink()
    else:
        chunk.write_bytes((tmp_path / "rows/loss/c/0/0").read_bytes())
    for use in (lambda: Series.resume(tmp_path / "rows", *saved), found.read):
        with pytest.raises(OSError, match=r"expected whole rows of loss in .*, got damaged ones"):
            use()


def test_zeros_keep_their_sign(tmp_path: pathlib.Path) -> None:
    """zarr leaves out chunks that equal the fill value, and some of its versions take -0.0 for it."""
    found = Series(tmp_path / "rows", 6)
    found.chunk = 2
    rows = {
        "float": np.full((1, 4), -0.0, np.float32),
        "mixed": np.asarray([[0.0, -0.0, -0.0, 0.0]]),
        "complex": np.full((1, 4), complex(-0.0, 0), np.complex64),
    }
    found.append(rows)
    found.write()
    again = Series.resume(tmp_path / "rows", 6, found.written, found.chunk, found.checksums, {}).read()
    for name, values in rows.items():
        assert again[name].tobytes() == values.tobytes(), name


def test_few_rows_are_read_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "READ", 80)  # two rows
    found = Series(tmp_path / "rows", 9)
    found.chunk = 1
    found.append(block(0, 8))
    found.write()
    found.append(block(8, 1))
    assert [each["loss"].shape[1] for each in found.blocks()] == [2, 2, 2, 2, 1]
    assert_rows(joined(found), 9)


def test_no_room_keeps_the_rows_in_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Series(tmp_path / "rows", 8)
    found.chunk = 2
    found.append(block(0, 4))

    def full(joined: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(found, "_created", full)
        refuses(lambda: found.write(), "No space left", OSError)
    assert (found.written, len(found)) == (0, 4)
    assert_rows(found.read(), 4)
    found.write()
    assert found.written == 4
    assert_rows(found.read(), 4)
