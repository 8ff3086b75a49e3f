"""Standalone models: every client trains alone, once; the source of thresholds, contributions and IPR metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax.core import processes, trees
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import step_bytes
from fljax.engine.devices.layout import QUICK, Layout, default_platform, keep_everywhere, made_bytes
from fljax.engine.loop import diagnosis
from fljax.engine.loop.checkpointing import identity_of
from fljax.engine.loop.compilation import Memory, checked_seeds
from fljax.engine.offload import standalone as offload
from fljax.engine.programs import jit
from fljax.engine.programs.program import (
    Inputs,
    Plan,
    Spec,
    map_runs,
    on_devices,
    partition_plans,
    same_numbers,
    stack_plans,
)
from fljax.engine.programs.shapes import (
    Execution,
    Sizes,
    check_labels,
    check_programs,
    debug_mode,
    evaluated_bytes,
    first_run,
    resolve_together,
    samples,
)
from fljax.engine.rounds.standalone import (
    Initial,
    StandalonePlan,
    check_initial,
    check_stop_alone,
    check_valid_alone,
    reference_of,
    shared_model,
    train_alone,
    train_population,
)
from fljax.engine.rounds.states import Purpose, Seeds, as_vectors
from fljax.protocol import ClientData, Federation, Rows, Spans, Task
from fljax.results import Reference
from fljax.training import Local, StopAlone


def standalone(
    task: Task,
    federation: Federation,
    local: Local,
    *,
    seeds: Seeds = (0,),
    initial: Initial = "shared",
    stop: StopAlone | None = None,
    valid: bool = False,
    keep_models: bool = False,
    execution: Execution | None = None,
    on_memory: Callable[[Memory], Any] | None = None,
) -> Reference:
    """Trains every client, seen and unseen, on its own training rows only, and judges the result.

    All clients of a seed start from the initial model of the algorithms, so only their data differ; or each of them
    from initial weights of its own.

    Args:
      task: model and loss.
      federation: one, or one per seed (``fljax.data.stack``).
      local: INCFL: ``steps=100`` with the batch size and learning rate of the run; IAFL: ``epochs`` = rounds.
      seeds: as for ``simulate``.
      initial: "shared"; or "own": every client draws its initial weights, from the seed and its id.
      stop: early stopping of each client by its validation loss: the client keeps the parameters where this was least.
        A client without validation rows trains to the end. None: all do.
      valid: also judge the models on validation rows: ``valid_loss``.
      keep_models: also return the models, ``[seeds, N, ...]``.
      execution: how clients and seeds map to devices.
      on_memory: called with the memory of the training (``fljax.engine.Memory``) once it is compiled.

    Returns:
      ``Reference``: thresholds ``rho_k = F_k(what_k)`` (training loss of the standalone model ``what_k``, all rows),
      test losses and accuracies (None if the task has no score).

    Raises:
      ValueError: if seeds do not fit the federation, the task has no class for a label, or its loss or score is not one
        number per sample; if ``initial`` is no valid name, or "own" for a task that starts from given parameters
        (``fljax.models.start_from``, or ``freeze`` without ``draw``); with ``stop`` or ``valid``, if no client has
        validation rows.

    Source: INCFL, Algorithm 1, line 1; IAFL, appendix on standalone accuracy.
    """
    options: dict[str, Any] = {"initial": initial, "stop": stop, "valid": valid, "keep_models": keep_models}
    how: dict[str, Any] = {"seeds": seeds, "execution": execution, "on_memory": on_memory}
    (reference,) = standalone_sweep(task, federation, [local], **options, **how)
    return reference


def estimate_standalone(
    task: Task,
    federation: Federation,
    local: Local,
    *,
    seeds: Seeds = (0,),
    initial: Initial = "shared",
    stop: StopAlone | None = None,
    valid: bool = False,
    execution: Execution | None = None,
) -> Memory:
    """The memory of ``standalone`` with these arguments. Its program is compiled for its memory, and not run.

    Raises:
      ValueError: as for ``standalone``.
    """
    numbers, parts = _split(federation, seeds, [StandalonePlan(task, local, initial, stop, valid)])
    return _memory(_prepared(parts, task, local, numbers, False, execution), quick=True)


@processes.reporting()
def standalone_sweep(
    task: Task,
    federation: Federation,
    locals: Sequence[Local],
    *,
    seeds: Seeds = (0,),
    initial: Initial = "shared",
    stop: StopAlone | None = None,
    valid: bool = False,
    keep_models: bool = False,
    execution: Execution | None = None,
    on_memory: Callable[[Memory], Any] | None = None,
) -> list[Reference]:
    """``standalone`` for several local settings; settings that differ only in floats are runs of one program.

    Args:
      task: model and loss.
      federation: one, or one per seed.
      locals: at least one; equal settings are computed once.
      seeds, initial, stop, valid, keep_models, execution: as for ``standalone``.
      on_memory: as for ``standalone``, for each program.

    Returns:
      One ``Reference`` for each of ``locals``, in their order.
    """
    with debug_mode(execution or Execution()) as execution:
        asked = [StandalonePlan(task, local, initial, stop, valid) for local in locals]
        numbers, parts = _split(federation, seeds, asked)
        for spec, inputs in parts:  # processes that compute something else would mix their results
            _check_same(spec, inputs, numbers, keep_models, execution)
        groups: dict[Spec, list[tuple[Local, Inputs]]] = {}
        places: list[tuple[Spec, int]] = []
        for local, (spec, inputs) in zip(locals, parts, strict=True):
            members = groups.setdefault(spec, [])
            equal = [place for place, (_, other) in enumerate(members) if same_numbers(other.traced, inputs.traced)]
            if not equal:
                members.append((local, inputs))
            places.append((spec, equal[0] if equal else len(members) - 1))
        references: dict[Spec, list[Reference]] = {}
        for spec, members in groups.items():
            stacked = [(spec, inputs) for _, inputs in members]
            prepared = _prepared(stacked, task, members[0][0], numbers, keep_models, execution)
            references[spec] = _references(prepared, len(numbers), on_memory)
        return [references[spec][place] for spec, place in places]


def _split(
    federation: Federation, seeds: Seeds, asked: Sequence[StandalonePlan]
) -> tuple[list[int], list[tuple[Spec, Inputs]]]:
    """The seeds, and all that is asked for as plans, checked and split."""
    numbers, stored = checked_seeds(federation, seeds)
    plans: list[Plan] = []
    for each in asked:
        check_labels(each.task, federation)
        check_initial(each.task, each.initial)
        stop, valid = check_stop_alone(federation, each.stop), bool(check_valid_alone(federation, each.valid))
        arguments = each._replace(stop=stop, valid=valid)._asdict()
        # What is not asked for is left out, as in plans of results saved before.
        plans.append(Plan(StandalonePlan, {name: value for name, value in arguments.items() if value}))
    return numbers, partition_plans(plans, stored)


def _check_same(spec: Spec, inputs: Inputs, seeds: list[int], keep_models: bool, execution: Execution) -> None:
    """Raises a ValueError unless all processes train the same standalone models."""
    settings = {"keep_models": keep_models, "execution": repr(execution)}
    processes.check_same(lambda: identity_of(spec, inputs, seeds, 0, None, (), **settings))
    numbers = jnp.asarray(seeds, jnp.uint32)
    check_programs(lambda: [_run.trace(spec, Layout(1, 1, 1), keep_models, inputs, numbers)])


class _Prepared(NamedTuple):
    """The arguments of ``_run``, and the bytes of one model."""

    arguments: tuple[Spec, Layout, bool, Inputs, Array]
    model: int


def _prepared(
    parts: Sequence[tuple[Spec, Inputs]],
    task: Task,
    local: Local,
    seeds: Sequence[int],
    keep_models: bool,
    execution: Execution | None,
) -> _Prepared:
    """The program of local settings that share one; ``local`` is one of the settings."""
    spec, inputs = stack_plans(parts, len(seeds))
    federation = inputs.federation
    runs = list(seeds) * len(parts)
    model = trees.bytes_of(eager.shapes_of(lambda: task.init(jax.random.key(0))))
    rows = federation.clients.train.index.shape[-1]
    unseen = 0 if federation.unseen is None else federation.unseen.id.shape[-1]
    count = federation.clients.id.shape[-1] + unseen
    # With epochs, the number of steps depends on the client's size; with steps, it does not.
    ragged = None if local.epochs is None else samples(federation)
    evaluated = evaluated_bytes(federation, rows)
    # On a CPU a trace for this number takes longer than what a better number of clients saves.
    platform = default_platform()
    lane = 0 if platform == "cpu" else _step_bytes(spec, inputs, platform)
    stored = trees.bytes_of(federation.examples), federation.examples.is_mapped
    sizes = Sizes(count, count, len(runs), model, evaluated, lane, ragged, *stored)
    layout = resolve_together(execution or Execution(), sizes)._replace(client_states="device")
    inputs = inputs if layout.is_offloaded else on_devices(inputs, layout)
    return _Prepared((spec, layout, keep_models, inputs, jnp.asarray(runs, jnp.uint32)), model)


def _references(prepared: _Prepared, seeds: int, on_memory: Callable[[Memory], Any] | None) -> list[Reference]:
    """The references of local settings that share a program."""
    if on_memory is not None and not eager.is_on():
        on_memory(_memory(prepared))
    spec, layout, _, inputs, runs = prepared.arguments
    run = offload.references if layout.is_offloaded else _run
    trained = jax.tree.map(np.asarray, run(*prepared.arguments))
    if diagnosis.is_asked():
        diagnosis.check_standalone(_run, spec, layout, inputs, runs, trained)
    starts = range(0, len(prepared.arguments[-1]), seeds)
    return [jax.tree.map(lambda leaf, at=start: leaf[at : at + seeds], trained) for start in starts]


def _memory(prepared: _Prepared, quick: bool = False) -> Memory:
    """Compiles the program; ``_run`` uses it, unless it is compiled for its memory only (``quick``)."""
    spec, layout, keep_models, inputs, runs = prepared.arguments
    if layout.is_offloaded:
        peak, data = offload.memory(spec, layout, keep_models, inputs, quick)
        return Memory(peak, data, 0, 0, prepared.model, len(runs), layout.devices)
    made = made_bytes(_run.trace(*prepared.arguments).lower().compile(QUICK if quick else None))
    peak = None if made is None else trees.bytes_of(inputs) + made
    return Memory(peak, trees.bytes_of(inputs.federation), 0, 0, prepared.model, len(runs), layout.devices)


def _step_bytes(spec: Spec, inputs: Inputs, platform: str) -> int:
    """Bytes that one client's local step reads and writes, see ``fljax.engine.devices.client_mapping``."""

    def one(client: ClientData, traced: list[Any], by_seed: Any, data: Federation) -> Any:
        plan: Any = spec.algorithm(traced, by_seed)
        zero = jnp.zeros((), jnp.int32)
        return train_alone(plan, as_vectors(data), client, zero, plan.task.init(jax.random.key(0)), zero)

    traced, by_seed, data = first_run(spec, inputs)
    client = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data.clients)
    return step_bytes(jax.make_jaxpr(one)(client, traced, by_seed, data).jaxpr, platform)


@jit.program(static_argnames=("spec", "layout", "keep_models"), is_long=True)
def _run(spec: Spec, layout: Layout, keep_models: bool, inputs: Inputs, seeds: Array) -> Reference:
    def one_run(plan: Any, data: Federation, layout: Layout, seed: Array) -> Reference:
        params = shared_model(plan, seed)
        everyone, seen = data.clients, data.clients.id.shape[0]
        base = jnp.full((seen,), int(Purpose.STANDALONE))
        if data.unseen is not None:  # one program for both populations: joined into one table
            fresh = jnp.full(data.unseen.id.shape, int(Purpose.UNSEEN_STANDALONE))
            base = jnp.concatenate([base, fresh])
            everyone = jax.tree.map(_joined, data.clients, data.unseen, is_leaf=lambda node: isinstance(node, Rows))
        trained = train_population(plan, data, everyone, base, params, seed, layout, keep_models)
        known, fresh = (jax.tree.map(lambda leaf, of=of: leaf[of], trained) for of in (slice(seen), slice(seen, None)))
        return reference_of(known, None if data.unseen is None else fresh)

    return keep_everywhere(map_runs(spec, layout, inputs, seeds, one_run), layout)


def _joined(a: Any, b: Any) -> Any:
    """Two populations concatenated along the axis of clients; tables of rows are padded to the longer length."""
    if not isinstance(a, Rows):
        return jnp.concatenate([a, b])
    width, size = max(a.index.shape[-1], b.index.shape[-1]), jnp.concatenate([a.size, b.size])
    if isinstance(a.index, Spans):
        return Rows(Spans(jnp.concatenate([a.index.start, b.index.start]), width), size)
    tables = [jnp.pad(rows.index, ((0, 0), (0, width - rows.index.shape[-1]))) for rows in (a, b)]
    return Rows(jnp.concatenate(tables), size)
