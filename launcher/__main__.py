"""`python -m launcher`, and the command `launcher`."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line; a submit is stopped by TERM as by Ctrl-C from here on, before the rest of it is loaded."""
    if sys.argv[1:2] == ["submit"]:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from launcher.cli import main as run

        run()
    except KeyboardInterrupt:
        # Nothing has been made yet; from then on the command itself sees to what is there.
        sys.exit(130)


if __name__ == "__main__":
    main()
