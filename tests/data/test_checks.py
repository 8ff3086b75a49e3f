"""Files that are mapped to memory and change while their rows are read."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fljax
from fljax import algorithms, data, models
from fljax.data import arrays
from fljax.data.arrays import check_unchanged, checked_parts
from fljax.engine import checksum_of
from fljax.engine.offload.host_data import HostData, server_rows
from tests.processes import environment
from tests.refusals import refuses
from tests.toys.configs import config_text

ROWS, WIDTH = 60, 4


def saved(folder: pathlib.Path, dtype: Any = np.float32) -> pathlib.Path:
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", (4 * rng.normal(size=(ROWS, WIDTH))).astype(dtype))
    np.save(folder / "y.npy", rng.integers(0, 3, ROWS))
    np.save(folder / "owner.npy", np.arange(ROWS) % 6)
    return folder / "x.npy"


def loaded(path: pathlib.Path, **options: Any) -> data.Dataset:
    return data.load(str(path), **{"client": "owner.npy", "standardise": False} | options)


def shortened(path: pathlib.Path) -> None:
    os.truncate(path, 0)


def written(path: pathlib.Path) -> None:
    """Changes numbers in place, and the time, which a fast test would leave within one tick of the clock."""
    before = os.stat(path)
    there = np.load(path, mmap_mode="r+")
    there[:] = 7
    there.flush()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))


def replaced(path: pathlib.Path) -> None:
    """Another file of the same size and time takes the place."""
    before, other = os.stat(path), path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def removed(path: pathlib.Path) -> None:
    path.unlink()


CHANGES = [
    (shortened, "got one of 0 bytes in place of 1088; restore it"),
    (written, "got one that was written to; restore it"),
    (replaced, "got another file in its place; restore it"),
    (removed, "got none .No such file or directory.; restore it"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_each_kind_of_change_is_a_sentence(tmp_path, change, words):
    path = saved(tmp_path)
    array = np.load(path, mmap_mode="r")
    check_unchanged(array)
    check_unchanged(array)
    change(path)
    refuses(lambda: check_unchanged(array), f"expected the mapped file '.*x.npy' as it was when it was loaded, {words}")


def test_views_belong_to_the_file_and_copies_do_not(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path)
    array = np.load(path, mmap_mode="r")
    views = [np.asarray(array), array[3:][::2], np.asarray(array[5:]).reshape(-1), array.T]
    copies = [array.copy(), array.astype(np.float64), array[[1, 2]], np.asarray(array) + 1, np.zeros(3), None, "x"]
    check_unchanged(views[2])
    check_unchanged(*copies)
    shortened(path)
    check_unchanged(*copies)
    for each in (array, *views):
        with pytest.raises(ValueError, match="got one of 0 bytes"):
            check_unchanged(each)
    check_unchanged(np.memmap(path.with_suffix(".raw"), mode="w+", shape=(3,))[1:])


def test_what_the_caller_wrote_before_is_no_change(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path)
    array = np.load(path, mmap_mode="r+")
    array[:] = 2
    check_unchanged(array)
    array.flush()
    check_unchanged(array)


def test_parts_are_compared_one_by_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    monkeypatch.setattr(arrays, "_PART", 7 * WIDTH * 4)
    array = np.load(path, mmap_mode="r")
    found = list(checked_parts(array))
    assert [len(each) for each in found] == [7] * 8 + [4]
    np.testing.assert_array_equal(np.concatenate(found), array)
    assert checksum_of({"x": array}) == checksum_of({"x": np.array(array)})
    assert [each.shape for each in checked_parts(np.zeros((9, 2)))] == [(9, 2)]
    reading = checked_parts(array)
    next(reading)
    shortened(path)
    refuses(lambda: next(reading), "got one of 0 bytes")


READERS: dict[str, Callable[[data.Dataset, fljax.Federation], Any]] = {
    "federate": lambda made, federation: data.federate(made, "natural"),
    "place": lambda made, federation: data.place(made),
    "on the device": lambda made, federation: data.place(made, "device"),
    "dataset": lambda made, federation: data.dataset(made.x, made.y),
    "stack": lambda made, federation: data.stack([federation, federation._replace(examples=elsewhere(federation))]),
    "checksum": lambda made, federation: checksum_of(federation),
    "server rows": lambda made, federation: server_rows(federation, federation.held["validation"]),
    "block": lambda made, federation: block(federation),
    "moments": lambda made, federation: data.federate(made._replace(standardise=True), "natural"),
    "run": lambda made, federation: fljax.simulate(algorithm(), federation, rounds=1),
    "standalone": lambda made, federation: fljax.standalone(task(), federation, local()),
    "without programs": lambda made, federation: fljax.simulate(
        algorithm(), federation, rounds=1, execution=fljax.Execution(clients="debug")
    ),
}


def elsewhere(federation: fljax.Federation) -> Any:
    """Examples of the same shape that are in the memory."""
    return federation.examples._replace(x=np.zeros((ROWS, WIDTH), np.float32))


def block(federation: fljax.Federation) -> Any:
    there = HostData.of(federation)
    return there.block(there.seen, 0, np.arange(2), ("train",), ROWS)


def task() -> Any:
    return models.logistic_regression([WIDTH], 3)


def local() -> fljax.Local:
    return fljax.Local(learning_rate=0.1, batch_size=4, steps=2)


def algorithm() -> Any:
    return algorithms.fedavg(task(), local())


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_rows_compares(tmp_path: pathlib.Path, name: str) -> None:
    """A reader that did not would end the process of the tests with SIGBUS."""
    path = saved(tmp_path)
    made = loaded(path)
    federation = data.federate(made, "natural", held_fraction=0.2)
    shortened(path)
    refuses(lambda: READERS[name](made, federation), r"expected the mapped file .* got one of 0 bytes")


@pytest.mark.in_turn
@pytest.mark.parametrize(("change", "words"), CHANGES[:2])
def test_a_run_whose_file_changes_between_two_blocks_ends_and_goes_on_when_it_is_restored(tmp_path, change, words):
    path = saved(tmp_path)
    whole = path.read_bytes()
    options: dict[str, Any] = {"rounds": 4, "evaluate_every": 1}
    expected = fljax.simulate(algorithm(), data.federate(loaded(path), "natural"), **options)
    every = fljax.Checkpoint(tmp_path / "checkpoints", every=0)
    federation, seen = data.federate(loaded(path), "natural"), list[int]()

    def at_two(block: fljax.Block) -> None:
        seen.append(block.round)
        if block.round == 2:
            change(path)

    refuses(lambda: fljax.simulate(algorithm(), federation, callbacks=[at_two], checkpoint=every, **options), words)
    assert seen == [1, 2]
    path.write_bytes(whole)
    again = list[int]()
    after = lambda block: again.append(block.round)  # noqa: E731
    restored = data.federate(loaded(path), "natural")
    found = fljax.simulate(algorithm(), restored, callbacks=[after], checkpoint=every, **options)
    assert again == [3, 4]
    for name in ("test_loss", "test_accuracy"):
        np.testing.assert_array_equal(found.metrics[name], expected.metrics[name])


CONFIG = config_text('dataset = "x.npy"\nclient = "owner.npy"', head="rounds = 3\nseeds = 1\nevaluate_every = 1")


@pytest.mark.thorough
def test_the_command_line_says_a_sentence(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path)
    (tmp_path / "own.toml").write_text(CONFIG)
    code = (
        "import os, sys\n"
        "from fljax.engine.offload.run import OffloadRun\n"
        "from fljax.cli import main\n"
        "before = OffloadRun._round\n"
        "def later(self, state, run, round):\n"
        f"    if round == 1: os.truncate({str(path)!r}, 200)\n"
        "    return before(self, state, run, round)\n"
        "OffloadRun._round = later\n"
        "main(['run', 'own.toml', '--out', 'out'])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert told.returncode == 2, told.stderr
    last = told.stderr.strip().splitlines()[-1]
    assert "expected the mapped file" in last
    assert "got one of 200 bytes in place of 1088" in last
    assert "Traceback" not in told.stderr
