"""The progress of an installation: a live line on a terminal, one line a step elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.messages import Message, say

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status

    from npuenv.cli.common import Ui
    from npuenv.execute import Event


class Teller:
    """Draws the events of one execution. Silent with --quiet; on stderr with --json."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._console = ui.console(stderr=ui.is_json)
        self._status: Status | None = None

    def tell(self, event: Event) -> None:
        """Shows one event."""
        from npuenv.execute import State

        if self._ui.is_quiet:
            return
        head = f"[{event.number}/{event.total}] {event.step.id}"
        if event.state is State.START and self._status:
            self._status.update(f"{head}: {say(event.step.why, self._ui.lang)}")
        elif event.state is State.LINE:
            self._line(head, event.text)
        elif event.state in (State.DONE, State.SKIPPED, State.FAILED, State.INTERRUPTED):
            args = {"head": head, "seconds": f"{event.seconds:.1f}"}
            if event.state is not State.SKIPPED or self._ui.is_verbose:
                text = say(Message(f"cli.step-{event.state.value}", args), self._ui.lang)
                self._console.print(text, markup=False, soft_wrap=True)

    def _line(self, head: str, text: str) -> None:
        if self._status:
            self._status.update(f"{head}: {text.strip()[:100]}")
        elif self._ui.is_verbose:
            self._console.print(f"    {text.rstrip()}", markup=False, soft_wrap=True)

    def __enter__(self) -> Teller:
        if self._console.is_terminal and not self._ui.is_quiet:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()
