"""Per-FedAvg: trains a global model that one gradient step turns into a good personal model.

Source: Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning
approach" (NeurIPS 2020), Algorithm 1, with its first-order (FO) and Hessian-free (HF) variants. Deviations: HF's
product of Hessian and vector is the exact derivative of the gradient along the vector ("exact"), or a finite difference
("difference"); a client with fewer rows than a batch uses all of its rows in each of the three batches.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry, require_fresh
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import reported_size
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, NonNegative, Positive, checked
from fljax.protocol import Algorithm, LocalData, Seat, Subset, Task, roles
from fljax.protocol.messages import Sent
from fljax.training import Batches, Local, Optimizer, Stream


@checked
def perfedavg(
    task: Task,
    local: Local,
    *,
    alpha: NonNegative | Literal["local"] = 0.01,
    hessian: Literal["none", "exact", "difference"] = "none",
    delta: Positive = 1e-3,
    adaptation_steps: CountOrZero = 1,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "uniform",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """Descends ``(1/N) sum_k F_k(w - alpha grad F_k(w))`` by local steps on three independent batches each.

    ``z = y - alpha g(y; B1)``, ``v = g(z; B2)``, then ``y <- y - beta v`` (first order) or ``y <- y - beta (v - alpha
    H(y; B3) v)``; beta is the learning rate of ``local``. The server takes the mean of updates.

    Args:
      task: model and loss.
      local: how clients train; every step takes one batch of its size for each of B1, B2 and B3. Without shuffling
        they follow one another in the client's rows.
      alpha: learning rate of the inner step, and of the step before deployment; 0 is FedAvg. "local": beta, as in
        several public implementations, with its decay; a model that is used after t rounds takes its step with the rate
        of round t, the one that would come next.
      hessian: "none" is the first-order variant; "exact" and "difference" are two ways to compute ``H v``.
      delta: for "difference", ``H v = (g(y + delta v; B3) - g(y - delta v; B3)) / (2 delta)``.
      adaptation_steps: steps of rate alpha that a client takes before it uses the model; 0: none.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: of clients in the mean: "uniform" as in the paper, or "size", their numbers of training samples.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm; the model before adaptation is ``common``. Info: ``weight`` [row].

    Raises:
      ValueError: if ``alpha``, ``hessian`` or ``weights`` is not a valid name, or ``adaptation_steps`` is negative, or
        clients keep their optimizer's state.
    """
    require_fresh(local, "perfedavg", "whose steps are its own")

    def inner_rate(own: Local, seat: Seat, params: PyTree) -> float | Array:
        return training.rate(own, seat.round, jax.tree.leaves(params)[0].dtype) if isinstance(alpha, str) else alpha

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        own = training.of_client(local, data.train)
        transformation = training.optimizer(own, seat.round, jax.tree.leaves(down)[0].dtype, task)
        inner = inner_rate(own, seat, down)
        batches = _draw(training.stream(key, Stream.BATCHES), data.train, local, 2 if hessian == "none" else 3)

        def step(carry: PyTree, position: Array, mask: Array, key: Key[Array, ""]) -> PyTree:
            params, state = carry

            def slope(params: PyTree, batch: int) -> PyTree:
                batch_key = jax.random.fold_in(key, batch)
                return training.gradient(task, params, data.train, position[batch], mask[batch], batch_key)

            ahead = trees.subtract(params, trees.scale(slope(params, 0), inner))
            outer = first = slope(roles.replace_statistics(task, ahead, params), 1)
            if hessian == "exact":
                along = roles.zero_statistics(task, outer)
                _, product = jax.jvp(lambda p: slope(p, 2), (params,), (along,))
                outer = trees.subtract(outer, trees.scale(product, inner))
            elif hessian == "difference":
                along = roles.zero_statistics(task, outer)
                up, down = (trees.add(params, trees.scale(along, sign * delta)) for sign in (1, -1))
                product = trees.scale(trees.subtract(slope(up, 2), slope(down, 2)), 1 / (2 * delta))
                outer = trees.subtract(outer, trees.scale(product, inner))
            outer = roles.replace_statistics(task, outer, first)
            move, state = transformation.update(outer, state, params)
            return trees.add(params, jax.tree.map(lambda m, p: m.astype(p.dtype), move, params)), state

        carry = (down, transformation.init(down))
        (trained, _), _ = training.descend(step, carry, batches, training.stream(key, Stream.STEPS))
        return Sent(trees.subtract(trained, down), reported_size(weights, data)), client

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        if adaptation_steps == 0:
            return down
        inner = inner_rate(training.of_client(local, data.train), seat, down)
        adapting = Local(inner, local.batch_size, steps=adaptation_steps, shuffle=local.shuffle)
        rows = data.train._replace(rate_factor=None)  # alpha has it, or has none
        return training.train(key, down, rows, task=task, local=adapting).params

    inner = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    return inner._replace(train=train, personal=deploy)


def _draw(key: Key[Array, ""], subset: Subset, local: Local, count: int) -> Batches:
    """``count`` batches per step, independent or (unshuffled) the next ones: positions and masks ``[T, count, b]``."""
    if not local.shuffle:
        limits = (None if limit is None else count * limit for limit in (subset.steps, subset.epochs))
        subset = subset._replace(**dict(zip(("steps", "epochs"), limits, strict=True)))
        steps, epochs = (None if turns is None else count * turns for turns in (local.steps, local.epochs))
        drawn = training.draw(key, subset, local._replace(steps=steps, epochs=epochs))
        position, mask = (rows.reshape(-1, count, rows.shape[-1]) for rows in (drawn.position, drawn.mask))
        return Batches(position, mask, None if drawn.steps is None else drawn.steps // count)
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))
    drawn = jax.vmap(lambda key: training.draw(key, subset, local))(keys)
    steps = None if drawn.steps is None else drawn.steps[0]
    return Batches(jnp.moveaxis(drawn.position, 0, 1), jnp.moveaxis(drawn.mask, 0, 1), steps)


ENTRY = Entry(
    perfedavg,
    "trains a model that one local step personalises",
    ("fallah2020personalized",),
    {"hessian": "exact"},
    differentiable=("alpha", "server_lr"),
    flat=("delta",),
)
