"""Tasks that start from given parameters or have frozen leaves, parameters from files, and inputs of models.

``Task.prepare`` makes model inputs of stored examples, ``Task.augment`` changes training batches.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree, Real

from fljax.core import trees
from fljax.core.files import check_unpacked
from fljax.core.names import unknown
from fljax.protocol import Task, roles


def start_from(task: Task, params: PyTree) -> Task:
    """The task whose models, those of clients, server and standalone training, all start from ``params``.

    In a ``Plan`` the parameters are arguments of the compiled program, so other values do not recompile. An
    ``Algorithm`` that is built outside a ``Plan`` holds them as constants of its programs.

    Args:
      task: a task.
      params: like ``task.init(key)``: the same structure, shapes and dtypes; ``fljax.models.load_params`` reads them.

    Returns:
      The task with an ``init`` that gives ``params`` for every key.

    Raises:
      ValueError: if ``params`` differ in a leaf; the sentence names the first one.
    """
    initial = jax.tree.map(jnp.asarray, params)
    expected = jax.eval_shape(task.init, jax.random.key(0))
    want, got = _by_path(expected), _by_path(initial)
    for path in {**want, **got}:
        if path not in want or path not in got or _form(want[path]) != _form(got[path]):
            wanted_form, here = (_form(leaves[path]) if path in leaves else "no such leaf" for leaves in (want, got))
            raise ValueError(f"expected initial parameters like those of the task, {path} as {wanted_form}, got {here}")
    if jax.tree.structure(expected) != jax.tree.structure(initial):
        raise ValueError(
            f"expected initial parameters of the structure {jax.tree.structure(expected)}, "
            f"got {jax.tree.structure(initial)}"
        )
    return task._replace(init=jax.tree_util.Partial(give, initial))


def is_given(task: Task) -> bool:
    """Whether all models of a task start from given parameters: those of ``start_from``, or of ``freeze``."""
    # ``freeze`` wraps the ``init`` of a task whose trained leaves are drawn.
    init = getattr(task.init, "init", task.init)
    return isinstance(init, jax.tree_util.Partial) and init.func is give


def load_params(path: str | pathlib.Path, task: Task) -> PyTree:
    """Parameters of a task from a file.

    Args:
      path: an ``.npz`` file of arrays by path (``dense_0/kernel``), a file that ``flax.serialization.to_bytes`` or
        ``msgpack_serialize`` wrote, or a folder that orbax wrote. Collections ``params`` and ``batch_stats`` around the
        parameters are taken off.
      task: says which arrays there must be.

    Returns:
      The parameters, like ``task.init(key)``, for ``start_from``.

    Raises:
      ValueError: if the file cannot be read, or has other arrays; the sentence names the first one.
    """
    return params_of(_read(pathlib.Path(path)), task, str(path))


def params_of(arrays: Mapping[str, Any], task: Task, where: str) -> PyTree:
    """Parameters of a task from arrays by path; ``where`` says for the error where they are from.

    Raises:
      ValueError: if arrays are missing or not of the task.
    """
    by_name = {_without_collection(path, arrays): array for path, array in arrays.items()}
    expected = jax.eval_shape(task.init, jax.random.key(0))
    names = trees.paths_of(expected)
    for name in names:
        if name not in by_name:
            raise ValueError(f"expected {name!r} among the arrays of {where!r}, got {', '.join(by_name) or 'none'}")
    for name in by_name:
        if name not in names:
            raise ValueError(f"expected no arrays in {where!r} but {', '.join(names)}, got {name!r}")
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(expected)]
    leaves = [_typed(by_name[name], dtype) for name, dtype in zip(names, dtypes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(expected), leaves)


def _read(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"expected a file or folder of parameters, got {str(path)!r}, which does not exist")
    try:
        if path.is_dir():
            return _by_path(_restored(path.absolute()))
        if path.suffix == ".npz":
            check_unpacked(path)
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        from flax import serialization

        return _by_path(serialization.msgpack_restore(path.read_bytes()))
    except Exception as error:  # the exception depends on what the file is instead
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        kinds, where = "an .npz file, a flax checkpoint (msgpack) or an orbax folder", str(path)
        raise ValueError(f"expected {kinds} of parameters, got {where!r}, which cannot be read ({reason})") from None


def _restored(path: pathlib.Path) -> PyTree:
    """The tree of a folder of orbax as NumPy arrays, so that it does not matter on which devices it was saved."""
    import orbax.checkpoint

    reader: Any = orbax.checkpoint.PyTreeCheckpointer()
    tree = reader.metadata(path).item_metadata.tree
    as_numpy = jax.tree.map(lambda _: orbax.checkpoint.RestoreArgs(restore_type=np.ndarray), tree)
    return reader.restore(path, restore_args=as_numpy)


def _by_path(tree: PyTree) -> dict[str, Any]:
    return {trees.path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _without_collection(path: str, arrays: Mapping[str, Any]) -> str:
    """The path inside flax's collections, if all arrays are in one."""
    collections = ("params/", "batch_stats/")
    if all(name.startswith(collections) for name in arrays):
        return path.partition("/")[2]
    return path


def _typed(values: Any, dtype: Any) -> Array:
    """NumPy's files do not know bfloat16 by name."""
    values = np.asarray(values)
    return jnp.asarray(values.view(dtype) if values.dtype.kind == "V" else values)


def _form(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def give(params: PyTree, key: Key[Array, ""]) -> PyTree:
    """The ``init`` of a task that starts from ``params``, whatever the key."""
    return params


def freeze(task: Task, params: PyTree, chosen: Callable[[str], bool], *, draw: bool = True) -> Task:
    """The task with some leaves fixed at their values in ``params``; the others are its params.

    Frozen leaves are held once, for all clients and seeds: they are not trained, stacked by client, or sent. In a
    ``Plan`` they are arguments of the compiled program, so backbones of equal shapes share a program. An ``Algorithm``
    that is built outside a ``Plan`` holds them as constants of its programs.

    Args:
      task: a task without frozen leaves.
      params: values of all leaves, such as pretrained ones, like ``task.init(key)``.
      chosen: maps a leaf's path, such as ``"backbone/Dense_0/kernel"``, to whether the leaf is frozen. Running averages
        of ``statistics="frozen"`` are frozen, too.
      draw: whether the trained leaves start from ``task.init``, different for each seed; False: from ``params``.

    Returns:
      A task whose params are like ``params``, with None in place of frozen leaves.

    Raises:
      ValueError: if the shapes of ``params`` are not those of the task, if no leaf or every leaf is chosen, if a chosen
        leaf is a running average that training moves, or if the task has frozen leaves already.
    """
    if isinstance(task.logits, jax.tree_util.Partial):
        raise ValueError("expected a task without frozen leaves, got one that freeze made; choose all leaves at once")
    params = jax.tree.map(jnp.asarray, params)
    _check_shapes(task, params)
    paths = trees.paths_of(params)
    leaf_roles = roles.roles_of(task, params)
    mask = tuple(role == "frozen" or bool(chosen(path)) for path, role in zip(paths, leaf_roles, strict=True))
    if moving := [path for path, role, yes in zip(paths, leaf_roles, mask, strict=True) if yes and role == "statistic"]:
        raise ValueError(
            f"expected frozen running averages to stay as they are in training, got {moving[0]!r}; make the task with "
            "task_from_module(..., statistics='frozen')"
        )
    if not any(mask) or all(mask):
        raise ValueError(
            f"expected some leaves to be frozen, and not all, got {sum(mask)} of {len(mask)}; valid names are "
            f"{', '.join(paths)}"
        )
    fixed, trained = trees.split(params, mask)
    return task._replace(
        init=_Drawn(task.init, mask) if draw else jax.tree_util.Partial(give, trained),
        logits=jax.tree_util.Partial(_Merged(task.logits), fixed),
        features=None if task.features is None else jax.tree_util.Partial(_Merged(task.features), fixed),
    )


@dataclasses.dataclass(frozen=True)
class _Merged:
    """A function of all leaves, called with frozen and trained leaves apart. Equal functions share programs."""

    function: Callable[..., Array]

    def __call__(self, frozen: PyTree, params: PyTree, *arguments: Any, **keywords: Any) -> Array:
        return self.function(trees.merge(frozen, params), *arguments, **keywords)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """``init`` without the frozen leaves."""

    init: Callable[[Key[Array, ""]], PyTree]
    frozen: tuple[bool, ...]

    def __call__(self, key: Key[Array, ""]) -> PyTree:
        return trees.split(self.init(key), self.frozen)[1]


def _check_shapes(task: Task, params: PyTree) -> None:
    expected = jax.eval_shape(task.init, jax.random.key(0))
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (expected, params)]
    if jax.tree.structure(expected) != jax.tree.structure(params) or shapes[0] != shapes[1]:
        raise ValueError(f"expected params like those of the task, {shapes[0]}, got {shapes[1]}")


def standardise(mean: Any = 0.0, std: Any = 1.0, *, dtype: Any = jnp.float32) -> Callable[[Array], Array]:
    """``x -> (x - mean) / std``; ``uint8`` inputs are first divided by 255.

    Args:
      mean: a number, or an array over the last axes of one example (e.g. ``[channels]``).
      std: like ``mean``, positive.
      dtype: dtype of the result.

    Returns:
      A function for ``Task.prepare``. Two calls with equal arguments return the same function, so compiled programs are
      reused.

    Raises:
      ValueError: if a ``std`` is not positive, or ``dtype`` is float64 while x64 is off.
    """
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if not np.all(std > 0):
        raise ValueError(f"expected std > 0 everywhere, got a smallest value of {np.min(std)}")
    return _standardise(mean.shape, tuple(mean.flat), std.shape, tuple(std.flat), checked_dtype(dtype))


@functools.lru_cache(maxsize=256)
def _standardise(mean_shape: tuple, mean: tuple, std_shape: tuple, std: tuple, dtype: Any) -> Callable:
    means, stds = np.reshape(mean, mean_shape).astype(dtype), np.reshape(std, std_shape).astype(dtype)

    plain = not np.any(means) and bool(np.all(stds == 1))

    def prepare(x: Array) -> Array:
        if plain:
            _check_pixels(x)
        pixels = x.dtype == jnp.uint8
        x = x.astype(dtype)
        if pixels:
            x = x / 255

        def broadcast(a: np.ndarray) -> np.ndarray:
            return a.reshape((1,) * (x.ndim - a.ndim) + a.shape)

        return (x - broadcast(means)) / broadcast(stds)

    return prepare


@functools.lru_cache
def pixels_to_floats(dtype: Any) -> Callable[[Array], Array]:
    """The default ``prepare``: maps ``uint8`` to [0, 1], casts floats to ``dtype``, and keeps other integers."""

    def prepare(x: Array) -> Array:
        _check_pixels(x)
        if x.dtype == jnp.uint8:
            return x.astype(dtype) / 255
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return prepare


def _check_pixels(x: Array) -> None:
    """Raises a ValueError for whole numbers with three axes or more, but uint8: raw pixels are too large."""
    if x.ndim > 2 and jnp.issubdtype(x.dtype, jnp.integer) and x.dtype != jnp.uint8:
        raise ValueError(
            f"expected images of uint8 or floats, got {x.dtype} of shape {list(x.shape)}; divide by the largest value "
            "there may be, such as x / 65535 for 16 bits, or give the task a prepare of its own, such as lambda x: x"
        )


def checked_dtype(dtype: Any) -> np.dtype:
    """Returns ``dtype`` as a floating ``numpy.dtype`` that JAX supports in its current configuration."""
    try:
        wanted = jnp.dtype(dtype)
        supported = jax.dtypes.canonicalize_dtype(wanted)
    except Exception:  # NumPy and JAX raise several types
        raise ValueError(f"expected a floating dtype for a model, such as 'float32', got {dtype!r}") from None
    if not jnp.issubdtype(wanted, jnp.floating) or wanted.itemsize > 8:  # JAX has no long doubles
        raise ValueError(f"expected a floating dtype for a model, got {wanted}")
    if supported != wanted:
        raise ValueError(f"expected jax_enable_x64 to be on for a model in {wanted}, got it off")
    return wanted


# Width of the frame around an image before the crop, in pixels.
FRAME = 4


def crop_flip(
    key: Key[Array, ""], x: Real[Array, "b h w *channels"], black: Real[Array, "*#channels"] | float = 0.0
) -> Real[Array, "b h w *channels"]:
    """A random crop of each image in a frame of 4 black pixels, flipped by chance: IAFL's augmentation for CIFAR.

    The window is at one of 9 x 9 positions, and mirrored with probability 1/2. ``black`` is in prepared units. Noise of
    features is added before, so the frame has none.

    Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """
    b, h, w = x.shape[:3]
    place, mirror = jax.random.split(key)
    offset = jax.random.randint(place, (b, 2), -FRAME, FRAME + 1)
    flipped = jax.random.bernoulli(mirror, 0.5, (b, 1))
    row = offset[:, :1] + jnp.arange(h)[None]
    column = offset[:, 1:] + jnp.where(flipped, jnp.arange(w)[None, ::-1], jnp.arange(w)[None])
    # Each pixel is read once: on a CPU this took a quarter of the time of one dynamic_slice per image.
    image = jnp.arange(b)[:, None, None]
    read = x[image, jnp.clip(row, 0, h - 1)[:, :, None], jnp.clip(column, 0, w - 1)[:, None, :]]
    inside = ((row >= 0) & (row < h))[:, :, None] & ((column >= 0) & (column < w))[:, None, :]
    rest = x.shape[3:]
    frame = jnp.broadcast_to(jnp.asarray(black, x.dtype), rest).reshape(1, 1, 1, *rest)
    return jnp.where(inside.reshape(b, h, w, *(1 for _ in rest)), read, frame)


AUGMENTATIONS: dict[str, Callable[..., Array]] = {"crop_flip": crop_flip}


def named_augmentation(
    augment: str | Callable[..., Array] | None, input_shape: Sequence[int], prepare: Callable[[Array], Array] | None
) -> Callable[..., Array] | None:
    """``Task.augment`` by name; functions and None are returned unchanged. Equal arguments return the same function."""
    # The frame of "crop_flip" is ``prepare`` of a raw zero (of the first pixel), as if the raw image had a black frame.
    if augment is None or callable(augment):
        return augment
    if augment not in AUGMENTATIONS:
        raise ValueError(unknown("augmentation", str(augment), AUGMENTATIONS))
    shape = tuple(input_shape)
    if len(shape) not in (2, 3):
        raise ValueError(f"expected images for the augmentation {augment}, got inputs of shape {shape}")
    return _with_black(AUGMENTATIONS[augment], shape, prepare)


@functools.lru_cache(maxsize=256)
def _with_black(function: Callable[..., Array], shape: tuple[int, ...], prepare: Any) -> Callable[..., Array]:
    def augment(key: Key[Array, ""], x: Array) -> Array:
        black = 0.0 if prepare is None else prepare(jnp.zeros((1, *shape), jnp.uint8))[0, 0, 0]
        return function(key, x, black)

    return augment
