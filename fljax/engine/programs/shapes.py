"""Shapes and bytes of a run, by abstract evaluation: nothing is computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fljax.core import trees
from fljax.core.platforms import ANY, traced_for
from fljax.engine.devices import eager
from fljax.engine.devices.jaxprs import step_bytes, steps_differ
from fljax.engine.devices.layout import Layout, default_platform, state_shardings
from fljax.engine.programs.execution import Sizes
from fljax.engine.programs.program import Inputs, Spec, is_stacked
from fljax.engine.rounds.federations import as_vectors, with_shared, without_shared
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import initial_state, poll
from fljax.protocol import Algorithm, Available, Federation, Seat, seen_from
from fljax.protocol.sums import as_streamed
from fljax.results.records import Wire
from fljax.training import AT_ONCE


class Shapes(NamedTuple):
    """Shapes and sizes of a run, from abstract evaluation (``measure``)."""

    algorithm: Algorithm  # with tracers inside: only its static fields may be read
    sizes: Sizes
    state: Any  # of one run, as shapes; None where nothing is evaluated
    model: int  # bytes of one initial model of the task
    wire: Wire

    @property
    def alone(self) -> bool:
        """Whether clients train alone: none of them receives anything, and there is no global model.

        Without ``jax.jit`` this is known once a client has trained.
        """
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


def measure(spec: Spec, inputs: Inputs, runs: int, platform: str | None = None) -> Shapes:
    """Shapes and bytes of one of ``runs`` runs, by abstract evaluation; ``platform`` is "cpu", "gpu" or "tpu".

    None: the platform of this process. Where ``jax.jit`` is off, nothing is evaluated, and only counts are known.
    """
    if eager.is_on():
        # Only counts: nothing else can be known before the run without calling the algorithm's functions.
        sizes = Sizes(1, inputs.federation.clients.id.shape[-1], runs, 0, 0)
        return Shapes(first_algorithm(spec, inputs), sizes, None, 0, eager.SentSoFar.begun())
    platform = default_platform() if platform is None else platform
    algorithms: list[Any] = []
    federation = inputs.federation
    traced, by_seed, data = first_run(spec, inputs)
    zero, single = jnp.zeros((), jnp.int32), Layout(1, 1, 1)

    def begin(traced: list[Any], by_seed: Any, data: Federation) -> tuple[Any, ...]:
        data, algorithm = as_vectors(data), spec.algorithm(traced, by_seed)
        algorithms.append(algorithm)
        state = initial_state(algorithm, data, zero)
        available, seat = Available(data.clients.id.shape[0]), Seat(zero, zero, zero)
        _, cohort, _ = algorithm.select(jax.random.key(0), zero, state.server, state.ballots, available)
        down = algorithm.down(state.server, seat)
        ballot = () if algorithm.poll is None else poll(algorithm, data, zero, zero, *state[2:4], single)
        return state, cohort, down, ballot, algorithm.task.init(jax.random.key(0))

    # The rules for accelerators were measured with the bytes of code that has all forms.
    known = platform if platform == "cpu" else ANY
    with traced_for(known):
        state, cohort, down, ballot, model = jax.eval_shape(begin, traced, by_seed, data)

    def row(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)

    def one_client(
        traced: list[Any], by_seed: Any, data: Federation, server: Any, client_state: Any, client_data: Any
    ) -> PyTree:
        algorithm = spec.algorithm(traced, by_seed)
        up, _ = train_one(algorithm, as_vectors(data), zero, zero, server, client_data, zero, client_state)
        seat = Seat(zero, client_data.id, zero)
        return up, as_streamed(algorithm.aggregate).contribute(seen_from(server, seat), seat, up)

    shared, client = (traced, by_seed, data, state.server), (row(state.clients), row(data.clients))
    with traced_for(known):
        closed, (up, _) = jax.make_jaxpr(one_client, return_shape=True)(*shared, *client)
    rows, population = cohort.id.shape[0], data.clients.id.shape[0]
    sizes = Sizes(
        rows=rows,
        population=population,
        seeds=runs,
        # A client trains a whole model, even if Down is smaller.
        model=max(trees.bytes_of(down), trees.bytes_of(model)),
        evaluated=evaluated_bytes(federation, federation.clients.test.index.shape[-1]),
        # What training reads and writes matters on accelerators only.
        lane=0 if platform == "cpu" else step_bytes(closed.jaxpr, platform),
        samples=samples(federation) if steps_differ(closed.jaxpr) else None,
        examples=trees.bytes_of(federation.examples),
        mapped=federation.examples.is_mapped,
        client_states=runs * trees.bytes_of(state.clients),
        keyed=any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state.clients)),
    )
    polling = algorithms[-1].poll
    shown = down if polling is not None and polling.shown else ()
    received, before, sent, told = map(trees.bytes_of, (down, shown, up, ballot))
    wire = Wire(received, before, sent, told // population)
    return Shapes(algorithms[-1], sizes, state, trees.bytes_of(model), wire)


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
