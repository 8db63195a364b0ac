"""What the doctor is asked for on a command line. Start from `Wish` and `require_sense`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

FRAMEWORKS = ("verl", "roll", "vllm-ascend", "torch-npu", "cpu")
FORMATS = ("text", "json", "html", "junit", "sarif")
_SUFFIXES = {".json": "json", ".html": "html", ".htm": "html", ".xml": "junit", ".sarif": "sarif", ".junit": "junit"}
_OF_TEXT = ("", ".txt", ".log", ".md", ".out")
# What the options are for, in the words of `--help`.
HELP = {
    "for": "Check for this use; cpu skips the cards.",
    "level": "0 only reads files; 1 also runs tools and imports packages; 2 uses cards and network; 3 stress-tests.",
    "python": "Python interpreter whose packages are checked (default: the session's).",
    "hash": "Verify the hash of every installed file (default from level 2).",
    "save": "Also save everything that was collected, redacted.",
    "from": "Check a saved capture.",
    "from-report": "Find the cause in a pasted report or log.",
    "format": "Report format (default: from the -o file name, else text).",
    "output": "Write the report to FILE instead of stdout.",
    "lang": "Language of messages (default: the locale's).",
    "json": "Print one JSON document on stdout.",
    "quiet": "Show only what went wrong.",
    "verbose": "Show everything, not only what needs attention.",
    "no-color": "Disable colours (same as NO_COLOR).",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked of the doctor. None and empty: not said."""

    framework: str | None = None
    stack: str | None = None
    level: int = 1
    python: str | None = None
    hashes: bool = False
    save: Path | None = None
    capture: Path | None = None
    report: str | None = None
    is_fixing: bool = False
    is_dry_run: bool = False
    yes: bool = False
    format: str = "text"
    out: str | None = None
    program: tuple[str, ...] = ("npuenv", "doctor")  # how it was called
    can_fix: bool = True  # False: this program has no --fix
    is_installing: bool = False  # what is not there yet is put there next

    @property
    def again(self) -> str:
        """The command line that asks for the same judgement, without what is done with it."""
        options = {"--for": self.framework, "--stack": self.stack, "--python": self.python}
        options["--level"] = str(self.level) if self.level != 1 else None
        words = [word for name, value in options.items() if value for word in (name, value)]
        return shlex.join([*self.program, *words, *(["--hash"] if self.hashes else [])])


def form_of(out: str | None) -> str:
    """The form that a file's name asks for; text where it asks for none."""
    return _SUFFIXES.get(Path(out).suffix.lower(), "text") if out else "text"


def says_form(out: str, form: str) -> bool:
    """Whether a file's name promises this form, or none at all."""
    suffix = Path(out).suffix.lower()
    return _SUFFIXES.get(suffix, "text" if suffix in _OF_TEXT else "") == form


def require_sense(wish: Wish) -> None:
    """Raises BadInput for options that contradict each other."""
    sources = {"--save": wish.save, "--from": wish.capture, "--from-report": wish.report}
    named = [name for name, value in sources.items() if value is not None]
    if named == ["--save", "--from"]:
        raise BadInput(Message("cli.save-and-from"), Message("cli.save-and-from-hint"))
    if wish.report is not None:
        _require_report_alone(wish, [name for name in named if name != "--from-report"])
    if (wish.is_dry_run or wish.yes) and not wish.is_fixing:
        raise BadInput(Message("fix.dry-run-alone"), Message("fix.dry-run-alone-hint"))
    if wish.is_fixing and wish.capture and not wish.is_dry_run:
        raise BadInput(Message("fix.not-with-from"), Message("fix.not-with-from-hint"))
    if wish.is_fixing and wish.format not in ("text", "json"):
        raise BadInput(Message("fix.not-with-format", {"format": wish.format}), Message("fix.not-with-format-hint"))
    if wish.is_fixing and (wish.save or wish.out):
        name = "--save" if wish.save else "-o"
        raise BadInput(Message("doctor.not-with", {"one": "--fix", "other": name}), Message("doctor.not-with-hint"))
    if wish.hashes and wish.level == 0:
        raise BadInput(Message("doctor.hash-level"), Message("doctor.hash-level-hint"))
    if wish.save and wish.out and Path(wish.out) == wish.save:
        raise BadInput(Message("doctor.same-file", {"path": wish.out}), Message("doctor.same-file-hint"))


def _require_report_alone(wish: Wish, named: list[str]) -> None:
    """A pasted report is a machine of its own: what chooses or changes a machine has no meaning beside it."""
    others = {"--fix": wish.is_fixing, "--python": wish.python, "--stack": wish.stack, "--hash": wish.hashes}
    others.update({"--level": wish.level != 1, "--for": wish.framework})
    others[f"--format {wish.format}"] = wish.format not in ("text", "json")
    other = next(iter([*named, *(name for name, value in others.items() if value)]), None)
    if other is not None:
        args = {"one": "--from-report", "other": other}
        raise BadInput(Message("doctor.not-with", args), Message("doctor.not-with-hint"))


def require_python(wish: Wish) -> None:
    """Raises BadInput where --python names something that is no Python, before anything else is looked at.

    What looks like a Python and does not run is judged instead: why it does not is what the doctor is for.
    """
    if wish.python is None or wish.capture is not None:
        return
    path = wish.python if "/" in wish.python else shutil.which(wish.python)
    says, hint = "", Message("doctor.python-hint")
    if path is None or not os.path.lexists(path):
        says = "python-absent"
    elif os.path.isdir(path):
        says = "python-folder"
        inside = os.path.join(path, "bin", "python")
        hint = Message("doctor.python-inside", {"path": inside}) if os.path.lexists(inside) else hint
    elif not re.search(r"python|pypy", os.path.basename(path)):
        if not os.access(path, os.X_OK):
            says = "python-no-program"
        elif wish.level > 0 and not _is_python(path):
            says = "python-other"
    if says:
        raise BadInput(Message(f"doctor.{says}", {"path": wish.python}), hint)


def _is_python(path: str) -> bool:
    """Whether a program with a name of its own does what Python does."""
    from npuenv.host.local import LocalHost

    ran = LocalHost().run((path, "-c", "import sys; print(sys.version_info[0])"), timeout_s=10.0)
    return ran.code == 0 and ran.out.strip() in ("2", "3")


def require_place(out: str) -> None:
    """Raises BadInput where the report cannot be written, before the machine is looked at for minutes."""
    path = Path(out)
    if out == "-" or (path.exists() and not path.is_dir() and os.access(path, os.W_OK)):
        return
    args: dict[str, object] = {"path": out}
    if path.is_dir():
        args["reason"] = os.strerror(21)
    elif not path.parent.is_dir():
        args["reason"] = os.strerror(2)
    elif path.exists() or not os.access(path.parent, os.W_OK):
        args["reason"] = os.strerror(13)
    else:
        return
    raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint"))
