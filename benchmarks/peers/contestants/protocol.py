"""How a contestant talks to the driver: JSON lines on standard input and output; needs NumPy alone.

The driver starts a contestant with ``--workload FILE.npz`` (made by ``export.py``) and then asks, one line each:

* ``{"op": "first_round", "out": FILE}``: train round 0 from the initial parameters and save the parameters after it to
  FILE under the names of the initial ones; answers ``{"seconds": ...}``, compilation included;
* ``{"op": "rounds", "count": k}``: train k more rounds; answers ``{"seconds": ...}``;
* ``{"op": "memory"}``: answers ``{"peak_bytes": ...}`` of the process and its children;
* any further operation that a contestant adds.

Whatever libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, NamedTuple, Protocol

import numpy as np


class Work(NamedTuple):
    """What is to be trained: the same for every contestant.

    Attributes:
      meta: the numbers of the workload, see ``workloads.py`` and ``export.py``.
      x: ``[n, ...]`` examples, uint8 pixels or float32; contestants read uint8 as ``x / 255``.
      y: ``[n]`` labels.
      rows: ``[N, n_k]`` training rows by client id.
      cohort: ``[S]`` ids of the clients that train in round 0.
      position: ``[S, T, b]`` positions in each client's own rows: the batches of round 0 as fljax draws them.
      parameters: initial parameters by name: Dense kernels ``[in, out]``, convolution kernels ``[height, width, in,
        out]`` (HWIO), flattening in the order height, width, channels.
      extra: further arrays of single workloads.
    """

    meta: dict[str, Any]
    x: np.ndarray
    y: np.ndarray
    rows: np.ndarray
    cohort: np.ndarray
    position: np.ndarray
    parameters: dict[str, np.ndarray]
    extra: dict[str, np.ndarray]

    def floats(self) -> np.ndarray:
        """All examples as float32, pixels in [0, 1]."""
        if self.x.dtype == np.uint8:
            return np.divide(self.x, np.float32(255), dtype=np.float32)
        return self.x.astype(np.float32, copy=False)

    def pooled(self, convolutions: int) -> list[bool]:
        """Whether a max-pool follows each of the convolutions: the last of every block, or each of them."""
        blocks = self.meta["options"].get("blocks", [[0]] * convolutions)
        return [place == len(block) - 1 for block in blocks for place in range(len(block))]

    def batches(self) -> np.ndarray:
        """``[S, T, b]`` rows of ``x``: the batches of round 0."""
        own = self.rows[self.cohort]
        return np.take_along_axis(own[:, None, :], self.position, axis=2)


def read(path: str) -> Work:
    """Reads what ``export.py`` wrote."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    named = {name: arrays.pop(name) for name in ("x", "y", "rows", "cohort", "position")}
    meta = json.loads(str(arrays.pop("meta")))
    parameters = {n.removeprefix("parameter:"): a for n, a in arrays.items() if n.startswith("parameter:")}
    extra = {n: a for n, a in arrays.items() if not n.startswith(("parameter:", "after:"))}
    return Work(meta, parameters=parameters, extra=extra, **named)


def arguments(**options: Any) -> argparse.Namespace:
    """Reads the command line: ``--workload`` and ``options``, name to default value."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    for name, default in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, default=default, type=type(default))
    return parser.parse_args()


def take_standard_output() -> Any:
    """A private handle on standard output; everything that others print there goes to standard error from now on."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class Driver:
    """The driver's end of the line."""

    def __init__(self) -> None:
        self.answers = take_standard_output()

    def tell(self, **fields: Any) -> None:
        """Sends one answer."""
        self.answers.write(json.dumps(fields) + "\n")
        self.answers.flush()

    def questions(self) -> Iterator[dict[str, Any]]:
        """The questions, until standard input is closed or "stop" is asked."""
        for line in sys.stdin:
            question = json.loads(line)
            if question["op"] == "stop":
                return
            yield question


class Training(Protocol):
    """A run that goes on from call to call."""

    def go(self, rounds: int, /) -> float | None:
        """Trains so many rounds; gives the seconds if it knows better than the clock around it."""

    def parameters(self) -> dict[str, np.ndarray]:
        """The model under fljax's names."""
        ...


def serve_run(driver: Driver, packages: tuple[str, ...], make: Callable[[], Training]) -> None:
    """Answers the driver with a run that is made when it is first asked for."""
    run = functools.cache(make)

    def first_round() -> dict[str, np.ndarray]:
        run().go(1)
        return run().parameters()

    serve(driver, packages, first_round=first_round, rounds=lambda count: run().go(count))


def serve(
    driver: Driver,
    packages: tuple[str, ...],
    *,
    first_round: Callable[[], dict[str, np.ndarray]] = dict,  # trains round 0 and gives the parameters after it
    rounds: Callable[[int], float | None] = lambda _: None,  # as ``Training.go``
    **operations: Callable[[dict[str, Any]], dict[str, Any]],  # further ones, question to answer
) -> None:
    """Answers the driver, which was made before the libraries were imported, until it has had enough."""
    driver.tell(ready=True, versions=versions(packages))
    for question in driver.questions():
        try:
            driver.tell(**answer(question, first_round, rounds, operations))
        except Exception as error:
            driver.tell(error=f"{type(error).__name__}: {error}".splitlines()[0][:300])


def answer(question: dict[str, Any], first_round: Any, rounds: Any, operations: Any) -> dict[str, Any]:
    """One answer to one question; see ``serve``."""
    began = time.perf_counter()
    if question["op"] == "first_round":
        parameters = first_round()
        seconds = time.perf_counter() - began
        np.savez(question["out"], **parameters)
        return {"seconds": seconds}
    if question["op"] == "rounds":
        seconds = rounds(question["count"])
        return {"seconds": time.perf_counter() - began if seconds is None else seconds}
    if question["op"] == "memory":
        return {"peak_bytes": peak_bytes()}
    return operations[question["op"]](question)


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of Python, NumPy and the packages asked for, of this environment."""
    found = {"python": platform.python_version()}
    for package in ("numpy", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def peak_bytes() -> int:
    """Peak resident memory of this process and its living descendants, each at its own peak, summed."""
    parent: dict[int, int] = {}
    peak: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/status") as file:
                    fields = dict(line.split(":", 1) for line in file if ":" in line)
            except OSError:
                continue
            parent[int(entry)] = int(fields["PPid"])
            peak[int(entry)] = int(fields.get("VmHWM", "0 kB").split()[0]) * 1024
    total, family = 0, [os.getpid()]
    while family:
        member = family.pop()
        total += peak.get(member, 0)
        family += [child for child, own in parent.items() if own == member]
    return total
