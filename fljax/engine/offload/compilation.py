"""The programs of a run with data on the host, compiled ahead, and the memory that they take."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core import trees
from fljax.engine.devices.layout import sharding
from fljax.engine.devices.memory import QUICK, Memory, made_bytes
from fljax.engine.devices.placement import state_shardings
from fljax.engine.offload import programs
from fljax.engine.offload.moves import Move
from fljax.engine.offload.pipeline import AHEAD
from fljax.engine.offload.programs import Some
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs.shapes import Shapes


def memory(run: OffloadRun, shapes: Shapes, quick: bool = False) -> Memory:
    """Compiles the programs of a round and of an evaluation; later calls with the same shapes reuse them.

    Args:
      run: the run.
      shapes: of the run.
      quick: whether they are compiled for their memory only.
    """
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(each.lower().compile, QUICK if quick else None) for each in _traced(run)]
        made = [made_bytes(job.result()) for job in jobs]
    runs, state = len(run.seeds), run.state
    clients = 0 if run.on_host else trees.bytes_of(state.clients)
    server, kept = runs * trees.bytes_of(state.server), runs * (clients + trees.bytes_of(state.ballots))
    blocks = AHEAD * max(trees.bytes_of(_example(run, move)) for move in (run.moves.train, run.moves.judge_seen))
    data = trees.bytes_of(run.inputs.federation) + blocks
    others = trees.bytes_of((run.inputs.traced, run.inputs.by_seed))
    known = [each for each in made if each is not None]
    peak = data + others + server + kept + max(known) if len(known) == len(made) else None
    return Memory(peak, data, server, kept, shapes.model, runs, run.layout.devices)


def _traced(run: OffloadRun) -> Iterator[Any]:
    given, place = (run.spec, run.layout), jnp.int32(0)
    runs, where = len(run.seeds), sharding(run.layout.devices)

    def struct(leaf: Any, *axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype, sharding=where)

    states = jax.tree.map(lambda leaf: struct(leaf, runs), run.state)._replace(seed=struct(run.seeds))
    states = states._replace(clients=() if run.on_host else states.clients)
    held = state_shardings(states, run.layout)
    put = lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)  # noqa: E731
    states = jax.tree.map(put, states, held)
    server = jax.tree.map(struct, run.state.server)
    if jax.tree.leaves(run.state.clients):
        begun = _example(run, run.moves.begin)
        yield programs.begin_clients.trace(*given, run.inputs, place, run.seeds[0], server, begun)
    polled = None
    if run.polled:
        polled = jax.tree.map(struct, run.state.ballots)
        yield programs.ask.trace(*given, run.inputs, place, states, _example(run, run.moves.poll))
    selected = programs.select.trace(*given, run.moves.train.clients, run.inputs, place, states, polled)
    yield selected
    ballots, _, chosen = jax.tree.map(struct, selected.out_info)
    some = _example(run, run.moves.train)
    trained = programs.train_some.trace(*given, run.inputs, place, states, chosen, place, some)
    yield trained
    out = jax.tree.map(struct, trained.out_info)
    each = out._replace(total=None, clients=None if run.on_host else out.clients)
    blocks = [each] * (chosen.row.shape[0] // run.moves.train.clients)
    yield programs.finish.trace(*given, run.cohort, run.inputs, place, states, ballots, chosen, out.total, blocks)
    if run.scope.seen:
        yield programs.judge_some.trace(*given, run.inputs, place, states, _example(run, run.moves.judge_seen))
    if run.scope.unseen and run.moves.judge_unseen.clients and run.inputs.federation.unseen is not None:
        yield programs.judge_unseen.trace(*given, run.inputs, place, states, _example(run, run.moves.judge_unseen))


def _example(run: OffloadRun, move: Move) -> Some:
    """A block with the shapes of such a move."""
    kept = None
    if move.kept:
        blank = lambda leaf: np.zeros((move.clients, *leaf.shape[1:]), leaf.dtype)  # noqa: E731
        kept = jax.tree.map(blank, run.state.clients)
    return run.moved(0, np.zeros(move.clients, np.int32), move, kept)
