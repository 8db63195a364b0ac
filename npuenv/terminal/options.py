"""The options of the doctor, declared once for the command line (click) and for the single file (argparse).

An option is a row here and a field of `DoctorOptions` or `DoctorCommand`.
"""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.app.examine import FRAMEWORKS, DoctorOptions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.terminal.run import Option

if TYPE_CHECKING:
    from npuenv.terminal.run import Ui

FORMATS = ("text", "json", "html", "junit", "sarif")
_SUFFIXES = {".json": "json", ".html": "html", ".htm": "html", ".xml": "junit", ".sarif": "sarif", ".junit": "junit"}
_OF_TEXT = ("", ".txt", ".log", ".md", ".out")

DOCTOR = (
    Option("--for", "framework", "Check for this use; cpu skips the cards.", choices=FRAMEWORKS),
    Option(
        "--stack",
        "stack",
        "Check against the versions and settings of a published stack.",
        metavar="NAME",
        is_portable=False,
    ),
    Option(
        "--level",
        "level",
        "0 only reads files; 1 also runs tools and imports packages; 2 uses cards and network; 3 stress-tests.",
        type=int,
        choices=range(4),
        default=1,
    ),
    Option(
        "--python", "python", "Python interpreter whose packages are checked (default: the session's).", metavar="EXE"
    ),
    Option("--hash", "hashes", "Verify the hash of every installed file (default from level 2).", type=bool),
    Option("--save", "save", "Also save everything that was collected, redacted.", metavar="FILE", type=Path),
    Option("--from", "capture", "Check a saved capture.", metavar="FILE", type=Path),
    Option("--from-report", "report", "Find the cause in a pasted report or log.", metavar="FILE|-"),
)
DOCTOR_OUTPUT = (
    Option("--format", "format", "Report format (default: from the -o file name, else text).", choices=FORMATS),
    Option("-o --output", "out", "Write the report to FILE instead of stdout.", metavar="FILE"),
)


@dataclass(frozen=True, slots=True)
class DoctorCommand(DoctorOptions):
    """One command line of the doctor: what is examined, and what is done with the result."""

    save: Path | None = None
    report: str | None = None  # a pasted report or log, which is diagnosed instead of a machine
    format: str = "text"
    out: str | None = None
    is_fixing: bool = False
    is_dry_run: bool = False
    yes: bool = False
    program: tuple[str, ...] = ("npuenv", "doctor")  # how it was called
    can_fix: bool = True  # False: this program has no --fix
    is_installing: bool = False  # what is not there yet is installed next

    @property
    def again(self) -> str:
        """The command line that repeats this examination, without what is done with the result."""
        return shlex.join([*self.program, *itertools.chain.from_iterable(self.chosen())])

    def validate(self) -> None:
        """Raises BadInput for options that contradict each other."""
        sources = {"--save": self.save, "--from": self.capture, "--from-report": self.report}
        named = [name for name, value in sources.items() if value is not None]
        if named == ["--save", "--from"]:
            raise BadInput(Message("cli.save-and-from"), Message("cli.save-and-from-hint"))
        if self.report is not None:
            self._require_report_alone([name for name in named if name != "--from-report"])
        if (self.is_dry_run or self.yes) and not self.is_fixing:
            raise BadInput(Message("fix.dry-run-alone"), Message("fix.dry-run-alone-hint"))
        if self.is_fixing and self.capture and not self.is_dry_run:
            raise BadInput(Message("fix.not-with-from"), Message("fix.not-with-from-hint"))
        if self.is_fixing and self.format not in ("text", "json"):
            args = {"format": self.format}
            raise BadInput(Message("fix.not-with-format", args), Message("fix.not-with-format-hint"))
        if self.is_fixing and (self.save or self.out):
            _refuse("--fix", "--save" if self.save else "-o")
        DoctorOptions.validate(self)
        if self.save and self.out and Path(self.out) == self.save:
            raise BadInput(Message("doctor.same-file", {"path": self.out}), Message("doctor.same-file-hint"))

    def _require_report_alone(self, named: list[str]) -> None:
        """A pasted report is a machine of its own: what chooses or changes a machine has no meaning beside it."""
        others = {"--fix": self.is_fixing, **dict.fromkeys((name for name, *_ in self.chosen()), True)}
        others[f"--format {self.format}"] = self.format not in ("text", "json")
        for other in (*named, *(name for name, is_given in others.items() if is_given)):
            _refuse("--from-report", other)


def _refuse(one: str, other: str) -> None:
    raise BadInput(Message("doctor.not-with", {"one": one, "other": other}), Message("doctor.not-with-hint"))


def doctor_command(ui: Ui, values: dict[str, Any], **more: Any) -> tuple[Ui, DoctorCommand]:
    """A command line of the doctor, with a `Ui` that prints JSON only where the report goes to stdout as JSON.

    Raises BadInput for --json beside another format.
    """
    chosen = chosen_format(ui, values.pop("format"), format_from_suffix(values["out"]))
    command = DoctorCommand(format=chosen, **values, **more)
    return replace(ui, is_json=chosen == "json" and command.out is None), command


def chosen_format(ui: Ui, asked: str | None, usual: str = "text") -> str:
    """The format of a report; `usual` where none is asked for. Raises BadInput for --json beside another format."""
    if ui.is_json and asked not in (None, "json"):
        raise BadInput(Message("doctor.two-formats", {"format": asked}), Message("doctor.two-formats-hint"))
    return asked or ("json" if ui.is_json else usual)


def format_from_suffix(out: str | None) -> str:
    """The format that a file's name promises; text where it promises none."""
    return _SUFFIXES.get(Path(out).suffix.lower(), "text") if out else "text"


def matches_format(out: str, name: str) -> bool:
    """Whether a file's name promises this format, or none at all."""
    suffix = Path(out).suffix.lower()
    return _SUFFIXES.get(suffix, "text" if suffix in _OF_TEXT else "") == name
