"""The numbers of an evaluation, for trackers that take a dictionary of numbers and a step, and for TensorBoard.

``CALLBACKS``, which a config may name, are called once for each algorithm, so that a history belongs to one run.
``--tensorboard`` is no part of a config: a resumed run may do without it.
"""

from __future__ import annotations

import math
import os
import pathlib
import socket
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core import users
from fljax.core.files import check_links
from fljax.core.names import file_name
from fljax.engine.callbacks.contract import Block, Callback, going_on
from fljax.metrics import mean


class Scalars(NamedTuple):
    """The metrics of a block that are one number for each run.

    Attributes:
      seeds: the seed of every run. In a sweep all seeds of the first cell come first, then all seeds of the second.
      values: ``[runs]`` by the name of the metric; None in place of NaN and infinities, which JSON does not have.
    """

    seeds: tuple[int, ...]
    values: dict[str, list[float | None]]

    @property
    def cells(self) -> int:
        """The number of cells of a sweep in the block; 1 in a run."""
        return len(self.seeds) // max(1, len(set(self.seeds)))

    def by_cell(self, name: str) -> list[list[float | None]]:
        """The values of a metric, a list over seeds for each cell."""
        count = len(set(self.seeds))
        return [self.values[name][cell * count : (cell + 1) * count] for cell in range(self.cells)]

    def named(
        self, label: str = "", cells: Sequence[int] = (), by_seed: bool = True
    ) -> Iterator[tuple[str, str, float]]:
        """``(whose, metric, value)`` of every finite mean over seeds and of every finite value.

        Without numbers in ``cells``, several cells of a sweep are numbered from 0. ``by_seed`` also gives the values of
        single seeds.

        Yields:
          ``whose`` is ``incfl/mean`` or ``incfl/seed_0``, and ``incfl/cell_3/mean`` in a sweep; without a label it
          begins with the cell or the mean.
        """
        count, cells = len(set(self.seeds)), cells or range(self.cells if self.cells > 1 else 0)
        for name in self.values:
            for place, row in enumerate(self.by_cell(name)):
                start = [label] * bool(label) + ([f"cell_{cells[place]}"] if cells else [])
                value = mean(row)
                if value is not None:
                    yield "/".join([*start, "mean"]), name, value
                for seed, number in zip(self.seeds[:count], row, strict=True):
                    if by_seed and number is not None:
                        yield "/".join([*start, f"seed_{seed}"]), name, number


def scalars_of(block: Block) -> Scalars:
    """The metrics of a block that are one number for each run, with seven digits."""
    seeds = tuple(np.asarray(block.state.seed).tolist())
    values = {
        name: [finite(value) for value in np.asarray(entries, float).tolist()]
        for name, entries in block.metrics.items()
        if np.ndim(entries) == 1
    }
    return Scalars(seeds, values)


def finite(value: float) -> float | None:
    """The value with seven digits, more than float32 has; None if it is NaN or infinite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


# The methods of trackers that take (dictionary, step=): W&B's runs; MLflow, Comet and Lightning; Aim.
METHODS = ("log", "log_metrics", "track")


def track(
    run: Any, *, label: str = "", cells: Sequence[int] = (), by_seed: bool = True, with_step: bool = True
) -> Callback:
    """A callback that logs every metric of each evaluation, the one before the first round included.

    ``simulate(..., callbacks=[track(wandb.init())])``. The names are ``LABEL/mean/METRIC`` for the mean over seeds with
    a finite value, and ``LABEL/seed_0/METRIC`` for single seeds, for example
    ``incfl/mean/incentivised_participation_rate``; in a sweep ``LABEL/cell_3/mean/METRIC``. Without a label they begin
    with ``mean`` and ``seed_0``. Values that are NaN or infinite are left out. ``LABEL/round`` is the number of rounds
    done, and ``LABEL/seconds`` the seconds of the block.

    Args:
      run: has ``log(values, step=)`` (a run of W&B), ``log_metrics(values, step=)`` (the module ``mlflow``) or
        ``track(values, step=)`` (a run of Aim); fljax imports none of them.
      label: the beginning of all names. In a comparison the label of the block follows, unless it is the same.
      cells: in a sweep, the numbers of the cells in a block; empty: those of the block.
      by_seed: whether to log single seeds too.
      with_step: whether to give the round as ``step``. W&B ignores steps that do not grow, so where a run with ``log``
        gets a further algorithm, steps go on behind the last one. ``LABEL/round`` is the axis of all:
        ``run.define_metric("incfl/*", "incfl/round")``.

    Raises:
      ValueError: if ``run`` has no such method.
    """
    method, log = _method(run)
    users.check("the tracker's", "(values, step=)", log, {}, **({"step": 0} if with_step else {}))
    steps = _steps_of(run)

    def write(block: Block) -> None:
        if block.round < steps.last and method == "log":
            steps.first += steps.last + 1
        steps.last = block.round
        whose = "/".join(_labels(label, block))
        start = f"{whose}/" if whose else ""
        named = scalars_of(block).named(whose, cells or block.cells, by_seed)
        values: dict[str, float] = {f"{of}/{name}": value for of, name, value in named}
        values |= {f"{start}round": block.round, f"{start}seconds": block.seconds}
        if with_step:
            log(values, step=steps.first + block.round)
        else:
            log(values)

    return going_on(f"values for {type(run).__name__}", write, at_start=True)


def _labels(label: str, block: Block) -> list[str]:
    return [text for text in dict.fromkeys((label, block.label)) if text]


_STEPS: weakref.WeakKeyDictionary[Any, types.SimpleNamespace] = weakref.WeakKeyDictionary()


def _steps_of(run: Any) -> types.SimpleNamespace:
    """The step of round 0, and the last round, of all callbacks that log to a run."""
    steps = types.SimpleNamespace(first=0, last=0)
    try:
        return _STEPS.setdefault(run, steps)
    except TypeError:  # no weak reference, or no hash
        return steps


def _method(run: Any) -> tuple[str, Callable[..., Any]]:
    for name in METHODS:
        method = getattr(run, name, None)
        if callable(method):
            return name, method
    valid = " or ".join(f"{name}(values, step=)" for name in METHODS)
    raise ValueError(f"expected a run of a tracker, with {valid}, got {type(run).__name__}")


class Formats(NamedTuple):
    """The classes of tensorboardX that event files are made of."""

    writer: Any  # writes records with checksums
    event: Any
    session: Any
    summary: Any


def formats() -> Formats:
    """The classes of tensorboardX, imported at the first use."""
    try:
        from tensorboardX import RecordWriter
        from tensorboardX.proto import event_pb2, summary_pb2
    except ImportError:
        raise ValueError(
            "expected the package tensorboardX, which writes the files of TensorBoard, got none; "
            "pip install 'fljax[tensorboard]' installs it"
        ) from None
    events: Any = event_pb2  # its classes are made when it is imported, and so unknown to type checkers
    summaries: Any = summary_pb2
    return Formats(RecordWriter, events.Event, events.SessionLog, summaries.Summary)


def write_events(
    folder: str | pathlib.Path, *, label: str = "", cells: Sequence[int] = (), by_seed: bool = True
) -> Callback:
    """A callback that writes every metric of each evaluation for TensorBoard, the one before the first round included.

    The metric is the tag, so that algorithms and seeds are curves of one picture: ``folder/LABEL/mean`` has the means
    over seeds with a finite value, ``folder/LABEL/seed_0`` the values of seed 0, and in a sweep ``folder/LABEL/cell_3``
    has both. The step is the number of rounds done. Values that are NaN or infinite are left out. A run that goes on in
    the same folder hides the later steps that were there. Show them with ``tensorboard --logdir FOLDER``.

    Args:
      folder: where the event files are; it is made if it does not exist.
      label: the first folder; that of the block follows, as for ``track``. Special characters are %-codes.
      cells: in a sweep, the numbers of the cells in a block; empty: those of the block.
      by_seed: whether to write single seeds too.

    Raises:
      ValueError: if tensorboardX is not installed.

    If a file cannot be written, there is one RuntimeWarning, and the run goes on.
    """
    classes, home = formats(), pathlib.Path(folder)
    files: dict[str, _EventFile] = {}

    def write(block: Block) -> None:
        values: dict[str, list[tuple[str, float]]] = {}
        start = "/".join(map(file_name, _labels(label, block)))
        for whose, name, value in scalars_of(block).named(start, cells or block.cells, by_seed):
            values.setdefault(whose, []).append((name, value))
        for whose, numbers in values.items():
            if whose not in files:
                check_links(home, whose.split("/")[:1])
                files[whose] = _EventFile(classes, home / whose, block.round)
            files[whose].add(block.round, numbers)

    return going_on(f"event files in {str(home)!r}", write, at_start=True, may_end=False)


class _EventFile:
    """One event file, complete after every ``add``."""

    # tensorboardX's own SummaryWriter hands events to a thread, and those in its queue are lost with the process.

    def __init__(self, classes: Formats, folder: pathlib.Path, step: int) -> None:
        self._formats = classes
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()  # a run that goes on soon after another must not write over its file
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{os.getpid()}.{now % 10**9}"
        self._writer = classes.writer(str(folder / name))
        weakref.finalize(self, self._writer.close)  # with the callback, or when the process ends
        self._write(file_version="brain.Event:2")
        # It hides this step and later ones.
        self._write(step=step, session_log=classes.session(status=classes.session.START))

    def add(self, step: int, values: Iterable[tuple[str, float]]) -> None:
        summary = self._formats.summary
        tagged = [summary.Value(tag=name, simple_value=value) for name, value in values]
        self._write(step=step, summary=summary(value=tagged))
        self._writer.flush()

    def _write(self, **content: Any) -> None:
        self._writer.write(self._formats.event(wall_time=time.time(), **content).SerializeToString())


TENSORBOARD = "tensorboard"  # the folder of event files in a run folder


def tensorboard(
    *, folder: pathlib.Path | None, label: str, cells: Sequence[int] = (), by_seed: bool = True
) -> Callback:
    """Event files for TensorBoard in the run folder (``fljax.engine.callbacks.write_events``).

    Args:
      folder: the run folder; its subfolder ``tensorboard`` has the files.
      label: of the algorithm.
      cells: in a sweep, the numbers of the cells in a block.
      by_seed: whether to write single seeds too.

    Raises:
      ValueError: if there is no run folder, or tensorboardX is not installed.
    """
    if folder is None:
        raise ValueError("expected a run folder for the event files of TensorBoard, got none")
    return write_events(folder / TENSORBOARD, label=label, cells=cells, by_seed=by_seed)


# Asked before anything is computed: whether the builder can do its work.
_builder: Any = tensorboard
_builder.ready = formats

# Builders of callbacks. An experiment calls them once for each algorithm (in a sweep, for each group of cells), with
# those of folder, label, cells, seeds and rounds that they have parameters for.
CALLBACKS: Mapping[str, Callable[..., Callback]] = {"tensorboard": tensorboard}
