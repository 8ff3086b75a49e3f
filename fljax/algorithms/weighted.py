"""Families of rules that weigh clients: powers of size and loss (Weighted), and a small network (Learnt).

Source: "Communication-Efficient Learning of Deep Networks from Decentralized Data" (weights by size), "Fair Resource
Allocation in Federated Learning" (powers of losses), "Can You Really Backdoor Federated Learning?" (the clip).
Deviation: both families are fljax's. They have no divisor of q-FFL, and the clip is ``median_clipped``'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, Real

from fljax import aggregators, training
from fljax.aggregators.by_loss import LEAST_LOSS
from fljax.aggregators.reputation import length_and_cosine
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import ServerOptimizer, SingleModel, init_optimized, keeping, single_model
from fljax.algorithms.single_model import server_optimizer as optimizer
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, NonNegative, Number, Positive, checked, floats_of
from fljax.protocol import Algorithm, AnyArray, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.messages import NOT_ASKED, Report, Sent
from fljax.training import Local, Optimizer, Stream

FEATURES = ("log size", "log loss", "log norm", "cosine", "accuracy")
BOUND = 6.0  # of features


class Paying(NamedTuple):
    """The Server if it pays clients."""

    model: PyTree
    optimizer: PyTree
    tokens: Float[Array, " N"]  # of all rounds, by client id


class Rule(NamedTuple):
    """The parts of ``theta``, in its order; F is the number of ``FEATURES``."""

    linear: Float[Array, " F"]
    first: Float[Array, "F hidden"]
    first_bias: Float[Array, " hidden"]
    second: Float[Array, " hidden"]
    bias: Float[Array, ""]
    log_clip: Float[Array, ""]
    log_server_lr: Float[Array, ""]


@checked
def weighted(
    task: Task,
    local: Local,
    *,
    size_power: Number = 1.0,
    loss_power: Number = 0.0,
    clip: Positive | None = None,
    server_lr: NonNegative = 1.0,
    payment: Number | None = None,
    clients_per_round: Count | None = 10,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``w <- w + server_lr * sum_k a_k Delta_k / sum_k a_k`` with ``a_k = n_k^size_power F_k(w)^loss_power``.

    ``n_k`` is the client's reported number of training samples, and ``F_k(w)`` its mean loss on all of them before
    training. A client that reports a size of 0 has weight 0, whatever the powers.

    Args:
      task: model and loss.
      local: how clients train.
      size_power: 1 weighs by size, 0 not at all; a negative one favours small clients.
      loss_power: a positive one favours clients with a large loss. Losses below 1e-10 count as 1e-10.
      clip: updates are clipped to this multiple of their median norm. None, or a number as large as 1e9: they are not.
      server_lr: as for ``fedavg``.
      payment: ``b``, tokens of a round; client k gets ``b a_k / sum_j a_j`` if it takes part. A negative one is a fee.
        The Server and Info have ``tokens`` [client], which ``fljax.games.Utility`` has a price for. None: no tokens.
      clients_per_round: drawn uniformly without replacement; None: all.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Info: ``weight`` [row], normalised. Statistics have the same weights, and are not clipped.

    Raises:
      ValueError: if ``clip`` is not above 0, ``server_lr`` is negative or ``clients_per_round`` is not positive.
    """

    def logarithms(up: Sent, counted: Bool[Array, " S"], size: Array, loss: Array) -> Float[Array, " S"]:
        return jnp.asarray(size_power, loss.dtype) * size + jnp.asarray(loss_power, loss.dtype) * loss

    side = optimizer(server_lr, server_optimizer, task)
    return _weighing(task, local, clients_per_round, logarithms, side, clip, payment)


@checked
def learnt(
    task: Task,
    local: Local,
    *,
    theta: Real[AnyArray, " P"] | Sequence[float] | None = None,
    hidden: CountOrZero = 4,
    payment: Number | None = None,
    clients_per_round: Count | None = 10,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``w <- w + server_lr * sum_k a_k Delta_k / sum_k a_k`` with ``a_k = softplus(s_k) + 1e-6``.

    ``s_k = linear . f_k + second . tanh(f_k first + first_bias) + bias`` of the features ``f_k``: logarithms of the
    size, the loss and the update's norm by the median norm, the cosine of the update with the mean of updates of norm
    1, and the accuracy, less their means over the clients present, from -6 to 6. Reports are of the received model.

    Args:
      task: model and loss, with a score.
      local: how clients train.
      theta: the ``5 + 5 hidden + hidden + hidden + 3`` numbers of linear, first, first_bias, second, bias, and the
        logarithms of ``clip`` and ``server_lr``, as for ``weighted``, which are cut off at -20 and 20.
        ``fljax.algorithms.weighted.parts_of`` names them. None: equal weights, no clip, a rate of 1.
      hidden: the width of the network; 0: none.
      payment: as for ``weighted``.
      clients_per_round: drawn uniformly without replacement; None: all.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Statistics and Info as for ``weighted``; a client that reports a size of 0 has weight 0.

    Raises:
      ValueError: if ``theta`` has another length, or the task has no score.
    """
    training.check_score(task, "learnt")
    rule = parts_of(theta, hidden)
    clip, server_lr = (jnp.exp(jnp.clip(each, -20, 20)) for each in (rule.log_clip, rule.log_server_lr))

    def logarithms(up: Sent, counted: Bool[Array, " S"], size: Array, loss: Array) -> Float[Array, " S"]:
        length, cosine = length_and_cosine(up.update, counted)
        length = jnp.log(jnp.clip(length, jnp.exp(-BOUND), jnp.exp(BOUND)))
        features = jnp.stack([each.astype(loss.dtype) for each in (size, loss, length, cosine, up.report.accuracy)], 1)
        features = jnp.where(counted[:, None], features, 0)
        mean = trees.ratio(jnp.sum(features, axis=0), jnp.sum(counted))
        features = jnp.clip(features - mean[None], -BOUND, BOUND)
        linear, first, first_bias, second, bias = (part.astype(loss.dtype) for part in rule[:5])
        score = features @ linear + jnp.tanh(features @ first + first_bias[None]) @ second + bias
        return jnp.log(jax.nn.softplus(score) + 1e-6)

    side = optimizer(server_lr, server_optimizer, task)
    return _weighing(task, local, clients_per_round, logarithms, side, clip, payment, accuracy=True)


def parts_of(theta: Real[AnyArray, " P"] | Sequence[float] | None, hidden: int = 4) -> Rule:
    """The parts of ``theta`` by name; a ValueError if it has another length."""
    counts = (len(FEATURES), len(FEATURES) * hidden, hidden, hidden, 1, 1, 1)
    numbers = floats_of([0.0] * (sum(counts) - 3) + [1.0, 20.0, 0.0] if theta is None else theta)
    if numbers.shape != (sum(counts),):
        raise ValueError(f"expected theta of {sum(counts)} numbers for hidden = {hidden}, got {numbers.size}")
    linear, first, first_bias, second, *single = jnp.split(numbers, list(itertools.accumulate(counts))[:-1])
    return Rule(linear, first.reshape(len(FEATURES), hidden), first_bias, second, *(each[0] for each in single))


def _weighing(
    task: Task,
    local: Local,
    clients_per_round: int | None,
    logarithms: Callable[[Sent, Bool[Array, " S"], Array, Array], Float[Array, " S"]],
    server_side: ServerOptimizer,
    clip: float | Array | None,
    payment: float | Array | None,
    accuracy: bool = False,
) -> Algorithm:
    """An algorithm whose server weighs and pays clients by what it is sent; ``accuracy``: this is reported, too.

    ``logarithms(up, counted, size, loss)`` are those of the weights ``[S]``, up to a common term. Size and loss are
    logarithms, too, and finite. Clients that are absent or report no rows are not ``counted``.
    """

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        loss_key = training.stream(key, Stream.LOSS)
        loss, score = training.evaluate(task, lambda x: task.logits(down, x), data.train, key=loss_key)
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round, state=client)
        report = Report(loss=loss, size=data.train.rows.size, accuracy=score if accuracy else NOT_ASKED)
        return Sent(trees.subtract(trained.params, down), report), trained.state

    begin = init_optimized(task, server_side)

    # Not streamed: weights are relative to the largest one, and the median needs all norms.
    def aggregate(server: Any, up: Sent, round: Round) -> tuple[SingleModel | Paying, Info]:
        counted = round.cohort.present & (up.report.size > 0)
        update = roles.zero_statistics(task, up.update)
        loss = jnp.where(counted, trees.wide(up.report.loss), 1)
        size = jnp.where(counted, up.report.size, 1).astype(loss.dtype)
        loss = jnp.log(jnp.clip(loss, LEAST_LOSS, jnp.finfo(loss.dtype).max))
        weight = logarithms(up._replace(update=update), counted, jnp.log(size), loss)
        # The least number and not -inf, of which the softmax is NaN if nobody counts.
        weight = jnp.where(counted, jax.nn.softmax(jnp.where(counted, weight, jnp.finfo(weight.dtype).min)), 0)
        if clip is not None:
            update = aggregators.clip_to_median(update, present=counted, times=clip)
        step = aggregators.weighted_sum(roles.replace_statistics(task, update, up.update), weight)
        after = server_side.move(server.model, server.optimizer, step, round.cohort.present)
        if payment is None:
            return SingleModel(*after), along("row", weight=weight)
        tokens = trees.add_rows(server.tokens, round.cohort.id, round.cohort.present, payment * weight)
        return Paying(*after, tokens), along("row", weight=weight) | along("client", tokens=tokens)

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        init_client=keeping(task, local),
        aggregate=aggregate,
        init_server=begin
        if payment is None
        else lambda key, census: Paying(*begin(key, census), tokens=jnp.zeros(census.train.shape)),
    )


ENTRY = Entry(
    weighted,
    "weighs clients by powers of their size and loss",
    ("mcmahan2017communication", "li2020fair", "sun2019can"),
    {"loss_power": 0.5, "clip": 0.9, "payment": 0.7},
    differentiable=("size_power", "loss_power", "clip", "server_lr"),
    flat=("payment",),  # no model depends on it, but tokens do, and have a derivative
    reads="sizes, losses and updates, whose norms it compares",
)
LEARNT_ENTRY = Entry(
    learnt,
    "weighs clients by a small network of what they report and of their updates",
    ("mcmahan2017communication", "li2020fair", "sun2019can"),
    {"hidden": 1, "theta": (0.4, 0.6, -0.5, 0.7, 0.3, 0.5, -0.4, 0.6, 0.3, -0.2, 0.1, 0.8, 0.5, -0.105, -0.223)}
    | {"payment": 0.7},
    differentiable=("theta",),
    flat=("payment",),
    reads="sizes, losses, accuracies and updates, whose norms and cosines it compares",
)
