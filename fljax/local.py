"""Local training of one client: batching, the step, and the loop that joins them.

Batching (``draw``) is separate from the step (``descend``), so that algorithms with steps of their own (three batches,
an inner problem) reuse the batches. All of it is written for ONE client with a padded index list; the result equals the
unpadded computation, because batch positions are drawn in ``[0, size)`` and masked rows carry no weight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fljax import trees
from fljax.types import Subset, Task

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key, PyTree

    Loss = Callable[..., Float[Array, " b"]]  # (params, x, y, position, key) -> per-sample loss
    Adjust = Callable[[PyTree, PyTree], PyTree]  # (gradient, params) -> gradient


# Index lists are shuffled in arrays of their capacity, a quarter of it, and so on while not shorter than this.
SHORTEST = 192
# Rows that are evaluated at a time: what a network computes for them should stay in a CPU's caches.
AT_ONCE = 128


class Local(NamedTuple):
    """How a client trains. Floats may be traced; ints and names shape the compiled program.

    Attributes:
      learning_rate: of round 0; round t uses ``learning_rate * decay**t``.
      batch_size: b; a client with fewer samples takes them all.
      steps: tau steps per round, each a batch drawn afresh without replacement inside the batch; or
      epochs: E passes per round, each a fresh permutation cut in ``ceil(size / b)`` batches, the last one partial.
      optimizer: a name of optax ("sgd", "adam", "adadelta", ...) or ``learning_rate -> GradientTransformation``. Its
        state is made anew in every round.
      options: further ``(name, value)`` arguments of the optax optimizer, e.g. ``(("momentum", 0.9),)``.
      decay: factor per round.
      weight_decay: coupled L2: ``weight_decay * params`` is added to the gradient BEFORE the optimizer (not AdamW);
        None: none.
    """

    learning_rate: float | Array
    batch_size: int
    steps: int | None = None
    epochs: int | None = None
    optimizer: str | Callable[[Any], optax.GradientTransformation] = "sgd"
    options: tuple[tuple[str, Any], ...] = ()
    decay: float | Array = 1.0
    weight_decay: float | Array | None = None


class Batches(NamedTuple):
    """The batches of one client in one round, as positions in its own index list; T is the static maximum of steps."""

    position: Int[Array, "T b"]
    mask: Bool[Array, "T b"]
    steps: Int[Array, ""] | None  # how many of the T steps are real; None: all of them, for every client


class Trained(NamedTuple):
    """What local training gives back."""

    params: PyTree
    steps: Int[Array, ""]  # steps really taken


def optimizer(local: Local, round: Int[Array, ""] | int = 0, dtype: Any = jnp.float32) -> optax.GradientTransformation:
    """The optax transformation of one round; ``dtype`` is that of the parameters.

    Raises:
      ValueError: if optax has no optimizer of that name.
    """
    rate = jnp.asarray(local.learning_rate, dtype)
    rate = rate * jnp.asarray(local.decay, dtype) ** jnp.asarray(round).astype(dtype)
    if callable(local.optimizer):
        built: Any = local.optimizer(rate)
    else:
        builder = getattr(optax, local.optimizer, None)
        if local.optimizer.startswith("_") or not callable(builder):
            raise ValueError(
                f"expected the name of an optax optimizer such as sgd, adam or adadelta, got {local.optimizer!r}"
            )
        built = builder(rate, **dict(local.options))
    if local.weight_decay is None:
        return built
    return optax.chain(optax.add_decayed_weights(jnp.asarray(local.weight_decay, dtype)), built)


def fetch(
    task: Task, subset: Subset, position: Int[Array, " b"], key: Key[Array, ""] | None = None
) -> tuple[Array, Int[Array, " b"]]:
    """Reads and prepares rows of a subset: ``(x, y)``.

    Args:
      task: gives ``prepare``.
      subset: index list into the shared examples.
      position: ``[b]`` positions in the index list; beyond ``size - 1`` they read the last real row.
      key: where given and the subset has noise, every sample gets noise of its own, keyed by (key, its row), in
        prepared units. Without a key the samples are clean.
    """
    row = subset.rows.index[jnp.minimum(position, jnp.maximum(subset.rows.size - 1, 0))]
    x, y = subset.examples.x[row], subset.examples.y[row]
    x = x if task.prepare is None else task.prepare(x)
    if key is not None and subset.noise is not None:
        draw_one = lambda index: jax.random.normal(jax.random.fold_in(key, index), x.shape[1:], x.dtype)  # noqa: E731
        x = x + subset.noise.astype(x.dtype) * jax.vmap(draw_one)(row)
    return x, y


def draw_distinct(
    key: Key[Array, ""], size: Int[Array, ""], count: int, draws: int
) -> tuple[Int[Array, "draws count"], Bool[Array, "draws count"]]:
    """``draws`` independent uniform samples of ``min(count, size)`` distinct positions in ``[0, size)``.

    Floyd's method: ``count`` picks, each compared with the earlier ones, so the cost does not depend on size and no
    sorting is needed. Returns positions and the mask of real entries (False beyond ``size``).
    """
    size = jnp.asarray(size, jnp.int32)
    taken = jnp.minimum(size, count)
    uniform = jax.random.uniform(key, (count * draws,)).reshape(count, draws)

    def pick(step: Array, chosen: Array) -> Array:
        last = size - taken + step.astype(size.dtype)
        guess = jnp.minimum((uniform[step] * (last + 1).astype(uniform.dtype)).astype(jnp.int32), last)
        clash = jnp.any((chosen == guess[:, None]) & (jnp.arange(count) < step)[None, :], axis=1)
        return chosen.at[:, step].set(jnp.where(clash, last, guess))

    chosen = jax.lax.fori_loop(0, count, pick, jnp.zeros((draws, count), jnp.int32))
    mask = jnp.broadcast_to((jnp.arange(count) < taken)[None, :], chosen.shape)
    return jnp.where(mask, chosen, 0), mask


def shuffled(key: Key[Array, ""], size: Int[Array, ""], capacity: int) -> Int[Array, " capacity"]:
    """A permutation of ``[0, size)``, followed by ``capacity - size`` entries without meaning.

    Positions are sorted by 20 random bits, equal ones by position. Where a position fits into the other 12 bits of the
    word the two are sorted as one: a CPU sorts whole numbers five times faster than numbers with an index. The result
    does not depend on ``capacity``, so that clients far smaller than that are sorted in a shorter array: one for all
    that ``vmap`` puts side by side.
    """
    widths = [capacity]
    while widths[0] >= 4 * SHORTEST:
        widths.insert(0, -(-widths[0] // 4))
    size = jnp.asarray(size)
    if len(widths) == 1:
        return _shuffled(key, size, capacity)

    @jax.custom_batching.custom_vmap
    def rows(keys: Array, sizes: Array) -> Array:  # [n], [n] -> [n, capacity]
        def within(width: int) -> Array:
            found = jax.vmap(lambda key, size: _shuffled(key, size, width))(keys, sizes)
            return jnp.pad(found, ((0, 0), (0, capacity - width)))

        longer = sum((jnp.max(sizes) > width).astype(jnp.int32) for width in widths[:-1])
        return jax.lax.switch(longer, [functools.partial(within, width) for width in widths])

    @rows.def_vmap
    def _(axis_size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        # One switch for all, by the largest; a vmapped switch would compute every branch.
        every = [
            x if own else jnp.broadcast_to(x, (axis_size, *x.shape)) for x, own in zip(arguments, batched, strict=True)
        ]
        return rows(*(x.reshape(-1) for x in every)).reshape(axis_size, -1, capacity), True

    return rows(key[None], size[None])[0]


def _shuffled(key: Key[Array, ""], size: Int[Array, ""], capacity: int) -> Int[Array, " capacity"]:
    order = jnp.arange(capacity, dtype=jnp.uint32)
    low, last = jnp.uint32(2**12 - 1), jnp.uint32(2**32 - 1)
    score = jax.random.bits(key, (capacity,), jnp.uint32) & ~low
    real = order < size.astype(jnp.uint32)
    if capacity > 2**12:
        return jnp.argsort(jnp.where(real, score, last), stable=True).astype(jnp.int32)
    return (jnp.sort(jnp.where(real, score | order, last)) & low).astype(jnp.int32)


def draw(key: Key[Array, ""], subset: Subset, local: Local, *, steps: Int[Array, ""] | None = None) -> Batches:
    """The batches of one round, in either mode.

    Args:
      key: of this client, round and slot.
      subset: whose rows are drawn.
      local: batch size and either ``steps`` or ``epochs``.
      steps: a traced number of real steps for this client under the static maximum that ``local`` gives; None: all.

    Raises:
      ValueError: unless exactly one of steps and epochs is given, or if a count is below one.
    """
    if (local.steps is None) == (local.epochs is None):
        raise ValueError(f"expected one of steps and epochs, got steps={local.steps}, epochs={local.epochs}")
    for name in ("batch_size", "steps", "epochs"):
        count = getattr(local, name)
        if count is not None and count < 1:
            raise ValueError(f"expected a positive {name}, got {count}")
    capacity = subset.rows.index.shape[-1]
    batch = min(local.batch_size, capacity)
    if local.steps is not None:
        position, mask = draw_distinct(key, subset.rows.size, batch, local.steps)
        return Batches(position, mask, steps)
    assert local.epochs is not None
    size, per_epoch = subset.rows.size, -(-subset.rows.size // batch)

    def permutation(epoch: Array) -> Array:
        return shuffled(jax.random.fold_in(key, epoch), size, capacity)

    permutations = jax.vmap(permutation)(jnp.arange(local.epochs))
    step = jnp.arange(local.epochs * -(-capacity // batch))
    divisor = jnp.maximum(per_epoch, 1)
    epoch = jnp.minimum(step // divisor, local.epochs - 1)
    offset = (step % divisor)[:, None] * batch + jnp.arange(batch)[None, :]
    position = permutations[epoch[:, None], jnp.minimum(offset, capacity - 1)]
    total = local.epochs * per_epoch
    real = total if steps is None else jnp.minimum(steps, total)
    mask = offset < size
    return Batches(jnp.where(mask, position, 0), mask, real)


def task_loss(task: Task) -> Loss:
    """The default per-sample loss of a task, in training mode: ``task.loss(task.logits(params, x, key), y)``."""

    def loss(params: PyTree, x: Array, y: Array, position: Array, key: Any) -> Array:
        del position  # other losses weigh each row by its place in the client's data
        return task.loss(task.logits(params, x, key), y)

    return loss


def masked_mean(values: Float[Array, " b"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    """``sum(values * mask) / max(1, sum(mask))``; masked entries are never read."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask, dtype=values.dtype), 1)


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
    """Gradient of the masked mean loss of one batch, with augmentation, noise and dropout drawn from ``key``."""
    loss = task_loss(task) if loss is None else loss
    x, y = fetch(task, subset, position, jax.random.fold_in(key, 1))
    if task.augment is not None:
        x = task.augment(jax.random.fold_in(key, 2), x)
    mean = lambda p: masked_mean(loss(p, x, y, position, key), mask)  # noqa: E731
    return jax.grad(mean)(params)


def descend(
    step: Callable[[PyTree, Array, Array, Any], PyTree],
    carry: PyTree,
    batches: Batches,
    key: Key[Array, ""],
) -> tuple[PyTree, Int[Array, ""]]:
    """Runs ``step(carry, position, mask, key) -> carry`` over the real batches; returns carry and steps taken.

    Where every client takes the same number of steps this is a plain scan. Otherwise the trip count is the client's
    own, so that a program that runs clients one after another does no step that is not needed.
    """
    count = batches.position.shape[0]
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))

    def one(index: Array, carry: PyTree) -> PyTree:
        return step(carry, batches.position[index], batches.mask[index], keys[index])

    if batches.steps is None:
        carry, _ = jax.lax.scan(lambda c, i: (one(i, c), None), carry, jnp.arange(count))
        return carry, jnp.asarray(count, jnp.int32)
    taken = jnp.clip(batches.steps, 0, count).astype(jnp.int32)
    return jax.lax.fori_loop(jnp.zeros((), jnp.int32), taken, one, carry), taken


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
) -> Trained:
    """LocalSGD: trains ``params`` on a subset for one round, from a fresh optimizer state.

    Args:
      key: of this client, round and slot.
      params: where training starts.
      subset: the client's training rows.
      task: the model and its loss.
      local: batches, optimizer, learning rate.
      round: for the decay of the learning rate.
      loss: ``(params, x, y, position, key) -> [b]`` per-sample losses; None: the task's.
      adjust: ``(gradient, params) -> gradient``, e.g. ``proximal`` or ``corrected``; None: none.
      steps: a traced number of steps for this client under the static maximum of ``local``.

    Returns:
      New parameters and the number of steps taken. A client without samples takes zero-gradient steps: its parameters
      do not move under plain SGD, and the engine never gives it a seat.
    """
    transformation = optimizer(local, round, jax.tree.leaves(params)[0].dtype)
    batches = draw(jax.random.fold_in(key, 0), subset, local, steps=steps)

    def step(carry: PyTree, position: Array, mask: Array, step_key: Any) -> PyTree:
        params, state = carry
        slope = gradient(task, params, subset, position, mask, step_key, loss=loss)
        if adjust is not None:
            slope = adjust(slope, params)
        move, state = transformation.update(slope, state, params)
        return trees.add(params, jax.tree.map(lambda m, p: m.astype(p.dtype), move, params)), state

    carry = (params, transformation.init(params))
    (params, _), taken = descend(step, carry, batches, jax.random.fold_in(key, 1))
    return Trained(params, taken)


def proximal(anchor: PyTree, mu: float | Array) -> Adjust:
    """Adds ``mu * (params - anchor)``, the gradient of ``mu/2 ||params - anchor||^2`` (FedProx, Ditto, FedSoft)."""
    return lambda slope, params: trees.add(slope, trees.scale(trees.subtract(params, anchor), mu))


def corrected(correction: PyTree) -> Adjust:
    """Adds a constant to every gradient (SCAFFOLD: ``c - c_k``)."""
    return lambda slope, params: trees.add(slope, correction)


def evaluate(
    task: Task, predict: Callable[..., Array], subset: Subset, *, key: Key[Array, ""] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean loss and accuracy over ALL rows of a subset: one inference pass.

    Args:
      task: gives ``prepare`` and ``loss``.
      predict: ``x -> logits`` on prepared ``x``.
      subset: the rows; padding is masked.
      key: of the noise of the features, if the subset has noise; None: clean features.

    Returns:
      ``(loss, accuracy)``; both NaN for a subset without rows.
    """
    capacity, size = subset.rows.index.shape[-1], subset.rows.size

    def sums(position: Array) -> tuple[Array, Array]:
        x, y = fetch(task, subset, position, key)
        logits = predict(x)
        correct = (jnp.argmax(logits, axis=-1) == y).astype(logits.dtype)
        add = lambda values: jnp.sum(jnp.where(position < size, values, 0))  # noqa: E731
        return add(task.loss(logits, y)), add(correct)

    parts = -(-capacity // AT_ONCE)
    if parts <= 1:
        loss, correct = sums(jnp.arange(capacity))
    else:
        each = -(-capacity // parts)
        found = jax.lax.map(sums, jnp.arange(parts * each).reshape(parts, each))
        loss, correct = jax.tree.map(jnp.sum, found)
    count = size.astype(loss.dtype)
    count = jnp.where(count > 0, count, jnp.nan)
    return loss / count, correct / count


def judged(
    loss: Float[Array, ""], accuracy: Float[Array, ""], counts: Bool[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A client's scores as metrics want them.

    NaN means that a client does not count; a loss that is NaN for another reason is that of a diverged model, which is
    as bad as can be: infinite.
    """
    loss = jnp.where(jnp.isnan(loss), jnp.inf, loss)
    return jnp.where(counts, loss, jnp.nan), jnp.where(counts, accuracy, jnp.nan)
