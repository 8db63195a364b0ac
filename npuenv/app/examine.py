"""One look at a machine: what is true of it, and what follows. Start from `look`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.app.options import Wish
    from npuenv.checks import Finding
    from npuenv.core.errors import ExitCode
    from npuenv.facts.collect import Facts
    from npuenv.host.base import Host
    from npuenv.resolve.types import Stack


@dataclass(frozen=True, slots=True)
class Judged:
    """One look at a machine: what is true of it, what follows, and how to turn stand-ins back into its names."""

    facts: Facts
    findings: tuple[Finding, ...]
    framework: str | None
    host: Host

    @property
    def code(self) -> ExitCode:
        from npuenv.checks import exit_code

        return exit_code(self.findings, framework=self.framework)

    @property
    def redact(self) -> Callable[[str], str]:
        """Puts stand-ins into what the user typed, before it goes into a report that is passed on."""
        from npuenv.host.recorded import RecordingHost

        return self.host.redact if isinstance(self.host, RecordingHost) else str

    @property
    def restore(self) -> Callable[[str], str]:
        """A replayed capture has no names to put back."""
        from npuenv.host.recorded import RecordingHost

        return self.host.restore if isinstance(self.host, RecordingHost) else str


def look(
    wish: Wish,
    host: Host,
    *,
    framework: str | None = None,
    stack_of: Callable[[Facts], Stack] | None = None,
    python: str | None = None,
) -> Judged:
    """Collects and checks. `framework`: the use to judge for, None: as wished. `stack_of`: the stack to judge against,
    which may depend on the machine. `python`: the interpreter where none was asked for, None: the session's.
    """
    from npuenv.checks import check_all
    from npuenv.facts.collect import collect

    framework = framework or wish.framework
    facts = collect(host, python=wish.python or python, level=wish.level, framework=framework, hashes=wish.hashes)
    stack = stack_of(facts) if stack_of else None
    findings = check_all(facts, framework=framework, level=wish.level, stack=stack)
    return Judged(facts, findings, framework, host)


def live(host: Host) -> Host:
    """A host of flesh and blood, redacted before anything else sees its answers."""
    from npuenv.host.recorded import RecordingHost

    return RecordingHost(host)
