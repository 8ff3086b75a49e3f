"""The entry of the command ``fljax`` and of ``python -m fljax``."""

import gc
import os
import signal
import sys

# Traced programs are many small objects that stay. Python looks for circles among them after every 700 new ones by
# default, which takes a tenth of a short run.
OBJECTS = 200_000


def main() -> None:
    """Runs the command line; Ctrl-C prints one sentence, also while modules are imported."""
    gc.set_threshold(OBJECTS)
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
        gc.freeze()  # else Python looks for circles among all objects once more, which takes most of a second


def _leave(code: int) -> None:
    """Ends the process now. Threads that an interruption left behind, such as timers of JAX, are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
