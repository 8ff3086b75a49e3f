"""Tests compile hundreds of tiny programs: here they are compiled quickly rather than well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fljax.engine.loop import standalone_models
from fljax.engine.programs import jit, program
from fljax.testing.bench import quick_options

QUICK = quick_options()


@contextmanager
def quick_programs() -> Iterator[None]:
    """The programs of ``simulate`` and ``standalone``: the same functions under ``QUICK``."""
    places = [(program, name) for name in ("start", "evaluate_runs", "run_rounds", "deployed")]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in [*places, (standalone_models, "_run")]:
            known: Any = getattr(module, name)
            options: Any = {"static_argnames": known._static, "donate_argnames": known._donated}
            patch.setattr(module, name, jit.Program(known.__wrapped__, **options, compiler_options=QUICK))
        yield
