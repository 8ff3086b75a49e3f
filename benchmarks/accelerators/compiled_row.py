"""Compiles one row of ``ahead_of_time.py`` in this process; prints what the compiler says as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROW = json.loads(sys.argv[1])
# The compilers are to be loaded without a device, a metadata server, or a lock on one.
os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
if ROW["platform"] == "cuda":
    import nvidia  # type: ignore[import-not-found]

    _NVCC = Path(next(iter(nvidia.__path__))) / "cuda_nvcc"
    os.environ["PATH"] = f"{_NVCC / 'bin'}{os.pathsep}{os.environ['PATH']}"
    os.environ["XLA_FLAGS"] = f"--xla_gpu_cuda_data_dir={_NVCC} --xla_gpu_autotune_level=0"

from benchmarks.accelerators import program_text  # noqa: E402
from benchmarks.peers.workloads import CLASSES, WORKLOADS, meta_of  # noqa: E402

sys.path.insert(0, ROW["source"])  # whose fljax is compiled

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402

from benchmarks.peers.contestants import parts  # noqa: E402
from fljax import models  # noqa: E402
from fljax.core import trees  # noqa: E402
from fljax.engine.devices.layout import Layout  # noqa: E402
from fljax.engine.programs import program  # noqa: E402
from fljax.engine.programs.shapes import (  # noqa: E402
    Execution,
    measure,
    resolve,
)

# XLA's description of an H100 SXM, in place of the device.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 patch: 0 }
runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
CAPACITY = 10  # rounds in a block


class OwnModule(nn.Module):
    """LeNet as a user would write it, with ``fljax.models.convolution``."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        for width in (6, 16):
            layer = nn.Conv(width, (5, 5), padding="VALID", conv_general_dilated=models.convolution)
            x = nn.max_pool(nn.relu(layer(x)), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(CLASSES)(x)


def device() -> Any:
    """The device that is compiled for."""
    if ROW["platform"] == "tpu":
        return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    named: Any = {"target_config": H100, "topology": "1x1x1"}
    return topologies.get_topology_desc(platform="cuda", topology_name="x", **named).devices[0]


def rounds() -> dict[str, Any]:
    """Traces, lowers and compiles the program of rounds."""
    # Code before 2026-11-23 asked for the process's platform while tracing.
    jax.default_backend = lambda: {"tpu": "tpu", "cuda": "gpu"}[ROW["platform"]]
    own = ROW["workload"] == "own"
    work = WORKLOADS["W2" if own else ROW["workload"]]
    work = work if ROW["cohort"] is None else work._replace(cohort=ROW["cohort"])
    meta = meta_of(work)
    x = np.zeros((work.distinct, *work.shape), np.uint8 if work.pixels else np.float32)
    rows = np.arange(work.clients * work.samples, dtype=np.int32).reshape(work.clients, -1) % work.distinct
    task = parts.task(meta)
    if own:
        example = jax.ShapeDtypeStruct((1, *work.shape), jnp.float32)
        task = models.task_from_module(OwnModule(), example, classes=CLASSES)
    algorithm = parts.algorithm(meta, task)
    spec, inputs = program.partition_plan(algorithm, parts.federation(meta, x, np.zeros(work.distinct, np.int32), rows))
    clients, platform = ROW["clients"], {"tpu": "tpu", "cuda": "gpu"}[ROW["platform"]]
    if clients is None:
        clients = resolve(Execution(devices=1), measure(spec, inputs, 1, platform).sizes, platform).clients
    layout = Layout(clients, 1, clients, platform=platform)
    state = program.start.trace(spec, layout, inputs, jnp.zeros(1, jnp.uint32)).out_info
    sharding = SingleDeviceSharding(device())

    def place(tree: Any) -> Any:
        shape = lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding)  # noqa: E731
        return jax.tree.map(shape, tree)

    zero = place(jnp.int32(0))
    traced = program.run_rounds.trace(spec, layout, CAPACITY, place(inputs), place(state), zero, zero)
    lowered = traced.lower()
    began = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    found = read(compiled.as_text(), work, layout)
    memory = compiled.memory_analysis()
    found |= {"layout": clients, "seconds": seconds, "temporary": memory.temp_size_in_bytes, "jax": jax.__version__}
    return found | {"parameters": trees.size(jax.eval_shape(task.init, jax.random.key(0)))}


def read(text: str, work: Any, layout: Layout) -> dict[str, Any]:
    """Kernels of a local step, and cycles of a round.

    The program is a loop over rounds; inside, where not all clients are side by side, a loop over chunks; inside, a
    loop over local steps. The numbers of turns of these three are computed by the program.
    """
    whole = program_text.read(text)
    chunks = -(-work.cohort // layout.clients)
    nest = [program_text.heaviest(whole)]
    for _ in range(1 + (chunks > 1)):
        nest.append(program_text.heaviest(nest[-1]) if nest[-1] else None)
    step = nest[-1]
    if step is None or nest[0] is None:
        raise ValueError(f"expected a loop over local steps, got {len([each for each in nest if each])} loops")
    turns = [chunks, work.steps_per_client] if chunks > 1 else [work.steps_per_client]
    cycles = 0
    for loop, inner, count in reversed(list(zip(nest[:-1], nest[1:], turns, strict=True))):
        assert loop is not None
        assert inner is not None
        once = cycles if inner is not step else program_text.total(inner)[1]
        others = sum((each.trips or 1) * program_text.total(each)[1] for each in loop.inner if each is not inner)
        cycles = loop.cycles + others + count * once
    return {"kernels": program_text.total(step)[0], "cycles": cycles, "client_steps": work.client_steps}


if __name__ == "__main__":
    print(json.dumps(rounds()))
