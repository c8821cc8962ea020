"""Entry point: `python -m launcher.coordinator FOLDER`, or without FOLDER, which then comes on stdin.

Started without, it loads its code meanwhile; once it hears that ssh will be wanted all that ssh needs, too; in an allocation
what a step needs.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from pathlib import Path


def main() -> int:
    """Coordinate the job until its end; 0 also when another coordinator has it already."""
    # As in launcher.__main__: code that is being loaded is no garbage.
    gc.set_threshold(50_000)
    from launcher.coordinator.loop import Coordinator
    from launcher.coordinator.owner import AlreadyOwned, Owner
    from launcher.store import Folder

    given = sys.argv[1:]
    root = given[0] if given else _await_job()
    if not root:
        return 0
    folder = Folder(Path(root))
    if not given:
        _go_on_alone(folder.root, folder.coordinator_log)
    try:
        with Owner(folder) as owner:
            coordinator = Coordinator(folder, owner)
            try:
                coordinator.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the job gets an end that says so
                traceback.print_exc()
                coordinator.give_up(error)
                return 70
    except AlreadyOwned:
        return 0
    return 0


def _await_job() -> str:
    """The folder of the job that submit gives us when it has planned it; empty when there will be none."""
    from launcher.backends.detached import SSH

    if "SLURM_JOB_ID" in os.environ:
        import launcher.transports.step  # noqa: F401 - whoever needs it finds it loaded
    told = b""
    while piece := os.read(0, 1 << 16):
        foreseen, told = told.startswith(SSH), told + piece
        if not foreseen and told.startswith(SSH):
            threading.Thread(target=_load_ssh, daemon=True).start()
    return os.fsdecode(told.removeprefix(SSH))


def _go_on_alone(root: Path, log_path: Path) -> None:
    """Let go of the streams and the directory of whoever started us."""
    with open(os.devnull, "rb") as null, log_path.open("ab") as log:
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source.fileno(), target)
    os.chdir(root)


def _load_ssh() -> None:
    import launcher.transports.lean_fabric
    import launcher.transports.ssh  # noqa: F401 - whoever needs it finds it loaded, or waits for it


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # All is written, and all threads that are left only listen: nothing is to be taken apart.
    os._exit(code)
