"""Callbacks: functions of a Block, which says what is known after some rounds of a run.

They end a run when a metric no longer improves or a function of the block says so, print while a script waits, and give
the numbers of an evaluation to trackers and TensorBoard. An exception of a callback (also KeyboardInterrupt) ends the
run, and has the results until then in ``results``. Code that continues a run calls ``replay(callbacks, blocks)`` once
before the next block.

``CALLBACKS``, which a config may name, are called once for each algorithm, so that a history belongs to one run.
``--tensorboard`` is no part of a config: a resumed run may do without it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import socket
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.core import processes, users
from fljax.core.errors import attach, in_words
from fljax.core.files import check_links
from fljax.core.names import duration, file_name, shown, unknown
from fljax.core.values import is_whole
from fljax.engine.rounds.states import State
from fljax.metrics import mean
from fljax.metrics.registry import OF_ONE_EVALUATION, is_lower_better
from fljax.protocol import NumpyArray


class Block(NamedTuple):
    """The argument of a callback, after a block of rounds.

    Attributes:
      round: number of rounds done.
      rounds: number of rounds at the end of the run.
      ran: number of rounds in this block; 0 for the evaluation before the first round.
      metrics: ``{name: [seeds, clients]}`` test losses and accuracies of this evaluation, and ``{name: [seeds]}`` every
        metric over clients that ``Result.metrics`` has for it. With ``reference=`` also the metrics that compare with
        standalone models, such as ``incentivised_participation_rate``. In a sweep the rows are runs: all seeds of the
        first plan, then all seeds of the second, and so on.
      state: of all seeds (or runs). Its memory is donated to the next block, so copy what you keep.
      seconds: seconds of this block, including evaluation.
      diverged: ``((seed, round), ...)`` so far.
      label: of the algorithm, in an experiment or a comparison; empty in ``simulate`` and ``sweep``.
      cells: in a sweep, the numbers of the cells in the block; empty in a run.
    """

    round: int
    rounds: int
    ran: int
    metrics: dict[str, np.ndarray]
    state: State
    seconds: float
    diverged: tuple[tuple[int, int], ...]
    label: str = ""
    cells: tuple[int, ...] = ()


Callback = Callable[[Block], Any]


def checked(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks; raises a ValueError unless they are a list of functions of a Block."""
    chosen: Any = tuple(callbacks) if isinstance(callbacks, Iterable) and not callable(callbacks) else (None,)
    if not all(map(callable, chosen)):
        raise ValueError(f"expected callbacks to be a list of functions of a Block, got {shown(callbacks)}")
    for callback in chosen:
        users.check_function("the callback", "(block)", callback, None)
    return chosen


def is_called_at_start(callback: Callback) -> bool:
    """Whether a callback is also called with the evaluation before the first round."""
    return bool(getattr(callback, "at_start", False))


def same_everywhere(callbacks: Sequence[Callback]) -> Sequence[Callback]:
    """The callbacks; in processes other than 0, which do not call them, as many as process 0 has."""
    # All processes must agree where they wait for what a callback answers.
    callbacks = checked(callbacks)
    if not processes.are_several():
        return callbacks
    told = processes.agreed(
        lambda: [(is_called_at_start(callback), hasattr(callback, "replay")) for callback in callbacks]
    )
    return callbacks if processes.is_first() else [_never_called(*callback) for callback in told]


def _never_called(at_start: bool, replays: bool) -> Callback:
    def callback(block: Block) -> bool:
        return False

    def no_history(blocks: Sequence[Block]) -> None:
        return None

    marked: Any = callback
    marked.at_start = at_start
    if replays:
        marked.replay = no_history
    return marked


def call_all(callbacks: Sequence[Callback], block: Block) -> bool:
    """Whether a callback stops the run, as True alone does. Every callback is called; process 0 calls them."""

    def answer() -> bool:
        answers = [callback(block) for callback in callbacks]
        truths = (np.asarray(each) for each in answers if isinstance(each, bool | np.bool_ | jax.Array))
        return any(truth.dtype == np.bool_ and truth.ndim == 0 and bool(truth) for truth in truths)

    return processes.agreed(answer)


def with_results(error: BaseException, results: Sequence[Any], done: int) -> BaseException:
    """The error of a callback, whose attribute ``results`` then has the ``Result`` of each plan until it."""
    note = f"a callback ended the run after {done} rounds; error.results has the results until then"
    attach(error, note, results=tuple(results))
    return error


def going_on(what: str, write: Callable[[Block], Any], *, at_start: bool = False, may_end: bool = True) -> Callback:
    """A callback that writes somewhere; a failure is one RuntimeWarning, at the start an error if it ``may_end``."""
    failed: list[Exception] = []

    def callback(block: Block) -> None:
        try:
            write(block)
        except Exception as error:  # a server may raise anything
            if may_end and block.ran == 0:
                raise
            if not failed:
                words = f"{what} cannot be written ({in_words(error)}); the run goes on"
                warnings.warn(words, RuntimeWarning, stacklevel=2)
            failed.append(error)

    marked: Any = callback
    marked.at_start = at_start
    return marked


def diverged(seeds: Sequence[int], state: State) -> tuple[tuple[int, int], ...]:
    """``((seed, round), ...)`` of the runs that are frozen."""
    rounds = np.asarray(state.diverged).tolist()
    return tuple((seed, round) for seed, round in zip(seeds, rounds, strict=True) if round >= 0)


def replay(callbacks: Iterable[Callback], blocks: Sequence[Block]) -> bool:
    """Gives the evaluations of a run that goes on to those callbacks that have a method ``replay``.

    A callback whose answers depend on earlier blocks, such as ``stop_early``, has a method ``replay(blocks)`` that sets
    this history and returns whether the run had stopped after it.

    Args:
      callbacks: of the run.
      blocks: of all evaluations so far, in order.

    Returns:
      Whether one of them would have stopped the run.
    """
    stopped = [callback.replay(blocks) for callback in callbacks if hasattr(callback, "replay")]  # type: ignore[attr-defined]
    return any(stopped)


def stop_early(metric: str, *, patience: int = 5, minimum_change: float = 0.0, lower: bool | None = None) -> StopEarly:
    """A callback that stops a run after ``patience`` evaluations in a row without improvement.

    An evaluation improves if the mean over seeds is better than the best one before by more than ``minimum_change``.
    The evaluation before the first round does not count. Seeds whose value is NaN are left out of the mean, and a mean
    of no value is no improvement. All seeds stop together. In a sweep the cells that run together stop once the rule
    holds for each of them.

    A metric of test rows is allowed, but what was chosen by test rows looks better on them than on new ones: prefer
    ``average_valid_accuracy`` and ``average_valid_loss``, of validation rows.

    Args:
      metric: one of ``fljax.metrics.registry.OF_ONE_EVALUATION``. Those that compare with standalone models need
        ``reference=``.
      patience: a number of evaluations, at least 1.
      minimum_change: at least 0, in the units of the metric.
      lower: whether lower is better; None: as for sweeps (losses and numbers of opt-outs).

    Raises:
      ValueError: if an argument is out of range; in a run, if its evaluations do not have the metric.
    """
    if metric not in OF_ONE_EVALUATION:
        raise ValueError(unknown("metric", metric, OF_ONE_EVALUATION))
    if not is_whole(patience) or patience < 1:
        raise ValueError(f"expected patience to be a positive number of evaluations, got {patience!r}")
    if not 0 <= minimum_change < math.inf:
        raise ValueError(f"expected minimum_change to be a finite number of at least 0, got {minimum_change!r}")
    return StopEarly(metric, patience, minimum_change, is_lower_better(metric) if lower is None else lower)


def stop_when(reached: Callable[[Block], bool]) -> Callback:
    """Stops the run after the first block for which ``reached(block)`` is True.

    ``stop_when(lambda block: block.metrics["incentivised_participation_rate"].mean() > 0.5)`` needs ``reference=``.
    """
    return lambda block: bool(reached(block))


class StopEarly:
    """The callback of ``stop_early``; what it answers depends on the evaluations of the run so far alone.

    Attributes:
      metric: its name.
      history: ``(round, means)`` of every evaluation, with a mean over seeds for each cell of a sweep (one in a run).
    """

    def __init__(self, metric: str, patience: int, minimum_change: float, lower: bool) -> None:
        self.metric = metric
        self.history: list[tuple[int, list[float]]] = []
        self._patience, self._minimum_change, self._lower = patience, minimum_change, lower

    def __call__(self, block: Block) -> bool:
        """Adds the evaluation to the history; whether the run stops."""
        self._add(block)
        return self._is_over()

    def replay(self, blocks: Iterable[Block]) -> bool:
        """Sets the history to the evaluations of a run that goes on; whether the run had stopped after them.

        Args:
          blocks: in order; of each only ``round``, ``ran``, ``metrics`` and the seeds of ``state`` are read. A block of
            no rounds, the evaluation before the first one, is passed over.
        """
        self.history = []
        for block in blocks:
            if block.ran:
                self._add(block)
        return self._is_over()

    @property
    def reason(self) -> str:
        """Why the run stops, in words."""
        change = f" by more than {self._minimum_change:g}" if self._minimum_change else ""
        evaluations = f"{self._patience} evaluation" + ("s" if self._patience > 1 else "")
        best = best_place([means[0] for _, means in self.history], self._minimum_change, self._lower)
        words = f"{self.metric} has not improved{change} in {evaluations}"
        if best is None or len(self.history[0][1]) > 1:
            return words
        round, (mean,) = self.history[best]
        return f"{words}, best {mean:.4g} after round {round}"

    def _add(self, block: Block) -> None:
        if self.metric not in block.metrics:
            valid = ", ".join(name for name in OF_ONE_EVALUATION if name in block.metrics)
            raise ValueError(
                f"expected evaluations with {self.metric}, by which the run may stop early, got none; valid names are "
                f"{valid}"
            )
        seeds = len(np.unique(np.asarray(block.state.seed)))
        values = np.asarray(block.metrics[self.metric], float).reshape(-1, seeds)
        known = ~np.isnan(values)  # infinity counts, unlike in ``metrics.over_seeds``: a diverged seed does not improve
        count = known.sum(axis=-1)
        means = np.where(count > 0, np.where(known, values, 0.0).sum(axis=-1) / np.maximum(count, 1), math.nan)
        self.history.append((block.round, means.tolist()))

    def _is_over(self) -> bool:
        if not self.history:
            return False
        cells = zip(*(means for _, means in self.history), strict=True)
        return all(self._has_ended(means) for means in cells)

    def _has_ended(self, means: Sequence[float]) -> bool:
        best = best_place(means, self._minimum_change, self._lower)
        return len(means) - (0 if best is None else best + 1) >= self._patience


def best_place(values: Sequence[float], minimum_change: float, lower: bool) -> int | None:
    """The last place that is better than the best one before by more than ``minimum_change``; None if all are NaN."""
    sign = -1.0 if lower else 1.0
    best, place = -math.inf, None
    for at, value in enumerate(values):
        score = sign * value
        if not math.isnan(score) and (place is None or score > best + minimum_change):
            best, place = score, at
    return place


# The metrics of a block that progress shows, if present.
SHOWN = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "average_accuracy": "accuracy",
}


def print_progress(write: Callable[[str], object] = print) -> Callback:
    """Writes one line per block: rounds done, means over seeds of the main metrics, rounds per second, the time left.

    With ``reference=`` the first metric is the incentivised participation rate. The time left is that of rounds as fast
    as those of the block. Within a block nothing is known: its rounds and its evaluation are compiled programs.
    """

    def callback(block: Block) -> None:
        rate = block.ran / max(block.seconds, 1e-9)
        ahead = block.rounds - block.round
        left = f", {duration(ahead / rate)} left" if ahead > 0 and rate > 0 else ""
        whose = f"{block.label}: " if block.label else ""
        write(f"{whose}round {block.round} of {block.rounds}: {progress_of(block)}, {rate:.1f} rounds/s{left}")

    return callback


def progress_of(block: Block) -> str:
    """Means over seeds: ``IPR 0.312, IPR unseen 0.250, accuracy 0.833``; the loss if there is no accuracy."""
    means = {word: _mean(block.metrics[name]) for name, word in SHOWN.items() if name in block.metrics}
    if "average_accuracy" not in block.metrics:
        name = "average_loss" if "average_loss" in block.metrics else "test_loss"
        means["loss"] = _mean(block.metrics[name])
    return ", ".join(f"{word} {'none' if mean is None else f'{mean:.3f}'}" for word, mean in means.items())


def log_to(path: str | pathlib.Path) -> Callback:
    """Appends one JSON line per block: label, round, seconds, and every metric of every seed (means over clients)."""

    def callback(block: Block) -> None:
        line = {"label": block.label} if block.label else {}
        line |= {"round": block.round, "seconds": round(block.seconds, 3), "diverged": block.diverged}
        line |= {name: [_mean(row) for row in values] for name, values in block.metrics.items()}
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(line, allow_nan=False) + "\n")

    return going_on(str(path), callback)


def _mean(values: NumpyArray) -> float | None:
    """The mean of values that are not NaN; None if there are none, or if one is infinite (JSON has no infinity)."""
    # ``metrics.over_seeds`` leaves infinity out; a line about progress must not hide that a run diverges.
    known = np.asarray(values, float)[~np.isnan(values)]
    mean = float(known.mean()) if known.size else math.nan
    return mean if math.isfinite(mean) else None


@contextlib.contextmanager
def print_elapsed(
    what: str = "standalone models", *, every: float = 10.0, write: Callable[[str], object] = print
) -> Generator[None, None, None]:
    """Writes the time that has passed every few seconds, and at the end; for scripts and notebooks.

    ``with print_elapsed(): alone = fljax.standalone(...)`` writes ``standalone models: 10 s``. Standalone training is
    one compiled program, so that nothing is known about the time left: use it also around anything else that is silent.

    Args:
      what: the beginning of each line.
      every: seconds between two lines, above 0.
      write: called with each line, from a thread of its own.

    Raises:
      ValueError: if ``every`` is not positive.
    """
    if not every > 0:
        raise ValueError(f"expected a positive number of seconds between two lines, got {every!r}")
    began = time.perf_counter()
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(every):
            write(f"{what}: {duration(time.perf_counter() - began)}")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    write(f"{what}: done in {duration(time.perf_counter() - began)}")


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
    users.check_function("the tracker's", "(values, step=)", log, {}, **({"step": 0} if with_step else {}))
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


def formats() -> tuple[Any, Any, Any]:
    """What tensorboardX writes records with checksums by, and its modules of events and summaries."""
    try:
        from tensorboardX import RecordWriter
        from tensorboardX.proto import event_pb2, summary_pb2
    except ImportError:
        raise ValueError(
            "expected the package tensorboardX, which writes the files of TensorBoard, got none; "
            "pip install 'fljax[tensorboard]' installs it"
        ) from None
    return RecordWriter, event_pb2, summary_pb2


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
    formats()  # raises an error where they are not there
    home = pathlib.Path(folder)
    files: dict[str, _EventFile] = {}

    def write(block: Block) -> None:
        values: dict[str, list[tuple[str, float]]] = {}
        start = "/".join(map(file_name, _labels(label, block)))
        for whose, name, value in scalars_of(block).named(start, cells or block.cells, by_seed):
            values.setdefault(whose, []).append((name, value))
        for whose, numbers in values.items():
            if whose not in files:
                check_links(home, whose.split("/")[:1])
                files[whose] = _EventFile(home / whose, block.round)
            files[whose].add(block.round, numbers)

    return going_on(f"event files in {str(home)!r}", write, at_start=True, may_end=False)


class _EventFile:
    """One event file, complete after every ``add``."""

    # tensorboardX's own SummaryWriter hands events to a thread, and those in its queue are lost with the process.

    def __init__(self, folder: pathlib.Path, step: int) -> None:
        writer, self._events, self._summaries = formats()
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()  # a run that goes on soon after another must not write over its file
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{os.getpid()}.{now % 10**9}"
        self._writer = writer(str(folder / name))
        weakref.finalize(self, self._writer.close)  # with the callback, or when the process ends
        self._write(file_version="brain.Event:2")
        # It hides this step and later ones.
        session = self._events.SessionLog
        self._write(step=step, session_log=session(status=session.START))

    def add(self, step: int, values: Iterable[tuple[str, float]]) -> None:
        summary = self._summaries.Summary
        tagged = [summary.Value(tag=name, simple_value=value) for name, value in values]
        self._write(step=step, summary=summary(value=tagged))
        self._writer.flush()

    def _write(self, **content: Any) -> None:
        self._writer.write(self._events.Event(wall_time=time.time(), **content).SerializeToString())


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
