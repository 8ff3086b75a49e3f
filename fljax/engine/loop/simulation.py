"""``simulate``: a plan is split, compiled, run block by block, and its results are labelled."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fljax import results
from fljax.core import processes
from fljax.engine.callbacks import contract
from fljax.engine.callbacks.contract import Callback, diverged
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Layout, default_platform, of_this_process
from fljax.engine.devices.out_of_memory import is_out_of_memory, sentence, smaller
from fljax.engine.loop import offenders
from fljax.engine.loop.blocks import (
    Clock,
    OnMemory,
    compiled,
    earlier_blocks,
    evaluation_rounds,
    programs_of,
    run_blocks,
)
from fljax.engine.loop.checkpointing import Keeper, Position, identity_of
from fljax.engine.loop.compilation import fastest
from fljax.engine.loop.kept import Kept, OnEvaluated, runs_of
from fljax.engine.loop.starting import starting_from
from fljax.engine.loop.trained import DeployedModels, Predictions, arrays_of, state_of, unbound, with_arrays
from fljax.engine.programs import debugging, program
from fljax.engine.programs.execution import Execution, neighbours, resolve_together
from fljax.engine.programs.labels import check_labels, task_of
from fljax.engine.programs.program import Inputs, Plan, Spec, on_devices
from fljax.engine.programs.same_calls import check_programs
from fljax.engine.programs.shapes import Shapes, measure
from fljax.engine.rounds.federations import by_id
from fljax.engine.rounds.keys import Seeds, seeds_of
from fljax.engine.rounds.states import State
from fljax.protocol import Algorithm, Features, Federation, Info, Labelled
from fljax.results import BestModels, Reference, Result, records, stores
from fljax.results.non_finite import NonFinite, check_mode, infinite_losses, with_anomalies


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
      evaluate_every: rounds between two evaluations of all clients; None: only before and after. A final evaluation
        always takes place.
      evaluate_at: further numbers of rounds done after which all clients are evaluated; numbers outside the run are
        ignored.
      callbacks: called with a ``Block`` after every evaluation except the first; a callback that returns True stops
        the run. A callback with an attribute ``at_start`` that is True is also called with the first evaluation, as a
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

    Returns:
      ``Result``: metrics, records, state, trained models. A seed in which a NaN or infinity appears in the server or in
      a client's state is frozen at its last finite state and reported in ``diverged``; the other seeds continue.

    Raises:
      ValueError: if counts are out of range, if the task has no class for a label, if a scenario's table covers fewer
        rounds, if the federation, ``by_seed`` or ``reference`` has another number of seeds, or if ``initial`` does not
        fit the algorithm and the seeds. With ``checkpoint``, if the folder has checkpoints of another run. With
        ``keep_best``, if no client has validation rows. With ``initial_model``, if it does not fit the task, if there
        is an ``initial`` state, too, or if an ``Algorithm`` is given. If ``non_finite`` is not a valid name.
      OSError: if the disk has no room for long records; the checkpoints are kept, so that the same call goes on.
      Stopped: if ``Checkpoint.stop`` asks for it, after a checkpoint.
      AlgorithmError: if a function of the algorithm raises an exception, which is the cause.
      fljax.core.errors.ProcessLost: if one of several processes has ended.
      fljax.results.non_finite.NotFinite: with ``non_finite="stop"``, if something was not finite; it has the seed, the
        round, the clients and the Result until then.
    """
    if initial is not None and initial_model is not None:
        raise ValueError("expected at most one of initial, a state to go on from, and initial_model, got both")
    (result,) = run_plans(
        [starting_from(algorithm_or_plan, initial_model)],
        federation,
        rounds=rounds,
        seeds=seeds,
        references=[reference],
        initial=initial,
        evaluate_every=evaluate_every,
        evaluate_at=evaluate_at,
        callbacks=callbacks,
        execution=execution,
        on_memory=on_memory,
        checkpoint=checkpoint,
        kept=Kept(keep_best, on_evaluated),
        non_finite=non_finite,
        leave_records=True,
    )
    return result


@processes.reporting()
@debugging.as_asked
def run_plans(
    plans: Sequence[Algorithm | Plan],
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds,
    references: Sequence[Reference | None],
    initial: State | None = None,
    evaluate_every: int | None = None,
    evaluate_at: Sequence[int] = (),
    callbacks: Sequence[Callback] = (),
    execution: Execution | None = None,
    on_memory: OnMemory | None = None,
    checkpoint: str | pathlib.Path | Checkpoint | None = None,
    kept: Kept | None = None,
    non_finite: NonFinite = "freeze",
    leave_records: bool = False,
) -> list[Result]:
    """``simulate`` for one plan, or for several that share their programs; ``initial`` is for one plan only.

    ``leave_records``: whether long records stay on the disk; for one plan only.
    """
    seeds = seeds_of(seeds)
    check_mode(non_finite)
    # A user may give anything.
    if initial is not None and not isinstance(initial, State):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"expected initial to be Result.state of an earlier run, got {type(initial).__name__}")
    capacity = program.capacity_of(rounds, evaluate_every)
    program.check_seeds(seeds, federation)
    features, federation = federation.features, by_id(federation)
    parts = [program.partition_plan(plan, federation) for plan in plans]
    for (_, inputs), reference in zip(parts, references, strict=True):
        _check_rows(seeds, inputs, reference)
    references = [_required(plan, reference) for plan, reference in zip(plans, references, strict=True)]
    spec, inputs = program.stack_plans(parts, len(seeds))
    kept = kept or Kept()
    kept.check(spec)
    spec = spec._replace(non_finite=non_finite)
    execution = execution or Execution()
    processes.check_same(lambda: {"execution": repr(execution)})
    callbacks = contract.same_everywhere(callbacks)
    clock = Clock()
    runs = seeds * len(plans)
    check_labels(task_of(spec, inputs), federation)
    shapes = measure(spec, inputs, len(runs))
    check_rounds(shapes.algorithm, rounds if initial is None else rounds + int(np.max(initial.round)))
    numbers = jnp.asarray(runs, jnp.uint32)
    check_programs(lambda: program.trace_all(spec, Layout(1, 1, 1), 1, inputs, numbers))
    first = 0 if initial is None else int(np.max(initial.round))
    stops = evaluation_rounds(first, first + rounds, evaluate_every, evaluate_at)
    keeper = Keeper(
        None if checkpoint is None else _settings(checkpoint),
        lambda: identity_of(
            spec, inputs, runs, rounds, initial, evaluate_every=evaluate_every, evaluate_at=stops, **kept.identity
        ),
        rounds,
        len(stops) + 1,
    )
    resumed = keeper.newest(execution, default_platform())
    layout = resolve_together(execution, shapes.sizes) if resumed is None or resumed.layout is None else resumed.layout
    trial = execution.clients == "trial" and not layout.is_offloaded
    if trial and (resumed is None or resumed.layout is None):
        inputs = on_devices(inputs, layout)
        layout = fastest(spec, neighbours(layout, shapes.sizes), capacity, inputs, numbers)
        clock.lap("trial")

    def judge(evaluated: dict[str, Labelled]) -> dict[str, np.ndarray]:
        return results.metrics_of_runs(seeds, evaluated, references, shapes.alone)

    while True:
        run = programs_of(spec, layout, capacity, inputs, numbers, shapes)
        try:
            if resumed is None:
                memory = compiled(run, shapes, on_memory)
                state = run.start()
                if initial is not None:
                    state = run.placed(_fit(initial, state, seeds))
                jax.block_until_ready(state)
                clock.lap("compile")
                history = keeper.history()
                scores = run.evaluate(state, first)
                history.measured(first, scores)
                kept.begin()
                kept.evaluated(first, scores, state)
                clock.lap("evaluate")
                if opening := [callback for callback in callbacks if contract.is_called_at_start(callback)]:
                    own = of_this_process(state)
                    block = contract.Block(first, first + rounds, 0, judge(scores), own, 0.0, diverged(runs, state))
                    contract.call_all(opening, block)
                    clock.skip()
                at = Position(first, first, False, clock.seconds, memory)
            else:
                at, history = resumed.position, resumed.history
                kept.resume(resumed.best)
                state = run.placed(state_of(resumed.state, spec, layout, inputs, numbers))
                if any(hasattr(callback, "replay") for callback in callbacks):
                    blocks = earlier_blocks(history, first + rounds, of_this_process(state), judge)
                    over = processes.agreed(lambda blocks=blocks: contract.replay(callbacks, blocks))
                    at = at._replace(ended=at.ended or over)
                if at.done < first + rounds and not at.ended:
                    at = at._replace(memory=compiled(run, shapes, on_memory))
                clock.add(at.seconds)
                clock.lap("compile")
            state, at = run_blocks(run, stops, state, history, at, keeper, execution, clock, callbacks, judge, kept)
            break
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            fewer = smaller(layout)
            if fewer is None or not is_out_of_memory(error):
                raise
            layout = fewer
        # The state was given to the program that failed, so the run goes on after its newest checkpoint.
        resumed, clock = keeper.newest(execution, default_platform()), Clock()
        if resumed is None:
            contract.replay(callbacks, [])  # they forget what begins anew
        keeper.warn(sentence(layout, first if resumed is None else resumed.position.done))
    state = unbound(state)
    seconds = {purpose: spent / len(plans) for purpose, spent in clock.seconds.items()}
    store = keeper.records if leave_records and history.is_long else None
    blocks = history.records() if store is None else history.blocks()
    course = _Course(first, history.evaluations(), blocks, store, state, seconds, at.memory, kept.found(state))
    found = []
    for place, (part, reference) in enumerate(zip(parts, references, strict=True)):
        own = slice(place * len(seeds), (place + 1) * len(seeds))
        mine = course if len(plans) == 1 else course.of(own)
        found.append(_result(_Run(*part, layout, shapes, seeds, reference), mine, features))
    offenders.check_stopped(non_finite, found)
    return found


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

    def of(self, own: slice) -> _Course:
        """The results of some of the runs."""
        take = functools.partial(jax.tree.map, lambda leaf: leaf[own])
        evaluations = [(done, take(scores)) for done, scores in self.evaluations]
        best = None if self.best is None else runs_of(self.best, own)
        return self._replace(evaluations=evaluations, records=take(self.records), state=take(self.state), best=best)


def _required(plan: Algorithm | Plan, reference: Reference | None) -> Reference | None:
    """The reference with the ``threshold`` of the plan's arguments, unless the reference already has a threshold."""
    if not isinstance(plan, Plan) or reference is None or reference.required is not None:
        return reference
    return results.with_threshold(reference, plan.by_seed.get("threshold", plan.arguments.get("threshold")))


def _check_rows(seeds: list[int], inputs: Inputs, reference: Reference | None) -> None:
    """Raises a ValueError unless ``by_seed`` and ``reference`` have a row for each seed."""
    for name, tree in inputs.by_seed.items():
        for leaf in jax.tree.leaves(tree):
            if np.ndim(leaf) == 0 or np.shape(leaf)[0] != len(seeds):
                raise ValueError(f"expected {name} in by_seed to have {len(seeds)} rows, got shape {np.shape(leaf)}")
    expected = (len(seeds), inputs.federation.clients.id.shape[-1])
    if reference is not None and np.shape(reference.threshold) != expected:
        raise ValueError(
            f"expected reference to be of {expected} seeds and clients, got {np.shape(reference.threshold)}"
        )


def check_rounds(algorithm: Algorithm, end: int) -> None:
    """Raises a ValueError if a scenario's table covers fewer rounds than ``end``."""
    for name, rounds, _ in algorithm.scenarios:
        if rounds is not None and end > rounds:
            raise ValueError(f"expected at most {rounds} rounds, for which the table of {name} has rows, got {end}")


def _fit(initial: State, fresh: State, seeds: list[int]) -> State:
    """A copy of ``initial`` (the program donates its argument); raises a ValueError if its shapes do not fit."""
    found, expected = jax.tree.structure(initial), jax.tree.structure(fresh)
    if found != expected:
        raise ValueError(f"expected initial to be a state of this algorithm, {expected}, got {found}")
    for got, want in zip(jax.tree.leaves(initial), jax.tree.leaves(fresh), strict=True):
        if np.shape(got) != want.shape or got.dtype != want.dtype:
            raise ValueError(
                f"expected initial to have the shapes of this run, {want.dtype}{list(want.shape)}, "
                f"got {got.dtype}{list(np.shape(got))}"
            )
    if np.asarray(initial.seed).tolist() != seeds:
        raise ValueError(f"expected the seeds of initial, {np.asarray(initial.seed).tolist()}, got {seeds}")
    rounds = np.unique(np.asarray(initial.round))
    if rounds.size > 1:
        raise ValueError(f"expected all seeds of initial at the same round, got {rounds.tolist()}")
    # Through the host, since ``initial`` may be on other devices than those of this run.
    return with_arrays(fresh, {name: np.array(each) for name, each in arrays_of(initial).items()})


def _result(run: _Run, course: _Course, features: Features | tuple[Features, ...]) -> Result:
    seeds, state = run.seeds, course.state
    metrics = results.metrics_dataset(seeds, course.evaluations, run.reference, run.shapes.alone)
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
    found = offenders.divergences(run.spec, run.inputs, run.layout, run.shapes, state, seeds, table)
    metrics = with_anomalies(metrics, table, found, population)

    plan = run.spec, run.inputs
    deployed = DeployedModels(plan, state, len(seeds), run.layout.devices, run.layout.precision)
    infinite, best = infinite_losses(metrics), None
    if course.best is not None:
        own = DeployedModels(plan, course.best[0], len(seeds), 1, run.layout.precision)
        best = BestModels(*course.best, own, Predictions(own, features))
    frozen = diverged(seeds, state)
    return Result(metrics, table, state, deployed, Predictions(deployed, features), frozen, infinite, best, found)
