"""TensorBoard's event files, read back record by record."""

from __future__ import annotations

import pathlib
import struct
import sys
from typing import Any

import numpy as np
import pytest

from fljax.engine.callbacks import write_events
from tests.engine.callbacks.blocks import block


def events(folder: pathlib.Path) -> list[Any]:
    """The events of all files of a folder, in the order in which they were written."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    crc = pytest.importorskip("tensorboardX.record_writer").masked_crc32c
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            record = content[at + 12 : at + 12 + size]
            assert struct.unpack_from("<I", content, at + 8)[0] == crc(content[at : at + 8])
            assert struct.unpack_from("<I", content, at + 12 + size)[0] == crc(record)
            found.append(event_pb2.Event.FromString(record))
            at += 16 + size
    return found


def scalars(folder: pathlib.Path) -> list[tuple[int, str, float]]:
    """``(step, tag, value)`` of a folder."""
    return [(event.step, each.tag, each.simple_value) for event in events(folder) for each in event.summary.value]


def test_means_and_seeds_are_curves_of_one_picture(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    callback = write_events(tmp_path, label="incfl")
    callback(block({"ipr_loss": [0.25, 0.75], "average_loss": [np.nan, np.inf]}, round=0, ran=0))
    callback(block({"ipr_loss": [0.5, np.nan], "average_loss": [1.0, 3.0]}))
    assert scalars(tmp_path / "incfl" / "mean") == [
        (0, "ipr_loss", 0.5),
        (4, "ipr_loss", 0.5),
        (4, "average_loss", 2.0),
    ]
    assert scalars(tmp_path / "incfl" / "seed_1") == [(0, "ipr_loss", 0.75), (4, "average_loss", 3.0)]
    assert sorted(path.name for path in (tmp_path / "incfl").iterdir()) == ["mean", "seed_0", "seed_1"]


def test_cells_of_a_sweep_have_folders(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    write_events(tmp_path, label="a", cells=(3, 4), by_seed=False)(block({"ipr_loss": [0.5, 0.25]}, seeds=(0, 0)))
    assert scalars(tmp_path / "a" / "cell_4" / "mean") == [(4, "ipr_loss", 0.25)]


def test_labels_are_names_of_folders(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    write_events(tmp_path, label="../q=1", by_seed=False)(block({"ipr_loss": [0.5, 0.25]}))
    assert [path.name for path in tmp_path.iterdir()] == ["..%2Fq%3D1"]


def test_a_run_that_goes_on_hides_what_it_repeats(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        write_events(tmp_path, by_seed=False)(block({"ipr_loss": [0.5, 0.25]}))
    assert len(list((tmp_path / "mean").iterdir())) == 2
    begun = [event for event in events(tmp_path / "mean") if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in begun] == [(4, 1), (4, 1)]


def test_without_tensorboardx_one_sentence_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"expected the package tensorboardX, .*pip install 'fljax\[tensorboard\]'"):
        write_events(tmp_path)


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path: pathlib.Path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    callback = write_events(tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        callback(block({"ipr_loss": [0.5, 0.25]}))
    callback(block({"ipr_loss": [0.5, 0.25]}))
