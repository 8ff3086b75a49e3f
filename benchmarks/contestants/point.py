"""One point of ``scaling.py`` in a process of its own: ``python point.py '{"model": "mlp", ...}'``.

Trains blocks of rounds through ``fljax.simulate`` and tells, as one JSON object on standard output, how long they
took and how much memory the process held. A fresh process for every point makes the peak that point's own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

from protocol import take_standard_output, versions

WARMED = 3.0  # a first call this many times too long or short makes another number of rounds
PATIENCE = 6.0  # after so many turns two blocks are enough


def resident_bytes() -> int:
    """Resident memory now; where the system does not tell, the peak until now."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return own_peak_bytes()


def own_peak_bytes() -> int:
    """The largest resident memory that this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def federation(meta: dict[str, Any]) -> Any:
    """Random examples; clients take their rows from them in turn, and share them where there are too few.

    Labels are random too, which changes no speed. Nothing large is made on the way, so that memory before training is
    that of the data.
    """
    import jax
    import numpy as np
    import parts

    generator = np.random.default_rng(0)
    shape = (meta["distinct"], *meta["shape"])
    pixels = lambda: generator.integers(0, 256, shape, np.uint8)  # noqa: E731
    x = pixels() if meta["pixels"] else generator.standard_normal(shape, np.float32)
    y = generator.integers(0, meta["classes"], len(x)).astype(np.int32)
    rows = np.arange(meta["clients"] * meta["samples"], dtype=np.int32)
    rows %= np.int32(len(x))
    return jax.block_until_ready(parts.federation(meta, x, y, rows.reshape(meta["clients"], -1)))


def first_guess(meta: dict[str, Any], seconds: float) -> int:
    """How many rounds may fill a turn: 25 us and 25 GFLOP/s per step, 0.3 us per client for drawing the cohort."""
    step = 25e-6 + meta["flops_per_client_step"] / 25e9
    spent = 1e-4 + meta["client_steps"] * step + meta["clients"] * 3e-7
    return max(1, min(2000, round(seconds / spent)))


class Run:
    """A run that goes on from call to call."""

    def __init__(self, meta: dict[str, Any]) -> None:
        import parts

        import fljax

        self.algorithm = parts.algorithm(meta, parts.task(meta))
        self.federation = federation(meta)
        self.execution = fljax.Execution(clients=meta["execution"])
        if "devices" in fljax.Execution._fields:
            self.execution = self.execution._replace(devices=meta["devices"])
        self.state: Any = None

    def go(self, rounds: int) -> dict[str, Any]:
        """Trains: seconds by purpose (``rest``: none of the others), and everything that the run tells of itself."""
        import fljax

        began = time.perf_counter()
        result = fljax.simulate(
            self.algorithm,
            self.federation,
            rounds=rounds,
            evaluate_every=rounds,
            initial=self.state,
            execution=self.execution,
        )
        whole = time.perf_counter() - began
        if result.diverged:
            raise FloatingPointError(f"diverged: {result.diverged}")
        self.state = result.state
        found = {str(name): value for name, value in result.metrics.attrs.items()}
        for name, value in result.metrics.data_vars.items():
            if value.ndim == 0:
                found[str(name)] = value.item()
        train, evaluate = found["seconds_train"], found["seconds_evaluate"]
        return found | {"seconds_rest": whole - train - evaluate}


def measure(meta: dict[str, Any]) -> dict[str, Any]:
    """Blocks of rounds of about ``meta["seconds"]`` each, after a call that compiles and warms up."""
    import jax

    run = Run(meta)
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(run.federation))
    before = resident_bytes()
    seconds, rounds = meta["seconds"], first_guess(meta, meta["seconds"])
    first = run.go(rounds)
    spent = first["seconds_train"]
    off = spent / seconds if seconds else 1.0  # no seconds: a single round, for its memory
    if (off > WARMED and rounds > 1) or off < 1 / WARMED:
        rounds = max(1, min(5000, round(rounds / max(off, 1e-9))))
        spent = run.go(rounds)["seconds_train"]
    blocks, told = [spent] if spent > PATIENCE * seconds / 2 else [], first
    while len(blocks) < min(2, meta["blocks"]) or (len(blocks) < meta["blocks"] and sum(blocks) < PATIENCE * seconds):
        told = run.go(rounds)
        blocks.append(told["seconds_train"])
    return {
        "rounds_per_block": rounds,
        "client_steps_per_second": [meta["client_steps"] * rounds / block for block in blocks],
        "seconds_evaluate": told["seconds_evaluate"] / 2,  # before and after
        "seconds_set_up": told["seconds_rest"],
        "seconds_first_set_up": first["seconds_rest"],
        "model_parameters": parameters(run),
        "data_bytes": data,
        "resident_before_bytes": before,
        "peak_bytes": own_peak_bytes(),
        "estimate_bytes": told.get("memory_estimate_bytes", told.get("execution_memory")),
        "execution": {
            name.removeprefix("execution_"): value
            for name, value in told.items()
            if name.startswith("execution_") and isinstance(value, int | float | str)
        },
        "backend": jax.default_backend(),
        "versions": versions(("fljax", "jax", "jaxlib")),
    }


def parameters(run: Run) -> int:
    """Of one model."""
    import parts

    return sum(leaf.size for leaf in parts.model_of(run.state).values())


def prepare_devices(count: int) -> None:
    """So many host devices, before JAX starts."""
    import jax

    import fljax

    if hasattr(fljax, "use_cores"):
        fljax.use_cores(count)
    else:
        jax.config.update("jax_num_cpu_devices", count)


def main() -> None:
    """Measures what the command line says."""
    answers = take_standard_output()
    meta = json.loads(sys.argv[1])
    prepare_devices(meta["devices"])
    answers.write(json.dumps(measure(meta)) + "\n")
    answers.close()


if __name__ == "__main__":
    main()
