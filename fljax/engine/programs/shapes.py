"""Shapes and bytes of a run, by abstract evaluation, and how many clients train side by side on which devices.

``measure`` finds the shapes and the bytes of a local step, ``resolve`` decides by them, and the ``Layout`` says it;
algorithms do not depend on it. Nothing is computed or compiled. ``precision`` holds while a run's programs are traced;
``fljax.rollout`` and ``fljax.evaluate_clients`` have that of the code around them. In debug mode shapes and rehearsals
are left out, since a user's ``print`` would meet tracers. Checks before a run: labels fit the classes of the task, and
processes run the same programs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.core import gpu_rules, processes, trees, users
from fljax.core.platforms import ANY
from fljax.core.trees import numbers_of
from fljax.core.values import is_whole
from fljax.data.arrays import check_wide
from fljax.engine.checkpoints import checksum
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import is_all_true, step_bytes, steps_differ
from fljax.engine.devices.layout import Layout, Precision, Where, default_platform, state_shardings
from fljax.engine.programs import jit
from fljax.engine.programs.program import GlobalModel, Inputs, Spec, global_model_of, is_stacked, task_given
from fljax.engine.rounds.round import TrainedCohort, able_clients, choose, close, train_one
from fljax.engine.rounds.states import State, as_vectors, held_data, initial_state, with_shared, without_shared
from fljax.protocol import Algorithm, Available, ClientData, Cohort, Federation, Seat, Task, seen_from
from fljax.protocol.data import RowLists
from fljax.protocol.sums import add_up, as_streamed
from fljax.results.records import Wire
from fljax.training import AT_ONCE

Strategy = Literal["auto", "vmap", "scan"] | int
Clients = Literal["auto", "trial", "vmap", "scan", "debug"] | int
Devices = Literal["all"] | int
Place = Literal["auto"] | Where

# Bytes that the operations of a chunk's local step read and write, before XLA fuses any.
#
# CPU: timings on 2 cores (benchmarks/results/archive/2026-11-28-side-by-side.md). The fastest chunks of ten models
# moved 3.5 to 35 MB with logistic regression and MLPs, and 30 to 136 MB with CNNs. With this limit rounds took at most
# 1.07 times as long as with the fastest numbers.
#
# TPU: the rates are XLA's estimates for a v5e (benchmarks/results/archive/2026-11-23-ahead-of-time.md), in
# client-steps per second. What one step holds should fit the on-chip memory of 128 MiB: an MLP of 52,000 parameters
# (3.3 MB) made 1.15 million with 125 clients, 1.32 million with 250 and 0.54 million with 1,000; a LeNet (25 MB) made
# 45,000 with 10, 42,000 with 20, 33,000 with 50 and 28,000 with 100.
#
# GPUs have a table of their own (``fljax.core.gpu_rules``), which a benchmark writes. Without measurements it follows
# this thought: a step should move enough bytes that starting its kernels (20 to 50, some microseconds each) takes a
# tenth of its time.
CPU_CHUNK = 2**24
# On a CPU three copies of the model (parameters, gradient, update) should fit this where a local step is not known, and
# where cohorts may have empty rows: small chunks without a client are skipped. Runs are batched if they fit, too.
CACHE = 2**18
TPU_CHUNK = 2**29
# The memory of an accelerator that reports none.
ACCELERATOR = 8 * 2**30
# On a GPU a chunk may read and write so many times the memory. What a step holds is written and read at least once. Of
# what they read and write, an MLP held a sixth, a LeNet a thirteenth and a ResNet18 a twenty-eighth on an H200.
GPU_MEMORIES = 2
# Bytes of prepared examples evaluated at a time. LeNet on 50 clients x 2,000 images took 2.0 s with 5 clients at a
# time and 3.2 s with 25.
EVALUATION = {"cpu": 4 * 2**20, "accelerator": 1024 * 2**20}
# Parts of an accelerator's memory that examples, and examples with the states of clients, may take.
FOR_EXAMPLES, FOR_BOTH = 1 / 2, 3 / 4
# From this many runs per device on, devices take whole runs: they then wait for each other once per block, not in every
# round, and an uneven division of runs wastes little.
APART = 4
# Relative cost of k clients side by side, per client: 1 + ALONE / k. On a CPU it is ALONE_BYTES / lane for clients
# whose local step reads and writes more: with 0.2, 0.35, 0.6, 1.6 and 3.5 MB it was 0.8, 0.5, 0.3, 0.1 and 0.1.
ALONE = {"cpu": 1.0, "accelerator": 100.0}
ALONE_BYTES = 200_000
# Numbers of turns that are tried, from the fewest.
TURNS = 8


class Execution(NamedTuple):
    """How many clients, and how many runs, are computed side by side. Results do not depend on it, up to rounding.

    Attributes:
      clients: "vmap" (all of a device's clients at once), "scan" (one after another), a number k (k at a time),
        "auto" (a fixed rule of shapes, backend, memory and sizes: see ``resolve``), "trial" (``auto`` and its
        neighbours are compiled and timed, and the fastest is used) or "debug": nothing is compiled, and clients run one
        after another in Python loops on one device, which holds all data. ``print``, a debugger and exceptions in one's
        own functions then meet numbers; it is much slower. ``jax_disable_jit`` does the same.
      seeds: "auto", "vmap", "scan" or a number, for the runs of one call: all seeds, in a sweep of all cells.
      evaluation: likewise for clients while they are polled or evaluated.
      devices: "all" or a number: the devices that share the clients, or share whole runs (seeds, cells of a sweep) if
        there are four or more runs per device. A CPU is one device unless ``fljax.use_cores`` made its cores devices
        before JAX started. Of several processes (``fljax.distributed``), each gives so many of its own.
      precision: of matrix products and convolutions of float32 arrays, where a model or an algorithm states none. A TPU
        computes them in bfloat16 (8 bits of precision) by default, recent NVIDIA GPUs in TensorFloat-32 (11 bits), a
        CPU in float32 (24 bits). "default" leaves this as it is, or as ``jax.default_matmul_precision`` sets it. "high"
        takes three passes of bfloat16 on a TPU, "highest" is float32 everywhere. The aggregators state the highest.
        ``benchmarks/accelerators/precision.py`` measures the effect on INCFL.
      examples: "device": all examples are on each device. "host": they stay in the host's memory or in a mapped file,
        and the rows of the clients that train are moved block by block, while the devices compute the last block.
        "auto": "host" for a memory-mapped file, and where examples take more than half of an accelerator's memory. With
        ``jax_debug_nans`` all data are on the devices.
      client_states: likewise for the states that clients keep between rounds, such as personal models: "host" keeps
        them in the host's memory, and only those of the cohort are moved. "auto": "host" where examples and states on
        the devices take more than three quarters of an accelerator's memory.
    """

    clients: Clients = "auto"
    seeds: Strategy = "auto"
    evaluation: Strategy = "auto"
    devices: Devices = "all"
    precision: Precision = "default"
    examples: Place = "auto"
    client_states: Place = "auto"


class Sizes(NamedTuple):
    """The inputs of ``auto``: counts, and sizes in bytes."""

    rows: int  # rows of the cohort
    population: int  # clients that are evaluated
    seeds: int  # runs: seeds, times cells in a sweep
    model: int  # bytes of one client's Down or of its model, whichever is larger
    evaluated: int  # bytes of the prepared examples in one client's evaluation
    lane: int = 0  # bytes that one client's local step reads and writes, before fusion; 0: unknown
    samples: tuple[int, ...] | None = None  # of all clients, largest first, if steps depend on them; else None
    examples: int = 0  # bytes of all examples
    mapped: bool = False  # whether they are a memory-mapped file
    client_states: int = 0  # bytes of the states of all clients of all runs
    keyed: bool = False  # whether clients keep random keys, which only devices hold
    full: bool = False  # whether every row of a cohort has a client in every round, as far as is known


def resolve(execution: Execution, sizes: Sizes, platform: str | None = None) -> Layout:
    """Replaces names by numbers, by a fixed rule of shapes, platform, memory and devices: runs are repeatable."""
    # "auto" for clients: as many as read and write a number of bytes in a local step, or three copies of their models
    # where that is more: on a CPU ``CPU_CHUNK`` (``CACHE`` where the step is not known or rows may be empty); on a TPU
    # ``TPU_CHUNK``; on a GPU ``chunk_bytes`` of the rules. If steps differ between clients, a chunk takes those of its
    # longest client; then, and on a CPU, the number is lowered to waste the least. Runs are batched only if all their
    # clients fit. With four or more runs per device, devices take whole runs; else each trains a part of every cohort.
    _check_places(execution)
    if execution.precision not in get_args(Precision):
        names = ", ".join(get_args(Precision))
        raise ValueError(f"expected a known execution.precision, got {execution.precision!r}; valid names are {names}")
    platform = default_platform() if platform is None else platform
    if execution.clients == "debug":
        return Layout(1, 1, 1, 1, False, platform, execution.precision)
    kind = "cpu" if platform == "cpu" else "accelerator"
    examples, states = _places(execution, sizes, platform)
    on_host = "host" in (examples, states)
    devices = _devices(execution.devices, sizes, not on_host)
    apart = devices > 1 and sizes.seeds >= APART * devices and not on_host
    rows = sizes.rows if apart else -(-sizes.rows // devices)
    needed = max(1, 3 * sizes.model)
    alone = ALONE[kind]
    many = CACHE // needed if kind == "cpu" else _chunk(platform) // max(sizes.lane, needed)
    together = many // rows  # runs whose clients all fit
    if kind == "cpu" and sizes.lane and sizes.full:
        many, alone = CPU_CHUNK // max(sizes.lane, needed), min(alone, ALONE_BYTES / sizes.lane)
    lanes = _even(rows, many)
    if sizes.samples is not None or (kind == "cpu" and sizes.full):
        alike = (1,) if sizes.samples is None else sizes.samples
        lanes = _least_waste(alike, sizes.rows, 1 if apart else devices, max(1, min(rows, many)), alone)
    clients = "auto" if execution.clients == "trial" else execution.clients
    clients_per_device = sizes.population if apart else -(-sizes.population // devices)
    runs = -(-sizes.seeds // devices) if apart else sizes.seeds
    return Layout(
        _lanes("clients", clients, rows, lanes, "auto, trial, vmap, scan, debug"),
        1 if on_host else _lanes("seeds", execution.seeds, runs, _even(runs, together)),
        _lanes(
            "evaluation",
            execution.evaluation,
            clients_per_device,
            _even(clients_per_device, EVALUATION[kind] // max(1, sizes.evaluated)),
        ),
        devices,
        apart,
        platform,
        execution.precision,
        examples,
        states,
    )


def _check_places(execution: Execution) -> None:
    for name in ("examples", "client_states"):
        asked = getattr(execution, name)
        if asked not in ("auto", *get_args(Where)):
            raise ValueError(f"expected execution.{name} to be auto, device or host, got {asked!r}")


def _places(execution: Execution, sizes: Sizes, platform: str) -> tuple[Where, Where]:
    """Where examples and the states of clients are."""
    if sizes.keyed and execution.client_states == "host":
        raise ValueError(
            "expected execution.client_states to be auto or device, since clients of this algorithm keep random keys, "
            "which only devices hold, got 'host'"
        )
    if eager.nans_raise():  # fljax.engine.loop.diagnosis looks at programs with all data
        return "device", "device"
    memory = None if platform == "cpu" else _memory()
    examples: Where = "device"
    if execution.examples != "auto":
        examples = execution.examples
    elif sizes.mapped or (memory is not None and sizes.examples > FOR_EXAMPLES * memory):
        examples = "host"
    if execution.client_states != "auto":
        return examples, execution.client_states
    there = sizes.examples if examples == "device" else 0
    fits = memory is None or there + sizes.client_states <= FOR_BOTH * memory
    return examples, "device" if fits or sizes.keyed or not sizes.client_states else "host"


def _memory() -> int | None:
    """Bytes of memory of the smallest of this process's devices; None if one does not tell."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    return min((limit for limit in limits if limit is not None), default=None)


def resolve_together(execution: Execution, sizes: Sizes) -> Layout:
    """``resolve`` in process 0, for all processes, whose devices may have other amounts of memory."""
    return processes.agreed(lambda: resolve(execution, sizes))


def neighbours(layout: Layout, sizes: Sizes) -> list[Layout]:
    """The candidates of a trial: the number of ``auto``, a quarter and four times of it, one, and all."""
    rows = sizes.rows if layout.runs_apart else -(-sizes.rows // layout.devices)
    tried = {1, layout.clients, layout.clients // 4, layout.clients * 4, rows}
    return [layout._replace(clients=k) for k in sorted(tried) if 1 <= k <= rows]


def all_devices() -> int:
    """The number of this process's devices that ``"all"`` stands for."""
    return jax.local_device_count()


def _devices(asked: Devices, sizes: Sizes, takes_runs: bool) -> int:
    """The number of devices; where they cannot take whole runs, at most one for each row of the cohort."""
    there = jax.local_device_count()
    number = all_devices() if asked == "all" else asked
    if not is_whole(number) or number < 1:
        raise ValueError(f'expected execution.devices to be "all" or a positive number, got {asked!r}')
    if number > there:
        raise ValueError(
            f"expected execution.devices to be at most the {there} that JAX sees, got {number}; "
            "fljax.use_cores() makes the cores of a CPU devices"
        )
    several = jax.process_count()
    if takes_runs and sizes.seeds >= APART * several * number:
        return several * number
    return several * min(number, max(-(-sizes.rows // several), 1))


def _chunk(platform: str) -> int:
    """The limit in bytes on what one chunk of clients reads and writes, on an accelerator."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", ACCELERATOR) for device in jax.local_devices()]
    if platform == "tpu":
        return min(TPU_CHUNK, *limits)
    return min(gpu_rules.read().chunk_bytes, *(GPU_MEMORIES * limit for limit in limits))


def _least_waste(samples: Sequence[int], rows: int, devices: int, most: int, alone: float) -> int:
    """The number of lanes, up to ``most``, with the least cost for a typical cohort of ``rows`` clients."""
    # A chunk costs as its longest client in every lane, also in empty ones; the device with the most work counts.
    among = np.linspace(0, len(samples) - 1, rows).round().astype(int)  # quantiles of all clients
    ordered = np.maximum(np.asarray(samples, float), 1)[among]

    def cost(lanes: int) -> float:
        longest = ordered[::lanes]
        work = max(longest.sum() / devices, longest[0], longest[-1] * -(-len(longest) // devices))
        return float(work) * (lanes + alone)

    share = -(-rows // devices)
    turns = range(-(-share // most), -(-share // most) + TURNS)
    tried = {1, 2, 3, 4, 5, 6, 8, *(-(-share // each) for each in turns), *(2**power for power in range(4, 20))}
    return min((lanes for lanes in sorted(tried) if lanes <= most), key=cost)


def _lanes(name: str, strategy: Clients, count: int, automatic: int, names: str = "auto, vmap, scan") -> int:
    message = f"expected execution.{name} to be {names} or a positive number, got {strategy!r}"
    if isinstance(strategy, str):
        named = {"auto": min(automatic, count), "vmap": count, "scan": 1}
        if strategy not in named:
            raise ValueError(message)
        return max(1, named[strategy])
    if not is_whole(strategy) or strategy < 1:
        raise ValueError(message)
    return max(1, min(strategy, count))


def _even(count: int, lanes: int) -> int:
    """The largest divisor of ``count`` up to ``lanes``, to avoid padding; ``lanes`` if that is below half of it."""
    lanes = max(1, min(lanes, count))
    divisor = next(k for k in range(lanes, 0, -1) if count % k == 0)
    return divisor if 2 * divisor >= lanes else lanes


@contextmanager
def debug_mode(execution: Execution) -> Generator[Execution, None, None]:
    """While it is entered, runs are op by op if the execution or ``jax_disable_jit`` asks; ``clients`` are "debug"."""
    if execution.clients != "debug" and not eager.is_on():
        yield execution
        return
    with eager.entered():
        yield execution._replace(clients="debug")


class Shapes(NamedTuple):
    """Shapes and sizes of a run, from abstract evaluation (``measure``)."""

    algorithm: Algorithm  # with tracers inside: only its static fields may be read
    sizes: Sizes
    state: Any  # of one run, as shapes; None where nothing is evaluated
    model: int  # bytes of one initial model of the task
    wire: Wire
    global_model: GlobalModel | None = None

    @property
    def alone(self) -> bool:
        """Whether clients train alone: they receive nothing. Without ``jax.jit`` known once one has trained."""
        return self.algorithm.common is None and self.wire.down == 0


def first_run(spec: Spec, inputs: Inputs) -> tuple[list[Any], Any, Federation]:
    """Shapes of one run's inputs: traced leaves, its row of ``by_seed``, and its federation."""
    data, take = inputs.federation, lambda tree: jax.eval_shape(lambda tree: trees.take(tree, 0), tree)
    if is_stacked(data):
        data = with_shared(take(without_shared(data)), data)
    traced = [take(leaf) if place in spec.varied else leaf for place, leaf in enumerate(inputs.traced)]
    return traced, take(inputs.by_seed), data


def first_algorithm(spec: Spec, inputs: Inputs) -> Algorithm:
    """The algorithm of the first run, with numbers in place of tracers."""
    traced = [leaf[0] if place in spec.varied else leaf for place, leaf in enumerate(inputs.traced)]
    return spec.algorithm(list(map(jnp.asarray, traced)), trees.take(inputs.by_seed, 0))


# Programs that are traced and never compiled. A rehearsal, a compilation ahead and the run itself share their traces.
_TRACED = jit.Store(jit.PROGRAMS, collects=False)


class _Begun(NamedTuple):
    """What is there before round 0."""

    algorithm: Algorithm  # static; with tracers inside
    state: State  # of one run
    cohort: Cohort  # of round 0
    down: PyTree  # what the first client would get
    model: PyTree
    global_model: GlobalModel | None  # static


@jit.program(static_argnames=("spec", "layout"), store=_TRACED)
def _begin(spec: Spec, layout: Layout, traced: list[Any], by_seed: Any, data: Federation) -> _Begun:
    data, algorithm, zero = as_vectors(data), spec.algorithm(traced, by_seed), jnp.zeros((), jnp.int32)
    state = initial_state(algorithm, data, zero)
    available, seat = Available(data.clients.id.shape[0]), Seat(zero, zero, zero)
    _, cohort, _ = algorithm.select(jax.random.key(0), zero, state.server, state.ballots, available)
    down = algorithm.down(state.server, seat)
    model, unseen = algorithm.task.init(jax.random.key(0)), data.unseen is not None
    shared = global_model_of(task_given(spec, traced), algorithm, state.server, model, unseen)
    return _Begun(algorithm, state, cohort, down, model, shared)


@jit.program(static_argnames=("spec", "layout"), store=_TRACED)
def _train(
    spec: Spec,
    layout: Layout,
    traced: list[Any],
    by_seed: Any,
    data: Federation,
    server: PyTree,
    client: ClientData,
    client_state: PyTree,
) -> tuple[PyTree, PyTree]:
    """The message of one client, and what it contributes to the round: a Part and a record."""
    algorithm, zero = spec.algorithm(traced, by_seed), jnp.zeros((), jnp.int32)
    up, _ = train_one(algorithm, as_vectors(data), zero, zero, server, client, zero, client_state)
    seat = Seat(zero, client.id, zero)
    return up, as_streamed(algorithm.aggregate).contribute(seen_from(server, seat), seat, up)


@jit.program(static_argnames=("spec", "layout"), store=_TRACED)
def _close(
    spec: Spec, layout: Layout, traced: list[Any], by_seed: Any, data: Federation, state: State, contribution: PyTree
) -> State:
    """The state after round 0 if every client of the cohort contributed the same."""
    data, algorithm, zero = as_vectors(data), spec.algorithm(traced, by_seed), jnp.zeros((), jnp.int32)
    size = data.clients.train.size
    chosen = choose(algorithm, size, state, zero, state.ballots, able_clients(size, None, spec.everybody))
    count = chosen.row.shape[0]
    parts, rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), contribution)
    total = add_up(parts, chosen.cohort.present)
    trained = TrainedCohort(total, rows, (), (), jnp.zeros((), bool))
    examples = held_data(data, layout)
    return close(algorithm, examples, state, zero, state.ballots, chosen, trained, spec.non_finite)[0]


def _of_one_run(spec: Spec, inputs: Inputs, platform: str) -> tuple[Spec, Layout, list[Any], Any, Federation]:
    """The arguments of these programs. What says how a run goes on is left out of ``spec``."""
    # The rules for accelerators were measured with the bytes of code that has the forms of all platforms.
    layout = Layout(1, 1, 1, platform=platform if platform == "cpu" else ANY)
    return spec._replace(varied=(), non_finite="freeze", extra=(), global_model=None), layout, *first_run(spec, inputs)


def _traced_client(arguments: tuple[Any, ...], state: State) -> Any:
    """The traced program of one client's training."""

    def row(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)

    return _train.trace(*arguments, state.server, row(arguments[-1].clients), row(state.clients))


def trace_round(spec: Spec, inputs: Inputs) -> None:
    """Traces a plan's first round, so that errors of its functions are raised; ``measure`` then traces nothing."""
    arguments = _of_one_run(spec, inputs, default_platform())
    state = _begin.trace(*arguments).out_info.state
    _close.trace(*arguments, state, _traced_client(arguments, state).out_info[1])


def measure(spec: Spec, inputs: Inputs, runs: int, platform: str | None = None) -> Shapes:
    """Shapes and bytes of one of ``runs`` runs, by abstract evaluation; without ``jax.jit`` only counts are known."""
    if eager.is_on():
        # Only counts: nothing else can be known before the run without calling the algorithm's functions.
        sizes = Sizes(1, inputs.federation.clients.id.shape[-1], runs, 0, 0)
        return Shapes(first_algorithm(spec, inputs), sizes, None, 0, eager.SentSoFar.begun())
    platform = default_platform() if platform is None else platform
    arguments = _of_one_run(spec, inputs, platform)
    traced = _begin.trace(*arguments)
    begun: _Begun = traced.out_info
    trained = _traced_client(arguments, begun.state)
    up, program = trained.out_info[0], trained.jaxpr.jaxpr
    federation, state, down = inputs.federation, begun.state, begun.down
    population = federation.clients.id.shape[-1]
    sizes = Sizes(
        rows=begun.cohort.id.shape[0],
        population=population,
        seeds=runs,
        # A client trains a whole model, even if Down is smaller.
        model=max(trees.bytes_of(down), trees.bytes_of(begun.model)),
        evaluated=evaluated_bytes(federation, federation.clients.test.index.shape[-1]),
        lane=step_bytes(program, platform),
        full=spec.everybody and is_all_true(traced.jaxpr.jaxpr, _place_of_present(begun)),
        samples=samples(federation) if steps_differ(program) else None,
        examples=trees.bytes_of(federation.examples),
        mapped=federation.examples.is_mapped,
        client_states=runs * trees.bytes_of(state.clients),
        keyed=any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state.clients)),
    )
    polling = begun.algorithm.poll
    shown = down if polling is not None and polling.shown else ()
    received, before, sent, told = map(trees.bytes_of, (down, shown, up, state.ballots))
    wire = Wire(received, before, sent, told // population)
    return Shapes(begun.algorithm, sizes, state, trees.bytes_of(begun.model), wire, begun.global_model)


def _place_of_present(begun: _Begun) -> int:
    """Which of the results of ``_begin`` says who is present."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(begun)]
    return [jax.tree_util.keystr(path) for path in paths].index(".cohort.present")


def state_bytes(state: Any, layout: Layout) -> tuple[int, int]:
    """Bytes of one run's state on each device, between rounds: the server, and clients with their last ballots."""
    if state is None:
        return 0, 0
    if layout.devices > 1:

        def share(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype)

        state = jax.tree.map(share, state, state_shardings(state, layout, 1))
    return trees.bytes_of(state.server), trees.bytes_of((state.clients, state.ballots))


def evaluated_bytes(federation: Federation, rows: int) -> int:
    """Bytes of ``rows`` prepared examples, at most the number that is evaluated at once."""
    return int(np.prod(federation.examples.x.shape[1:])) * 4 * min(rows, AT_ONCE)


def samples(federation: Federation) -> tuple[int, ...]:
    """Training samples of the seen clients, largest first; of the first seed in a stacked federation."""
    size = np.asarray(federation.clients.train.size).reshape(-1, federation.clients.id.shape[-1])[0]
    return tuple(sorted(size.tolist(), reverse=True))


def check_labels(task: Task, federation: Federation) -> None:
    """Raises a ValueError unless the task has a class for every label of a client or of the server."""
    y = federation.examples.y
    check_wide("labels", y)
    if task.classes is None:
        return
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"expected whole-number labels [n] for a task of {task.classes} classes, got {y.dtype} of shape "
            f"{list(y.shape)}; other labels need a task with a loss of its own and classes = None"
        )
    labels = np.asarray(y)
    wrong = (labels < 0) | (labels >= task.classes)
    if not wrong.any():
        return
    offenders = [
        (f"{kind}client {_ids(clients)[place]}", labels[row])
        for kind, clients in (("", federation.clients), ("unseen ", federation.unseen))
        if clients is not None
        for rows in clients.parts.values()
        for place, row in _owned(rows, federation.lists, wrong)
    ]
    offenders += [
        (f"the server's rows {name!r}", labels[row])
        for name, rows in federation.held.items()
        for _, row in _owned(rows, None, wrong)
    ]
    if offenders:
        whose, label = offenders[0]
        raise ValueError(
            f"expected labels in 0..{task.classes - 1}, since the model has {task.classes} classes, got label {label} "
            f"of {whose}"
        )


def task_of(spec: Spec, inputs: Inputs) -> Task:
    """The task of a plan's algorithm. Its functions may hold tracers; read only static fields such as ``classes``."""
    tasks: list[Task] = []

    def build(traced: list[Any], by_seed: Any) -> None:
        tasks.append(built("the builder", spec.build, spec.algorithm(traced, by_seed)).task)

    if eager.is_on():
        return built("the builder", spec.build, first_algorithm(spec, inputs)).task
    jax.eval_shape(build, *first_run(spec, inputs)[:2])
    return tasks[0]


def built(kind: str, build: Any, found: Any) -> Any:
    """What a user's builder or scenario returned; a ValueError that names it if this is no algorithm."""
    if not hasattr(found, "task"):
        raise users.refused(kind, build, "an Algorithm", found)
    return found


def _ids(clients: Any) -> np.ndarray:
    return np.asarray(clients.id).reshape(-1)


def _owned(rows: Any, lists: Any, wrong: np.ndarray) -> list[tuple[int, int]]:
    """(Position of the owner, row) of the first wrong row of some clients; empty if there is none."""
    for place, own in enumerate(RowLists.of(rows, lists).by_client()):
        if wrong[own].any():
            return [(place, int(own[wrong[own]][0]))]
    return []


# Addresses of functions, and numbers of devices.
_OF_PROCESS = re.compile(r"0x[0-9a-f]+|\bid=\d+")


def check_programs(trace: Callable[[], Iterable[Any]]) -> None:
    """Raises a ValueError in every process unless ``trace`` gives the same traced programs in all."""
    # So a model with another dropout, initialisation or dtype is noticed, and a function of the user's that differs.
    if processes.are_several() and not eager.is_on():
        processes.check_same(lambda: {"model or algorithm": checksum_of_programs(trace())})


def checksum_of_programs(traced: Iterable[Any]) -> int:
    """A checksum of the texts of traced programs and of the arrays in them, without addresses of functions."""
    total = 0
    for program in traced:
        arrays = [numbers_of(value) for value in program.jaxpr.consts if isinstance(value, np.ndarray | Array)]
        text = f"{_OF_PROCESS.sub('', str(program.jaxpr))} {checksum(arrays)}"
        total = zlib.crc32(text.encode(), total)
    return total
