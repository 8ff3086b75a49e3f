"""Python loops on concrete arrays, in place of compiled ones: what the engine does where ``jax.jit`` is off.

All functions of an algorithm run op by op, so a user's ``print``, debugger or exception meets numbers. Code of
algorithms that calls ``jax.eval_shape`` or ``jax.vmap`` itself still traces there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.results.records import Wire

# Whether NaN raises in the functions of an algorithm. The engine's own arrays have NaN where a client has no rows.
_NANS: ContextVar[bool] = ContextVar("nans", default=False)
# Bytes of messages by the name of a field of ``Wire``, found as they are sent.
_SENT: ContextVar[dict[str, int] | None] = ContextVar("sent", default=None)


def is_on() -> bool:
    """Whether ``jax.jit`` is off: by ``jax_disable_jit``, or in a run with ``Execution(clients="debug")``."""
    return bool(getattr(jax.config, "jax_disable_jit", False))


def nans_raise() -> bool:
    """Whether ``jax_debug_nans`` is on."""
    return bool(getattr(jax.config, "jax_debug_nans", False))


@contextmanager
def entered() -> Generator[None, None, None]:
    """Switches ``jax.jit`` off. ``jax_debug_nans`` then holds in the functions of algorithms alone."""
    nans, sent = _NANS.set(_NANS.get() or nans_raise()), _SENT.set({})
    try:
        with jax.disable_jit(), jax.debug_nans(False):
            yield
    finally:
        _NANS.reset(nans)
        _SENT.reset(sent)


def checked() -> AbstractContextManager[Any]:
    """While it is entered, NaN raises a FloatingPointError if the run asks for it."""
    return jax.debug_nans(True) if _NANS.get() and is_on() else contextlib.nullcontext()


def map_rows(function: Callable[[Any], Any], xs: PyTree) -> PyTree:
    """``function`` of every row of ``xs [count, ...]``, one after another; results are stacked."""
    return stacked([function(row) for row in _rows(xs)])


def map_all(function: Callable[[Any], Any], xs: PyTree) -> PyTree:
    """``jax.vmap(function)(xs)``; one row after another where ``jax.jit`` is off."""
    return map_rows(function, xs) if is_on() else jax.vmap(function)(xs)


def fold_rows(
    function: Callable[[Any], tuple[Any, Any]], add_up: Callable[[Any, Any], Any], xs: PyTree, cost: Array | None
) -> tuple[PyTree, PyTree]:
    """As ``fold_lanes``: the sums over all rows, and the kept results, stacked; rows of cost 0 are zeros."""
    # If all rows have cost 0, the first one is computed: nothing else has the shapes of the results.
    rows = list(_rows(xs))
    busy = [True] * len(rows)
    with contextlib.suppress(jax.errors.TracerArrayConversionError):  # under a vmap of the whole run
        busy = busy if cost is None else (np.asarray(cost) > 0).tolist()
    pairs = [function(row) if does else None for row, does in zip(rows, busy, strict=True)]
    usual = next((pair for pair in pairs if pair is not None), None)
    summand, result = usual if usual is not None else function(rows[0])
    nothing = trees.zeros_like(result)

    def summed(summand: Any, real: bool) -> Any:
        return add_up(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], summand), jnp.full(1, real))

    parts = [summed(pair[0], True) for pair in pairs if pair is not None]
    sums = functools.reduce(trees.add, parts) if parts else trees.zeros_like(summed(summand, False))
    return sums, stacked([nothing if pair is None else pair[1] for pair in pairs])


def rounds(
    step: Callable[[Any, Array], tuple[Any, Any]], state: PyTree, first: Array, count: Array, capacity: int
) -> tuple[PyTree, PyTree]:
    """The state after ``count`` rounds, and their records ``[capacity, ...]``."""
    records: list[PyTree] = []
    for turn in range(int(count)):
        state, info = step(state, first + turn)
        records.append(info)
    free = capacity - len(records)
    return state, jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, free), *[(0, 0)] * (leaf.ndim - 1))), stacked(records))


def shapes_of(function: Callable[[], PyTree]) -> PyTree:
    """A function's results, or only their shapes and dtypes: the function runs where ``jax.jit`` is off alone."""
    return function() if is_on() else jax.eval_shape(function)


def stacked(results: list[Any]) -> PyTree:
    """Equal trees as one tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *results)


def _rows(xs: PyTree) -> Iterator[PyTree]:
    for place in range(jax.tree.leaves(xs)[0].shape[0]):
        yield trees.take(xs, place)


def note_sent(names: Sequence[str], message: PyTree) -> None:
    """Notes the bytes of a message; the names are fields of ``Wire``. All messages of a kind have the same size."""
    sent = _SENT.get()
    if sent is not None:
        for name in names:
            sent.setdefault(name, trees.bytes_of(message))


class SentSoFar(Wire):
    """The bytes of messages that a run has sent when they are read; 0 of a kind that was never sent."""

    _sent: dict[str, int]

    @classmethod
    def begun(cls) -> SentSoFar:
        """A ``SentSoFar`` of the run of this context, whose messages are counted from now on."""
        wire = cls(0, 0, 0, 0)
        sent = _SENT.get()
        wire._sent = {} if sent is None else sent
        return wire

    def __getattribute__(self, name: str) -> Any:
        return self._sent.get(name, 0) if name in Wire._fields else super().__getattribute__(name)
