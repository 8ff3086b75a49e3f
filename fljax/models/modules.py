"""Pure functions of params that a module of ``flax.linen`` becomes, and what nnx modules share with them.

Abstract evaluation before training shows whether a module's dropout is on in training; else it is refused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Bool, Key, PyTree

from fljax.protocol import TrainingBatch
from fljax.protocol.roles import hold, record

# Names of a keyword of __call__ that is True in training, and of a keyword that is False in training.
TRAINING = ("train", "training", "is_training", "is_train", "enable_dropout")
EVALUATING = ("deterministic", "is_deterministic", "eval", "evaluating", "is_eval", "eval_mode", "inference")


def flags(module: Any) -> Callable[[bool], dict[str, Any]]:
    """Returns a function ``training -> keywords`` that sets the module's training keywords of ``__call__``."""
    keywords = list(inspect.signature(type(module).__call__).parameters.values())[2:]
    for keyword in keywords:
        optional = keyword.default is not keyword.empty or keyword.kind in (keyword.VAR_POSITIONAL, keyword.VAR_KEYWORD)
        if not optional and keyword.name not in (*TRAINING, *EVALUATING):
            raise ValueError(
                f"expected {type(module).__name__} to be called with examples and optional arguments, got one that "
                f"also needs {keyword.name!r}; valid names of a keyword for training are {_names()}"
            )
    names = [keyword.name for keyword in keywords]
    on = [name for name in TRAINING if name in names]
    off = [name for name in EVALUATING if name in names]
    return lambda training: dict.fromkeys(on, training) | dict.fromkeys(off, not training)


def refuse(module: str, dropout: str) -> None:
    """Raises the ValueError about dropout that stays off in training."""
    raise ValueError(
        f"expected dropout to be on in training, got {dropout} in {module}, which no keyword switches on; valid names "
        f"of a keyword of __call__ are {_names()}"
    )


def _names() -> str:
    return f"{', '.join(TRAINING)} (True in training) and {', '.join(EVALUATING)} (the opposite)"


def check_linen(module: nn.Module, begin: Callable[[], Any], train: Callable[[Any], Any]) -> Any:
    """What ``begin`` returns; raises a ValueError if a dropout layer is deterministic in training (``train``)."""
    begun, layers = _layers(begin)
    _, called = _layers(lambda: train(begun))
    if silent := [name for name, off in (called or layers) if off]:
        refuse(type(module).__name__, silent[0])
    return begun


def _layers(call: Callable[[], Any]) -> tuple[Any, list[tuple[str, bool]]]:
    """Returns the result of a call, and for each dropout layer that the call runs: its name, and whether it is off."""
    layers: list[tuple[str, bool]] = []

    def look(run: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer, method = context.module, context.method_name
        if method == "__call__" and rate(layer) > 0 and hasattr(layer, "deterministic"):
            # The method is bound, so its signature has exactly the arguments of this call.
            arguments = inspect.signature(getattr(layer, method)).bind_partial(*args, **kwargs).arguments
            off = arguments.get("deterministic")
            layers.append((type(layer).__name__, bool(layer.deterministic if off is None else off)))
        return run(*args, **kwargs)

    with nn.intercept_methods(look):
        return call(), layers


def rate_name(layer: Any) -> str:
    """The attribute that has the rate of a dropout layer."""
    return "dropout_rate" if hasattr(layer, "dropout_rate") else "rate"


def rate(layer: Any) -> float:
    """The rate of a dropout layer; 0 for other layers."""
    found = getattr(layer, rate_name(layer), 0)
    return float(found) if isinstance(found, int | float | np.number) else 0


class Functions(NamedTuple):
    """The functions of a linen or nnx module."""

    init: Callable[..., Any]  # ``key -> params``, with statistics beside the parameters of their layer
    logits: Callable[..., Any]  # ``(params, x, key) -> output``; the key is as for ``Task.logits``
    features: Callable[..., Any] | None  # ``(params, x) -> [b, ...]``; None: there is no such method
    statistics: frozenset[str]  # their paths in params


def has_features(module: Any) -> bool:
    """Whether the module has a method ``features``; an attribute of this name is usually a layer's width."""
    return inspect.isfunction(getattr(type(module), "features", None))


def split_mode(mode: Any) -> tuple[Any, Bool[Array, " b"] | None]:
    """The random key of a training step, and the real rows of its batch (None: all of them)."""
    return (mode.key, mode.real) if isinstance(mode, TrainingBatch) else (mode, None)


def row_mask(real: Bool[Array, " b"], x: Array, mask: Array | None = None) -> Array:
    """The real rows as a mask of the input of BatchNorm: ``[b, 1, ..., 1]``, within a ``mask`` of the module's own."""
    # A batch without real rows has a mask of all rows, so that no mean is 0 / 0; its gradient is dropped.
    if x.shape[0] != real.shape[0]:
        raise ValueError(
            f"expected BatchNorm to get one row for each of {real.shape[0]} examples, got an input of shape {x.shape}"
        )
    rows = jnp.reshape(real | ~jnp.any(real), (-1, *[1] * (x.ndim - 1)))
    return rows if mask is None else jnp.reshape(mask, (1,) * (x.ndim - mask.ndim) + mask.shape) & rows


@contextlib.contextmanager
def random_in_training_only(module: Any) -> Iterator[None]:
    """Turns flax's error about a draw without a key, or a change of state in evaluation, into one sentence."""
    try:
        yield
    except errors.InvalidRngError as error:
        missing = str(error).split(" (http")[0]
        raise ValueError(
            f"expected {type(module).__name__} to draw random numbers in training only, from the stream 'dropout', got "
            f"{missing}; a keyword of __call__ such as train or deterministic tells it whether it trains"
        ) from None
    except errors.ModifyScopeVariableError:
        raise ValueError(
            f"expected {type(module).__name__} to change running averages in training only, got a change in "
            "evaluation; a keyword of __call__ such as train tells it whether it trains, as in "
            "nn.BatchNorm(use_running_average=not train)"
        ) from None


def refuse_state(kinds: set[str], name: str) -> None:
    """Raises a ValueError if a module has state that is neither parameters nor running averages."""
    if kinds:
        raise ValueError(
            f"expected a module whose only state is parameters and running averages, got {sorted(kinds)} in {name}"
        )


def zeros(x: jax.ShapeDtypeStruct) -> Array:
    """An input of zeros."""
    return jnp.zeros(x.shape, x.dtype)


_STATISTICS = "batch_stats"


def linen_functions(module: nn.Module, x: jax.ShapeDtypeStruct, *, frozen: bool) -> Functions:
    """The functions of a module that is called on ``x``; ``frozen``: whether nothing moves the running averages."""
    mode = flags(module)

    def variables(key: Key[Array, ""]) -> dict[str, Any]:
        # Parameters are drawn in the module's own dtype and cast later, so dtypes may mix here.
        with jax.numpy_dtype_promotion("standard"):
            drawn = module.init({"params": key}, zeros(x), **mode(False))
        return dict(nn.meta.unbox(drawn))

    def begin() -> Any:
        drawn = jax.eval_shape(variables, jax.random.key(0))
        refuse_state(set(drawn) - {"params", _STATISTICS}, type(module).__name__)
        return drawn

    def trained(variables: dict[str, Any]) -> None:
        with jax.numpy_dtype_promotion("standard"):
            mutable = [_STATISTICS] if _STATISTICS in variables else False
            rngs = {"dropout": jax.random.key(0)}
            module.apply(variables, zeros(x), rngs=rngs, mutable=mutable, **mode(True))

    with random_in_training_only(module):
        drawn = check_linen(module, begin, functools.partial(jax.eval_shape, trained))
    paths = set(flatten_dict(drawn.get(_STATISTICS, {})))
    if twice := paths & set(flatten_dict(drawn.get("params", {}))):
        raise ValueError(
            f"expected parameters and running averages of different names, got {'/'.join(min(twice))} as both in "
            f"{type(module).__name__}"
        )

    def init(key: Key[Array, ""]) -> PyTree:
        drawn = variables(key)
        params = drawn.get("params", {})
        return unflatten_dict(flatten_dict(params) | flatten_dict(drawn[_STATISTICS])) if paths else params

    def collections(params: PyTree) -> dict[str, Any]:
        if not paths:
            return {"params": params}
        flat = flatten_dict(params)
        return {
            "params": unflatten_dict({path: leaf for path, leaf in flat.items() if path not in paths}),
            _STATISTICS: unflatten_dict({path: flat[path] for path in paths}),
        }

    def logits(params: PyTree, x: Array, key: Any) -> Any:
        key, real = split_mode(key)
        rngs = {} if key is None else {"dropout": key}
        by_collection = collections(params)
        if not paths or key is None:
            return module.apply(by_collection, x, rngs=rngs, **mode(key is not None))
        statistics = by_collection[_STATISTICS]
        by_collection = by_collection | {_STATISTICS: hold(statistics)}
        if frozen:
            with nn.intercept_methods(_evaluated):
                return module.apply(by_collection, x, rngs=rngs, **mode(True))
        with nn.intercept_methods(functools.partial(_masked, jnp.ones(x.shape[0], bool) if real is None else real)):
            out, changed = module.apply(by_collection, x, rngs=rngs, mutable=[_STATISTICS], **mode(True))
        return record(out, *(flatten_dict(dict(tree), sep="/") for tree in (statistics, changed[_STATISTICS])))

    def features(params: PyTree, x: Array) -> Any:
        return module.apply(collections(params), x, method="features")

    names = frozenset("/".join(path) for path in paths)
    return Functions(init, logits, features if has_features(module) else None, names)


def _masked(real: Bool[Array, " b"], run: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a layer; BatchNorm leaves out the rows that are not real."""
    if not _is_batch_norm(context) or "mask" not in inspect.signature(run).parameters:
        return run(*args, **kwargs)  # a subclass calls BatchNorm itself, which is intercepted, too
    return run(*args, **{**kwargs, "mask": row_mask(real, args[0] if args else kwargs["x"], kwargs.get("mask"))})


def _evaluated(run: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a layer; BatchNorm uses its running averages."""
    if not _is_batch_norm(context):
        return run(*args, **kwargs)
    layer = context.module
    before = layer.use_running_average
    # flax accepts the choice in one of two places only, and modules are frozen dataclasses.
    object.__setattr__(layer, "use_running_average", None)
    try:
        return run(args[0] if args else kwargs["x"], use_running_average=True)
    finally:
        object.__setattr__(layer, "use_running_average", before)


def _is_batch_norm(context: Any) -> bool:
    return isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__"
