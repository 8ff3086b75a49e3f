"""An estimate of a traced program's memory, from its jaxpr, before compilation.

The estimate follows lifetimes: an array lives from the operation that makes it to the last operation that reads it.
Arrays that XLA does not store are not counted: elementwise results that XLA fuses into their readers (cheap ones that
read one large array are recomputed for each reader), results of loops and updates written in place over a buffer that
no later operation reads, and unused results.

The form of a jaxpr is private to JAX and changes between releases. So numbers of operands are derived from shapes, and
callers request an estimate through ``attempt``: a run continues without an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

# Operations that XLA fuses into their reader. Products, gathers, sorts and loops are not among them.
_FUSED_NAMES = (
    "abs add add_any and broadcast_in_dim ceil clamp concatenate convert_element_type copy cos div dynamic_slice "
    "eq erf exp exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt max min "
    "mul ne neg not or pad pow random_bits random_fold_in random_unwrap random_wrap reduce_and reduce_max "
    "reduce_or reduce_sum rem reshape rev round rsqrt select_n shift_left shift_right_logical sign sin slice "
    "sqrt square squeeze stop_gradient sub tan tanh transpose xor "
)
_FUSED = frozenset(_FUSED_NAMES.split())
# Fused operations that XLA recomputes for each of several readers, if they read at most one array of their size.
_CHEAP_NAMES = (
    "abs add add_any and broadcast_in_dim ceil clamp convert_element_type copy eq expand_dims floor ge gt iota le lt "
    "max min mul ne neg not or reshape round select_n sign slice squeeze sub transpose xor"
)
_CHEAP = frozenset(_CHEAP_NAMES.split())
# Operations whose result shares the memory of their operand.
_VIEWS = frozenset({"expand_dims", "reshape", "squeeze", "transpose"})
_LOOPS = frozenset({"while", "scan"})
_IN_PLACE = _LOOPS | {"dynamic_update_slice", "scatter", "scatter-add", "optimization_barrier"}
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint", "shard_map"}
)


def attempt(read: Callable[..., T], *arguments: Any) -> T | None:
    """``read(*arguments)`` on a jaxpr; None if this release of JAX writes jaxprs in an unknown form.

    All exceptions are caught: an estimate must never stop a run.
    """
    try:
        return read(*arguments)
    except Exception:
        return None


def peak_bytes(jaxpr: Any, donated: frozenset[int] = frozenset()) -> int:
    """The peak memory of a program in bytes, including its arguments.

    Args:
      jaxpr: the program's jaxpr, e.g. ``jax.make_jaxpr(f)(x).jaxpr`` or ``jax.jit(f).trace(x).jaxpr.jaxpr``.
      donated: positions of arguments whose memory the program may reuse.
    """
    kept = sum(_bytes(v) for i, v in enumerate(jaxpr.invars) if i not in donated)
    given = {v for i, v in enumerate(jaxpr.invars) if i in donated}
    return kept + sum(_bytes(v) for v in jaxpr.constvars) + _peak(jaxpr, given)


def made_bytes(jaxpr: Any) -> int:
    """The peak memory of a program in bytes, without its arguments."""
    return _peak(jaxpr, set())


def steps_differ(jaxpr: Any) -> bool:
    """Whether a loop's number of steps is computed by the program, so that it may differ between rows."""
    return any(eqn.primitive.name == "while" or any(map(steps_differ, _inner(eqn))) for eqn in jaxpr.eqns)


def _peak(jaxpr: Any, own: set[Any]) -> int:
    """Like ``peak_bytes``, counting the arrays that the program makes and its arguments in ``own``."""
    names: dict[Any, Any] = {}
    equations = list(_flat(jaxpr, names))
    results = {names.get(v, v) for v in map(_plain, jaxpr.outvars) if v is not None} - {None}
    equations = _needed(equations, results)
    readers: dict[Any, list[str]] = {}
    for eqn, read, _ in equations:
        for v in filter(None, read):
            readers.setdefault(v, []).append(eqn.primitive.name)
    roots: dict[Any, set[Any]] = {}  # the stored arrays that a reader of a fused value reads
    never: set[Any] = set()  # values that are fused into all of their readers

    def read_by(name: str, read: list[Any]) -> set[Any]:
        found: set[Any] = set()
        for v in filter(None, read):
            found |= roots[v] if v in never or (v in roots and name in _FUSED) else {v}
        return found

    last: dict[Any, int] = {}
    for place, (eqn, read, made) in enumerate(equations):
        name = eqn.primitive.name
        sources = read_by(name, read)
        for v in made:
            reader = readers.get(v, [])
            fused = name in _FUSED and _FUSED.issuperset(reader)
            again = name in _CHEAP and _reads_at_most_one(v, sources)
            if v in results:
                continue
            if (name in _VIEWS and len(reader) <= 1) or (fused and (len(reader) <= 1 or again)):
                never.add(v)
                roots[v] = sources
            elif again:
                roots[v] = sources  # for readers that it is fused into; other readers read the array
        for v in sources:
            last[v] = place
    end = len(equations)
    for v in results:
        last[v] = end

    live = {v: _bytes(v) for v in own}
    most = now = sum(live.values())
    for place, (eqn, read, made) in enumerate(equations):
        dying = [v for v in read_by(eqn.primitive.name, read) if last[v] == place and v in live]
        fresh = {v: _bytes(v) for v in made if v not in never and v in last}
        within = max((_peak_within(eqn, inner) for inner in _inner(eqn)), default=0)
        most = max(most, now + sum(fresh.values()) - _reused(eqn, read, dying, list(fresh)) + within)
        for v in dying:
            now -= live.pop(v)
        live |= fresh
        now += sum(fresh.values())
    return most


def _needed(equations: list[Any], results: set[Any]) -> list[Any]:
    """The equations that a result depends on; XLA drops the others."""
    wanted, kept = set(results), []
    for each in reversed(equations):
        eqn, read, made = each
        if eqn.effects or not wanted.isdisjoint(made):
            wanted.update(filter(None, read))
            kept.append(each)
    return kept[::-1]


def _reads_at_most_one(made: Any, sources: set[Any]) -> bool:
    """Whether ``sources`` have at most one array of about the size of ``made``, and no larger array."""
    size = _bytes(made)
    return sum(2 * _bytes(v) > size for v in sources) <= 1 and all(_bytes(v) <= size for v in sources)


def _reused(eqn: Any, read: list[Any], dying: list[Any], fresh: list[Any]) -> int:
    """Bytes of operands with their last read here whose memory the operation's results may reuse."""
    name, made = eqn.primitive.name, sum(map(_bytes, fresh))
    if name in _LOOPS:  # constants of the loop stay until its end; carried arrays stay in place
        first, count = _carried(eqn)
        turns = {*read[:first], *read[first + count :]}
        dying, made = [v for v in dying if v not in turns], sum(map(_bytes, eqn.outvars[:count]))
        made = min(made, sum(map(_bytes, fresh)))
    return min(sum(map(_bytes, dying)), made) if name in _IN_PLACE else 0


def _carried(eqn: Any) -> tuple[int, int]:
    """The position of the first carried argument of a loop, and the number of carried arguments.

    Both are found from shapes: arrays that a scan slices or stacks have one more axis outside the body than inside.
    """
    carried, sliced = len(eqn.outvars), 0
    if eqn.primitive.name == "scan":
        (body,) = _inner(eqn)
        carried -= sum(len(v.aval.shape) > len(w.aval.shape) for v, w in zip(eqn.outvars, body.outvars, strict=True))
        sliced = sum(len(v.aval.shape) > len(w.aval.shape) for v, w in zip(eqn.invars, body.invars, strict=True))
    return len(eqn.invars) - sliced - carried, carried


def _peak_within(eqn: Any, inner: Any) -> int:
    """Bytes inside one iteration of a loop, or one branch, beyond the operation's own operands and results."""
    name, condition = eqn.primitive.name, eqn.params.get("cond_jaxpr")
    if name not in _LOOPS or inner is getattr(condition, "jaxpr", condition):
        return _peak(inner, set())
    first, carried = _carried(eqn)
    if name == "while":  # constants of the condition are not arguments of the body
        first = len(inner.invars) - carried
    own = inner.invars[first:]  # carried arrays, and slices made in every iteration
    # Carried arrays are counted outside already, and may be overwritten by their new values.
    return _peak(inner, set(own)) - sum(map(_bytes, own[:carried]))


class _Array:
    """One array that a program makes, compared by identity."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def _flat(jaxpr: Any, names: dict[Any, Any]) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """(equation, operands, results) of each equation; literals are None; plain calls are expanded."""

    def look(atom: Any) -> Any:
        v = _plain(atom)
        return None if v is None else names.get(v, v)

    for eqn in jaxpr.eqns:
        inner = list(_inner(eqn))
        # A scan of one iteration counts as a plain call.
        once = eqn.primitive.name == "scan" and eqn.params.get("length") == 1
        if (once or eqn.primitive.name in _CALLS) and len(inner) == 1 and len(inner[0].invars) == len(eqn.invars):
            body = inner[0]
            mine = {v: look(atom) for v, atom in zip(body.invars, eqn.invars, strict=True)}
            yield from _flat(body, mine)
            for v, atom in zip(eqn.outvars, body.outvars, strict=True):
                plain = _plain(atom)
                names[v] = None if plain is None else mine.get(plain, plain)
            continue
        read = list(map(look, eqn.invars))
        # JAX shares one jaxpr among calls of a function with equal shapes, but each call makes its own arrays.
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
