"""What a run is asked for (``Schedule``, ``Hooks``) and has so far: ``History``, and the best models in ``BestSoFar``.

Best models are on the host, so that the device holds no second state, and are chosen by validation rows only.

Gradients and inference passes of clients are counted while they train once more, since algorithms take several
gradients a step, train two models, or judge the models of others. A count that differs between rounds is that of one
round. Ballots, and code without ``fljax.training``, do not count.
"""

from __future__ import annotations

import bisect
import contextlib
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fljax import metrics
from fljax.core import processes, trees
from fljax.core.files import part_of
from fljax.core.names import shown
from fljax.core.values import is_whole
from fljax.engine.callbacks import Callback
from fljax.engine.checkpoints import Checkpoint, Series
from fljax.engine.devices.layout import Memory, of_this_process
from fljax.engine.programs.program import Inputs, Spec, algorithm_of
from fljax.engine.programs.shapes import Execution
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import Seeds, State, arrays_of, as_vectors, with_arrays
from fljax.metrics.registry import needs_of
from fljax.metrics.scores import Score
from fljax.protocol import Info, Labelled
from fljax.protocol.algorithm import usual_spacing
from fljax.results.non_finite import NonFinite
from fljax.training import KINDS, counting

OnMemory = Callable[[Memory], Any]
OnEvaluated = Callable[[int, State], Any]


class Stops(Sequence[int]):
    """Ascending numbers: those of a range, which takes no memory since a run may stop early, and some more."""

    def __init__(self, usual: range, more: Iterable[int]) -> None:
        self._usual = usual
        # By their place among all.
        others = sorted({number for number in more if number not in usual})
        below = (bisect.bisect_left(usual, number) for number in others)
        self._more = {count + place: number for place, (count, number) in enumerate(zip(below, others, strict=True))}

    def __len__(self) -> int:
        return len(self._usual) + len(self._more)

    def __getitem__(self, place: Any) -> Any:
        place = range(len(self))[place]
        return self._more[place] if place in self._more else self._usual[place - sum(at < place for at in self._more)]

    def __repr__(self) -> str:
        return f"{self._usual} and {self._more}"


class Schedule(NamedTuple):
    """Rounds, seeds, evaluations and execution of a run; ``simulate`` explains the fields."""

    rounds: int
    seeds: Seeds = (0,)
    evaluate_every: int | None = None
    evaluate_at: Sequence[int] = ()
    execution: Execution = Execution()
    non_finite: NonFinite = "freeze"
    extra_metrics: Sequence[str] = ()
    scores: tuple[Score, ...] = ()
    score_every: int | None = None
    clients_per_evaluation: int | None = None
    all_at: Sequence[int] = ()  # rounds done, among those of ``evaluate_at``, after which all clients are judged

    @property
    def spacing(self) -> int:
        """Rounds between two evaluations."""
        return usual_spacing(self.rounds) if self.evaluate_every is None else self.evaluate_every

    def needs(self, valid: bool) -> tuple[str, ...]:
        """What evaluations judge for ``extra_metrics``; ``valid``: whether some client has validation rows.

        Raises:
          ValueError: if a name is unknown, or no client has the validation rows that a metric is about.
        """
        needs = needs_of(self.extra_metrics)
        if any("_valid_" in name for name in needs) and not valid:
            about = ", ".join(name for name in self.extra_metrics if name.startswith("valid_"))
            raise ValueError(f"expected clients with validation rows for {about}, got none (valid_fraction keeps some)")
        return needs

    def evaluations(self, first: int) -> Sequence[int]:
        """The rounds done after which a run from round ``first`` is evaluated, its first evaluation left out."""
        given: Any = self.evaluate_at  # a user may give anything
        chosen = [*given] if isinstance(given, Iterable) else [given]
        if not isinstance(given, Iterable) or not all(map(is_whole, chosen)):
            raise ValueError(f"expected evaluate_at to be a list of whole numbers, got {shown(given)}")
        end = first + self.rounds
        usual = range(first + self.spacing, end, self.spacing)
        return Stops(usual, [done for done in (*chosen, end) if first < done <= end])


class Hooks(NamedTuple):
    """Callbacks and checkpoints of a run; ``simulate`` explains the fields."""

    callbacks: Sequence[Callback] = ()
    on_memory: OnMemory | None = None
    checkpoint: str | pathlib.Path | Checkpoint | None = None
    keep_best: bool | Collection[int] = False
    on_evaluated: OnEvaluated | None = None


def check_counted(offloaded: bool) -> None:
    """Raises a ValueError if clients cannot be counted: several processes share the run, or data stay on the host."""
    got = (
        "examples or client states on the host" if offloaded else "several processes" if processes.are_several() else ""
    )
    if got:
        raise ValueError(f"expected one process, with all data on its devices, to count gradient steps, got {got}")


def of_one_training(
    spec: Spec, inputs: Inputs, state: State, seeds: int, apart: bool = False
) -> dict[str, Int[np.ndarray, "seeds N"]]:
    """Gradients and inference passes by client of one local training; 0 for clients without training rows."""
    # ``apart``: whether scenarios may tell clients with as many training rows apart (effort, drift).
    inputs, state = jax.device_put((inputs, state), jax.local_devices()[0])
    size = np.asarray(inputs.federation.clients.train.size)
    size = np.broadcast_to(size, (seeds, size.shape[-1]))
    found = {kind: np.zeros(size.shape, np.int64) for kind in KINDS}
    clients = size.shape[-1]
    kind_of_client = size.astype(np.int64) * clients + (np.arange(clients) if apart else 0)

    def train(inputs: Inputs, state: State, seed: Array, client: Array) -> PyTree:
        algorithm, mine = algorithm_of(spec, inputs, seed, state.seed[seed])
        data, own = as_vectors(mine), trees.take(state, seed)
        chosen, kept = trees.take((data.clients, own.clients), client)
        zero = jnp.zeros((), jnp.int32)
        return train_one(algorithm, data, own.seed, own.round, own.server, chosen, zero, kept)

    with counting() as counts:
        run: Any = jax.jit(train)
        for alike in np.unique(kind_of_client[size > 0]):
            seed, client = np.argwhere(kind_of_client == alike)[0]
            counts.update(dict.fromkeys(KINDS, 0))
            jax.block_until_ready(run(inputs, state, jnp.int32(seed), jnp.int32(client)))
            jax.effects_barrier()
            for kind in KINDS:
                found[kind][kind_of_client == alike] = counts[kind]
    return found


_RECORDS, _EVALUATIONS = "records", "evaluations"
# Bytes of records from which they are long.
LONG = 2**28


class History:
    """Records of all rounds and all evaluations of several runs, in memory or in the folder of checkpoints."""

    def __init__(self, folder: pathlib.Path | None = None, rounds: int = 0, evaluations: int = 0) -> None:
        self._records = Series(None if folder is None else folder / _RECORDS, rounds)
        self._scores = Series(None if folder is None else folder / _EVALUATIONS, evaluations)
        self._axes: dict[str, dict[str, tuple[str, ...] | None]] = {_RECORDS: {}, _EVALUATIONS: {}}
        self._evaluated: list[int] = []

    def ran(self, info: Info, count: int) -> None:
        """Adds the records of ``count`` rounds, the first ones of ``info`` ``[runs, capacity, ...]``."""
        self._axes[_RECORDS] = _axes(info)
        self._records.append({name: _first(_values(entry), count) for name, entry in info.items()})
        if self._records.is_due:
            with contextlib.suppress(OSError):  # the next checkpoint will tell, and the rows stay in memory
                self._records.write()

    def measured(self, done: int, scores: Mapping[str, Labelled]) -> None:
        """Adds an evaluation ``[runs, ...]`` after ``done`` rounds."""
        self._axes[_EVALUATIONS] = _axes(scores)
        self._scores.append({name: _values(entry)[:, None] for name, entry in scores.items()})
        self._evaluated.append(done)

    def records(self) -> list[Info]:
        """The records as one block ``[runs, rounds, ...]``; empty without rounds."""
        values = self._records.read()
        axes = self._axes[_RECORDS]
        return [{name: _entry(values[name], axes[name]) for name in axes if name in values}] if values else []

    @property
    def is_long(self) -> bool:
        """Whether the records are in a folder and too many for the memory."""
        return self._records.written > 0 and self._records.nbytes > LONG

    def blocks(self) -> Iterator[Info]:
        """The records in blocks ``[runs, rounds, ...]``, of which few are in memory at once."""
        axes = self._axes[_RECORDS]
        for block in self._records.blocks():
            yield {name: _entry(block[name], axes[name]) for name in axes}

    def evaluations(self) -> list[tuple[int, dict[str, Labelled]]]:
        """``(rounds done, scores [runs, ...])`` of all evaluations."""
        values, axes = self._scores.read(), self._axes[_EVALUATIONS]
        return [
            (done, {name: Labelled(values[name][:, place], axes[name] or ()) for name in axes})
            for place, done in enumerate(self._evaluated)
        ]

    def saved(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and the description that ``resume`` needs; whole chunks are written to the folder."""
        arrays: dict[str, np.ndarray] = {}
        about: dict[str, Any] = {"evaluated": list(self._evaluated)}
        for name, series in ((_RECORDS, self._records), (_EVALUATIONS, self._scores)):
            series.write()
            arrays |= {f"{name}/{key}": values for key, values in series.rest().items()}
            told = {"written": series.written, "chunk": series.chunk, "checksums": dict(series.checksums)}
            about[name] = told | {"axes": self._axes[name]}
        return arrays, about

    def __reduce__(self) -> Any:
        """Pickles all of it; the copy is in memory."""
        return _in_memory, (self._axes, self._evaluated, self._records.read(), self._scores.read())

    def fill(self, axes: Any, evaluated: list[int], records: dict[str, Any], scores: dict[str, Any]) -> History:
        """Takes everything from another history; returns itself."""
        self._axes, self._evaluated = axes, evaluated
        self._records.append(records)
        self._scores.append(scores)
        return self

    @classmethod
    def resume(
        cls,
        folder: pathlib.Path,
        rounds: int,
        evaluations: int,
        arrays: Mapping[str, np.ndarray],
        about: Mapping[str, Any],
    ) -> History:
        """The history of a checkpoint; raises OSError, ValueError or KeyError if the folder lacks what it needs."""
        history = cls()
        history._evaluated = [int(done) for done in about["evaluated"]]

        def series(name: str, length: int) -> Series:
            told = about[name]
            history._axes[name] = {key: None if axes is None else tuple(axes) for key, axes in told["axes"].items()}
            rows = {key: arrays[f"{name}/{key}"] for key in history._axes[name] if f"{name}/{key}" in arrays}
            return Series.resume(folder / name, length, told["written"], told["chunk"], told["checksums"], rows)

        history._records, history._scores = series(_RECORDS, rounds), series(_EVALUATIONS, evaluations)
        return history


def _in_memory(*parts: Any) -> History:
    return History().fill(*parts)


def _values(entry: Any) -> np.ndarray:
    """The values in a dtype of NumPy: bfloat16 becomes float32."""
    values = np.asarray(entry.values if isinstance(entry, Labelled) else entry)
    return values.astype(np.float32) if values.dtype.kind == "V" else values


def _first(values: np.ndarray, count: int) -> np.ndarray:
    """The first rows; copied if there are others, whose memory is then free."""
    return values if values.shape[1] == count else values[:, :count].copy()


def _axes(info: Mapping[str, Any]) -> dict[str, tuple[str, ...] | None]:
    return {name: entry.dimensions if isinstance(entry, Labelled) else None for name, entry in info.items()}


def _entry(values: np.ndarray, axes: tuple[str, ...] | None) -> Any:
    return values if axes is None else Labelled(values, axes)


_STATE, _ROUND, _VALUE = "state", "round", "value"


def criterion(scores: Mapping[str, Labelled]) -> tuple[np.ndarray, bool]:
    """The number of each run by which its best models are chosen, ``[runs]``, and whether lower is better."""
    # It is of validation rows, never of test rows.
    lower = "valid_accuracy" not in scores
    values = np.asarray(scores["valid_loss" if lower else "valid_accuracy"].values)
    return np.asarray(metrics.average_accuracy(values)), lower


class BestSoFar:
    """Keeps the best models of each run, and calls a function after every evaluation."""

    # ``best`` may be the numbers of rounds done of the evaluations that count.

    def __init__(self, best: bool | Collection[int] = False, on_evaluated: OnEvaluated | None = None) -> None:
        self._counting = None if isinstance(best, bool) else frozenset(best)
        self._on = best if isinstance(best, bool) else True
        self._on_evaluated = on_evaluated
        self._state: dict[str, np.ndarray] = {}
        self._round = self._value = np.zeros(0)

    @property
    def is_on(self) -> bool:
        """Whether the best models are kept."""
        return self._on

    def check(self, spec: Spec) -> None:
        """Raises a ValueError if no client has rows by which models could be chosen."""
        if self._on and not spec.valid:
            raise ValueError(
                "expected clients with validation rows, by which the best models are chosen, got none; set "
                "valid_fraction (data.valid_fraction in a config)"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a checkpoint and the run that resumes it must have in common."""
        if not self._on:
            return {}
        return {"keep_best": True if self._counting is None else sorted(self._counting)}

    def begin(self) -> None:
        """Forgets the best models; called when a run begins, also anew with a smaller layout."""
        self._state = {}

    def evaluated(self, done: int, scores: Mapping[str, Labelled], state: State) -> None:
        """Takes the models of an evaluation if they are better: of equal values the first stays; NaN is never best."""
        state = of_this_process(state)
        if self._on_evaluated is not None and processes.is_first():
            self._on_evaluated(done, state)
        if not self._on or not (self._counting is None or done in self._counting or not self._state):
            return
        value, lower = criterion(scores)
        if not self._state:  # also where no value is finite
            self._state = {name: np.array(values) for name, values in arrays_of(state).items()}
            self._round = np.full(value.shape, done, np.int32)
            self._value = np.where(np.isfinite(value), value, np.nan)
            return
        ahead = value < self._value if lower else value > self._value
        better = np.isfinite(value) & (ahead | np.isnan(self._value))
        if not better.any():
            return
        # New arrays, since a checkpoint of the old ones may be being written.
        self._state = {name: _rows(better, values, self._state[name]) for name, values in arrays_of(state).items()}
        self._round = np.where(better, np.int32(done), self._round)
        self._value = np.where(better, value, self._value)

    def saved(self) -> dict[str, np.ndarray]:
        """The arrays that ``resume`` needs."""
        if not self._state:
            return {}
        state = {f"{_STATE}/{name}": values for name, values in self._state.items()}
        return state | {_ROUND: self._round, _VALUE: self._value}

    def resume(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on with the arrays of a checkpoint."""
        if self._on and arrays:
            self._state = part_of(arrays, f"{_STATE}/")
            self._round, self._value = arrays[_ROUND], arrays[_VALUE]

    def result(self, like: State) -> tuple[State, np.ndarray, np.ndarray] | None:
        """The best state of all runs, the rounds after which it was, and its values; ``like`` has its structure."""
        return (with_arrays(like, self._state), self._round, self._value) if self._state else None


def _rows(chosen: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    merged = old.copy()
    merged[chosen] = new[chosen]
    return merged
