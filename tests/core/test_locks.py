"""The lock of a folder."""

from __future__ import annotations

import pathlib

import pytest

from fljax.core.locks import is_locked, locked


def test_one_process_holds_a_lock(tmp_path: pathlib.Path) -> None:
    lock = tmp_path / "new" / "run.lock"
    assert not is_locked(lock)
    with locked(lock):
        assert is_locked(lock)
        with pytest.raises(ValueError, match=r"expected a folder that no other process writes to, got '.*new'"):
            locked(lock).__enter__()
    assert not is_locked(lock)
    assert lock.is_file()  # two processes could hold it if it were removed


def test_a_folder_that_cannot_be_made_has_no_lock(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"expected a folder to write in, got '.*file'"):
        locked(tmp_path / "file" / "run.lock").__enter__()
