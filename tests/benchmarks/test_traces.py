"""What the measurement ``traces`` counts."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import run
from benchmarks.engine import traces
from tests.toys.task import logistic_regression

FOLDER = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


def test_equations_of_inner_programs_count() -> None:
    def inner(x: Any) -> Any:
        return jax.lax.cond(x > 0, lambda x: x + 1, lambda x: x * 2, x)  # a comparison, a conversion, cond and two

    alone = traces.equations(jax.make_jaxpr(inner)(1.0))
    assert alone >= 4
    repeated = jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (inner(x), None), x, None, length=3)[0])(1.0)
    assert (traces.equations(repeated), traces.equations(repeated.jaxpr)) == (alone + 1, alone + 1)


def test_kernels_of_a_loop_count_once() -> None:
    """A loop of 5 turns with a product, inside a loop whose turns the program computes."""

    def program(x: Any, turns: Any) -> Any:
        inner = lambda _, x: jnp.sin(x @ x)  # noqa: E731
        return jax.lax.fori_loop(0, turns, lambda _, x: jax.lax.fori_loop(0, 5, inner, x) + 1, x)

    text = jax.jit(program).lower(jnp.ones((8, 8)), 3).compile().as_text()
    assert text is not None
    kernels, loops = traces.pieces(text)
    assert loops == 2
    assert 2 <= kernels < 20  # at least the product and the sine


def test_kernels_of_a_text() -> None:
    """XLA's text for a TPU, shortened: the fusion and the copy of the loop, and the sum after it."""
    text = """HloModule jit_f

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %x = f32[8] get-tuple-element(%p), index=1
  %y = f32[8] fusion(%x), kind=kLoop, calls=%f, metadata={op_name="dot"}, backend_config={"estimated_cycles":"70"}
  %z = f32[8] copy(%y), backend_config={"estimated_cycles":"30"}
  ROOT %t = (s32[], f32[8]) tuple(%i, %z)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]) while(%t0), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %r = f32[8] add(%g, %g), backend_config={"estimated_cycles":"5"}
}
"""
    assert traces.pieces(text) == (3, 1)


def test_calls_of_the_model_count_by_their_key() -> None:
    seen: list[bool] = []
    task = traces.counted(logistic_regression(), seen)
    params, x = task.init(jax.random.key(0)), jnp.ones((2, 4))
    jax.make_jaxpr(lambda key: (task.logits(params, x, key), task.logits(params, x)))(jax.random.key(1))
    assert seen == [True, False]


def test_the_rows() -> None:
    programs = [traces.Program("start", 10, 4, 1), traces.Program("run_rounds", 1200, 150, 6)]
    rows = list(traces.rows_of("after", "W3", traces.Counts(2, 3, 40, 1.234, programs)))
    assert rows[1] == ("after", "W3", "run_rounds", 1200, 150, 6)
    assert rows[2] == ("after", "W3", "**all**", 1210, 154, 7, 2, 3, 40, "1.23")
    *_, whole = traces.rows_of("after", "W2", traces.Counts(1, 1, 2, 0.5, [traces.Program("x", 5)]))
    assert whole[3:6] == (5, None, None)


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(SystemExit, match="expected a known workload, got 'W0'; valid names are W1a, "):
        run.main(["traces", "--workloads", "W1b,W0"])


def test_programs_that_are_only_traced_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from fljax.engine.programs import jit

    seen: list[tuple[str, Any]] = []
    monkeypatch.setattr(jit.Program, "trace", lambda self, *arguments: "traced")
    traces.note_programs(seen)
    for store in (jit.STORE, jit.Store(2)):
        program: Any = SimpleNamespace(_store=store, __name__="_run")
        assert jit.Program.trace(program) == "traced"
    assert seen == [("run", "traced")]


@pytest.mark.thorough
def test_a_local_step_is_traced_twice() -> None:
    """Once for the shapes of a run, and once in its program of rounds."""
    command = [sys.executable, str(FOLDER / "run.py"), "traces", "--workloads", "W3", "--no-kernels", "--small"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    *_, whole = [line.split(" | ") for line in done.stdout.splitlines() if "**all**" in line]
    steps, passes, told = whole[6:9]
    assert (int(steps), int(passes) > 0, int(told) > 0) == (2, True, True)
    assert re.search(r"\| W3 \| run_rounds \| [\d,]+ \| - \| -$", done.stdout, re.M)
