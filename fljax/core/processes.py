"""Several processes, on one host or on many, that compute one run together on JAX's distributed runtime.

Programs of a run span the devices of all processes. What a run decides is decided in process 0, and only it writes.
In one process all of this does nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np

from fljax.core.errors import ProcessLost
from fljax.core.plain import tell
from fljax.core.sameness import record
from fljax.core.version import __version__

Value = TypeVar("Value")

# Seconds without a sign of life after which JAX takes a process for lost, where JAX lets them be chosen.
SILENCE = 40
# What JAX's errors say if another process does not answer: its collectives on CPUs and GPUs, and its coordinator.
_LOST = ("Gloo ", "NCCL", "oordination service", "CoordinationService", "Connection reset by peer")
# Seconds that processes wait for each other at the start.
PATIENCE = 60
# Bytes of the first message of process 0, which is all there is to most decisions.
_FIRST = 1024


def distributed(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> None:
    """Joins this process with others, so that they compute runs together: ``jax.distributed.initialize``.

    Call it in every process, once, before anything is computed with JAX (after ``use_cores``, if that is called). All
    processes then make the same calls of fljax with the same arguments. On Slurm, Open MPI, Kubernetes and Cloud TPUs
    JAX finds the arguments itself. On CPUs, processes talk through gloo, which is JAX's default.

    From then on an exception that nobody handles ends this process at once, so that the others need not wait for it.
    After ``sys.exit`` they wait as long as JAX does, five minutes, unless all processes end: raise an exception where
    one of them fails.

    Args:
      coordinator_address: ``"host:port"`` of process 0; None: that of the environment variable JAX_COORDINATOR_ADDRESS,
        or of the cluster.
      num_processes: their number; None: that of the cluster.
      process_id: the number of this process, from 0; None: that of the cluster.
      **options: further arguments of ``jax.distributed.initialize``. ``heartbeat_timeout_seconds`` is 40 by default,
        if the installed JAX has it. After ``initialization_timeout`` seconds, 60 by default, without all others this
        process ends with a sentence and the exit code 1; JAX would abort it.

    Raises:
      ValueError: if JAX lacks an argument and detects no cluster, or the arguments do not fit together.
      RuntimeError: if JAX has started already, or the other processes cannot be reached.
    """
    import jax

    _check_place(coordinator_address, num_processes, process_id)
    patience = options.get("initialization_timeout", PATIENCE)
    if (
        isinstance(patience, bool)
        or not isinstance(patience, int | float | np.integer | np.floating)
        or not 0 < patience < math.inf
    ):
        raise ValueError(f"expected initialization_timeout of more than 0 seconds, got {patience!r}")
    # JAX waits longer, since it aborts the process in the end.
    options["initialization_timeout"] = math.ceil(float(patience)) + 30
    if "heartbeat_timeout_seconds" in inspect.signature(jax.distributed.initialize).parameters:
        options = {"heartbeat_timeout_seconds": SILENCE} | options
    try:
        with _patient(float(patience), coordinator_address):
            jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "expected coordinator_address, num_processes and process_id that fit together, or a cluster in which JAX "
            f"finds them, got {coordinator_address!r}, {num_processes!r} and {process_id!r} ({error})"
        ) from None
    except RuntimeError as error:  # JAX's own errors are among these
        words = str(error).partition("\n")[0]
        raise RuntimeError(
            f"expected processes that can be reached, and a JAX that has not started yet, got: {words}"
        ) from None
    sys.excepthook = _end


def _check_place(address: str | None, processes: int | None, process: int | None) -> None:
    """Raises a ValueError unless the address has a host and a port, and the numbers of processes fit together."""
    if address is not None:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        whole = port.isascii() and port.isdigit() and 0 < int(port) < 2**16
        if not host or "/" in host or not whole:
            raise ValueError(
                "expected coordinator_address as 'host:port' with a port from 1 to 65535, such as '10.0.0.1:1234', got "
                f"{address!r}"
            )
    for name, number, least in (("num_processes", processes, 1), ("process_id", process, 0)):
        if number is not None and (isinstance(number, bool) or not hasattr(number, "__index__") or number < least):
            raise ValueError(f"expected {name} to be a whole number of at least {least}, got {number!r}")
    if processes is not None and process is not None and process >= processes:
        raise ValueError(f"expected process_id below num_processes, {processes}, got {process}")


@contextlib.contextmanager
def _patient(seconds: float, address: str | None) -> Iterator[None]:
    """Ends this process if what is inside takes longer: JAX waits for others in code that no exception leaves."""

    def end() -> None:
        at = "" if address is None else f" at {address}"
        tell(
            f"fljax: expected all processes{at} within {seconds:g} seconds, got fewer; their number, their ids and the "
            "address must be right in each of them",
            file=sys.stderr,
        )
        leave(1)

    watch = threading.Timer(seconds, end)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an exception that nobody has handled, and ends the process; JAX would wait for the others first."""
    if isinstance(error, ProcessLost):
        tell(f"fljax: {error}", file=sys.stderr)
        leave(1)
    traceback.print_exception(kind, error, trace)
    leave(
        1, after=1.0
    )  # JAX ends the others when process 0 is gone; those with the same error have told theirs by then


def leave(code: int, after: float = 0.0) -> NoReturn:
    """Ends this process after some seconds, without JAX's wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(after)
    os._exit(code)


def part() -> None:
    """Waits for all processes at the end of a run; from then on, each process may end on its own."""
    if is_joined():
        import jax

        jax.distributed.shutdown()


def is_joined() -> bool:
    """Whether ``distributed`` was called; JAX need not have started."""
    jax: Any = sys.modules.get("jax")  # not imported here: results are read without it
    return jax is not None and jax.distributed.is_initialized()


def are_several() -> bool:
    """Whether this process is one of several."""
    if not is_joined():
        return False
    import jax

    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process decides and writes."""
    if not are_several():
        return True
    import jax

    return jax.process_index() == 0


def agreed(decide: Callable[[], Value]) -> Value:
    """What ``decide`` returns or raises in process 0, in every process; all must call this in the same order."""
    # ``decide`` is called in process 0 alone, and must not compute on the devices of other processes.
    if not are_several():
        return decide()
    import jax

    if jax.process_index() > 0:
        answer, error = pickle.loads(_from_first(b""))
        if error is not None:
            raise error
        return answer
    try:
        value = decide()
    except Exception as error:
        _from_first(_packed((None, error)))
        raise
    _from_first(pickle.dumps((value, None)))
    return value


def _packed(outcome: tuple[None, Exception]) -> bytes:
    """An error for the other processes; its words only, if it cannot be pickled."""
    try:
        packed = pickle.dumps(outcome)
        pickle.loads(packed)
        return packed
    except Exception:
        return pickle.dumps((None, RuntimeError(str(outcome[1]))))


def gathered(value: Value) -> list[Value]:
    """The values of all processes, in their order. They are small."""
    if not are_several():
        return [value]
    import jax

    packed = pickle.dumps(value)
    with reporting(), jax.disable_jit(False):
        from jax.experimental import multihost_utils

        lengths = multihost_utils.process_allgather(np.uint32(len(packed)))
        all_of_them = multihost_utils.process_allgather(_padded(packed, int(lengths.max())))
    return [
        pickle.loads(content.tobytes()[: int(length)]) for content, length in zip(all_of_them, lengths, strict=True)
    ]


def check_same(tell: Callable[[], dict[str, Any]]) -> None:
    """Raises a ValueError in every process, unless ``tell`` gives the same numbers and texts in all, by name."""
    # Processes with different programs would wait for each other forever. In one process, ``tell`` is not called.
    if not are_several():
        return
    _check_devices()
    everybody = gathered(record() | {"version of fljax": __version__} | tell())
    for process, other in enumerate(everybody):
        changed = [name for name in {**everybody[0], **other} if everybody[0].get(name) != other.get(name)]
        if changed:
            raise ValueError(
                f"expected the same call in all processes, got another one in process {process} than in process 0; "
                f"different are: {', '.join(changed)}"
            )


def _check_devices() -> None:
    """Raises a ValueError unless all processes have equally many devices; each knows it without the others."""
    import jax

    counts = [0] * jax.process_count()
    for device in jax.devices():
        counts[device.process_index] += 1
    if len(set(counts)) > 1:
        raise ValueError(
            f"expected equally many devices in all processes, got {', '.join(map(str, counts))} in processes "
            f"0 to {len(counts) - 1}"
        )


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Inside, JAX's error that another process does not answer becomes a ProcessLost."""
    import jax

    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        words = str(error)
        if are_several() and any(word in words for word in _LOST):
            raise ProcessLost(
                f"another process of this run has ended or cannot be reached, so process {jax.process_index()} ends, "
                "too; a run with checkpoints goes on where the newest one is, also in one process"
            ) from error
        raise


def _from_first(content: bytes) -> bytes:
    """The content of process 0. What does not fit into the first message follows in a second one."""
    head = len(content).to_bytes(8, "little") + content
    first = _sent(_padded(head, _FIRST))
    length = int.from_bytes(first[:8], "little")
    if length <= _FIRST - 8:
        return first[8 : 8 + length]
    # Powers of two, so that few lengths are compiled.
    return _sent(_padded(content, 1 << (length - 1).bit_length()))[:length]


def _sent(content: np.ndarray) -> bytes:
    import jax

    with reporting(), jax.disable_jit(False):
        from jax.experimental import multihost_utils

        # JAX 0.6 sums bytes as longer numbers.
        return np.asarray(multihost_utils.broadcast_one_to_all(content)).astype(np.uint8).tobytes()


def _padded(content: bytes, length: int) -> np.ndarray:
    padded = np.zeros(length, np.uint8)
    padded[: min(len(content), length)] = np.frombuffer(content[:length], np.uint8)
    return padded
