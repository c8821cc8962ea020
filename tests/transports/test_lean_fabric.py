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


def test_neither_mocks_nor_yaml_nor_mail_are_loaded() -> None:
    """And no stand-in is left where others would find it."""
    heavy = ("asyncio", "unittest.mock", "yaml", "invoke.vendor.yaml", "importlib.metadata", "email", "zipfile")
    assert told(f"print([name for name in {heavy} if name in sys.modules])") == "[]"
    assert told("import unittest.mock; print(unittest.mock.Mock().__class__.__name__)") == "Mock"


def test_a_fabric_yaml_is_read_all_the_same(tmp_path: Path) -> None:
    """By the real PyYAML, once it is needed."""
    (tmp_path / "fabric.yaml").write_text("user: hugo\nconnect_kwargs: {look_for_keys: false}\n")
    script = "c = fabric.Config(project_location=sys.argv[1], lazy=True)\nc.load_project()\n"
    script += "print(c.user, c.connect_kwargs.look_for_keys)"
    assert told(script, str(tmp_path)) == "hugo False"


def test_paramiko_knows_its_version() -> None:
    """It tells servers who it is; so does the place where versions are written."""
    script = "import paramiko, importlib.metadata as real; print(paramiko.__version__, real.version('paramiko'))"
    said, written = told(script).split()
    assert said == written


def test_what_a_stand_in_lacks_comes_from_the_module_itself() -> None:
    """A later fabric may ask for more than this one."""
    script = "later = lean._Later('importlib.metadata', 'importlib.metadata', version=1)\n"
    script += "sys.modules['importlib.metadata'] = later\nprint(later.version, later.distribution('fabric').name)"
    assert told(script) == "1 fabric"
