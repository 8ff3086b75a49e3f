"""What a traced program (a jaxpr) tells before anything is lowered: whether steps differ, and bytes read and written.

XLA's own count of bytes (``Lowered.cost_analysis``) is None with every plugin for an accelerator. A step holds less
than it moves, so the same number bounds a chunk by the memory of the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# Names that ``lax.platform_dependent`` gives to the platforms of JAX's backends.
_NAMES = {"gpu": ("gpu", "cuda", "rocm")}
# Turns of a loop whose number the program computes; only compared with the work outside the loop.
_TURNS = 16
_LOOPS = ("scan", "while")
# Operations that hold a function of two scalars; it is not called once but for each entry.
_ELEMENTWISE = ("reduce", "scatter", "select_and_scatter")
_FREE = ("reshape", "squeeze", "expand_dims", "stop_gradient", "platform_index")


def steps_differ(jaxpr: Any) -> bool:
    """Whether the program computes a loop's number of steps; False if this JAX writes jaxprs in an unknown form."""
    try:
        return _has_while(jaxpr)
    except (AttributeError, TypeError):
        return False


def step_bytes(jaxpr: Any, platform: str) -> int:
    """Bytes that one local step reads and writes, before fusion; 0 if this JAX writes jaxprs in an unknown form."""
    # The local step is one turn of the loop that moves the most in all its turns, or the code outside of loops.
    try:
        straight, loops = _moved_by(jaxpr, platform)
    except (AttributeError, TypeError, KeyError, IndexError, ValueError):
        return 0
    return max([_Loop(1, straight), *loops], key=lambda loop: loop.turns * loop.once).once


def is_all_true(jaxpr: Any, place: int) -> bool:
    """Whether a result of a traced program is written as an array of True; False where that is not known."""
    try:
        return _is_all_true(jaxpr, jaxpr.outvars[place])
    except (AttributeError, TypeError, KeyError, IndexError, ValueError):
        return False


def _is_all_true(jaxpr: Any, variable: Any) -> bool:
    (made,) = (eqn for eqn in jaxpr.eqns if any(each is variable for each in eqn.outvars))
    if made.primitive.name == "broadcast_in_dim":
        return bool(np.all(np.asarray(made.invars[0].val)))  # a literal; other values have no ``val``
    (inner,) = _inner(made)
    return _is_all_true(inner, inner.outvars[next(i for i, each in enumerate(made.outvars) if each is variable)])


def arguments_read(jaxpr: Any) -> list[bool]:
    """Which arguments the results may depend on; all if this JAX writes jaxprs in an unknown form."""
    try:
        return _read(jaxpr)
    except (AttributeError, TypeError, KeyError, ValueError):
        return [True] * len(jaxpr.invars)


def _read(jaxpr: Any) -> list[bool]:
    live = {id(variable) for variable in jaxpr.outvars}
    for eqn in reversed(jaxpr.eqns):
        if not eqn.effects and not any(id(variable) in live for variable in eqn.outvars):
            continue
        needed = [id(variable) in live for variable in eqn.outvars]
        live |= {id(variable) for variable, read in zip(eqn.invars, _read_by(eqn, needed), strict=True) if read}
    return [id(variable) in live for variable in jaxpr.invars]


def _read_by(eqn: Any, live: list[bool]) -> list[bool]:
    """Which arguments of an operation are read, by what its inner programs read; ``live`` results are needed."""
    inner, count = list(_inner(eqn)), len(eqn.invars)
    if eqn.primitive.name == "while":
        tests, turns = (eqn.params[name] for name in ("cond_nconsts", "body_nconsts"))
        test, turn = (_read(eqn.params[name].jaxpr) for name in ("cond_jaxpr", "body_jaxpr"))
        # A loop without turns gives back what it began with.
        carried = [any(some) for some in zip(test[tests:], turn[turns:], live, strict=True)]
        return [*test[:tests], *turn[:turns], *carried]
    if eqn.primitive.name == "cond":
        return [True, *(any(some) for some in zip(*map(_read, inner), strict=True))]
    if len(inner) == 1 and len(inner[0].invars) == count and eqn.params.get("length") != 0:
        return _read(inner[0])
    return [True] * count


class _Loop(NamedTuple):
    """A loop's number of turns, and the bytes that one turn moves."""

    turns: int
    once: int


def _moved_by(jaxpr: Any, platform: str) -> tuple[int, list[_Loop]]:
    """Bytes moved outside of loops, and the loops."""
    straight, loops = 0, list[_Loop]()

    def visit(jaxpr: Any) -> None:
        nonlocal straight
        for eqn in jaxpr.eqns:
            inner = [] if eqn.primitive.name.startswith(_ELEMENTWISE) else list(_inner(eqn))
            if eqn.primitive.name in _LOOPS:
                straight += sum(map(_bytes, eqn.outvars))  # among them what the turns stack up
                loops.append(_Loop(eqn.params.get("length", _TURNS), sum(_all(body, platform) for body in inner)))
            elif eqn.primitive.name == "cond":
                visit(_branch(eqn, inner, platform))
            elif inner:
                for called in inner:
                    visit(called)
            else:
                straight += _moved(eqn)

    visit(jaxpr)
    return straight, loops


def _all(jaxpr: Any, platform: str) -> int:
    """Bytes moved in all turns of all loops."""
    straight, loops = _moved_by(jaxpr, platform)
    return straight + sum(loop.turns * loop.once for loop in loops)


def _branch(eqn: Any, branches: list[Any], platform: str) -> Any:
    """The branch of the platform; of other conditions, the one that moves the most."""
    platforms = eqn.params.get("branches_platforms")
    if platforms is None:
        return max(branches, key=lambda branch: _all(branch, platform))
    names = _NAMES.get(platform, (platform,))
    places = [at for at, known in enumerate(platforms) if known is not None and set(known) & set(names)]
    return branches[places[0] if places else platforms.index(None)]


def _moved(eqn: Any) -> int:
    name, read, written = eqn.primitive.name, [*map(_bytes, eqn.invars)], sum(map(_bytes, eqn.outvars))
    if name in _FREE:
        return 0
    if name in ("gather", "dynamic_slice", "slice"):  # reads what it gives, not the whole operand
        return 2 * written
    if name == "dynamic_update_slice" or name.startswith("scatter"):
        return 2 * read[1 if name == "dynamic_update_slice" else 2]
    return sum(read) + written


def _bytes(variable: Any) -> int:
    aval = variable.aval
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 8)


def _has_while(jaxpr: Any) -> bool:
    return any(eqn.primitive.name == "while" or any(map(_has_while, _inner(eqn))) for eqn in jaxpr.eqns)


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield inner
