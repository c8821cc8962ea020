"""Entry point: `python -m launcher.coordinator FOLDER`."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from launcher.coordinator.loop import Coordinator
from launcher.coordinator.owner import AlreadyOwned, Owner
from launcher.store import Folder


def main() -> int:
    """Coordinate the job until its end; 0 also when another coordinator has it already."""
    folder = Folder(Path(sys.argv[1]))
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


if __name__ == "__main__":
    sys.exit(main())
