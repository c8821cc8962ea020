"""docs/ is built as a site, strictly and without any network, and what is built needs none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

import launcher
from launcher.cli import cli
from tests.docs.pages import ROOT

pytestmark = pytest.mark.xdist_group("site")  # it is built once


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make docs` would make.  A page outside of the navigation, a broken link or anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    offline = ["unshare", "--net"] if os.geteuid() == 0 else []
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run([*offline, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


class _Fetched(HTMLParser):
    """What a browser loads by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "link"):
            self.found += [value for key in ("src", "href") if (value := told.get(key))]


def text(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture has an address; styles name none either."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        parser = _Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        assert [one for one in parser.found if re.match(r"(https?:)?//", one)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet


def test_files_of_the_repository_are_in_the_site(site: Path) -> None:
    """A link of a page to a file outside of docs/ leads to that file's page."""
    assert 'href="repository/ARCHITECTURE.html"' in text(site, "index.html")
    assert "one-time secret" in text(site, "repository/ARCHITECTURE.html")
    assert "internal_address" in text(site, "repository/cluster.yaml.example.html")
    assert "torch.load" in re.sub("<[^>]*>", "", text(site, "repository/docs/notebooks/pai_example.ipynb.html"))


def test_every_command_is_in_the_reference(site: Path) -> None:
    """... with each of its options."""
    page = text(site, "reference/cli.html")
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None and f'id="launcher-{name}"' in page
        assert all(option in page for one in command.params if isinstance(one, click.Option) for option in one.opts), name


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """... and those of the rooms that people import from, with what their docstrings say."""
    page = text(site, "reference/python.html")
    names = {*launcher.__all__, "retrieve", "list_images", "ImageInfo", "ImageScope", "Session"}
    names |= {"get_default_session", "setup_default_session"}
    names |= {rf"Estimator\.{name}" for name in launcher.Estimator.__annotations__}
    missing = {name for name in names if not re.search(rf'id="launcher\.[\w.]*\b{name}"', page)}
    assert missing == set()
    assert "such as <code>pytorch</code>; upper and lower case are the same" in page


def test_every_key_is_in_the_reference(site: Path) -> None:
    """A key of a file has its row, with type and description; parts are linked."""
    page = text(site, "reference/files.html")
    plain = re.sub("<[^>]*>", " ", page)
    for words in ("internal_address", "gpus_per_node", "hyperparameters", "forward_env", "Log-in name. Unset: what ssh would"):
        assert words in plain
    targets = set(re.findall(r'href="#([\w-]+)"', page))
    assert "clusteryaml-defaults" in targets
    assert targets <= set(re.findall(r'id="([\w-]+)"', page))
