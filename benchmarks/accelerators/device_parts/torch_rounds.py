"""Part 5: the same rounds in torch: ``torch.func.vmap`` over the clients, eager and compiled, and a plain loop.

Products have TF32 factors, as JAX's default has on the same device.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time

from serving import PACKAGES, Job, Row, Server, reason

server = Server()
try:
    import torch
except ImportError as error:
    for job in server.jobs:
        server.tell(key=job["key"], row={"failed": reason(error), "again": True})
    raise SystemExit(0) from None

import torch_parts  # noqa: E402
from protocol import read  # noqa: E402

from benchmarks import reporting  # noqa: E402
from benchmarks.accelerators.cells import COUNTS, workload  # noqa: E402
from benchmarks.peers.measuring import error_of  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
server.tell(versions=reporting.versions(PACKAGES))


def wait() -> None:
    """Until the device has computed."""
    if CUDA:
        torch.cuda.synchronize()


def measure(job: Job) -> Row:
    """One contestant on one workload."""
    if server.platform == "gpu" and not CUDA:
        return {"failed": "torch sees no CUDA device", "again": True}
    options = job["options"]
    name = options["workload"]
    file, work = server.place_of(name), workload(name, server.small)
    if not server.has(name):
        return {"failed": "its data are not there yet", "again": True}
    packed = read(str(file))
    setting = torch_parts.Setting(packed, DEVICE)
    who = options["who"]
    round_of = setting.looped if who == "torch loop" else setting.mapped(who.endswith("compiled"))
    first = round_of(setting.server)
    wait()
    named = {each: leaf.detach().cpu() for each, leaf in zip(setting.names, first, strict=True)}
    error = error_of(file, torch_parts.from_torch(named, packed.parameters))
    began, done, state = time.perf_counter(), 0, first
    most = 2 if server.small else COUNTS[name]
    while done < most and (done == 0 or time.perf_counter() - began < 2):
        state = round_of(state)
        wait()
        done += 1
    seconds = (time.perf_counter() - began) / done
    tolerance = max(work.tolerance, 0.05) if CUDA else work.tolerance
    row = {"rate": work.client_steps / seconds, "seconds": seconds, "error": error, "tolerance": tolerance}
    if CUDA:
        row["peak"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    return row


server.serve(measure)
