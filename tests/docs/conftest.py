"""Two jobs on simulated nodes, run once, whose outputs the pages are compared with."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import warm

COMMAND = (
    "env; echo model > $PAI_OUTPUT_MODEL/weights; echo $RANK > $PAI_OUTPUT_CHECKPOINTS/$RANK; "
    '[ $RANK = 0 ] || exit ${FAIL:-0}; [ -z "$FAIL" ] || exec sleep 60'
)


@dataclass(frozen=True)
class Jobs:
    """One that succeeded and one whose node 1 exits with 3."""

    home: Path
    good: str
    bad: str

    def run(self, *words: str, check: int = 0) -> str:
        """Stdout of a launcher command that exits with ``check``."""
        done = launcher(self.home, *words)
        assert done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str, check: int = 0) -> Any:
        """The one document that a command prints."""
        return json.loads(self.run(*words, "-o", "json", check=check))

    def lines(self, *words: str) -> list[dict[str, Any]]:
        """The objects that a streaming command prints."""
        return [json.loads(line) for line in self.run(*words, "-o", "json").splitlines()]


def launcher(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A launcher command in a home of its own, to its end."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
    environment = {**clean, "LAUNCHER_HOME": str(home), "DOCS_TOKEN": "hush"}
    return warm.launcher(words, env=environment)


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Both jobs, ended."""
    home, source = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("source")
    (source / "data").write_text("x")
    common = ("submit", "--backend", "local", "--nodes", "2", "--source-dir", str(source), "--command", COMMAND)
    good = launcher(home, *common, "--name", "good", "--forward-env", "DOCS_*")
    assert good.returncode == 0, good.stderr
    bad = launcher(home, *common, "--name", "bad", "--env", "FAIL=3")
    assert bad.returncode == 3, bad.stderr
    names = sorted(path.name for path in (home / "jobs").iterdir())
    return Jobs(home, names[1], names[0])
