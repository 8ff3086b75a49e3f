"""Cases that are measured apart, each in a process of its own, and the checkouts that they import fljax from.

The functions that measure are always those of this checkout: a process imports them first, and then has the ``fljax``
of another checkout before this one.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a process of one case
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.reporting import ROOT, Row, plain

LIMIT_SECONDS = 1200.0
FOREIGN = ("JAX_", "XLA_", "OMP_", "MKL_")


def environment(**more: str) -> dict[str, str]:
    """The environment without what changes how JAX and others compute."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)} | more


@contextlib.contextmanager
def checkouts(against: str) -> Iterator[dict[str, Path]]:
    """Folders by title: this checkout as "after", and a folder or a revision, if one is asked for, as "before"."""
    if not against:
        yield {"after": ROOT}
    elif (Path(against) / "fljax" / "__init__.py").is_file():
        yield {"before": Path(against).resolve(), "after": ROOT}
    else:
        with tempfile.TemporaryDirectory(prefix="fljax-against-") as folder:
            packed = subprocess.run(
                ["git", "-C", str(ROOT), "archive", against, "fljax", "configs"], capture_output=True
            )
            if packed.returncode:
                raise SystemExit(f"expected a checkout of fljax or a revision of this one, got {against!r}")
            subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
            yield {"before": Path(folder), "after": ROOT}


def apart(
    function: str, source: Path = ROOT, given: Mapping[str, str] | None = None, **arguments: Any
) -> dict[str, Any]:
    """What ``"module:function"`` gives in a process of its own, with ``given`` in its environment.

    Where that fails, "failed" has the reason.
    """
    told = json.dumps({"function": function, "source": str(source), "arguments": arguments})
    command = [sys.executable, str(Path(__file__).resolve()), told]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment(**(given or {}))
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {LIMIT_SECONDS:.0f} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"ended with {done.returncode}"]
        return {"failed": plain(lines[-1])}
    return json.loads(done.stdout)


def grid(options: Namespace, function: str, lists: Mapping[str, Sequence[Any]], **fixed: Any) -> Iterator[Row]:
    """Title, values and what ``function`` gives apart, for all values of the lists and each checkout."""
    for values in itertools.product(*lists.values()):
        for title, source in options.sources.items():
            found = apart(function, source, **dict(zip(lists, values, strict=True)), **fixed)
            yield title, *values, *found.values()


def resident(name: str = "VmRSS") -> int:
    """Bytes of memory of this process: now, or the most so far (``VmHWM``)."""
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Starts the count of the largest resident memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Calls the function, with standard output for its result alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    module, _, function = asked["function"].partition(":")
    measure = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    sys.path.insert(0, asked["source"])
    answers.write(json.dumps(measure(**asked["arguments"])))
    answers.close()


if __name__ == "__main__":
    main()
