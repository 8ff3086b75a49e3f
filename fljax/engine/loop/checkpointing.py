"""Checkpoints of ``simulate``: when they are due, what they hold, and how a run goes on after one.

The layout is stored, too ("trial" is not timed again), so that results are the same bits. A checkpoint that cannot be
written stops nothing. The reason is noted once, and the next one is tried at its time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import re
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fljax.core import processes, sameness, trees
from fljax.core.files import part_of
from fljax.data.arrays import checked_parts
from fljax.engine.checkpoints import Checkpoint, Saved, Stopped, Store, checksum
from fljax.engine.devices.layout import Layout, is_there, of_this_process
from fljax.engine.loop.history import History
from fljax.engine.programs.program import Inputs, Spec, is_on_cores
from fljax.engine.programs.shapes import Execution
from fljax.engine.rounds.states import State, arrays_of
from fljax.protocol import Federation
from fljax.training import RateSchedule

# Seconds after which a run with checkpoints looks whether one is due or a stop is asked for; a longer round is awaited.
# Programs of several CPU devices end after as long, with or without checkpoints.
PIECE = 5.0
# A run waits for its checkpoints at most one part in so many of its time.
SHARE = 40
_STATE, _BEST, _CHECKSUM = "state", "best", "checksum of "
# The modules in ``fljax.room.module.function``, ``....Class.method`` or ``....function.<locals>.inner``.
_HOME = re.compile(r"\b(fljax\.[a-z]+\.)(?:[a-z_]\w*\.)+(?=(?:[A-Z]\w*\.)*\w+(?:\.<locals>|[^\w.]|$))")
# What a state and a history are made for: nobody goes on with others, by force either.
_EVALUATIONS = ("evaluate_every", "evaluate_at", "keep_best", "extra metrics", "scores", "score_every")
_RUNS = ("fljax", "rounds", "seeds", "checksum of initial states", "runs", "measure", "checksum of members", "moments")
_FIXED = frozenset((*_EVALUATIONS, "clients_per_evaluation", "all_at", *_RUNS))


class Position(NamedTuple):
    """How far a run is."""

    first: int  # the round in which it began
    done: int  # rounds
    ended: bool  # whether a callback has stopped it
    seconds: dict[str, float]  # of its work so far, by purpose
    memory: int | None  # bytes of each device; None where XLA does not tell


class Resumed(NamedTuple):
    """What a checkpoint gives back."""

    position: Position
    state: dict[str, np.ndarray]  # by path
    history: History
    layout: Layout | None  # None unless it was asked for in the same way and this machine has its devices
    best: dict[str, np.ndarray]  # of ``BestSoFar.saved``; empty if the best models were not kept
    forced: str = ""  # sentences about what differed, where it went on by force


class CheckpointKeeper:
    """Saves a run's checkpoints and gives back the newest one; without settings it keeps nothing."""

    # Process 0 has the folder, and says when a checkpoint is due. Any process may be asked to stop.

    def __init__(
        self,
        settings: Checkpoint | None,
        identity: Callable[[], dict[str, Any]],
        rounds: int,
        evaluations: int,
        execution: Execution,
    ) -> None:
        self._settings = settings
        self._execution = _plain(execution._asdict())
        self._lengths = rounds, evaluations
        self.must_stop = False  # whether the run was asked to stop when it last looked
        self.forced = ""
        self._pace = 1
        processes.check_same(lambda: {"checkpoint": settings is not None, **identity()})
        if settings is None:
            return
        self._folder = pathlib.Path(settings.folder)
        self._identity = identity()
        self._store = Store(self._folder / "rounds", settings.keep, self.note) if processes.is_first() else None
        self._next = time.perf_counter() + settings.every

    def note(self, words: str) -> None:
        """Tells the user."""
        if self._settings is not None and self._settings.note is not None:
            self._settings.note(words)

    def warn(self, words: str) -> None:
        """Tells the user, or gives a RuntimeWarning if nobody listens."""
        if self._settings is None or self._settings.note is None:
            warnings.warn(words, RuntimeWarning, stacklevel=4)
        self.note(words)

    @property
    def records(self) -> pathlib.Path | None:
        """Where long records are at the end; None without checkpoints."""
        if self._settings is None:
            return None
        return pathlib.Path(self._settings.records or self._folder / "records.zarr")

    def history(self) -> History:
        """A new history."""
        return History(None if self._settings is None or self._store is None else self._folder, *self._lengths)

    def newest(self, platform: str) -> Resumed | None:
        """The newest checkpoint of this run; None if there is none."""
        resumed = None if self._settings is None else processes.agreed(lambda: self._newest(platform))
        self.forced = "" if resumed is None else resumed.forced
        return resumed

    def _newest(self, platform: str) -> Resumed | None:
        assert self._store is not None
        assert self._settings is not None
        histories, force = list[History](), self._settings.force

        def usable(saved: Saved) -> None:
            if not _refused(saved.about["identity"], self._identity, force):  # else the refusal comes below
                histories.append(History.resume(self._folder, *self._lengths, saved.arrays, saved.about["history"]))

        saved = self._store.newest(usable)
        self._store.close()  # whatever happens before the first checkpoint is saved
        if saved is None:
            return None
        differ = check_identity(saved.about["identity"], self._identity, self._folder, self.note, force)
        position = Position(**saved.about["position"])
        state, best = (part_of(saved.arrays, f"{kind}/") for kind in (_STATE, _BEST))
        self.note(f"goes on after round {position.done} of {position.first + self._lengths[0]}, from a checkpoint")
        forced = sameness.forced_in(saved.about.get(sameness.FORCED, ""), differ)
        return Resumed(position, state, histories[-1], self._layout(saved.about, platform), best, forced)

    def _layout(self, about: Mapping[str, Any], platform: str) -> Layout | None:
        layout = Layout(**about["layout"])
        same = about["execution"] == self._execution
        if same and layout.platform == platform and is_there(layout.devices):
            return layout
        why = "this machine has other devices" if same else "another execution is asked for"
        self.note(f"{why} than in the checkpoint: results are equal up to rounding")
        return None

    def pace(self, most: int, layout: Layout) -> int:
        """Number of rounds, up to ``most``, until the next look at the time."""
        return min(most, self._pace) if self._is_paced(layout) else most

    def _is_paced(self, layout: Layout) -> bool:
        return self._settings is not None or is_on_cores(layout)

    def ran(self, rounds: int, seconds: float, layout: Layout) -> None:
        """Learns how long rounds take."""
        if self._is_paced(layout):
            piece = PIECE if self._settings is None else min(PIECE, self._settings.every)
            fitting = int(rounds * piece / max(seconds, 1e-9))
            self._pace = processes.agreed(lambda: max(1, min(fitting, 8 * rounds)))

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint should be saved now."""
        if self._settings is None:
            return False
        asked = self._settings.stop is not None and self._settings.stop.made
        ready = time.perf_counter() >= self._next and self._store is not None and not self._store.is_busy
        is_time = self._settings.every == 0 or ready  # if it is 0, the run waits for the checkpoint before
        stops, due = zip(*processes.gathered((asked, is_time)), strict=True)
        self.must_stop = any(stops)
        return self.must_stop or due[0]

    def save(
        self, position: Position, state: State, history: History, layout: Layout, best: Mapping[str, np.ndarray]
    ) -> None:
        """Begins to write a checkpoint."""
        if self._settings is None or self._store is None:
            return
        began = time.perf_counter()
        try:
            recorded, about = history.saved()
        except OSError as error:
            self._store.tell_failure(error)
            self._next = time.perf_counter() + self._settings.every
            return
        # Copies, since the next block overwrites the state.
        arrays = {f"{_STATE}/{name}": np.array(values) for name, values in arrays_of(of_this_process(state)).items()}
        arrays |= {f"{_BEST}/{name}": values for name, values in best.items()}
        told = {
            "identity": self._identity,
            "position": position._asdict(),
            "history": about,
            "layout": layout._asdict(),
            "execution": self._execution,
            sameness.FORCED: self.forced,
        }
        self._store.save(position.done, arrays | recorded, told)
        now = time.perf_counter()
        self._next = now + max(self._settings.every, SHARE * (now - began) if self._settings.every else 0.0)

    @contextmanager
    def watching(self) -> Generator[None, None, None]:
        """Requests to stop are heard while this is entered; at the end the last checkpoint is on the disk."""
        if self._settings is None:
            yield
            return
        stop = self._settings.stop
        with nullcontext() if stop is None else stop.listening():
            try:
                yield
            finally:
                if self._store is not None:
                    self._store.close()

    def stopped(self, position: Position, end: int) -> Stopped:
        """The error of a run that stops after a checkpoint."""
        return Stopped(position.done, end, processes.agreed(self._saved))

    def _saved(self) -> int | None:
        """The round of the newest checkpoint, once it is on the disk."""
        if self._store is None:
            return None
        self._store.close()
        return self._store.saved


def identity_of(
    spec: Spec, inputs: Inputs, seeds: Sequence[int], rounds: int, initial: State | None, functions: Any, **numbers: Any
) -> dict[str, Any]:
    """What two runs must have in common, so that one may go on after the other; the code of ``functions`` counts."""
    from fljax.core.version import __version__

    identity = {"fljax": __version__, "rounds": rounds, "seeds": list(seeds), **numbers}
    identity |= {"algorithm": _named(spec), "non_finite": spec.non_finite}
    identity |= _of_functions(spec)
    if spec.extra:  # checkpoints hold evaluations
        identity["extra metrics"] = list(spec.extra)
        identity[f"{_CHECKSUM}what clients require"] = checksum_of(inputs.required)
    identity[f"{_CHECKSUM}the data"] = checksum_of((inputs.federation, _capacities(inputs.federation)))
    identity[f"{_CHECKSUM}numbers of the algorithm"] = checksum_of((inputs.traced, inputs.by_seed))
    identity[f"{_CHECKSUM}initial states"] = 0 if initial is None else checksum_of(initial)
    return _plain(identity | sameness.record(sameness.codes_of((spec.build, spec.static, functions))))


def check_identity(
    there: Mapping[str, Any], here: Mapping[str, Any], folder: pathlib.Path, note: Callable[[str], Any], force: bool
) -> str:
    """What differs from a saved run, as a sentence; a ValueError without ``force``, or if no force helps."""
    refused = _refused(there, here, force)
    if refused:
        first, *others = refused
        more = f", and so do {', '.join(name.removeprefix(_CHECKSUM) for name in others)}" if others else ""
        helps = "" if _FIXED & refused.keys() else "; --force or force=True goes on, and the results say so"
        raise ValueError(
            f"expected the run of the checkpoints in {str(folder)!r}, got another one: {refused[first]}{more} "
            f"(with another folder a run begins anew{helps})"
        )
    phrases = _refused(there, here, False)
    earlier = () if there["fljax"] == here["fljax"] else (f"fljax {there['fljax']} wrote the checkpoints",)
    differ = sameness.Differences(tuple(phrases.values()), (*earlier, *sameness.compared(there, here).noted))
    for words in differ.sentences:
        note(words)
    return differ.sentence


def _refused(there: Mapping[str, Any], here: Mapping[str, Any], force: bool) -> dict[str, str]:
    """Phrases about all by which a run is refused, by name."""
    found, here = dict[str, str](), sameness.without_later(there, here)
    for name in {**there, **here}:
        if sameness.is_recorded(name) or (force and name not in _FIXED):
            continue
        if _without_homes(there.get(name)) == _without_homes(here.get(name)):
            continue
        if name == "fljax" and sameness.goes_on(there.get(name), any(map(sameness.is_recorded, there))):
            continue
        found[name] = f"{name} is {there.get(name, 'not set')} there and {here.get(name, 'not set')} here"
        if name.startswith(_CHECKSUM):
            found[name] = f"{name.removeprefix(_CHECKSUM)} differ"
    return found | ({} if force else {words: words for words in sameness.compared(there, here).changed})


def _without_homes(value: Any) -> Any:
    """A text without the modules of fljax's functions, which move inside their rooms between versions."""
    return _HOME.sub(r"\1", value) if isinstance(value, str) else value


def plan_identity(spec: Spec, inputs: Inputs) -> dict[str, Any]:
    """What two plans must have in common, so that one may use the models of the other."""
    # Values by seed and what functions compute are not compared, and neither are the modules of functions: a builder
    # may have moved from a notebook to a file.
    numbers = [jnp.asarray(leaf) for leaf in inputs.traced]
    return _plain(_of_functions(spec) | {f"{_CHECKSUM}numbers of the algorithm": checksum_of(numbers)})


def _of_functions(spec: Spec) -> dict[str, Any]:
    # An Algorithm, whose functions hold its hyper-parameters; or builders, which may be partial.
    build = getattr(spec.build, "algorithm", spec.build)
    return {f"{_CHECKSUM}numbers in the algorithm's functions": checksum_of(_held(build, set()))} | _options(spec)


def _capacities(federation: Federation) -> np.ndarray:
    """The lengths of the longest lists, which are static where lists are stored one after another."""
    groups = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    return np.array([rows.index.shape[-1] for group in groups for rows in group.parts.values()])


def checksum_of(tree: PyTree) -> int:
    """A checksum of all leaves: shapes, dtypes and bytes."""
    leaves = [np.asarray(leaf) for leaf in arrays_of(tree).values()]
    described = json.dumps([[array.dtype.name, array.shape] for array in leaves])
    arrays = [np.frombuffer(described.encode(), np.uint8), *leaves]
    return checksum(part for array in arrays for part in checked_parts(array))


def _named(spec: Spec) -> str:
    """The functions of a plan by name."""
    build: Any = spec.build
    parts = jax.tree.leaves(tuple(build) if isinstance(build, tuple) else getattr(build, "algorithm", build))
    return ", ".join(dict.fromkeys(map(_name, parts)))


def _options(spec: Spec) -> dict[str, Any]:
    """The plain values among the static arguments, by path; functions have no lasting name."""
    arguments = jax.tree.unflatten(spec.structure, spec.static)
    options = jax.tree_util.tree_leaves_with_path(arguments, is_leaf=lambda value: isinstance(value, RateSchedule))
    found = {trees.path_of(path): leaf for path, leaf in options if isinstance(leaf, int | str | bool | RateSchedule)}
    return {path: repr(leaf) if isinstance(leaf, RateSchedule) else leaf for path, leaf in found.items()}


def _held(value: Any, seen: set[int]) -> list[Any]:
    """Numbers, texts and arrays that functions hold, in closures and partials, in a fixed order."""
    if isinstance(value, str | bool | int | float):
        return [np.frombuffer(repr(value).encode(), np.uint8)]
    if isinstance(value, np.ndarray | jax.Array):
        return [value]
    if isinstance(value, type) or id(value) in seen:  # a class holds nothing; that of functions only describes them
        return []
    seen.add(id(value))
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, tuple | list):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    else:
        parts = list(getattr(value, "__defaults__", None) or ())
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # a cell that is still empty
                parts.append(cell.cell_contents)
    return [number for part in parts for number in _held(part, seen)]


def _name(value: Any) -> str:
    """Where a function is defined; a partial's own function."""
    function = getattr(value, "func", value)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(value).__name__)}"


def function_name(function: Any) -> str:
    """Where a function is defined, also inside a tuple or a partial, and a checksum of the numbers that it holds."""
    parts = [part for part in function if callable(part)] if isinstance(function, tuple) else []
    name, held = ", ".join(map(_name, [*parts] or [function])), _held(function, set())
    return f"{name} ({checksum_of(held):08x})" if held else name


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value, default=str))
