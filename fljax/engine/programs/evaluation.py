"""The evaluation of the states of all runs, and all programs of a run in their order.

If all clients use one model, which is a part of the Server, its scores are those of ``serve_model``. So one program
judges the models of all algorithms of a task and a federation. A small one asks the algorithm which clients count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, keep_everywhere, replicate, state_shardings, with_shardings
from fljax.engine.programs import jit, program
from fljax.engine.programs.declared import FixedBuilder
from fljax.engine.programs.program import Inputs, Plan, Spec, map_runs, split_plan
from fljax.engine.rounds.evaluate import GRADIENT_NORM, predict_tests
from fljax.engine.rounds.states import State
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
    if common is None or algorithm.personal is not None or algorithm.models is not None:
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
        return program.evaluate(spec, layout, inputs, state, round)
    if spec.global_model.counts:
        counted = count_clients(spec, layout, inputs, _without_clients(state), round)
    else:
        counted = replicate(tuple(np.ones(shape, bool) for shape in _shapes(inputs, state)), layout.devices)
    return program.evaluate(*_of_model(spec, layout, inputs), _served(spec, state, *counted), round)


def trace_all(spec: Spec, layout: Layout, capacity: int, inputs: Inputs, seeds: Array) -> Iterator[Any]:
    """The traced programs start, rounds and those of an evaluation, one after another, ready to be compiled."""
    zero = jnp.int32(0)
    begun = program.start.trace(spec, layout, inputs, seeds)
    yield begun
    state = with_shardings(begun.out_info, state_shardings(begun.out_info, layout))
    yield program.run_rounds.trace(spec, layout, capacity, inputs, state, zero, zero)
    if spec.global_model is None:
        yield program.evaluate.trace(spec, layout, inputs, state, zero)
        return
    if spec.global_model.counts:
        yield count_clients.trace(spec, layout, inputs, _without_clients(state), zero)
    counted = (jax.ShapeDtypeStruct(shape, np.dtype(bool)) for shape in _shapes(inputs, state))
    served = _served(spec, state, *counted)
    served = with_shardings(served, state_shardings(served, layout))
    yield program.evaluate.trace(*_of_model(spec, layout, inputs), served, zero)


def _of_model(spec: Spec, layout: Layout, inputs: Inputs) -> tuple[Spec, Layout, Inputs]:
    """The arguments of the evaluation of ``serve_model``, which are the same for all algorithms of a task."""
    plan = Plan(serve_model, {"task": task_given(spec, inputs.traced)})
    serving, traced, by_seed = split_plan(plan)
    serving = serving._replace(valid=spec.valid, common=spec.common, extra=spec.extra)
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
        return predict_tests(algorithm, data, layout, state, round)

    return keep_everywhere(map_runs(spec, layout, inputs, state, one_run), layout)
