"""Tests compile hundreds of tiny programs: here they are compiled quickly rather than well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from fljax.engine import jit, program, standalone_models


def _quick_options() -> dict[str, Any] | None:
    """Compiler options with which tiny programs compile three times faster; None where XLA does not know them."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.default_backend() == "cpu":
        options["xla_cpu_use_fusion_emitters"] = False
    try:
        jax.jit(lambda x: x + 1, compiler_options=options)(0)
    except Exception:
        return None
    return options


QUICK = _quick_options()


@contextmanager
def quick_programs() -> Iterator[None]:
    """The programs of ``simulate`` and ``standalone``: the same functions under ``QUICK``."""
    static = {
        "start": ("spec", "layout"),
        "evaluate": ("spec", "layout"),
        "run_rounds": ("spec", "layout", "capacity"),
        "deployed": ("spec", "known"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, arguments in static.items():
            function = getattr(program, name).__wrapped__
            donated = ("state",) if name == "run_rounds" else ()
            options: Any = {"static_argnames": arguments, "donate_argnames": donated, "compiler_options": QUICK}
            patch.setattr(program, name, jit.Program(function, **options))
        options = {"static_argnames": ("spec", "layout", "keep_models"), "compiler_options": QUICK}
        run: Any = standalone_models._run
        patch.setattr(standalone_models, "_run", jit.Program(run.__wrapped__, **options))
        yield
