"""Local training: batches and the step, against NumPy and closed forms."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fljax import training
from fljax.training import Local
from tests.drawn import at_most
from tests.local_tools import (
    CAPACITY,
    EPOCHS,
    KEY,
    LINEAR,
    START,
    STEPS,
    batches,
    close,
    drawn_by_train,
    examples,
    linear_task,
    logistic_task,
    numpy_adam,
    numpy_rows,
    numpy_sgd,
    real_rows,
    run_distinct,
    run_train,
    same,
    start,
    subset,
    trained,
)
from tests.platforms import forms_of
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_compilation")

# --- Batches without replacement ----------------------------------------------------------------------------


@given(size=st.integers(0, 40), seed=st.integers(0, 1000))
@example(size=4, seed=0)  # fewer rows than a batch has
@at_most(25)
def test_distinct_positions_within_the_size(size, seed):
    position, mask = map(np.asarray, run_distinct(jax.random.key(seed), jnp.int32(size), 6, 4))
    assert position.shape == mask.shape == (4, 6)
    assert (mask.sum(axis=1) == min(size, 6)).all()
    assert (position[~mask] == 0).all()
    for row, real in zip(position, mask, strict=True):
        assert len(set(row[real])) == real.sum()
        assert ((row[real] >= 0) & (row[real] < max(size, 1))).all()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [1, 2, 5, 9, 33, 600])
def test_distinct_positions_are_the_same_on_accelerators(size, seed):
    """There all picks are made at once; with few rows, chains of picks clash."""
    for count, draws in ((1, 3), (8, 40), (33, 5)):
        key = jax.random.key(seed)
        expected = run_distinct(key, jnp.int32(size), count, draws)
        with forms_of("tpu"):
            found = jax.jit(lambda key, c=count, d=draws: training.draw_distinct(key, jnp.int32(size), c, d))(key)
        same(found, expected)


def test_distinct_positions_are_uniform():
    size, count, draws = 7, 3, 7000
    position, _ = run_distinct(jax.random.key(11), jnp.int32(size), count, draws)
    position = np.asarray(position)
    # Each set of three out of seven is equally likely: 35 sets, chi-square with 34 degrees of freedom.
    sets, counts = np.unique(np.sort(position, axis=1), axis=0, return_counts=True)
    assert len(sets) == 35
    expected = draws / 35
    assert ((counts - expected) ** 2 / expected).sum() < 65.2  # the 0.999 quantile
    # Every position is included with probability 3/7; counts within a draw are negatively correlated.
    included = np.bincount(position.ravel(), minlength=size)
    np.testing.assert_allclose(included, draws * count / size, rtol=0.05)


def test_consecutive_draws_are_independent():
    position, _ = run_distinct(jax.random.key(5), jnp.int32(4), 1, 8000)
    pairs = np.asarray(position)[:, 0].reshape(-1, 2)
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    expected = len(pairs) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # 15 degrees of freedom, 0.999


@pytest.mark.in_turn
@pytest.mark.parametrize("size", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("how", [STEPS, EPOCHS])
def test_batches_do_not_depend_on_the_padding(size, how):
    tight, wide = (real_rows(*batches(size, capacity, how)) for capacity in (9, CAPACITY))
    assert tight == wide


# --- Epochs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 11, 12])
def test_every_row_once_per_epoch(size, passes):
    per_epoch = -(-size // 4)
    position, mask, real = batches(size, CAPACITY, EPOCHS._replace(epochs=passes))
    assert position.shape == (passes * 3, 4)
    assert real == passes * per_epoch
    rows = real_rows(position, mask, real)
    for epoch in range(passes):
        part = rows[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(row for batch in part for row in batch) == list(range(size))
        assert [len(batch) for batch in part] == [4] * (size // 4) + ([size % 4] if size % 4 else [])


@pytest.mark.thorough
@pytest.mark.parametrize("capacity", [4 * training.SHORTEST, 5000])
def test_a_permutation_does_not_depend_on_its_room(capacity):
    """Whatever array it is sorted in, alone, side by side, and for several epochs."""
    sizes = [0, 1, training.SHORTEST, training.SHORTEST + 1, capacity - 1, capacity]
    keys = jax.random.split(KEY, (len(sizes), 2))
    alone = jax.jit(functools.partial(training.shuffle, capacity=capacity))
    each = jax.vmap(jax.vmap(functools.partial(training.shuffle, capacity=capacity), (0, None)))
    for few in (slice(0, 3), slice(0, 6)):
        together = jax.jit(each)(keys[few], jnp.asarray(sizes[few]))
        for client, size in enumerate(sizes[few]):
            tight = functools.partial(training.shuffle, capacity=max(size, 1))  # below 4 x SHORTEST: a plain sort
            for epoch in range(2):
                found = np.asarray(together[client, epoch, :size])
                np.testing.assert_array_equal(found, alone(keys[client, epoch], size)[:size])
                np.testing.assert_array_equal(found, tight(keys[client, epoch], jnp.asarray(size))[:size])
                assert sorted(found) == list(range(size))


def test_epochs_are_fresh_permutations():
    rows = real_rows(*batches(8, CAPACITY, EPOCHS))
    assert rows[:2] != rows[2:]


def test_a_client_without_rows_has_no_batches():
    position, mask, real = batches(0, CAPACITY, EPOCHS)
    assert real == 0
    assert not mask.any()
    assert not position.any()
    assert not batches(0, CAPACITY, STEPS)[1].any()


# --- Steps --------------------------------------------------------------------------------------------------


def test_steps_are_drawn_afresh():
    position, mask, real = batches(9, CAPACITY, STEPS)
    assert position.shape == (3, 4)
    assert mask.all()
    assert real == 3
    assert len({tuple(sorted(row)) for row in position}) > 1


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [STEPS, EPOCHS])
def test_fewer_steps_are_a_prefix(how):
    full = real_rows(*batches(11, CAPACITY, how))
    assert real_rows(*batches(11, CAPACITY, how, jnp.int32(2))) == full[:2]
    assert batches(11, CAPACITY, EPOCHS, jnp.int32(99))[2] == 6


@pytest.mark.in_turn
def test_traced_steps_under_a_maximum():
    task, own, params = linear_task(), subset(range(5)), {"w": jnp.ones(2)}

    @jax.jit
    def run(steps):
        return training.train(KEY, params, own, task=task, local=STEPS, steps=steps)

    same(run(jnp.int32(0)).params, params)
    for taken in (1, 3):
        found = run(jnp.int32(taken))
        assert int(found.steps) == taken
        drawn = drawn_by_train(own, STEPS)[:taken]
        np.testing.assert_allclose(found.params["w"], numpy_sgd(np.ones(2), own, drawn, 0.1), rtol=2e-6)
    assert int(run(jnp.int32(9)).steps) == 3
    assert int(run(jnp.int32(-1)).steps) == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Local(0.1, 2), "expected one of steps and epochs, got steps=None, epochs=None"),
        (Local(0.1, 2, steps=1, epochs=1), "expected one of steps and epochs, got steps=1, epochs=1"),
        (Local(0.1, 0, steps=1), "expected a positive batch_size, got 0"),
        (Local(0.1, 2, steps=0), "expected a positive steps, got 0"),
        (Local(0.1, 2, epochs=-1), "expected a positive epochs, got -1"),
    ],
)
def test_impossible_batches_are_refused(how, message):
    refuses(lambda: training.draw(KEY, subset(range(3)), how), message)


# --- The step -----------------------------------------------------------------------------------------------


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [STEPS, EPOCHS])
@pytest.mark.parametrize("rows", [[2], [1, 4, 7], [0, 3, 5, 6, 8, 9, 10]])
def test_sgd_against_numpy(rows, how):
    own = subset(rows)
    found = trained(own, how)
    drawn = drawn_by_train(own, how)
    np.testing.assert_allclose(found.params["w"], numpy_sgd(START, own, drawn, 0.1), rtol=2e-6)
    assert int(found.steps) == len(drawn)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [STEPS, EPOCHS])
def test_no_silent_promotion(how):
    own = subset(range(6), 7, noise=jnp.float32(0.1))
    with jax.numpy_dtype_promotion("strict"):
        found = trained(own, how._replace(weight_decay=0.1), adjust=training.proximal(start(), 0.5))
        training.evaluate(LINEAR, lambda x: LINEAR.logits(found.params, x), own, key=KEY)
    assert found.params["w"].dtype == jnp.float32


@pytest.mark.in_turn
def test_double_precision(x64):
    own, how = subset([1, 4, 7], data=examples(dtype=np.float64)), STEPS
    found = trained(own, how).params["w"]
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, numpy_sgd(START, own, drawn_by_train(own, how), 0.1), rtol=1e-13)


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [STEPS, EPOCHS])
def test_padding_changes_nothing(how):
    data = examples()
    data = data._replace(x=data.x.at[11].set(jnp.nan))  # read by padding alone
    rows = [1, 4, 7, 2, 9]
    own = trained(subset(rows, 5, data=data), how).params
    for fill in (0, 11):
        same(trained(subset(rows, data=data, fill=fill), how).params, own)
    # Where the batch itself is padded, rounding may differ.
    few = trained(subset([1, 4], 2, data=data), how).params
    close(trained(subset([1, 4], data=data, fill=11), how).params, few)


@pytest.mark.in_turn
def test_a_client_without_rows_does_not_move():
    for how in (STEPS, EPOCHS):
        same(trained(subset([]), how).params, start())


@pytest.mark.in_turn
def test_weight_decay_is_coupled():
    own, how = subset(range(6)), STEPS._replace(optimizer="adam", weight_decay=0.3)
    found = trained(own, how).params["w"]
    np.testing.assert_allclose(found, numpy_adam(START, own, drawn_by_train(own, how), 0.1, 0.3), rtol=1e-5)
    decoupled = how._replace(optimizer="adamw", weight_decay=None, options=(("weight_decay", 0.3),))
    assert np.abs(found - trained(own, decoupled).params["w"]).max() > 1e-3


def test_weight_decay_of_sgd():
    own, how = subset(range(6)), STEPS._replace(weight_decay=0.3)
    expected = numpy_sgd(START, own, drawn_by_train(own, how), 0.1, pull=lambda w: 0.3 * w)
    np.testing.assert_allclose(trained(own, how).params["w"], expected, rtol=2e-6)
    same(trained(own, how._replace(weight_decay=0.0)).params, trained(own, how._replace(weight_decay=None)).params)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how",
    [
        Local(0.1, 4, steps=20),
        Local(0.05, 4, steps=20, options=(("momentum", 0.9),)),
        Local(0.1, 4, steps=20, optimizer="adam"),
        Local(5.0, 4, steps=40, optimizer="adadelta"),
        Local(0.1, 4, steps=20, optimizer=lambda rate: optax.chain(optax.clip(1.0), optax.sgd(rate))),
    ],
    ids=["sgd", "momentum", "adam", "adadelta", "own"],
)
def test_optimizers_lower_the_loss(how):
    task, own = logistic_task(), subset(range(10))

    @jax.jit
    def run(own):
        params = task.init(KEY)
        found = training.train(KEY, params, own, task=task, local=how).params
        return [training.evaluate(task, functools.partial(task.logits, p), own)[0] for p in (params, found)]

    before, after = run(own)
    assert float(after) < float(before) - 0.01


def test_momentum_against_numpy():
    own, how = subset(range(5)), STEPS._replace(options=(("momentum", 0.9),))
    x, y = numpy_rows(own)
    w, speed = START, np.zeros(2)
    for rows in drawn_by_train(own, how):
        speed = 0.9 * speed + x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)
        w = w - 0.1 * speed
    np.testing.assert_allclose(trained(own, how).params["w"], w, rtol=2e-6)


@pytest.mark.parametrize("name", ["sdg", "_src", "__name__"])
def test_unknown_optimizer(name):
    message = f"expected the name of an optax optimizer such as sgd, adam or adadelta, got '{name}'"
    refuses(lambda: training.optimizer(Local(0.1, 2, steps=1, optimizer=name)), message)


def test_optimizer_state_is_fresh_in_every_call():
    how = Local(0.1, 4, steps=1, optimizer="adam")
    # Adam's first step has the length of the learning rate in every coordinate, whatever came before.
    own = subset(range(4))
    later = trained(own, how).params
    step = run_train(later, own, None, LINEAR, how, 0, None, None).params["w"] - later["w"]
    np.testing.assert_allclose(np.abs(step), 0.1, rtol=1e-3)
    same(trained(own, how).params, trained(own, how).params)


def test_numbers_may_be_traced():
    own = subset(range(6))
    task = linear_task()

    def run(rate, decay, weight_decay):
        how = Local(rate, 4, steps=3, decay=decay, weight_decay=weight_decay, optimizer="adam")
        return training.train(KEY, start(), own, task=task, local=how, round=2).params["w"]

    rates, decays, weights = jnp.array([0.1, 0.01]), jnp.array([0.5, 1.0]), jnp.array([0.2, 0.0])
    found = jax.jit(jax.vmap(run))(rates, decays, weights)
    drawn = drawn_by_train(own, STEPS)
    for row, rate, weight in zip(found, [0.025, 0.01], [0.2, 0.0], strict=True):
        np.testing.assert_allclose(row, numpy_adam(START, own, drawn, rate, weight), rtol=1e-5)
