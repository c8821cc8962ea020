"""Operations that make things ready for the command: files in its config folder.

Runs on the nodes: standard library only, Python 3.8.
"""

import os

from launcher.agent import lean
from launcher.agent.layout import part_of


def config(session, request):
    """Write {name: JSON value} of ``files`` into the job's config folder, readable by the user alone."""
    folder = session.layout.config(session.job)
    os.makedirs(folder, exist_ok=True)
    for name, value in request["files"].items():
        target = os.path.join(folder, name)
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError("not a plain name: %r" % name)
        part = part_of(target)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(lean.dumps(value) + "\n")
        os.replace(part, target)
    return {}


OPS = {"prepare_config": config}
