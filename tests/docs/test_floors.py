"""The floors of ARCHITECTURE.md are those of the code."""

from __future__ import annotations

import ast

from tests.docs.pages import ROOT, code, rows, section

APART = "agent"


def floors() -> dict[str, int]:
    """{room: floor} as the table says."""
    return {
        room: int(row[0])
        for row in rows(section("ARCHITECTURE.md", "Floors"))
        for cell in row[1:]
        for room in code(cell)
        if (ROOT / "launcher" / room).is_dir() or (ROOT / "launcher" / f"{room}.py").is_file()
    }


def imports() -> set[tuple[str, str, str]]:
    """(file, its room, imported room) for all imports between rooms."""
    found = set()
    for path in (ROOT / "launcher").rglob("*.py"):
        here = path.relative_to(ROOT / "launcher").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            parts = [name.split(".") for name in names if name.startswith("launcher.")]
            # The package itself names what it hands out, from whichever floor.
            found |= {(str(path.relative_to(ROOT)), here, part[1]) for part in parts if part[1] != here != "__init__"}
    return found


def test_every_room_has_its_floor() -> None:
    """No file or folder of launcher/ is missing from the table, and none in it is invented."""
    there = {path.name.removesuffix(".py") for path in (ROOT / "launcher").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(floors()) == there - {"__init__", "__pycache__", "schemas", APART}


def test_rooms_import_from_below_only() -> None:
    """A room imports from floors below its own; the agent, which any may import, imports nothing of ours."""
    floor = floors()
    wrong = [
        f"{path}: {here} imports {there}"
        for path, here, there in sorted(imports())
        if here == APART or (there != APART and floor[there] >= floor[here])
    ]
    assert wrong == []
