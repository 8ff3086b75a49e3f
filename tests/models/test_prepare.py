"""Random crop and flip: whose pixels they are, how often, and who sees them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import config, data, training
from fljax.config import ConfigError
from fljax.models import cnn, logistic_regression, mlp, standardise
from fljax.models.starting import FRAME, crop_flip
from fljax.protocol import Examples, Rows, Subset

pytestmark = pytest.mark.usefixtures("strict")


def images(b, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (b, *shape), np.uint8)


def places(raw, made):
    """For each image: the (row, column, mirrored) of the one window of the framed image that it is."""
    found = []
    sides = [(FRAME, FRAME), (FRAME, FRAME), *((0, 0) for _ in raw.shape[3:])]
    h, w = raw.shape[1:3]
    for image, out in zip(raw, made, strict=True):
        framed = np.pad(image, sides)
        hits = [
            (row, column, mirrored)
            for row in range(2 * FRAME + 1)
            for column in range(2 * FRAME + 1)
            for mirrored in (False, True)
            if np.array_equal(framed[row : row + h, column : column + w][:, :: -1 if mirrored else 1], out)
        ]
        assert len(hits) == 1
        found.append(hits[0])
    return np.array(found)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(12, 10, 3), (9, 11, 1), (10, 10)])
def test_pixels_are_those_of_one_window_of_the_framed_image(shape):
    """Also where images are not square: torchvision frames raw images with zeros, and so the frame is raw black."""
    task = cnn(shape, 2, blocks=[[2]], augment="crop_flip", prepare=standardise(0.4, 0.3))
    assert task.augment is not None
    assert task.prepare is not None
    raw = images(40, shape)
    made = jax.jit(task.augment)(jax.random.key(0), task.prepare(jnp.asarray(raw)))
    assert made.dtype == jnp.float32
    back = np.rint((np.asarray(made) * 0.3 + 0.4) * 255).astype(np.uint8)
    found = places(raw, back)
    assert len(np.unique(found[:, :2], axis=0)) > 20
    assert set(found[:, 2]) == {0, 1}


@pytest.mark.in_turn
def test_the_frame_is_a_black_pixel_of_each_channel():
    mean, std = [0.5, 0.4, 0.2], [0.2, 0.1, 0.4]
    task = cnn((8, 8, 3), 2, blocks=[[2]], augment="crop_flip", prepare=standardise(mean, std))
    assert task.augment is not None
    made = np.asarray(jax.jit(task.augment)(jax.random.key(0), jnp.full((200, 8, 8, 3), 9.0)))
    frame = made[~(made == 9).all(-1)]
    assert len(frame) > 0
    np.testing.assert_allclose(frame, np.broadcast_to(-np.divide(mean, std), frame.shape), rtol=1e-6)


@pytest.mark.in_turn
def test_places_are_uniform_and_half_of_the_images_are_mirrored():
    b = 4000
    made = jax.jit(crop_flip)(jax.random.key(1), jnp.asarray(images(b, (9, 9)) + np.float32(1)))
    # The first row that is not all frame tells the place from top to bottom.
    offset = np.argmax(np.asarray(made).any(2), axis=1)
    assert set(offset) == set(range(FRAME + 1))
    assert abs((offset == 0).mean() - 5 / 9) < 0.03
    found = places(images(300, (6, 6)), np.asarray(jax.jit(crop_flip)(jax.random.key(2), images(300, (6, 6)))))
    assert abs(found[:, 2].mean() - 0.5) < 4 * 0.5 / np.sqrt(300)
    for axis in (0, 1):
        assert abs(found[:, axis].mean() - FRAME) < 4 * np.sqrt(80 / 12 / 300)
    # The three draws of an image have nothing to do with one another.
    correlation = np.corrcoef(found.T.astype(float))
    assert np.abs(correlation[np.triu_indices(3, 1)]).max() < 4 / np.sqrt(300)


@pytest.mark.thorough
def test_same_key_same_result_and_clients_draw_by_their_keys():
    x = jnp.asarray(images(8, (8, 8, 3)), jnp.float32)
    run = jax.jit(crop_flip)
    keys = jax.random.split(jax.random.key(0), 3)
    np.testing.assert_array_equal(run(keys[0], x), run(keys[0], x))
    assert not np.array_equal(run(keys[0], x), run(keys[1], x))
    together = jax.jit(jax.vmap(crop_flip, in_axes=(0, None)))(keys, x)
    for i in range(3):
        np.testing.assert_array_equal(together[i], run(keys[i], x))


@pytest.mark.thorough
def test_only_training_batches_see_it():
    shape, raw = (8, 8, 1), images(6, (8, 8, 1))
    tasks = [logistic_regression(shape, 3, prepare=standardise(0.5, 0.2), augment=each) for each in ("crop_flip", None)]
    rows = Rows(jnp.arange(6), jnp.asarray(6))
    own = Subset(Examples(jnp.asarray(raw), jnp.arange(6) % 3), rows)
    params = jax.tree.map(lambda leaf: leaf + 0.1, jax.jit(tasks[0].init)(jax.random.key(0)))

    def losses(task):
        return training.evaluate(task, lambda x: task.logits(params, x), own, key=jax.random.key(3))

    np.testing.assert_array_equal(*(jax.jit(losses, static_argnums=0)(task) for task in tasks))

    def trained(task):
        return training.train(jax.random.key(1), params, own, task=task, local=training.Local(0.1, 6, steps=1)).params

    kernels = [jax.jit(trained, static_argnums=0)(task)["head"]["kernel"] for task in tasks]
    assert not np.allclose(*kernels)


def test_equal_calls_share_compiled_programs():
    made = [mlp((8, 8, 1), 3, augment="crop_flip", prepare=standardise(0.5, 0.2)) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0] != mlp((8, 8, 1), 3, prepare=standardise(0.5, 0.2))
    own = lambda key, x: x  # noqa: E731
    assert mlp((8, 8, 1), 3, augment=own).augment is own


def test_a_config_is_asked_before_anything_runs():
    raw = {
        "rounds": 1,
        "data": {"dataset": "digits", "partition": "iid", "clients": 2},
        "model": {"name": "cnn", "augment": "crop_flip"},
        "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
        "algorithms": [{"name": "fedavg"}],
    }
    made = config.parse(raw, name="tiny")
    assert made.model.options == {"augment": "crop_flip"}
    with pytest.raises(ConfigError, match=r"model.augment: expected .*crop_flip.*, got 'crop'"):
        config.parse(raw | {"model": {"name": "cnn", "augment": "crop"}}, name="tiny")


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int32, np.int8, np.uint8, bool, np.float32, np.float16])
@pytest.mark.parametrize("prepare", [None, standardise()])
@pytest.mark.parametrize("shape", [(6, 4, 4), (6, 4, 4, 1)])
def test_images_are_uint8_or_floats(shape, prepare, dtype):
    """Other whole numbers would be raw pixels, up to 65535; a prepare of one's own says their scale."""
    images = np.ones(shape, dtype)
    x = data.from_arrays(images, np.arange(6) % 2, np.repeat([0, 1], 3), train_fraction=0.7).examples.x
    task = mlp(shape[1:], 2, prepare=prepare)
    if dtype in (np.uint16, np.int16, np.int32, np.int8):
        with pytest.raises(ValueError, match=r"expected images of uint8 or floats, got int32 .*x / 65535 for 16 bits"):
            training.prepare(task, x)
        assert training.prepare(mlp(shape[1:], 2, prepare=standardise(0.5, 0.5)), x).max() == 1
    else:
        assert training.prepare(task, x).max() == np.float32(1 / 255 if dtype == np.uint8 else 1)
