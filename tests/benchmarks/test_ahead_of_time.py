"""What the measurement ``ahead_of_time`` reads from compiled programs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerators import program_text

FOLDER = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


def test_kernels_are_counted_loop_by_loop() -> None:
    """A loop of 5 turns with a product, inside a loop whose turns the program computes."""

    def program(x: Any, turns: Any) -> Any:
        inner = lambda _, x: jnp.sin(x @ x)  # noqa: E731
        return jax.lax.fori_loop(0, turns, lambda _, x: jax.lax.fori_loop(0, 5, inner, x) + 1, x)

    text = jax.jit(program).lower(jnp.ones((8, 8)), 3).compile().as_text()
    assert text is not None
    whole = program_text.read(text)
    outer: Any = program_text.heaviest(whole)
    step: Any = program_text.heaviest(outer)
    assert (whole.trips, outer.trips, step.trips) == (1, None, 5)
    assert step.kernels >= 2  # the product and the sine
    kernels, cycles = program_text.total(outer)
    assert kernels == outer.kernels + 5 * step.kernels
    assert cycles == 0  # XLA estimates none for a CPU


def test_estimated_cycles_are_added_up() -> None:
    """XLA's text for a TPU, shortened."""
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
    whole = program_text.read(text)
    assert program_text.total(whole) == (1 + 4 * 2, 5 + 4 * 100)


@pytest.mark.slow
def test_a_lenet_for_a_tpu_is_as_fast_as_plain_convolutions(tmp_path: pathlib.Path) -> None:
    """By XLA's estimate; the environment with its compiler is made by ``--make-environments``."""
    out = tmp_path / "rows.json"
    command = [
        sys.executable,
        "run.py",
        "ahead_of_time",
        "--workloads",
        "W3,W2",
        "--platforms",
        "tpu",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)
    if "expected the environment" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    listed = json.loads(out.read_text())["rows"]
    rows = {row["workload"]: row for row in listed if row["clients side by side"] in (10, 100)}
    # Plain grouped convolutions with 100 clients: 17,000 client-steps per second; before the form for TPUs: 2,074.
    assert rows["W2"]["estimated client-steps/s"] > 0.9 * 17_000
    assert rows["W2"]["kernels per local step"] < 100
    assert rows["W3"]["estimated client-steps/s"] > 1_000_000
