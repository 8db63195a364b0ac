"""What will not work in a launch of verl or ROLL: `preflight`."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from npuenv.app import resolution
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.facts.python import read_interpreter
from npuenv.host.local import LocalHost
from npuenv.host.writing import cannot_save
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of, known_releases
from npuenv.preflight.composing import Framework, ReadOptions
from npuenv.preflight.configs import find_checkout, is_far
from npuenv.preflight.fixing import PreflightResult, corrected, fix_all
from npuenv.preflight.launch import Machine
from npuenv.preflight.reading import all_of, read_file, read_words
from npuenv.preflight.rules import examine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.preflight.composing import LaunchText

_FRAMEWORKS = get_args(Framework)
_MOST_WORD = 100_000  # bytes; Linux takes no word of a command above 128 KiB


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """Where the launch is to run, and whether its corrected copy is written. None: not known."""

    framework: str | None = None  # verl or roll, with or without a release: verl==0.7.1
    stack: str | None = None  # the published stack that runs it
    target: Path | None = None  # the environment that runs it
    hardware: str | None = None
    cards_per_node: int | None = None
    nodes: int | None = None
    card_memory_gib: float | None = None
    is_here: bool = False  # on this machine: its paths are checked too
    is_fixing: bool = False
    out: Path | None = None  # the file of the corrected copy; None: beside the original
    is_forced: bool = False  # overwrite that file

    def validate(self) -> None:
        """Raises BadInput for options that contradict each other."""
        if (self.out or self.is_forced) and not self.is_fixing:
            args = {"name": "-o" if self.out else "--force"}
            raise BadInput(Message("preflight.only-with-fix", args), Message("preflight.only-with-fix-hint"))
        if self.stack and self.target:
            raise BadInput(Message("preflight.stack-and-target"))


def preflight(words: Sequence[str], options: PreflightOptions | None = None) -> PreflightResult:
    """What is wrong with the launches of a file, or of a command given as its words. Nothing of it is run.

    With `is_fixing` a corrected copy is written, except of a command without `out`. Raises BadInput.
    """
    options = options or PreflightOptions()
    options.validate()
    known = _read_options(options)
    checkout = find_checkout(_folders_around(words)) if known.framework != "roll" else None
    known = replace(known, checkout=checkout)
    reading = read_file(Path(words[0]), known) if len(words) == 1 else read_words(words, known)
    to = _path_of_copy(reading, options) if options.is_fixing else None
    readings = all_of(reading, known)
    problems = tuple(
        replace(problem, corrected=corrected(each, known, problem))
        for each in readings
        for problem in examine(each.launch, refused=each.refused)
    )
    fixed = fix_all(readings, known) if options.is_fixing else None
    written = str(to) if to is not None and fixed is not None and fixed.changes else ""
    if fixed is not None and written:
        _write_copy(Path(written), fixed.after, like=reading.path)
    others = tuple(each.launch for each in readings[1:])
    launch, notes = reading.launch, reading.notes
    if checkout and checkout.damage and launch.framework == "verl" and launch.release is None:
        notes = (checkout.damage, *notes)
    return PreflightResult(launch, reading.path, problems, notes, others, fixed, written)


def _folders_around(words: Sequence[str]) -> tuple[Path, ...]:
    """Those above the file, nearest first, and the working folder; none where that was removed."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return ()
    return (*(here / words[0]).resolve().parents, here) if len(words) == 1 else (here,)


def _read_options(options: PreflightOptions) -> ReadOptions:
    """What is known besides the text. Raises BadInput for names that do not exist."""
    framework, release = _parse_release(options.framework)
    packages: Mapping[str, str] = {}
    hardware = _hardware(options.hardware)
    if options.stack:
        packages, of_stack = _of_stack(options.stack)
        hardware = hardware or of_stack
    elif options.target:
        packages = _of_target(options.target)
    machine = Machine(
        hardware, options.cards_per_node, options.nodes, options.card_memory_gib, packages, options.is_here
    )
    environ = {name: os.environ[name] for name in ("HOME", "PWD", "USER") if options.is_here and name in os.environ}
    return ReadOptions(defaults_of, framework, release, machine, environ, parses=_parses)


def _parses(text: str) -> bool:
    """Whether bash takes a script, which it reads and does not run; True where it cannot be asked."""
    if "\0" in text or len(text.encode()) > _MOST_WORD:
        return True
    return LocalHost().run(["bash", "-n", "-c", text]).code in (0, None)


def _parse_release(word: str | None) -> tuple[Framework | None, str | None]:
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
    return cast("Framework", framework), release or None


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
    stack = resolution.published(name)
    # ROLL is built from a repository in every stack: its release is the name of what is checked out.
    sources = {each.name: each.ref.removeprefix("v") for each in stack.git_sources if each.name in _FRAMEWORKS}
    return {**sources, **{pin.name: pin.version for pin in stack.pins}}, stack.platform.hardware


def _of_target(folder: Path) -> Mapping[str, str]:
    """The distributions of an environment by its own metadata. Raises BadInput where it has no Python that answers."""
    found = read_interpreter(LocalHost(), str(folder / "bin" / "python"))
    if found.value is None:
        raise BadInput(Message("preflight.no-target", {"path": str(folder)}), Message("preflight.no-target-hint"))
    return dict(found.value.distributions)


def _path_of_copy(reading: LaunchText, options: PreflightOptions) -> Path | None:
    """Where the corrected copy goes; None for a command line that is only shown.

    Raises BadInput where a file would be overwritten, before anything is judged.
    """
    out = options.out
    if out is None and reading.path:
        source = Path(reading.path)
        out = source.with_name(f"{source.stem}.fixed{source.suffix}")
    if out is None:
        return None
    if out.is_dir():
        raise BadInput(Message("preflight.folder", {"path": str(out)}))
    if out.exists() and not options.is_forced:
        raise BadInput(Message("preflight.exists", {"path": str(out)}), Message("preflight.exists-hint"))
    return out


def _write_copy(path: Path, text: str, *, like: str) -> None:
    """Writes the copy; it may be run where the original may."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:  # line ends stay as they are
            file.write(text)
        if like:
            shutil.copymode(like, path)
    except OSError as error:
        raise cannot_save(path, error) from error
