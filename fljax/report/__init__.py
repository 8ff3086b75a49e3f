"""Figures and an HTML page from the results of a run."""

from fljax.report.clients import data_picture
from fljax.report.drawing import figures, picture
from fljax.report.live import follow
from fljax.report.page import write, write_page
from fljax.report.sweeps import best_rows, sweep_picture
from fljax.report.tables import Overview, Row, overview, pivot, summary

__all__ = [
    "Overview",
    "Row",
    "best_rows",
    "data_picture",
    "figures",
    "follow",
    "overview",
    "picture",
    "pivot",
    "summary",
    "sweep_picture",
    "write",
    "write_page",
]
