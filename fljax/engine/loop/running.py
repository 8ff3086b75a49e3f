"""``run_plans``: plans that share their programs are split and compiled, run block by block, and results labelled."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import results
from fljax.core import processes
from fljax.core.labels import check_unlabelled
from fljax.core.sameness.record import FORCED
from fljax.engine.callbacks import contract
from fljax.engine.callbacks.contract import diverged
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Layout, default_platform
from fljax.engine.loop import compute, diagnosis
from fljax.engine.loop.blocks import Clock, Loop, completed
from fljax.engine.loop.checkpointing import CheckpointKeeper, identity_of
from fljax.engine.loop.compilation import PreparedRun, fastest
from fljax.engine.loop.history import BestSoFar, runs_of
from fljax.engine.loop.schedule import Hooks, Schedule
from fljax.engine.loop.scoring import Scoring
from fljax.engine.loop.trained import DeployedModels, Predictions
from fljax.engine.programs import evaluation, program
from fljax.engine.programs.checks import check_labels, check_programs, task_of
from fljax.engine.programs.execution import debug_mode, neighbours, resolve_together
from fljax.engine.programs.program import Inputs, Plan, Spec, on_devices
from fljax.engine.programs.shapes import Shapes, measure
from fljax.engine.rounds.federations import by_id
from fljax.engine.rounds.keys import ROUNDS, check_below, seeds_of
from fljax.engine.rounds.objective import GRADIENT_NORM
from fljax.engine.rounds.states import State, unbound
from fljax.metrics.registry import COMPUTE
from fljax.protocol import Algorithm, Features, Federation, Info, Labelled
from fljax.results import BestModels, Reference, Result, records, stores
from fljax.results.non_finite import check_mode, infinite_losses, with_anomalies


@processes.reporting()
def run_plans(
    plans: Sequence[Algorithm | Plan],
    federation: Federation,
    schedule: Schedule,
    references: Sequence[Reference | None],
    hooks: Hooks,
    *,
    initial: State | None = None,
    leave_records: bool = False,
) -> list[Result]:
    """The results of plans that share their programs, since they differ in floats and arrays only; one for each."""
    # ``initial`` and ``leave_records`` (long records stay on the disk) are for a single plan.
    with debug_mode(schedule.execution) as execution:
        seeds = seeds_of(schedule.seeds)
        check_mode(schedule.non_finite)
        # A user may give anything.
        if initial is not None and not isinstance(initial, State):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected initial to be Result.state of an earlier run, got {type(initial).__name__}")
        program.check_lengths(schedule.rounds, schedule.evaluate_every)
        program.check_seeds(seeds, federation)
        features, names, federation = federation.features, federation.names, by_id(federation)
        parts = program.partition_plans(plans, federation)
        for (_, inputs), reference in zip(parts, references, strict=True):
            check_rows(seeds, inputs, reference)
        references = [_required(plan, reference) for plan, reference in zip(plans, references, strict=True)]
        spec, inputs = program.stack_plans(parts, len(seeds))
        best = BestSoFar(hooks.keep_best, hooks.on_evaluated)
        best.check(spec)
        spec = spec._replace(non_finite=schedule.non_finite, extra=schedule.needs(spec.valid))
        if GRADIENT_NORM in spec.extra:
            inputs = inputs._replace(required=_stacked_requirements(references))
        processes.check_same(lambda: {"execution": repr(execution)})
        callbacks = contract.same_everywhere(hooks.callbacks)
        clock = Clock()
        runs = seeds * len(plans)
        task = task_of(spec, inputs)
        check_labels(task, federation)
        known = evaluation.task_given(spec, inputs.traced) or task  # if it can be, without tracers
        first = 0 if initial is None else int(np.max(initial.round))
        scoring = Scoring.of(schedule, first, known, federation, len(runs), names)
        shapes = measure(spec, inputs, len(runs))
        spec = evaluation.with_global_model(spec, inputs, shapes.global_model)
        check_rounds(shapes.algorithm, first + schedule.rounds)
        numbers = jnp.asarray(runs, jnp.uint32)
        check_programs(lambda: evaluation.trace_all(spec, Layout(1, 1, 1), 1, inputs, numbers))
        stops = schedule.evaluations(first)
        keeper = CheckpointKeeper(
            None if hooks.checkpoint is None else _settings(hooks.checkpoint),
            lambda: identity_of(
                spec,
                inputs,
                runs,
                schedule.rounds,
                initial,
                [score.compute for score in scoring.scores],
                evaluate_every=schedule.spacing,
                evaluate_at=list(stops) if len(stops) <= 2**16 else repr(stops),
                **best.identity,
                **scoring.identity,
            ),
            schedule.rounds,
            len(stops) + 1,
            execution,
        )

        test_rows = _test_rows(federation, len(seeds))

        def judge(scores: dict[str, Labelled]) -> dict[str, np.ndarray]:
            return results.metrics_of_runs(seeds, scores, references, shapes.alone, test_rows)

        counts = not COMPUTE.isdisjoint(schedule.extra_metrics)
        resumed = keeper.newest(default_platform())
        layout = None if resumed is None else resumed.layout
        is_known = layout is not None
        layout = resolve_together(execution, shapes.sizes) if layout is None else layout
        if counts:
            compute.check_counted(layout.is_offloaded)
        capacity = program.capacity_of(schedule.rounds, schedule.spacing, layout)
        prepared = PreparedRun(spec, layout, capacity, inputs, numbers, shapes)
        if execution.clients == "trial" and not layout.is_offloaded and not is_known:
            prepared = prepared._replace(inputs=on_devices(inputs, layout))
            prepared = prepared._replace(layout=fastest(prepared, neighbours(layout, shapes.sizes)))
            clock.lap("trial")
        loop = Loop(
            first, first + schedule.rounds, stops, runs, callbacks, hooks.on_memory, judge, best, keeper, scoring
        )
        progress, layout, clock = completed(loop, prepared, initial, resumed, clock)
        state, history = unbound(progress.state), progress.history
        seconds = {purpose: spent / len(plans) for purpose, spent in clock.seconds.items()}
        store = keeper.records if leave_records and history.is_long else None
        blocks = history.records() if store is None else history.blocks()
        memory = progress.position.memory
        course = _Course(first, history.evaluations(), blocks, store, state, seconds, memory, best.result(state))
        plan_results = []
        for place, (part, reference) in enumerate(zip(parts, references, strict=True)):
            rows = slice(place * len(seeds), (place + 1) * len(seeds))
            part_course = course if len(plans) == 1 else course.of(rows)
            result = _result(_Run(*part, layout, shapes, seeds, reference, counts), part_course, features)
            told = {FORCED: keeper.forced} if keeper.forced else {}
            plan_results.append(result._replace(metrics=scoring.described(result.metrics).assign_attrs(told)))
        if progress.raised is not None:
            raise contract.with_results(progress.raised, plan_results, progress.position.done)
        diagnosis.check_stopped(schedule.non_finite, plan_results)
        return plan_results


def _settings(checkpoint: str | pathlib.Path | Checkpoint) -> Checkpoint:
    return (checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)).check()


class _Run(NamedTuple):
    """One plan and the settings of its run."""

    spec: Spec
    inputs: Inputs
    layout: Layout
    shapes: Shapes
    seeds: list[int]
    reference: Reference | None
    counts: bool  # whether gradients and inference passes are counted


class _Course(NamedTuple):
    """The results of one plan, or of several that ran together: arrays ``[runs, ...]``."""

    first: int  # round
    evaluations: list[tuple[int, dict[str, Labelled]]]  # after how many rounds
    records: Iterable[Info]  # of each block
    store: pathlib.Path | None  # where the records go; None: they stay in memory
    state: State
    seconds: dict[str, float]  # by purpose
    memory: int | None  # bytes of each device
    best: tuple[State, np.ndarray, np.ndarray] | None  # state, round, value

    def of(self, rows: slice) -> _Course:
        """The results of some of the runs."""
        take = functools.partial(jax.tree.map, lambda leaf: leaf[rows])
        evaluations = [(done, take(scores)) for done, scores in self.evaluations]
        best = None if self.best is None else runs_of(self.best, rows)
        return self._replace(evaluations=evaluations, records=take(self.records), state=take(self.state), best=best)


def _required(plan: Algorithm | Plan, reference: Reference | None) -> Reference | None:
    """The reference with the ``threshold`` of the plan's arguments, unless the reference already has a threshold."""
    if not isinstance(plan, Plan) or reference is None or reference.required is not None:
        return reference
    return results.with_threshold(reference, plan.by_seed.get("threshold", plan.arguments.get("threshold")))


def _stacked_requirements(references: Sequence[Reference | None]) -> np.ndarray:
    """What clients require in all runs ``[runs, N]``, those of the first plan first."""
    known = [reference for reference in references if reference is not None]
    if len(known) < len(references):
        raise ValueError(f"expected a reference, with what clients require, for {GRADIENT_NORM}, got None")
    required = [each.threshold if each.required is None else each.required for each in known]
    return np.concatenate([np.asarray(each) for each in required])


def check_rows(seeds: list[int], inputs: Inputs, reference: Reference | None) -> None:
    """Raises a ValueError unless ``by_seed`` and ``reference`` have a row for each seed."""
    for name, tree in inputs.by_seed.items():
        for leaf in jax.tree.leaves(tree):
            if np.ndim(leaf) == 0 or np.shape(leaf)[0] != len(seeds):
                raise ValueError(f"expected {name} in by_seed to have {len(seeds)} rows, got shape {np.shape(leaf)}")
    check_unlabelled("reference", reference)
    expected = (len(seeds), inputs.federation.clients.id.shape[-1])
    if reference is not None and np.shape(reference.threshold) != expected:
        raise ValueError(
            f"expected reference to be of {expected} seeds and clients, got {np.shape(reference.threshold)}"
        )


def check_rounds(algorithm: Algorithm, end: int) -> None:
    """Raises a ValueError if a scenario's table, or random keys, cover fewer rounds than ``end``."""
    check_below(ROUNDS, "the number of all rounds", end)
    for name, rounds, _ in algorithm.scenarios:
        if rounds is not None and end > rounds:
            raise ValueError(f"expected at most {rounds} rounds, for which the table of {name} has rows, got {end}")


def _test_rows(federation: Federation, seeds: int) -> dict[str, np.ndarray]:
    """How many test rows the clients of every seed have, by id, and unseen ones."""
    populations = {"test_rows": federation.clients, "unseen_test_rows": federation.unseen}
    sizes = {name: np.asarray(each.test.size) for name, each in populations.items() if each is not None}
    return {name: np.broadcast_to(size, (seeds, size.shape[-1])).copy() for name, size in sizes.items()}


def _result(run: _Run, course: _Course, features: Features | tuple[Features, ...]) -> Result:
    seeds, state = run.seeds, course.state
    rows = _test_rows(run.inputs.federation, len(seeds))
    metrics = results.metrics_dataset(seeds, course.evaluations, run.reference, run.shapes.alone, rows)
    metrics["diverged"] = (("seed",), np.asarray(state.diverged))
    metrics["rounds_done"] = ((), course.evaluations[-1][0])
    for purpose, spent in course.seconds.items():
        metrics[f"seconds_{purpose}"] = ((), spent)
    numbers = run.layout._asdict()
    how = {name: numbers.pop(name) for name in ("platform", "precision", "examples", "client_states")}
    for name, number in numbers.items():
        metrics[f"execution_{name}"] = ((), number, how if name == "devices" else {})
    told = {"units": "bytes", "long_name": "of each device, by XLA's analysis; NaN where there is none"}
    metrics["execution_memory"] = ((), float("nan" if course.memory is None else course.memory), told)
    population = run.inputs.federation.clients.id.shape[-1]
    told = run.shapes.wire, population
    if course.store is None:
        table = records.dataset(seeds, course.first, list(course.records), *told)
    else:
        rounds = course.evaluations[-1][0] - course.first
        parts = records.datasets(seeds, course.first, course.records, *told, rounds)
        table = stores.save(course.store, parts)
    metrics = results.with_contribution_correlation(metrics, table)
    if run.counts:
        counts = compute.of_one_training(run.spec, run.inputs, state, len(seeds), bool(run.shapes.algorithm.scenarios))
        metrics = records.with_compute(metrics, table, counts)
    divergences = diagnosis.divergences(run.spec, run.inputs, run.layout, run.shapes, state, seeds, table)
    metrics = with_anomalies(metrics, table, divergences, population)

    plan = run.spec, run.inputs
    deployed = DeployedModels(plan, state, len(seeds), run.layout.devices, run.layout.precision)
    infinite, best = infinite_losses(metrics), None
    if course.best is not None:
        deployed_best = DeployedModels(plan, course.best[0], len(seeds), 1, run.layout.precision)
        best = BestModels(*course.best, deployed_best, Predictions(deployed_best, features))
    frozen = diverged(seeds, state)
    return Result(metrics, table, state, deployed, Predictions(deployed, features), frozen, infinite, best, divergences)
