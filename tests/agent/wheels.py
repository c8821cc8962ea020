"""Python packages for pip to install, made here: no index and no network is needed."""

from __future__ import annotations

import zipfile
from pathlib import Path

_BLOCKING = '''
import os, shutil, signal, time
def build_wheel(directory, config_settings=None, metadata_directory=None):
    if os.path.exists({mark!r}):
        return os.path.basename(shutil.copy({made!r}, directory))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open({mark!r}, "w").close()
    time.sleep(600)
def get_requires_for_build_wheel(config_settings=None):
    return []
'''


def wheel(folder: Path, name: str, version: str = "1.0") -> Path:
    """A package of one module, `<name>.VERSION`, with a program `<name>-run` that prints it."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'VERSION = "{version}"\n\n\ndef main():\n    print("{name}", VERSION)\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-run = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(member, text)
    return path


def blocking_project(folder: Path, mark: Path) -> Path:
    """A source folder whose first build makes the file ``mark``, and then neither ends nor listens to SIGTERM; a second ends."""
    made = wheel(mark.parent / "made", "blocking", "1")
    folder.mkdir(parents=True)
    (folder / "backend.py").write_text(_BLOCKING.format(mark=str(mark), made=str(made)))
    lines = ["[build-system]", "requires = []", 'build-backend = "backend"', 'backend-path = ["."]', "", "[project]"]
    (folder / "pyproject.toml").write_text("\n".join([*lines, 'name = "blocking"', 'version = "1"', ""]))
    return folder
