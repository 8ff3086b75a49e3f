"""Standalone models of clients whose examples are on the host, block by block."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax.core import trees
from fljax.engine.devices.layout import QUICK, Layout, made_bytes, replicate
from fljax.engine.offload.host_data import AHEAD, BlockSize, HostData, Population, block_size, in_blocks
from fljax.engine.offload.programs import own_algorithm
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Spec
from fljax.engine.rounds.standalone import StandaloneModels, reference_of, shared_model, train_population
from fljax.engine.rounds.states import Purpose, as_vectors
from fljax.protocol import Federation
from fljax.results import Reference


@jit.program(static_argnames=("spec", "layout", "keep_models", "purpose"), is_long=True)
def train_block_alone(
    spec: Spec,
    layout: Layout,
    keep_models: bool,
    purpose: Purpose,
    inputs: Inputs,
    run: Array,
    seed: Array,
    data: Federation,
) -> StandaloneModels:
    """Scores, and models if they are kept, of the clients in ``data``."""
    plan: Any = own_algorithm(spec, inputs, run, seed)[0]
    params = shared_model(plan, seed)
    base = jnp.full(data.clients.id.shape, int(purpose))
    return train_population(plan, as_vectors(data), data.clients, base, params, seed, layout, keep_models)


def references(spec: Spec, layout: Layout, keep_models: bool, inputs: Inputs, seeds: Array) -> Reference:
    """The standalone models of all clients of all runs, ``[runs, N]``; ``inputs`` as they are given by the user."""
    data = HostData.of(inputs.federation)
    resident = _resident(inputs, data, layout)
    trained = [_of_run(spec, layout, keep_models, resident, data, run, seed) for run, seed in enumerate(list(seeds))]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trained)


def memory(spec: Spec, layout: Layout, keep_models: bool, inputs: Inputs, quick: bool) -> tuple[int | None, int]:
    """The peak of the memory, and the bytes of data on each device; compiles the program of seen clients."""
    data = HostData.of(inputs.federation)
    resident = _resident(inputs, data, layout)
    move = _move(spec, inputs, data, data.seen, layout)
    some = data.block(data.seen, 0, np.zeros(move.clients, np.int32), move.parts, move.capacity)
    arguments = spec, layout, keep_models, Purpose.STANDALONE, resident, jnp.int32(0), jnp.uint32(0), some
    made = made_bytes(train_block_alone.trace(*arguments).lower().compile(QUICK if quick else None))
    held_bytes = trees.bytes_of(resident) + AHEAD * trees.bytes_of(some)
    return None if made is None else held_bytes + made, held_bytes


def _of_run(
    spec: Spec, layout: Layout, keep_models: bool, inputs: Inputs, data: HostData, run: int, seed: Array
) -> Reference:
    def everybody(population: Population, purpose: Purpose, keep: bool) -> Any:
        move, blocks = _move(spec, inputs, data, population, layout), list[Any]()

        def train(place: np.ndarray) -> StandaloneModels:
            block = data.block(population, run % len(population.id), place, move.parts, move.capacity)
            block = jax.device_put(block) if layout.devices == 1 else replicate(block, layout.devices)
            return train_block_alone(spec, layout, keep, purpose, inputs, jnp.int32(run), seed, block)

        def append(place: np.ndarray, models: StandaloneModels) -> None:
            blocks.append(jax.tree.map(lambda leaf: np.asarray(leaf)[: len(place)], models))

        in_blocks(population.clients, move.clients, train, append)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks)

    seen = everybody(data.seen, Purpose.STANDALONE, keep_models)
    return reference_of(seen, None if data.unseen is None else everybody(data.unseen, Purpose.UNSEEN_STANDALONE, False))


def _resident(inputs: Inputs, data: HostData, layout: Layout) -> Inputs:
    return replicate(inputs._replace(federation=data.resident(inputs.federation)), layout.devices)


def _move(spec: Spec, inputs: Inputs, data: HostData, population: Population, layout: Layout) -> BlockSize:
    plan: Any = spec.algorithm(inputs.traced, {})
    parts = ("train", "test") if plan.stop is None and not plan.valid else ("train", "valid", "test")
    return block_size(parts, population, population.clients, layout.clients * layout.devices, data.row_bytes, 0)
