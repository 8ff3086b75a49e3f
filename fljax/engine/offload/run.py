"""A run whose examples or client states stay on the host: rounds and evaluations, block by block of clients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.engine.devices.eager import stacked
from fljax.engine.devices.layout import (
    QUICK,
    Layout,
    Memory,
    made_bytes,
    put_state,
    replicate,
    sharding,
    state_shardings,
    with_shardings,
)
from fljax.engine.offload import programs
from fljax.engine.offload.host_data import AHEAD, BlockSize, BlockSizes, HostData, Pipeline, in_blocks, splits_read_by
from fljax.engine.offload.programs import ClientBlock
from fljax.engine.programs.program import Inputs, Spec, on_devices
from fljax.engine.programs.shapes import Shapes
from fljax.engine.rounds.evaluate import GRADIENT_NORM, Scope, draw, placed
from fljax.engine.rounds.round import TrainedCohort
from fljax.engine.rounds.states import State
from fljax.metrics.scores import Predicted
from fljax.protocol import Info, Labelled


class OffloadRun(NamedTuple):
    """The programs of a run whose data or client states are on the host, and their arguments."""

    spec: Spec
    layout: Layout  # runs take turns
    inputs: Inputs  # on the devices; its federation has no rows of clients if examples are on the host
    seeds: Array  # [runs]
    capacity: int  # rounds after which records are given to the caller
    data: HostData | None  # None: they are on the devices
    polled: int  # every how many rounds; 0: never
    scope: Scope
    sizes: BlockSizes
    cohort: int  # its number of rows
    state: State  # of one run, as shapes

    @classmethod
    def of(cls, spec: Spec, layout: Layout, capacity: int, inputs: Inputs, seeds: Array, shapes: Shapes) -> OffloadRun:
        """The run of these plans; ``inputs`` as they are given by the user."""
        data, federation = None, inputs.federation
        reads = splits_read_by(spec, inputs, shapes.state)
        if layout.examples == "host":
            data = HostData.of(federation)
            federation = data.resident(federation)
        if GRADIENT_NORM in spec.extra:
            raise ValueError(
                f"expected examples and client states on the devices for {GRADIENT_NORM}, which adds up gradients over "
                "clients, got a run with one of them on the host"
            )
        resident = on_devices(inputs._replace(federation=federation), layout)
        algorithm = shapes.algorithm
        polled = 0 if algorithm.poll is None else algorithm.poll.every
        scope = Scope.of(algorithm, spec.valid, spec.common, spec.extra)
        clients, cohort = federation.clients.id.shape[-1], shapes.sizes.rows
        unseen = 0 if federation.unseen is None else federation.unseen.id.shape[-1]
        sizes = BlockSizes.of(reads, layout, data, shapes.state, cohort, clients, unseen)
        return cls(spec, layout, resident, seeds, capacity, data, polled, scope, sizes, cohort, shapes.state)

    @property
    def on_host(self) -> bool:
        """Whether the states of clients are on the host."""
        return self.layout.client_states == "host"

    def start(self) -> State:
        """States of all runs before round 0; the clients' are arrays of NumPy if they stay on the host."""
        runs, arguments = len(self.seeds), (self.spec, self.layout, self.inputs)
        servers = [programs.begin_server(*arguments, jnp.int32(run), self.seeds[run]) for run in range(runs)]

        def blank(numpy: Any, tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: numpy.zeros((runs, *leaf.shape), leaf.dtype), tree)

        zeros, frozen = jnp.zeros((runs,), jnp.int32), jnp.full((runs,), -1, jnp.int32)
        ballots = blank(jnp, self.state.ballots)
        clients = blank(np if self.on_host else jnp, self.state.clients)
        state = self.placed(State(jnp.array(self.seeds), zeros, stacked(servers), clients, ballots, frozen))
        if jax.tree.leaves(clients):
            for run, server in enumerate(servers):
                state = self._begin(state, run, server)
        return state

    def _begin(self, state: State, run: int, server: PyTree) -> State:
        """The state with the clients of a run before their first round."""
        arguments, table = (self.spec, self.layout, self.inputs, jnp.int32(run), self.seeds[run], server), state.clients

        def keep(place: np.ndarray, rows: PyTree) -> None:
            nonlocal table
            rows = _first(rows, len(place))
            if self.on_host:
                _write(table, run, place, rows)
            else:
                table = programs.put_clients(self.layout, table, jnp.int32(run), place, rows)

        self._blocks(run, None, self.sizes.begin, functools.partial(programs.begin_clients, *arguments), keep)
        return state._replace(clients=table)

    def placed(self, state: State) -> State:
        """A state as this run holds it: on the devices, the clients' states on the host if they stay there."""
        if not self.on_host:
            return put_state(jax.tree.map(jnp.asarray, state), self.layout)
        rest = put_state(jax.tree.map(jnp.asarray, self._small(state)), self.layout)
        return rest._replace(clients=jax.tree.map(np.array, state.clients))

    def rounds(self, state: State, done: int, count: int) -> tuple[State, Info]:
        """``count`` rounds after ``done``; records ``[runs, count, ...]``."""
        infos: list[list[Info]] = [[] for _ in range(len(self.seeds))]
        for turn in range(count):
            for run, run_infos in enumerate(infos):
                state, info = self._round(state, run, done + turn)
                run_infos.append(info)
        return state, _stacked_on_host([_stacked_on_host(jax.device_get(run_infos)) for run_infos in infos])

    def again(self, states: State, run: int, round: int) -> Info:
        """The records of one round of one run, computed once more; the states stay as they are."""
        number, none = jnp.int32(round), jnp.int32(-1)
        copy = jax.tree.map(lambda leaf: leaf.copy(), states)
        begun = copy._replace(round=copy.round.at[run].set(number), diverged=copy.diverged.at[run].set(none))
        return jax.device_get(self._round(begun, run, round)[1])

    def evaluate(self, state: State, done: int, whole: bool = True) -> dict[str, Labelled]:
        """Losses and accuracies of clients of all runs, ``[runs, N]`` and ``[runs, U]``, as ``Programs.evaluate``."""
        judged = 0 if whole else self.spec.judged
        scores = [self._judge(state, run, done, judged) for run in range(len(self.seeds))]
        return _stacked_on_host(jax.device_get(scores))

    def predictions(self, state: State) -> dict[str, Predicted]:
        """What all clients of all runs predict on their test rows, ``[runs, N, ...]``, under "client" and "unseen"."""
        populations: dict[str, Any] = {"client": (programs.predict_block, state, self.sizes.predict_seen)}
        if self.inputs.federation.unseen is not None:
            populations["unseen"] = programs.predict_unseen_block, None, self.sizes.predict_unseen
        small, arguments = self._small(state), (self.spec, self.layout, self.inputs)

        def of_run(run: int, predict: Callable[..., PyTree], state: State | None, size: BlockSize) -> PyTree:
            return self._joined(run, state, size, functools.partial(predict, *arguments, jnp.int32(run), small), np)

        runs = range(len(self.seeds))
        made = {name: _stacked_on_host([of_run(run, *how) for run in runs]) for name, how in populations.items()}
        return {name: Predicted(*leaves) for name, leaves in made.items()}

    def _round(self, state: State, run: int, round: int) -> tuple[State, Info]:
        arguments, given = (self.spec, self.layout), (self.inputs, jnp.int32(run), self._small(state))
        rows, asked = self.sizes.train.clients, None
        if self.polled and round % self.polled == 0:
            asked = self._joined(run, state, self.sizes.poll, functools.partial(programs.ask, *arguments, *given))
        selection = programs.Selection(*programs.select(*arguments, rows, *given, asked))
        chosen = selection.chosen
        ids = np.asarray(chosen.trains)
        pipeline, trained, new = Pipeline(), list[TrainedCohort](), list[PyTree]()
        total: Any = None
        for first in range(0, len(ids), rows):
            pipeline.make_room()
            some = self._client_block(state, run, ids[first : first + rows], self.sizes.train)
            block = programs.train_block(*arguments, *given, chosen, jnp.int32(first), some)
            total = block.total if total is None else programs.add(total, block.total)
            then = None
            if self.on_host:
                for leaf in jax.tree.leaves(block.clients):
                    leaf.copy_to_host_async()
                then = functools.partial(_append_to, new, block.clients)
            pipeline.begun(block.broken, then)
            trained.append(block._replace(total=None, clients=None if self.on_host else block.clients))
        pipeline.finish()
        blocks = programs.TrainedBlocks(total, trained)
        after, counts, info = programs.finish(*arguments, self.cohort, *given, selection, blocks)
        if self.on_host:
            if jax.tree.leaves(new):
                counted = np.flatnonzero(np.asarray(counts))
                some = jax.tree.map(lambda *leaves: np.concatenate(leaves)[counted], *new)
                _write(state.clients, run, np.asarray(chosen.row)[counted], some)
            after = after._replace(clients=state.clients)
        return after, {**info, "polled": selection.polled}

    def _judge(self, state: State, run: int, done: int, judged: int) -> dict[str, Labelled]:
        arguments, sizes = (self.spec, self.layout, self.inputs, jnp.int32(run), self._small(state)), self.sizes
        judge_seen, judge_unseen = (
            functools.partial(judge, *arguments) for judge in (programs.judge_block, programs.judge_unseen)
        )
        seen, id = {}, None
        if self.scope.seen:
            clients: Any = self.inputs.federation.clients
            if judged:
                own = clients if clients.id.ndim == 1 else trees.take(clients, run % len(clients.id))
                id = draw(self.seeds[run], jnp.int32(done), own, judged)
            seen = self._joined(run, state, sizes.judge_seen, judge_seen, id=id)
            seen = seen if id is None else placed(seen, id, clients.id.shape[-1])
        has_unseen = self.scope.unseen and self.inputs.federation.unseen is not None
        unseen = self._joined(run, None, sizes.judge_unseen, judge_unseen) if has_unseen else {}
        first = None
        if self.scope.once:
            tests = np.asarray(self.inputs.federation.clients.test.size)
            tests = tests.reshape(-1, tests.shape[-1])
            place = np.array([np.argmax(tests[run % len(tests)] > 0)], np.int32)
            first = self._client_block(state, run, place, sizes.judge_once)
        return programs.judge_rest(*arguments, seen, unseen, first)

    def _joined(
        self,
        run: int,
        state: State | None,
        size: BlockSize,
        function: Callable[[ClientBlock], PyTree],
        numpy: Any = jnp,
        id: Array | None = None,
    ) -> PyTree:
        """Results of blocks, concatenated along clients, on the device or on the host (``numpy``)."""
        parts: list[PyTree] = []

        def keep(place: np.ndarray, rows: PyTree) -> None:
            parts.append(jax.tree.map(numpy.asarray, _first(rows, len(place))))

        self._blocks(run, state, size, function, keep, id)
        return jax.tree.map(lambda *leaves: numpy.concatenate(leaves), *parts) if parts else {}

    def _blocks(
        self,
        run: int,
        state: State | None,
        size: BlockSize,
        function: Callable[[ClientBlock], PyTree],
        keep: Callable[[np.ndarray, PyTree], None],
        id: Array | None = None,
    ) -> None:
        """``in_blocks`` of a run's clients (``id``; None: all), with their rows and states."""
        federation = self.inputs.federation
        clients: Any = federation.unseen if size.unseen else federation.clients
        ids = np.arange(clients.id.shape[-1], dtype=np.int32) if id is None else np.asarray(id, np.int32)

        def of_block(place: np.ndarray) -> PyTree:
            return function(self._client_block(state, run, ids[place], size))

        in_blocks(len(ids), size.clients, of_block, keep)

    def _client_block(self, state: State | None, run: int, place: np.ndarray, size: BlockSize) -> ClientBlock:
        """The block of the clients at these places, moved to the devices."""
        client_states = None
        if state is not None and size.kept:
            client_states = jax.tree.map(lambda leaf: leaf[run, place], state.clients)
        return self.block_with(run, place, size, client_states)

    def block_with(self, run: int, place: np.ndarray, size: BlockSize, client_states: PyTree) -> ClientBlock:
        """Clients with their rows and states (``client_states``, of NumPy), on the devices."""
        data = None
        if self.data is not None:
            population: Any = self.data.unseen if size.unseen else self.data.seen
            data = self.data.block(population, run % len(population.id), place, size.parts, size.capacity)
        some = ClientBlock(place, data, client_states)  # pyright: ignore[reportArgumentType]
        return jax.device_put(some) if self.layout.devices == 1 else replicate(some, self.layout.devices)

    def _small(self, state: State) -> State:
        """The states without the clients' rows that stay on the host."""
        return state._replace(clients=()) if self.on_host else state


def _stacked_on_host(trees: list[PyTree]) -> PyTree:
    """Equal trees of arrays on the host as one tree with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _append_to(blocks: list[PyTree], tree: PyTree) -> None:
    """Appends the arrays of ``tree`` on the host."""
    blocks.append(jax.tree.map(np.asarray, tree))


def _first(tree: PyTree, count: int) -> PyTree:
    """The first rows of every leaf."""
    return jax.tree.map(lambda leaf: leaf[:count], tree)


def _write(table: PyTree, run: int, place: np.ndarray, rows: PyTree) -> None:
    """``table[run, place_s] = rows_s``, in place."""

    def one(all: np.ndarray, new: Any) -> None:
        all[run, place] = np.asarray(new)

    jax.tree.map(one, table, rows)


def memory(run: OffloadRun, shapes: Shapes, quick: bool = False) -> Memory:
    """Compiles the programs of a round and an evaluation (``quick``: for their memory only); what they take."""
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(program.lower().compile, QUICK if quick else None) for program in _traced(run)]
        made = [made_bytes(job.result()) for job in jobs]
    runs, state = len(run.seeds), run.state
    clients = 0 if run.on_host else trees.bytes_of(state.clients)
    server, client_bytes = runs * trees.bytes_of(state.server), runs * (clients + trees.bytes_of(state.ballots))
    blocks = AHEAD * max(trees.bytes_of(_example(run, size)) for size in (run.sizes.train, run.sizes.judge_seen))
    data = trees.bytes_of(run.inputs.federation) + blocks
    others = trees.bytes_of((run.inputs.traced, run.inputs.by_seed))
    known = [program for program in made if program is not None]
    peak = data + others + server + client_bytes + max(known) if len(known) == len(made) else None
    return Memory(peak, data, server, client_bytes, shapes.model, runs, run.layout.devices)


def _traced(run: OffloadRun) -> Iterator[Any]:
    arguments, place = (run.spec, run.layout), jnp.int32(0)
    runs, where = len(run.seeds), sharding(run.layout.devices)

    def struct(leaf: Any, *axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype, sharding=where)

    states = jax.tree.map(lambda leaf: struct(leaf, runs), run.state)._replace(seed=struct(run.seeds))
    states = states._replace(clients=() if run.on_host else states.clients)
    states = with_shardings(states, state_shardings(states, run.layout))
    server = jax.tree.map(struct, run.state.server)
    if jax.tree.leaves(run.state.clients):
        begun = _example(run, run.sizes.begin)
        yield programs.begin_clients.trace(*arguments, run.inputs, place, run.seeds[0], server, begun)
    polled = None
    if run.polled:
        polled = jax.tree.map(struct, run.state.ballots)
        yield programs.ask.trace(*arguments, run.inputs, place, states, _example(run, run.sizes.poll))
    selected = programs.select.trace(*arguments, run.sizes.train.clients, run.inputs, place, states, polled)
    yield selected
    selection = programs.Selection(*jax.tree.map(struct, selected.out_info))
    chosen = selection.chosen
    some = _example(run, run.sizes.train)
    trained = programs.train_block.trace(*arguments, run.inputs, place, states, chosen, place, some)
    yield trained
    out = jax.tree.map(struct, trained.out_info)
    block = out._replace(total=None, clients=None if run.on_host else out.clients)
    blocks = programs.TrainedBlocks(out.total, [block] * (chosen.row.shape[0] // run.sizes.train.clients))
    yield programs.finish.trace(*arguments, run.cohort, run.inputs, place, states, selection, blocks)
    if run.scope.seen:
        yield programs.judge_block.trace(*arguments, run.inputs, place, states, _example(run, run.sizes.judge_seen))
    if run.scope.unseen and run.sizes.judge_unseen.clients and run.inputs.federation.unseen is not None:
        yield programs.judge_unseen.trace(*arguments, run.inputs, place, states, _example(run, run.sizes.judge_unseen))


def _example(run: OffloadRun, size: BlockSize) -> ClientBlock:
    """A ``ClientBlock`` of zeros with the shapes of a block of this size; programs are traced with it."""
    client_states = None
    if size.kept:
        client_states = jax.tree.map(
            lambda leaf: np.zeros((size.clients, *leaf.shape[1:]), leaf.dtype), run.state.clients
        )
    return run.block_with(0, np.zeros(size.clients, np.int32), size, client_states)
