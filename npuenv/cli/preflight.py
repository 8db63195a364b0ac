"""`npuenv preflight`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import Ui, common_options
from npuenv.cli.help import Command
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.finding import Status
from npuenv.core.messages import Message
from npuenv.facts.python.interpreter import interpreter
from npuenv.host.local import LocalHost
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of, nearest_release
from npuenv.preflight.examine import examine
from npuenv.preflight.fixing import Fixed, corrected, fix_all
from npuenv.preflight.reading import Reading, ReadOptions, all_of, read_file, read_words
from npuenv.preflight.releases import is_far, known_releases
from npuenv.preflight.rules import RULES
from npuenv.preflight.types import Machine
from npuenv.report.preflight import Examined, document, render_junit, sarif_document, show, show_fix

if TYPE_CHECKING:
    from collections.abc import Mapping


_FRAMEWORKS = ("verl", "roll")
_MOST_WORD = 100_000  # bytes; Linux takes no word of a command above 128 KiB


@click.command("preflight", cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="FILE | -- COMMAND...")
@click.option(
    "--for",
    "framework",
    metavar="RELEASE",
    help="Framework and release that will run it, e.g. verl==0.7.1 or roll==0.3.0.",
)
@click.option("--stack", metavar="NAME", help="Take release and packages from a published stack.")
@click.option(
    "--target", type=click.Path(path_type=Path), metavar="ENV", help="Take release and packages from an environment."
)
@click.option(
    "--hardware", metavar="NAME", help="310p, a2, a3, 950, or a chip or product name, e.g. 910B3 or 'Atlas 800T A3'."
)
@click.option("--cards-per-node", type=click.IntRange(1, 4096), metavar="N", help="Cards per node.")
@click.option("--nodes", type=click.IntRange(1, 100_000), metavar="N", help="Number of nodes.")
@click.option("--card-memory", type=click.FloatRange(1, 4096), metavar="GIB", help="Memory per card.")
@click.option(
    "--here/--elsewhere", "is_here", default=False, help="The launch runs on this machine: also check its paths."
)
@click.option("--fix", "is_fixing", is_flag=True, help="Write a corrected copy and show what changed.")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="File of the corrected copy.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite the output file.")
@click.option("--format", "form", type=click.Choice(("text", "json", "sarif", "junit")), help="Report format.")
@common_options
def command(ui: Ui, *, words: tuple[str, ...], form: str | None, **options: Any) -> int:
    """Find what will not work in a launch of verl or ROLL before starting it, with corrected lines.

    FILE is a verl or ROLL YAML, or a shell script that starts one of them; or pass the command itself after --.
    Nothing is executed.

    Exit codes: 0 no errors (warnings are allowed), 1 errors, 2 unreadable, 3 no errors found but the release is
    unknown, so most rules did not apply.
    """
    form = form or ("json" if ui.is_json else "text")
    _require_sense(ui, form, options)
    asked = _asked(options)
    reading = _read(words, asked)
    to = _place_of_copy(reading, options) if options["is_fixing"] else None
    found, fixed = _judged(all_of(reading, asked), asked, is_fixing=options["is_fixing"])
    if fixed is not None and to is not None and fixed.changes:
        _write(to, fixed.after, like=reading.path)
    judged = found.problems if fixed is None else fixed.left
    code = _code(reading, any(problem.status is Status.FAIL for problem in judged))
    _report(replace(ui, is_json=form != "text"), found, fixed, to=to, code=code, form=form)
    return int(code)


def _judged(readings: tuple[Reading, ...], asked: ReadOptions, *, is_fixing: bool) -> tuple[Examined, Fixed | None]:
    """What is wrong with the launches of one text, launch by launch, and the corrected copy."""
    problems = (
        replace(problem, corrected=corrected(each, asked, problem))
        for each in readings
        for problem in examine(each.launch, refused=each.refused)
    )
    first, *rest = readings
    found = Examined(
        first.launch,
        first.path,
        tuple(problems),
        first.notes,
        tuple(each.launch for each in rest),
    )
    return found, fix_all(readings, asked) if is_fixing else None


def _require_sense(ui: Ui, form: str, options: Mapping[str, Any]) -> None:
    if ui.is_json and form != "json":
        raise BadInput(Message("doctor.two-formats", {"format": form}), Message("doctor.two-formats-hint"))
    if (options["out"] or options["is_forced"]) and not options["is_fixing"]:
        name = "-o" if options["out"] else "--force"
        raise BadInput(Message("preflight.only-with-fix", {"name": name}), Message("preflight.only-with-fix-hint"))
    if options["is_fixing"] and form in ("sarif", "junit"):
        raise BadInput(Message("preflight.fix-no-sarif"))
    given = [name for name in ("framework", "stack", "target") if options[name]]
    if "stack" in given and "target" in given:
        raise BadInput(Message("preflight.stack-and-target"))


def _read(words: tuple[str, ...], asked: ReadOptions) -> Reading:
    return read_file(Path(words[0]), asked) if len(words) == 1 else read_words(words, asked)


def _code(reading: Reading, has_error: bool) -> ExitCode:
    if has_error:
        return ExitCode.PROBLEMS
    is_known = nearest_release(reading.launch.framework, reading.launch.release) is not None
    return ExitCode.FINE if is_known else ExitCode.UNKNOWN


# --- what is known besides the text


def _asked(options: Mapping[str, Any]) -> ReadOptions:
    import os

    framework, release = _release_of(options["framework"])
    packages: Mapping[str, str] = {}
    hardware = _hardware(options["hardware"])
    if options["stack"]:
        packages, of_stack = _of_stack(options["stack"])
        hardware = hardware or of_stack
    elif options["target"]:
        packages = _of_target(options["target"])
    machine = Machine(
        hardware,
        options["cards_per_node"],
        options["nodes"],
        options["card_memory"],
        packages,
        options["is_here"],
    )
    here = {name: os.environ[name] for name in ("HOME", "PWD", "USER") if name in os.environ}
    return ReadOptions(defaults_of, framework, release, machine, here if options["is_here"] else {}, parses=_parses)


def _parses(text: str) -> bool:
    """Whether bash takes a script, which it reads and does not run; True where it cannot be asked."""
    if "\0" in text or len(text.encode()) > _MOST_WORD:
        return True
    return LocalHost().run(["bash", "-n", "-c", text]).code in (0, None)


def _release_of(word: str | None) -> tuple[Any, str | None]:
    """`verl==0.7.1` as framework and release; the release is None where none is named."""
    if word is None:
        return None, None

    framework, sign, release = word.partition("==")
    framework = framework.strip().lower()
    if framework not in _FRAMEWORKS:
        raise BadInput(Message("preflight.no-such-framework", {"name": word, "accepted": _FRAMEWORKS}))
    release = release.strip().removeprefix("v")
    if sign and is_far(framework, release):
        args = {"framework": framework, "release": release, "accepted": known_releases(framework)}
        raise BadInput(Message("preflight.no-such-release", args), Message("preflight.no-such-release-hint", args))
    return framework, release or None


def _hardware(name: str | None) -> str | None:
    if name is None:
        return None

    matrix = load_matrix()
    row = matrix.hardware_asked_for(name)
    if row is None:
        accepted = tuple(each.id for each in matrix.hardware)
        raise BadInput(Message("preflight.no-such-hardware", {"name": name, "accepted": accepted}))
    return row.id


def _of_stack(name: str) -> tuple[Mapping[str, str], str | None]:
    """The packages and the hardware of a published stack. Raises BadInput with the nearest names."""
    stack = app.resolution.published(name)
    return {**_of_sources(stack), **{pin.name: pin.version for pin in stack.pins}}, stack.platform.hardware


def _of_sources(stack: Any) -> dict[str, str]:
    """ROLL is built from a repository in every stack: its release is the name of what is checked out."""
    return {each.name: each.ref.removeprefix("v") for each in stack.git_sources if each.name in _FRAMEWORKS}


def _of_target(folder: Path) -> Mapping[str, str]:
    """The distributions of an environment by its own metadata. Raises BadInput where it has no Python that answers."""
    python = folder / "bin" / "python"
    found = interpreter(LocalHost(), str(python))
    if found.value is None:
        raise BadInput(Message("preflight.no-target", {"path": str(folder)}), Message("preflight.no-target-hint"))
    return dict(found.value.distributions)


# --- what is written and said


def _place_of_copy(reading: Reading, options: Mapping[str, Any]) -> Path | None:
    """Where the corrected copy goes; None for a command line that is only shown.

    Raises BadInput where a file would be overwritten, before anything is judged.
    """
    out: Path | None = options["out"]
    if out is None and reading.path:
        source = Path(reading.path)
        out = source.with_name(f"{source.stem}.fixed{source.suffix}")
    if out is None:
        return None
    if out.is_dir():
        raise BadInput(Message("preflight.folder", {"path": str(out)}))
    if out.exists() and not options["is_forced"]:
        raise BadInput(Message("preflight.exists", {"path": str(out)}), Message("preflight.exists-hint"))
    return out


def _write(path: Path, text: str, *, like: str) -> None:
    """Writes the copy; it may be run where the original may."""
    import shutil

    try:
        with path.open("w", encoding="utf-8", newline="") as file:  # line ends stay as they are
            file.write(text)
        if like:
            shutil.copymode(like, path)
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error


def _report(ui: Ui, found: Examined, fixed: Fixed | None, *, to: Path | None, code: ExitCode, form: str) -> None:
    written = str(to) if to is not None and fixed is not None and fixed.changes else ""
    if form == "junit":
        rules = [rule.id for rule in RULES if found.launch.framework in rule.frameworks]
        print(render_junit(found, rules, ui.lang), end="", flush=True)
    elif form == "sarif":
        ui.print_json(sarif_document(found, ui.lang, code=int(code)))
    elif form == "json":
        ui.print_json(document(found, ui.lang, code=int(code), fixed=fixed, to=written))
    else:
        show(found, ui.console(), ui.lang, is_quiet=ui.is_quiet)
        if fixed is not None:
            show_fix(fixed, found, ui.console(), ui.lang, to=written)
