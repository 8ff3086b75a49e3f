"""The command line: parses arguments, calls fljax and prints; this package computes nothing.

Exit codes: 0 done, 2 bad input, 130 and 143 interrupted by Ctrl-C and SIGTERM, 1 any other error. An error is one
sentence on stderr. Heavy modules are imported inside the commands, so that ``--help`` is fast.
"""

from fljax.cli.entry import app, main

__all__ = ["app", "main"]
