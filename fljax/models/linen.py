"""Pure functions of a ``flax.linen`` module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Bool, Key, PyTree

from fljax.models.dropout import check_linen, flags
from fljax.models.modules import (
    Functions,
    has_features,
    random_in_training_only,
    refuse_state,
    row_mask,
    split_mode,
    zeros,
)
from fljax.protocol.roles import hold, record

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

    def trained(variables: dict[str, Any]) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            mutable = [_STATISTICS] if _STATISTICS in variables else False
            rngs = {"dropout": jax.random.key(0)}
            return module.apply(variables, zeros(x), rngs=rngs, mutable=mutable, **mode(True))

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
        own = collections(params)
        if not paths or key is None:
            return module.apply(own, x, rngs=rngs, **mode(key is not None))
        own = own | {_STATISTICS: hold(own[_STATISTICS])}
        if frozen:
            with nn.intercept_methods(_evaluate):
                return module.apply(own, x, rngs=rngs, **mode(True))
        with nn.intercept_methods(functools.partial(_mask, jnp.ones(x.shape[0], bool) if real is None else real)):
            out, changed = module.apply(own, x, rngs=rngs, mutable=[_STATISTICS], **mode(True))
        return record(out, *map(_flat, (_part(params, paths), changed[_STATISTICS])))

    def features(params: PyTree, x: Array) -> Any:
        return module.apply(collections(params), x, method="features")

    names = frozenset("/".join(path) for path in paths)
    return Functions(init, logits, features if has_features(module) else None, names)


def _part(params: Mapping[str, Any], paths: set[tuple[str, ...]]) -> dict[str, Any]:
    return unflatten_dict({path: leaf for path, leaf in flatten_dict(params).items() if path in paths})


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path."""
    return flatten_dict(dict(tree), sep="/")


def _mask(real: Bool[Array, " b"], run: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a layer; BatchNorm leaves out the rows that are not real."""
    if not _is_batch_norm(context) or "mask" not in inspect.signature(run).parameters:
        return run(*args, **kwargs)  # a subclass calls BatchNorm itself, which is intercepted, too
    return run(*args, **{**kwargs, "mask": row_mask(real, args[0] if args else kwargs["x"], kwargs.get("mask"))})


def _evaluate(run: Any, args: Any, kwargs: Any, context: Any) -> Any:
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
