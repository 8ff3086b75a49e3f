"""How a client trains: the settings, and their optax transformation."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from fljax.aggregators.clipping import clip
from fljax.core import users
from fljax.core.names import unknown
from fljax.core.values import Count, NonNegative, Positive, as_number, parameters_of, takes_anything
from fljax.protocol import Subset, Task, roles


class OptimizerSettings(NamedTuple):
    """An optax optimizer by name, with its other arguments. Floats may be traced; the rest is part of the program.

    Attributes:
      name: "sgd", "adam", "adadelta", ...
      options: ``(name, value)`` of its arguments beside the learning rate, e.g. ``(("momentum", 0.9),)``.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()


class RateSchedule(NamedTuple):
    """An optax schedule over ROUNDS by name: a factor of the learning rate. All of it is part of the program.

    Attributes:
      name: "cosine_decay_schedule", "warmup_cosine_decay_schedule", "piecewise_constant_schedule", ...
      options: ``(name, value)`` of its arguments, in rounds in place of steps, e.g. ``(("decay_steps", 100),)``.
        Without them ``peak_value`` is 1, and ``init_value`` is 0 before a peak, else 1. Boundaries are pairs:
        ``(("boundaries_and_scales", ((50, 0.1), (75, 0.1))),)`` divides by 10 from round 50 on, and again from 75 on.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()


# Not leaves, since optax compares numbers of schedules in Python.
jax.tree_util.register_pytree_node(RateSchedule, lambda schedule: ((), schedule), lambda schedule, _: schedule)


# The name of an optax optimizer, a name with options, or a function ``learning_rate -> GradientTransformation``.
Optimizer = str | OptimizerSettings | Callable[[Any], optax.GradientTransformation]


class Local(NamedTuple):
    """How a client trains. Floats may be traced; ints and names are static parts of the program.

    Attributes:
      learning_rate: round t uses ``learning_rate * decay**t``, times the schedule's factor.
      batch_size: b; a client with fewer samples uses all of them.
      steps: tau steps per round, each on an independent batch of distinct rows; or
      epochs: E passes per round, each a new permutation in ``ceil(size / b)`` batches, the last one partial.
      optimizer: the name of an optax optimizer ("sgd", "adam", "adadelta", ...) or
        ``learning_rate -> GradientTransformation``. Its state starts afresh in every round, unless ``keep``.
      options: further ``(name, value)`` arguments of the optax optimizer, e.g. ``(("momentum", 0.9),)``.
      decay: factor of the learning rate per round.
      weight_decay: coupled L2: ``weight_decay * params`` is added to the gradient BEFORE the optimizer (not AdamW);
        None: none.
      shuffle: whether batches are drawn as above. If False, they are consecutive rows in the order in which the
        federation stores them. ``federate`` draws this order once, from the federation's seed: it is not that of your
        arrays. All epochs are then the same. Steps have full batches, which go on with the first row after the last
        one. Every round begins at the first row. A client with at most b rows trains on all of them in each step, in
        either case.
      keep: whether a client keeps the optimizer's state (momentum, moments, numbers of steps) from one of its rounds to
        the next. It starts at the initial model. The learning rate is that of the round, so the state of a function
        must not hold it (as with ``optax.inject_hyperparams``, or "rprop"). Evaluations that train, and standalone
        models, keep nothing.
      clip_norm: bound of the norm of each step's gradient over all trained leaves, as ``optax.clip_by_global_norm``,
        before weight decay and the optimizer; None: none.
      decay_of: the trained leaves on which ``weight_decay`` acts, and that of a named
        optimizer with a mask (AdamW): "weights": those
        of two or more dimensions, so neither biases nor the scales of norms; "all" or None: all.
      schedule: a further factor of the learning rate by round; None: 1.
    """

    learning_rate: NonNegative
    batch_size: Count
    steps: Count | None = None
    epochs: Count | None = None
    optimizer: str | Callable[[Any], optax.GradientTransformation] = "sgd"
    options: tuple[tuple[str, Any], ...] = ()
    decay: Positive = 1.0
    weight_decay: NonNegative | None = None
    shuffle: bool = True
    keep: bool = False
    clip_norm: Positive | None = None
    decay_of: Literal["all", "weights"] | None = None
    schedule: RateSchedule | None = None


def of_client(local: Local, subset: Subset) -> Local:
    """``local`` with the client's factor of the learning rate, for steps of one's own: ``stepping`` has it already."""
    factor = subset.rate_factor
    return local if factor is None else local._replace(learning_rate=local.learning_rate * factor)


def rate(local: Local, round: Int[Array, ""] | int = 0, dtype: Any = jnp.float32) -> Float[Array, ""]:
    """The learning rate of a round, with decay and schedule, computed in float32 or wider."""
    wide = np.promote_types(dtype, np.float32)  # .999 is 1 in bfloat16
    decay = jnp.asarray(local.decay, wide) ** jnp.asarray(round).astype(wide)
    if local.schedule is not None:
        decay = decay * named_schedule(local.schedule)(jnp.asarray(round)).astype(wide)
    return (jnp.asarray(local.learning_rate, wide) * decay).astype(dtype)


def optimizer(
    local: Local, round: Int[Array, ""] | int = 0, dtype: Any = jnp.float32, task: Task | None = None
) -> optax.GradientTransformation:
    """The optax transformation of one round; ``dtype`` is the dtype of the parameters.

    With a ``task``, statistics take the new values that the gradient reports (``bypass_statistics``).

    Raises:
      ValueError: if optax has no optimizer of that name.
    """
    mask, options = _weights if local.decay_of == "weights" else None, dict(local.options)
    if mask is not None and isinstance(local.optimizer, str):
        builder = getattr(optax, local.optimizer, None)
        takes = parameters_of(builder) if callable(builder) else ()
        options = {name: mask for name in ("mask", "weight_decay_mask") if name in takes} | options
    built = named_optimizer(local.optimizer, rate(local, round, dtype), options)
    if local.weight_decay is not None:
        built = optax.chain(optax.add_decayed_weights(jnp.asarray(local.weight_decay, dtype), mask), built)
    if local.clip_norm is not None:
        built = optax.chain(optax.stateless(functools.partial(_clipped, local.clip_norm)), built)
    return built if task is None else bypass_statistics(task, built)


def _weights(params: PyTree) -> PyTree:
    """Whether each leaf has two or more dimensions."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) > 1, params)


def _clipped(bound: float | Array, slope: PyTree, params: PyTree) -> PyTree:
    # Not optax's, whose derivative at a gradient of 0 is NaN.
    return jax.tree.map(lambda leaf: leaf[0], clip(jax.tree.map(lambda leaf: leaf[None], slope), bound))


def bypass_statistics(task: Task, inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """``inner`` for trained leaves; a statistic moves by the negated gradient, whatever ``inner`` does.

    The result is ``inner`` itself for params without statistics.
    """

    def both(tree: PyTree) -> optax.GradientTransformation:
        if not roles.has_statistics(task, tree):
            return inner
        trained = roles.trained_mask(task, tree)
        others = jax.tree.map(lambda is_trained: not is_trained, trained)
        return optax.chain(optax.masked(inner, trained), optax.masked(optax.scale(-1.0), others))

    return optax.GradientTransformation(
        lambda params: both(params).init(params),
        lambda updates, state, params=None: both(updates).update(updates, state, params),
    )


def check_options(name: str, builder: Callable[..., Any], options: Mapping[str, Any], kind: str = "optimizer") -> None:
    """Raises a ValueError for an option that the optimizer or schedule does not have, and for NaN."""
    valid = [parameter for parameter in parameters_of(builder) if parameter != "learning_rate"]
    for option, value in options.items():
        if option not in valid and not takes_anything(builder):
            raise ValueError(f"{unknown('option', option, valid)} for the {kind} {name}")
        number = as_number(value)
        if number is not None and math.isnan(number):
            raise ValueError(f"expected the option {option} of the {kind} {name} to be a number, got {value}")


def named_schedule(schedule: RateSchedule) -> Callable[[Array], Array]:
    """The factor of the learning rate by round, of ``optax.<name>(**options)``.

    Raises:
      ValueError: if optax has no schedule of that name, or not with these options.
    """
    builders, options = schedules(), dict(schedule.options)
    for value in filter(None, map(as_number, options.values())):
        if not value >= 0:
            raise ValueError(f"expected no negative number in the schedule {schedule.name}, got {value}")
    if schedule.name not in builders:
        raise ValueError(unknown("schedule", schedule.name, builders))
    builder = builders[schedule.name]
    check_options(schedule.name, builder, options, "schedule")
    takes = parameters_of(builder)
    peaks = "peak_value" in takes
    usual: dict[str, Any] = {"init_value": 0.0 if peaks else 1.0, "peak_value": 1.0}
    given = {name: value for name, value in usual.items() if name in takes} | options
    try:
        for name in given.keys() & {"boundaries_and_scales"}:  # pairs of a round and a factor
            given[name] = {int(boundary): float(scale) for boundary, scale in given[name]}
        found = builder(**given)
        jax.eval_shape(found, jnp.zeros((), jnp.int32))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected options with which optax makes the schedule {schedule.name}, got {options}: {error}"
        ) from None
    return lambda round: jnp.asarray(found(round))


@functools.cache
def schedules() -> Mapping[str, Callable[..., Any]]:
    """The schedules of optax that are made of numbers, by name."""
    found = {name: getattr(optax.schedules, name) for name in dir(optax.schedules)}
    return {
        name: call
        for name, call in found.items()
        if inspect.isfunction(call) and {"init_value", "peak_value"}.intersection(parameters_of(call))
    }


def named_optimizer(
    name: str | Callable[[Any], optax.GradientTransformation], rate: Any, options: Mapping[str, Any]
) -> optax.GradientTransformation:
    """``optax.<name>(rate, **options)``; a function is called with the rate alone.

    Raises:
      ValueError: if optax has no optimizer of that name, or it needs more than gradients, as "lbfgs" does.
    """
    if callable(name):
        found = users.call("the optimizer", "(learning_rate)", name, rate)
        if not callable(getattr(found, "init", None)) or not callable(getattr(found, "update", None)):
            raise users.refused("the optimizer", name, "an optax.GradientTransformation", found)
        return found
    builder = getattr(optax, name, None) if isinstance(name, str) else None
    if not callable(builder) or name.startswith("_"):
        raise ValueError(f"expected the name of an optax optimizer such as sgd, adam or adadelta, got {name!r}")
    check_options(name, builder, options)
    built: Any = builder(rate, **options)
    zero = jnp.zeros(())
    try:
        jax.eval_shape(lambda: built.update(zero, built.init(zero), zero))
    except (AttributeError, TypeError):
        raise ValueError(f"expected an optimizer that needs gradients alone, got {name!r}") from None
    return built
