"""The entry of the command ``fljax`` and of ``python -m fljax``."""

import signal
import sys


def main() -> None:
    """Runs the command line; Ctrl-C prints one sentence, also while modules are imported."""
    try:
        from fljax.cli import main as run

        run()
    except KeyboardInterrupt:
        print("fljax: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        # The work is done: from here on Ctrl-C only ends the process.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
