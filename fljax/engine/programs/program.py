"""The compiled programs of a run: static and traced parts of a plan, and the mapping over runs (cells x seeds)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fljax import training
from fljax.core import trees, values
from fljax.core.names import describe, describe_items, name_of, shown
from fljax.core.signatures import is_whole
from fljax.data.arrays import check_unchanged
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import map_lanes
from fljax.engine.devices.layout import Layout, keep_everywhere, place_state, replicate
from fljax.engine.programs import jit
from fljax.engine.programs.declared import TRACED, FixedBuilder, as_declared, share_partials
from fljax.engine.rounds import errors
from fljax.engine.rounds import evaluate as evaluation
from fljax.engine.rounds.evaluate import gradient_norm
from fljax.engine.rounds.keys import CLIENTS, ROUNDS, check_below
from fljax.engine.rounds.round import RoundOptions, one_round
from fljax.engine.rounds.states import (
    State,
    as_vectors,
    by_id,
    initial_state,
    same_tests,
    with_least,
    with_shared,
    without_shared,
)
from fljax.protocol import Algorithm, Federation, Info, Labelled
from fljax.results.non_finite import NonFinite


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

    def run(inputs: Inputs, seeds: Array) -> State:
        states = map_runs(spec, layout, inputs, seeds, begin)
        # Weakly typed leaves (from Python numbers) become strongly typed, as in every later state.
        return place_state(jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), states), layout)

    return run(inputs, seeds)


@jit.program(static_argnames=("spec", "layout", "capacity"), donate_argnames=("state",))
def run_rounds(
    spec: Spec, layout: Layout, capacity: int, inputs: Inputs, state: State, first: Array, count: Array
) -> tuple[State, Info]:
    """``count`` rounds from round ``first`` for all runs, in one program; records are ``[runs, capacity, ...]``."""
    # ``count`` is traced, so blocks of any length share one compilation.

    def run(inputs: Inputs, state: State, first: Array, count: Array) -> tuple[State, Info]:
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

    return run(inputs, state, first, count)


class _Judged(NamedTuple):
    """A run that is evaluated: its seed, its state, and what its clients require."""

    seed: Array
    state: State
    required: Any


@jit.program(static_argnames=("spec", "layout"))
def evaluate(spec: Spec, layout: Layout, inputs: Inputs, state: State, round: Array) -> dict[str, Labelled]:
    """Losses and accuracies of all clients of all runs: ``[runs, N]`` and ``[runs, U]``."""

    def run(inputs: Inputs, state: State, round: Array) -> dict[str, Labelled]:
        def one_run(algorithm: Algorithm, data: Federation, layout: Layout, run: _Judged) -> dict[str, Labelled]:
            given = algorithm, data, layout, run.state, round
            scores = evaluation.evaluate(*given, spec.valid, spec.common, spec.extra)
            return scores if run.required is None else scores | gradient_norm(*given, run.required)

        judged = _Judged(state.seed, state, inputs.required)
        return keep_everywhere(map_runs(spec, layout, inputs, judged, one_run), layout)

    return run(inputs, state, round)


# Rounds of the longest program; their records are on the device until the program ends.
LONGEST = 1024
# The same on several CPU devices, where the heap grows until the program ends (``jit.UNFUSED``).
LONGEST_ON_CORES = 31


def check_lengths(rounds: int, evaluate_every: int | None = None) -> None:
    """Checks the numbers of rounds of a run, and between two of its evaluations."""
    given: list[tuple[str, Any, int]] = [("rounds", rounds, 0)]
    given += [] if evaluate_every is None else [("evaluate_every", evaluate_every, 1)]
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
    algorithm, mine = algorithm_of(spec, inputs, seed, state.seed[seed])
    model = evaluation.deployed(algorithm, mine, trees.take(state, seed), position, known)
    if x is None:
        return model
    return algorithm.predict(model, training.prepare(algorithm.task, x, mine.moments))
