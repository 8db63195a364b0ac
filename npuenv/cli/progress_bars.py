"""The progress through a known amount: a bar on a terminal, one line each elsewhere; always on stderr.

`Meter` counts things, `Transfer` the bytes of a download; both are a `Gauge`, which draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from rich.progress import Progress, ProgressColumn
    from typing_extensions import Self

    from npuenv.bundle.offline.fetch import Told
    from npuenv.cli.common import Ui


class Gauge:
    """A bar to `total`. Silent with --quiet."""

    def __init__(self, ui: Ui, total: int) -> None:
        self._is_quiet = ui.is_quiet
        self._console = ui.console(stderr=True)
        self._total = total
        self._bar: Progress | None = None

    def _columns(self) -> tuple[ProgressColumn, ...]:
        """What the bar shows beside itself."""
        raise NotImplementedError

    def _show(self, line: str, **values: Any) -> None:
        """Moves the bar, or prints the line where there is none; an empty line only moves it."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], **values)
        elif line and not self._is_quiet:
            self._console.print(line, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._is_quiet:
            from rich.progress import Progress

            self._bar = Progress(*self._columns(), console=self._console, transient=True)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


class Meter(Gauge):
    """Counts to `total`."""

    _done = 0

    def tick(self, name: str) -> None:
        """One more is done."""
        self._done += 1
        self._show(f"[{self._done}/{self._total}] {name}", advance=1, description=name)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

        return BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")


class Transfer(Gauge):
    """The bytes of a download, `total` in all, and its files."""

    def __init__(self, ui: Ui, total: int, num_files: int) -> None:
        super().__init__(ui, total)
        self._num_files, self._num_done, self._name = num_files, 0, ""

    def tell(self, told: Told) -> None:
        """Shows how far it is."""
        self._num_done += bool(told.file)
        self._name = told.file or self._name
        percent = 100 * told.done // max(1, told.total)
        line = f"[{self._num_done}/{self._num_files}] {percent:3d} %  {told.file}" if told.file else ""
        self._show(line, completed=told.done, description=self._name)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        size = DownloadColumn(binary_units=True)
        return BarColumn(), size, TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
