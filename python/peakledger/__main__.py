"""``python -m peakledger``: the command line."""

import signal
import sys

from ._native import run


def main() -> int:
    """Runs the command line on the arguments of this process and returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, as it ends the binary
    return run(["peakledger", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
