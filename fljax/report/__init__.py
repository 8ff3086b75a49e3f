"""Pictures and a page from the results of a run."""

from fljax.report.drawing import figures, picture
from fljax.report.page import write
from fljax.report.tables import Row, pivot, summary

__all__ = ["Row", "figures", "picture", "pivot", "summary", "write"]
