"""Shapes and bytes of a run, by abstract evaluation: nothing is computed.

Checks before anything is computed: labels fit the classes of the task, and processes run the same programs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.core import processes, trees, users
from fljax.core.platforms import ANY
from fljax.core.trees import numbers_of
from fljax.data.arrays import check_wide
from fljax.engine.checkpoints import checksum
from fljax.engine.devices import eager
from fljax.engine.devices.jaxprs import is_all_true, step_bytes, steps_differ
from fljax.engine.devices.layout import Layout, default_platform, state_shardings
from fljax.engine.programs import jit
from fljax.engine.programs.evaluation import GlobalModel, global_model_of, task_given
from fljax.engine.programs.execution import Sizes
from fljax.engine.programs.program import Inputs, Spec, is_stacked
from fljax.engine.rounds.round import TrainedCohort, able_clients, choose, close, train_one
from fljax.engine.rounds.states import State, as_vectors, held_data, initial_state, with_shared, without_shared
from fljax.protocol import Algorithm, Available, ClientData, Cohort, Federation, Seat, Task, seen_from
from fljax.protocol.lists import RowLists
from fljax.protocol.sums import add_up, as_streamed
from fljax.results.records import Wire
from fljax.training import AT_ONCE


class Shapes(NamedTuple):
    """Shapes and sizes of a run, from abstract evaluation (``measure``)."""

    algorithm: Algorithm  # with tracers inside: only its static fields may be read
    sizes: Sizes
    state: Any  # of one run, as shapes; None where nothing is evaluated
    model: int  # bytes of one initial model of the task
    wire: Wire
    global_model: GlobalModel | None = None

    @property
    def alone(self) -> bool:
        """Whether clients train alone: they receive nothing. Without ``jax.jit`` known once one has trained."""
        return self.algorithm.common is None and self.wire.down == 0


def first_run(spec: Spec, inputs: Inputs) -> tuple[list[Any], Any, Federation]:
    """Shapes of one run's inputs: traced leaves, its row of ``by_seed``, and its federation."""
    data, take = inputs.federation, lambda tree: jax.eval_shape(lambda tree: trees.take(tree, 0), tree)
    if is_stacked(data):
        data = with_shared(take(without_shared(data)), data)
    traced = [take(leaf) if place in spec.varied else leaf for place, leaf in enumerate(inputs.traced)]
    return traced, take(inputs.by_seed), data


def first_algorithm(spec: Spec, inputs: Inputs) -> Algorithm:
    """The algorithm of the first run, with numbers in place of tracers."""
    traced = [leaf[0] if place in spec.varied else leaf for place, leaf in enumerate(inputs.traced)]
    return spec.algorithm(list(map(jnp.asarray, traced)), trees.take(inputs.by_seed, 0))


# Programs that are traced and never compiled. A rehearsal, a compilation ahead and the run itself share their traces.
_TRACED = jit.Store(jit.PROGRAMS, collects=False)


class _Begun(NamedTuple):
    """What is there before round 0."""

    algorithm: Algorithm  # static; with tracers inside
    state: State  # of one run
    cohort: Cohort  # of round 0
    down: PyTree  # what the first client would get
    model: PyTree
    global_model: GlobalModel | None  # static


@jit.program(static_argnames=("spec", "layout"), store=_TRACED)
def _begin(spec: Spec, layout: Layout, traced: list[Any], by_seed: Any, data: Federation) -> _Begun:
    data, algorithm, zero = as_vectors(data), spec.algorithm(traced, by_seed), jnp.zeros((), jnp.int32)
    state = initial_state(algorithm, data, zero)
    available, seat = Available(data.clients.id.shape[0]), Seat(zero, zero, zero)
    _, cohort, _ = algorithm.select(jax.random.key(0), zero, state.server, state.ballots, available)
    down = algorithm.down(state.server, seat)
    model, unseen = algorithm.task.init(jax.random.key(0)), data.unseen is not None
    shared = global_model_of(task_given(spec, traced), algorithm, state.server, model, unseen)
    return _Begun(algorithm, state, cohort, down, model, shared)


@jit.program(static_argnames=("spec", "layout"), store=_TRACED)
def _train(
    spec: Spec,
    layout: Layout,
    traced: list[Any],
    by_seed: Any,
    data: Federation,
    server: PyTree,
    client: ClientData,
    client_state: PyTree,
) -> tuple[PyTree, PyTree]:
    """The message of one client, and what it contributes to the round: a Part and a record."""
    algorithm, zero = spec.algorithm(traced, by_seed), jnp.zeros((), jnp.int32)
    up, _ = train_one(algorithm, as_vectors(data), zero, zero, server, client, zero, client_state)
    seat = Seat(zero, client.id, zero)
    return up, as_streamed(algorithm.aggregate).contribute(seen_from(server, seat), seat, up)


@jit.program(static_argnames=("spec", "layout"), store=_TRACED)
def _close(
    spec: Spec,
    layout: Layout,
    traced: list[Any],
    by_seed: Any,
    data: Federation,
    state: State,
    contribution: PyTree,
) -> State:
    """The state after round 0 if every client of the cohort contributed the same."""
    data, algorithm, zero = as_vectors(data), spec.algorithm(traced, by_seed), jnp.zeros((), jnp.int32)
    size = data.clients.train.size
    chosen = choose(algorithm, size, state, zero, state.ballots, able_clients(size, None, spec.everybody))
    count = chosen.row.shape[0]
    parts, rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), contribution)
    total = add_up(parts, chosen.cohort.present)
    trained = TrainedCohort(total, rows, (), (), jnp.zeros((), bool))
    examples = held_data(data, layout)
    return close(algorithm, examples, state, zero, state.ballots, chosen, trained, spec.non_finite)[0]


def _of_one_run(spec: Spec, inputs: Inputs, platform: str) -> tuple[Spec, Layout, list[Any], Any, Federation]:
    """The arguments of these programs. What says how a run goes on is left out of ``spec``."""
    # The rules for accelerators were measured with the bytes of code that has the forms of all platforms.
    layout = Layout(1, 1, 1, platform=platform if platform == "cpu" else ANY)
    return spec._replace(varied=(), non_finite="freeze", extra=(), global_model=None), layout, *first_run(spec, inputs)


def _traced_client(arguments: tuple[Any, ...], state: State) -> Any:
    """The traced program of one client's training."""

    def row(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)

    return _train.trace(*arguments, state.server, row(arguments[-1].clients), row(state.clients))


def trace_round(spec: Spec, inputs: Inputs) -> None:
    """Traces a plan's first round, so that errors of its functions are raised; ``measure`` then traces nothing."""
    arguments = _of_one_run(spec, inputs, default_platform())
    state = _begin.trace(*arguments).out_info.state
    _close.trace(*arguments, state, _traced_client(arguments, state).out_info[1])


def measure(spec: Spec, inputs: Inputs, runs: int, platform: str | None = None) -> Shapes:
    """Shapes and bytes of one of ``runs`` runs, by abstract evaluation; without ``jax.jit`` only counts are known."""
    if eager.is_on():
        # Only counts: nothing else can be known before the run without calling the algorithm's functions.
        sizes = Sizes(1, inputs.federation.clients.id.shape[-1], runs, 0, 0)
        return Shapes(first_algorithm(spec, inputs), sizes, None, 0, eager.SentSoFar.begun())
    platform = default_platform() if platform is None else platform
    arguments = _of_one_run(spec, inputs, platform)
    traced = _begin.trace(*arguments)
    begun: _Begun = traced.out_info
    trained = _traced_client(arguments, begun.state)
    up, program = trained.out_info[0], trained.jaxpr.jaxpr
    federation, state, down = inputs.federation, begun.state, begun.down
    population = federation.clients.id.shape[-1]
    sizes = Sizes(
        rows=begun.cohort.id.shape[0],
        population=population,
        seeds=runs,
        # A client trains a whole model, even if Down is smaller.
        model=max(trees.bytes_of(down), trees.bytes_of(begun.model)),
        evaluated=evaluated_bytes(federation, federation.clients.test.index.shape[-1]),
        lane=step_bytes(program, platform),
        full=spec.everybody and is_all_true(traced.jaxpr.jaxpr, _place_of_present(begun)),
        samples=samples(federation) if steps_differ(program) else None,
        examples=trees.bytes_of(federation.examples),
        mapped=federation.examples.is_mapped,
        client_states=runs * trees.bytes_of(state.clients),
        keyed=any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state.clients)),
    )
    polling = begun.algorithm.poll
    shown = down if polling is not None and polling.shown else ()
    received, before, sent, told = map(trees.bytes_of, (down, shown, up, state.ballots))
    wire = Wire(received, before, sent, told // population)
    return Shapes(begun.algorithm, sizes, state, trees.bytes_of(begun.model), wire, begun.global_model)


def _place_of_present(begun: _Begun) -> int:
    """Which of the results of ``_begin`` says who is present."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(begun)]
    return [jax.tree_util.keystr(path) for path in paths].index(".cohort.present")


def state_bytes(state: Any, layout: Layout) -> tuple[int, int]:
    """Bytes of one run's state on each device, between rounds: the server, and clients with their last ballots."""
    if state is None:
        return 0, 0
    if layout.devices > 1:

        def share(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype)

        state = jax.tree.map(share, state, state_shardings(state, layout, 1))
    return trees.bytes_of(state.server), trees.bytes_of((state.clients, state.ballots))


def evaluated_bytes(federation: Federation, rows: int) -> int:
    """Bytes of ``rows`` prepared examples, at most the number that is evaluated at once."""
    return int(np.prod(federation.examples.x.shape[1:])) * 4 * min(rows, AT_ONCE)


def samples(federation: Federation) -> tuple[int, ...]:
    """Training samples of the seen clients, largest first; of the first seed in a stacked federation."""
    size = np.asarray(federation.clients.train.size).reshape(-1, federation.clients.id.shape[-1])[0]
    return tuple(sorted(size.tolist(), reverse=True))


def check_labels(task: Task, federation: Federation) -> None:
    """Raises a ValueError unless the task has a class for every label of a client or of the server."""
    y = federation.examples.y
    check_wide("labels", y)
    if task.classes is None:
        return
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"expected whole-number labels [n] for a task of {task.classes} classes, got {y.dtype} of shape "
            f"{list(y.shape)}; other labels need a task with a loss of its own and classes = None"
        )
    labels = np.asarray(y)
    wrong = (labels < 0) | (labels >= task.classes)
    if not wrong.any():
        return
    offenders = [
        (f"{kind}client {_ids(clients)[place]}", labels[row])
        for kind, clients in (("", federation.clients), ("unseen ", federation.unseen))
        if clients is not None
        for rows in clients.parts.values()
        for place, row in _owned(rows, federation.lists, wrong)
    ]
    offenders += [
        (f"the server's rows {name!r}", labels[row])
        for name, rows in federation.held.items()
        for _, row in _owned(rows, None, wrong)
    ]
    if offenders:
        whose, label = offenders[0]
        raise ValueError(
            f"expected labels in 0..{task.classes - 1}, since the model has {task.classes} classes, got label {label} "
            f"of {whose}"
        )


def task_of(spec: Spec, inputs: Inputs) -> Task:
    """The task of a plan's algorithm. Its functions may hold tracers; read only static fields such as ``classes``."""
    tasks: list[Task] = []

    def build(traced: list[Any], by_seed: Any) -> None:
        tasks.append(built("the builder", spec.build, spec.algorithm(traced, by_seed)).task)

    if eager.is_on():
        return built("the builder", spec.build, first_algorithm(spec, inputs)).task
    jax.eval_shape(build, *first_run(spec, inputs)[:2])
    return tasks[0]


def built(kind: str, build: Any, found: Any) -> Any:
    """What a user's builder or scenario returned; a ValueError that names it if this is no algorithm."""
    if not hasattr(found, "task"):
        raise users.refused(kind, build, "an Algorithm", found)
    return found


def _ids(clients: Any) -> np.ndarray:
    return np.asarray(clients.id).reshape(-1)


def _owned(rows: Any, lists: Any, wrong: np.ndarray) -> list[tuple[int, int]]:
    """(Position of the owner, row) of the first wrong row of some clients; empty if there is none."""
    for place, own in enumerate(RowLists.of(rows, lists).by_client()):
        if wrong[own].any():
            return [(place, int(own[wrong[own]][0]))]
    return []


# Addresses of functions, and numbers of devices.
_OF_PROCESS = re.compile(r"0x[0-9a-f]+|\bid=\d+")


def check_programs(trace: Callable[[], Iterable[Any]]) -> None:
    """Raises a ValueError in every process unless ``trace`` gives the same traced programs in all."""
    # So a model with another dropout, initialisation or dtype is noticed, and a function of the user's that differs.
    if processes.are_several() and not eager.is_on():
        processes.check_same(lambda: {"model or algorithm": checksum_of_programs(trace())})


def checksum_of_programs(traced: Iterable[Any]) -> int:
    """A checksum of the texts of traced programs and of the arrays in them, without addresses of functions."""
    total = 0
    for program in traced:
        arrays = [numbers_of(value) for value in program.jaxpr.consts if isinstance(value, np.ndarray | Array)]
        text = f"{_OF_PROCESS.sub('', str(program.jaxpr))} {checksum(arrays)}"
        total = zlib.crc32(text.encode(), total)
    return total
