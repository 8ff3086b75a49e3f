"""One point of ``memory.py`` in a process of its own: ``python held.py '{"model": "cnn_a", ..., "phase": "run"}'``.

Phase "run" trains through ``fljax.simulate`` twice and tells how much memory the process held: over its whole life, and
in the second run alone, which compiles nothing. Phase "floor" traces and compiles the same programs for arrays that do
not exist, so that what it holds is Python, JAX, the compiler and the programs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from point import federation, own_peak_bytes, prepare_devices, resident_bytes
from protocol import take_standard_output, versions

ROUNDS = 2


def forget_peak() -> bool:
    """Starts the count of the largest resident memory anew; False where the system cannot (other than Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def peak_since() -> int:
    """The largest resident memory since ``forget_peak``."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def run(meta: dict[str, Any]) -> dict[str, Any]:
    """The estimate, and what two runs held."""
    import jax
    import parts

    import fljax

    algorithm, data = parts.algorithm(meta, parts.task(meta)), federation(meta)
    told: list[Any] = []

    def train() -> float:
        began = time.perf_counter()
        found = fljax.simulate(
            algorithm,
            data,
            rounds=ROUNDS,
            evaluate_every=ROUNDS,
            seeds=range(meta["seeds"]),
            execution=fljax.Execution(devices=1),
            on_memory=told.append,
        )
        jax.block_until_ready(found.state)
        return time.perf_counter() - began

    first = train()
    whole = own_peak_bytes()
    gc.collect()
    before = resident_bytes()
    found: dict[str, Any] = {"peak_bytes": whole, "seconds": first}
    if forget_peak():
        found |= {"seconds_again": train(), "growth_bytes": peak_since() - before}
    return found | {"estimate": told[0]._asdict(), "versions": versions(("fljax", "jax", "jaxlib"))}


def floor(meta: dict[str, Any]) -> dict[str, Any]:
    """What the same process holds without the arrays: at its end, and at most while it compiled."""
    import jax
    import jax.numpy as jnp
    import parts

    from fljax.engine import Execution
    from fljax.engine.loop.compilation import compile_all
    from fljax.engine.programs import program
    from fljax.engine.programs.execution import resolve
    from fljax.engine.programs.shapes import measure

    spec, inputs = program.partition_plan(parts.algorithm(meta, parts.task(meta)), federation(meta))
    layout = resolve(Execution(devices=1), measure(spec, inputs, meta["seeds"]).sizes)
    shape = lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))  # noqa: E731
    inputs = jax.tree.map(shape, inputs)
    gc.collect()
    forget_peak()
    compile_all(spec, layout, ROUNDS, inputs, jnp.zeros(meta["seeds"], jnp.uint32))
    gc.collect()
    return {"floor_bytes": resident_bytes(), "compiler_peak_bytes": own_peak_bytes()}


def main() -> None:
    """Measures what the command line says."""
    answers = take_standard_output()
    meta = json.loads(sys.argv[1])
    prepare_devices(1)
    answers.write(json.dumps({"run": run, "floor": floor}[meta["phase"]](meta)) + "\n")
    answers.close()


if __name__ == "__main__":
    main()
