"""Settings of a local optimizer: clipped gradients, the leaves that decay, and schedules over rounds."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import training
from fljax.protocol import Task
from fljax.training import Local, RateSchedule

TASK = Task(lambda key: {}, lambda params, x, key=None: x, lambda r, y: r)
PARAMS = {"bias": jnp.array([1.0, -2.0]), "kernel": jnp.array([[3.0, 1.0], [0.5, -1.0]])}
SLOPE = {"bias": jnp.array([3.0, 0.0]), "kernel": jnp.array([[0.0, 4.0], [0.0, 0.0]])}  # of norm 5
WEIGHTS = {"bias": False, "kernel": True}


def move(local, task=None, params=PARAMS, slope=SLOPE):
    transformation = training.optimizer(local, 0, jnp.float32, task)
    return transformation.update(slope, transformation.init(params), params)[0]


def same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.parametrize("bound", [2.0, 5.0, 7.0])
def test_gradients_are_clipped_before_decay(bound):
    """As optax does, and before the gradient of ``weight_decay`` is added; the derivative at a gradient of 0 is 0."""
    local = Local(0.5, 1, steps=1, clip_norm=bound, weight_decay=0.1)
    clipped, _ = optax.clip_by_global_norm(bound).update(SLOPE, optax.EmptyState())
    expected = jax.tree.map(lambda slope, leaf: -0.5 * (slope + 0.1 * leaf), clipped, PARAMS)
    same(move(local), expected)
    same(training.one_step(TASK, local, PARAMS, SLOPE), expected)

    def length(scale, bound):
        slope = jax.tree.map(lambda leaf: scale * leaf, SLOPE)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(move(local._replace(clip_norm=bound), slope=slope)))

    assert np.all(np.isfinite(jax.jit(jax.grad(length, (0, 1)))(0.0, bound)))


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_statistics_are_neither_clipped_nor_counted(clip_norm):
    task = TASK._replace(roles=lambda tree: {"bias": "statistic", "kernel": "trained"})
    found = move(Local(0.5, 1, steps=1, clip_norm=clip_norm, decay_of="weights", weight_decay=0.0), task)
    factor = 1.0 if clip_norm is None else 0.25
    same(found, {"bias": -SLOPE["bias"], "kernel": -0.5 * factor * SLOPE["kernel"]})


@pytest.mark.parametrize("decay_of", ["all", "weights"])
def test_decay_leaves_out_biases(decay_of):
    mask = None if decay_of == "all" else WEIGHTS
    coupled = optax.chain(optax.add_decayed_weights(0.2, mask), optax.sgd(0.5))
    local = Local(0.5, 1, steps=1, weight_decay=0.2, decay_of=decay_of)
    same(move(local), coupled.update(SLOPE, coupled.init(PARAMS), PARAMS)[0])
    own = optax.adamw(0.5, weight_decay=0.2, mask=mask)
    local = Local(0.5, 1, steps=1, optimizer="adamw", options=(("weight_decay", 0.2),), decay_of=decay_of)
    same(move(local), own.update(SLOPE, own.init(PARAMS), PARAMS)[0])


STEPS = "boundaries_and_scales", ((4, 0.1), (6, 0.1))
LINEAR = ("end_value", 0.5), ("init_value", 2.0), ("transition_steps", 4)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("cosine_decay_schedule", (("decay_steps", 8),), optax.cosine_decay_schedule(1.0, 8)),
        (
            "warmup_cosine_decay_schedule",
            (("decay_steps", 8), ("warmup_steps", 2)),
            optax.warmup_cosine_decay_schedule(0.0, 1.0, 2, 8),
        ),
        ("piecewise_constant_schedule", (STEPS,), lambda round: 0.1 ** (int(round >= 4) + int(round >= 6))),
        ("linear_schedule", LINEAR, optax.linear_schedule(2.0, 0.5, 4)),
    ],
)
def test_schedules_are_factors_by_round(name, options, expected):
    local = Local(0.5, 1, steps=1, decay=0.9, schedule=RateSchedule(name, options))
    found = jax.jit(jax.vmap(functools.partial(training.rate, local)))(jnp.arange(10))
    wanted = [0.5 * 0.9**round * float(expected(round)) for round in range(10)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert hash(jax.tree.structure(local)) == hash(jax.tree.structure(local._replace(learning_rate=0.1)))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (RateSchedule("cosine"), "expected one of the schedules"),
        (RateSchedule("linear_schedule", (("end", 1.0),)), "expected one of the options .* got 'end'"),
        (RateSchedule("linear_schedule"), "expected options with which optax makes the schedule linear_schedule"),
        (RateSchedule("piecewise_constant_schedule", (("boundaries_and_scales", 3),)), "expected options"),
    ],
)
def test_schedules_are_refused(schedule, words):
    with pytest.raises(ValueError, match=words):
        training.named_schedule(schedule)
