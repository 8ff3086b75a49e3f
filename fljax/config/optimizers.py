"""Names and options of optax's optimizers in a config, checked when its names are resolved."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fljax.config.builders import OFFERS, checked_options
from fljax.config.errors import ConfigError
from fljax.config.keys import Local
from fljax.core.names import unknown


def check_server_optimizer(path: str, chosen: Any) -> None:
    """Raises a ConfigError unless ``chosen`` is the name of an optax optimizer, or a table with a name and options."""
    options = dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{path}: expected the name of an optimizer, or a table with one, got {chosen!r}")
    checked_optimizer(path, path, name, options)


def optimizer_options(local: Local) -> dict[str, Any]:
    return checked_optimizer("local.optimizer", "local.options", local.optimizer, local.options)


def checked_optimizer(path: str, options_path: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an optax optimizer with a learning rate, checked against the signature of its function."""
    builders = _optimizers()
    if name not in builders:
        raise ConfigError(f"{path}: {unknown('optimizer', name, builders)}")
    return checked_options(options_path, builders[name], options, OFFERS["optimizer"])


@functools.cache  # optax has hundreds of functions
def _optimizers() -> Mapping[str, Callable[..., Any]]:
    """Those functions of optax that take a learning rate, by name."""
    import optax

    public = {name: getattr(optax, name) for name in dir(optax) if not name.startswith("_")}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    return {name: call for name, call in functions.items() if "learning_rate" in inspect.signature(call).parameters}
