"""fabric without what nobody here asks of it, which is a third of what it takes to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOADS = "import sys, launcher.transports.lean_fabric as lean, fabric"


def told(script: str, *words: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", f"{LOADS}\n{script}", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_neither_mocks_nor_yaml_are_loaded() -> None:
    """And no stand-in is left where others would find it."""
    heavy = ("asyncio", "unittest.mock", "yaml", "invoke.vendor.yaml")
    assert told(f"print([name for name in {heavy} if name in sys.modules])") == "[]"
    assert told("import unittest.mock; print(unittest.mock.Mock().__class__.__name__)") == "Mock"


def test_a_fabric_yaml_is_read_all_the_same(tmp_path: Path) -> None:
    """By the real PyYAML, once it is needed."""
    (tmp_path / "fabric.yaml").write_text("user: hugo\nconnect_kwargs: {look_for_keys: false}\n")
    script = "c = fabric.Config(project_location=sys.argv[1], lazy=True)\nc.load_project()\n"
    script += "print(c.user, c.connect_kwargs.look_for_keys)"
    assert told(script, str(tmp_path)) == "hugo False"
