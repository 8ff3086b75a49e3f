"""What a callback is: it is called with a Block, what is known after some rounds of a run.

An exception of a callback (also KeyboardInterrupt) ends the run, and has the results until then in ``results``.
Who continues a run calls ``replay(callbacks, blocks)`` once before the next block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.core import processes, users
from fljax.core.errors import attach, in_words
from fljax.core.names import shown
from fljax.engine.rounds.states import State


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
        users.check("the callback", "(block)", callback, None)
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
