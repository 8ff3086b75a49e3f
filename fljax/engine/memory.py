"""What a traced program will hold in memory, from its jaxpr: before anything is compiled.

The count follows lifetimes: an array lives from the operation that makes it to the last that reads it. What XLA does
without writing it down is not counted: operations on single entries that one other operation reads (it fuses them) and
loops and updates of a buffer whose old value nobody reads again (it writes in place).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

# Operations that XLA computes inside the one that reads them. Products, gathers, sorts and loops are not.
_FUSED_NAMES = (
    "abs add add_any and broadcast_in_dim ceil clamp concatenate convert_element_type copy cos div dynamic_slice "
    "eq erf exp exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt max min "
    "mul ne neg not or pad pow random_bits random_fold_in random_unwrap random_wrap reduce_and reduce_max "
    "reduce_or reduce_sum rem reshape rev round rsqrt select_n shift_left shift_right_logical sign sin slice "
    "sqrt square squeeze stop_gradient sub tan tanh transpose xor "
)
_FUSED = frozenset(_FUSED_NAMES.split())
# Whoever reads them reads the original.
_VIEWS = frozenset({"expand_dims", "reshape", "squeeze", "transpose"})
_IN_PLACE = frozenset({"while", "scan", "dynamic_update_slice", "scatter", "scatter-add", "optimization_barrier"})
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint", "shard_map"}
)


def peak_bytes(jaxpr: Any, donated: frozenset[int] = frozenset()) -> int:
    """The most bytes that a program holds at once, its arguments included.

    Args:
      jaxpr: of the program, e.g. ``jax.make_jaxpr(f)(x).jaxpr`` or ``jax.jit(f).trace(x).jaxpr.jaxpr``.
      donated: positions of arguments whose memory the program may use again.
    """
    kept = sum(_bytes(v) for i, v in enumerate(jaxpr.invars) if i not in donated)
    given = {v for i, v in enumerate(jaxpr.invars) if i in donated}
    return kept + sum(_bytes(v) for v in jaxpr.constvars) + _peak(jaxpr, given)


def made_bytes(jaxpr: Any) -> int:
    """The most bytes that a program holds at once of what it makes itself, beside its arguments."""
    return _peak(jaxpr, set())


def steps_differ(jaxpr: Any) -> bool:
    """Whether some loop takes a number of steps that the program computes, so that rows may differ in it."""
    return any(eqn.primitive.name == "while" or any(map(steps_differ, _inner(eqn))) for eqn in jaxpr.eqns)


def _peak(jaxpr: Any, own: set[Any]) -> int:
    """As ``peak_bytes``, of what the program makes itself and of its arguments in ``own``."""
    names: dict[Any, Any] = {}
    equations = list(_flat(jaxpr, names))
    readers: dict[Any, list[str]] = {}
    for eqn, read, _ in equations:
        for v in read:
            readers.setdefault(v, []).append(eqn.primitive.name)
    results = {names.get(v, v) for v in map(_plain, jaxpr.outvars) if v is not None} - {None}
    roots: dict[Any, set[Any]] = {}  # arrays that are really read where a fused value is
    last: dict[Any, int] = {}
    for place, (eqn, read, made) in enumerate(equations):
        sources = set().union(*(roots.get(v, {v}) for v in read)) if read else set()
        for v in made:
            reader = readers.get(v, [])
            views = eqn.primitive.name in _VIEWS and len(reader) <= 1
            fused = eqn.primitive.name in _FUSED and len(reader) <= 1 and _FUSED.issuperset(reader)
            if (views or fused) and v not in results:
                roots[v] = sources
        for v in sources:
            last[v] = place
    end = len(equations)
    for v in results:
        for source in roots.get(v, {v}):
            last[source] = end

    live = {v: _bytes(v) for v in own}
    most = now = sum(live.values())
    for place, (eqn, read, made) in enumerate(equations):
        touched = set().union(*(roots.get(v, {v}) for v in read)) if read else set()
        dying = [v for v in touched if last[v] == place and v in live]
        fresh = {v: _bytes(v) for v in made if v not in roots and v in last}
        within = max((_peak(inner, set()) for inner in _inner(eqn)), default=0)
        reused = min(sum(live[v] for v in dying), sum(fresh.values())) if eqn.primitive.name in _IN_PLACE else 0
        most = max(most, now + sum(fresh.values()) - reused + within)
        for v in dying:
            now -= live.pop(v)
        live |= fresh
        now += sum(fresh.values())
    return most


class _Array:
    """One array that a program makes; the same only as itself."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def _flat(jaxpr: Any, names: dict[Any, Any]) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """(equation, what it reads, what it makes), with plain calls opened."""

    def look(atom: Any) -> Any:
        v = _plain(atom)
        return None if v is None else names.get(v, v)

    for eqn in jaxpr.eqns:
        inner = list(_inner(eqn))
        if eqn.primitive.name in _CALLS and len(inner) == 1 and len(inner[0].invars) == len(eqn.invars):
            body = inner[0]
            mine = {v: look(atom) for v, atom in zip(body.invars, eqn.invars, strict=True)}
            yield from _flat(body, mine)
            for v, atom in zip(eqn.outvars, body.outvars, strict=True):
                plain = _plain(atom)
                names[v] = None if plain is None else mine.get(plain, plain)
            continue
        read = [v for v in map(look, eqn.invars) if v is not None]
        # JAX keeps one jaxpr for all calls of a function on like arguments: each call makes arrays of its own.
        names |= {v: _Array(v.aval) for v in eqn.outvars}
        yield eqn, read, [names[v] for v in eqn.outvars]


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def _plain(atom: Any) -> Any:
    """The variable; None for a literal."""
    return None if hasattr(atom, "val") else atom


def _bytes(variable: Any) -> int:
    aval = variable.aval
    if not hasattr(aval, "shape"):
        return 0
    size = getattr(aval.dtype, "itemsize", 8)
    return math.prod(aval.shape) * int(np.maximum(size, 1))
