"""Training one client: gradients, the loop over batches (to its end, or until a loss stops it), and corrections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax.core import trees, users
from fljax.core.errors import at_step
from fljax.core.loops import repeat
from fljax.core.values import Allowed, Count, NonNegative, admitted
from fljax.protocol import Subset, Task, TrainingBatch, roles
from fljax.training.batches import Batches, Stream, draw, fetch, stream
from fljax.training.evaluation import AT_ONCE, evaluate, tally
from fljax.training.settings import Local, of_client, optimizer

# (params, x, y, position, key) -> per-sample loss; the key may be a TrainingBatch, for ``Task.logits``.
Loss = Callable[..., Float[Array, " b"]]
Adjust = Callable[[PyTree, PyTree], PyTree]  # (gradient, params) -> gradient

# Streams of one batch.
_EXAMPLES, _AUGMENTATION = 1, 2


class Trained(NamedTuple):
    """The result of local training.

    Attributes:
      params: the trained parameters.
      steps: ``[]``, the number of steps taken, an integer; ``trees.floating`` makes it a weight.
      state: the optimizer's state, for the client's next round; ``()`` unless ``Local.keep``.
    """

    params: PyTree
    steps: Int[Array, ""]
    state: PyTree = ()


def task_loss(task: Task) -> Loss:
    """The default per-sample loss of a task, in training mode: ``task.losses(task.logits(params, x, key), y)``."""

    def loss(params: PyTree, x: Array, y: Array, position: Array, key: Any) -> Array:
        del position  # other losses weight each row by its position in the client's data
        return task.losses(task.logits(params, x, key), y)

    return loss


def masked_mean(values: Float[Array, " b"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    """``sum(values * mask) / max(1, sum(mask))``; masked entries are ignored, even if they are NaN."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask, dtype=values.dtype), 1)


def value_and_gradient(
    task: Task,
    params: PyTree,
    subset: Subset,
    position: Int[Array, " b"],
    mask: Bool[Array, " b"],
    key: Key[Array, ""],
    *,
    loss: Loss | None = None,
) -> tuple[Float[Array, ""], PyTree]:
    """Masked mean loss of one batch and its gradient, with augmentation, noise and dropout drawn from ``key``.

    The gradient of a statistic is its old value minus its new one (``fljax.protocol.roles.record``).

    Raises:
      ValueError: if the loss is not one number per sample.
    """
    loss = task_loss(task) if loss is None else loss
    x, y = fetch(task, subset, position, jax.random.fold_in(key, _EXAMPLES))
    if task.augment is not None:
        found = users.call("augment", "(key, x)", task.augment, jax.random.fold_in(key, _AUGMENTATION), x)
        x = users.numbers("augment", task.augment, f"a batch [{len(x)}, ...]", found, (len(x), ...))

    mode = TrainingBatch(key, mask) if roles.has_statistics(task, params) else key

    def mean(p: PyTree) -> Array:
        return masked_mean(roles.per_sample(task.loss, loss(p, x, y, position, mode), len(position)), mask)

    value, slope = jax.value_and_grad(mean)(params)
    tally("gradient_steps", value)
    if mode is not key:
        # Statistics of no rows are undefined.
        slope = trees.where(jnp.any(mask), slope, trees.zeros_like(slope))
    return value, slope


def gradient(
    task: Task,
    params: PyTree,
    subset: Subset,
    position: Int[Array, " b"],
    mask: Bool[Array, " b"],
    key: Key[Array, ""],
    *,
    loss: Loss | None = None,
) -> PyTree:
    """The gradient of ``value_and_gradient``."""
    return value_and_gradient(task, params, subset, position, mask, key, loss=loss)[1]


def full_gradient(
    task: Task, params: PyTree, subset: Subset, key: Key[Array, ""], *, loss: Loss | None = None
) -> PyTree:
    """Gradient of the mean loss over ALL rows of a subset, added up from parts in float32 or wider; zero without rows.

    ``loss`` is as for ``train``; None: the task's loss, in training mode.
    """
    capacity, size = subset.rows.index.shape[-1], subset.rows.size
    width = min(capacity, AT_ONCE)
    parts = -(-capacity // width)

    def one(total: PyTree, part: Array) -> tuple[PyTree, None]:
        position = part * width + jnp.arange(width)
        mask = position < size
        slope = gradient(task, params, subset, position, mask, jax.random.fold_in(key, part), loss=loss)
        # The slope is a mean over the part's rows; scale it to the part's share of all rows.
        share = jnp.sum(mask) / jnp.maximum(size, 1)
        return trees.add(total, trees.scale(trees.widened(slope), share)), None

    total = jax.lax.scan(one, trees.widened(trees.zeros_like(params)), jnp.arange(parts))[0]
    return trees.like(total, params)


def descend(
    step: Callable[[PyTree, Array, Array, Any], PyTree], carry: PyTree, batches: Batches, key: Key[Array, ""]
) -> tuple[PyTree, Int[Array, ""]]:
    """Runs ``step(carry, position, mask, key) -> carry`` over the real batches; returns carry and steps taken.

    If every client takes the same number of steps, this is a plain scan. Otherwise the trip count is the client's own
    number of steps, so a program that runs clients one after another computes no unneeded steps.
    """
    count = batches.position.shape[0]
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))

    def one(index: Array, carry: PyTree) -> PyTree:
        with at_step(index):
            return step(carry, batches.position[index], batches.mask[index], keys[index])

    if batches.steps is None:
        carry, _ = jax.lax.scan(lambda c, i: (one(i, c), None), carry, jnp.arange(count))
        return carry, jnp.asarray(count, jnp.int32)
    taken = jnp.clip(batches.steps, 0, count).astype(jnp.int32)
    return repeat(taken, one, carry, most=count), taken


def train(
    key: Key[Array, ""],
    params: PyTree,
    subset: Subset,
    *,
    task: Task,
    local: Local,
    round: Int[Array, ""] | int = 0,
    loss: Loss | None = None,
    adjust: Adjust | None = None,
    steps: Int[Array, ""] | None = None,
    state: PyTree = None,
) -> Trained:
    """LocalSGD: trains ``params`` on a subset for one round.

    Args:
      key: key of this client, round and slot.
      params: the initial parameters.
      subset: the client's training rows.
      task: the model and its loss.
      local: batches, optimizer, learning rate.
      round: round number, for the decay of the learning rate.
      loss: ``(params, x, y, position, key) -> [b]`` per-sample losses; None: the task's loss. The ``key`` is for
        ``task.logits``.
      adjust: ``(gradient, params) -> gradient``, e.g. ``proximal`` or ``with_correction``; None: no change. It has no
        effect on statistics.
      steps: a traced number of steps for this client, up to the static maximum of ``local`` and that of ``subset``.
      state: the optimizer's state that the client kept (``first_state``); None, or without ``local.keep``: a fresh one.

    Returns:
      New parameters, the number of steps taken, and the state to keep. A client without samples has zero gradients, so
      plain SGD leaves its parameters unchanged; the engine never trains such a client.
    """
    batches = draw(stream(key, Stream.BATCHES), subset, local, steps=steps)
    carry, step = stepping(params, subset, task, local, round, loss, adjust)
    is_kept = local.keep and state is not None
    carry = (params, state) if is_kept else carry
    (params, state), taken = descend(step, carry, batches, stream(key, Stream.STEPS))
    return Trained(params, taken, state if is_kept else ())


def first_state(task: Task, local: Local, params: PyTree) -> PyTree:
    """The optimizer's state that a client keeps before its first round; ``()`` without ``local.keep``."""
    return optimizer(local, 0, jax.tree.leaves(params)[0].dtype, task).init(params) if local.keep else ()


def stepping(
    params: PyTree,
    subset: Subset,
    task: Task,
    local: Local,
    round: Int[Array, ""] | int = 0,
    loss: Loss | None = None,
    adjust: Adjust | None = None,
) -> tuple[PyTree, Callable[[PyTree, Array, Array, Any], PyTree]]:
    """What ``train`` carries from step to step, parameters and optimizer state, and its step, as for ``descend``."""
    transformation = optimizer(of_client(local, subset), round, jax.tree.leaves(params)[0].dtype, task)

    def step(carry: PyTree, position: Array, mask: Array, step_key: Any) -> PyTree:
        params, state = carry
        slope = gradient(task, params, subset, position, mask, step_key, loss=loss)
        if adjust is not None:
            slope = roles.replace_statistics(task, adjust(slope, params), slope)
        move, state = transformation.update(slope, state, params)
        return trees.add(params, jax.tree.map(lambda m, p: m.astype(p.dtype), move, params)), state

    return (params, transformation.init(params)), step


def one_step(task: Task, local: Local, params: PyTree, slope: PyTree, round: Int[Array, ""] | int = 0) -> PyTree:
    """The update of one step of plain SGD: ``-rate(local, round) (clipped slope + weight_decay params)``.

    Statistics take the values that ``slope`` reports.
    """
    transformation = optimizer(local, round, jax.tree.leaves(slope)[0].dtype, task)
    return trees.like(transformation.update(slope, transformation.init(params), params)[0], params)


def proximal(anchor: PyTree, mu: float | Array) -> Adjust:
    """Adds ``mu * (params - anchor)``, the gradient of ``mu/2 ||params - anchor||^2`` (FedProx, Ditto, FedSoft)."""
    return lambda slope, params: trees.add(slope, trees.scale(trees.subtract(params, anchor), mu))


def with_correction(correction: PyTree) -> Adjust:
    """Adds a constant to every gradient (SCAFFOLD: ``c - c_k``), which may be in a wider dtype."""
    return lambda slope, params: trees.like(trees.add(slope, correction), slope)


class StopAlone(NamedTuple):
    """Early stopping of each standalone model: the client keeps the parameters of the last improvement.

    Without ``minimum_change`` these are the ones with the least validation loss.

    Attributes:
      every: steps between two evaluations; epochs, if ``Local`` has epochs.
      patience: evaluations in a row without improvement, after which the client stops.
      minimum_change: an improvement is a loss below the least one before minus this.
    """

    every: Count = 1
    patience: Count = 5
    minimum_change: NonNegative = 0.0


def check_stop(stop: Any) -> StopAlone | None:
    """``stop`` with numbers of Python; raises a ValueError if it is no ``StopAlone`` of allowed values, or None."""
    checked: StopAlone | None = admitted("stop", stop, Allowed(records=(StopAlone,), none=True))
    return checked


class _Course(NamedTuple):
    """Where a client's training is."""

    done: Int[Array, ""]  # steps
    carry: PyTree  # parameters and optimizer state
    best: PyTree  # the parameters of the least loss
    at: Int[Array, ""]  # the steps after which they were found
    least: Array
    waited: Int[Array, ""]  # evaluations since then


def train_until(
    key: Key[Array, ""], params: PyTree, subset: Subset, judges: Subset, *, task: Task, local: Local, stop: StopAlone
) -> Trained:
    """``train`` that evaluates the loss on other rows and returns the parameters where it was least.

    The initial parameters are evaluated, too, and the last ones. Batches and all other random numbers are those of
    ``train``. A loss that is NaN is no improvement.

    Args:
      key: as for ``train``.
      params: the initial parameters.
      subset: the rows to train on.
      judges: the rows of the loss. If there are none, training goes on to its end, and its parameters are returned.
      task: as for ``train``.
      local: as for ``train``.
      stop: when to evaluate and to stop.

    Returns:
      The parameters, and the number of steps after which they were found.
    """
    carry, step = stepping(params, subset, task, local)
    batches = draw(stream(key, Stream.BATCHES), subset, local)
    steps_key = stream(key, Stream.STEPS)
    count = batches.position.shape[0]
    total = jnp.asarray(count if batches.steps is None else jnp.clip(batches.steps, 0, count), jnp.int32)
    # Every epoch of a client has the same number of steps.
    unit = jnp.asarray(stop.every if local.epochs is None else stop.every * (total // local.epochs), jnp.int32)
    is_judged = judges.rows.size > 0

    def loss(params: PyTree) -> Array:
        return evaluate(task, lambda x: task.logits(params, x), judges)[0]

    def goes_on(course: _Course) -> Bool[Array, ""]:
        return (course.done < total) & ((course.waited < stop.patience) | ~is_judged)

    def one(index: Array, carry: PyTree) -> PyTree:
        with at_step(index):
            return step(carry, batches.position[index], batches.mask[index], jax.random.fold_in(steps_key, index))

    def some(course: _Course) -> _Course:
        done = jnp.minimum(course.done + jnp.maximum(unit, 1), total)
        carry = jax.lax.fori_loop(course.done, done, one, course.carry)
        value = loss(carry[0])
        is_better = (value < course.least - stop.minimum_change) | ~is_judged
        best = trees.where(is_better, carry[0], course.best)
        waited = jnp.where(is_better, 0, course.waited + 1)
        least = jnp.where(is_better, value, course.least)
        return _Course(done, carry, best, jnp.where(is_better, done, course.at), least, waited)

    zero, first = jnp.zeros((), jnp.int32), loss(params)
    least = jnp.where(jnp.isnan(first), jnp.inf, first)
    course = jax.lax.while_loop(goes_on, some, _Course(zero, carry, params, zero, least, zero))
    return Trained(course.best, course.at)
