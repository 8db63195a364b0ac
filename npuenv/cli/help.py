"""How `--help` reads: options by what they are about, lists of commands in whole sentences. Start from `Command`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Command(click.Command):
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


class Group(Command, click.Group):
    """A group of commands: each with the first sentence of its help, uncut."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(self._described(ctx)))

    def _described(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield name, first_sentence(command)


def first_sentence(command: click.Command) -> str:
    """The first paragraph of a command's help, in one line and without its full stop."""
    paragraph = (command.help or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()).removesuffix(".")


def section_of(param: click.Parameter) -> str:
    """The section of an option, by its long names."""
    return next((_SECTION_OF[name] for name in (*param.opts, *param.secondary_opts) if name in _SECTION_OF), OTHERS)
