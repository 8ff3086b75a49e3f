"""Tasks, subsets and compiled functions that the tests of local training share."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import training
from fljax.models import correct
from fljax.protocol import Examples, Rows, Subset, Task
from fljax.training import Local

KEY = jax.random.key(3)
# Few shapes and settings, so that programs are compiled once for many tests.
CAPACITY = 12
STEPS, EPOCHS = Local(0.1, 4, steps=3), Local(0.1, 4, epochs=2)
run_draw = jax.jit(
    lambda key, index, size, how, steps=None: training.draw(key, rows_only(index, size), how, steps=steps),
    static_argnums=3,
)
run_distinct = jax.jit(training.draw_distinct, static_argnums=(2, 3))


def linear_loss(logits, y):
    """Half the squared distance of the one logit from the label."""
    return 0.5 * jnp.square(logits[:, 0] - y.astype(logits.dtype))


LINEAR = Task(
    init=lambda key: {"w": jnp.zeros(2)},
    logits=lambda params, x, key=None: (x @ params["w"])[:, None],
    loss=linear_loss,
    score=correct,
)


def linear_task(**fields):
    """Least squares: ``x w``, a quadratic problem with known gradients."""
    return LINEAR._replace(**fields)


def logistic_task():
    return Task(
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (2, 3)), "b": jnp.zeros(3)},
        logits=lambda params, x, key=None: x @ params["w"] + params["b"][None, :],
        loss=optax.softmax_cross_entropy_with_integer_labels,
        score=correct,
    )


def examples(count=12, dtype: Any = np.float32):
    rng = np.random.default_rng(0)
    return Examples(jnp.asarray(rng.normal(size=(count, 2)).astype(dtype)), jnp.asarray(rng.integers(0, 3, count)))


def subset(index, capacity=CAPACITY, *, data=None, noise=None, fill=0):
    """A client with these rows, padded to ``capacity`` by ``fill``."""
    index = list(index)
    padded = index + [fill] * (capacity - len(index))
    rows = Rows(jnp.asarray(padded, jnp.int32), jnp.asarray(len(index), jnp.int32))
    return Subset(examples() if data is None else data, rows, noise)


def rows_only(index, size):
    return Subset(Examples(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32)), Rows(index, size))


def batches(size, capacity, how, steps=None, key=KEY):
    """``draw`` as NumPy: positions, mask, number of real steps."""
    drawn = run_draw(key, jnp.arange(capacity), jnp.int32(size), how, steps)
    real = drawn.position.shape[0] if drawn.steps is None else int(drawn.steps)
    return np.asarray(drawn.position), np.asarray(drawn.mask), real


def real_rows(position, mask, real):
    return [position[t][mask[t]].tolist() for t in range(real)]


def close(a, b, rtol=1e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def numpy_rows(own):
    """x and y of a client's rows, unpadded, in double precision."""
    index = np.asarray(own.rows.index)[: int(own.rows.size)]
    return np.asarray(own.examples.x, np.float64)[index], np.asarray(own.examples.y, np.float64)[index]


def numpy_sgd(w, own, drawn, rate, pull=lambda w: 0.0):
    """Plain SGD on least squares over batches of positions."""
    x, y = numpy_rows(own)
    for rows in drawn:
        w = w - rate * (x[rows].T @ (x[rows] @ w - y[rows]) / max(1, len(rows)) + pull(w))
    return w


def drawn_by_train(own, how, key=KEY):
    capacity, size = own.rows.index.shape[0], int(own.rows.size)
    return real_rows(*batches(size, capacity, how, key=jax.random.fold_in(key, 0)))


START = np.array([0.5, -1.0])


def start(dtype=jnp.float32):
    return {"w": jnp.asarray(START, dtype)}


@functools.partial(jax.jit, static_argnames=("task", "how", "loss", "adjust"))
def run_train(params, own, weight_decay, task, how, round, loss, adjust):
    how = how if weight_decay is None else how._replace(weight_decay=weight_decay)
    return training.train(KEY, params, own, task=task, local=how, round=round, loss=loss, adjust=adjust)


def trained(own, how, *, task=LINEAR, round=0, loss=None, adjust=None):
    params = start(own.examples.x.dtype)
    return run_train(params, own, how.weight_decay, task, how._replace(weight_decay=None), round, loss, adjust)


def numpy_adam(w, own, drawn, rate, weight_decay):
    """Adam whose gradient contains the L2 term (coupled), from Kingma and Ba, Algorithm 1."""
    x, y = numpy_rows(own)
    first, second = np.zeros_like(w), np.zeros_like(w)
    for step, rows in enumerate(drawn, start=1):
        slope = x[rows].T @ (x[rows] @ w - y[rows]) / len(rows) + weight_decay * w
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        w = w - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return w
