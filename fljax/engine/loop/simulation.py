"""``simulate`` and ``sweep``: an algorithm, or plans that differ only in numbers, run with all seeds at once.

``run_plans``: plans that share their programs are split and compiled, run block by block, and results labelled.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from fljax import results
from fljax.core import processes
from fljax.core.sameness import FORCED
from fljax.engine.callbacks import Callback, diverged, same_everywhere, with_results
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Layout, default_platform
from fljax.engine.loop import diagnosis
from fljax.engine.loop.blocks import Clock, Loop, completed
from fljax.engine.loop.checkpointing import CheckpointKeeper, identity_of
from fljax.engine.loop.compilation import Together, fastest
from fljax.engine.loop.history import BestSoFar, Hooks, OnEvaluated, OnMemory, Schedule, check_counted, of_one_training
from fljax.engine.loop.trained import DeployedModels, Predictions, Scoring
from fljax.engine.programs import program
from fljax.engine.programs.program import Plan, on_devices
from fljax.engine.programs.shapes import Execution, check_programs, debug_mode, neighbours
from fljax.engine.rounds.states import Seeds, State, unbound
from fljax.metrics.registry import COMPUTE
from fljax.metrics.scores import Asked, scores_of
from fljax.protocol import Algorithm, Features, Federation, Info, Labelled, Task
from fljax.results import BestModels, Reference, Result, records, stores
from fljax.results.non_finite import NonFinite, infinite_losses, with_anomalies


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
        # A user may give anything.
        if initial is not None and not isinstance(initial, State):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected initial to be Result.state of an earlier run, got {type(initial).__name__}")
        processes.check_same(lambda: {"execution": repr(execution)})
        clock = Clock()
        first = 0 if initial is None else int(np.max(initial.round))
        together = Together.of(plans, federation, schedule._replace(execution=execution), first, references)
        seeds, runs, references = together.seeds, together.runs, together.references
        spec, inputs, shapes = together.spec, together.inputs, together.shapes
        best = BestSoFar(hooks.keep_best, hooks.on_evaluated)
        best.check(spec)
        callbacks = same_everywhere(hooks.callbacks)
        # The task of the arguments, if there is one, has no tracers.
        task = program.task_given(spec, inputs.traced) or shapes.algorithm.task
        scoring = Scoring.of(schedule, first, task, inputs.federation, len(runs), federation.names)
        check_programs(lambda: program.trace_all(*together.on(Layout(1, 1, 1))._replace(capacity=1)[:-1]))
        stops = schedule.evaluations(first)
        keeper = CheckpointKeeper(
            Checkpoint.of(hooks.checkpoint),
            lambda: identity_of(
                spec,
                inputs,
                runs,
                schedule.rounds,
                initial,
                [score.compute for score in scoring.scores],
                evaluate_every=schedule.spacing,
                evaluate_at=list(stops) if len(stops) <= 2**16 else repr(stops),
                **({"clients_per_evaluation": spec.judged, "all_at": sorted(schedule.all_at)} if spec.judged else {}),
                **best.identity,
                **scoring.identity,
            ),
            schedule.rounds,
            len(stops) + 1,
            execution,
        )

        test_rows = _test_rows(inputs.federation, len(seeds))

        def judge(scores: dict[str, Labelled]) -> dict[str, np.ndarray]:
            return results.metrics_of_runs(seeds, scores, references, shapes.alone, test_rows)

        counts = not COMPUTE.isdisjoint(schedule.extra_metrics)
        resumed = keeper.newest(default_platform())
        known = None if resumed is None else resumed.layout
        prepared = together.on(known)
        layout = prepared.layout
        if counts:
            check_counted(layout.is_offloaded)
        if execution.clients == "trial" and not layout.is_offloaded and known is None:
            prepared = prepared._replace(inputs=on_devices(inputs, layout))
            prepared = prepared._replace(layout=fastest(prepared, neighbours(layout, shapes.sizes)))
            clock.lap("trial")
        end = first + schedule.rounds
        given = first, end, stops, runs, callbacks, hooks.on_memory, judge, best, keeper, scoring
        loop = Loop(*given, all_at={*schedule.all_at, end})
        progress, layout, clock = completed(loop, prepared, initial, resumed, clock)
        state, history = unbound(progress.state), progress.history
        seconds = {purpose: spent / len(plans) for purpose, spent in clock.seconds.items()}
        store = keeper.records if leave_records and history.is_long else None
        blocks = history.records() if store is None else history.blocks()
        memory = progress.position.memory
        course = _Course(first, history.evaluations(), blocks, store, state, seconds, memory, best.result(state))
        plan_results = []
        for place in range(len(plans)):
            rows = slice(place * len(seeds), (place + 1) * len(seeds))
            part_course = course if len(plans) == 1 else course.of(rows)
            result = _result(together, place, layout, counts, part_course, federation.features)
            told = {FORCED: keeper.forced} if keeper.forced else {}
            plan_results.append(result._replace(metrics=scoring.described(result.metrics).assign_attrs(told)))
        if progress.raised is not None:
            raise with_results(progress.raised, plan_results, progress.position.done)
        diagnosis.check_stopped(schedule.non_finite, plan_results)
        return plan_results


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
        parts = {name: take(getattr(self, name)) for name in ("records", "state", "best")}
        return self._replace(evaluations=evaluations, **parts)


def _test_rows(federation: Federation, seeds: int) -> dict[str, np.ndarray]:
    """How many test rows the clients of every seed have, by id, and unseen ones."""
    populations = {"test_rows": federation.clients, "unseen_test_rows": federation.unseen}
    sizes = {name: np.asarray(each.test.size) for name, each in populations.items() if each is not None}
    return {name: np.broadcast_to(size, (seeds, size.shape[-1])).copy() for name, size in sizes.items()}


def _result(
    together: Together,
    place: int,
    layout: Layout,
    counts: bool,
    course: _Course,
    features: Features | tuple[Features, ...],
) -> Result:
    """The result of the plan at ``place``; ``counts``: whether gradients and inference passes are counted."""
    seeds, state, shapes = together.seeds, course.state, together.shapes
    (spec, inputs), reference = together.parts[place], together.references[place]
    rows = _test_rows(inputs.federation, len(seeds))
    metrics = results.metrics_dataset(seeds, course.evaluations, reference, shapes.alone, rows)
    metrics["diverged"] = (("seed",), np.asarray(state.diverged))
    metrics["rounds_done"] = ((), course.evaluations[-1][0])
    for purpose, spent in course.seconds.items():
        metrics[f"seconds_{purpose}"] = ((), spent)
    numbers = layout._asdict()
    how = {name: numbers.pop(name) for name in ("platform", "precision", "examples", "client_states")}
    for name, number in numbers.items():
        metrics[f"execution_{name}"] = ((), number, how if name == "devices" else {})
    told = {"units": "bytes", "long_name": "of each device, by XLA's analysis; NaN where there is none"}
    metrics["execution_memory"] = ((), float("nan" if course.memory is None else course.memory), told)
    population = inputs.federation.clients.id.shape[-1]
    told = shapes.wire, population
    if course.store is None:
        table = records.dataset(seeds, course.first, list(course.records), *told)
    else:
        rounds = course.evaluations[-1][0] - course.first
        parts = records.datasets(seeds, course.first, course.records, *told, rounds)
        table = stores.save_records(course.store, parts)
    metrics = results.with_contribution_correlation(metrics, table)
    if counts:
        of_training = of_one_training(spec, inputs, state, len(seeds), bool(shapes.algorithm.scenarios))
        metrics = records.with_compute(metrics, table, of_training)
    divergences = diagnosis.divergences(spec, inputs, layout, shapes, state, seeds, table)
    metrics = with_anomalies(metrics, table, divergences, population)

    plan = spec, inputs
    deployed = DeployedModels(plan, state, len(seeds), layout.devices, layout.precision)
    infinite, best = infinite_losses(metrics), None
    if course.best is not None:
        deployed_best = DeployedModels(plan, course.best[0], len(seeds), 1, layout.precision)
        best = BestModels(*course.best, deployed_best, Predictions(deployed_best, features))
    frozen = diverged(seeds, state)
    return Result(metrics, table, state, deployed, Predictions(deployed, features), frozen, infinite, best, divergences)


def simulate(
    algorithm_or_plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    reference: Reference | None = None,
    initial: State | None = None,
    evaluate_every: int | None = None,
    evaluate_at: Sequence[int] = (),
    callbacks: Sequence[Callback] = (),
    execution: Execution | None = None,
    on_memory: OnMemory | None = None,
    checkpoint: str | pathlib.Path | Checkpoint | None = None,
    keep_best: bool | Collection[int] = False,
    on_evaluated: OnEvaluated | None = None,
    initial_model: PyTree | None = None,
    non_finite: NonFinite = "freeze",
    extra_metrics: Sequence[str] = (),
    scores: Sequence[Asked] = (),
    score_every: int | None = None,
    clients_per_evaluation: int | None = None,
) -> Result:
    """Runs a federated algorithm; rounds between two evaluations are one compiled program for all seeds.

    Args:
      algorithm_or_plan: an ``Algorithm``, or a ``Plan`` whose floats change without recompiling.
      federation: shared by all seeds, or one per seed (``fljax.data.stack``).
      rounds: number of rounds to run (after ``initial``); 0 only evaluates.
      seeds: integers that key all randomness of a run; 3 means the seeds 0, 1 and 2. Results of a seed do not depend on
        the other seeds.
      reference: standalone models (``fljax.standalone``) for the metrics that compare with them.
        ``global_model_appeal`` compares with a ``threshold`` in the plan's arguments or ``by_seed``. For an
        ``Algorithm`` built with a threshold, pass ``fljax.results.with_threshold(reference, threshold)``.
      initial: ``Result.state`` of an earlier run, to continue that run.
      evaluate_every: rounds between two evaluations of all clients; None: a tenth of ``rounds``, rounded down, and
        at least 1, as in configs. There is always one before and one after the run; with ``max(rounds, 1)`` there is no
        other, but for ``evaluate_at``.
      evaluate_at: further numbers of rounds done after which all clients are evaluated; numbers outside the run are
        ignored.
      callbacks: called with a ``Block`` after every evaluation except the first; a callback that returns True stops
        the run. An exception of a callback ends it: its attribute ``results`` has the Result until then, as that of
        NotFinite. A callback with an attribute ``at_start`` that is True is also called with the first evaluation, as a
        block of no rounds. A callback with a method ``replay`` gets the earlier blocks of a run that goes on after a
        checkpoint (``fljax.engine.replay``). Of several processes (``fljax.distributed``), only process 0 calls them.
      execution: how clients and seeds map to devices. If the memory of a device does not suffice, the run goes on with
        half as many side by side, after its newest checkpoint or from its beginning, and says so.
      on_memory: called with the run's memory (``fljax.engine.Memory``) once its programs are compiled, before anything
        is computed; not called in debug mode, where nothing is compiled.
      checkpoint: a folder for checkpoints of this run, or a ``Checkpoint``. The state, all records and all evaluations
        are saved every 30 seconds and at the end. The same call with the same folder goes on after the newest
        checkpoint: bit for bit as without an interruption, if execution and devices are the same. Callbacks are not
        called again for earlier blocks. Of several processes, only process 0 reads and writes the folder.
      keep_best: whether ``Result.best`` has, for each seed, the models of the evaluation with the best mean over
        clients on their validation rows: the highest ``average_valid_accuracy``, or the lowest mean ``valid_loss`` if
        the task has no score. The earliest of equal evaluations counts. Numbers of rounds done instead of True: only
        these evaluations and the first one count. The best state so far is kept on the host and in checkpoints.
      on_evaluated: called with the number of rounds done and the state after every evaluation, the first one included.
        The memory of the state is donated to the next block, so copy what you keep. Of several processes, only
        process 0 calls it.
      initial_model: parameters from which clients and server start in place of ``task.init(key)``, like those. It needs
        a Plan with the argument ``task``; other values do not recompile. Standalone models of the same start are those
        of ``standalone(fljax.models.start_from(task, params), ...)``.
      non_finite: what happens to a client whose message (Up) or new state has a NaN or infinity; infinities in a
        Report do not count. "freeze": nothing, unless it spreads as below. "drop": its message is left out, as if the
        client were absent, and its state is kept; records count such messages. "stop": the run stops after the block of
        rounds in which it happens.
      extra_metrics: names of metrics that take more computation, and so must be asked for: those of
        ``fljax.metrics.registry.ON_REQUEST``, e.g. ``("objective", "objective_gradient_norm")``.
      scores: scores of the task beside its accuracy, by scikit-learn: names of ``fljax.metrics.SCORES`` ("auroc",
        "f1"), ``"module:object"``, functions ``(labels, probabilities) -> float``, or a ``Score``, which says whether
        lower is better. Results have ``score_NAME`` by client, ``average_score_NAME`` and ``pooled_score_NAME``. A
        function that fails on made rows is refused; one that fails later has NaN there, with a RuntimeWarning.
      score_every: evaluations between two that have scores, which are NaN elsewhere; None: the last evaluation alone.
      clients_per_evaluation: the number of seen clients that an evaluation judges; None: all. They are drawn uniformly
        without replacement from those with training and test rows, by seed and round, so they are the same for all
        algorithms. The others are NaN there, and metrics over clients (also sums and counts of clients, ``keep_best``
        and callbacks) are over the judged ones. The last evaluation and those of ``evaluate_at`` judge all. So does
        every evaluation unseen clients, test rows that all clients share, and ``scores``, while
        ``objective_gradient_norm`` is NaN unless all are judged.

    Returns:
      ``Result``: metrics, records, state, trained models. A seed in which a NaN or infinity appears in the server or in
      a client's state is frozen at its last finite state and reported in ``diverged``; the other seeds continue.

    Raises:
      ValueError: if counts are out of range, if the task has no class for a label, if a scenario's table covers fewer
        rounds, if the federation, ``by_seed`` or ``reference`` has another number of seeds, or if ``initial`` does not
        fit the algorithm and the seeds. With ``checkpoint``, if the folder has checkpoints of another run. With
        ``keep_best``, if no client has validation rows. With ``initial_model``, if it does not fit the task, if there
        is an ``initial`` state, too, or if an ``Algorithm`` is given. If ``non_finite`` is not a valid name. If a name
        in ``extra_metrics`` is unknown, or the run has not what the metric is computed from. If a score is
        unknown or does not fit the task.
      OSError: if the disk has no room for long records; the checkpoints are kept, so that the same call goes on.
      Stopped: if ``Checkpoint.stop`` asks for it, after a checkpoint.
      AlgorithmError: if a function of the algorithm raises an exception, which is the cause.
      fljax.core.errors.ProcessLost: if one of several processes has ended.
      fljax.results.non_finite.NotFinite: with ``non_finite="stop"``, if something was not finite; it has the seed, the
        round, the clients and the Result until then.
    """
    if initial is not None and initial_model is not None:
        raise ValueError("expected at most one of initial, a state to go on from, and initial_model, got both")
    plan = starting_from(algorithm_or_plan, initial_model)
    schedule = Schedule(rounds, seeds, evaluate_every, evaluate_at, execution or Execution(), non_finite)
    schedule = schedule._replace(extra_metrics=extra_metrics, scores=scores_of(scores), score_every=score_every)
    schedule = schedule._replace(clients_per_evaluation=clients_per_evaluation, all_at=evaluate_at)
    hooks = Hooks(callbacks, on_memory, checkpoint, keep_best, on_evaluated)
    (result,) = run_plans([plan], federation, schedule, [reference], hooks, initial=initial, leave_records=True)
    return result


def sweep(
    plans: Sequence[Algorithm | Plan],
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    references: Sequence[Reference | None] | Reference | None = None,
    evaluate_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    execution: Execution | None = None,
    on_memory: OnMemory | None = None,
    checkpoint: str | pathlib.Path | Checkpoint | None = None,
    keep_best: bool = False,
    non_finite: NonFinite = "freeze",
    extra_metrics: Sequence[str] = (),
    scores: Sequence[Asked] = (),
    score_every: int | None = None,
    clients_per_evaluation: int | None = None,
) -> list[Result]:
    """Runs every plan with every seed in one compiled program; the plans differ only in floats and arrays.

    Numbers in which plans differ get an axis of runs, mapped like seeds (``Execution.seeds``: how many runs are side by
    side). Equal numbers are shared.

    Args:
      plans: at least one; all with the same builder and the same ints, strings, bools and functions.
      federation: shared by all plans and seeds, or one per seed (``fljax.data.stack``).
      seeds, keep_best: as for ``simulate``, for every plan.
      references: standalone models, one for each plan or one for all of them (``fljax.engine.standalone_sweep``).
      callbacks, on_memory, checkpoint: as for ``simulate``, for all runs together; one ``Block`` has all runs.
      execution: as for ``simulate``; "trial" times the whole sweep.
      non_finite: as for ``simulate``; "stop" stops all runs.
      rounds, evaluate_every, extra_metrics, scores, score_every, clients_per_evaluation: as for ``simulate``.

    Returns:
      One ``Result`` per plan, equal to that of ``simulate`` up to rounding. Seconds in ``metrics`` are the sweep's
      seconds divided by the number of plans. If a NaN or infinity appears in a run, only this run is frozen.

    Raises:
      ValueError: if there is no plan, if plans differ in more than the values of floats and arrays, if there is
        another number of references, or as for ``simulate``.
      fljax.results.non_finite.NotFinite: as for ``simulate``.
    """
    plans = list(plans)
    if not plans:
        raise ValueError("expected at least one plan to sweep over, got none")
    if references is None or isinstance(references, Reference):
        references = [references] * len(plans)
    if len(references) != len(plans):
        raise ValueError(f"expected one reference for each of {len(plans)} plans, got {len(references)}")
    schedule = Schedule(rounds, seeds, evaluate_every, (), execution or Execution(), non_finite)
    schedule = schedule._replace(extra_metrics=extra_metrics, scores=scores_of(scores), score_every=score_every)
    schedule = schedule._replace(clients_per_evaluation=clients_per_evaluation)
    return run_plans(plans, federation, schedule, references, Hooks(callbacks, on_memory, checkpoint, keep_best))


def starting_from(plan: Algorithm | Plan, params: PyTree | None) -> Algorithm | Plan:
    """The plan whose argument ``task`` starts from ``params``; for None the plan itself."""
    if params is None:
        return plan
    task: Any = plan.arguments.get("task") if isinstance(plan, Plan) else None
    if not isinstance(plan, Plan) or not isinstance(task, Task):
        got = "a Plan without the argument task" if isinstance(plan, Plan) else "an Algorithm, whose task is built in"
        raise ValueError(
            f"expected a Plan with the argument task for initial_model, got {got}; build it of "
            "fljax.models.start_from(task, params)"
        )
    from fljax.models import start_from  # imported here, since it needs flax

    return plan._replace(arguments={**plan.arguments, "task": start_from(task, params)})
