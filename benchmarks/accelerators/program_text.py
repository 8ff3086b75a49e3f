"""What a compiled program consists of, read from XLA's text of it: kernels and estimated cycles, loop by loop."""

from __future__ import annotations

import re
from typing import NamedTuple

# Instructions that launch nothing.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "opt-barrier",
    "partition-id",
    "copy-done",
    "async-done",
    "all-reduce-done",
}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?\S+ = (?:\((?:[^()]|\([^()]*\))*\)|\S+) ([a-z][\w\-]*)\(")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"(?:to_apply|calls|true_computation|branch_computations)=\{?%?([\w.\-]+)")


class Loop(NamedTuple):
    """One turn of a loop; the whole program is a loop of one turn."""

    trips: int | None  # number of turns; None if the program computes it
    kernels: int  # kernels that a turn launches, without those of inner loops
    cycles: int  # XLA's estimate for a turn, without inner loops; 0 where it gives none
    inner: tuple[Loop, ...]  # the loops inside


def read(text: str) -> Loop:
    """The program of a compiled module (``Compiled.as_text()``). Of a condition, the first branch counts."""
    computations: dict[str, list[str]] = {}
    name, entry = "", ""
    for line in text.splitlines():
        if line.rstrip().endswith("{") and not line.startswith((" ", "HloModule")):
            name = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0].split("(")[0]
            computations[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            computations[name].append(line)
    return _turn(computations, entry, 1)


def _turn(computations: dict[str, list[str]], name: str, trips: int | None) -> Loop:
    kernels = cycles = 0
    inner: list[Loop] = []
    for line in computations.get(name, []):
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        kind = found.group(1)
        if kind == "while":
            body = re.search(r"body=%?([\w.\-]+)", line)
            assert body is not None
            inner.append(_turn(computations, body.group(1), _trips(computations, line)))
        elif kind in ("call", "conditional"):
            called = _CALLED.search(line)
            part = _turn(computations, called.group(1), 1) if called else Loop(1, 0, 0, ())
            kernels, cycles = kernels + part.kernels, cycles + part.cycles
            inner.extend(part.inner)
        estimate = _CYCLES.search(line)
        kernels += kind not in _FREE
        cycles += int(estimate.group(1)) if estimate else 0
    return Loop(trips, kernels, cycles, tuple(inner))


def _trips(computations: dict[str, list[str]], line: str) -> int | None:
    """Turns of a loop: as XLA annotates them, or the constant that a counter from 0 is compared with."""
    known = _TRIPS.search(line)
    if known is not None:
        return int(known.group(1))
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    lines = computations.get(condition.group(1), []) if condition else []
    constants = dict(re.findall(r"%?(\S+) = s32\[\]\S* constant\((\d+)\)", "\n".join(lines)))
    compared = re.search(r"ROOT .* compare\([^,]*, %?([\w.\-]+)\), direction=LT", "\n".join(lines))
    return int(constants[compared.group(1)]) if compared and compared.group(1) in constants else None


def total(loop: Loop, unknown: int = 1) -> tuple[int, int]:
    """Kernels and cycles of one turn with all inner loops; those of unknown length have ``unknown`` turns."""
    kernels, cycles = loop.kernels, loop.cycles
    for each in loop.inner:
        trips = unknown if each.trips is None else each.trips
        found = total(each, unknown)
        kernels, cycles = kernels + trips * found[0], cycles + trips * found[1]
    return kernels, cycles


def heaviest(loop: Loop) -> Loop | None:
    """The inner loop with the largest turn, by cycles, else by kernels; None without inner loops."""
    return max(loop.inner, key=lambda each: total(each)[::-1], default=None)
