"""The progress of an installation: a live line on a terminal, one line a step elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.core.messages.visible import clean

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status

    from npuenv.cli.common import Ui
    from npuenv.install.executor import Event


# Where there is no live line: the seconds of a step before it says that it is still at work, and between two of these.
_FIRST_S, _EVERY_S = 10.0, 30.0


class Teller:
    """Draws the events of one execution. Silent with --quiet; on stderr with --json."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._console = ui.console(stderr=ui.is_json)
        self._status: Status | None = None
        self._next_s = _FIRST_S
        self._last = ""  # the last line of the step at work
        self._skipped: list[Event] = []  # that were done already, since the last line
        self._has_told = False

    def tell(self, event: Event) -> None:
        """Shows one event."""
        from npuenv.install.executor import State

        if self._ui.is_quiet:
            return
        head = f"[{event.number}/{event.total}] {event.step.id}"
        if event.state is State.START:
            self._next_s, self._last = _FIRST_S, ""
            self._show(f"{head}: {say(event.step.why, self._ui.lang)}")
        elif event.state is State.LINE:
            self._line(head, event.text)
        elif event.state is State.WAITING:
            self._wait(head, event.seconds)
        elif event.state is State.SKIPPED:
            self._skipped.append(event)
            if self._ui.is_verbose:
                self._tell_skipped()
        elif event.state in (State.DONE, State.FAILED, State.INTERRUPTED):
            self._tell_skipped()
            self._print(f"cli.step-{event.state.value}", head=head, seconds=f"{event.seconds:.1f}")

    def _tell_skipped(self) -> None:
        """The steps before this one that had nothing to do, in one line: the numbers have no gaps."""
        if self._skipped:
            first, last = self._skipped[0], self._skipped[-1]
            numbers = str(first.number) if first is last else f"{first.number}-{last.number}"
            steps = ", ".join(event.step.id for event in self._skipped)
            self._print("cli.step-skipped", head=f"[{numbers}/{last.total}] {steps}")
        self._skipped = []

    def _print(self, key: str, **args: object) -> None:
        self._has_told = True
        self._console.print(say(Message(key, args), self._ui.lang), markup=False, soft_wrap=True)

    def wait(self, path: str, pids: tuple[int, ...]) -> None:
        """Says that another installation is waited for."""
        key = "execute.waiting-for" if pids else "execute.waiting"
        if not self._ui.is_quiet:
            text = say(Message(key, {"path": path, **({"pids": pids} if pids else {})}), self._ui.lang)
            self._console.print(text, markup=False, soft_wrap=True)

    def _wait(self, head: str, seconds: float) -> None:
        """A plain line now and then, so that a log shows that a long step is alive."""
        if self._status or seconds < self._next_s:
            return
        self._next_s = seconds + _EVERY_S
        key = "install.still-at-work" if self._last else "install.still-at-work-silent"
        text = say(Message(key, {"head": head, "seconds": f"{seconds:.0f}", "line": self._last}), self._ui.lang)
        self._console.print(text, markup=False, soft_wrap=True)

    def _line(self, head: str, text: str) -> None:
        text = clean(text.rstrip())
        self._last = text.strip()[:100] or self._last
        self._show(f"{head}: {text.strip()[:100]}")
        if not self._status and self._ui.is_verbose:
            self._console.print(f"    {text}", markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        """On the live line, in which no bracket is rich's markup."""
        from rich.text import Text

        if self._status:
            self._status.update(Text(text))

    def __enter__(self) -> Teller:
        if self._console.is_terminal and not self._ui.is_quiet:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_told and error is None:
            self._tell_skipped()
        if self._status:
            self._status.stop()
