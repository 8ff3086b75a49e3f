"""What compilers for TPUs and GPUs make of fljax's programs, without a device: ``python benchmarks/ahead_of_time.py``.

Each row compiles the real program of rounds (FedAvg) for a TPU v5e or an H100, in a process and an environment of its
own, with a time limit; a row that takes longer is listed as such. For a TPU, XLA estimates the cycles of every kernel;
for a GPU it tells kernels and memory, no times. These are estimates by compilers, not measurements.

``--forms`` compiles the local steps of ``accelerator.py``'s part 3 instead, each form with 100 clients side by side.

``--source FOLDER`` compiles the fljax of another checkout, whose rows ``--before FILE`` sets beside those of this one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import environments
from accelerator_cells import CELLS
from workloads import WORKLOADS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PLATFORMS = ("tpu", "cuda")


class Device(NamedTuple):
    """A device on paper.

    Attributes:
      title: its name.
      clock: cycles per second of XLA's estimates.
      flops: FLOP per second of matrix products at JAX's default precision (bf16 on the TPU, TF32 on the H100).
      bandwidth: bytes per second of its memory.
    """

    title: str
    clock: float
    flops: float
    bandwidth: float


DEVICES = {
    "tpu": Device("TPU v5e", 1.5e9, 197e12, 819e9),
    "cuda": Device("H100 SXM", 1.98e9, 495e12, 3.35e12),
}
# (workload, cohort or None for the workload's own, clients side by side or None for those that auto chooses). "own" is
# W2's network as a user's flax module.
ROWS: tuple[tuple[str, int | None, int | None], ...] = (
    ("W1a", None, 25),
    ("W1a", None, 100),
    ("W1b", None, 10),
    ("W2", None, 10),
    ("W2", 100, 10),
    ("W2", 100, 20),
    ("W2", 100, 50),
    ("W2", 100, 100),
    ("W2", 100, None),
    ("own", 100, 100),
    ("W3", None, 25),
    ("W3", None, 100),
    ("W5", None, 100),
    ("W5", None, 250),
    ("W5", None, 1000),
    ("W5", None, None),
    ("W7", None, 10),
    ("W4", None, 1),
    ("W4", None, 10),
)
QUICK: tuple[tuple[str, int | None, int | None], ...] = (("W3", None, 100), ("W2", None, 10))
NAMES = tuple(dict.fromkeys(row[0] for row in ROWS))


def main() -> None:
    """Compiles all rows, prints each, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platforms", default="tpu,cuda", help="of tpu and cuda, joined by commas")
    parser.add_argument("--workloads", help=f"of {', '.join(NAMES)}, joined by commas; all rows otherwise")
    parser.add_argument("--quick", action="store_true", help="W3 and W2 alone")
    parser.add_argument("--forms", action="store_true", help="forms of a local step, in place of rounds")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a row")
    parser.add_argument("--source", type=Path, help="the checkout of fljax to compile; this one otherwise")
    parser.add_argument("--environments", type=Path, default=environments.FOLDER, help="where they are kept")
    parser.add_argument("--make-environments", action="store_true", help="make those that are missing (some 400 MB)")
    parser.add_argument("--out", type=Path, help="a JSON file; a table is written beside it")
    parser.add_argument("--before", type=Path, help="a JSON file, whose rows the table shows, too")
    parser.add_argument("--draw", type=Path, help="a JSON file, whose table is written again; nothing is compiled")
    options = parser.parse_args()
    before = json.loads(options.before.read_text())["rows"] if options.before else []
    if options.forms:
        _forms(options)
        return
    if options.draw is not None:
        options.draw.with_suffix(".md").write_text(table(json.loads(options.draw.read_text())["rows"], before))
        return
    chosen = options.workloads.split(",") if options.workloads else NAMES
    for name in chosen:
        if name not in NAMES:
            raise SystemExit(f"expected a known workload, got {name!r}; valid names are {', '.join(NAMES)}")
    found: list[dict[str, Any]] = []
    for platform in options.platforms.split(","):
        python = _interpreter(platform, options)
        for workload, cohort, clients in QUICK if options.quick else ROWS:
            if workload not in chosen:
                continue
            row = compiled(python, platform, workload, cohort, clients, options.source or HERE.parent, options.limit)
            found.append(row)
            print(_line(row), flush=True)
            if options.out is not None:  # after every row, so that an interruption loses none
                options.out.write_text(json.dumps({"date": str(datetime.date.today()), "rows": found}, indent=1) + "\n")
                options.out.with_suffix(".md").write_text(table(found, before))


def _interpreter(platform: str, options: argparse.Namespace) -> str:
    if platform not in PLATFORMS:
        raise SystemExit(f"expected a known platform, got {platform!r}; valid names are {', '.join(PLATFORMS)}")
    name = f"ahead-{platform}"
    if options.make_environments and (reason := environments.make(options.environments, name)):
        raise SystemExit(reason)
    python = environments.python_of(options.environments, name)
    if python is None:
        raise SystemExit(f"expected the environment {name}, got none; --make-environments makes it")
    return python


def compiled(
    python: str, platform: str, workload: str, cohort: int | None, clients: int | None, source: Path, limit: float
) -> dict[str, Any]:
    """One row: compiles in a process of its own, and adds the roofline."""
    row: dict[str, Any] = {"platform": platform, "workload": workload, "cohort": cohort, "clients": clients}
    row = _asked(python, row, source, limit)
    return row if "failed" in row else row | _roofline(row)


def _asked(python: str, row: dict[str, Any], source: Path, limit: float) -> dict[str, Any]:
    """The row with what its process found, or with the reason why it found nothing."""
    command = [python, str(HERE / "contestants" / "compiled_row.py"), json.dumps(row | {"source": str(source)})]
    folders = (source, HERE, HERE / "contestants", HERE / "device_parts")
    place = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit, env=place)
    except subprocess.TimeoutExpired:
        return row | {"failed": f"not compiled in {limit:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or ["no reason given"]
        return row | {"failed": environments.plain(lines[-1])}
    return row | json.loads(done.stdout.splitlines()[-1])


def _forms(options: argparse.Namespace) -> None:
    """Compiles every form of a local step with 100 clients, and writes a table."""
    names = dict.fromkeys(
        (c.options["model"], c.options["form"]) for c in CELLS if c.part == 3 and c.options["model"] != "drawing"
    )
    options_of = {(c.options["model"], c.options["form"]): c.options for c in CELLS if c.part == 3}
    found: list[dict[str, Any]] = []
    for platform in options.platforms.split(","):
        python = _interpreter(platform, options)
        for name in names:
            form = options_of[name]
            if form.get("chunk", 0) > 100 or (form.get("chunk") == 100 and form["clients"] != 100):
                continue
            row = _asked(python, {"platform": platform, "form": form, "clients": 100}, HERE.parent, options.limit)
            found.append(row)
            print(" | ".join(_form_cells(row)), flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps({"date": str(datetime.date.today()), "rows": found}, indent=1) + "\n")
                options.out.with_suffix(".md").write_text(forms_table(found))


def forms_table(rows: list[dict[str, Any]]) -> str:
    """The forms as Markdown."""
    headings = ("device", "model", "form", "kernels per local step", "temporary MiB", "compile")
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(_form_cells(row)) + " |" for row in rows)]) + "\n"


def _form_cells(row: dict[str, Any]) -> list[str]:
    begin = [DEVICES[row["platform"]].title, row["form"]["model"], row["form"]["form"]]
    if "failed" in row:
        return [*begin, row["failed"], "", ""]
    return [*begin, str(row["kernels"]), f"{row['temporary'] / 2**20:,.0f}", f"{row['seconds']:.0f} s"]


def _roofline(row: dict[str, Any]) -> dict[str, Any]:
    """Client-steps per second that the device would allow on paper.

    Weights are read twice, gradients written and read, weights written: five passes over the parameters; examples are
    read once.
    """
    device = DEVICES[row["platform"]]
    work = WORKLOADS["W2" if row["workload"] == "own" else row["workload"]]
    size = 1 if work.pixels else 4
    for length in work.shape:
        size *= length
    traffic = 5 * 4 * row["parameters"] + work.batch * size
    seconds = max(work.flops_per_client_step / device.flops, traffic / device.bandwidth)
    found = {"roofline": 1 / seconds, "bound": "memory" if traffic / device.bandwidth == seconds else "arithmetic"}
    if row["cycles"]:
        found["rate"] = row["client_steps"] * device.clock / row["cycles"]
    return found


HEADINGS = (
    "device",
    "workload",
    "clients side by side",
    "estimated client-steps/s",
    "from main memory at most",
    "kernels per local step",
    "temporary MiB",
    "compile",
)


def _cells(row: dict[str, Any]) -> list[str]:
    cohort = "" if row["cohort"] is None else f" with {row['cohort']} clients"
    side_by_side = row["clients"] or ("auto" if "failed" in row else f"auto: {row['layout']}")
    begin = [DEVICES[row["platform"]].title, row["workload"] + cohort, str(side_by_side)]
    if "failed" in row:
        return [*begin, row["failed"], *[""] * (len(HEADINGS) - len(begin) - 1)]
    return [
        *begin,
        f"{row['rate']:,.0f}" if "rate" in row else "-",
        f"{row['roofline']:,.0f} ({row['bound']})",
        str(row["kernels"]),
        f"{row['temporary'] / 2**20:,.0f}",
        f"{row['seconds']:.0f} s",
    ]


def _line(row: dict[str, Any]) -> str:
    return " | ".join(each for each in _cells(row) if each)


def table(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    """The rows as Markdown; where a row was compiled before, too, as "before -> after"."""
    key = lambda row: (row["platform"], row["workload"], row["cohort"], row["clients"])  # noqa: E731
    earlier = {key(row): _cells(row) for row in before if "failed" not in row}
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for row in rows:
        cells = _cells(row)
        old = earlier.get(key(row), cells)
        shown = [new if new == was or not was else f"{was} -> {new}" for new, was in zip(cells, old, strict=True)]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
