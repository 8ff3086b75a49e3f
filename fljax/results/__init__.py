"""Labelled results: in memory, in a run folder, and while a run goes on."""

from fljax.results.evaluations import Line, append, read_lines
from fljax.results.progress import Progress, RunState, best_cell, is_running, read_state
from fljax.results.values import (
    OF_STANDALONE,
    BestModels,
    Reference,
    Result,
    join,
    judged_by,
    metrics_dataset,
    metrics_of_runs,
    with_contribution_correlation,
    with_decisions,
    with_gains,
    with_threshold,
)

__all__ = [
    "OF_STANDALONE",
    "BestModels",
    "Line",
    "Progress",
    "Reference",
    "Result",
    "RunState",
    "append",
    "best_cell",
    "is_running",
    "join",
    "judged_by",
    "metrics_dataset",
    "metrics_of_runs",
    "read_lines",
    "read_state",
    "with_contribution_correlation",
    "with_decisions",
    "with_gains",
    "with_threshold",
]
