"""Part 5: the same rounds in torch: ``torch.func.vmap`` over the clients, eager and compiled, and a plain loop.

Products have TF32 factors, as JAX's default has on the same device.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from typing import Any

from serving import PACKAGES, Job, Row, Server, reason

server = Server()
try:
    import torch
except ImportError as error:
    for job in server.jobs:
        server.tell(key=job["key"], row={"failed": reason(error), "again": True})
    raise SystemExit(0) from None

import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_parts  # noqa: E402
from protocol import Work, read  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402

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


class Setting:
    """A workload on the device: examples, batches ``[S, T, b]``, initial parameters."""

    def __init__(self, work: Work) -> None:
        self.rate = work.meta["learning_rate"]
        self.x = torch_parts.examples(work).to(DEVICE)
        self.y = torch.from_numpy(work.y.astype(np.int64)).to(DEVICE)
        self.batches = torch.from_numpy(work.batches().astype(np.int64)).to(DEVICE)
        self.module = torch_parts.module(work).to(DEVICE)
        self.names = torch_parts.ordered(self.module, work.parameters)
        initial = torch_parts.to_torch(work.parameters)
        self.server = [initial[name].to(DEVICE) for name in self.names]


def mapped(setting: Setting, compiled: bool) -> Any:
    """A round of all clients side by side: ``server -> server``."""
    own = [name for name, _ in setting.module.named_parameters()]

    def loss(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        return F.cross_entropy(functional_call(setting.module, parameters, (x,)), y)

    def step(parameters: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        slope = vmap(grad(loss))(parameters, x, y)
        return {name: leaf - setting.rate * slope[name] for name, leaf in parameters.items()}

    step = torch.compile(step, fullgraph=True) if compiled else step
    batches = setting.batches.transpose(0, 1).contiguous()
    clients = batches.shape[1]

    def round_of(server: list[Any]) -> list[Any]:
        with torch.no_grad():
            models = {n: leaf.expand(clients, *leaf.shape).contiguous() for n, leaf in zip(own, server, strict=True)}
            for batch in batches:
                models = step(models, setting.x[batch], setting.y[batch])
            return [models[name].mean(0) for name in own]

    return round_of


def looped(setting: Setting) -> Any:
    """A round of one client after another: ``server -> server``."""
    own = list(setting.module.parameters())
    optimizer = torch.optim.SGD(own, setting.rate)

    def round_of(server: list[Any]) -> list[Any]:
        total = [torch.zeros_like(leaf) for leaf in server]
        for client in setting.batches:
            with torch.no_grad():
                torch._foreach_copy_(own, server)
            for batch in client:
                loss = F.cross_entropy(setting.module(setting.x[batch]), setting.y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, own)
        return [leaf / len(setting.batches) for leaf in total]

    return round_of


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
    setting = Setting(packed)
    who = options["who"]
    round_of = looped(setting) if who == "torch loop" else mapped(setting, who.endswith("compiled"))
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
