"""fljax through its public interface: ``fljax.simulate`` with an ``Execution``."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

from protocol import Driver, arguments, read, serve

driver = Driver()
options = arguments(clients="auto", devices="auto", unfused=False, host=False, source="")
if options.source:  # the fljax of another checkout
    sys.path.insert(0, options.source)

import fljax  # noqa: E402

if options.devices != "1":
    fljax.use_cores()

import jax  # noqa: E402
import parts  # noqa: E402

from fljax.engine.programs import jit  # noqa: E402

if options.unfused:  # no program of several devices has YNNPACK's kernels
    jit.UNSPLIT = jit.UNSPLIT | jit.UNFUSED

work = read(options.workload)
meta = work.meta
algorithm = parts.algorithm(meta, parts.task(meta))
federation = parts.federation(meta, work.x, work.y, work.rows, work.extra["sizes"])
jax.block_until_ready(federation)


def _execution() -> fljax.Execution:
    clients: Any = int(options.clients) if options.clients.isdigit() else options.clients
    own = fljax.Execution(clients=clients, devices=1 if options.devices == "1" else "all")
    return own._replace(examples="host", client_states="host") if options.host else own


class Run:
    """A run that goes on from call to call."""

    def __init__(self) -> None:
        self.execution = _execution()
        self.state: Any = None

    def go(self, rounds: int) -> float:
        """Trains, and gives the seconds that training took (with evaluation where that is the workload)."""
        evaluated = bool(meta["evaluated"])
        result = fljax.simulate(
            algorithm,
            federation,
            rounds=rounds,
            seeds=[meta["seed"]],
            initial=self.state,
            execution=self.execution,
            evaluate_every=1 if evaluated else rounds,
        )
        if result.diverged:
            raise FloatingPointError(f"diverged: {result.diverged}")
        self.state = result.state
        seconds = float(result.metrics["seconds_train"])
        # One evaluation more than there are rounds: the first comes before training.
        every = float(result.metrics["seconds_evaluate"]) * rounds / (rounds + 1)
        return seconds + every if evaluated else seconds


def draw(question: dict[str, Any]) -> dict[str, Any]:
    """Seconds of drawing all batches of so many rounds, alone, in one program; the best of five."""
    import jax.numpy as jnp

    from fljax import training
    from fljax.protocol import Rows, Subset

    index, size = jnp.zeros(meta["samples"], jnp.int32), jnp.asarray(meta["samples"], jnp.int32)
    subset = Subset(federation.examples, Rows(index, size))

    def rounds(keys: Any) -> Any:
        one = lambda key: training.draw(key, subset, parts.local(meta)).position  # noqa: E731
        # The sum keeps every round's batches alive without writing them all.
        return jax.lax.map(lambda key: jnp.sum(jax.vmap(one)(jax.random.split(key, meta["cohort"]))), keys)

    program = jax.jit(rounds)
    keys = jax.random.split(jax.random.key(0), question["count"])
    jax.block_until_ready(program(keys))
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(program(keys))
        spent.append(time.perf_counter() - began)
    return {"seconds": min(spent)}


@functools.cache
def run() -> Any:
    """The run or the game, which is made when it is first asked for."""
    if not meta["game"]:
        return Run()
    import games

    return games.Game(work)


def _first_round() -> dict[str, Any]:
    own = Run() if meta["game"] else run()
    own.go(1)
    if meta["game"]:  # compiles it
        run().go(1)
    return parts.model_of(own.state)


serve(
    driver,
    ("fljax", "jax", "jaxlib", "flax", "optax"),
    first_round=_first_round,
    rounds=lambda count: run().go(count),
    draw=draw,
)
