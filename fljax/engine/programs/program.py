"""The compiled programs of a run: static and traced parts of a plan, and the mapping over runs (cells x seeds).

Equal plans share a program, so numbers have their declared types, and equal partials become one object. If all clients
use one model, which is a part of the Server, its scores are those of ``serve_model``: one program judges the models of
all algorithms of a task and a federation. A small one asks the algorithm which clients count.
"""

from __future__ import annotations

import functools
import numbers
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, Array, Bool, Int, PyTree

from fljax import training
from fljax.core import trees, values
from fljax.core.names import describe, describe_items, name_of, shown
from fljax.core.values import annotations_of, is_whole
from fljax.data.arrays import check_unchanged
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import map_lanes
from fljax.engine.devices.layout import Layout, keep_everywhere, place_state, replicate, state_shardings, with_shardings
from fljax.engine.programs import jit
from fljax.engine.rounds import errors
from fljax.engine.rounds import evaluate as evaluation
from fljax.engine.rounds.evaluate import GRADIENT_NORM, gradient_norm
from fljax.engine.rounds.round import RoundOptions, one_round
from fljax.engine.rounds.states import (
    CLIENTS,
    ROUNDS,
    State,
    as_vectors,
    by_id,
    check_below,
    initial_state,
    same_tests,
    with_least,
    with_shared,
    without_shared,
)
from fljax.metrics.scores import Predicted
from fljax.protocol import (
    Algorithm,
    Available,
    Census,
    Cohort,
    Federation,
    Info,
    Labelled,
    PerClient,
    Seat,
    Task,
    seen_from,
)
from fljax.results.non_finite import NonFinite

_PARTIALS: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def as_declared(build: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a builder, with whole numbers as floats where its parameters are annotated as floats.

    A float is traced and an int is static, so ``threshold=1`` and ``threshold=1.0`` would be two programs. Lists of
    numbers become arrays, whose entries are traced, if the annotation allows an array. Fields of NamedTuples among the
    arguments, such as ``Local``, follow their own annotations.
    """
    declared = _declared(build)
    return {name: _converted(value, declared.get(name, _NOTHING)) for name, value in arguments.items()}


# What an annotation allows, also as entries: "float", "whole" (numbers) and "array".
_Kinds = frozenset[str]
_NOTHING: _Kinds = frozenset()


def _declared(build: Callable[..., Any]) -> dict[str, _Kinds]:
    """What the parameters of a builder, or of a NamedTuple's constructor, allow."""
    try:
        return {name: _kinds(annotation) for name, annotation in annotations_of(build).items()}
    except (TypeError, ValueError):  # not every callable has a signature
        return {}


def _kinds(annotation: Any, outer: tuple[Any, ...] = ()) -> _Kinds:
    """``outer``: the aliases of ``type`` statements that this annotation is a part of, which may have themselves."""
    if annotation is float or annotation is int:
        return frozenset(["float" if annotation is float else "whole"])
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        entries = {"Float": ["float"], "Int": ["whole"]}.get(getattr(annotation.dtype, "__name__", ""), [])
        return frozenset(["array", *entries])
    kind = typing.get_origin(annotation) or annotation
    if kind is jax.Array or hasattr(kind, "__array__"):  # also NumPy's, and what NumPy makes arrays of
        return frozenset(["array"])
    if hasattr(kind, "__value__"):  # ``type Alias = ...``, as NumPy's ArrayLike is in newer Pythons
        return _NOTHING if kind in outer else _kinds(kind.__value__, (*outer, kind))
    inside = () if kind in (Literal, Callable) else typing.get_args(annotation)
    return _NOTHING.union(*(_kinds(part, outer) for part in inside))


def _converted(value: Any, kinds: _Kinds) -> Any:
    is_float = "float" in kinds and "whole" not in kinds
    if isinstance(value, Task):
        return value
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        declared = _declared(type(value))
        pairs = zip(fields, value, strict=True)
        return type(value)(*(_converted(part, declared.get(name, _NOTHING)) for name, part in pairs))
    if isinstance(value, Mapping):
        return {name: _converted(part, kinds) for name, part in value.items()}
    if isinstance(value, tuple | list) and "array" in kinds:
        array = _as_array(value)
        if array is not None:
            return array.astype(float) if array.dtype.kind in "iu" and is_float else array
        kinds = kinds - {"array"}  # its entries are not arrays themselves
    if isinstance(value, tuple | list):
        return type(value)(_converted(part, kinds) for part in value)
    whole = not isinstance(value, bool) and isinstance(value, numbers.Integral)
    return float(value) if whole and is_float else value


def _as_array(value: Any) -> np.ndarray | None:
    """A (nested, regular) list of numbers as an array; None for anything else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):
        return None
    return array if array.dtype.kind in "biuf" and array.size else None


def share_partials(tree: Any) -> Any:
    """``tree`` with each ``functools.partial`` replaced by the first equal partial so far, also inside tasks."""
    # Python and JAX compare partials by identity, so equal partials would be separate programs.
    return jax.tree.map(
        lambda node: Task(*map(_first, node)) if isinstance(node, Task) else _first(node), tree, is_leaf=_is_task
    )


def _first(function: Any) -> Any:
    if type(function) is not functools.partial:
        return function
    keywords = tuple(sorted(function.keywords.items()))
    try:
        return _PARTIALS.setdefault(_typed((_first(function.func), function.args, keywords)), function)
    except TypeError:  # a partial with an unhashable argument, such as an array, is not shared
        return function


def _typed(value: Any) -> Any:
    """A key in which 1, 1.0 and True differ."""
    inner = tuple(map(_typed, value)) if isinstance(value, tuple) else _first(value)
    return type(value), inner


class _Traced:
    """The mark of a traced leaf in a Spec. There is one instance, which pickle finds by name."""

    def __reduce__(self) -> str:
        return "TRACED"


TRACED = _Traced()


class FixedBuilder:
    """A builder that returns a given algorithm; hashed by the identity of the algorithm's functions."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def __call__(self) -> Algorithm:
        return self.algorithm

    def __hash__(self) -> int:
        return hash(self.algorithm)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedBuilder) and self.algorithm == other.algorithm


class Plan(NamedTuple):
    """An algorithm whose builder runs inside the compiled program, so that numbers change without recompiling.

    Attributes:
      build: ``build(**arguments, **by_seed) -> Algorithm``.
      arguments: floats and arrays among their leaves are arguments of the program (traced); ints, strings, bools and
        functions are part of the program (static). A whole number becomes a float if the builder's parameter is
        annotated as a float. ``Task`` and ``Local`` values are allowed.
      by_seed: arrays with a leading axis of seeds, e.g. thresholds ``[seeds, N]``; each seed uses its own row.
    """

    build: Callable[..., Any]
    arguments: Mapping[str, Any] = {}
    by_seed: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        """The builder and its arguments in short; of arrays only shapes and types, so that tracers have a text too."""
        parts = [describe_items(self.arguments)] if self.arguments else []
        parts += [f"by seed {describe_items(self.by_seed)}"] if self.by_seed else []
        words = f": {'; '.join(parts)}" if parts else ""
        return f"Plan({name_of(getattr(self.build, 'build', self.build))}{words})"

    def _repr_html_(self) -> str:
        lines = [(name, describe(argument), "") for name, argument in self.arguments.items()]
        lines += [(name, describe(argument), "by seed") for name, argument in self.by_seed.items()]
        from fljax.core.pages import table  # imported here, since it takes a template

        head = ("argument", "value", "")
        return table([head, *lines], f"Plan of {name_of(getattr(self.build, 'build', self.build))}")


class Spec(NamedTuple):
    """The static part of a plan; hashable, so that equal plans share their compiled programs."""

    build: Callable[..., Any]
    structure: Any
    static: tuple[Any, ...]  # leaves, with TRACED in place of each traced leaf
    varied: tuple[int, ...] = ()  # positions of traced leaves in which plans differ; these have a leading axis of runs
    valid: bool = False  # whether some client has validation rows, so that models are judged on them
    common: bool = False  # whether all clients have the same test rows, so that the global model is judged once
    everybody: bool = False  # whether all clients have training rows
    non_finite: NonFinite = "freeze"  # see ``one_round``
    extra: tuple[str, ...] = ()  # what evaluations judge for metrics that were asked for, see ``needs_of``
    global_model: Any = None  # where the Server has the model that all clients use (``evaluation.GlobalModel``)
    judged: int = 0  # how many seen clients evaluations but the last one judge; 0: all

    def arguments(self, traced: list[Any]) -> dict[str, Any]:
        """The arguments of the builder, with the traced leaves put back."""
        numbers = iter(traced)
        leaves = [next(numbers) if leaf is TRACED else leaf for leaf in self.static]
        return jax.tree.unflatten(self.structure, leaves)

    def algorithm(self, traced: list[Any], by_seed: Mapping[str, Any], seed: Array | None = None) -> Any:
        """What the builder makes of the traced leaves: an Algorithm; for ``standalone`` its arguments."""
        arguments = self.arguments(traced)
        return errors.named(lambda: self.build(**arguments, **by_seed), errors.name_of(self.build), seed)


class Inputs(NamedTuple):
    """The traced part of plans that run together, with the data; runs (a plan and a seed) are in the order of plans."""

    traced: list[Any]  # leaves; leaves in which plans differ are [runs, ...]
    by_seed: dict[str, Any]  # [runs, ...]
    federation: Federation
    required: Any = None  # [runs, N], the loss that each client requires, if a metric that was asked for reads it


def on_devices(inputs: Inputs, layout: Layout) -> Inputs:
    """Inputs whose arrays are on every device, once for all programs."""
    check_unchanged(inputs.federation.examples.x, inputs.federation.examples.y)

    def move(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf

    return replicate(inputs._replace(federation=jax.tree.map(move, inputs.federation)), layout.devices)


def is_stacked(federation: Federation) -> bool:
    """Whether the federation holds one partition per seed."""
    return np.ndim(federation.clients.id) == 2


def check_seeds(seeds: Sequence[int], federation: Federation) -> None:
    """Raises a ValueError if a stacked federation has not one partition for each seed, or if clients share keys."""
    check_below(CLIENTS + 1, "the number of clients", federation.clients.id.shape[-1])
    if is_stacked(federation) and federation.clients.id.shape[0] != len(seeds):
        stacked = federation.clients.id.shape[0]
        raise ValueError(f"expected one federation per seed ({len(seeds)}), got {stacked} stacked federations")


def partition_plan(plan: Algorithm | Plan, federation: Federation) -> tuple[Spec, Inputs]:
    """Splits a plan into its static and traced parts; the federation in the result is stored by id."""
    return partition_plans([plan], federation)[0]


def partition_plans(plans: Sequence[Algorithm | Plan], federation: Federation) -> list[tuple[Spec, Inputs]]:
    """``partition_plan`` of several plans; what the federation says is found once for all of them."""
    parts = list(map(split_plan, plans))
    valid = bool(np.any(np.asarray(federation.clients.valid.size) > 0))
    common = same_tests(federation)
    everybody = bool(np.all(np.asarray(federation.clients.train.size) > 0))
    stored = with_least(by_id(federation))
    return [
        (spec._replace(valid=valid, common=common, everybody=everybody), Inputs(traced, by_seed, stored))
        for spec, traced, by_seed in parts
    ]


def plan_of(plan: Algorithm | Plan) -> Plan:
    """The plan itself, or the plan of an algorithm that is built already.

    Raises:
      ValueError: if it is neither an Algorithm nor a Plan.
    """
    if isinstance(plan, Algorithm):
        return Plan(FixedBuilder(Algorithm(*map(share_partials, plan))))
    if not isinstance(plan, Plan):  # pyright: ignore[reportUnnecessaryIsInstance] - a user may give anything
        raise ValueError(f"expected an Algorithm or a Plan, got {type(plan).__name__}")
    return plan


def split_plan(plan: Algorithm | Plan) -> tuple[Spec, list[Any], dict[str, Any]]:
    """The static part of a plan without what the federation says, its traced leaves, and ``by_seed``."""
    plan = plan_of(plan)
    values.check_arguments(plan.build, plan.arguments, plan.by_seed)
    leaves, structure = jax.tree.flatten(share_partials(as_declared(plan.build, plan.arguments)))
    is_number = [isinstance(leaf, float | np.floating | np.ndarray | jax.Array) for leaf in leaves]
    traced = [leaf for leaf, number in zip(leaves, is_number, strict=True) if number]
    static = tuple(TRACED if number else leaf for leaf, number in zip(leaves, is_number, strict=True))
    return Spec(share_partials(plan.build), structure, static), traced, dict(plan.by_seed)


def groups(plans: Sequence[Algorithm | Plan]) -> list[list[int]]:
    """Groups of plans that differ only in the values of floats and arrays, as lists of positions in order."""
    places: dict[Any, list[int]] = {}
    for place, plan in enumerate(plans):
        spec, traced, by_seed = split_plan(plan)
        leaves, structure = jax.tree.flatten((traced, by_seed))
        places.setdefault((spec, structure, *map(_describe, leaves)), []).append(place)
    return list(places.values())


def _describe(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), jax.dtypes.canonicalize_dtype(jnp.result_type(leaf))


def stack_plans(parts: Sequence[tuple[Spec, Inputs]], seeds: int) -> tuple[Spec, Inputs]:
    """Joins several plans: leaves in which they differ get a leading axis of runs, other leaves are shared."""
    spec, first = parts[0]
    if len(parts) == 1:
        return spec, first
    for place, (other, inputs) in enumerate(parts):
        _check_alike(place, spec, other, (first.traced, first.by_seed), (inputs.traced, inputs.by_seed))
    columns = list(zip(*(inputs.traced for _, inputs in parts), strict=True))
    varied = tuple(
        place for place, leaves in enumerate(columns) if any(not same_numbers([leaves[0]], [leaf]) for leaf in leaves)
    )
    traced: list[Any] = list(first.traced)
    for place in varied:
        # Converted one by one, so that Python numbers stay weakly typed, as in a separate run.
        traced[place] = jnp.repeat(jnp.stack([jnp.asarray(leaf) for leaf in columns[place]]), seeds, axis=0)
    by_seed = jax.tree.map(lambda *rows: jnp.concatenate(rows), *(inputs.by_seed for _, inputs in parts))
    return spec._replace(varied=varied), Inputs(traced, by_seed, first.federation)


def _check_alike(place: int, spec: Spec, other: Spec, first: Any, numbers: Any) -> None:
    wrong = "builders" if spec.build != other.build else "arguments" if spec.structure != other.structure else None
    differ = [(a, b) for a, b in zip(spec.static, other.static, strict=False) if a != b]
    if wrong is None and differ:
        a, b = ("a number" if leaf is TRACED else repr(leaf) for leaf in differ[0])
        wrong = f"values that shape the program, {a} beside {b}"
    if wrong is None and jax.tree.map(_describe, first) != jax.tree.map(_describe, numbers):
        wrong = "arrays of other shapes, types or names"
    if wrong is not None:
        raise ValueError(
            f"expected plans that differ in the values of floats and arrays only, got plans 0 and {place} with {wrong}"
        )


def same_numbers(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether the traced leaves of two plans with the same Spec are equal."""
    pairs = zip(some, others, strict=True)  # compared in the precision of the computation
    return all(a is b or bool(np.array_equal(np.asarray(jnp.asarray(a)), np.asarray(jnp.asarray(b)))) for a, b in pairs)


def map_runs(
    spec: Spec,
    layout: Layout,
    inputs: Inputs,
    tables_of_runs: PyTree,
    function: Callable[..., PyTree],
    place: Int[Array, " runs"] | None = None,
    cost: Int[Array, " runs"] | None = None,
) -> PyTree:
    """Maps ``function(algorithm, federation, layout, own)`` over runs, which share the data."""
    # Stacked tables are read by ``place``, or ``run % seeds``, without a copy for each run. Cost 0: the run is skipped.
    federation, runs = as_vectors(inputs.federation), jax.tree.leaves(tables_of_runs)[0].shape[0]
    seeds = federation.clients.id.shape[0] if is_stacked(federation) else 0
    tables = without_shared(federation)
    inner = layout._replace(devices=1) if layout.runs_apart else layout
    # With one federation per run, the row is mapped.
    by_row = place is None and seeds == runs > 1

    def one(row: tuple[Any, ...]) -> PyTree:
        varied, by_seed, place, own_values = row
        traced = list(inputs.traced)
        for position, value in zip(spec.varied, varied, strict=True):
            traced[position] = value
        mine = federation
        if seeds:
            # A single federation for all runs is not batched.
            row_of_run = place if by_row else trees.take(tables, 0 if seeds == 1 else place)
            mine = with_shared(row_of_run, federation)
        seed = getattr(own_values, "seed", own_values)  # a State, or the seed itself
        return function(spec.algorithm(traced, by_seed, seed), mine, inner, own_values)

    if place is None:
        place = jnp.arange(runs) % max(seeds, 1)
    varied = [inputs.traced[position] for position in spec.varied]
    rows = (varied, inputs.by_seed, tables if by_row else place, tables_of_runs)
    return map_lanes(one, rows, layout.seeds, layout.devices if layout.runs_apart else 1, cost)


# Runs once and is mostly random numbers, whose code is slow to optimise: level 1 compiles four times faster.
@jit.program(static_argnames=("spec", "layout"), compiler_options={"xla_backend_optimization_level": 1})
def start(spec: Spec, layout: Layout, inputs: Inputs, seeds: Array) -> State:
    """States of all runs before round 0; ``seeds`` is ``[runs]``."""

    def begin(algorithm: Algorithm, data: Federation, layout: Layout, seed: Array) -> State:
        return initial_state(algorithm, data, seed)

    states = map_runs(spec, layout, inputs, seeds, begin)
    # Weakly typed leaves (from Python numbers) become strongly typed, as in every later state.
    return place_state(jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), states), layout)


@jit.program(static_argnames=("spec", "layout", "capacity"), donate_argnames=("state",))
def run_rounds(
    spec: Spec, layout: Layout, capacity: int, inputs: Inputs, state: State, first: Array, count: Array
) -> tuple[State, Info]:
    """``count`` rounds from round ``first`` for all runs, in one program; records are ``[runs, capacity, ...]``."""
    # ``count`` is traced, so blocks of any length share one compilation.

    def one_run(algorithm: Algorithm, data: Federation, layout: Layout, state: State) -> tuple[State, Info]:
        options = RoundOptions(spec.everybody, non_finite=spec.non_finite)
        # Under jit, so that one trace serves for the shapes and for the loop.
        step = jax.jit(lambda state, round: one_round(algorithm, data, layout, state, round, options=options))
        if eager.is_on():
            return eager.rounds(step, state, first, count, capacity)
        shapes = jax.eval_shape(step, state, first)[1]
        records = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes)

        def body(index: Array, carry: tuple[State, Info]) -> tuple[State, Info]:
            state, records = carry
            state, info = step(state, first + index)
            return state, jax.tree.map(lambda all, new: all.at[index].set(new), records, info)

        return jax.lax.fori_loop(jnp.zeros((), jnp.int32), count, body, (state, records))

    state, records = map_runs(spec, layout, inputs, state, one_run)
    return place_state(state, layout), keep_everywhere(records, layout)


class _Judged(NamedTuple):
    """A run that is evaluated: its seed, its state, and what its clients require."""

    seed: Array
    state: State
    required: Any


@jit.program(static_argnames=("spec", "layout"))
def evaluate_runs(spec: Spec, layout: Layout, inputs: Inputs, state: State, round: Array) -> dict[str, Labelled]:
    """Losses and accuracies of all clients of all runs: ``[runs, N]`` and ``[runs, U]``."""

    def one_run(algorithm: Algorithm, data: Federation, layout: Layout, run: _Judged) -> dict[str, Labelled]:
        given = algorithm, data, layout, run.state, round
        scores = evaluation.evaluate_state(*given, spec.valid, spec.common, spec.extra, spec.judged)
        if run.required is None:
            return scores
        norm = functools.partial(gradient_norm, *given, run.required)
        if not spec.judged:
            return scores | norm()
        # It adds up gradients of all clients.
        return scores | jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), eager.shapes_of(norm))

    judged = _Judged(state.seed, state, inputs.required)
    return keep_everywhere(map_runs(spec, layout, inputs, judged, one_run), layout)


# Rounds of the longest program; their records are on the device until the program ends.
LONGEST = 1024
# The same on several CPU devices, where the heap grows until the program ends (``jit.UNFUSED``).
LONGEST_ON_CORES = 31


def check_lengths(rounds: int, **others: int | None) -> None:
    """Checks the number of rounds of a run, and positive numbers of its evaluations by name; None: not given."""
    given: list[tuple[str, Any, int]] = [("rounds", rounds, 0)]
    given += [(name, number, 1) for name, number in others.items() if number is not None]
    for name, number, least in given:
        if not (is_whole(number) and least <= number < ROUNDS):
            raise ValueError(f"expected {name} to be a whole number from {least} to {ROUNDS - 1}, got {shown(number)}")


def capacity_of(rounds: int, evaluate_every: int, layout: Layout) -> int:
    """Rounds of the longest program of a run. A longer block between two evaluations takes several calls of it."""
    longest = LONGEST_ON_CORES if is_on_cores(layout) else LONGEST
    return max(1, min(rounds, evaluate_every, longest))


def is_on_cores(layout: Layout) -> bool:
    """Whether the heap grows while rounds run, so that a program of them has to end soon (``jit.UNFUSED``)."""
    return layout.devices > 1 and layout.platform == "cpu" and not layout.is_offloaded


def algorithm_of(spec: Spec, inputs: Inputs, place: Array, seed: Array | None = None) -> tuple[Algorithm, Federation]:
    """The algorithm and the federation of one seed of a single plan; ``place`` is that of ``seed`` among the seeds."""
    mine = inputs.federation
    if is_stacked(mine):
        mine = with_shared(trees.take(without_shared(mine), place), mine)
    return spec.algorithm(inputs.traced, trees.take(inputs.by_seed, place), seed), mine


@jit.program(static_argnames=("spec", "layout", "known"))
def deployed(
    spec: Spec,
    layout: Layout,
    inputs: Inputs,
    state: State,
    seed: Array,
    position: Array,
    known: bool,
    x: Array | None = None,
) -> PyTree:
    """The model that one client of one seed would use, or its logits if raw examples ``x [b, ...]`` are given."""
    # ``position`` is the id of a seen client, or the number of an unseen one.
    algorithm, mine = algorithm_of(spec, inputs, seed, state.seed[seed])
    own = trees.take(state, seed)
    judge = evaluation.Judge(algorithm, mine, own, own.round, known)
    model, _ = judge.deploy(*trees.take((mine.clients, own.clients) if known else (mine.unseen,), position))
    if x is None:
        return model
    return algorithm.predict(model, training.prepare(algorithm.task, x, mine.moments))


class GlobalModel(NamedTuple):
    """Where a Server has the model that all clients use (static)."""

    structure: Any
    places: tuple[int, ...]  # of its leaves among those of the Server
    counts: bool  # whether the algorithm says which clients metrics count

    def of(self, server: PyTree) -> PyTree:
        """The model."""
        leaves = jax.tree.leaves(server)
        return jax.tree.unflatten(self.structure, [leaves[place] for place in self.places])


jax.tree_util.register_static(GlobalModel)


def global_model_of(
    task: Task | None, algorithm: Algorithm, server: PyTree, initial: PyTree, unseen: bool
) -> GlobalModel | None:
    """Where the Server has the model that all clients use; None if it has none, or more than this model is judged."""
    # A model of another structure than ``initial`` may hold functions, and these the algorithm's numbers.
    common = algorithm.common
    if common is None or algorithm.personal is not None or algorithm.models is not None or algorithm.probes:
        return None
    if task is None or not _is_same(task, algorithm.task):
        return None
    zero = np.zeros((), np.int32)

    def parts(server: PyTree, known: bool) -> tuple[Any, tuple[int | None, ...]]:
        """The structure of one client's model, and the places of its leaves; None for what is no leaf of the Server."""
        places = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(server))}
        seat = Seat(jnp.asarray(zero), jnp.asarray(zero if known else zero - 1), jnp.asarray(zero), known)
        leaves, structure = jax.tree.flatten(common(algorithm.down(server, seat)))
        return structure, tuple(places.get(id(leaf)) for leaf in leaves)

    models: list[Any] = []
    # As arguments of a function, all leaves are different objects.
    jax.eval_shape(lambda server: models.extend(parts(server, known) for known in (True, False)[: 1 + unseen]), server)
    structure, places = models[0]
    known_places = tuple(place for place in places if place is not None)
    if structure != jax.tree.structure(initial) or len(known_places) < len(places):
        return None
    if any(other != models[0] for other in models):
        return None
    return GlobalModel(structure, known_places, algorithm.counts is not None)


def task_given(spec: Spec, traced: list[Any]) -> Task | None:
    """The task that a plan's builder gets, with these traced leaves; None if it gets none, or different ones."""
    # A task among the arguments holds no tracers but these leaves, so another program may use it. The arrays of a
    # finished algorithm's task are constants of its programs, not arguments that are on all devices.
    if isinstance(spec.build, FixedBuilder):
        task = spec.build.algorithm.task
        return None if jax.tree.leaves(task) else task
    parts = jax.tree.leaves(spec.arguments(traced), is_leaf=_is_task)
    tasks: list[Task] = list(filter(_is_task, parts))
    return tasks[0] if tasks and all(_is_same(tasks[0], other) for other in tasks) else None


def _is_task(value: Any) -> bool:
    return isinstance(value, Task)


def _is_same(task: Task, other: Task) -> bool:
    leaves, structure = jax.tree.flatten(task)
    others, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(a is b for a, b in zip(leaves, others, strict=True))


def with_global_model(spec: Spec, inputs: Inputs, model: GlobalModel | None) -> Spec:
    """The static part of a run whose evaluations judge this model alone, if they can."""
    task = task_given(spec, inputs.traced)
    if model is None or GRADIENT_NORM in spec.extra or (spec.varied and jax.tree.leaves(task)):
        return spec
    return spec._replace(global_model=model)


class ServedModel(NamedTuple):
    """The Server of ``serve_model``: the model, and which clients metrics count."""

    model: PyTree
    counted: PerClient
    unseen_counted: Bool[Array, ""]


def serve_model(task: Task) -> Algorithm:
    """The algorithm whose clients use the model of the Server, which nobody trains."""

    def init_server(key: Array, census: Census) -> ServedModel:
        everybody = jnp.ones(census.train.shape, bool)
        return ServedModel(task.init(key), PerClient(everybody), jnp.ones((), bool))

    def select(
        key: Array, round: Array, server: ServedModel, ballots: PyTree, available: Available
    ) -> tuple[ServedModel, Cohort, Info]:
        id = jnp.arange(available.population, dtype=jnp.int32)
        return server, Cohort(id, jnp.zeros_like(id), available.mask()), {}

    return Algorithm(
        task=task,
        init_server=init_server,
        send=lambda server, seat: server.model,
        train=lambda key, seat, down, client, data: ((), client),
        aggregate=lambda server, up, round: (server, {}),
        select=select,
        common=lambda down: down,
        counts=lambda server, seat: server.counted if seat.known else server.unseen_counted,
    )


# A few operations for each client.
@jit.program(static_argnames=("spec", "layout"), compiler_options={"xla_backend_optimization_level": 1})
def count_clients(
    spec: Spec, layout: Layout, inputs: Inputs, state: State, round: Array
) -> tuple[Bool[Array, "runs N"], Bool[Array, " runs"]]:
    """Which clients the metrics of all runs count, by id, and whether they count unseen ones."""

    def one_run(algorithm: Algorithm, data: Federation, layout: Layout, state: State) -> tuple[Array, Array]:
        counts, zero = algorithm.counts, jnp.zeros((), jnp.int32)
        assert counts is not None

        def counted(id: Array, known: bool) -> Array:
            seat = Seat(round, id, zero, known)
            return counts(seen_from(state.server, seat), seat)

        seen = jax.vmap(lambda id: counted(id, True))(data.clients.id)
        return seen, jnp.ones((), bool) if data.unseen is None else counted(zero - 1, False)

    return keep_everywhere(map_runs(spec, layout, inputs, state, one_run), layout)


def judge_runs(spec: Spec, layout: Layout, inputs: Inputs, state: State, round: Array) -> dict[str, Labelled]:
    """Losses and accuracies of all clients of all runs: ``[runs, N]`` and ``[runs, U]``."""
    if spec.global_model is None or eager.is_on():
        return evaluate_runs(spec, layout, inputs, state, round)
    if spec.global_model.counts:
        counted = count_clients(spec._replace(judged=0), layout, inputs, _without_clients(state), round)
    else:
        counted = replicate(tuple(np.ones(shape, bool) for shape in _shapes(inputs, state)), layout.devices)
    return evaluate_runs(*_of_model(spec, layout, inputs), _served(spec, state, *counted), round)


def trace_all(spec: Spec, layout: Layout, capacity: int, inputs: Inputs, seeds: Array) -> Iterator[Any]:
    """The traced programs start, rounds and those of an evaluation, one after another, ready to be compiled."""
    zero = jnp.int32(0)
    begun = start.trace(spec, layout, inputs, seeds)
    yield begun
    state = with_shardings(begun.out_info, state_shardings(begun.out_info, layout))
    yield run_rounds.trace(spec, layout, capacity, inputs, state, zero, zero)
    judging = [spec._replace(judged=count) for count in dict.fromkeys((spec.judged, 0))]  # the last one judges all
    if spec.global_model is None:
        yield from (evaluate_runs.trace(each, layout, inputs, state, zero) for each in judging)
        return
    if spec.global_model.counts:
        yield count_clients.trace(spec._replace(judged=0), layout, inputs, _without_clients(state), zero)
    counted = (jax.ShapeDtypeStruct(shape, np.dtype(bool)) for shape in _shapes(inputs, state))
    served = _served(spec, state, *counted)
    served = with_shardings(served, state_shardings(served, layout))
    yield from (evaluate_runs.trace(*_of_model(each, layout, inputs), served, zero) for each in judging)


def _of_model(spec: Spec, layout: Layout, inputs: Inputs) -> tuple[Spec, Layout, Inputs]:
    """The arguments of the evaluation of ``serve_model``, which are the same for all algorithms of a task."""
    plan = Plan(serve_model, {"task": task_given(spec, inputs.traced)})
    serving, traced, by_seed = split_plan(plan)
    serving = serving._replace(valid=spec.valid, common=spec.common, extra=spec.extra, judged=spec.judged)
    # Nobody trains side by side.
    return serving, layout._replace(clients=1), Inputs(traced, by_seed, inputs.federation)


def _served(spec: Spec, state: State, counted: Any, unseen_counted: Any) -> State:
    """The states of ``serve_model``."""
    server = ServedModel(spec.global_model.of(state.server), PerClient(counted), unseen_counted)
    return _without_clients(state)._replace(server=server)


def _without_clients(state: State) -> State:
    return state._replace(clients=(), ballots=())


def _shapes(inputs: Inputs, state: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of what says which clients count."""
    runs = state.seed.shape[0]
    return (runs, inputs.federation.clients.id.shape[-1]), (runs,)


@jit.program(static_argnames=("spec", "layout"))
def predictions(spec: Spec, layout: Layout, inputs: Inputs, state: State, round: Array) -> dict[str, Predicted]:
    """Predictions of all clients of all runs, ``[runs, N, n, ...]``, under "client" and "unseen"."""

    def one_run(algorithm: Algorithm, data: Federation, layout: Layout, state: State) -> dict[str, Predicted]:
        judge = evaluation.Judge(algorithm, data, state, round)
        predicted = {"client": evaluation.predict_seen(judge, layout)}
        if data.unseen is None:
            return predicted
        return predicted | {"unseen": evaluation.predict_unseen(judge._replace(known=False), layout)}

    return keep_everywhere(map_runs(spec, layout, inputs, state, one_run), layout)
