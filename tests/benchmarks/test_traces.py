"""What ``benchmarks/traces.py`` counts."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.toys.task import logistic_regression

FOLDER = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; the folder is no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import traces  # pyright: ignore[reportMissingImports]

    return traces


def test_equations_of_inner_programs_count(traces: Any) -> None:
    def inner(x: Any) -> Any:
        return jax.lax.cond(x > 0, lambda x: x + 1, lambda x: x * 2, x)  # a comparison, a conversion, cond and two

    alone = traces.equations(jax.make_jaxpr(inner)(1.0))
    assert alone >= 4
    repeated = jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (inner(x), None), x, None, length=3)[0])(1.0)
    assert traces.equations(repeated) == alone + 1
    assert traces.equations(repeated.jaxpr) == alone + 1


def test_kernels_of_a_loop_count_once(traces: Any) -> None:
    loop = traces.program_text.Loop
    inner = loop(None, 3, 0, Counter(), ())
    assert traces.pieces(loop(1, 5, 0, Counter(), (inner, loop(7, 2, 0, Counter(), (inner,))))) == (13, 3)


def test_calls_of_the_model_count_by_their_key(traces: Any) -> None:
    seen: list[bool] = []
    task = traces.counted(logistic_regression(), seen)
    params, x = task.init(jax.random.key(0)), jnp.ones((2, 4))
    jax.make_jaxpr(lambda key: (task.logits(params, x, key), task.logits(params, x)))(jax.random.key(1))
    assert seen == [True, False]


def test_the_tables(traces: Any) -> None:
    programs = [traces.Program("start", 10, 4, 1), traces.Program("run_rounds", 1200, 150, 6)]
    counts = {
        "W3": traces.Counts(2, 3, 40, 1.234, programs),
        "W2": traces.Counts(1, 1, 2, 0.5, [traces.Program("x", 5)]),
    }
    lines = traces.written(counts).splitlines()
    assert "| W3 | 2 | 3 | 40 | 1.23 |" in lines
    assert "| W3 | run_rounds | 1,200 | 150 | 6 |" in lines
    assert "| W3 | **all** | 1,210 | 154 | 7 |" in lines
    assert "| W2 | **all** | 5 | - | - |" in lines


def test_an_unknown_workload_is_refused(traces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["traces.py", "--workloads", "W1b,W0"])
    with pytest.raises(SystemExit, match="expected a known workload, got 'W0'; valid names are W1a, "):
        traces.main()


def test_programs_that_are_only_traced_are_left_out(traces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    command = [sys.executable, str(FOLDER / "traces.py"), "--workloads", "W3", "--no-kernels"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    steps, passes, told = re.search(r"\| W3 \| (\d+) \| (\d+) \| (\d+) \|", done.stdout).groups()  # type: ignore[union-attr]
    assert (int(steps), int(passes) > 0, int(told) > 0) == (2, True, True)
    assert re.search(r"\| W3 \| run_rounds \| [\d,]+ \| - \| - \|", done.stdout)
