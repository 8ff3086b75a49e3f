"""The entry of the command ``fljax`` and of ``python -m fljax``."""

import atexit
import gc
import os
import signal
import sys

# Traced programs are many small objects that stay. With Python's own thresholds, garbage collection takes a tenth of
# the CPU of a short run (benchmarks/results/archive/2026-11-28-quickstart-time.md).
NEW_OBJECTS_PER_COLLECTION = 200_000


def main() -> None:
    """Runs the command line; Ctrl-C prints one sentence, also while modules are imported."""
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION, 2, 2)
    atexit.register(gc.freeze)  # what is there at the end needs no last collection, which takes most of a second
    try:
        from fljax.cli import main as run

        run()
    except KeyboardInterrupt:
        print("fljax: interrupted", file=sys.stderr)
        _leave(130)
    except SystemExit as end:
        if end.code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            _leave(end.code)
        raise
    finally:
        # The work is done: from here on Ctrl-C only ends the process.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(code: int) -> None:
    """Ends the process now. Threads that an interruption left behind, such as timers of JAX, are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
