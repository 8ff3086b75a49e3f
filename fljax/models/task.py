"""Tasks from flax modules: pure functions on plain pytrees of parameters."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors, nnx
from jaxtyping import Array, Key, PyTree

from fljax import trees
from fljax.models.checks import check_parameters
from fljax.models.dropout import check_linen, check_nnx, flags
from fljax.models.losses import correct, cross_entropy
from fljax.models.prepare import checked_dtype, pixels_to_floats
from fljax.types import AnyArray, Task


def task_from_module(
    module: nn.Module | Callable[..., Any],
    example_x: Any,
    *,
    classes: int | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    score: Callable[[Array, Array], Array] | None = None,
    example_y: Any = None,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[[Key[Array, ""], Array], Array] | None = None,
    head: Callable[[str], bool] | None = None,
    dtype: Any = jnp.float32,
    compute_dtype: Any = None,
) -> Task:
    """Makes a task from a flax module: ``task_from_module(Net(), x_train[:1])`` gives a classification task.

    A ``loss`` gives any other task: ``loss=models.squared_error`` gives a regression.

    A module with dropout reads its mode from a keyword of ``__call__``: ``train``, ``training`` or ``is_training``
    (True in training mode), ``deterministic`` or ``inference`` (the opposite), and a few more
    (``fljax.models.dropout``). An nnx module may rely on ``train()`` and ``eval()`` instead. In a training step, a
    linen module gets its random key as the stream ``"dropout"``, and an nnx module gets new keys in all of its streams.
    A method ``features(x)`` of the module (the input of the last layer) becomes ``Task.features``.

    Args:
      module: a ``flax.linen.Module`` instance, or for ``flax.nnx`` a function from random streams to the module: its
        class, or ``lambda rngs: Net(32, rngs=rngs)``.
      example_x: a batch of stored examples, ``[b, ...]``; only its shape and dtype are read.
      classes: number of classes, compared with the width of the logits; None: not checked. With a ``loss``, the task
        has classes only if ``classes`` is given.
      loss: ``(logits, y) -> [b]``, one number per sample. The module may then return any array ``[b, ...]``, and the
        task has no accuracy without a ``score``. None: the cross-entropy with integer labels.
      score: ``(logits, y) -> [b]``, the correctness of each sample, from 0 to 1; the accuracy is its mean. None: no
        accuracy with a ``loss``; otherwise 1 if the label has the largest logit, else 0.
      example_y: a batch of labels, ``[b, ...]``, for checking the shapes of loss and score; only its shape and dtype
        are read. None: shapes are checked when training starts.
      prepare: maps stored examples to module inputs, e.g. ``standardise(mean, std)``. None: ``uint8`` pixels are
        divided by 255, floats are cast to ``dtype``, other integers (tokens) are kept.
      augment: ``(key, x) -> x`` on a prepared training batch.
      head: maps a parameter's path, such as ``"Dense_2/kernel"``, to whether the parameter belongs to the last layer;
        defines ``Task.is_head``.
      dtype: dtype of parameters and of prepared floating examples.
      compute_dtype: ``logits`` and ``features`` cast parameters and examples to this dtype, and the result back to
        ``dtype``. So ``"bfloat16"`` gives bfloat16 activations and products, while parameters, gradients and the loss
        keep ``dtype``. None: ``dtype``.

    Returns:
      A Task. Equal hashable arguments return the same Task, so compiled programs are reused.

    Raises:
      ValueError: if the module keeps state other than parameters (BatchNorm), is not a flax module, has dropout that
        stays off in training, or returns logits not of shape ``[b, classes]``; if no parameter is in the head; or if
        loss or score is not one number per sample.
    """
    arguments = (
        module,
        (1, *example_x.shape[1:]),
        jax.dtypes.canonicalize_dtype(example_x.dtype),
        classes,
        loss,
        score,
        None if example_y is None else (tuple(example_y.shape[1:]), jax.dtypes.canonicalize_dtype(example_y.dtype)),
        prepare,
        augment,
        head,
        checked_dtype(dtype),
        checked_dtype(dtype if compute_dtype is None else compute_dtype),
    )
    try:
        hash(arguments)
    except TypeError:
        return _build.__wrapped__(*arguments)
    return _build(*arguments)


class _Functions(NamedTuple):
    """The functions of a linen or nnx module."""

    init: Callable[..., Any]
    logits: Callable[..., Any]
    features: Callable[..., Any] | None


@functools.lru_cache(maxsize=256)
def _build(
    module: Any,
    shape: tuple[int, ...],
    stored: Any,
    classes: int | None,
    loss: Callable | None,
    score: Callable | None,
    labels: tuple[tuple[int, ...], Any] | None,
    prepare: Callable | None,
    augment: Callable | None,
    head: Callable[[str], bool] | None,
    dtype: Any,
    compute: Any,
) -> Task:
    prepare = pixels_to_floats(dtype) if prepare is None else prepare
    x = jax.eval_shape(prepare, jax.ShapeDtypeStruct(shape, stored))
    x = jax.eval_shape(lambda x: trees.cast(x, dtype), x)
    if isinstance(module, nn.Module):
        functions = _linen_functions(module, x)
    elif isinstance(module, nnx.Module):
        raise ValueError(
            "expected what makes the nnx module, such as lambda rngs: Net(rngs=rngs), so that parameters can be drawn "
            f"anew, got an instance of {type(module).__name__}"
        )
    elif callable(module) and not (isinstance(module, type) and issubclass(module, nn.Module)):
        functions = _nnx_functions(module, x)
    else:
        raise ValueError(f"expected a flax.linen.Module instance or an nnx constructor, got {module!r}")

    def init(key: Key[Array, ""]) -> PyTree:
        return trees.cast(functions.init(key), dtype)

    def logits(params: PyTree, x: AnyArray, key: Key[Array, ""] | None = None) -> Array:
        out = functions.logits(trees.cast(params, compute), trees.cast(trees.cast(x, dtype), compute), key)
        return out if compute == dtype else trees.cast(out, dtype)

    def features(params: PyTree, x: AnyArray) -> Array:
        assert functions.features is not None
        z = functions.features(trees.cast(params, compute), trees.cast(trees.cast(x, dtype), compute))
        z = z if compute == dtype else trees.cast(z, dtype)
        return z.reshape(z.shape[0], -1) if z.ndim != 2 else z

    params = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    check_parameters(params)
    with _random_in_training_only(module):
        out = jax.eval_shape(logits, params, x)
    if (loss is None or classes is not None) and (len(out.shape) != 2 or classes not in (None, out.shape[1])):
        advice = "" if loss is not None or len(out.shape) == 2 else "; other shapes need a loss of their own"
        raise ValueError(
            f"expected logits of shape [b, {classes or 'classes'}], got {list(out.shape)} for b = 1{advice}"
        )
    if loss is None:
        loss, score, classes = cross_entropy, score or correct, out.shape[1]
    _check_judges(jax.eval_shape(logits, params, jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype)), loss, score, labels)
    z = None if functions.features is None else jax.eval_shape(features, params, x).shape[1]
    is_head = None if head is None else _head_mask(head)
    if is_head is not None and not any(jax.tree.leaves(is_head(params))):
        raise ValueError(f"expected some parameter in the head, got none; valid names are {', '.join(_paths(params))}")
    return Task(
        init=init,
        logits=logits,
        loss=loss,
        features=None if functions.features is None else features,
        prepare=prepare,
        augment=augment,
        is_head=is_head,
        classes=classes,
        width=z,
        score=score,
    )


def _check_judges(out: Any, loss: Callable, score: Callable | None, labels: tuple[tuple[int, ...], Any] | None) -> None:
    """Raises a ValueError unless a batch of two gives two outputs and, with ``labels``, two losses and two scores."""
    if not hasattr(out, "shape") or out.shape[:1] != (2,):
        got = list(out.shape) if hasattr(out, "shape") else type(out).__name__
        raise ValueError(f"expected the module to return an array [b, ...], got {got} for b = 2")
    if labels is None:
        return
    y = jax.ShapeDtypeStruct((2, *labels[0]), labels[1])
    for name, judge in (("loss", loss), ("score", score)):
        found = (2,) if judge is None else getattr(jax.eval_shape(judge, out, y), "shape", None)
        if found != (2,):
            raise ValueError(f"expected the {name} to be one number per sample, [b], got shape {found} for b = 2")


def _linen_functions(module: nn.Module, x: jax.ShapeDtypeStruct) -> _Functions:
    mode = flags(module)

    def variables(key: Key[Array, ""]) -> dict:
        # Parameters are drawn in the module's own dtype and cast later, so dtypes may mix here.
        with jax.numpy_dtype_promotion("standard"):
            drawn = module.init({"params": key}, jnp.zeros(x.shape, x.dtype), **mode(False))
        return dict(nn.meta.unbox(drawn))

    def init(key: Key[Array, ""]) -> PyTree:
        return variables(key).get("params", {})

    def logits(params: PyTree, x: Array, key: Key[Array, ""] | None) -> Any:
        rngs = {} if key is None else {"dropout": key}
        return module.apply({"params": params}, x, rngs=rngs, **mode(key is not None))

    def features(params: PyTree, x: Array) -> Any:
        return module.apply({"params": params}, x, method="features")

    def trained(variables: dict) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return logits(variables.get("params", {}), jnp.zeros(x.shape, x.dtype), jax.random.key(0))

    def begin() -> Any:
        drawn = jax.eval_shape(variables, jax.random.key(0))
        _refuse_state(set(drawn) - {"params"}, type(module).__name__)
        return drawn

    with _random_in_training_only(module):
        check_linen(module, begin, functools.partial(jax.eval_shape, trained))
    return _Functions(init, logits, features if _has_features(module) else None)


def _nnx_functions(constructor: Callable[..., Any], x: jax.ShapeDtypeStruct) -> _Functions:
    named = "rngs" in inspect.signature(constructor).parameters

    def construct(rngs: nnx.Rngs) -> Any:
        return constructor(rngs=rngs) if named else constructor(rngs)

    model = nnx.eval_shape(lambda: construct(nnx.Rngs(0)))
    if not isinstance(model, nnx.Module):
        raise ValueError(f"expected a function rngs -> nnx.Module, got one that returns {type(model).__name__}")
    _, params, streams, state = nnx.split(model, nnx.Param, nnx.RngState, ...)
    kinds = jax.tree.leaves(state, is_leaf=lambda v: isinstance(v, nnx.Variable))
    _refuse_state({type(v).__name__ for v in kinds}, type(model).__name__)
    mode = flags(model)
    model.train()
    training = nnx.graphdef(model)
    model.eval()
    evaluating = nnx.graphdef(model)

    def merged(params_: PyTree, key: Key[Array, ""] | None) -> Any:
        # Reseed: every stream gets its own key and a count of zero.
        seed = jax.random.key(0) if key is None else key
        fresh = [
            jax.random.fold_in(seed, i)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
            for i, leaf in enumerate(jax.tree.leaves(streams))
        ]
        return nnx.merge(
            evaluating if key is None else training,
            jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(params_)),
            jax.tree.unflatten(jax.tree.structure(streams), fresh),
        )

    def init(key: Key[Array, ""]) -> PyTree:
        # Both pytrees have sorted keys at every level, so the leaves are in the order that ``merged`` expects.
        return nnx.to_pure_dict(nnx.state(construct(nnx.Rngs(key)), nnx.Param))

    def logits(params: PyTree, x: Array, key: Key[Array, ""] | None) -> Any:
        return merged(params, key)(x, **mode(key is not None))

    def features(params: PyTree, x: Array) -> Any:
        return merged(params, None).features(x)

    def fresh() -> Any:
        return merged(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params), jax.random.key(0))

    def trains(model: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return model(jnp.zeros(x.shape, x.dtype), **mode(True))

    check_nnx(model, trains, fresh)
    return _Functions(init, logits, features if _has_features(model) else None)


def _has_features(module: Any) -> bool:
    """Whether the module has a method ``features``; an attribute of this name is usually a layer's width."""
    return inspect.isfunction(getattr(type(module), "features", None))


@contextlib.contextmanager
def _random_in_training_only(module: Any) -> Iterator[None]:
    """Turns the error of a linen module that draws random numbers without a key into a one-sentence ValueError."""
    try:
        yield
    except errors.InvalidRngError as error:
        missing = str(error).split(" (http")[0]
        raise ValueError(
            f"expected {type(module).__name__} to draw random numbers in training only, from the stream 'dropout', got "
            f"{missing}; a keyword of __call__ such as train or deterministic tells it whether it trains"
        ) from None


def _refuse_state(kinds: set[str], name: str) -> None:
    if kinds & {"batch_stats", "BatchStat"}:
        raise ValueError(
            f"expected a module without running statistics, got BatchNorm in {name}; use GroupNorm, since clients "
            "with their own data have no batch statistics in common"
        )
    if kinds:
        raise ValueError(f"expected a module whose only state is parameters, got {sorted(kinds)} in {name}")


def _head_mask(head: Callable[[str], bool]) -> Callable[[PyTree], PyTree]:
    def is_head(params: PyTree) -> PyTree:
        return jax.tree_util.tree_map_with_path(lambda path, _: bool(head(_name(path))), params)

    return is_head


def _paths(params: PyTree) -> list[str]:
    return [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
