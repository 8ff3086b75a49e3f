"""The runs behind a published table: shipped configs, with what they cost (``fljax/published/runs.toml``)."""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple

from fljax.config.keys import Config
from fljax.config.reading import load
from fljax.published.tables import Published, select

# With ``quick``: so few rounds that only errors are found.
QUICK_ROUNDS, QUICK_STEPS = 2, 10


class TableRun(NamedTuple):
    """One run of a table."""

    config: str  # name of a shipped config, or a path
    changes: tuple[str, ...] = ()  # overrides of it, as for ``--set``
    minutes: float = math.nan  # measured on 2 cores; NaN if nobody has measured it


def table_runs(table: str) -> tuple[TableRun, ...]:
    """The runs that make the numbers of a published table, one for each of its settings that a config has."""
    raw = _read()
    minutes = raw["minutes"]
    return tuple(
        TableRun(config, tuple(entry.get("changes", ())), float(minutes.get(config, math.nan)))
        for entry in raw["runs"]
        if table in entry["tables"]
        for config in entry["configs"]
    )


def load_run(run: TableRun, changes: Sequence[str] = (), quick: bool = False) -> Config:
    """The config of a run with further overrides; ``quick``: two rounds of one seed, and few standalone steps."""
    config = load(run.config, [*run.changes, *changes])
    if not quick:
        return config
    steps = f"steps={QUICK_STEPS}" if config.standalone.epochs is None else "epochs=1"
    small = [f"rounds={QUICK_ROUNDS}", f"evaluate_every={QUICK_ROUNDS}", "seeds=1", f"standalone.{steps}"]
    return load(run.config, [*run.changes, *changes, *small])


def rows_of(config: Config, table: str) -> list[Published]:
    """The rows of a table that a config is about."""
    chosen = config.published
    return select([table]) if chosen is None else select([table], chosen.dataset, chosen.partition)


@functools.cache
def _read() -> dict[str, Any]:
    file = importlib.resources.files("fljax").joinpath("published", "runs.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
