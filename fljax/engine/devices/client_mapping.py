"""Which device computes which client: maps functions of one client over clients, side by side and one after another.

A chunk is the clients that one device trains side by side; each client of a chunk has a lane. The functions of one
client run inside a ``shard_map``, where loops differ in length; XLA's partitioner divides the rest. The same layout
gives the same bits; others add in another order. Clients of a chunk have similar sizes: the longest decides its steps.

A traced program (a jaxpr) says before it is lowered which arguments it reads, whether steps differ, and how many bytes
it reads and writes. XLA's own count (``Lowered.cost_analysis``) is None with every plugin for an accelerator. A step
holds less than it moves, so the same number bounds a chunk by the memory of the device.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Int, PyTree

from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.layout import AXIS, divide, division, mesh

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


# Bytes of the rows of clients that one of several devices gets at a time.
BLOCK = 2**26


class Picked(NamedTuple):
    """A table, and the rows of it that each client needs: ``table[rows[r]]``. Devices get them block by block."""

    # The rows of a whole cohort may be many times the table.

    table: Any
    rows: Int[Array, "count M"]


def map_lanes(
    function: Callable[[Any], Any],
    xs: PyTree,
    lanes: int,
    devices: int = 1,
    cost: Int[Array, " count"] | None = None,
    *,
    skip: bool = True,
) -> PyTree:
    """Maps over the leading axis of ``xs``, ``lanes`` at a time on each device; results are in the order of ``xs``."""
    # Rows of similar ``cost`` share a chunk, and devices get similar total costs. With ``skip``, chunks of cost 0 have
    # results of zero; under ``vmap`` it must be False: the loop would copy all results in every iteration.
    # With several ``devices``, which need a trace, leaves of ``xs`` but the first may be ``Picked``.
    count = jax.tree.leaves(xs)[0].shape[0]
    if eager.is_on() and count:
        return eager.map_rows(function, xs)
    if count == 0 or (devices == 1 and cost is None):
        lanes = max(1, min(lanes, count))
        if lanes >= count != 1:
            return jax.vmap(function)(xs)
        if count % lanes:  # one trace serves for the chunks and for the smaller last one
            function = jax.jit(function)
        return jax.lax.map(function, xs, batch_size=None if lanes == 1 else lanes)
    return fold_lanes(lambda x: ((), function(x)), lambda nothing, real: (), xs, lanes, devices, cost, skip=skip)[1]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Spread:
    """Maps a function over several models that devices share: ``Subset.spread`` of the server's rows."""

    lanes: int  # models side by side on each device
    devices: int

    def __call__(self, function: Callable[[Any], PyTree], models: PyTree) -> PyTree:
        return map_lanes(function, models, self.lanes, self.devices)


def fold_lanes(
    function: Callable[[Any], tuple[Any, Any]],
    add_up: Callable[[Any, Bool[Array, " lanes"]], Any],
    xs: PyTree,
    lanes: int,
    devices: int = 1,
    cost: Int[Array, " count"] | None = None,
    *,
    skip: bool = True,
    rematerialise: bool = False,
) -> tuple[PyTree, PyTree]:
    """Like ``map_lanes``; the first of two results is added up over devices, so memory holds it for one chunk."""
    # In ``add_up(summands, real)``, ``real`` is False for padding, which repeats the summand of another row.
    # With ``rematerialise``, reverse mode recomputes each chunk instead of storing its intermediate results.
    if eager.is_on():
        return eager.fold_rows(function, add_up, xs, cost if skip else None)
    count = jax.tree.leaves(xs)[0].shape[0]
    lanes = max(1, min(lanes, -(-count // devices)))
    if devices == 1 and lanes == count > 1:
        summands, results = jax.vmap(jax.checkpoint(function) if rematerialise else function)(xs)
        return add_up(summands, jnp.ones(count, bool)), results
    chunks = -(-count // (lanes * devices))
    order = jnp.arange(count) if cost is None else jnp.argsort(-cost, stable=True)
    padded = jnp.pad(order, (0, devices * chunks * lanes - count), constant_values=count)  # count: padding
    row = padded.reshape(-1, lanes)
    turns: Any = chunks
    if cost is not None:
        longest = jnp.max(jnp.append(cost, 0)[row], axis=1)
        row = row[_deal(longest, devices)] if devices > 1 else row[None]
        if skip:
            mine = longest if devices == 1 else jnp.max(jnp.append(cost, 0)[row], axis=2)
            turns = jnp.sum(mine > 0, axis=-1, dtype=jnp.int32)  # the cheapest come last
    # One trace serves for the shapes and the loop.
    whole = jax.jit((lambda xs: one_by_one(function, xs)) if lanes == 1 else jax.vmap(function))
    if devices == 1:
        row = row.reshape(chunks, lanes)

        def read(turn: Array) -> PyTree:
            return trees.take(xs, jnp.where(row[turn] < count, row[turn], order[-1]))

        return _in_turn(whole, add_up, read, row < count, row, count, turns, rematerialise)
    ordered = cost is not None
    row = row.reshape(devices, chunks, lanes)
    return _on_devices(whole, add_up, xs, row, turns, order[-1], ordered, rematerialise)


def _on_devices(
    whole: Callable[[Any], tuple[Any, Any]],
    add_up: Callable[[Any, Any], Any],
    xs: PyTree,
    row: Int[Array, "devices chunks lanes"],
    turns: int | Int[Array, " devices"],
    spare: Int[Array, ""],
    ordered: bool,
    rematerialise: bool,
) -> tuple[PyTree, PyTree]:
    """``fold_lanes`` on several devices, of which each computes its rows ``row`` of ``xs``; padding is ``spare``."""
    # Tables that devices divide are read block by block, so that few rows are held twice.
    leaves, structure = jax.tree.flatten(xs, is_leaf=_is_picked)
    count, (devices, chunks, lanes) = leaves[0].shape[0], row.shape
    example = jax.eval_shape(lambda xs: _rows(xs, jnp.zeros(lanes, jnp.int32)), xs)
    call, closed_over, is_read = _with_arguments(whole, example)
    # Of picked rows that nothing reads, such as those of peers in an evaluation, a device gets none.
    leaves = [leaf if read or not _is_picked(leaf) else None for leaf, read in zip(leaves, is_read, strict=True)]
    shared = [leaf is not None and division(_table(leaf), devices, 1) != PartitionSpec() for leaf in leaves]
    held, divided = _chosen(leaves, [not is_shared for is_shared in shared]), _chosen(leaves, shared)
    given_bytes = trees.bytes_of(jax.eval_shape(_rows, divided, jnp.arange(count)))
    blocks = min(chunks, -(-given_bytes // (devices * BLOCK)) or 1)
    share = -(-chunks // blocks)  # chunks of each device in a block
    blocks = -(-chunks // share)
    row = jnp.pad(row, ((0, 0), (0, blocks * share - chunks), (0, 0)), constant_values=count)
    row = row.reshape(devices, blocks, share, lanes).swapaxes(0, 1)
    read_row = jnp.where(row < count, row, spare)
    as_given = not ordered and blocks * row[0].size == row[0].size == count
    place = jnp.arange(share * lanes).reshape(share, lanes)

    def one_device(
        closed_over: list[Any], held: list[Any], row: Array, read_row: Array, own_turns: Array, arguments: list[Any]
    ) -> tuple[PyTree, PyTree]:
        device = jax.lax.axis_index(AXIS)
        mine, real = read_row[device], row[device] < count

        def read(turn: Array) -> PyTree:
            parts = iter(trees.take(arguments, place[turn])), iter(_rows(held, mine[turn]))
            rows = [next(parts[0] if is_shared else parts[1]) for is_shared in shared]
            shapes = jax.tree.leaves(example)
            rows = [jnp.zeros(s.shape, s.dtype) if row is None else row for row, s in zip(rows, shapes, strict=True)]
            return jax.tree.unflatten(structure, rows)

        # A number that is known is kept as one: reverse mode needs it.
        turns_here = share if isinstance(turns, int) else own_turns[device]
        function = functools.partial(call, closed_over)
        sums, results = _in_turn(function, add_up, read, real, place, place.size, turns_here, rematerialise)
        return jax.lax.psum(sums, AXIS), results

    by_device, everywhere = PartitionSpec(AXIS), PartitionSpec()
    # Trip counts differ between devices; the check of varying axes (check_vma) would refuse this.
    specs = (*[everywhere] * 5, by_device), (everywhere, by_device)
    spread = jax.shard_map(one_device, mesh=mesh(devices), in_specs=specs[0], out_specs=specs[1], check_vma=False)

    def block(row: Array, read_row: Array, turns: Array) -> tuple[PyTree, PyTree]:
        places = read_row.reshape(-1)
        arguments = [leaf if as_given and not _is_picked(leaf) else _rows(leaf, places) for leaf in divided]
        sums, results = spread(closed_over, held, row, read_row, turns, arguments)
        return sums, divide(results, devices)

    begun = share * jnp.broadcast_to(jnp.arange(blocks, dtype=jnp.int32)[:, None], (blocks, devices))
    turns_of = jnp.broadcast_to(jnp.asarray(turns, jnp.int32), (blocks, devices))
    left = jnp.clip(turns_of - begun, 0, share)
    if blocks == 1:
        sums, results = block(row[0], read_row[0], left[0])
        return sums, results if as_given else trees.take(results, jnp.argsort(row.reshape(-1))[:count])
    shapes = jax.eval_shape(block, row[0], read_row[0], left[0])
    sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0])
    results = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), shapes[1])

    def next_block(carry: tuple[PyTree, PyTree], one: tuple[Array, Array, Array]) -> tuple[tuple[PyTree, PyTree], None]:
        sums, results = carry
        more, new = block(*one)
        results = jax.tree.map(lambda all, new: all.at[one[0].reshape(-1)].set(new, mode="drop"), results, new)
        return (trees.add(sums, more), results), None

    return jax.lax.scan(next_block, (sums, divide(results, devices)), (row, read_row, left))[0]


def _chosen(leaves: list[Any], which: list[bool]) -> list[Any]:
    return [leaf for leaf, chosen in zip(leaves, which, strict=True) if chosen]


def _is_picked(leaf: Any) -> bool:
    return isinstance(leaf, Picked)


def _table(leaf: Any) -> Any:
    """The array that devices divide."""
    return leaf.table if isinstance(leaf, Picked) else leaf


def _rows(xs: PyTree, index: Array) -> PyTree:
    """``trees.take``, also of rows that are ``Picked``."""

    def take(leaf: Any) -> Any:
        return trees.take(_table(leaf), leaf.rows[index] if isinstance(leaf, Picked) else index)

    return jax.tree.map(take, xs, is_leaf=_is_picked)


def one_by_one(function: Callable[[Any], Any], xs: PyTree) -> PyTree:
    """``jax.vmap(function)`` for one row, without an axis of rows inside."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(trees.take(xs, 0)))


def _with_arguments(
    function: Callable[[Any], Any], example: Any
) -> tuple[Callable[[Any, Any], Any], list[Any], list[bool]]:
    """``function(x)`` as a function of ``(closed_over, x)``, what it closes over, and which leaves of x it reads."""
    # Inside a ``shard_map`` an array of the outside cannot be used.
    leaves, structure = jax.tree.flatten(example)

    def flat(*leaves: Any) -> Any:
        return function(jax.tree.unflatten(structure, leaves))

    program, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)

    def call(closed_over: list[Any], x: Any) -> Any:
        closed = jax.extend.core.ClosedJaxpr(program.jaxpr, closed_over)
        results = jax.extend.core.jaxpr_as_fun(closed)(*jax.tree.leaves(x))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return call, list(program.consts), arguments_read(program.jaxpr)


def _in_turn(
    function: Callable[[Any], tuple[Any, Any]],
    add_up: Callable[[Any, Any], Any],
    read: Callable[[Array], PyTree],
    real: Bool[Array, "chunks lanes"],
    place: Int[Array, "chunks lanes"],
    size: int,
    turns: int | Array,
    rematerialise: bool,
) -> tuple[PyTree, PyTree]:
    """Computes the first ``turns`` chunks in a loop: the rows ``read(turn)`` give results at ``place[turn]``."""
    # Padding repeats the last row in order and so the cheapest; its results are discarded.

    def chunk(turn: Array) -> tuple[PyTree, PyTree]:
        summands, results = function(read(turn))
        return add_up(summands, real[turn]), results

    # Under jit, so that one trace serves for the shapes and for the loop.
    chunk = jax.checkpoint(chunk) if rematerialise else jax.jit(chunk)
    shapes = jax.eval_shape(chunk, jnp.zeros((), jnp.int32))
    sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0])
    results = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype), shapes[1])

    def one(turn: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        sums, results = carry
        more, new = chunk(jnp.asarray(turn, jnp.int32))  # the loop's own number is weakly typed
        results = jax.tree.map(lambda all, new: all.at[place[turn]].set(new, mode="drop"), results, new)
        return trees.add(sums, more), results

    return jax.lax.fori_loop(0, turns, one, (sums, results))


def _deal(cost: Int[Array, " chunks"], devices: int) -> Int[Array, "devices share"]:
    """The chunks of each device, equally many: by falling cost, each goes to the device with the least work so far."""
    share = cost.shape[0] // devices

    def one(loads: tuple[Array, Array], cost: Array) -> tuple[tuple[Array, Array], Array]:
        load, taken = loads
        device = jnp.argmin(jnp.where(taken < share, load, jnp.inf))
        place = device * share + taken[device]
        return (load.at[device].add(cost), taken.at[device].add(1)), place

    none = jnp.zeros(devices, jnp.float32), jnp.zeros(devices, jnp.int32)
    _, place = jax.lax.scan(one, none, cost.astype(jnp.float32))
    return jnp.argsort(place).reshape(devices, share)
