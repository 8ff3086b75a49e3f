"""What a run says while it goes on: a line for each evaluation, and the state of a run read from its folder."""

from fljax.watching.lines import Line, append, read_lines

__all__ = ["Line", "append", "read_lines"]
