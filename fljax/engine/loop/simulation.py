"""``simulate`` and ``sweep``: an algorithm, or plans that differ only in numbers, run with all seeds at once."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Sequence
from typing import Any

from jaxtyping import PyTree

from fljax.engine.callbacks.contract import Callback
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.loop.running import run_plans
from fljax.engine.loop.schedule import Hooks, OnEvaluated, OnMemory, Schedule
from fljax.engine.programs.execution import Execution
from fljax.engine.programs.program import Plan
from fljax.engine.rounds.keys import Seeds
from fljax.engine.rounds.states import State
from fljax.metrics.scores import Asked, scores_of
from fljax.protocol import Algorithm, Federation, Task
from fljax.results import Reference, Result
from fljax.results.non_finite import NonFinite


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
    how = execution or Execution(), non_finite, extra_metrics, scores_of(scores), score_every
    schedule = Schedule(rounds, seeds, evaluate_every, evaluate_at, *how)
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
) -> list[Result]:
    """Runs every plan with every seed in one compiled program; the plans differ only in floats and arrays.

    Numbers in which plans differ get an axis of runs, mapped like seeds (``Execution.seeds``: how many runs are side by
    side). Equal numbers are shared.

    Args:
      plans: at least one; all with the same builder and the same ints, strings, bools and functions.
      federation: shared by all plans and seeds, or one per seed (``fljax.data.stack``).
      rounds: as for ``simulate``.
      seeds: as for ``simulate``, for every plan.
      references: standalone models, one for each plan or one for all of them (``fljax.engine.standalone_sweep``).
      evaluate_every: as for ``simulate``.
      callbacks: as for ``simulate``; one ``Block`` has all runs.
      execution: as for ``simulate``; "trial" times the whole sweep.
      on_memory: as for ``simulate``, for all runs together.
      checkpoint: as for ``simulate``, for all runs together.
      keep_best: as for ``simulate``, for every run.
      non_finite: as for ``simulate``; "stop" stops all runs.
      extra_metrics: as for ``simulate``.
      scores: as for ``simulate``.
      score_every: as for ``simulate``.

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
    how = execution or Execution(), non_finite, extra_metrics, scores_of(scores), score_every
    schedule = Schedule(rounds, seeds, evaluate_every, (), *how)
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
