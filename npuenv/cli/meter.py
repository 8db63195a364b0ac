"""The progress through a known number of things: a bar on a terminal, one line each elsewhere; always on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress

    from npuenv.cli.common import Ui


class Meter:
    """Counts to `total`. Silent with --quiet."""

    def __init__(self, ui: Ui, total: int) -> None:
        self._is_quiet = ui.is_quiet
        self._console = ui.console(stderr=True)
        self._total = total
        self._done = 0
        self._bar: Progress | None = None

    def tick(self, name: str) -> None:
        """One more is done."""
        self._done += 1
        if self._bar:
            self._bar.update(self._bar.task_ids[0], advance=1, description=name)
        elif not self._is_quiet:
            self._console.print(f"[{self._done}/{self._total}] {name}", markup=False, soft_wrap=True)

    def __enter__(self) -> Meter:
        if self._console.is_terminal and not self._is_quiet:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
