"""Arrays by name in files, and the lock of a folder."""

from __future__ import annotations

import io
import os
import pathlib
import zipfile

import numpy as np
import pytest

from fljax.core.files import is_locked, locked, read_npz, write_npz
from tests.refusals import refuses


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_come_back(tmp_path: pathlib.Path, compressed: bool) -> None:
    arrays = {"a/b": np.arange(3), "text": np.asarray("é")}
    write_npz(tmp_path / "x.npz", arrays, compressed=compressed)
    read = read_npz(tmp_path / "x.npz", "models")
    assert {name: array.tolist() for name, array in read.items()} == {"a/b": [0, 1, 2], "text": "é"}
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_what_unpacks_is_what_the_file_says_and_fits(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "x.npz", {"a": np.zeros(10**6)}, compressed=True)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (10**11,)})
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as file:
        file.writestr("a.npy", head.getvalue())
    refuses(lambda: read_npz(tmp_path / "y.npz", "models"), r"expected 400,000,000,000 bytes of a\.npy, got 128")
    assert read_npz(tmp_path / "x.npz", "models")["a"].size == 10**6
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    with pytest.raises(ValueError, match=r"fits into the memory \(1,000,000 bytes\), got 8,000,128 bytes unpacked"):
        read_npz(tmp_path / "x.npz", "models")


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.npz"
    refuses(lambda: read_npz(path, "models"), r"expected models in '.*x\.npz', got none: No such file")
    write_npz(path, {"a": np.arange(1000)})
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"no zip file"):
        path.write_bytes(content)
        refuses(lambda: read_npz(path, "models"), r"^expected whole models in '.*x\.npz', got a damaged file$")
    np.savez(path, a=np.asarray([{}], object))  # which would be unpickled
    refuses(lambda: read_npz(path, "models"), "damaged")


def test_one_process_holds_a_lock(tmp_path: pathlib.Path) -> None:
    lock = tmp_path / "new" / "run.lock"
    assert not is_locked(lock)
    with locked(lock):
        assert is_locked(lock)
        refuses(lambda: locked(lock).__enter__(), r"expected a folder that no other process writes to, got '.*new'")
    assert not is_locked(lock)
    assert lock.is_file()  # two processes could hold it if it were removed


def test_a_folder_that_cannot_be_made_has_no_lock(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    refuses(lambda: locked(tmp_path / "file" / "run.lock").__enter__(), r"expected a folder to write in, got '.*file'")
