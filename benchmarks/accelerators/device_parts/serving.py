"""How a process of ``accelerator.py`` answers: lines of JSON on standard output, one before and one after each cell."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import reporting
from benchmarks.accelerators.cells import workload
from benchmarks.peers.workloads import Workload, meta_of

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "flax",
    "optax",
    "xarray",
    "orbax-checkpoint",
    "numpy",
    "torch",
)
# Errors after which a process can compute nothing more on its device.
LOST = ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "illegal memory access", "unspecified launch failure")
Job = dict[str, Any]  # a cell: its "key" and its "options"
Row = dict[str, Any]


class Server:
    """The process's end of the line. It ends at once when the parent does, whose pipe is then closed.

    Attributes:
      small: whether sizes are small: asked for, or no accelerator is there.
      floors: what part 1 measured, by the names of its cells.
      platform: the device's, as an earlier process found it; None if none did.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to standard error
        question = json.loads(sys.stdin.readline())
        self.jobs: list[Job] = question["cells"]
        self.folder: str = question["folder"]
        self.small: bool = question["small"]
        self.floors: dict[str, Row] = question["floors"]
        self.platform: str | None = question["platform"]
        threading.Thread(target=self._end_with_parent, daemon=True).start()

    def _end_with_parent(self) -> None:
        while sys.stdin.readline():
            pass
        os._exit(1)

    def tell(self, **fields: Any) -> None:
        """Sends one line."""
        self._answers.write(json.dumps(fields) + "\n")
        self._answers.flush()

    def use_jax(self) -> None:
        """Starts JAX, and tells the device. Without an accelerator sizes are small."""
        import jax

        device = jax.devices()[0]
        self.small = self.small or device.platform == "cpu"
        name = device.device_kind if device.platform != "cpu" else reporting.hardware()["cpu"]
        self.tell(device=name, platform=device.platform, versions=reporting.versions(PACKAGES), small=self.small)

    def share_of_floor(self, work: Workload, parameters: int, rate: float, precision: str = "default") -> Row:
        """The share of a local step's floor at so many client-steps per second; nothing without part 1."""
        product = f"product, {precision}"
        if self.small or not {"copy", product} <= self.floors.keys():
            return {}
        floor = work.floor(parameters, self.floors[product]["flops"], self.floors["copy"]["bandwidth"])
        return {"share_of_floor": rate * max(floor)}

    def place_of(self, name: str) -> Path:
        """The file of a workload that all contestants read."""
        return Path(self.folder) / "data" / f"{name.replace(' ', '-').replace(',', '')}.npz"

    def has(self, name: str) -> bool:
        """Whether the file of a workload is there; one of another size does not count."""
        import numpy as np

        file, meta = self.place_of(name), meta_of(workload(name, self.small))
        if not file.exists():
            return False
        with np.load(file) as kept:
            return json.loads(str(kept["meta"])) == json.loads(json.dumps(meta))

    def serve(self, measure: Callable[[Job], Row]) -> None:
        """Measures one cell after another."""
        for job in self.jobs:
            self.tell(began=job["key"])
            self._answer(job, lambda job=job: measure(job))

    def serve_together(self, measure: Callable[[Job], Row]) -> None:
        """Measures several cells at a time, where nothing is timed."""
        self.tell(began=self.jobs[0]["key"])
        with ThreadPoolExecutor(max(1, min(6, os.cpu_count() or 1))) as pool:
            jobs = {pool.submit(measure, job): job for job in self.jobs}
            for done in as_completed(jobs):
                self._answer(jobs[done], done.result)

    def serve_compiled(self, prepare: Callable[[Job], Any], measure: Callable[[Job, Any], Row], together: int) -> None:
        """Like ``serve``, for cells whose programs are compiled beforehand, ``together`` at a time if there are cores.

        Nothing is timed while programs are compiled, since compilers try kernels on the device.
        """
        workers = max(1, min(together, (os.cpu_count() or 2) // 2))
        with ThreadPoolExecutor(workers) as pool:
            for start in range(0, len(self.jobs), workers):
                jobs = self.jobs[start : start + workers]
                began: list[Future[Any]] = [pool.submit(prepare, job) for job in jobs]
                for job, each in zip(jobs, began, strict=True):
                    self.tell(began=job["key"])
                    each.exception()  # waits
                for job, done in zip(jobs, began, strict=True):
                    self.tell(began=job["key"])
                    self._answer(job, lambda job=job, done=done: measure(job, done.result()))

    def _answer(self, job: Job, measure: Callable[[], Row]) -> None:
        begun = time.perf_counter()
        try:
            row = measure()
        except Exception as error:  # whatever it is, it is a row with its reason
            row = {"failed": reason(error)}
            if any(word in str(error) for word in LOST):
                self.tell(key=job["key"], row=row)
                os._exit(3)  # another process goes on
        self.tell(key=job["key"], row=row | {"seconds_in_all": round(time.perf_counter() - begun, 2)})


def reason(error: BaseException) -> str:
    """An error in one short line, without addresses and paths of this machine."""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    full = "RESOURCE_EXHAUSTED" in lines[0] or "OutOfMemory" in lines[0]
    text = "out of memory" if full else lines[0].removeprefix("MemoryError: ")
    return reporting.plain(text)


def timed(call: Callable[[], Any], finish: Callable[[Any], Any], seconds: float, least: int = 3) -> Iterator[float]:
    """Seconds of one call, again and again, each block of calls about as long as a fifth of ``seconds``.

    Calls of a block follow each other without waiting, as rounds do; ``finish`` waits for the last one. Where one call
    takes long, it alone is timed.
    """
    finish(call())  # warm
    began = time.perf_counter()
    finish(call())
    once = max(time.perf_counter() - began, 1e-7)
    if once > seconds / 2:
        yield once
        return
    count = max(1, min(10_000, round(seconds / 5 / once)))
    blocks, end = 0, time.perf_counter() + seconds
    while blocks < least or time.perf_counter() < end:
        began = time.perf_counter()
        found = None
        for _ in range(count):
            found = call()
        finish(found)
        blocks += 1
        yield (time.perf_counter() - began) / count
