"""What a run says while it goes on: a line for each evaluation, and the state of a run read from its folder."""

from fljax.watching.lines import Line, append, read_lines
from fljax.watching.state import Progress, RunState, best_cell, is_running, read_state

__all__ = ["Line", "Progress", "RunState", "append", "best_cell", "is_running", "read_lines", "read_state"]
