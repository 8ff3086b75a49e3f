"""Batches of one client: drawing positions in its index list, and reading the rows.

Batches without replacement are drawn by Floyd's method: no sort, and a cost that does not depend on the client's size.
Permutations sort one word per row, in an array about as long as the largest client of the chunk needs.
"""

from __future__ import annotations

import enum
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fljax.core import platforms
from fljax.protocol import Moments, Rows, Subset, Task
from fljax.protocol.data import least_rows
from fljax.training.settings import Local


class Stream(enum.IntEnum):
    """The use of a random stream. Values are part of every run's identity: never renumber.

    ``train`` draws from BATCHES and STEPS. Streams with equal values belong to different algorithms.
    """

    BATCHES = 0  # which rows each batch has
    STEPS = 1  # augmentation, noise and dropout in each step
    LOSS = 2  # noise of the features while a loss on training rows is measured
    CONTROL_VARIATE = 2
    PERSONAL_MODEL = 2
    HEAD = 2  # where the last layer trains apart from the others
    PROTOTYPES = 2
    MIXING_WEIGHTS = 2
    WORK = 2  # how much a straggler trains
    TUNING = 3  # steps before the loss is measured


def stream(key: Key[Array, ""], use: Stream) -> Key[Array, ""]:
    """The key of a named stream: ``fold_in(key, use)``."""
    return jax.random.fold_in(key, int(use))


# Long index lists are shuffled in arrays of their capacity, half of it, and so on; no array is shorter than this.
SHORTEST = 192
# Up to so many picks are compared with each other at once; the comparisons grow with the square.
COMPARED = 256
# JAX indexes arrays with 32-bit integers.
LARGEST_ARRAY = 2**31 - 1


class Batches(NamedTuple):
    """The batches of one client in one round, as positions in its index list; T is the static maximum of steps."""

    position: Int[Array, "T b"]
    mask: Bool[Array, "T b"]
    steps: Int[Array, ""] | None  # the number of real steps among the T; None: all T, for every client


def fetch(
    task: Task, subset: Subset, position: Int[Array, " b"], key: Key[Array, ""] | None = None
) -> tuple[Array, Array]:
    """Reads rows of a subset, standardises and prepares them: ``(x, y)``.

    Args:
      task: gives ``prepare``.
      subset: index list into the shared examples.
      position: ``[b]`` positions in the index list; positions beyond ``size - 1`` read the last real row.
      key: if given and the subset has noise, every sample gets independent noise in prepared units, keyed by (key,
        row). Without a key the samples are clean.
    """
    row = subset.rows.index[jnp.minimum(position, jnp.maximum(subset.rows.size - 1, 0))]
    x, y = subset.examples.x[row], subset.examples.y[row]
    x = prepare(task, x, subset.moments)
    if key is not None and subset.noise is not None:

        def draw_one(index: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key, index), x.shape[1:], x.dtype)

        number = row if subset.examples.number is None else subset.examples.number[row]
        x = x + subset.noise.astype(x.dtype) * jax.vmap(draw_one)(number)
    return x, y


def prepare(task: Task, x: Array, moments: Moments | None = None) -> Array:
    """What the model sees of stored features ``x [b, ...]``: standardised by ``moments``, then ``task.prepare``."""
    if moments is not None:
        x = jnp.where(jnp.isnan(x), 0, (x - moments.mean[None]) / moments.std[None])
    return x if task.prepare is None else task.prepare(x)


def draw_distinct(
    key: Key[Array, ""], size: Int[Array, ""], count: int, draws: int
) -> tuple[Int[Array, "draws count"], Bool[Array, "draws count"]]:
    """``draws`` independent uniform samples of ``min(count, size)`` distinct positions in ``[0, size)``.

    Floyd's method: pick ``k`` is a guess among the first ``size - count + k + 1`` positions, or the last of them if an
    earlier pick took the guess. The cost does not depend on ``size``. Compiled for a CPU, picks are made one after
    another; compiled for an accelerator, up to ``COMPARED`` picks are made at once. The positions are the same.
    Returns positions and the mask of real entries (False beyond ``size``).
    """
    size = jnp.asarray(size, jnp.int32)
    taken = jnp.minimum(size, count)
    uniform = jax.random.uniform(key, (count * draws,), jnp.float32).reshape(count, draws)
    last = size - taken + jnp.arange(count, dtype=jnp.int32)
    guess = jnp.minimum((uniform * (last + 1).astype(uniform.dtype)[:, None]).astype(jnp.int32), last[:, None])
    chosen = pick_distinct(guess, last, COMPARED)
    mask = jnp.broadcast_to((jnp.arange(count) < taken)[None, :], chosen.shape)
    return jnp.where(mask, chosen, 0), mask


def pick_distinct(
    guess: Int[Array, "count draws"], last: Int[Array, " count"], compared: int
) -> Int[Array, "draws count"]:
    """Floyd's method: each pick is the guess, or its ``last`` position if an earlier pick took the guess.

    Args:
      guess: the guess of pick k is uniform in ``[0, last[k]]``.
      last: consecutive positions.
      compared: compiled for an accelerator, up to so many picks are made at once.
    """
    elsewhere = _pick_at_once if guess.shape[0] <= compared else _pick_in_turn
    return platforms.choose(guess, last, cpu=_pick_in_turn, default=elsewhere)


def _pick_in_turn(guess: Int[Array, "count draws"], last: Int[Array, " count"]) -> Int[Array, "draws count"]:
    count, draws = guess.shape

    def pick(step: int | Array, chosen: Array) -> Array:
        clash = jnp.any((chosen == guess[step][:, None]) & (jnp.arange(count) < step)[None, :], axis=1)
        return chosen.at[:, step].set(jnp.where(clash, last[step], guess[step]))

    return jax.lax.fori_loop(0, count, pick, jnp.zeros((draws, count), jnp.int32))


def _pick_at_once(guess: Int[Array, "count draws"], last: Int[Array, " count"]) -> Int[Array, "draws count"]:
    """The same without a loop over picks."""
    # An earlier pick took a guess in two cases: an earlier guess was equal, or the guess is the last position of an
    # earlier pick that clashed itself. The latter is a chain of picks, of which each turn below follows twice as much.
    count = guess.shape[0]
    guess, place = guess.T, jnp.arange(count, dtype=jnp.int32)
    earlier = place[None, :] < place[:, None]
    clash = jnp.any((guess[:, :, None] == guess[:, None, :]) & earlier[None], axis=2)
    link = guess - last[0]  # the pick whose last position is the guess
    link = jnp.where((link >= 0) & (link < place[None]), link, place[None])
    for _ in range((count - 1).bit_length()):
        clash = clash | jnp.take_along_axis(clash, link, 1)
        link = jnp.take_along_axis(link, link, 1)
    return jnp.where(clash, last[None], guess)


def shuffle(key: Key[Array, ""], size: Int[Array, ""], capacity: int) -> Int[Array, " capacity"]:
    """A permutation of ``[0, size)``, followed by ``capacity - size`` meaningless entries.

    Positions are sorted by 20 random bits, ties by position. If a position fits into the other 12 bits of the word,
    bits and position are sorted as one whole number, which a CPU does five times faster than sorting with an index. The
    result does not depend on ``capacity``, so small clients are sorted in a shorter array; clients under one ``vmap``
    share its length.
    """
    widths = [capacity]
    while capacity >= 4 * SHORTEST and widths[0] >= 2 * SHORTEST:
        widths.insert(0, -(-widths[0] // 2))
    size = jnp.asarray(size)
    if len(widths) == 1:
        return _shuffled(key, size, capacity)

    @jax.custom_batching.custom_vmap
    def rows(keys: Array, sizes: Array) -> Array:  # [n], [n] -> [n, capacity]
        def within(width: int) -> Array:
            permutations = jax.vmap(lambda key, size: _shuffled(key, size, width))(keys, sizes)
            return jnp.pad(permutations, ((0, 0), (0, capacity - width)))

        longer = sum((jnp.max(sizes) > width).astype(jnp.int32) for width in widths[:-1])
        return jax.lax.switch(longer, [functools.partial(within, width) for width in widths])

    @rows.def_vmap
    def _(axis_size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        # One switch for all clients, by the largest size; a vmapped switch would compute every branch.
        every = [
            x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, is_batched in zip(arguments, batched, strict=True)
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
    """The batches of one round in their order, by steps or by epochs.

    Args:
      key: key of this client, round and slot; without shuffling nothing depends on it.
      subset: the rows to draw from.
      local: batch size, either ``steps`` or ``epochs``, and ``shuffle``.
      steps: a traced number of real steps for this client, up to the static maximum of ``local`` and what ``subset``
        says; None: all.

    Raises:
      ValueError: unless exactly one of steps and epochs is given, or if a count is below one, if shuffle is no bool, or
        if there are more positions in all batches than JAX can index.
    """
    if (local.steps is None) == (local.epochs is None):
        raise ValueError(f"expected one of steps and epochs, got steps={local.steps}, epochs={local.epochs}")
    for name in ("batch_size", "steps", "epochs"):
        count = getattr(local, name)
        if count is not None and count < 1:
            raise ValueError(f"expected a positive {name}, got {count}")
    drawn = shuffles(local)
    capacity = subset.rows.index.shape[-1]
    batch = min(local.batch_size, capacity)
    count = batch * most_steps(local, subset.rows)
    if count > LARGEST_ARRAY:
        limit = f"at most {LARGEST_ARRAY} rows drawn by a client in a round (steps x batch size)"
        raise ValueError(f"expected {limit}, got {count}")
    own = None if subset.epochs is None else subset.epochs * -(-subset.rows.size // batch)
    for limit in (subset.steps, own):
        steps = steps if limit is None else limit if steps is None else jnp.minimum(steps, limit)
    if not drawn:
        return _in_order(subset, capacity, batch, local, steps)
    if local.steps is not None:
        position, mask = draw_distinct(key, subset.rows.size, batch, local.steps)
        return Batches(position, mask, steps)
    assert local.epochs is not None
    size, per_epoch = subset.rows.size, -(-subset.rows.size // batch)

    def permutation(epoch: Array) -> Array:
        return shuffle(jax.random.fold_in(key, epoch), size, capacity)

    permutations = jax.vmap(permutation)(jnp.arange(local.epochs))
    most = -(-capacity // batch)  # batches of an epoch
    table = jnp.pad(permutations, ((0, 0), (0, most * batch - capacity))).reshape(local.epochs, most, batch)
    step = jnp.arange(local.epochs * most)
    # Whole batches are read, not single positions.
    if local.epochs == 1:
        place, position = step, table[0]
    else:
        divisor = jnp.maximum(per_epoch, 1)
        place = step % divisor
        position = table[jnp.minimum(step // divisor, local.epochs - 1), place]
    total = local.epochs * per_epoch
    real = _real_steps(subset.rows, batch, total, steps)
    mask = place[:, None] * batch + jnp.arange(batch)[None, :] < size
    return Batches(jnp.where(mask, position, 0), mask, real)


def most_steps(local: Local, rows: Rows) -> int:
    """The number of steps that no client exceeds in a round, which is static."""
    if local.steps is not None:
        return local.steps
    capacity = rows.index.shape[-1]
    return (local.epochs or 0) * -(-capacity // min(local.batch_size, capacity))


def shuffles(local: Local) -> bool:
    """Whether batches are drawn; a ValueError if ``local.shuffle`` is no bool."""
    if not isinstance(local.shuffle, bool):
        raise ValueError(f"expected shuffle to be True or False, got {local.shuffle!r}")
    return local.shuffle


def _in_order(subset: Subset, capacity: int, batch: int, local: Local, steps: Int[Array, ""] | None) -> Batches:
    """Batches of consecutive positions: by epochs the last one of each epoch is partial, by steps all are full."""
    size = subset.rows.size
    column = jnp.arange(batch, dtype=jnp.int32)[None, :]
    if local.steps is not None:
        taken = jnp.minimum(size, batch)
        first = jnp.arange(local.steps, dtype=jnp.int32)[:, None] * taken
        position, mask = (first + column) % jnp.maximum(size, 1), column < taken
        mask = jnp.broadcast_to(mask, position.shape)
        return Batches(jnp.where(mask, position, 0), mask, steps)
    assert local.epochs is not None
    per_epoch, most = -(-size // batch), -(-capacity // batch)
    step = jnp.arange(local.epochs * most, dtype=jnp.int32)
    position = (step % jnp.maximum(per_epoch, 1))[:, None] * batch + column
    total = local.epochs * per_epoch
    mask = position < size
    return Batches(jnp.where(mask, position, 0), mask, _real_steps(subset.rows, batch, total, steps))


def _real_steps(rows: Rows, batch: int, total: Int[Array, ""], steps: Int[Array, ""] | None) -> Int[Array, ""] | None:
    """The number of real steps of some epochs, ``total`` unless fewer are asked for; None if all clients take all."""
    # A loop of a fixed length needs no answer from an accelerator before its next turn, and keeps no old parameters.
    if steps is not None:
        return jnp.minimum(steps, total)
    alike = -(-least_rows(rows) // batch) == -(-rows.index.shape[-1] // batch)
    return None if alike else total
