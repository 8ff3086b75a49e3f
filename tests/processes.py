"""Starts commands, and several processes that compute together, as ``fljax.distributed`` joins them, on loopback."""

from __future__ import annotations

import os
import pathlib
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
WAIT = 1200
START = """
import pathlib, pickle, sys
import jax
rank, count, port, devices, *arguments = sys.argv[1:]
jax.config.update("jax_num_cpu_devices", int(devices))
jax.config.update("jax_numpy_rank_promotion", "raise")
import fljax
fljax.distributed(f"127.0.0.1:{port}", int(count), int(rank))
def give(value):
    pathlib.Path(arguments[0], f"{rank}.pickle").write_bytes(pickle.dumps(value))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment() -> dict[str, str]:
    """That of the tests, without another number of devices, with the project's modules, and with quick compilation."""
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return kept | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def command(
    place: pathlib.Path, *words: str, code: str | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """``fljax`` in a folder, whose programs are kept there; ``code`` is run in its place, with the same arguments."""
    program = ["-m", "fljax"] if code is None else ["-c", code]
    own = environment() | {"FLJAX_COMPILATION_CACHE": str(place / "xla")} | dict(variables or {})
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *program, *words], cwd=place, env=own, stdout=pipe, stderr=pipe, text=True)


def until(process: subprocess.Popen[str], reached: Callable[[], Any], seconds: float = 600) -> None:
    """Waits for a process to reach something, which it must before it ends."""
    last = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < last
        time.sleep(0.01)


def start(
    code: str, folder: pathlib.Path, *arguments: str, devices: int = 1, count: int = 2, before: str = ""
) -> list[Any]:
    """Processes that run ``code``, and ``before`` earlier; in ``code``, ``give(value)`` hands a value to ``given``."""
    port = free_port()
    given = [str(count), str(port), str(devices), str(folder), *arguments]
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                START.replace("import fljax\n", f"{before}import fljax\n") + code,
                str(rank),
                *given,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=folder,
        )
        for rank in range(count)
    ]


def ended(processes: Sequence[Any]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each process."""
    try:
        found = [process.communicate(timeout=WAIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(processes, found, strict=True)]


def given(code: str, folder: pathlib.Path, *arguments: str, devices: int = 1, count: int = 2) -> list[Any]:
    """What each process gives; all must end well."""
    found = ended(start(code, folder, *arguments, devices=devices, count=count))
    for code_, out, err in found:
        assert code_ == 0, (code_, out, err)
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(count)]
