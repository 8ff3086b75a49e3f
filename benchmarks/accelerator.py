"""Measures fljax on a GPU in minutes, and tunes it: ``python benchmarks/accelerator.py --out FOLDER``.

It needs JAX for the device, flax, optax, xarray, orbax-checkpoint, chex, jaxtyping, NumPy and SciPy; PyTorch if its
rows are wanted. fljax itself need not be installed, and no network is needed. Rows are saved as they come, in
``FOLDER/accelerator.json``; a second call goes on with what is missing. ``benchmarks/README.md`` says what each part
measures. This process never starts JAX, which would hold the device's memory.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[0] = str(ROOT)

from benchmarks.accelerators import tables  # noqa: E402
from benchmarks.accelerators.cells import CELLS, GROUPS, PARTS, Cell, Group  # noqa: E402
from benchmarks.reporting import CURRENT, names_in, plain  # noqa: E402
from fljax.core import gpu_rules  # noqa: E402

PLACES = [ROOT, HERE / "peers" / "contestants", HERE / "accelerators" / "device_parts"]
RULES = ROOT / "fljax" / "core" / "gpu_rules.toml"
Report = dict[str, Any]
SAVING = threading.Lock()


def main() -> None:
    """Measures what is missing of the chosen parts, and prints the summary."""
    options = _arguments()
    chosen = _parts(options.parts)
    file = options.out / "accelerator.json"
    report = _read(file)
    if options.write_rule or options.publish:
        if not report["rows"]:
            raise SystemExit(f"expected results in {file.name}, got none; a call without this option measures them")
        _use(report, options)
        return
    _make_folder(options.out)
    source = fingerprint()
    if report["rows"] and report["source"] != source:
        raise SystemExit("expected results of this code in --out, got those of another commit; take another folder")
    report |= {"source": source, "commit": report.get("commit", _commit())}
    report.setdefault("date", str(datetime.date.today()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))

    def measure(name: str) -> None:
        try:
            _measure(name, report, file, options.out, options.small, options.seconds)
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():
                raise
            print(f"  {name}: {error}", flush=True)

    beside: dict[str, threading.Thread] = {}
    for name in _in_order([name for name, group in GROUPS.items() if group.part in chosen]):
        if GROUPS[name].beside:
            beside[name] = threading.Thread(target=measure, args=(name,), daemon=True)
            beside[name].start()
            continue
        for thread in [beside.pop(each) for each in GROUPS[name].after if each in beside]:
            thread.join()
        measure(name)
    for thread in beside.values():
        thread.join()
    if report["rows"]:
        file.with_suffix(".md").write_text(tables.markdown(report))
    print("\n".join(tables.summary(report, chosen)[:40]), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results are kept")
    parser.add_argument("--parts", default=",".join(map(str, PARTS)), help=f"of {_titles()}; joined by commas")
    parser.add_argument("--small", action="store_true", help="small sizes, as on a machine without an accelerator")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="FACTOR", help="multiplies every time limit")
    parser.add_argument("--write-rule", action="store_true", help="write fljax/core/gpu_rules.toml from the results")
    parser.add_argument(
        "--publish", metavar="NAME", help="copy the results to benchmarks/results/current/accelerator-NAME"
    )
    return parser.parse_args()


def _in_order(names: list[str]) -> list[str]:
    """The groups in the order in which they begin: those beside others are early, but not before the device is."""
    first = [name for name in names if name == "device"]
    early = [name for name in names if GROUPS[name].beside]
    return first + early + [name for name in names if name not in (*first, *early)]


def _titles() -> str:
    return ", ".join(f"{number} ({title})" for number, title in PARTS.items())


def _parts(text: str) -> list[int]:
    """The chosen parts in their order."""
    asked = names_in(text, tuple(map(str, PARTS)), "part")
    if not asked:
        raise SystemExit(f"expected at least one part, got none; valid names are {', '.join(map(str, PARTS))}")
    return sorted({int(each) for each in asked})


def _read(file: Path) -> Report:
    """The results that are there, or none."""
    try:
        report = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {"rows": {}}
    except (OSError, ValueError):
        raise SystemExit(f"expected {file.name} to be results of this script, got a file that cannot be read") from None
    if not isinstance(report, dict) or not {"rows", "source", "device"} <= report.keys():
        raise SystemExit(f"expected {file.name} to be results of this script, got something else")
    return report


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise SystemExit(f"expected --out to be a folder that can be written, got {error.strerror}") from None


def fingerprint() -> str:
    """A checksum of the code that is measured and of the code that measures."""
    found = hashlib.sha256()
    files = [
        *(ROOT / "fljax").rglob("*.py"),
        RULES,
        HERE / "accelerator.py",
        *PLACES[2].glob("*.py"),
    ]
    files += [HERE / f"{name}.py" for name in ("accelerators/cells", "accelerators/tables")]
    files += [HERE / "peers" / f"{name}.py" for name in ("workloads", "measuring")]
    files += [PLACES[1] / f"{name}.py" for name in ("export", "parts", "protocol", "torch_parts")]
    for file in sorted(files):
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def _commit() -> str:
    """The commit of the checkout; "unknown" where there is no git."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _missing(group: str, rows: dict[str, Any]) -> list[Cell]:
    """Cells of a group without a row, then those to be tried again: cut off by a limit, or torch was missing."""
    own = [cell for cell in CELLS if cell.group == group]
    fresh = [cell for cell in own if cell.key not in rows]
    return fresh + [cell for cell in own if rows.get(cell.key, {}).get("again")]


def _measure(name: str, report: Report, file: Path, folder: Path, small: bool, factor: float) -> None:
    """Measures what is missing of one group. A process that dies is followed by another one, for the cells after it."""
    group = GROUPS[name]
    tried: set[str] = set()
    end = time.monotonic() + factor * group.seconds
    log = folder / f"{name.replace(' ', '-')}.log"
    log.write_text("")
    while cells := [cell for cell in _missing(name, report["rows"]) if cell.key not in tried]:
        left = end - time.monotonic()
        if left <= 0:
            return
        print(f"part {group.part}, {name}: {len(cells)} cells, at most {left:.0f} s", flush=True)
        with log.open("a") as errors:
            process = _started(name, cells, report, folder, small, errors)
            try:
                begun, current = _collect(process, report, file, end)
            finally:
                _kill(process)
        tried |= {cell.key for cell in cells if report["rows"].get(cell.key, {}).get("again")}
        if time.monotonic() >= end:
            reason = f"not finished in the {factor * group.seconds:.0f} s of its process"
            _note(current, {"failed": reason, "again": True}, report, file)
            return
        if process.returncode == 0:
            return
        reason = f"its process died: {_last_words(log)}"
        print(f"  {reason}", flush=True)
        if not begun:  # it died before its first cell, and so would the next process
            for cell in cells if "device" in report else []:
                _note(cell.key, {"failed": reason}, report, file)
            return
        _note(current, {"failed": reason}, report, file)


def _started(
    name: str, cells: list[Cell], report: Report, folder: Path, small: bool, errors: IO[str]
) -> subprocess.Popen[bytes]:
    """A process that was told its cells."""
    group = GROUPS[name]
    with SAVING:
        rows = dict(report["rows"])
    question = {
        "cells": [{"key": cell.key, "options": cell.options} for cell in cells],
        "folder": str(folder.resolve()),
        "small": small or report.get("small", False),
        "platform": report.get("platform"),
        "floors": {key[2:]: row for key, row in rows.items() if key.startswith("1/") and "failed" not in row},
    }
    process = subprocess.Popen(
        [sys.executable, str(PLACES[2] / group.script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=_environment(folder, group),
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(folder: Path, group: Group) -> dict[str, str]:
    given = os.environ.get("PYTHONPATH")
    beside = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if group.beside else {}  # the memory is for the others
    return (
        os.environ
        | beside
        | {
            "PYTHONPATH": os.pathsep.join([*map(str, PLACES), *([given] if given else [])]),
            "JAX_COMPILATION_CACHE_DIR": str(folder.resolve() / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
            "TORCHINDUCTOR_CACHE_DIR": str(folder.resolve() / "inductor"),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {group.flags}".strip(),
        }
    )


def _collect(process: subprocess.Popen[bytes], report: Report, file: Path, end: float) -> tuple[bool, str | None]:
    """Saves rows until the process ends or its time is over.

    Returns:
      Whether a cell was begun, and the last one that was begun if it has no row.
    """
    begun = False
    current: str | None = None
    for line in _lines(process, end):
        if "device" in line:
            _check_device(line, report)
            with SAVING:
                report |= {key: line[key] for key in ("device", "platform", "versions", "small")}
        elif "versions" in line:
            with SAVING:
                report["versions"] = report.get("versions", {}) | line["versions"]
        elif "began" in line:
            begun, current = True, line["began"]
        else:
            _note(line["key"], line["row"], report, file)
            current = None if line["key"] == current else current
    return begun, current


def _note(key: str | None, row: dict[str, Any], report: Report, file: Path) -> None:
    """Saves and prints one row."""
    if key is None:
        return
    with SAVING:
        report["rows"][key] = row
        _save(report, file)
        print(f"  {key}: {tables.words(row)}", flush=True)


def _last_words(log: Path) -> str:
    """The line of a log that tells most of why a process died."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if any(word in line for word in ("nknown flag", "Check failed", "Error"))]
    return plain((told or lines or ["it said nothing"])[-1])


def _lines(process: subprocess.Popen[bytes], end: float) -> Iterator[dict[str, Any]]:
    """What the process says, line by line, until it has closed its output or the time is over."""
    assert process.stdout is not None
    handle, read = process.stdout.fileno(), b""
    while True:
        ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
        found = os.read(handle, 65536) if ready else b""
        if not found:
            if ready:  # it ended
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            return
        read += found
        *lines, read = read.split(b"\n")
        yield from map(json.loads, lines)


def _check_device(line: dict[str, Any], report: Report) -> None:
    """Ends this call if the results in the folder are of another device or size; nothing is overwritten."""
    for what, name in (("device", "device"), ("small", "size")):
        if report["rows"] and report[what] != line[what]:
            found = f"{line[what]}, got those of {report[what]}"
            raise SystemExit(f"expected results of this {name} in --out, {found}; take another folder")


def _save(report: Report, file: Path) -> None:
    """The whole file anew, then renamed, so that an interruption leaves the old or the new one."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(file)


def _use(report: Report, options: argparse.Namespace) -> None:
    """Writes the rule, or the files in ``results``."""
    loose = report["commit"] == "unknown" or report["commit"].endswith("-dirty")
    if loose and report["source"] == fingerprint():  # measured on a copy without git, or before the commit
        report["commit"] = _commit()
    name = options.publish and f"accelerator-{options.publish}"
    if options.publish:
        if not re.fullmatch(r"[\w.-]+", options.publish):
            raise SystemExit(f"expected a name of letters, digits, - and ., got {options.publish!r}")
        (CURRENT / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
        (CURRENT / f"{name}.md").write_text(tables.markdown(report))
        print(f"saved: benchmarks/results/current/{name}.json and .md")
    if options.write_rule:
        if report["platform"] == "cpu" or report["small"]:
            raise SystemExit(f"expected results of a GPU at full size, got those of {report['device']}")
        if report["source"] != fingerprint():
            raise SystemExit("expected results of this code, got those of another commit; measure again first")
        source = f"current/{name}.json" if name else f"{report['device']}, {report['date']}"
        text = tables.rule_text(report, source)
        gpu_rules.parse(text)
        RULES.write_text(text)
        print(RULES.read_text())


if __name__ == "__main__":
    main()
