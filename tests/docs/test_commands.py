"""Commands and options in the pages are those of the program."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from launcher.cli import cli
from tests.docs.pages import PAGES, ROOT, first_column, launcher_calls, section, shell_lines, text_of

TORCHRUN = (
    "torchrun --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --nnodes=$WORLD_SIZE --node_rank=$RANK "
    "--nproc_per_node=2 train_multinode.py --total_epochs 10 --save_every 5"
)


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    loaded = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in loaded.items() if command is not None}


def within(known: dict[str, click.Command], name: str, words: list[str]) -> tuple[str, list[str]]:
    """A command of a group, as `config show`, counts as one."""
    group = known.get(name)
    if not isinstance(group, click.Group) or not words or words[0] not in group.commands:
        return name, words
    known[f"{name} {words[0]}"] = group.commands[words[0]]
    return f"{name} {words[0]}", words[1:]


def options(command: click.Command) -> set[str]:
    return {text for parameter in command.params if isinstance(parameter, click.Option) for text in parameter.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_are_understood(page: Path) -> None:
    """Each `launcher COMMAND --option` in a page names a command and options that it has."""
    known = commands()
    wrong = []
    for name, *words in launcher_calls(page.read_text(encoding="utf-8")):
        name, words = within(known, name, words)
        words = words[: words.index("--")] if "--" in words else words
        said = {word.partition("=")[0].strip("[]") for word in words if re.match(r"\[?-{1,2}[a-z]", word)}
        said = {option for text in said for option in text.split("|")}
        if name not in known or not said <= options(known[name]):
            wrong.append(f"launcher {name} {' '.join(words)}")
    assert wrong == []


def test_every_command_and_option_is_documented() -> None:
    """docs/cli.md has a heading for each command, and each option that it or its kind has."""
    page = text_of("docs/cli.md")
    heads = set(re.findall(r"launcher ([a-z-]+)", "\n".join(re.findall(r"^## .*$", page, re.M))))
    assert heads == set(commands())
    missing = {f"{name} {option}" for name, command in commands().items() for option in options(command) if option not in page}
    assert missing == set()


@pytest.mark.parametrize("name", ["submit", "logs"])
def test_option_tables_are_complete(name: str) -> None:
    """The tables of submit and logs have exactly the options there are."""
    shared = {"--cluster", "--hostfile", "--hosts", "--exclude", "--backend"} if name == "submit" else set()
    said = {word.split()[0] for word in first_column(section("docs/cli.md", f"launcher {name}"))}
    assert said | shared == options(commands()[name]) - {"--help"}


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_torchrun_stands_word_for_word(page: str) -> None:
    """Both READMEs show the torchrun command as it must run."""
    assert TORCHRUN in text_of(page)


def test_both_readmes_have_the_same_commands() -> None:
    """The Chinese page is not behind: its command lines are those of the English one."""
    english, chinese = (
        [line for line in shell_lines(text_of(page)) if re.match(r"(launcher|make|pip) ", line)]
        for page in ("README.md", "README.zh-CN.md")
    )
    assert sorted(set(english)) == sorted(set(chinese))
