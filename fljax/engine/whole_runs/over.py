"""What differs between whole runs, checked at the front door and split into rows of traced leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree, Shaped

from fljax.core import values
from fljax.core.labels import check_unlabelled
from fljax.core.names import name_of, unknown
from fljax.core.signatures import parameters_of, takes_anything
from fljax.engine.programs.declared import as_declared
from fljax.engine.programs.program import Inputs, Plan, Spec, partition_plan
from fljax.protocol import Algorithm, AnyArray, Federation
from fljax.training import Local


class Over(NamedTuple):
    """What differs between R runs. Seeds multiply them: every run is computed with every seed.

    Attributes:
      arguments: ``{name: pytree}`` in place of arguments of the plan. Arrays in it are ``[R, ...]``, one row for each
        run; numbers without an axis are those of all runs. Runs may differ in floats and arrays only, since they share
        one program: whole numbers, texts and functions are parts of it. ``{"local": local._replace(learning_rate=
        rates)}`` gives each run a learning rate.
      member: ``[R, N]`` by client id, who belongs to the federation of a run. A client outside holds no training and
        validation rows there: no census, poll, cohort or threshold sees it, and moments of features are those of the
        members. None: all clients. A run without members has the initial model.
      cost: ``[R]``, relative cost of a run, by which devices share the runs. None: its number of members, and one more
        for the evaluation.
    """

    arguments: Mapping[str, PyTree] = {}
    member: Shaped[AnyArray, "R N"] | None = None
    cost: Shaped[AnyArray, " R"] | None = None


class VariedPlan(NamedTuple):
    """A plan whose leaves in ``arguments`` have one row for each run."""

    spec: Spec  # ``varied`` are the positions of these leaves
    inputs: Inputs  # with all rows [R, ...] of these leaves as arrays of NumPy
    runs: int
    member: Bool[np.ndarray, "R N"] | None  # None: all clients
    cost: Float[np.ndarray, " R"]  # positive


def varied_plan(plan: Algorithm | Plan, federation: Federation, over: Over) -> VariedPlan:
    """The plan over all runs."""
    population = federation.clients.id.shape[-1]
    for name, value in {"member": over.member, "cost": over.cost, **over.arguments}.items():
        check_unlabelled(name, value)
    member = None if over.member is None else _members(over.member, population)
    runs = _number_of_runs(over, member)
    arguments = {name: _arrays(value) for name, value in over.arguments.items()}
    if arguments:
        plan = _with_argument_names(plan, arguments)
        arguments = {name: _as_declared(plan, name, value) for name, value in arguments.items()}
        for run in range(runs):
            values.check_arguments(plan.build, _row(arguments, run), {})
        first = _row(arguments, 0)
        whole = dict(zip(map(id, jax.tree.leaves(first)), jax.tree.leaves(arguments), strict=True))
        plan = plan._replace(arguments={**plan.arguments, **first})
    else:
        first, whole = {}, {}
    spec, inputs = partition_plan(plan, federation)
    rows = {id(leaf) for leaf in jax.tree.leaves(first) if isinstance(leaf, np.ndarray)}
    # Arrays pass through a plan as they are, so a leaf that differs between runs is the first row itself.
    varied = tuple(place for place, leaf in enumerate(inputs.traced) if id(leaf) in rows)
    traced = [whole[id(leaf)] if place in varied else leaf for place, leaf in enumerate(inputs.traced)]
    cost = _costs(over.cost, runs, member)
    return VariedPlan(spec._replace(varied=varied), inputs._replace(traced=traced), runs, member, cost)


def client_steps(
    plan: Algorithm | Plan, federation: Federation, member: Bool[np.ndarray, "R N"], rows: int
) -> float | None:
    """Local steps in one round of all runs: ``sum_S min(rows, |S|) mean_{i in S} tau_i``; None without ``local``."""
    # Algorithms that train in a way of their own make other numbers of steps. With several federations it is the mean.
    # Clients without rows train in no run.
    local = local_of(plan)
    if local is None:
        return None
    order = np.argsort(np.asarray(federation.clients.id), axis=-1)
    size = np.take_along_axis(np.asarray(federation.clients.train.size), order, axis=-1).reshape(-1, member.shape[1])
    steps = steps_of(local, size)
    able = member & (size > 0)[:, None]  # [seeds, R, N]
    count = able.sum(axis=-1)
    share = np.minimum(count, rows) / np.maximum(count, 1)
    of_members = (able * steps[:, None]).sum(axis=-1)
    return float(np.sum(share * of_members) / len(size))


def local_of(plan: Algorithm | Plan) -> Local | None:
    """The argument ``local`` of a plan, also of that of a config; None: it has none."""
    arguments: Any = plan.arguments if isinstance(plan, Plan) else {}
    local = arguments.get("arguments", arguments).get("local")
    return local if isinstance(local, Local) else None


def steps_of(local: Local, size: Shaped[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Steps in a round of clients with these numbers of training rows; 0 of those without."""
    count = (local.epochs or 0) * np.ceil(size / local.batch_size) if local.steps is None else local.steps
    return np.where(size > 0, count, 0.0)


def _arrays(value: PyTree) -> PyTree:
    """Lists of numbers as arrays; numbers without an axis, functions and texts as they are."""

    def is_list(entry: Any) -> bool:
        return isinstance(entry, list)

    def one(entry: Any) -> Any:
        if is_list(entry) or isinstance(entry, jax.Array) or hasattr(entry, "__array__"):
            array = np.asarray(entry)
            return array if array.ndim else array.item()
        return entry

    return jax.tree.map(one, value, is_leaf=is_list)


def _row(arguments: dict[str, Any], run: int) -> dict[str, Any]:
    """The arguments of one run; its arrays are new objects."""
    return jax.tree.map(lambda leaf: np.array(leaf[run]) if isinstance(leaf, np.ndarray) else leaf, arguments)


def _members(member: Any, population: int) -> np.ndarray:
    table = np.asarray(member)
    if table.ndim != 2 or table.shape[1] != population:
        raise ValueError(
            f"expected member to have a row for each run and a column for each of {population} clients, "
            f"got shape {table.shape}"
        )
    values.check_flags("member", table)
    return table != 0


def _number_of_runs(over: Over, member: np.ndarray | None) -> int:
    """R, of which all arrays are."""
    lengths: dict[str, int] = {} if member is None else {"member": len(member)}
    if over.cost is not None:
        lengths["cost"] = np.shape(over.cost)[0] if np.ndim(over.cost) == 1 else -1
    for name, value in over.arguments.items():
        for leaf in jax.tree.leaves(_arrays(value)):
            if isinstance(leaf, np.ndarray):
                if leaf.dtype.kind not in "biufV":  # V: bfloat16, which NumPy lacks
                    raise ValueError(f"expected arrays of numbers in the argument {name}, got {leaf.dtype} entries")
                lengths.setdefault(name, len(leaf))
                if lengths[name] != len(leaf):
                    raise ValueError(
                        f"expected arrays of one number of runs in {name}, got {lengths[name]} and {len(leaf)}"
                    )
        if name not in lengths:
            raise ValueError(f"expected an array with a row for each run in the argument {name}, got {value!r}")
    counts = sorted(set(lengths.values()))
    if len(counts) > 1 or counts[:1] in ([0], [-1]):
        told = ", ".join(f"{name} of {count if count >= 0 else 'another shape'}" for name, count in lengths.items())
        raise ValueError(f"expected one row for each run, of at least one run, got {told}")
    return counts[0] if counts else 1


def _with_argument_names(plan: Algorithm | Plan, arguments: Mapping[str, Any]) -> Plan:
    """The plan itself, if its builder has these arguments."""
    if not isinstance(plan, Plan):
        raise ValueError(f"expected a Plan for arguments that differ between runs, got {type(plan).__name__}")
    if not takes_anything(plan.build):
        valid = parameters_of(plan.build)
        for name in arguments:
            if name not in valid:
                raise ValueError(unknown("argument", name, valid))
    if both := sorted(arguments.keys() & plan.by_seed.keys()):
        raise ValueError(f"expected arguments by run or by seed, got both for {both[0]}")
    return plan


def _as_declared(plan: Plan, name: str, value: PyTree) -> PyTree:
    """Whole numbers as floats where the builder declares floats; raises a ValueError for other whole numbers."""
    first = jax.tree.map(
        lambda leaf: leaf[0].item() if isinstance(leaf, np.ndarray) and leaf.ndim == 1 else leaf, value
    )
    declared = as_declared(plan.build, {name: first})[name]

    def one(leaf: Any, as_one: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.ndim != 1:
            return leaf
        if isinstance(as_one, float):
            return leaf.astype(np.result_type(leaf, np.float32)) if leaf.dtype.kind == "i" else leaf
        raise ValueError(
            f"expected runs to differ in floats and arrays, got {leaf.dtype} numbers for {name} of "
            f"{name_of(plan.build)}, which shape the program"
        )

    return jax.tree.map(one, value, declared)


def _costs(cost: Any, runs: int, member: np.ndarray | None) -> np.ndarray:
    if cost is None:
        return np.ones(runs) if member is None else member.sum(axis=1) + 1.0
    costs = np.asarray(cost, float)
    if not (np.all(np.isfinite(costs)) and np.all(costs > 0)):
        raise ValueError(f"expected positive costs, got {costs[~(np.isfinite(costs) & (costs > 0))][0]}")
    return costs
