"""What JAX itself can do: a round of FedAvg written by hand, without fljax's engine.

The forward pass is fljax's model (fast dense products and convolutions), so that what differs is everything around it:
drawing, mapping over clients, aggregation, records. Strategies: ``vmap`` (the whole cohort at once) or ``scan`` (one
client after another), on one device or with the cohort spread over all cores as host devices (``jax.shard_map``).
Blocks of rounds are one program; the server's model is donated.
"""

from __future__ import annotations

import os

from protocol import Driver, arguments, read, serve

driver = Driver()
options = arguments(clients="scan", devices="1")

from typing import Any  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import parts  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

from fljax.core.platforms import traced_for  # noqa: E402
from fljax.engine.programs.jit import UNSPLIT  # noqa: E402

work = read(options.workload)
meta = work.meta
if options.devices == "all":  # as many as the cohort can be split over evenly
    cores = len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", max(n for n in range(1, cores + 1) if meta["cohort"] % n == 0))
task = parts.task(meta)
x = jnp.asarray(work.x)
x = jax.block_until_ready(jax.jit(lambda pixels: pixels / jnp.float32(255))(x)) if x.dtype == jnp.uint8 else x
y = jnp.asarray(work.y)


def nested(named: dict[str, Any]) -> dict[str, Any]:
    """``{"dense_0/kernel": ...}`` as the model holds it, ``{"dense_0": {"kernel": ...}}``."""
    found: dict[str, Any] = {}
    for name, leaf in named.items():
        layer, _, kind = name.rpartition("/")
        found.setdefault(layer, {})[kind] = leaf
    return found


def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
    """Mean cross-entropy."""
    logits = task.logits(nested(p), x)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


def client(server: dict[str, Any], batches: Any, x: Any, y: Any) -> dict[str, Any]:
    """Local training: the client's parameters."""

    def step(p: dict[str, Any], batch: Any) -> tuple[dict[str, Any], None]:
        slope = jax.grad(loss)(p, x[batch], y[batch])
        return jax.tree.map(lambda leaf, g: leaf - meta["learning_rate"] * g, p, slope), None

    return jax.lax.scan(step, server, batches)[0]


def total(server: dict[str, Any], batches: Any, x: Any, y: Any) -> dict[str, Any]:
    """The sum of the parameters of some clients."""
    if options.clients == "vmap":
        trained = jax.vmap(client, (None, 0, None, None))(server, batches, x, y)
        return jax.tree.map(lambda leaf: leaf.sum(0), trained)
    add = lambda sum, own: (jax.tree.map(jnp.add, sum, client(server, own, x, y)), None)  # noqa: E731
    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, server), batches)[0]


def rounds(server: dict[str, Any], count: Any, batches: Any, x: Any, y: Any) -> dict[str, Any]:
    """So many rounds of FedAvg; the batches are split over devices, so that ``psum`` gives the mean."""

    def one(index: Any, server: dict[str, Any]) -> dict[str, Any]:
        if options.devices != "all":
            found = total(server, batches, x, y)
        else:  # each device starts from its own copy
            own = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "clients", to="varying"), server)
            found = jax.lax.psum(total(own, batches, x, y), "clients")
        return jax.tree.map(lambda leaf: leaf / meta["cohort"], found)

    with traced_for("cpu"):  # who writes for one machine has one form of a model
        return jax.lax.fori_loop(0, count, one, server)


class Run:
    """The server's model and the program."""

    def __init__(self) -> None:
        program: Any = rounds
        compiling: dict[str, Any] = {}
        self.batches = jnp.asarray(work.batches())
        self.server = {name: jnp.asarray(leaf) for name, leaf in work.parameters.items()}
        self.data = (x, y)
        if options.devices == "all":
            mesh = jax.make_mesh((jax.device_count(),), ("clients",))
            none, split = PartitionSpec(), PartitionSpec("clients")
            program = jax.shard_map(rounds, mesh=mesh, in_specs=(none, none, split, none, none), out_specs=none)
            put = lambda tree, spec: jax.device_put(tree, jax.sharding.NamedSharding(mesh, spec))  # noqa: E731
            compiling = UNSPLIT  # without it long programs on several devices go wrong, see fljax.engine.programs.jit
            self.batches, self.server, self.data = (
                put(self.batches, split),
                put(self.server, none),
                put(self.data, none),
            )
        self.program = jax.jit(program, donate_argnums=0, compiler_options=compiling)

    def go(self, count: int) -> None:
        """Trains."""
        self.server = jax.block_until_ready(self.program(self.server, jnp.int32(count), self.batches, *self.data))


run: Run | None = None


def _rounds(count: int) -> None:
    global run
    run = Run() if run is None else run
    run.go(count)


def _first_round() -> dict[str, np.ndarray]:
    _rounds(1)
    assert run is not None
    return {name: np.asarray(leaf) for name, leaf in run.server.items()}


serve(driver, ("jax", "jaxlib"), first_round=_first_round, rounds=_rounds)
