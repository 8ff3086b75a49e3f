"""Runs a measurement: ``python benchmarks/run.py NAME [options]``; without a name it lists them.

Rows are printed and saved as they come, into ``results/current/NAME`` or ``--out STEM``, with ``.json`` and ``.md``.
``--small`` takes the smallest sizes, which tells whether a measurement works, and saves only with ``--out``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import cases, registry, reporting


def main(words: Sequence[str]) -> None:
    """Lists, or measures."""
    if not words or words[0].startswith("-"):
        print(__doc__, *registry.lines(), sep="\n")
        return
    (name,) = reporting.names_in(words[0], tuple(registry.MEASUREMENTS), "measurement")
    measurement = registry.MEASUREMENTS[name]
    options = arguments(measurement, words[1:])
    module = importlib.import_module(f"benchmarks.{measurement.module}")
    stem = options.out or (None if options.small else reporting.CURRENT / name)
    shown = [Path(word).name if word.startswith("/") else word for word in words]  # no folders of this machine
    command = " ".join(["python benchmarks/run.py", *shown])
    parts = inspect.cleandoc(module.__doc__ or "").split("\n\n")[1:]
    text = "\n\n".join(part for part in parts if not part.startswith("`") or part.startswith(f"`{name}`"))
    rows: list[reporting.Row] = []
    print(*measurement.columns, sep=" | ", flush=True)
    with cases.checkouts(vars(options).get("against") or "") as options.sources:
        for row in getattr(module, measurement.function)(options):
            rows.append(row)
            print(*map(reporting.cell, row), sep=" | ", flush=True)
            if stem is not None:
                reporting.save(stem, measurement.sentence, command, text, measurement.columns, rows)
    if stem is not None and rows:
        if hasattr(module, "draw"):
            module.draw([dict(zip(measurement.columns, row, strict=False)) for row in rows], stem.with_suffix(".png"))
        print(f"saved: {stem.name}.md and .json in {stem.parent.name}/")


def arguments(measurement: registry.Measurement, words: Sequence[str]) -> argparse.Namespace:
    """The options of a measurement, with the values of ``--small`` as defaults if it is given."""
    parser = argparse.ArgumentParser(prog=f"run.py {measurement.name}", description=measurement.sentence)
    defaults = {**measurement.options, **(measurement.small if "--small" in words else {})}
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default: {default!r}")
    parser.add_argument("--small", action="store_true", help="the smallest sizes")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of the files, in place of results/current")
    return parser.parse_args(words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that no halted process is left behind
    main(sys.argv[1:])
