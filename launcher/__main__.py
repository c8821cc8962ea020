"""`python -m launcher`, and the command `launcher`."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Run the command line; a submit is stopped by TERM as by Ctrl-C from here on, before the rest of it is loaded."""
    # Code that is being loaded is no garbage: looking for some all the while takes a fifth of the start.
    gc.set_threshold(50_000)
    if sys.argv[1:2] == ["submit"]:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from launcher.cli import main as run

        run()
    except KeyboardInterrupt:
        # Nothing has been made yet; from then on the command itself sees to what is there.
        os._exit(130)
    except SystemExit as end:
        if isinstance(end.code, int):
            # All is written. Taking the modules apart one by one takes longer than many a command.
            os._exit(end.code)
        raise


if __name__ == "__main__":
    main()
