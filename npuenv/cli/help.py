"""How `--help` reads: options by what they are about, lists of commands in whole sentences."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WHAT, WHERE, HOW, SHOW = "Selection options", "Path options", "Run options", "Output options"
OTHERS = "Options"
# By the first long name of an option. What is in none of them is the command's own and stands first, as `Options`.
SECTIONS = {
    WHAT: "--for --hardware --os --arch --python --cann --driver --as-of --newest --host --constraint --pin --stack"
    " --release --recipe --model --platform",
    WHERE: "--target --into --as --out --output --save --from --from-report --hosts --offline --source --without-source"
    " --cann-file --base-python --python-archive --bundle --installed --data --models --image --ray --shared"
    " --ssh-config --tables",
    HOW: "--yes --dry-run --script --fill --renew --force --replace --update --repair --rollback --only-step"
    " --from-step --with-system --fix --limit --parallel --level --hash --all --verify --check",
    SHOW: "--lang --format --json --quiet --verbose --no-color --list --why --help --version",
}
_SECTION_OF = {option: section for section, options in SECTIONS.items() for option in options.split()}


_OF_FILES = re.compile(r"\b(FILE|DIR|PATH|EXE|CAPTURE|BUNDLE)\b")


class _File(click.types.StringParamType):
    """A text like any other, which shells complete as the name of a file or folder."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class HelpfulCommand(click.Command):
    """A command that lists its options in sections. What a metavar calls a file is completed as one."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if param.type is click.STRING and _OF_FILES.search(param.metavar or ""):
                param.type = _File()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_section: dict[str, list[tuple[str, str]]] = {name: [] for name in (OTHERS, *SECTIONS)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                by_section[section_of(param)].append(record)
        for section, records in by_section.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


class HelpfulGroup(HelpfulCommand, click.Group):
    """A group of commands: each with the first sentence of its help, uncut. Suggests the nearest of a misspelt name.

    `lazy`: name -> (module, first sentence), for commands whose modules are imported when they are used. In a module it
    is `command`, or what is named after a colon.
    """

    command_class = HelpfulCommand

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *sorted(self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._lazy:
            module, _, name = self._lazy[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(f"npuenv.cli.{module}"), name or "command")
            return command
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            import difflib

            above = ctx.command_path.partition(" ")[2]
            near = difflib.get_close_matches(args[0], names, n=1, cutoff=0.4)
            hint = Message("cli.did-you-mean", {"name": f"{above} {near[0]}".strip()}) if near else None
            accepted = tuple(f"{above} {name}".strip() for name in names)
            raise BadInput(
                Message("cli.no-command", {"name": f"{above} {args[0]}".strip(), "accepted": accepted}), hint
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        described = [
            CompletionItem(name, help=text) for name, text in self._described(ctx) if name.startswith(incomplete)
        ]
        return [*described, *HelpfulCommand.shell_complete(self, ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(self._described(ctx)))

    def _described(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        yield from ((name, text) for name, (_, text) in self._lazy.items())
        yield from ((name, first_sentence(command)) for name, command in sorted(self.commands.items()))


def first_sentence(command: click.Command) -> str:
    """The first paragraph of a command's help, in one line and without its full stop."""
    paragraph = (command.help or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()).removesuffix(".")


def section_of(param: click.Parameter) -> str:
    """The section of an option, by its long names."""
    return next((_SECTION_OF[name] for name in (*param.opts, *param.secondary_opts) if name in _SECTION_OF), OTHERS)
