"""Checks by abstract evaluation, before training, that a module's dropout is on in training; else it is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import numpy as np

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
