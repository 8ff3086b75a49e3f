"""Local training: batches, the step, hooks and evaluation, against NumPy and closed forms."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax import local, trees
from fljax.local import Local
from fljax.types import Examples, Rows, Subset, Task

KEY = jax.random.key(3)
# Few shapes and settings, so that programs are compiled once for many tests.
CAPACITY = 12
STEPS, EPOCHS = Local(0.1, 4, steps=3), Local(0.1, 4, epochs=2)
run_draw = jax.jit(
    lambda key, index, size, how, steps=None: local.draw(key, rows_only(index, size), how, steps=steps),
    static_argnums=3,
)
run_distinct = jax.jit(local.draw_distinct, static_argnums=(2, 3))


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Tiny programs: compiling them costs far more than running them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def linear_loss(logits, y):
    """Half the squared distance of the one logit from the label."""
    return 0.5 * jnp.square(logits[:, 0] - y.astype(logits.dtype))


LINEAR = Task(
    init=lambda key: {"w": jnp.zeros(2)},
    logits=lambda params, x, key=None: (x @ params["w"])[:, None],
    loss=linear_loss,
)


def linear_task(**fields):
    """Least squares: ``x w``, a quadratic problem with known gradients."""
    return LINEAR._replace(**fields)


def logistic_task():
    return Task(
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (2, 3)), "b": jnp.zeros(3)},
        logits=lambda params, x, key=None: x @ params["w"] + params["b"][None, :],
        loss=optax.softmax_cross_entropy_with_integer_labels,
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


# --- Batches without replacement ----------------------------------------------------------------------------


@given(size=st.integers(0, 40), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_distinct_positions_within_the_size(size, seed):
    position, mask = map(np.asarray, run_distinct(jax.random.key(seed), jnp.int32(size), 6, 4))
    assert position.shape == mask.shape == (4, 6)
    assert (mask.sum(axis=1) == min(size, 6)).all()
    assert (position[~mask] == 0).all()
    for row, real in zip(position, mask, strict=True):
        assert len(set(row[real])) == real.sum()
        assert ((row[real] >= 0) & (row[real] < max(size, 1))).all()


def test_a_client_smaller_than_the_batch_gives_all_its_rows():
    position, mask = map(np.asarray, run_distinct(KEY, jnp.int32(4), 6, 5))
    for row, real in zip(position, mask, strict=True):
        assert sorted(row[real]) == [0, 1, 2, 3]


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


@pytest.mark.parametrize("how", [STEPS, EPOCHS])
def test_fewer_steps_are_a_prefix(how):
    full = real_rows(*batches(11, CAPACITY, how))
    assert real_rows(*batches(11, CAPACITY, how, jnp.int32(2))) == full[:2]
    assert batches(11, CAPACITY, EPOCHS, jnp.int32(99))[2] == 6


def test_traced_steps_under_a_maximum():
    task, own, params = linear_task(), subset(range(5)), {"w": jnp.ones(2)}

    @jax.jit
    def run(steps):
        return local.train(KEY, params, own, task=task, local=STEPS, steps=steps)

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
    with pytest.raises(ValueError, match=message):
        local.draw(KEY, subset(range(3)), how)


# --- The step -----------------------------------------------------------------------------------------------


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
    return local.train(KEY, params, own, task=task, local=how, round=round, loss=loss, adjust=adjust)


def trained(own, how, *, task=LINEAR, round=0, loss=None, adjust=None):
    params = start(own.examples.x.dtype)
    return run_train(params, own, how.weight_decay, task, how._replace(weight_decay=None), round, loss, adjust)


@pytest.mark.parametrize("how", [STEPS, EPOCHS])
@pytest.mark.parametrize("rows", [[2], [1, 4, 7], [0, 3, 5, 6, 8, 9, 10]])
def test_sgd_against_numpy(rows, how):
    own = subset(rows)
    found = trained(own, how)
    drawn = drawn_by_train(own, how)
    np.testing.assert_allclose(found.params["w"], numpy_sgd(START, own, drawn, 0.1), rtol=2e-6)
    assert int(found.steps) == len(drawn)


@pytest.mark.parametrize("how", [STEPS, EPOCHS])
def test_no_silent_promotion(how):
    own = subset(range(6), 7, noise=jnp.float32(0.1))
    with jax.numpy_dtype_promotion("strict"):
        found = trained(own, how._replace(weight_decay=0.1), adjust=local.proximal(start(), 0.5))
        local.evaluate(LINEAR, lambda x: LINEAR.logits(found.params, x), own, key=KEY)
    assert found.params["w"].dtype == jnp.float32


def test_double_precision(x64):
    own, how = subset([1, 4, 7], data=examples(dtype=np.float64)), STEPS
    found = trained(own, how).params["w"]
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, numpy_sgd(START, own, drawn_by_train(own, how), 0.1), rtol=1e-13)


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


def test_a_client_without_rows_does_not_move():
    for how in (STEPS, EPOCHS):
        same(trained(subset([]), how).params, start())


def test_learning_rate_decays_by_round():
    own, how = subset(range(4)), Local(0.1, 4, steps=1, decay=0.5)
    first = trained(own, how).params["w"] - start()["w"]
    third = trained(own, how, round=jnp.int32(2)).params["w"] - start()["w"]
    np.testing.assert_allclose(third, 0.25 * first, rtol=1e-5)


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
        found = local.train(KEY, params, own, task=task, local=how).params
        return [local.evaluate(task, functools.partial(task.logits, p), own)[0] for p in (params, found)]

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
    with pytest.raises(ValueError, match=message):
        local.optimizer(Local(0.1, 2, steps=1, optimizer=name))


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
        return local.train(KEY, start(), own, task=task, local=how, round=1).params["w"]

    rates, decays, weights = jnp.array([0.1, 0.01]), jnp.array([0.5, 1.0]), jnp.array([0.2, 0.0])
    found = jax.jit(jax.vmap(run))(rates, decays, weights)
    drawn = drawn_by_train(own, STEPS)
    for row, rate, weight in zip(found, [0.05, 0.01], [0.2, 0.0], strict=True):
        np.testing.assert_allclose(row, numpy_adam(START, own, drawn, rate, weight), rtol=1e-5)


# --- Hooks --------------------------------------------------------------------------------------------------


def test_proximal_closed_form():
    """With ``F(w) = |w - c|^2 / 2`` SGD contracts to ``(c + mu a) / (1 + mu)`` by ``1 - rate (1 + mu)`` a step."""
    task = Task(lambda key: {}, lambda params, x, key=None: x - params["w"][None, :], lambda r, y: 0.5 * (r**2).sum(-1))
    own = subset(range(5))
    anchor, mu, rate, steps = {"w": jnp.array([2.0, 0.0])}, 0.5, 0.2, 6
    how = Local(rate, 5, steps=steps)
    found = trained(own, how, task=task, adjust=local.proximal(anchor, mu)).params["w"]
    fixed = (numpy_rows(own)[0].mean(axis=0) + mu * np.asarray(anchor["w"])) / (1 + mu)
    np.testing.assert_allclose(found, fixed + (1 - rate * (1 + mu)) ** steps * (START - fixed), rtol=1e-5)
    same(trained(own, how, task=task, adjust=local.proximal(anchor, 0.0)).params, trained(own, how, task=task).params)


def test_corrected_closed_form():
    own, how, shift = subset(range(6)), STEPS, np.array([1.0, -2.0])
    found = trained(own, how, adjust=local.corrected({"w": jnp.asarray(shift, jnp.float32)})).params["w"]
    expected = numpy_sgd(START, own, drawn_by_train(own, how), 0.1, pull=lambda w: shift)
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_a_loss_that_weighs_rows_by_position():
    own, how, task = subset([1, 4, 7, 9, 2]), EPOCHS, linear_task()
    weight = np.array([0.0, 1.0, 2.0, 0.5, 3.0] + [np.nan] * 7)

    def loss(params, x, y, position, key):
        return jnp.asarray(weight, jnp.float32)[position] * task.loss(task.logits(params, x, key), y)

    found = trained(own, how, loss=loss).params["w"]
    x, y = numpy_rows(own)
    w = START
    for rows in drawn_by_train(own, how):
        w = w - 0.1 * x[rows].T @ (weight[rows] * (x[rows] @ w - y[rows])) / len(rows)
    np.testing.assert_allclose(found, w, rtol=2e-6)


def test_default_loss_and_gradient():
    task, own, params = linear_task(), subset([1, 4, 7]), start()
    position, mask = jnp.array([2, 0, 1]), jnp.array([True, True, False])
    x, y = numpy_rows(own)
    expected = x[[2, 0]].T @ (x[[2, 0]] @ START - y[[2, 0]]) / 2
    gradient = jax.jit(functools.partial(local.gradient, task))
    found = gradient(params, own, position, mask, KEY)["w"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    nothing = gradient(params, own, position, jnp.zeros(3, bool), KEY)["w"]
    same(nothing, jnp.zeros(2))


def test_masked_mean():
    values = jnp.array([1.0, 2.0, jnp.nan])
    assert float(local.masked_mean(values, jnp.array([True, True, False]))) == 1.5
    assert float(local.masked_mean(values, jnp.zeros(3, bool))) == 0.0


def test_descend_counts_and_keys():
    batches = local.Batches(jnp.zeros((4, 1), jnp.int32), jnp.ones((4, 1), bool), None)

    def step(carry, position, mask, key):
        count, _ = carry
        return count + 1, jax.random.key_data(key)

    zero = (jnp.int32(0), jax.random.key_data(KEY))
    (count, last), taken = local.descend(step, zero, batches, KEY)
    assert int(count) == int(taken) == 4
    same(last, jax.random.key_data(jax.random.fold_in(KEY, 3)))
    (count, _), taken = local.descend(step, zero, batches._replace(steps=jnp.int32(2)), KEY)
    assert int(count) == int(taken) == 2


# --- Reading examples ---------------------------------------------------------------------------------------


def test_fetch_prepares_and_stays_within_the_rows():
    task = linear_task(prepare=lambda x: 2 * x)
    own = subset([3, 5], 4, fill=11)
    x, y = local.fetch(task, own, jnp.array([1, 0, 3]))
    data = examples()
    same(x, 2 * data.x[jnp.array([5, 3, 5])])
    same(y, data.y[jnp.array([5, 3, 5])])


def test_noise_is_keyed_by_row():
    fetch = jax.jit(functools.partial(local.fetch, LINEAR))
    own = subset([3, 5, 8], noise=jnp.float32(0.5))
    clean, _ = fetch(own, jnp.arange(3))
    same(clean, examples().x[jnp.array([3, 5, 8])])
    noisy, _ = fetch(own, jnp.arange(3), KEY)
    delta = noisy - clean
    assert np.abs(delta).min() > 0
    assert len(np.unique(delta)) == 6
    # The place in the batch, the order of the client's rows and padding do not matter; the key does.
    turned, _ = fetch(own, jnp.array([2, 0, 0]), KEY)
    same(turned, np.asarray(noisy)[[2, 0, 0]])
    other = subset([8, 3], noise=jnp.float32(0.5))
    same(fetch(other, jnp.array([0, 1, 1]), KEY)[0], np.asarray(noisy)[[2, 0, 0]])
    assert not np.array_equal(fetch(own, jnp.arange(3), jax.random.key(9))[0], noisy)
    same(fetch(own._replace(noise=jnp.float32(0.0)), jnp.arange(3), KEY)[0], clean)
    same(fetch(own._replace(noise=None), jnp.arange(3), KEY)[0], clean)


def test_noise_has_the_standard_deviation_in_prepared_units():
    data = Examples(jnp.zeros((400, 5), jnp.uint8), jnp.zeros(400, jnp.int32))
    own = subset(range(400), 400, data=data, noise=jnp.float32(0.5))
    task = linear_task(prepare=lambda x: x.astype(jnp.float32) / 255)
    x, _ = jax.jit(functools.partial(local.fetch, task))(own, jnp.arange(400), KEY)
    assert abs(float(x.std()) - 0.5) < 0.03
    assert abs(float(x.mean())) < 0.03


def test_noise_reaches_training_alone():
    how, own = STEPS, subset(range(6))
    noisy = own._replace(noise=jnp.float32(1.0))
    assert not np.array_equal(trained(noisy, how).params["w"], trained(own, how).params["w"])
    same(trained(own._replace(noise=jnp.float32(0.0)), how).params, trained(own, how).params)
    evaluate = jax.jit(lambda own, key=None: local.evaluate(LINEAR, lambda x: LINEAR.logits(start(), x), own, key=key))
    same(evaluate(noisy), evaluate(own))
    assert not np.array_equal(evaluate(noisy, KEY), evaluate(own))


def test_augment_gets_a_key_of_its_own_in_every_step():
    seen = []

    def augment(key, x):
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        jax.debug.callback(lambda data: seen.append(tuple(np.asarray(data).tolist())), jax.random.key_data(key))
        return x + 1

    task, own = linear_task(augment=augment), subset(range(3))
    found = trained(own, Local(0.1, 3, steps=3), task=task).params["w"]
    jax.effects_barrier()
    assert len(set(seen)) == 3
    data = examples()
    moved = subset(range(3), data=data._replace(x=data.x + 1))
    np.testing.assert_allclose(found, trained(moved, Local(0.1, 3, steps=3)).params["w"], rtol=1e-6)
    predict = functools.partial(task.logits, start())
    same(local.evaluate(task, predict, own), local.evaluate(linear_task(), predict, own))


def test_a_key_means_training_mode():
    keys = []

    def logits(params, x, key=None):
        keys.append(key)
        return (x @ params["w"])[:, None]

    task, own = linear_task(logits=logits), subset(range(3))
    trained(own, Local(0.1, 3, steps=1), task=task)
    assert keys
    assert all(key is not None for key in keys)


# --- Evaluation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [4, 12])
def test_evaluate_is_a_masked_mean(capacity):
    task, data = logistic_task(), examples()
    own = subset([1, 4, 7, 2], capacity, data=data._replace(x=data.x.at[11].set(jnp.nan)), fill=11)
    params = task.init(KEY)
    loss, accuracy = jax.jit(lambda own: local.evaluate(task, lambda x: task.logits(params, x), own))(own)
    index = np.array([1, 4, 7, 2])
    logits = task.logits(params, data.x[index])
    np.testing.assert_allclose(loss, task.loss(logits, data.y[index]).mean(), rtol=1e-6)
    np.testing.assert_allclose(accuracy, (np.argmax(logits, axis=1) == np.asarray(data.y)[index]).mean(), rtol=1e-6)


def test_evaluate_without_rows_is_nan():
    task = logistic_task()
    params = task.init(KEY)
    loss, accuracy = local.evaluate(task, lambda x: task.logits(params, x), subset([]))
    assert np.isnan(loss)
    assert np.isnan(accuracy)


def test_maps_over_clients():
    """A batch of ragged clients gives what each of them gives alone."""
    task, data = logistic_task(), examples()
    index = jnp.array([[0, 1, 2, 3, 4], [5, 6, 7, 0, 0], [8, 0, 0, 0, 0]], jnp.int32)
    size = jnp.array([5, 3, 1], jnp.int32)
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(3))
    params = task.init(KEY)
    how = Local(0.1, 2, epochs=2)

    def one(key, index, size):
        own = Subset(data, Rows(index, size))
        return local.train(key, params, own, task=task, local=how)

    together = jax.jit(jax.vmap(one))(keys, index, size)
    assert together.steps.tolist() == [6, 4, 2]
    for k in range(3):
        alone = jax.jit(one)(keys[k], index[k], size[k])
        close(trees.take(together.params, k), alone.params, rtol=1e-5)
