"""Whether a module's dropout is on in training: found by abstract evaluation, before anything is trained."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

# What modules call the keyword of __call__ that says whether they train, and the opposite.
TRAINING = ("train", "training", "is_training", "is_train", "enable_dropout")
EVALUATING = ("deterministic", "is_deterministic", "eval", "evaluating", "is_eval", "eval_mode", "inference")


def flags(module: Any) -> Callable[[bool], dict[str, Any]]:
    """How a module is told that it trains: the keywords of its ``__call__`` by name, as a function of the mode.

    Raises:
      ValueError: if ``__call__`` needs more than examples and such keywords.
    """
    parameters = list(inspect.signature(type(module).__call__).parameters.values())[2:]
    for each in parameters:
        optional = each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if not optional and each.name not in (*TRAINING, *EVALUATING):
            raise ValueError(
                f"expected {type(module).__name__} to be called with examples and optional arguments, got one that "
                f"also needs {each.name!r}; valid names of a keyword for training are {_names()}"
            )
    names = [each.name for each in parameters]
    on = [name for name in TRAINING if name in names]
    off = [name for name in EVALUATING if name in names]
    return lambda training: dict.fromkeys(on, training) | dict.fromkeys(off, not training)


def refuse(module: str, dropout: str) -> None:
    """Raises the sentence about dropout that stays off in training."""
    raise ValueError(
        f"expected dropout to be on in training, got {dropout} in {module}, which no keyword switches on; valid names "
        f"of a keyword of __call__ are {_names()}"
    )


def _names() -> str:
    return f"{', '.join(TRAINING)} (True in training) and {', '.join(EVALUATING)} (the opposite)"


def check_linen(module: nn.Module, begin: Callable[[], Any], train: Callable[[Any], Any]) -> Any:
    """Raises a ValueError if a layer with dropout is called in training, but told to drop nothing.

    Args:
      module: for its name.
      begin: initialises the module, abstractly.
      train: calls it in training mode with what ``begin`` returns, abstractly.

    Returns:
      What ``begin`` returns.
    """
    begun, layers = _layers(begin)
    _, called = _layers(lambda: train(begun))
    if silent := [name for name, off in (called or layers) if off]:
        refuse(type(module).__name__, silent[0])
    return begun


def _layers(call: Callable[[], Any]) -> tuple[Any, list[tuple[str, bool]]]:
    """What a call returns, and the layers with dropout that it comes by, with whether each is off."""
    found: list[tuple[str, bool]] = []

    def look(run: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer, method = context.module, context.method_name
        if method == "__call__" and _rate(layer) > 0 and hasattr(layer, "deterministic"):
            # The method is bound: what is left of its signature is what it is called with.
            given = inspect.signature(getattr(layer, method)).bind_partial(*args, **kwargs).arguments
            off = given.get("deterministic")
            found.append((type(layer).__name__, bool(layer.deterministic if off is None else off)))
        return run(*args, **kwargs)

    with nn.intercept_methods(look):
        return call(), found


def check_nnx(module: nnx.Module, call: Callable[[Any], Any], training: Callable[[], nnx.Module]) -> None:
    """Raises a ValueError if a layer with dropout changes nothing in training.

    Args:
      module: for the layers that have dropout.
      call: ``model -> logits`` in training mode, traced.
      training: the model in training mode, anew at every call, under a trace.
    """
    paths = [path for path, node in nnx.iter_graph(module) if _rate(node) > 0 and hasattr(node, "deterministic")]

    def traced(kept: Any) -> str:
        def run() -> Any:
            model = training()
            for path, node in nnx.iter_graph(model):
                if path in paths and path != kept:
                    setattr(node, _rate_name(node), 0.0)
            return call(model)

        # Functions inside a program are printed with their addresses, which mean nothing.
        return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(run)()))

    nothing = traced(None) if paths else ""
    for path in paths:
        # The only layer left with dropout must leave a trace in the program.
        if traced(path) == nothing:
            refuse(type(module).__name__, ".".join(map(str, path)))


def _rate_name(layer: Any) -> str:
    return "dropout_rate" if hasattr(layer, "dropout_rate") else "rate"


def _rate(layer: Any) -> float:
    rate = getattr(layer, _rate_name(layer), 0)
    return float(rate) if isinstance(rate, int | float | np.number) else 0
