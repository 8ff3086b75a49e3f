"""Tasks whose models start from given parameters, parameters from files, and tasks with frozen leaves."""

from __future__ import annotations

import dataclasses
import io
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from fljax.core import trees
from fljax.core.files import check_unpacked
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
