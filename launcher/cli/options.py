"""Option types and options that several commands share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_CONTROLS = re.compile("[\x7f-\x9f]")
_UNREADABLE = "launcher.unreadable"


class BeforeDashes(click.Command):
    """A command whose own options end at `--`; torchrun has none, so who forgets it is told that rather than of an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; UsageError that names the script where an unknown option is probably the script's."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            parser = self.make_parser(ctx)
            parser.ignore_unknown_options = True
            words = parser.parse_args(list(typed))[0].get("words") or ("-",)
            if "--" in typed or words[0].startswith("-"):
                raise
            raise click.UsageError(misplaced(words), ctx) from None


def misplaced(words: Sequence[str]) -> str:
    """What is said to somebody who has put a command before `--`."""
    return f"unexpected {' '.join(words)!r}: a script or program and its arguments go behind `--`"


class Gathered(click.Option):
    """An option of which a value that cannot be read is kept for later, so that one slip does not hide the next."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """As click's, but for values that it refuses: they count as not given."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            keep(ctx, error)
            assert self.name is not None
            ctx.params[self.name] = () if self.multiple else None
            return ctx.params[self.name], args


def keep(ctx: click.Context, error: click.UsageError) -> None:
    """Something that was typed cannot be read; it is told with all else that is wrong."""
    ctx.meta.setdefault(_UNREADABLE, []).append(error.format_message())


def unreadable(ctx: click.Context) -> tuple[str, ...]:
    """What was kept, a sentence each."""
    return tuple(ctx.meta.get(_UNREADABLE, ()))


class Parsed(click.ParamType[Any]):
    """An option whose text is read by a parser that raises ValueError with a sentence."""

    def __init__(self, name: str, parser: Callable[[str], Any]) -> None:
        self.name = name
        self._parser = parser

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parser(value)
        except ValueError as error:
            wrong = click.BadParameter(f"{value!r}: {error}", ctx, param)
            if ctx is None or not isinstance(param, Gathered):
                raise wrong from error
            keep(ctx, wrong)
            return None


def output(function: F) -> F:
    """-o text|json."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print; json is for programs."
    )(function)


def inventory(function: F, cls: type[click.Option] = click.Option) -> F:
    """The options that say which machines are meant."""
    for option in (
        click.option("--exclude", metavar="HOSTS", help="Leave these hosts out (comma list, ranges allowed)."),
        click.option(
            "--hosts", metavar="HOSTS", help="Only these hosts, in this order (comma list, ranges such as node[01-04])."
        ),
        click.option(
            "--backend",
            cls=cls,
            type=click.Choice(["local", "ssh", "slurm"]),
            help="local: simulate the nodes on this machine.",
        ),
        click.option("--hostfile", metavar="FILE", help="An inventory of `host slots=4` lines."),
        click.option(
            "--cluster",
            metavar="NAME|FILE",
            help="The inventory (else $LAUNCHER_CLUSTER, else ./cluster.yaml, else the default of your config).",
        ),
    ):
        function = option(function)
    return function


def print_json(document: Any) -> None:
    """One JSON document, or one line of a stream."""
    # A lone surrogate stands for a byte of argv that is no text; JSON can only escape it.  Some controls it need not, but may.
    text = json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    click.echo(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
