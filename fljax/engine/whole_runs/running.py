"""``runs``: many whole runs of one compiled program, block by block, whose measures alone are kept.

What differs between runs is checked at the front door and split into rows of traced leaves.
"""

from __future__ import annotations

import importlib.metadata
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, PyTree, Shaped

from fljax.core import processes, values
from fljax.core.errors import attach
from fljax.core.names import check_unlabelled, name_of, unknown
from fljax.core.sameness import FORCED
from fljax.core.values import argument_of, is_whole, parameters_of, takes_anything
from fljax.data.datasets import as_read
from fljax.engine.checkpoints import Checkpoint, Stopped
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, default_platform, replicate
from fljax.engine.loop.checkpointing import checksum_of, function_name, identity_of
from fljax.engine.loop.compilation import check_rows, checked_seeds, checked_shapes, size
from fljax.engine.programs.program import Inputs, Plan, Spec, as_declared, on_devices, partition_plan
from fljax.engine.programs.shapes import APART, Execution, Sizes, resolve
from fljax.engine.rounds.states import Seeds
from fljax.engine.whole_runs import saved
from fljax.engine.whole_runs.program import Measure, RunEnd, RunRows, Scales, all_scores, whole_runs
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
    for name, value in {"member": over.member, "cost": over.cost}.items():
        check_unlabelled(name, value)
    member = None if over.member is None else _members(over.member, population)
    plan, arguments, runs = varied_arguments(plan, over, member)
    first = {name: plan.arguments[name] for name in arguments} if isinstance(plan, Plan) else {}
    whole = dict(zip(map(id, jax.tree.leaves(first)), jax.tree.leaves(arguments), strict=True))
    spec, inputs = partition_plan(plan, federation)
    rows = {id(leaf) for leaf in jax.tree.leaves(first) if isinstance(leaf, np.ndarray)}
    # Arrays pass through a plan as they are, so a leaf that differs between runs is the first row itself.
    varied = tuple(place for place, leaf in enumerate(inputs.traced) if id(leaf) in rows)
    traced = [whole[id(leaf)] if place in varied else leaf for place, leaf in enumerate(inputs.traced)]
    cost = _costs(over.cost, runs, member)
    return VariedPlan(spec._replace(varied=varied), inputs._replace(traced=traced), runs, member, cost)


def varied_arguments(
    plan: Algorithm | Plan, over: Over, member: Bool[np.ndarray, "R N"] | None = None
) -> tuple[Algorithm | Plan, dict[str, Any], int]:
    """The plan of the first run, ``over.arguments`` as its builder declares them, and R; raises a ValueError."""
    for name, value in over.arguments.items():
        check_unlabelled(name, value)
    runs = _number_of_runs(over, member)
    if not over.arguments:
        return plan, {}, runs
    arguments = {name: _arrays(value) for name, value in over.arguments.items()}
    named = _with_argument_names(plan, arguments)
    arguments = {name: _as_declared(named, name, value) for name, value in arguments.items()}
    for run in range(runs):
        values.check_arguments(named.build, _row(arguments, run), {})
    return named._replace(arguments={**named.arguments, **_row(arguments, 0)}), arguments, runs


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


# CPU-seconds of a block: long enough that the host's work between blocks does not count, and short enough that the heap
# of the fast kernels (``jit.UNFUSED``) does not grow by more than some ten MB.
BLOCK = 15.0
# Rows of a program: a power of two, at least and at most.
FEWEST, MOST = 16, 1024
# Relative costs become whole numbers, as devices are dealt them.
_COSTLIEST = 2**16


class RunsDone(NamedTuple):
    """What ``on_block`` is told after each block.

    Attributes:
      done: number of runs that are finished, those of an earlier call included; seeds count.
      runs: number of all runs.
      seconds: of this block, by the clock.
      block: number of its runs.
    """

    done: int
    runs: int
    seconds: float
    block: int


class _Call(NamedTuple):
    """What all blocks of a call share."""

    varied: VariedPlan
    seeds: Sequence[int]
    rounds: int
    measure: Measure
    layout: Layout
    rows: int  # of the program
    on_devices: Inputs  # the data, and the leaves in which runs do not differ
    scales: Scales | None  # None: runs have the moments of the federation
    sizes: Sizes

    @property
    def runs(self) -> int:
        return self.varied.runs * len(self.seeds)


def runs(
    plan: Algorithm | Plan,
    federation: Federation,
    over: Over,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    measure: Measure = all_scores,
    block: int | None = None,
    execution: Execution | None = None,
    checkpoint: str | pathlib.Path | Checkpoint | None = None,
    max_runs: int | None = None,
    on_block: Callable[[RunsDone], Any] | None = None,
) -> xr.Dataset:
    """Many whole runs of one compiled program: start, rounds, evaluation and measure; only measures are kept.

    Runs differ in arguments of the plan and in their members (``Over``). All clients are evaluated once, after the last
    round. There are no records of rounds. Devices take whole runs, dealt by cost, and on a CPU each computes one run
    after another and skips absent clients. So on a CPU the bits of a run depend neither on the other runs nor on its
    block or device; elsewhere they may depend on ``block``.

    A run on some members equals the run of a federation that holds these clients alone, with their ids. A cohort that
    is larger than the number of members is filled with all of them.

    Args:
      plan: its floats and arrays may differ between runs. An ``Algorithm`` can only have other members.
      federation: shared by all seeds, or one per seed (``fljax.data.stack``). It is on the devices as a whole.
      over: what differs between runs.
      rounds: of each run; 0 only evaluates.
      seeds: as for ``fljax.simulate``; each run is computed with every seed.
      measure: ``(algorithm, state, scores) -> {name: array}``, what is kept of a run (``Measure``). None of its
        arguments depends on other runs. The default keeps the scores of all clients.
      block: number of runs of one program. Calls with the same number share the program, however many runs they have.
        None: as many as take about 15 CPU-seconds, by what the blocks before took, in a program that is compiled once.
      execution: ``devices``, and how many clients and runs are side by side. Data and states are on the devices.
      checkpoint: a folder, or a ``Checkpoint`` with one. Every block is saved there when it ends. The same call goes on
        with the runs that are missing, to the same bits. Of a ``Checkpoint``, ``note`` and ``stop`` are heeded.
      max_runs: more runs are refused, with their number, their client-steps and their bytes; None: any number.
      on_block: called with ``RunsDone`` after each block. An exception of it has the measures so far in ``results``.

    Returns:
      The measures ``[run, seed, ...]`` as floats, and ``diverged`` [run, seed]. A run in which a NaN or infinity
      appeared in the server or in a client's state has diverged, and its measures are NaN. ``member`` [run, client] is
      a coordinate if runs have members. The attribute ``notes`` has sentences about runs of few members.

    Raises:
      ValueError: if arguments do not fit the plan, the federation or each other, there are more than ``max_runs`` runs,
        or the folder is of other runs; as ``fljax.simulate`` for the plan and the federation.
      OSError: if a block cannot be saved.
      Stopped: if ``Checkpoint.stop`` asks for it, after a block.
      AlgorithmError: if a function of the algorithm raises an exception, which is the cause.
    """
    _check_counts(block=block, max_runs=max_runs)
    call, ends = _prepared(
        plan, federation, over, rounds=rounds, seeds=seeds, measure=measure, block=block, execution=execution
    )
    kinds = saved.measure_kinds(ends)
    member = call.varied.member
    everybody = np.ones((call.varied.runs, federation.clients.id.shape[-1]), bool)
    steps = client_steps(plan, federation, everybody if member is None else member, call.sizes.rows)
    _check_number(call, max_runs, kinds, steps)
    table = saved.empty_table(kinds, call.runs)
    settings = Checkpoint.of(checkpoint)
    folder, forced = None if settings is None else _folder(settings, call), ""
    if folder is not None:
        blocks, forced = saved.finished(folder, {name: kind.shape for name, kind in kinds.items()}, call.runs)
        for earlier in blocks:
            saved.enter(table, earlier)
        if not table.left.all():
            folder.note(f"goes on with {int(table.left.sum()):,} of {call.runs:,} runs")
    stop = None if settings is None else settings.stop
    with nullcontext() if stop is None else stop.listening():
        order = np.argsort(-np.repeat(call.varied.cost, len(call.seeds)), kind="stable")
        for done, seconds in _blocks(call, order[table.left[order]], block):
            saved.enter(table, done)
            if folder is not None:
                saved.save_runs(folder, done)
            count = int(call.runs - table.left.sum())
            if on_block is not None:
                try:
                    on_block(RunsDone(count, call.runs, seconds, len(done.place)))
                except (Exception, KeyboardInterrupt) as error:
                    note = f"on_block ended the call after {count} of {call.runs} runs; error.results has these"
                    attach(error, note, results=saved.labelled_table(table, kinds, call.seeds, member))
                    raise
            if stop is not None and stop.made and table.left.any():
                raise Stopped(count, call.runs, count, "runs")
    about: dict[str, Any] = {f"execution_{name}": value for name, value in call.layout._asdict().items()}
    about |= {"execution_runs_apart": int(call.layout.runs_apart), "rounds": rounds, "jax": jax.__version__}
    if told := (*_sentences(plan, call.varied, call.sizes), *forced.splitlines()):
        about["notes"] = "; ".join(told)
    about |= {FORCED: forced} if forced else {}
    return saved.labelled_table(table, kinds, call.seeds, member).assign_attrs(about)


def _prepared(
    plan: Algorithm | Plan,
    federation: Federation,
    over: Over,
    *,
    rounds: int,
    seeds: Seeds,
    measure: Measure,
    block: int | None,
    execution: Execution | None,
) -> tuple[_Call, RunEnd]:
    """What a call computes, and the shapes of its results; everything that a user gave is checked."""
    chosen = _execution(Execution() if execution is None else execution)
    # A user may give anything.
    if not isinstance(over, Over):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"expected over to be a fljax.Over, got {type(over).__name__}")
    seed_list, federation = checked_seeds(federation if over.member is None else as_read(federation), seeds, rounds)
    varied = varied_plan(plan, federation, over)
    spec, inputs = varied.spec, varied.inputs
    check_rows(seed_list, inputs, None)
    total = varied.runs * len(seed_list)
    shapes = checked_shapes(spec, inputs, total, rounds)
    layout = _layout(chosen, shapes.sizes if varied.member is None else shapes.sizes._replace(full=False))
    rows = block or min(MOST, max(FEWEST, 2 ** (total - 1).bit_length()))
    alike = [None if place in spec.varied else leaf for place, leaf in enumerate(inputs.traced)]
    shared = on_devices(Inputs(alike, {}, inputs.federation), layout)
    scales = None if varied.member is None or varied.member.all() else Scales.of(federation)
    call = _Call(varied, seed_list, rounds, measure, layout, rows, shared, scales, shapes.sizes)
    traced = whole_runs.trace(spec, layout, measure, *_rows_of(call, np.zeros(0, np.int64)), jnp.int32(rounds))
    return call, traced.out_info


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (not is_whole(count) or count < 1):
            raise ValueError(f"expected {name} to be a positive number of runs, got {count!r}")


def _execution(execution: Execution) -> Execution:
    """The execution with all data on the devices and, on a CPU, with one run after another."""
    if processes.are_several():
        raise ValueError("expected one process for whole runs, got several: give each of them a part of the runs")
    if eager.is_on() or execution.clients in ("debug", "trial"):
        got = "jax_disable_jit" if eager.is_on() else repr(execution.clients)
        raise ValueError(f"expected whole runs to be compiled by a fixed rule, got {got}; simulate has such modes")
    for place in ("examples", "client_states"):
        if getattr(execution, place) == "host":
            raise ValueError(f"expected execution.{place} to be auto or device for whole runs, got 'host'")
    alone = default_platform() == "cpu" and execution.seeds == "auto"
    return execution._replace(examples="device", client_states="device", seeds="scan" if alone else execution.seeds)


def _layout(execution: Execution, sizes: Sizes) -> Layout:
    """Devices take whole runs, however few there are: else a run's bits would depend on the number of runs."""
    there = jax.local_device_count()
    return resolve(execution, sizes._replace(seeds=max(APART * there, 1) * MOST))


def _rows_of(call: _Call, place: np.ndarray) -> tuple[Inputs, RunRows]:
    """The arguments of the program for the runs at ``place``; other rows are not computed."""
    varied, seeds, devices = call.varied, np.asarray(call.seeds), call.layout.devices
    rows = np.zeros(call.rows, np.int64)
    rows[: len(place)] = place
    run, seed = rows // len(seeds), rows % len(seeds)
    cost = np.maximum(1, np.round(varied.cost[run] / varied.cost.max() * _COSTLIEST)).astype(np.int32)
    cost[len(place) :] = 0
    traced = list(call.on_devices.traced)
    differ = {position: jnp.asarray(varied.inputs.traced[position][run]) for position in varied.spec.varied}
    by_seed = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[seed]), varied.inputs.by_seed)
    member: Any = () if varied.member is None else jnp.asarray(varied.member[run])
    numbers = jnp.asarray(seeds[seed], jnp.uint32)
    moments: Any = ()
    if call.scales is not None:
        computed = np.asarray(varied.member)[run] & (np.arange(call.rows) < len(place))[:, None]
        moments = jax.tree.map(jnp.asarray, call.scales.of_members(computed, seed % len(call.scales.given.mean)))
    own = RunRows(numbers, member, moments, jnp.asarray(seed, jnp.int32), jnp.asarray(cost))
    differ, by_seed, own = replicate((differ, by_seed, own), devices)
    for position, leaf in differ.items():
        traced[position] = leaf
    return Inputs(traced, by_seed, call.on_devices.federation), own


def _check_number(call: _Call, most: int | None, kinds: Mapping[str, saved.MeasureKind], steps: float | None) -> None:
    """Raises a ValueError with the numbers if there are more than ``most`` runs."""
    if most is None or call.runs <= most:
        return
    kept = call.runs * sum(math.prod(kind.shape) * np.dtype(kind.dtype).itemsize for kind in kinds.values())
    work = "" if steps is None else f", which are {steps * call.rounds * len(call.seeds):,.0f} client-steps"
    raise ValueError(
        f"expected at most {most:,} runs, got {call.runs:,}{work} and {size(kept)} of measures (max_runs allows more)"
    )


def _sentences(plan: Algorithm | Plan, varied: VariedPlan, sizes: Sizes) -> tuple[str, ...]:
    """What users should know of runs with few members, which are as federations of so few clients."""
    if varied.member is None:
        return ()
    members, told = varied.member.sum(axis=1), []
    few = int(np.sum(members < sizes.rows)) if sizes.rows < sizes.population else 0
    if few:
        told.append(
            f"{few:,} of {varied.runs:,} runs have fewer members than the cohort of {sizes.rows}: all take part"
        )
    clusters = _clusters(plan)
    fewer = int(np.sum(members < clusters))
    if fewer:
        told.append(
            f"{fewer:,} of {varied.runs:,} runs have fewer members than the {clusters} clusters: clusters may stay "
            "without members"
        )
    return tuple(told)


def _clusters(plan: Algorithm | Plan) -> int:
    """The argument ``clusters`` of a plan's builder, or its default; 0 without one."""
    if not isinstance(plan, Plan):
        return 0
    # The plan of a config has its builder inside.
    build, arguments = getattr(plan.build, "build", plan.build), plan.arguments.get("arguments", plan.arguments)
    clusters = argument_of(build, arguments, "clusters", 0)
    return int(clusters) if is_whole(clusters) else 0


def _folder(settings: Checkpoint, call: _Call) -> saved.RunFolder:
    """The folder of finished blocks, with what the runs must have in common to go on."""
    varied = call.varied
    identity = identity_of(
        varied.spec,
        varied.inputs,
        call.seeds,
        call.rounds,
        None,
        call.measure,
        runs=varied.runs,
        measure=function_name(call.measure),
        jax=jax.__version__,
        jaxlib=importlib.metadata.version("jaxlib"),
        device=jax.devices()[0].device_kind,
        double_precision=bool(getattr(jax.config, "jax_enable_x64", False)),
        **{f"execution.{name}": value for name, value in call.layout._asdict().items()},
        **{"checksum of members": 0 if varied.member is None else checksum_of(varied.member)},
        **({} if call.scales is None else {"moments": "of members"}),
    )
    note = settings.note or (lambda words: None)
    return saved.RunFolder(pathlib.Path(settings.folder), identity, note, settings.force)


def _blocks(call: _Call, left: np.ndarray, block: int | None) -> Iterator[tuple[saved.FinishedRuns, float]]:
    """The finished blocks and their seconds. The length of each follows from the CPU-seconds of the one before."""
    if not len(left):
        return
    rounds, spec, cost = jnp.int32(call.rounds), call.varied.spec, np.repeat(call.varied.cost, len(call.seeds))
    # Without a row that is computed, the first call takes the time to compile alone.
    jax.block_until_ready(whole_runs(spec, call.layout, call.measure, *_rows_of(call, left[:0]), rounds))
    count = block or min(call.rows, APART * call.layout.devices)
    while len(left):
        place, left = left[:count], left[count:]
        began, began_cpu = time.perf_counter(), time.process_time()
        end = whole_runs(spec, call.layout, call.measure, *_rows_of(call, place), rounds)
        done = saved.computed_rows(jax.tree.map(np.asarray, end), place)
        spent = max(time.process_time() - began_cpu, 1e-6)
        if block is None:
            fewest = min(call.rows, APART * call.layout.devices)
            count = block_length(cost[left], spent / float(cost[place].sum()), fewest, call.rows)
        yield done, time.perf_counter() - began


def block_length(cost: Float[np.ndarray, " left"], seconds: float, fewest: int, most: int) -> int:
    """How many of the runs left, in order, take about ``BLOCK`` CPU-seconds; ``seconds`` are for a cost of 1."""
    affordable = np.searchsorted(np.cumsum(cost), BLOCK / seconds, side="right")
    return int(np.clip(affordable, fewest, most))
