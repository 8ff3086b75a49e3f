"""A contestant as a process: started, asked, halted while others are on turn, ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import environment
from benchmarks.peers.environments import OWN
from benchmarks.reporting import plain

CONTESTANTS = Path(__file__).parent / "contestants"
START_SECONDS = 300.0
ANSWER_SECONDS = 900.0


class Contestant(NamedTuple):
    """Who competes."""

    name: str  # as in the tables
    family: str  # as on the command line
    environment: str  # whose interpreter runs it
    script: str  # in ``contestants/``
    variants: tuple[tuple[str, ...], ...]  # command lines that are tried in the warm-up; the fastest stays
    workloads: tuple[str, ...]  # those that it knows
    halts: bool = True  # whether it may be halted while others are on turn


_PLAIN = ("W1a", "W1b", "W2", "W3", "BL", "PF")
_ALL = ("W1a", "W1b", "W2", "W3", "W3r", "W4", "W5", "W6", "W7", "BL", "PF")
_STRATEGIES = tuple(("--clients", c, "--devices", d) for c in ("vmap", "scan") for d in ("1", "all"))
_CORES = len(os.sched_getaffinity(0))
_THREADS = tuple(("--threads", str(n)) for n in dict.fromkeys((1, _CORES)))


def _fljax(name: str, clients: str, devices: str, workloads: tuple[str, ...] = _ALL) -> Contestant:
    variant = ("--clients", clients, "--devices", devices)
    return Contestant(f"fljax, {name}", "fljax", OWN, "fljax_.py", (variant,), workloads)


LINE_UP = (
    _fljax("auto", "auto", "auto"),
    _fljax("vmap", "vmap", "1"),
    _fljax("scan", "scan", "1"),
    _fljax("5 at a time", "5", "1"),
    _fljax("vmap on all cores", "vmap", "all"),
    _fljax("scan on all cores", "scan", "all"),
    Contestant("bare JAX", "bare", OWN, "bare_jax.py", _STRATEGIES, (*_PLAIN, "W3r", "W5")),
    Contestant(
        "bare JAX that draws",
        "draws",
        OWN,
        "bare_jax.py",
        tuple(("--draws", *strategy) for strategy in _STRATEGIES),
        ("W3", "W3r"),
    ),
    Contestant(
        "torch.func vmap, compiled",
        "compile",
        "torch",
        "torch_vmap.py",
        tuple(("--compile", *threads) for threads in _THREADS),
        (*_PLAIN, "W5"),
    ),
    Contestant("torch.func vmap", "vmap", "torch", "torch_vmap.py", _THREADS, _PLAIN),
    Contestant("FedJAX", "fedjax", "fedjax", "fedjax_.py", ((),), _PLAIN),
    Contestant("pfl", "pfl", "pfl", "pfl_.py", (*_THREADS, ("--processes", str(_CORES))), _PLAIN),
    Contestant("torch loop", "torch", "torch", "torch_loop.py", _THREADS, (*_PLAIN, "W4", "W6")),
    Contestant("Flower", "flower", "flower", "flower_.py", (("--actors", str(_CORES)),), _PLAIN, halts=False),
)
FAMILIES = tuple(dict.fromkeys(contestant.family for contestant in LINE_UP))
STRATEGIES = tuple(entry.name.removeprefix("fljax, ") for entry in LINE_UP if entry.family == "fljax")


class WorkerError(RuntimeError):
    """A contestant that died, or says that it cannot."""


class Worker:
    """One process, in a process group of its own; ``more`` is added to its environment."""

    def __init__(
        self,
        contestant: Contestant,
        python: str,
        arguments: tuple[str, ...],
        file: Path,
        log: Path,
        more: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        self.halts = contestant.halts
        self.log = log
        self._errors = log.open("w")
        place = environment(TORCHINDUCTOR_CACHE_DIR=str(log.with_suffix(".inductor")))  # the first round is a cold one
        place |= more
        command = [python, str(CONTESTANTS / contestant.script), "--workload", str(file), *arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=place,
            start_new_session=True,
        )
        self._read = b""
        self.versions: dict[str, str] = {}
        try:
            self.versions |= self._answer(START_SECONDS).get("versions", {})
        except BaseException:
            self.close()
            raise

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One question, one answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it died, or was ended
            raise WorkerError(self._last_words()) from None
        return self._answer(ANSWER_SECONDS)

    def _answer(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        handle, end = self._process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self._read:
            ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise WorkerError(f"silent for {limit:.0f} s")
            found = os.read(handle, 65536)
            if not found:
                raise WorkerError(self._last_words())
            self._read += found
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(plain(answer["error"]))
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"died: {plain(lines[-1]) if lines else 'without a word'}"

    def resident(self) -> int:
        """Bytes of memory that the process itself has at present."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def processor_seconds(self) -> float:
        """CPU-seconds that the process itself has taken so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def halt(self) -> None:
        """Stops the process and its children where they stand."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.halts and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Asks it to stop, then ends it; a second call does nothing more."""
        self.resume()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(b'{"op": "stop"}\n')
            self._process.stdin.close()
            self._process.wait(20)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            pass
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what it may have left behind
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._errors.close()
