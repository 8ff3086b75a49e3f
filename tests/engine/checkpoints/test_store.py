"""Numbered checkpoints: whole or not there, damaged ones noticed, failures survived."""

from __future__ import annotations

import logging
import pathlib
import random
import sys
import types
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.engine.checkpoints import Checkpoint, Store, checksum

ARRAYS: dict[str, Any] = {
    ".server['w']": np.arange(6, dtype=np.float32).reshape(2, 3),
    ".round": np.asarray(7, np.int32),
    ".half": np.asarray(jnp.ones((2, 2), jnp.bfloat16)),
    ".mask": np.asarray([True, False]),
    ".nothing": np.zeros((2, 0), np.float32),
    ".nan": np.asarray([np.nan, np.inf, -0.0]),
}


def at(step: int) -> dict[str, Any]:
    return ARRAYS | {".round": np.asarray(7 + step, np.int32)}


def write(folder: pathlib.Path, *steps: int, keep: int = 2) -> Store:
    store = Store(folder, keep, list[str]().append)
    for step in steps:
        store.save(step, at(step), {"at": step})
    store.close()
    return store


def read(folder: pathlib.Path, notes: list[str]) -> Any:
    return Store(folder, 2, notes.append).newest()


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "at", 3)
    notes: list[str] = []
    found = read(tmp_path / "at", notes)
    assert (found.step, found.about, notes) == (3, {"at": 3}, [])
    assert list(found.arrays) == list(ARRAYS)
    for name, expected in at(3).items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (expected.dtype, expected.shape)
        assert found.arrays[name].tobytes() == expected.tobytes()


@pytest.mark.in_turn
def test_the_last_ones_are_kept(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path / "none", []) is None
    for keep in (1, 2, 3):
        folder = tmp_path / str(keep)
        assert write(folder, 1, 4, 9, 16, keep=keep).saved == 16
        assert sorted(path.name for path in folder.glob("round_*")) == sorted(
            f"round_{step}" for step in (1, 4, 9, 16)[-keep:]
        )
        assert read(folder, []).step == 16


# Where a file of arrays is missing, tensorstore's threads report to an event loop that orbax has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("how", ["flipped", "cut", "removed", "a folder"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_taken(tmp_path: pathlib.Path, how: str) -> None:
    """Whichever of its files is damaged: the numbers are those of a checkpoint, or an earlier one is taken."""
    draw = random.Random(0)
    earlier = 0
    for number in range(30):
        folder = tmp_path / str(number)
        write(folder, 3, 5)
        # Names and numbers of files are not the same in every process.
        files = sorted(path for path in (folder / "round_5").rglob("*") if path.is_file())
        if number >= len(files):
            break
        here = files[number]
        content = bytearray(here.read_bytes())
        if not content:
            continue
        if how == "flipped":
            content[draw.randrange(len(content))] ^= 0xFF
        if how in ("removed", "a folder"):
            here.unlink()
            if how == "a folder":
                here.mkdir()
        else:
            here.write_bytes(content if how == "flipped" else content[: len(content) // 2])
        notes: list[str] = []
        found = read(folder, notes)
        assert found is not None, here.name
        assert found.step in (3, 5)
        for key, expected in at(found.step).items():
            assert found.arrays[key].tobytes() == expected.tobytes(), (here.name, key)
        if found.step == 3:
            earlier += 1
            assert notes == ["the checkpoint of round 5 is damaged; the one of round 3 is taken"]
            assert not (folder / "round_5").exists()
            write(folder, 5)  # so that it can be written again
            assert read(folder, []).step == 5
    assert earlier > 2


def test_nothing_whole_is_a_new_beginning(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "at", 3, 5)
    for path in (tmp_path / "at").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    notes: list[str] = []
    assert read(tmp_path / "at", notes) is None
    assert notes == [f"the checkpoint of round {step} is damaged; the run begins anew" for step in (5, 3)]


def test_what_was_being_written_is_not_there(tmp_path: pathlib.Path) -> None:
    """As a process leaves it that dies while it writes."""
    write(tmp_path / "at", 3)
    (tmp_path / "at/round_5.orbax-checkpoint-tmp-1/arrays").mkdir(parents=True)
    notes: list[str] = []
    assert read(tmp_path / "at", notes).step == 3
    assert notes == []


def test_no_room_is_said_once_and_stops_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    store = Store(tmp_path / "at", 2, notes.append)
    store.save(1, ARRAYS, {})
    store.close()

    class Full:
        def save(self, *_: Any, **__: Any) -> None:
            raise ValueError('NOT_FOUND: Error writing "/x": [OS error: No space left on device]')

    with monkeypatch.context() as patch:
        patch.setattr(store, "_opened", Full)
        for step in (2, 3):
            store.save(step, ARRAYS, {})
            assert store.saved == 1
    assert notes == [
        "a checkpoint could not be written (No space left on device); the run goes on, earlier ones are intact"
    ]
    store.save(4, ARRAYS, {})
    store.close()
    assert store.saved == 4
    assert read(tmp_path / "at", notes).step == 4
    assert len(notes) == 1


def test_a_number_is_given_once(tmp_path: pathlib.Path) -> None:
    """A second one is refused, and the first one, which may still be in the background, is written."""
    notes: list[str] = []
    store = Store(tmp_path / "at", 2, notes.append)
    store.save(1, ARRAYS, {"which": "first"})
    store.save(1, ARRAYS, {"which": "second"})
    store.close()
    assert notes == [
        "a checkpoint could not be written (the folder has a checkpoint of round 1 or a later one); the run goes on, "
        "earlier ones are intact"
    ]
    assert store.saved == 1
    assert read(tmp_path / "at", notes).about == {"which": "first"}


def test_threads_of_a_failed_write_report_nothing_later(tmp_path, monkeypatch):
    """After a failure they may come at any time; after none, nothing of ours is left."""
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    monkeypatch.setattr(logging.getLogger("absl"), "filters", [])
    before = sys.unraisablehook

    def report(words: str) -> None:
        sys.unraisablehook(cast(Any, types.SimpleNamespace(exc_value=RuntimeError(words))))

    for fails in (False, True):
        notes: list[str] = []
        store = Store(tmp_path / f"{fails}", 2, notes.append)
        store.save(1, ARRAYS, {})
        report("Event loop is closed")
        assert not told
        if fails:
            store.save(1, ARRAYS, {})  # is refused: there is one already
            assert len(notes) == 1
        store.close()
        assert (sys.unraisablehook is before) is not fails
    report("Event loop is closed")
    assert not told
    report("another one")
    assert told == ["another one"]
    for step in (3, 4, 5):  # nothing is piled up
        store = Store(tmp_path / "True", 2, notes.append)
        store.save(step, ARRAYS, {})
        store.close()
    assert len(logging.getLogger("absl").filters) == 1


def test_settings_are_checked() -> None:
    assert Checkpoint("x").check() == Checkpoint("x", 30.0, 2, None, None)
    for wrong, words in [
        (Checkpoint("x", -1.0), "seconds between checkpoints of at least 0, got -1.0"),
        (Checkpoint("x", float("nan")), "seconds between checkpoints"),
        (Checkpoint("x", keep=0), "at least 1 checkpoint, got 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong.check()


@pytest.mark.parametrize("records", [".", "rounds", "records", "records/mine", "../..", "precious"])
def test_records_replace_nothing_else(tmp_path: pathlib.Path, records: str) -> None:
    folder = tmp_path / "one/at"
    (folder / "precious").mkdir(parents=True)
    place = folder if records == "." else (tmp_path if records == "../.." else folder / records)
    with pytest.raises(ValueError, match="expected records to"):
        Checkpoint(folder, records=place).check()
    Checkpoint(folder, records=folder / "mine").check()


def test_checksums_see_bytes_and_order() -> None:
    one, two = np.asarray([1.0, 2.0]), np.asarray([2.0, 1.0])
    assert checksum([one, two]) != checksum([two, one])
    assert checksum([np.zeros(0), one]) == checksum([one])
    assert checksum([np.asarray(-0.0)]) != checksum([np.asarray(0.0)])
