"""What the site has besides docs/: a reference made from the program, and the files of the repository that pages lead to.

mkdocs calls the functions ``on_…``.  In the site the repository lies below `repository/`, Markdown as pages, other files as
pages that show them, notebooks as pages of their cells.
"""

from __future__ import annotations

import importlib
import json
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "repository"
ROOMS = ("launcher.session", "launcher.images")
"""modules that people import from, besides the package itself"""
SCHEMAS = {"cluster": "cluster.yaml", "job": "job.yaml", "config": "config.yaml"}

_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
_FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2", re.M | re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the folders of the navigation: `adr/` is all that lies in there, its README first."""
    config.nav = _filled(config.nav)
    return config


def _filled(entries: list[Any]) -> list[Any]:
    return [{title: _pages_of(what) for title, what in entry.items()} for entry in entries]


def _pages_of(what: Any) -> Any:
    if isinstance(what, list):
        return _filled(what)
    if not what.endswith("/"):
        return what
    return [f"{what}README.md", *(f"{what}{path.name}" for path in sorted((ROOT / "docs" / what).glob("0*.md")))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    made = {"reference/cli.md": commands(), "reference/python.md": names(), "reference/files.md": keys()}
    named = re.findall(rf"{REPOSITORY}/([\w./-]+\.md)", json.dumps(config.nav))
    made |= {page_of(path): shown(path) for path in _reached([ROOT / name for name in named])}
    for name, text in made.items():
        if name not in files.src_uris:
            level = InclusionLevel.NOT_IN_NAV if name.startswith(REPOSITORY) else InclusionLevel.INCLUDED
            files.append(File.generated(config, name, content=text, inclusion=level))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to files of the repository lead to their pages in the site."""
    here = _source_of(page.file.src_uri)
    if here is None:
        return markdown

    def led(found: re.Match[str]) -> str:
        there = _target(here, found[2])
        if there is None:
            return found[0]
        return found[1] + posixpath.relpath(page_of(there), posixpath.dirname(page.file.src_uri)) + found[3]

    return _LINK.sub(led, markdown)


def _source_of(uri: str) -> Path | None:
    """The file of the repository that a page of the site shows, if it is a page of Markdown."""
    top = ROOT / uri.removeprefix(f"{REPOSITORY}/") if uri.startswith(f"{REPOSITORY}/") else ROOT / "docs" / uri
    return top if top.is_file() else None


def _target(page: Path, link: str) -> Path | None:
    """What a relative link means; None for addresses, and for what is not there, of which mkdocs tells."""
    if ":" in link:
        return None
    there = (page.parent / link).resolve()
    if there.is_dir():
        there /= "README.md"
    return there if there.is_file() and there.is_relative_to(ROOT) else None


def page_of(path: Path) -> str:
    """Where the site has a file of the repository."""
    inside = path.relative_to(ROOT).as_posix()
    if inside.startswith("docs/") and path.suffix == ".md":
        return inside.removeprefix("docs/")
    return f"{REPOSITORY}/{inside}" + ("" if path.suffix == ".md" else ".md")


def _reached(more: Iterable[Path]) -> set[Path]:
    """The files outside of docs/, and the notebooks in it, that links lead to from its pages, from those files and so on."""
    todo, seen = [*sorted((ROOT / "docs").rglob("*.md")), *more], set()
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        if page.suffix == ".md":
            links = _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
            todo += [there for _, link, _ in links if (there := _target(page, link)) is not None]
    return {path for path in seen if page_of(path).startswith(f"{REPOSITORY}/")}


def shown(path: Path) -> str:
    """A file of the repository as a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(_fence("python", source) if kind == "code" else source for kind, source in cells) + "\n"
    return f"# {path.relative_to(ROOT)}\n\n{_fence(path.suffix.lstrip('.'), text)}"


def _fence(language: str, text: str) -> str:
    return f"~~~~{language}\n{text.rstrip()}\n~~~~\n"


def commands() -> str:
    """The page of all commands, as `--help` has them."""
    from launcher.cli import cli

    top = click.Context(cli, info_name="launcher", max_content_width=110, terminal_width=110)
    parts = ["# Commands\n\nWhat `--help` says. [The command line](../cli.md) tells more of each.\n"]
    parts.append(_fence("text", cli.get_help(top)))
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        assert command is not None
        context = click.Context(command, parent=top, info_name=name, max_content_width=110, terminal_width=110)
        parts += [f"## launcher {name}\n", _fence("text", command.get_help(context))]
    return "\n".join(parts)


def names() -> str:
    """The page of what can be imported: mkdocstrings fills it in from the docstrings."""
    import launcher

    groups: dict[str, list[str]] = {"launcher": []}
    for name in launcher.__all__:
        groups["launcher"].append(f"{getattr(launcher, name).__module__}.{name}")
    for room in ROOMS:
        module = importlib.import_module(room)
        public = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if not name.startswith("_") and getattr(value, "__module__", "") == room
        ]
        groups[room] = [f"{getattr(module, name).__module__}.{name}" for name in public]
    groups["launcher.errors"] = ["launcher.errors"]
    parts = ["# Python\n\nThe names that programs and notebooks import, from the room of each heading.\n"]
    for room, objects in groups.items():
        parts += [f"## {room}\n", *(f"::: {name}\n" for name in objects)]
    return "\n".join(parts)


def keys() -> str:
    """The page of the files that people write: every key, from the JSON schemas."""
    parts = [
        "# Keys of files\n\nFrom the JSON schemas, by which editors complete and check them. "
        "[Inventories and job files](../cluster-yaml.md) and [your own config](../config.md) explain them.\n"
    ]
    for name, title in SCHEMAS.items():
        schema = json.loads((ROOT / f"launcher/schemas/{name}.schema.json").read_text(encoding="utf-8"))
        parts += [f"## {title}\n", _table(schema, title)]
        for part, shape in schema.get("$defs", {}).items():
            if "properties" in shape:
                parts += [f"### {title}: {part}\n", f"{shape.get('description', '')}\n", _table(shape, title)]
    return "\n".join(parts)


def _table(shape: dict[str, Any], title: str) -> str:
    must = shape.get("required", ())
    lines = ["| key | type | |", "|---|---|---|"]
    for key, value in shape.get("properties", {}).items():
        told = str(value.get("description", "")).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| `{key}` | {_type(value, title)} | {'Necessary. ' if key in must else ''}{told} |")
    return "\n".join(lines) + "\n"


def _type(value: dict[str, Any], title: str) -> str:
    """A type in words, with the texts that are allowed, and links to the tables of what it consists of."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{title.replace('.', '')}-{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in value:
            return " or ".join(dict.fromkeys(_type(one, title) for one in value[key]))
    if "const" in value or "enum" in value:
        return ", ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    kind = value.get("type", "anything")
    if kind == "array":
        return f"list of {_type(value.get('items', {}), title)}"
    more = value.get("additionalProperties")
    if kind == "object" and isinstance(more, dict):
        return f"mapping to {_type(more, title)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
