"""What a run does if the memory of its devices does not suffice: it goes on with fewer clients side by side."""

from __future__ import annotations

import jax

from fljax.engine.devices.layout import Layout


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of JAX says that memory did not suffice, of a device or for compiling."""
    words = str(error)
    return isinstance(error, jax.errors.JaxRuntimeError | MemoryError) and (
        isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in words or "out of memory" in words.lower()
    )


def smaller(layout: Layout) -> Layout | None:
    """The layout with half as many clients and runs side by side; None if there is one of each already."""
    halved = layout._replace(
        clients=max(1, layout.clients // 2),
        seeds=max(1, layout.seeds // 2),
        evaluation=max(1, layout.evaluation // 2),
    )
    return None if halved == layout else halved


def sentence(layout: Layout, done: int) -> str:
    """What a run says before it goes on with ``layout`` after ``done`` rounds."""
    return (
        f"memory did not suffice; the run goes on after round {done} with fewer side by side: clients in training "
        f"{layout.clients}, clients in evaluation {layout.evaluation}, runs {layout.seeds}"
    )
