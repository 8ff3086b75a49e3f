"""Early stopping of one client's training by the loss on other rows, such as its validation rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fljax.core import trees
from fljax.core.errors import at_step
from fljax.core.values import Allowed, Count, NonNegative, admitted
from fljax.protocol import Subset, Task
from fljax.training.batches import Stream, draw, stream
from fljax.training.evaluation import evaluate
from fljax.training.settings import Local
from fljax.training.steps import Trained, stepping


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
    key: Key[Array, ""],
    params: PyTree,
    subset: Subset,
    judges: Subset,
    *,
    task: Task,
    local: Local,
    stop: StopAlone,
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
