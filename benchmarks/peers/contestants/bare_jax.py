"""What JAX itself can do: a round of FedAvg written by hand, without fljax's engine.

The forward pass is fljax's model (fast dense products and convolutions), so that what differs is everything around it:
drawing, mapping over clients, aggregation, records. Strategies: ``vmap`` (the whole cohort at once) or ``scan`` (one
client after another), on one device or with the cohort spread over all cores as host devices (``jax.shard_map``).
Blocks of rounds are one program; the server's model is donated.

All rounds have the batches of round 0. With ``--draws`` each client draws new ones in every round, with a key of its
own: the same as fljax draws. Clients may have different numbers of whole batches.
"""

from __future__ import annotations

import os

from protocol import Driver, arguments, read, serve_run

driver = Driver()
options = arguments(clients="scan", devices="1", draws=False)

from typing import Any, NamedTuple  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import parts  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

from fljax import training  # noqa: E402
from fljax.core.platforms import traced_for  # noqa: E402
from fljax.engine.programs.jit import UNSPLIT  # noqa: E402
from fljax.engine.rounds.states import Purpose, client_key, round_key  # noqa: E402
from fljax.protocol import Rows, Subset  # noqa: E402
from fljax.training.batches import Stream, stream  # noqa: E402

work = read(options.workload)
meta = work.meta
if options.devices == "all":  # as many as the cohort can be split over evenly
    cores = len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", max(n for n in range(1, cores + 1) if meta["cohort"] % n == 0))
task = parts.task(meta)
x = jnp.asarray(work.x)
x = jax.block_until_ready(jax.jit(lambda pixels: pixels / jnp.float32(255))(x)) if x.dtype == jnp.uint8 else x
y = jnp.asarray(work.y)
sizes = work.extra["sizes"][work.cohort]
is_ragged = len(set(sizes.tolist())) > 1
weight = float(sizes.sum()) if is_ragged else meta["cohort"]  # of all clients


class Member(NamedTuple):
    """A client of the cohort, or all of them with a leading axis."""

    id: Any
    size: Any  # training rows
    rows: Any  # their numbers
    batches: Any  # of round 0 ``[T, b]``; None where they are drawn


def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
    """Mean cross-entropy."""
    logits = task.logits(parts.nested(p), x)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


def batches_of(member: Member, round: Any) -> Any:
    """The rows of all batches ``[T, b]``."""
    if not options.draws:
        return member.batches
    key = client_key(round_key(meta["seed"], Purpose.TRAIN, round), member.id, 0)
    subset: Any = Subset(None, Rows(member.rows, member.size))  # type: ignore[arg-type]  # only the size is read
    drawn = training.draw(stream(key, Stream.BATCHES), subset, parts.local(meta))
    return member.rows[drawn.position]


def client(server: dict[str, Any], round: Any, member: Member, x: Any, y: Any) -> dict[str, Any]:
    """Local training: the client's parameters, times its training rows if clients have different numbers."""
    batches = batches_of(member, round)

    def step(p: dict[str, Any], batch: Any) -> dict[str, Any]:
        slope = jax.grad(loss)(p, x[batch], y[batch])
        return jax.tree.map(lambda leaf, g: leaf - meta["learning_rate"] * g, p, slope)

    if not is_ragged:
        return jax.lax.scan(lambda p, batch: (step(p, batch), None), server, batches)[0]
    steps = meta["epochs"] * (member.size // meta["batch"]) if meta["steps"] is None else meta["steps"]
    trained = jax.lax.fori_loop(0, steps, lambda t, p: step(p, batches[t]), server)
    return jax.tree.map(lambda leaf: leaf * member.size, trained)


def total(server: dict[str, Any], round: Any, members: Member, x: Any, y: Any) -> dict[str, Any]:
    """The sum over some clients."""
    if options.clients == "vmap":
        trained = jax.vmap(client, (None, None, 0, None, None))(server, round, members, x, y)
        return jax.tree.map(lambda leaf: leaf.sum(0), trained)
    add = lambda sum, own: (jax.tree.map(jnp.add, sum, client(server, round, own, x, y)), None)  # noqa: E731
    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, server), members)[0]


def rounds(server: dict[str, Any], first: Any, count: Any, members: Member, x: Any, y: Any) -> dict[str, Any]:
    """So many rounds of FedAvg; the clients are split over devices, so that ``psum`` gives the mean."""

    def one(index: Any, server: dict[str, Any]) -> dict[str, Any]:
        if options.devices != "all":
            found = total(server, first + index, members, x, y)
        else:  # each device starts from its own copy
            own = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "clients", to="varying"), server)
            found = jax.lax.psum(total(own, first + index, members, x, y), "clients")
        return jax.tree.map(lambda leaf: leaf / weight, found)

    with traced_for("cpu"):  # who writes for one machine has one form of a model
        return jax.lax.fori_loop(0, count, one, server)


class Run:
    """The server's model and the program."""

    def __init__(self) -> None:
        program: Any = rounds
        compiling: dict[str, Any] = {}
        batches = None if options.draws else work.batches()
        self.members = jax.tree.map(jnp.asarray, Member(work.cohort, sizes, work.rows[work.cohort], batches))
        self.done = 0
        self.server = {name: jnp.asarray(leaf) for name, leaf in work.parameters.items()}
        self.data = (x, y)
        if options.devices == "all":
            mesh = jax.make_mesh((jax.device_count(),), ("clients",))
            none, split = PartitionSpec(), PartitionSpec("clients")
            program = jax.shard_map(rounds, mesh=mesh, in_specs=(none, none, none, split, none, none), out_specs=none)
            put = lambda tree, spec: jax.device_put(tree, jax.sharding.NamedSharding(mesh, spec))  # noqa: E731
            compiling = UNSPLIT  # without it long programs on several devices go wrong, see fljax.engine.programs.jit
            self.members, self.server, self.data = (
                put(self.members, split),
                put(self.server, none),
                put(self.data, none),
            )
        self.program = jax.jit(program, donate_argnums=0, compiler_options=compiling)

    def go(self, count: int) -> None:
        """Trains."""
        numbers = jnp.int32(self.done), jnp.int32(count)
        self.server = jax.block_until_ready(self.program(self.server, *numbers, self.members, *self.data))
        self.done += count

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model."""
        return {name: np.asarray(leaf) for name, leaf in self.server.items()}


serve_run(driver, ("jax", "jaxlib"), Run)
