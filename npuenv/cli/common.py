"""What all commands share: how their help reads, common options, how pins are read, and how a command ends early."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from npuenv import app
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, language_from_environment, say
from npuenv.terminal.run import COMMON, Option, take_ui
from npuenv.terminal.run import Ui as Ui

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.resolve.types import Request


FILE = click.Path(path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])

OTHERS = "Options"
# By the first long name of an option. What is in none of them is the command's own and stands first, as `Options`.
SECTIONS = {
    "Selection options": "--for --hardware --os --arch --python --cann --driver --as-of --newest --host --constraint"
    " --pin --stack --release --recipe --model --platform",
    "Path options": "--target --into --as --out --output --save --from --from-report --hosts --offline --source"
    " --without-source --cann-file --base-python --python-archive --bundle --installed --data --models --image --ray"
    " --shared --ssh-config --tables",
    "Run options": "--yes --dry-run --script --fill --renew --force --replace --update --repair --rollback --only-step"
    " --from-step --with-system --fix --limit --parallel --level --hash --all --verify --check",
    "Output options": "--lang --format --json --quiet --verbose --no-color --list --why --help --version",
}
_SECTION_OF = {option: section for section, options in SECTIONS.items() for option in options.split()}
_ALIKE = 0.6  # of 1: how much of a word must agree with a command's name to suggest that one
_MOST_BYTES = 4 << 20  # of a constraints file
_OF_FILES = re.compile(r"\b(FILE|DIR|PATH|EXE|CAPTURE|BUNDLE)\b")


class _File(click.types.StringParamType):
    """A text like any other, which shells complete as the name of a file or folder."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class _CardMemory(click.types.FloatParamType):
    """GiB of a card, with or without the unit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from npuenv.preflight.memory.types import read_memory

        return read_memory(str(value))


def card_memory_option(default: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--card-memory`; `default`: what help says of a run without it."""
    about = f"Memory per card, at most 4096{default}."
    return click.option("--card-memory", "card_memory_gib", type=_CardMemory(), metavar="GIB", help=about)


class HelpfulCommand(click.Command):
    """A command that lists its options in sections. What a metavar calls a file is completed as one."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if param.type is click.STRING and _OF_FILES.search(param.metavar or ""):
                param.type = _File()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the parser leaves it out where an option lacks its value
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_section: dict[str, list[tuple[str, str]]] = {name: [] for name in (OTHERS, *SECTIONS)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                names = (*param.opts, *param.secondary_opts)
                section = next((_SECTION_OF[name] for name in names if name in _SECTION_OF), OTHERS)
                by_section[section].append(record)
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
            options = {name[2:]: name for param in self.get_params(ctx) for name in param.opts if name.startswith("--")}
            begun = [name for name in names if name.startswith(args[0])]
            near = begun or difflib.get_close_matches(args[0], [*names, *options], n=1, cutoff=_ALIKE)
            meant = options.get(near[0], near[0]) if near else ""
            hint = Message("cli.did-you-mean", {"name": f"{above} {meant}".strip()}) if near else None
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


def common_options(command: Command, *, has_document: bool = True) -> Command:
    """Adds --lang, --json, --quiet, -v and --no-color, and hands the command a `Ui` as its first argument.

    `has_document`: False for a command that has no --json.
    """

    @functools.wraps(command)
    def with_ui(**values: Any) -> Any:
        ui = take_ui(values)
        try:
            return command(ui, **values)
        except app.ConflictError as error:
            show_conflict(ui, error)
            return int(error.exit_code)

    rows = [row for row in COMMON if has_document or row.name != "as_json"]
    decorated: Command = with_options(rows, with_ui)
    return decorated


def show_conflict(ui: Ui, error: app.ConflictError) -> None:
    """Shows the clashing demands and the ways out."""
    from npuenv.report.resolution import as_json, show

    if ui.is_json:
        ui.print_json({**as_json(error.conflict, ui.lang), "exit": int(error.exit_code)})
    else:
        show(error.conflict, ui.console(stderr=True), ui.lang)


def with_options(rows: Iterable[Option], command: Any) -> Any:
    """Adds declared options to a command, in their order."""
    for row in reversed(tuple(rows)):
        command = _click_option(row)(command)
    return command


def _click_option(row: Option) -> Any:
    names = (*row.flags.split(), row.name)
    if row.type is bool:
        return click.option(*names, is_flag=True, help=row.help)
    kind: Any = FILE if row.type is Path else row.type
    if isinstance(row.choices, range):
        kind = click.IntRange(row.choices[0], row.choices[-1])
    elif row.choices:
        kind = click.Choice(row.choices)
    has_default = row.default is not None
    return click.option(
        *names, type=kind, metavar=row.metavar, default=row.default, show_default=has_default, help=row.help
    )


def request_options(command: Command) -> Command:
    """Adds STACK and the options that describe what is wanted; hands the command a `Request`."""

    @functools.wraps(command)
    def with_request(*, pin: tuple[str, ...], constraint: Path | None, host: str | None, **options: Any) -> Any:
        from npuenv.resolve.types import Request

        names = ("stack", "framework", "hardware", "os", "arch", "python", "cann", "driver", "as_of", "is_newest")
        request = Request(**{name: options.pop(name) for name in names})
        if host is not None:
            request, untold = app.resolution.with_host(request, host)
            lang = options.get("lang") or language_from_environment()
            for note in untold if not options.get("quiet") else ():
                click.echo(say(note, lang), err=True)
        of_file = _pins_of_file(constraint) if constraint else {}
        places = {_parse_pin(word)[0]: place for word, place in of_file.items()}
        request = replace(request, pins=_parse_pins((*of_file, *pin)), origins={**request.origins, **places})
        return command(request=request, **options)

    decorated: Any = with_request
    for option in (
        click.option("--pin", multiple=True, metavar="PACKAGE==VERSION", help="Require this version; repeatable."),
        click.option(
            "-c", "--constraint", type=FILE, metavar="FILE", help="Require the == versions of a requirements file."
        ),
        click.option(
            "--host",
            metavar="this|CAPTURE",
            help="Take hardware, system, driver and CANN from this machine (default if it has cards) or a capture.",
        ),
        click.option(
            "--newest", "is_newest", is_flag=True, help="Prefer the newest versions over the best-proven ones."
        ),
        click.option("--as-of", "as_of", metavar="DATE", help="Only use what was published by this day (YYYY-MM-DD)."),
        click.option("--driver", metavar="VERSION", help="Driver (HDK) version."),
        click.option("--cann", metavar="VERSION", help="CANN version."),
        click.option("--python", metavar="X.Y", help="Python version of the environment."),
        click.option(
            "--arch", metavar="ARCH", help="x86_64 or aarch64 (default for lock and install: this machine's)."
        ),
        click.option("--os", metavar="NAME", help="Operating system, e.g. ubuntu22.04."),
        click.option(
            "--hardware",
            metavar="NAME",
            help="310p, a2, a3, 950, or a chip or product name, e.g. 910B3 or 'Atlas 800T A3'.",
        ),
        click.option(
            "--for",
            "framework",
            metavar="FRAMEWORK",
            help="verl, roll, vllm-ascend, torch-npu, cpu, sglang, veomni, vime, llama-factory or ms-swift; for one "
            "release: verl==0.7.1.",
        ),
        click.argument("stack", required=False),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def refuse_with(other: str, options: Mapping[str, object]) -> None:
    """Raises BadInput for the first option that was given."""
    for option, value in options.items():
        if value:
            raise BadInput(Message("lock.not-with", {"option": option, "other": other}))


def require_one(**options: object) -> str | None:
    """The one option that was given, or None. Raises BadInput for two: they exclude each other."""
    named = [name for name, value in options.items() if value]
    if len(named) > 1:
        said = {"one": named[0], "other": named[1]}
        raise BadInput(Message("install.one-of", said), Message("install.one-of-hint", said))
    return named[0] if named else None


def options_of(request: Request) -> dict[str, object]:
    """Option -> value, for what a request says; what a host told was asked for with --host."""
    said: dict[str, object] = {"--for": request.framework, "--pin": request.pins}
    said |= {"--as-of": request.as_of, "--newest": request.is_newest}
    for name in ("hardware", "os", "arch", "python", "cann", "driver"):
        if value := getattr(request, name):
            said["--host" if name in request.origins else f"--{name}"] = value
    return said


def _parse_pins(words: tuple[str, ...]) -> dict[str, str]:
    """`("Torch==2.8.0",)` -> `{"torch": "2.8.0"}`. Raises BadInput for anything that is not NAME==VERSION."""
    pins: dict[str, str] = {}
    for word in words:
        key, version = _parse_pin(word)
        if pins.get(key, version) != version:
            raise BadInput(Message("cli.pin-twice", {"name": key, "first": pins[key], "second": version}))
        pins[key] = version
    return pins


def _parse_pin(word: str) -> tuple[str, str]:
    """`"Torch==2.8.0"` -> `("torch", "2.8.0")`. Raises BadInput for anything that is not NAME==VERSION."""
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    name, _, version = word.partition("==")
    try:
        Version(version)
        return canonicalize_name(name.strip(), validate=True), version.strip()
    except ValueError:  # InvalidName, InvalidVersion, or a number of thousands of digits
        raise BadInput(Message("cli.bad-pin", {"pin": word}), Message("cli.bad-pin-hint")) from None


def _pins_of_file(path: Path) -> dict[str, str]:
    """The `NAME==VERSION` pins of a requirements file, as pip reads it (includes, hashes and markers too).

    Each with the place it stands at, like `constraints.txt:3`. pip_api judges markers for the running interpreter.

    Raises BadInput for a file that cannot be read and for a line that is not an exact pin: left out in silence, it
    would be a wish that nobody hears.
    """
    if not path.exists() or path.is_dir():
        raise BadInput(Message("cli.no-constraints", {"path": str(path)}))
    is_endless = path.is_char_device() and not path.samefile(os.devnull)
    if is_endless or path.stat().st_size > _MOST_BYTES:
        why = os.strerror(errno.EFBIG)
        raise BadInput(Message("cli.bad-constraints", {"path": str(path), "why": why}))
    # Importing it asks pip for its version, a process of its own: never before it is needed.
    import pip_api

    try:
        found = pip_api.parse_requirements(path)
    except (pip_api.exceptions.PipError, OSError, UnicodeDecodeError) as error:
        # Below its first line pip_api puts a traceback.
        why = str(error).strip().partition("\n")[0]
        raise BadInput(Message("cli.bad-constraints", {"path": str(path), "why": why})) from error
    pins = {}
    for requirement in found.values():
        place = f"{requirement.filename}:{requirement.lineno}"
        specifiers = [] if isinstance(requirement, pip_api.UnparsedRequirement) else list(requirement.specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
            args = {"place": place, "line": str(requirement)}
            raise BadInput(Message("cli.loose-constraint", args), Message("cli.loose-constraint-hint"))
        pins[f"{requirement.name}=={specifiers[0].version}"] = place
    return pins


def absolute(path: Path) -> Path:
    """The path from the root on, links kept: programs that are started elsewhere mean the same place by it.

    Raises BadInput for a relative path in a working folder that has been removed.
    """
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError as error:
        raise BadInput(Message("cli.no-cwd", {"path": str(path)}), Message("cli.no-cwd-hint")) from error


class Stop(Exception):
    """Ends a command with an exit code after everything was said."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code
