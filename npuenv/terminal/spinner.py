"""Shows on a terminal which command runs, once an examination takes longer than two seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from npuenv.core.messages.visible import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.live import Live
    from rich.text import Text

    from npuenv.terminal.ui import Ui

_QUIET_S = 2.0
_PER_SECOND = 2


class Spinner:
    """A line on stderr that names the running command and the seconds so far; gone when the block ends.

    Silent where stderr is no terminal, and with --quiet.
    """

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._can_draw = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not ui.is_quiet
        self._timer = threading.Timer(_QUIET_S, self._draw)
        self._timer.daemon = True
        self._lock = threading.Lock()  # between the timer's thread and the block's end
        self._is_over = False
        self._live: Live | None = None
        self._began = time.monotonic()
        self._now = ""

    @property
    def on_command(self) -> Callable[[str], None] | None:
        """Takes the name of each command that runs; None where nothing is drawn."""
        return self._name if self._can_draw else None

    def _name(self, text: str) -> None:
        self._now = clean(text)

    def __enter__(self) -> Spinner:
        if self._can_draw:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._live:
                self._live.stop()

    def _draw(self) -> None:
        from rich.live import Live  # most looks are over before this, and never pay for it

        console = self._ui.console(stderr=True)
        with self._lock:
            if self._is_over:
                return
            self._live = Live(
                console=console,
                get_renderable=self._line,
                refresh_per_second=_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def _line(self) -> Text:
        from rich.text import Text

        seconds = time.monotonic() - self._began
        return Text(f"… {self._now} ({seconds:.0f} s)", no_wrap=True, overflow="ellipsis")
