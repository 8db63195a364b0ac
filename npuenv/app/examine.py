"""The part of `doctor` that the single file has too: options, result, and one examination of a host.

It knows no environments of npuenv's own and resolves no stack; `npuenv.app.checkup` does.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from npuenv.checks import Finding
    from npuenv.core.errors import ExitCode
    from npuenv.facts.collect import Facts
    from npuenv.host import Host, Looked, Ran
    from npuenv.resolve.types import Stack

FRAMEWORKS = ("verl", "roll", "vllm-ascend", "torch-npu", "cpu")
_FLAGS = {"framework": "--for", "hashes": "--hash"}  # of the fields whose options have other names


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What is examined, and how thoroughly."""

    framework: str | None = None  # judge for this use, one of FRAMEWORKS; None: whatever runs on NPUs
    stack: str | None = None  # a published stack to judge against
    python: str | None = None  # the interpreter whose packages are judged; None: the active environment's
    level: int = 1  # 0 reads files only; 1 also runs tools and imports; 2 uses cards and network; 3 burns in
    hashes: bool = False  # compare the hash of every installed file, as level 2 does
    capture: Path | None = None  # a saved capture instead of this machine

    def chosen(self) -> Iterator[tuple[str, ...]]:
        """What is examined other than by default, as options of the command line: `--level 2`, `--hash`."""
        for each in fields(DoctorOptions):
            value = getattr(self, each.name)
            if each.name != "capture" and value != each.default:
                flag = _FLAGS.get(each.name, f"--{each.name.replace('_', '-')}")
                yield (flag,) if value is True else (flag, str(value))

    def validate(self) -> None:
        """Raises BadInput for options that contradict each other."""
        if self.hashes and self.level == 0:
            raise BadInput(Message("doctor.hash-level"), Message("doctor.hash-level-hint"))


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The facts of a machine and what follows from them."""

    facts: Facts
    findings: tuple[Finding, ...]
    framework: str | None  # the use that was judged for
    host: Host

    @property
    def exit_code(self) -> ExitCode:
        """That of `npuenv doctor`."""
        from npuenv.checks import exit_code

        return exit_code(self.findings, framework=self.framework)

    @property
    def redact(self) -> Callable[[str], str]:
        """Replaces this machine's names by placeholders, for a report that is passed on."""
        from npuenv.host.recorded import RecordingHost

        return self.host.redact if isinstance(self.host, RecordingHost) else str

    @property
    def restore(self) -> Callable[[str], str]:
        """Replaces placeholders by this machine's names; those of a capture are not known."""
        from npuenv.host.recorded import RecordingHost

        return self.host.restore if isinstance(self.host, RecordingHost) else str


def examine(
    options: DoctorOptions,
    host: Host | None = None,
    *,
    framework: str | None = None,
    stack_of: Callable[[Facts], Stack] | None = None,
    python: str | None = None,
    on_command: Callable[[str], object] | None = None,
) -> DoctorResult:
    """Collects the facts of a host and checks them.

    `host` None: the capture of the options, else this machine. `framework`, `python`: where the options name none.
    `stack_of` chooses the stack to judge against. `on_command` is called with each command before it runs.
    Raises BadInput.
    """
    from npuenv.checks import check_all
    from npuenv.facts.collect import collect

    host = host or open_host(options, on_command)
    framework = options.framework or framework
    python = options.python or python
    facts = collect(host, python=python, level=options.level, framework=framework, hashes=options.hashes)
    stack = stack_of(facts) if stack_of else None
    findings = check_all(facts, framework=framework, level=options.level, stack=stack)
    return DoctorResult(facts, findings, framework, host)


def open_host(options: DoctorOptions, on_command: Callable[[str], object] | None = None) -> Host:
    """The capture of the options, else this machine. Raises BadInput for a capture or a Python that is none."""
    from npuenv.host.local import LocalHost
    from npuenv.host.recorded import load_capture

    if options.capture is not None:
        return load_capture(options.capture)
    require_python(options)
    return recording(LocalHost(), on_command)


def recording(host: Host, on_command: Callable[[str], object] | None = None) -> Host:
    """The host, whose answers are redacted before anything else sees them, and recorded for a capture."""
    from npuenv.host.recorded import RecordingHost

    return RecordingHost(TracingHost(host, on_command) if on_command else host)


class TracingHost:
    """A host that reports each command before it runs it."""

    def __init__(self, host: Host, on_command: Callable[[str], object]) -> None:
        self._host = host
        self._on_command = on_command

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        # A program that is sent to an interpreter is many lines long; its other words say what it is for.
        self._on_command(" ".join(word for word in argv if "\n" not in word))
        return self._host.run(argv, timeout_s=timeout_s, env=env)

    def look(self, path: str) -> Looked:
        return self._host.look(path)

    def environ(self) -> Mapping[str, str]:
        return self._host.environ()


def require_python(options: DoctorOptions) -> None:
    """Raises BadInput where `python` names something that is no Python, before anything else is examined.

    What looks like a Python and does not run is judged instead: why it does not is what the doctor is for.
    """
    if options.python is None or options.capture is not None:
        return
    path = options.python if "/" in options.python else shutil.which(options.python)
    key, hint = "", Message("doctor.python-hint")
    if path is None or not os.path.lexists(path):
        key = "python-absent"
    elif os.path.isdir(path):
        key = "python-folder"
        inside = os.path.join(path, "bin", "python")
        hint = Message("doctor.python-inside", {"path": inside}) if os.path.lexists(inside) else hint
    elif not re.search(r"python|pypy", os.path.basename(path)):
        if not os.access(path, os.X_OK):
            key = "python-no-program"
        elif options.level > 0 and not _is_python(path):
            key = "python-other"
    if key:
        raise BadInput(Message(f"doctor.{key}", {"path": options.python}), hint)


def _is_python(path: str) -> bool:
    """Whether a program that is not named like Python behaves like it."""
    from npuenv.host.local import LocalHost

    ran = LocalHost().run((path, "-c", "import sys; print(sys.version_info[0])"), timeout_s=10.0)
    return ran.code == 0 and ran.out.strip() in ("2", "3")
