"""The laws compile hundreds of tiny programs: here ``simulate`` compiles them quickly rather than well."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

from fljax.engine import program
from tests.laws.cases import QUICK


@pytest.fixture(scope="package", autouse=True)
def quick_programs() -> Iterator[None]:
    """The engine's own functions under other compiler options; tests/engine runs them as they are."""
    static = {"start": ("spec", "lanes"), "evaluate": ("spec", "lanes"), "run_rounds": ("spec", "lanes", "capacity")}
    with pytest.MonkeyPatch.context() as patch:
        for name, arguments in static.items():
            function = getattr(program, name).__wrapped__
            donated = ("state",) if name == "run_rounds" else ()
            jitted = jax.jit(
                function, static_argnames=arguments, donate_argnames=donated, compiler_options=QUICK
            )
            patch.setattr(program, name, jitted)
        yield
