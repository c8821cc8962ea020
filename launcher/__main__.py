"""`python -m launcher`, and the command `launcher`."""

from __future__ import annotations

import gc
import itertools
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
        # Where the shell closed one, its number is given to something else until the command line has seen to that.
        streams = (sys.stdin, sys.stdout, sys.stderr)
        if None not in streams and _starts_a_job(sys.argv[1:]):
            from launcher.backends import detached

            detached.prepare_early()
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


def _starts_a_job(words: list[str]) -> bool:
    """Whether the command line will probably need a coordinator here; a wrong guess costs a process that ends with us."""
    own = words[: words.index("--")] if "--" in words else words
    if own[:1] != ["submit"] or {"-h", "--help", "--dry-run", "--backend=slurm"} & {*own}:
        return False
    return ("--backend", "slurm") not in itertools.pairwise(own)


if __name__ == "__main__":
    main()
