"""Which parts of a client's data an algorithm's functions read, so that only these rows are moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core import trees
from fljax.engine.devices.jaxprs import arguments_read
from fljax.engine.devices.layout import Layout
from fljax.engine.programs.program import Inputs, Spec
from fljax.engine.rounds import evaluate
from fljax.engine.rounds.federations import as_vectors
from fljax.engine.rounds.polling import poll
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import State, initial_clients
from fljax.protocol import Algorithm, ClientData, Federation, Moments, Rows

Parts = tuple[str, ...]


class Reads(NamedTuple):
    """The parts that are read before round 0, in a poll, in training and in evaluations."""

    begin: Parts
    poll: Parts
    train: Parts
    judge_seen: Parts
    judge_unseen: Parts


def reads_of(spec: Spec, inputs: Inputs, state: State) -> Reads:
    """The parts that each function reads, by abstract evaluation.

    Args:
      spec: the static part of a plan.
      inputs: the traced part; only shapes of the federation are read.
      state: of one run, as shapes.
    """
    layout, zero = Layout(1, 1, 1), jnp.zeros((), jnp.int32)
    federation = inputs.federation

    def find(function: Callable[[Algorithm, Federation, State], Any], clients: ClientData | None) -> Parts:
        """What a function reads of one client in ``federation.clients``, which is in ``federation.unseen``, too."""
        if clients is None:
            return ()
        struct = lambda shape, dtype: jax.ShapeDtypeStruct(tuple(shape), dtype)  # noqa: E731
        index = [struct((1, rows.index.shape[-1]), np.int32) for rows in clients.parts.values()]
        x, y = (struct(each.shape, each.dtype) for each in federation.examples[:2])

        def program(index: list[Any], x: Any, y: Any, traced: Any, by_seed: Any, state: Any) -> Any:
            parts = {part: Rows(own, zero[None]) for part, own in zip(clients.parts, index, strict=True)}
            noise = None if clients.noise is None else jnp.zeros(1)
            moments = federation.moments
            if moments is not None:
                moments = Moments(*(jnp.ones(x.shape[1:], leaf.dtype) for leaf in moments))
            data = ClientData(zero[None], **parts, noise=noise)
            own = federation._replace(
                examples=federation.examples._replace(x=x, y=y), clients=data, unseen=data, held={}, lists=None
            )._replace(moments=moments)
            return function(spec.algorithm(traced, by_seed), as_vectors(own), state)

        traced = [_first(leaf) if place in spec.varied else _shape(leaf) for place, leaf in enumerate(inputs.traced)]
        by_seed = jax.tree.map(_first, inputs.by_seed)
        closed = jax.make_jaxpr(program)(index, x, y, traced, by_seed, state)
        found = arguments_read(closed.jaxpr)[: len(index)]
        return tuple(part for part, is_read in zip(clients.parts, found, strict=True) if is_read)

    def one(tree: Any) -> Any:
        return trees.take(tree, zero)

    def train(algorithm: Algorithm, data: Federation, state: State) -> Any:
        return train_one(algorithm, data, zero, zero, state.server, one(data.clients), zero, one(state.clients))

    def ask(algorithm: Algorithm, data: Federation, state: State) -> Any:
        if algorithm.poll is None:
            return ()
        own = jax.tree.map(lambda leaf: leaf[:1], state.clients)
        return poll(algorithm, data, zero, zero, state.server, own, layout)

    def judge_seen(algorithm: Algorithm, data: Federation, state: State) -> Any:
        own = state._replace(clients=jax.tree.map(lambda leaf: leaf[:1], state.clients))
        scope = evaluate.Scope.of(algorithm, spec.valid, spec.common)
        judge = evaluate.Judge(algorithm, data, own, zero)
        return evaluate.judge_seen(judge, layout, scope) if scope.seen else ()

    def judge_unseen(algorithm: Algorithm, data: Federation, state: State) -> Any:
        scope = evaluate.Scope.of(algorithm, spec.valid, spec.common)
        judge = evaluate.Judge(algorithm, data, state, zero, known=False)
        return evaluate.judge_unseen(judge, layout, scope) if scope.unseen else ()

    def begin(algorithm: Algorithm, data: Federation, state: State) -> Any:
        return initial_clients(algorithm, data, zero, state.server, data.clients)

    seen, unseen = federation.clients, federation.unseen
    return Reads(
        find(begin, seen), find(ask, seen), find(train, seen), find(judge_seen, seen), find(judge_unseen, unseen)
    )


def _shape(leaf: Any) -> Any:
    return jax.eval_shape(lambda leaf: leaf, leaf)


def _first(leaf: Any) -> Any:
    return jax.eval_shape(lambda leaf: jnp.asarray(leaf)[0], leaf)
