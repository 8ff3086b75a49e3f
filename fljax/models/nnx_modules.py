"""Pure functions of params that a module of ``flax.nnx`` becomes; imported for such modules only, as it takes 0.2 s.

nnx has no hook around a layer's call, and flax keeps every class of a layer. So each class of BatchNorm gets one
subclass, which leaves out the rows that pad a batch, and a context variable has the rows.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Bool, Key, PyTree

from fljax.core import trees, users
from fljax.models import modules
from fljax.protocol import AnyArray
from fljax.protocol.roles import hold, record


def nnx_functions(constructor: Callable[..., Any], x: jax.ShapeDtypeStruct, *, frozen: bool) -> modules.Functions:
    """The functions of the module that ``constructor`` makes, called on ``x``; ``frozen``: averages stay."""
    named = _takes_rngs(constructor)

    def construct(rngs: nnx.Rngs) -> Any:
        return constructor(rngs=rngs) if named else constructor(rngs)

    model = nnx.eval_shape(lambda: construct(nnx.Rngs(0)))
    if not isinstance(model, nnx.Module):
        raise users.refused("the function", constructor, "an nnx.Module", model)
    stored = nnx.Any(nnx.Param, nnx.BatchStat)
    _, params, streams, state = nnx.split(model, stored, nnx.RngState, ...)
    kinds = jax.tree.leaves(state, is_leaf=lambda v: isinstance(v, nnx.Variable))
    modules.refuse_state({type(v).__name__ for v in kinds}, type(model).__name__)
    paths = set(_nnx_leaves(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))))
    mode = modules.flags(model)
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
        return nnx.to_pure_dict(nnx.state(construct(nnx.Rngs(key)), stored))

    def logits(params: PyTree, x: AnyArray, key: Any) -> Any:
        key, real = modules.split_mode(key)
        if not paths:
            return merged(params, key)(x, **mode(key is not None))
        if key is None:
            return _adapted(merged(params, key), _Use.EVALUATED)(x, **mode(False))
        old = {path: leaf for path, leaf in _nnx_leaves(params).items() if path in paths}
        fixed = hold(old)
        model = merged(
            jax.tree_util.tree_map_with_path(lambda path, leaf: fixed.get(trees.path_of(path), leaf), params), key
        )
        if frozen:
            return _adapted(model, _Use.FROZEN)(x, **mode(True))
        with _real_rows(jnp.ones(x.shape[0], bool) if real is None else real):
            out = _adapted(model, _Use.TRAINED)(x, **mode(True))
        return record(out, old, _nnx_leaves(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))))

    def features(params: PyTree, x: AnyArray) -> Any:
        return _adapted(merged(params, None), _Use.EVALUATED).features(x)

    def fresh() -> Any:
        return merged(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params), jax.random.key(0))

    def trains(model: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return [leaf for leaf in jax.tree.leaves(model(modules.zeros(x), **mode(True))) if hasattr(leaf, "dtype")]

    check_nnx(model, trains, fresh)
    return modules.Functions(init, logits, features if modules.has_features(model) else None, frozenset(paths))


def _takes_rngs(constructor: Callable[..., Any]) -> bool:
    """Whether it takes ``rngs`` by name. Of a class, ``__init__`` is asked: flax's metaclass hides its parameters."""
    whole = functools.partial(constructor)  # also of a partial
    function, given = (whole.func.__init__, (None,)) if inspect.isclass(whole.func) else (whole.func, ())
    with contextlib.suppress(TypeError, ValueError):  # ValueError: a function of C
        return bool(inspect.signature(function).bind(*given, *whole.args, **{**whole.keywords, "rngs": None}))
    return False


def check_nnx(module: nnx.Module, call: Callable[[Any], Any], training: Callable[[], nnx.Module]) -> None:
    """Raises a ValueError if a dropout layer has no effect on ``call`` of a model that ``training`` makes."""
    paths = [path for path, node in nnx.iter_graph(module) if modules.rate(node) > 0 and hasattr(node, "deterministic")]

    def traced(active: Any) -> str:
        def run() -> Any:
            model = training()
            for path, node in nnx.iter_graph(model):
                if path in paths and path != active:
                    setattr(node, modules.rate_name(node), 0.0)
            return call(model)

        # Printed programs contain addresses of functions, which differ from trace to trace.
        return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(run)()))

    nothing = traced(None) if paths else ""
    for path in paths:
        # With dropout in this layer alone, the program must differ from the program without dropout.
        if traced(path) == nothing:
            modules.refuse(type(module).__name__, ".".join(map(str, path)))


class _Use(enum.Enum):
    """How BatchNorm treats its running averages."""

    EVALUATED, FROZEN, TRAINED = range(3)


# The real rows of the batch that is being traced. nnx has no hook around a layer's call, and a layer holds no tracers.
_REAL: contextvars.ContextVar[Bool[Array, " b"]] = contextvars.ContextVar("real")


@contextlib.contextmanager
def _real_rows(real: Bool[Array, " b"]) -> Iterator[None]:
    """Sets the real rows. The functions of a task name this one, since a variable of a context cannot be pickled."""
    before = _REAL.set(real)
    try:
        yield
    finally:
        _REAL.reset(before)


def _adapted(model: Any, use: _Use) -> Any:
    """The module, each of whose BatchNorms has become a subclass."""
    for _, layer in nnx.iter_graph(model):
        if isinstance(layer, nnx.BatchNorm):
            layer.__class__ = _subclass(type(layer), use)
    return model


@functools.cache
def _subclass(kind: type[nnx.BatchNorm], use: _Use) -> type[nnx.BatchNorm]:
    """BatchNorm that leaves out rows that pad a batch, or uses running averages; it keeps the dtype of ``x``."""
    # flax keeps every class for the life of the process, so each is made once.
    if "mask" not in inspect.signature(kind.__call__).parameters:
        raise ValueError(f"expected a BatchNorm whose __call__ takes a mask of rows, got {kind.__name__}")

    def call(self: Any, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        if use is _Use.FROZEN:
            return kind.__call__(self, x, use_running_average=True).astype(x.dtype)
        if use is _Use.TRAINED:
            mask = modules.row_mask(_REAL.get(), x, mask)
        elif not (self.use_running_average if use_running_average is None else use_running_average):
            raise ValueError(
                "expected nnx.BatchNorm to use its running averages in evaluation, got use_running_average=False"
            )
        return kind.__call__(self, x, use_running_average, mask=mask).astype(x.dtype)

    return type(kind.__name__, (kind,), {"__call__": call})


def _nnx_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path: arrays, or their shapes."""
    return {"/".join(map(str, path)): leaf for path, leaf in flatten_dict(tree).items()}
