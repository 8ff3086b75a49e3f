"""The gradient of the objective of INCFL and MaxFL at the global model of any algorithm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fljax import training
from fljax.aggregators import incfl_weights
from fljax.core import trees
from fljax.engine.devices.client_mapping import fold_lanes
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.errors import within
from fljax.engine.rounds.evaluate import Judge
from fljax.engine.rounds.federations import local_data
from fljax.engine.rounds.states import State, every_seat, own_server
from fljax.protocol import Algorithm, ClientData, Federation, Labelled, along, roles

GRADIENT_NORM = "objective_gradient_norm"


def gradient_norm(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    state: State,
    round: Int[Array, ""],
    required: Float[Array, " N"],
) -> dict[str, Labelled]:
    """``||(1/M) sum_k s_k (1 - s_k) grad F_k(w)||`` with ``s_k = sigma(F_k(w) - rho_k)``: 0 at stationary points."""
    # ``w`` is the global model (absent without one), ``F_k`` the loss on all training rows of client k, M the number of
    # seen clients that count (have a ``rho_k``). Statistics (BatchNorm) are constants. INCFL and MaxFL, equation (4).
    same = algorithm.personal is None
    if not same and algorithm.common is None:
        return {}
    judge, clients = Judge(algorithm, federation, state, round), federation.clients
    seats = every_seat(round, clients.id)
    rows, server_of = own_server(algorithm, state.server, layout.devices, seats, whole=True)

    def one(row: tuple[ClientData, Any, Any, Array]) -> tuple[tuple[PyTree, Array], tuple[()]]:
        client, kept, server_row, rho = row
        own = judge._replace(state=state._replace(server=server_of(server_row)))
        deployed, common = own.deploy(client, kept)
        loss, slope = _loss_and_slope(own, client, deployed if same else common)
        counts = own.counts(client, "train") & ~jnp.isnan(rho)
        slope = trees.scale(slope, incfl_weights((loss - rho)[None])[0])
        return (jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), slope), counts), ()

    def add_up(summands: tuple[PyTree, Array], real: Array) -> tuple[PyTree, Array]:
        slopes, counts = summands

        def summed(leaf: Array) -> Array:
            counted = (counts & real).reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.sum(jnp.where(counted, leaf, 0), axis=0)

        return jax.tree.map(summed, slopes), jnp.sum(counts & real, dtype=jnp.int32)

    xs = (clients, state.clients, rows, required)
    (total, count), _ = fold_lanes(one, add_up, xs, layout.evaluation, layout.devices)
    square = sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(total)), start=jnp.zeros((), required.dtype))
    norm = jnp.sqrt(square) / jnp.maximum(count, 1).astype(square.dtype)
    return along(**{GRADIENT_NORM: trees.or_nan(count > 0, norm)})


def _loss_and_slope(judge: Judge, client: ClientData, model: PyTree) -> tuple[Array, PyTree]:
    """``F_k`` and its gradient in the floats of a model; a list of leaves, without statistics."""
    algorithm, leaves = judge.algorithm, jax.tree.leaves(model)
    task, rows = algorithm.task, local_data(judge.federation, client).train
    # Activations are computed twice, so that memory holds those of one part of the rows.
    predict = jax.checkpoint(algorithm.predict)
    key = training.stream(judge.key(client), training.Stream.LOSS)  # features with the noise that clients train on
    structure = jax.tree.structure(model)
    is_float = [bool(jnp.issubdtype(leaf.dtype, jnp.floating)) for leaf in leaves]
    if structure == jax.tree.structure(jax.eval_shape(task.init, jax.random.key(0))):
        trained = jax.tree.leaves(roles.trained_mask(task, model))
        is_float = [real and moves for real, moves in zip(is_float, trained, strict=True)]

    def loss(floats: list[Array]) -> Array:
        def predicted(x: Array) -> Array:  # the gradient adds up in the dtype of floats
            numbers = iter(floats)
            whole = [
                next(numbers).astype(old.dtype) if real else old for old, real in zip(leaves, is_float, strict=True)
            ]
            return predict(jax.tree.unflatten(structure, whole), x)

        return training.evaluate(task, predicted, rows, key=key)[0]

    with within("evaluation", client=client.id, round=judge.round, seed=judge.state.seed):
        return jax.value_and_grad(loss)([trees.wide(leaf) for leaf, real in zip(leaves, is_float, strict=True) if real])
