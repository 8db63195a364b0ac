"""Says on a terminal what is being looked at, once that takes longer than two seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from npuenv.core.messages.visible import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from rich.live import Live
    from rich.text import Text

    from npuenv.app.ui import Ui
    from npuenv.host.base import Host, Looked, Ran

_QUIET_S = 2.0
_PER_SECOND = 2


class Watch:
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

    def host(self, host: Host) -> Host:
        """The host, whose commands are named while they run."""
        return _Named(host, self) if self._can_draw else host

    def names(self, text: str) -> None:
        """What is being done now."""
        self._now = clean(text)

    def __enter__(self) -> Watch:
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


class _Named:
    """A host that tells the watch what it runs."""

    def __init__(self, host: Host, watch: Watch) -> None:
        self._host = host
        self._watch = watch

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        # A program that is sent to an interpreter is many lines long; its other words say what it is for.
        self._watch.names(" ".join(word for word in argv if "\n" not in word))
        return self._host.run(argv, timeout_s=timeout_s, env=env)

    def look(self, path: str) -> Looked:
        return self._host.look(path)

    def environ(self) -> Mapping[str, str]:
        return self._host.environ()
