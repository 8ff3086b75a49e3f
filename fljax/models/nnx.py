"""Pure functions of a ``flax.nnx`` module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Bool, Key, PyTree

from fljax.models.dropout import check_nnx, flags
from fljax.models.modules import Functions, has_features, refuse_state, row_mask, split_mode, zeros
from fljax.roles import record


def nnx_functions(constructor: Callable[..., Any], x: jax.ShapeDtypeStruct, *, frozen: bool) -> Functions:
    """The functions of the module that ``constructor`` makes, called on ``x``.

    ``frozen``: whether nothing moves the running averages.
    """
    named = "rngs" in inspect.signature(constructor).parameters

    def construct(rngs: nnx.Rngs) -> Any:
        return constructor(rngs=rngs) if named else constructor(rngs)

    model = nnx.eval_shape(lambda: construct(nnx.Rngs(0)))
    if not isinstance(model, nnx.Module):
        raise ValueError(f"expected a function rngs -> nnx.Module, got one that returns {type(model).__name__}")
    kept = nnx.Any(nnx.Param, nnx.BatchStat)
    _, params, streams, state = nnx.split(model, kept, nnx.RngState, ...)
    kinds = jax.tree.leaves(state, is_leaf=lambda v: isinstance(v, nnx.Variable))
    refuse_state({type(v).__name__ for v in kinds}, type(model).__name__)
    paths = set(_flat(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))))
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
        return nnx.to_pure_dict(nnx.state(construct(nnx.Rngs(key)), kept))

    def constant(params: PyTree) -> PyTree:
        """``params``, through whose statistics no gradient flows."""
        if not paths:
            return params
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: jax.lax.stop_gradient(leaf) if _name(path) in paths else leaf, params
        )

    def logits(params: PyTree, x: Array, key: Any) -> Any:
        key, real = split_mode(key)
        model = merged(constant(params), key)
        if not paths or key is None:
            return model(x, **mode(key is not None))
        _change_batch_norms(model, jnp.ones(x.shape[0], bool) if real is None else real, frozen)
        out = model(x, **mode(True))
        if frozen:
            return out
        old = {path: leaf for path, leaf in _flat(params).items() if path in paths}
        return record(out, old, _flat(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))))

    def features(params: PyTree, x: Array) -> Any:
        return merged(constant(params), None).features(x)

    def fresh() -> Any:
        return merged(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params), jax.random.key(0))

    def trains(model: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return model(zeros(x), **mode(True))

    check_nnx(model, trains, fresh)
    return Functions(init, logits, features if has_features(model) else None, frozenset(paths))


def _change_batch_norms(model: nnx.Module, real: Bool[Array, " b"], frozen: bool) -> None:
    """Makes every BatchNorm of the module leave out the rows that are not real, or use its running averages."""
    for _, layer in nnx.iter_graph(model):
        if isinstance(layer, nnx.BatchNorm):
            # nnx has no hook around a layer's call, so the layer gets a subclass.
            layer.__class__ = _changed(type(layer), real, frozen)


def _changed(kind: type, real: Bool[Array, " b"], frozen: bool) -> type:
    def call(self: Any, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        if frozen:
            return kind.__call__(self, x, use_running_average=True)
        return kind.__call__(self, x, use_running_average, mask=row_mask(real, x) if mask is None else mask)

    return type(kind.__name__, (kind,), {"__call__": call})


def _name(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _flat(tree: Any) -> dict[str, Any]:
    """Leaves by path: arrays, or their shapes."""
    return {"/".join(map(str, path)): leaf for path, leaf in flatten_dict(tree).items()}
