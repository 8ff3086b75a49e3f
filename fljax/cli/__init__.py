"""The command line: parses, calls, prints; nothing is computed here.

Exit codes: 0 done, 2 bad input, 130 and 143 interrupted by Ctrl-C and SIGTERM, 1 anything else; errors are one sentence
on stderr. Heavy modules are imported inside the commands, so that ``--help`` is quick.
"""

from fljax.cli.main import app, main

__all__ = ["app", "main"]
