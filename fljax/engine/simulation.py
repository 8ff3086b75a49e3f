"""The host's loop: blocks of rounds, each followed by an evaluation and the callbacks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import results
from fljax.engine import program
from fljax.engine.compilation import compile_all, fastest
from fljax.engine.estimation import Memory, memory_of
from fljax.engine.execution import Execution, neighbours, resolve
from fljax.engine.keys import Seeds, seeds_of
from fljax.engine.labels import check_labels, task_of
from fljax.engine.layout import Layout, replicate
from fljax.engine.program import Inputs, Plan, Spec
from fljax.engine.round import State, by_id
from fljax.engine.shapes import Shapes, measure
from fljax.engine.trained import DeployedModels, Predictions
from fljax.infinite_losses import infinite_losses
from fljax.results import Reference, Result
from fljax.types import Algorithm, Federation, Info, Labelled


class Block(NamedTuple):
    """The argument of a callback, after a block of rounds.

    Attributes:
      round: number of rounds done.
      rounds: number of rounds at the end of the run.
      ran: number of rounds in this block; 0 for the evaluation before the first round.
      metrics: ``{name: [seeds, clients]}`` test losses and accuracies of this evaluation, and ``{name: [seeds]}`` every
        metric over clients that ``Result.metrics`` has for it. With ``reference=`` also the metrics that compare with
        standalone models, such as ``incentivised_participation_rate``. In a sweep the rows are runs: all seeds of the
        first plan, then all seeds of the second, and so on.
      state: of all seeds (or runs). Its memory is donated to the next block, so copy what you keep.
      seconds: seconds of this block, including evaluation.
      diverged: ``((seed, round), ...)`` so far.
    """

    round: int
    rounds: int
    ran: int
    metrics: dict[str, np.ndarray]
    state: State
    seconds: float
    diverged: tuple[tuple[int, int], ...]


Callback = Callable[[Block], Any]
OnMemory = Callable[[Memory], Any]


def is_called_at_start(callback: Callback) -> bool:
    """Whether a callback is also called with the evaluation before the first round."""
    return bool(getattr(callback, "at_start", False))


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
        block of no rounds.
      execution: how clients and seeds map to devices.
      on_memory: called with the run's memory (``fljax.engine.Memory``) once its programs are compiled, before anything
        is computed.

    Returns:
      ``Result``: metrics, records, state, trained models. A seed in which a NaN or infinity appears is frozen at its
      last finite state and reported in ``diverged``; the other seeds continue.

    Raises:
      ValueError: if counts are out of range, if the task has no class for a label, if a scenario's table covers fewer
        rounds, if the federation, ``by_seed`` or ``reference`` has another number of seeds, or if ``initial`` does not
        fit the algorithm and the seeds.
    """
    (result,) = run_plans(
        [algorithm_or_plan],
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
    )
    return result


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
) -> list[Result]:
    """``simulate`` for one plan, or for several that share their programs; ``initial`` is for one plan only."""
    seeds = seeds_of(seeds)
    # A user may give anything.
    if initial is not None and not isinstance(initial, State):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"expected initial to be Result.state of an earlier run, got {type(initial).__name__}")
    capacity = program.capacity_of(rounds, evaluate_every)
    program.check_seeds(seeds, federation)
    federation = by_id(federation)
    parts = [program.partition_plan(plan, federation) for plan in plans]
    for (_, inputs), reference in zip(parts, references, strict=True):
        _check_rows(seeds, inputs, reference)
    references = [_required(plan, reference) for plan, reference in zip(plans, references, strict=True)]
    spec, inputs = program.stack_plans(parts, len(seeds))
    execution = execution or Execution()
    clock = _Clock()
    runs = seeds * len(plans)
    check_labels(task_of(spec, inputs), federation)
    shapes = measure(spec, inputs, len(runs))
    _check_rounds(shapes.algorithm, rounds if initial is None else rounds + int(np.max(initial.round)))
    layout = resolve(execution, shapes.sizes)
    numbers = jnp.asarray(runs, jnp.uint32)
    inputs = replicate(inputs, layout.devices)
    if execution.clients == "trial":
        layout = fastest(spec, neighbours(layout, shapes.sizes), capacity, inputs, numbers)
        clock.lap("trial")
    memory = memory_of(compile_all(spec, layout, capacity, inputs, numbers), inputs, shapes, layout)
    if on_memory is not None:
        on_memory(memory)
    state = program.start(spec, layout, inputs, numbers)
    if initial is not None:
        state = replicate(_fit(initial, state, seeds), layout.devices)
    first = int(np.asarray(state.round).max())
    jax.block_until_ready(state)
    clock.lap("compile")
    evaluations = [(first, _evaluate(spec, layout, inputs, state, first))]
    clock.lap("evaluate")
    if opening := [callback for callback in callbacks if is_called_at_start(callback)]:
        judged = results.metrics_of_runs(seeds, evaluations[0][1], references)
        for callback in opening:
            callback(Block(first, first + rounds, 0, judged, state, 0.0, _diverged(runs, state)))
        clock.skip()

    records: list[Info] = []
    done, end = first, first + rounds
    while done < end:
        began = time.perf_counter()
        usual = first + ((done - first) // capacity + 1) * capacity
        count = min(usual, end, *(at for at in evaluate_at if at > done)) - done
        state, block = program.run_rounds(spec, layout, capacity, inputs, state, jnp.int32(done), jnp.int32(count))
        records.append(jax.tree.map(lambda values, count=count: np.asarray(values)[:, :count], block))
        clock.lap("train")
        done += count
        evaluations.append((done, _evaluate(spec, layout, inputs, state, done)))
        clock.lap("evaluate")
        seconds = time.perf_counter() - began
        if callbacks:
            judged = results.metrics_of_runs(seeds, evaluations[-1][1], references)
            report = Block(done, end, count, judged, state, seconds, _diverged(runs, state))
            answers = [callback(report) for callback in callbacks]  # all are called, even if one stops the run
            clock.skip()
            if any(answers):
                break
    seconds = {purpose: spent / len(plans) for purpose, spent in clock.seconds.items()}
    course = _Course(first, evaluations, records, state, seconds, memory.peak)
    found = []
    for place, (part, reference) in enumerate(zip(parts, references, strict=True)):
        own = slice(place * len(seeds), (place + 1) * len(seeds))
        mine = course if len(plans) == 1 else course.of(own)
        found.append(_result(_Run(*part, layout, shapes, seeds, reference), mine))
    return found


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
    records: list[Info]  # of each block
    state: State
    seconds: dict[str, float]  # by purpose
    memory: int | None  # bytes of each device

    def of(self, own: slice) -> _Course:
        """The results of some of the runs."""
        take = functools.partial(jax.tree.map, lambda leaf: leaf[own])
        evaluations = [(done, take(scores)) for done, scores in self.evaluations]
        return self._replace(evaluations=evaluations, records=take(self.records), state=take(self.state))


def _required(plan: Algorithm | Plan, reference: Reference | None) -> Reference | None:
    """The reference with the ``threshold`` of the plan's arguments, unless the reference already has a threshold."""
    if not isinstance(plan, Plan) or reference is None or reference.required is not None:
        return reference
    return results.with_threshold(reference, plan.by_seed.get("threshold", plan.arguments.get("threshold")))


class _Clock:
    """Seconds by purpose."""

    def __init__(self) -> None:
        self.seconds = {"trial": 0.0, "compile": 0.0, "train": 0.0, "evaluate": 0.0}
        self._last = time.perf_counter()

    def skip(self) -> None:
        """Leaves the time since the last lap out of all purposes."""
        self._last = time.perf_counter()

    def lap(self, purpose: str) -> None:
        now = time.perf_counter()
        self.seconds[purpose] += now - self._last
        self._last = now


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


def _check_rounds(algorithm: Algorithm, end: int) -> None:
    """Raises a ValueError if a scenario's table covers fewer rounds than ``end``."""
    for name, rounds in algorithm.scenarios:
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
    return jax.tree.map(lambda leaf: jnp.asarray(np.array(leaf)), initial)


def _evaluate(spec: Spec, layout: Layout, inputs: Inputs, state: State, done: int) -> dict[str, Labelled]:
    return jax.tree.map(np.asarray, program.evaluate(spec, layout, inputs, state, jnp.int32(done)))


def _diverged(seeds: list[int], state: State) -> tuple[tuple[int, int], ...]:
    rounds = np.asarray(state.diverged).tolist()
    return tuple((seed, round) for seed, round in zip(seeds, rounds, strict=True) if round >= 0)


def _result(run: _Run, course: _Course) -> Result:
    seeds, state = run.seeds, course.state
    metrics = results.metrics_dataset(seeds, course.evaluations, run.reference)
    metrics["diverged"] = (("seed",), np.asarray(state.diverged))
    metrics["rounds_done"] = ((), course.evaluations[-1][0])
    for purpose, spent in course.seconds.items():
        metrics[f"seconds_{purpose}"] = ((), spent)
    numbers = run.layout._asdict()
    how = {name: numbers.pop(name) for name in ("platform", "precision")}
    for name, number in numbers.items():
        metrics[f"execution_{name}"] = ((), number, how if name == "devices" else {})
    told = {"units": "bytes", "long_name": "of each device, by XLA's analysis; NaN where there is none"}
    metrics["execution_memory"] = ((), float("nan" if course.memory is None else course.memory), told)
    population = run.inputs.federation.clients.id.shape[-1]
    table = results.records_dataset(seeds, course.first, course.records, run.shapes.wire, population)
    metrics = results.with_contribution_correlation(metrics, table)

    plan = run.spec, run.inputs
    deployed = DeployedModels(plan, state, len(seeds), run.layout.devices, run.layout.precision)
    infinite = infinite_losses(metrics)
    return Result(metrics, table, state, deployed, Predictions(deployed), _diverged(seeds, state), infinite)
