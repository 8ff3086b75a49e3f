"""Tables, the rule for GPUs and README's sentence, from the results of ``accelerator.py``. No JAX."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from benchmarks.accelerators.cells import CELLS, FORMS, PARTS, ROUNDS
from fljax.core import gpu_rules

Row = dict[str, Any]
NO_GPU = "fljax has not been run on a GPU or TPU yet."
# A form must be so much faster before it takes the place of another.
MARGIN = 1.03


def words(row: Row) -> str:
    """What a row says, in a few words."""
    if "failed" in row:
        return row["failed"]
    if "same_as" in row:
        return f"the layout of {row['same_as']}"
    found = []
    if "rate" in row:
        found.append(f"{row['rate']:,.0f} client-steps/s")
    if "share_of_floor" in row:
        found.append(f"{100 * row['share_of_floor']:.1f} % of the floor")
    if "flops" in row:
        found.append(f"{row['flops'] / 1e12:,.2f} TFLOP/s")
    if "bandwidth" in row:
        found.append(f"{row['bandwidth'] / 1e9:,.0f} GB/s")
    if "difference" in row:
        differ = f"{row['decisions_that_differ']} of {row['decisions']} decisions differ"
        found.append(f"largest difference {row['difference']:.1e}, {differ}")
    if row.get("error") is not None:
        equal = "" if row["error"] <= row["tolerance"] else f" (over {row['tolerance']:.1g})"
        found.append(f"error {row['error']:.1e}{equal}")
    if "idle_share" in row:
        found.append(f"{100 * row['idle_share']:.0f} % of the time without a kernel, {row['kernels']:,} kernels")
    if not found and "bytes" in row:
        found.append(f"{row['bytes'] / 2**30:,.1f} GiB")
    if not found and "seconds" in row:
        found.append(f"{1e6 * row['seconds']:,.2f} us")
    for name in ("temporary", "estimate", "peak"):
        if row.get(name) and not math.isnan(row[name]):
            found.append(f"{name} {row[name] / 2**20:,.0f} MiB")
    return ", ".join(found)


def _short(row: Row | None) -> str:
    """A cell of a table."""
    if row is None:
        return "missing"
    if "failed" in row:
        return "not yet" if row.get("again") else "failed"
    if "same_as" in row:
        return "="
    mark = " (!)" if (row.get("error") or 0) > row.get("tolerance", 1) else ""
    return f"{row['rate']:,.0f}{mark}"


def _table(title: str, columns: list[str], lines: list[list[str]]) -> list[str]:
    """Lines of text with aligned columns."""
    rows = [[title, *columns], *lines]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns) + 1)]
    padded = [[each.ljust(widths[0]) if not i else each.rjust(widths[i]) for i, each in enumerate(row)] for row in rows]
    return ["  ".join(row) for row in padded]


def summary(report: dict[str, Any], parts: list[int]) -> list[str]:
    """At most 40 lines."""
    rows: dict[str, Row] = report["rows"]
    if "device" not in report:
        return ["nothing was measured"]
    done = sum(cell.key in rows and not rows[cell.key].get("again") for cell in CELLS if cell.part in parts)
    size = ", small sizes" if report["small"] else ""
    whole = sum(cell.part in parts for cell in CELLS)
    lines = [f"{report['device']} ({report['platform']}{size}), JAX {report['versions'].get('jax')}, "
             f"{report['commit']}: {done} of {whole} cells"]  # fmt: skip
    if report["platform"] == "cpu":
        lines.append("no accelerator: JAX found a CPU alone")
    if 1 in parts:
        said = {key[2:]: words(row) for key, row in rows.items() if key.startswith("1/")}
        pairs = [f"{name}: {text}" for name, text in said.items()]
        lines += ["; ".join(pairs[at : at + 3]) for at in range(0, len(pairs), 3)]
    if 2 in parts:
        lines += _right_lines(rows)
    if 3 in parts:
        lines += forms_table(rows)
    if 4 in parts:
        lines += loops_table(rows)
    if 5 in parts:
        lines += rounds_table(rows)
    if 6 in parts:
        lines += [f"{key[2:]}: {words(row)}" for key, row in rows.items() if key.startswith("6/")]
    return lines[:40]


def _right_lines(rows: dict[str, Row]) -> list[str]:
    """Part 2 in a few lines: the largest difference and the decisions by precision, and what failed."""
    lines = []
    own = {key[2:]: row for key, row in rows.items() if key.startswith("2/")}
    for precision in ("highest", "default"):
        found = {name: row for name, row in own.items() if name.endswith(precision) and "failed" not in row}
        if found:
            worst = max(found, key=lambda name: found[name]["difference"])
            differ = sum(row["decisions_that_differ"] for row in found.values())
            whole = sum(row["decisions"] for row in found.values())
            largest = f"largest difference {found[worst]['difference']:.1e} ({worst.split(',')[0]})"
            lines.append(f"2: {len(found)} algorithms at {precision}: {largest}, {differ} of {whole} decisions differ")
    others = [f"{name}: {words(row)}" for name, row in own.items() if "," not in name and "failed" not in row]
    failed = [f"{name}: {row['failed'][:60]}" for name, row in own.items() if "failed" in row]
    lines += ["; ".join(others[at : at + 2]) for at in range(0, len(others), 2)] + failed[:2]
    return [*lines, f"and {len(failed) - 2} more failed, see accelerator.md"] if len(failed) > 2 else lines


def forms_table(rows: dict[str, Row]) -> list[str]:
    """Client-steps per second by model and form, a column for each number of clients."""
    counts = ("1", "10", "100", "1,000")
    found: dict[str, dict[str, str]] = {}
    for cell in CELLS:
        if cell.part == 3 and cell.options["model"] != "drawing":
            form = re.sub(r"\d+ at a time", "a tenth at a time", cell.options["form"])
            name = f"{cell.options['model']}, {form}"
            found.setdefault(name, {})[f"{cell.options['clients']:,}"] = _short(rows.get(cell.key))
    return _table(
        "3: one step, side by side", list(counts), [[n, *(v.get(c, "-") for c in counts)] for n, v in found.items()]
    )


def loops_table(rows: dict[str, Row]) -> list[str]:
    """Microseconds of a step by model, a column for each form."""
    forms = ("scan", "unrolled by 2", "unrolled by 5", "unrolled whole", "counted while")
    lines = []
    for model in ("mlp", "logistic"):
        for ending in ("", ", command buffers"):
            own = [rows.get(f"4/{model}, {form}{ending}") for form in forms]
            lines.append([model + ending, *("missing" if r is None else "failed" if "failed" in r else
                         f"{1e6 * r['seconds']:,.1f}" for r in own)])  # fmt: skip
    return _table("4: us of a step", list(forms), lines)


WHO = ("fljax", "fljax, a quarter", "fljax, a sixteenth", "fljax, all", "JAX by hand", "torch vmap, compiled",
       "torch vmap", "torch loop")  # fmt: skip


KEYS = {cell.key for cell in CELLS}


def rounds_table(rows: dict[str, Row]) -> list[str]:
    """Client-steps per second by workload, a column for each contestant."""
    short = ["auto", "1/4", "1/16", "all", "by hand", "compiled vmap", "vmap", "torch loop", "floor"]
    lines = []
    for name in ROUNDS:
        own = [_short(rows.get(f"5/{name}, {who}")) if f"5/{name}, {who}" in KEYS else "-" for who in WHO]
        share = rows.get(f"5/{name}, fljax", {}).get("share_of_floor")
        lines.append([name, *own, "-" if share is None else f"{100 * share:.1f} %"])
    return _table("5: rounds", short, lines)


def markdown(report: dict[str, Any]) -> str:
    """All rows, part by part, with the trace's heaviest kernels."""
    told = ", ".join(f"{name} {version}" for name, version in sorted(report["versions"].items()))
    text = [
        f"# fljax on {report['device']}, {report['date']}",
        "",
        f"`python benchmarks/accelerator.py`, commit {report['commit']}"
        + (", **small sizes: not a measurement of speed**" if report["small"] else "")
        + f". {told}.",
        "How to read it: [benchmarks/README.md](../../README.md#on-a-gpu).",
    ]
    for part, title in PARTS.items():
        own = [cell for cell in CELLS if cell.part == part]
        text += ["", f"## {part}: {title}", ""]
        if part in (3, 4, 5):
            table = {3: forms_table, 4: loops_table, 5: rounds_table}[part]
            text += ["```", *table(report["rows"]), "```", ""]
        text += ["| cell | found |", "|---|---|"]
        text += [
            f"| {c.name} | {words(report['rows'][c.key]) if c.key in report['rows'] else 'missing'} |" for c in own
        ]
        for cell in own:
            if top := report["rows"].get(cell.key, {}).get("top"):
                text += ["", f"{cell.name}: the heaviest kernels, their share of the busy time, and calls", ""]
                text += [f"    {100 * share:5.1f} %  {calls:7,}  {name}" for name, share, calls in top]
    return "\n".join(text) + "\n"


def rule_of(report: dict[str, Any], source: str) -> gpu_rules.GpuRules:
    """The rule that the measurements ask for; what was not measured stays as it is.

    Where the form of convolutions or of pooling changes, a chunk is chosen by models without convolutions, since the
    others were measured in the old form.
    """
    rows, old = report["rows"], gpu_rules.read()
    narrow: Any = _fastest(rows, "lenet", old.narrow_convolution)
    wide: Any = _fastest(rows, "resnet18", old.wide_convolution)
    windows = f"{narrow}, windows"
    pooled = _fastest(rows, "lenet", windows if old.pooling == "windows" else narrow, (narrow, windows), ("",))
    pooling: Any = "windows" if pooled == windows else "elementwise"
    changed = (narrow, wide, pooling) != (old.narrow_convolution, old.wide_convolution, old.pooling)
    chunk = chunk_of(rows, old.chunk_bytes, DENSE if changed else tuple(ROUNDS))
    return gpu_rules.GpuRules(source, chunk, narrow, wide, pooling)


DENSE = ("W1a", "W3", "W5", "W5 of 10,000", "W1b")


def rule_text(report: dict[str, Any], source: str) -> str:
    """The file ``gpu_rules.toml``."""
    return gpu_rules.write(rule_of(report, source))


def _fastest(
    rows: dict[str, Row],
    model: str,
    kept: str,
    forms: tuple[str, ...] = FORMS,
    chunks: tuple[str, ...] = ("", ", 10 at a time"),
) -> str:
    """Which form has the highest rate with 100 clients, else with 10, in its better chunk; ``kept`` unless another one
    is clearly faster, or could be measured where ``kept`` could not. Of forms about as fast as the fastest, the one
    that holds the least memory is taken.

    A number of clients counts if ``kept`` and another form were tried with it. A cell that a time limit cut off was not
    tried.
    """
    for clients in ("100", "10"):
        names = {form: [f"3/{model}, {clients} clients, {form}{chunk}" for chunk in chunks] for form in forms}
        known = {name for name, row in rows.items() if not row.get("again")}
        tried = {form: [name for name in own if name in known] for form, own in names.items()}
        if not tried[kept] or sum(map(bool, tried.values())) < 2:
            continue
        best_rows = {form: max((rows[name] for name in own), key=_rate) for form, own in tried.items() if own}
        rates = {form: _rate(row) for form, row in best_rows.items()}
        highest = max(rates.values())
        if highest:
            near = [form for form, rate in rates.items() if MARGIN * rate >= highest]
            least = min(near, key=lambda form: best_rows[form].get("temporary", 0))
            return least if highest > MARGIN * rates[kept] else kept
    return kept


def _rate(row: Row) -> float:
    rate: float = row.get("rate", 0.0)
    return rate


def chunk_of(rows: dict[str, Row], old: int, workloads: tuple[str, ...]) -> int:
    """The number of bytes by which ``auto`` is best over some workloads; ``old`` unless another is clearly better.

    Each workload was measured with some numbers of clients, each of which moves ``clients x lane_bytes``. A chunk of
    so many bytes takes the largest measured number that fits; its rate by the workload's best rate is the score.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for cell in CELLS:
        row = rows.get(cell.key, {})
        known = cell.part == 5 and row.get("lane_bytes") and "rate" in row and "precision" not in cell.options
        if known and cell.options["workload"] in workloads:
            points.setdefault(cell.options["workload"], []).append((row["clients"] * row["lane_bytes"], row["rate"]))
    points = {name: sorted(found) for name, found in points.items() if len(found) > 1}
    if not points:
        return old

    def score(chunk: int) -> float:
        total = 0.0
        for found in points.values():
            fitting = [rate for size, rate in found if size <= chunk] or [found[0][1]]
            total += math.log(fitting[-1] / max(rate for _, rate in found))
        return total / len(points)

    best = max(sorted({size for found in points.values() for size, _ in found}, reverse=True), key=score)
    return best if score(best) - score(old) > math.log(MARGIN) else old


def readme_sentence(results: Path) -> str:
    """What README says of accelerators: the newest committed measurement at full size, or that there is none."""
    reports = [(json.loads(file.read_text()), file.name) for file in results.glob("accelerator-*.json")]
    for report, _ in sorted(reports, key=lambda each: (each[0]["date"], each[1]), reverse=True):
        if report["small"] or report["platform"] == "cpu":
            continue
        rates = {n: report["rows"].get(f"5/{n}, fljax", {}).get("rate") for n in ("W5", "W2 of 100")}
        said = [f"{rate:,.0f} client-steps/s with {what}" for (rate, what) in zip(
            rates.values(), ("1,000 MLPs side by side", "100 LeNets"), strict=True) if rate is not None]  # fmt: skip
        return f"On one {report['device']} ({report['date']}) fljax makes {' and '.join(said)}."
    return NO_GPU
