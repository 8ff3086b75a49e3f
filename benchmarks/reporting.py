"""How measurements are told: the machine, a JSON file, a Markdown table and a picture of one stem."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CURRENT = RESULTS / "current"
MEBIBYTE = 2**20
PACKAGES = ("fljax", "jax", "jaxlib", "flax", "optax", "numpy")
Row = Sequence[Any]  # a cell for each column


def hardware() -> dict[str, Any]:
    """CPU model, cores that may be used, memory."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return {"cpu": model, "cores": cores, "memory_gibibytes": round(memory, 1), "system": platform.system()}


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def plain(text: str) -> str:
    """A message without addresses and without paths of this machine, in one short line."""
    text = re.sub(r"\w+://\S+", "(address)", text)
    return " ".join(re.sub(r"(?:/[\w.+-]+){2,}/([\w.+-]+)", r"\1", text).split())[:240]


def names_in(text: str, valid: Sequence[str], what: str) -> list[str]:
    """The names between commas, all of them valid."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in valid:
            raise SystemExit(f"expected a known {what}, got {name!r}; valid names are {', '.join(valid)}")
    return found


def cell(value: Any) -> str:
    """A value as text: numbers with four digits, None as a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def middle(numbers: Sequence[float]) -> str:
    """The median, with the smallest and the largest."""
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def table(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table; a row that ends early is filled up."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join([*map(cell, row), *[''] * (len(columns) - len(row))])} |" for row in rows]


def report_of(command: str, columns: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """All that is kept of a measurement."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "hardware": hardware(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "versions": versions(),
        "rows": [dict(zip(columns, row, strict=False)) for row in rows],
    }


def markdown(title: str, report: Mapping[str, Any], text: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The page; ``text`` says how the table was made."""
    machine, told = report["hardware"], ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return "\n".join(
        [
            f"# {title}, {report['date'][:10]}",
            "",
            f"    {report['command']}",
            "",
            f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gibibytes']} GiB, {machine['system']}; "
            f"load {report['load'][0]}. {told}.",
            "",
            *([text, ""] if text else []),
            *table(columns, rows),
            "",
        ]
    )


def save(stem: Path, title: str, command: str, text: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Writes ``stem`` with ``.json`` and ``.md``."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    report = report_of(command, columns, rows)
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1, default=float) + "\n")
    stem.with_suffix(".md").write_text(markdown(title, report, text, columns, rows))
