"""Progress in plain lines, and that a bar counts what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.bundle.fetch import DownloadProgress
from npuenv.cli.common import Ui
from npuenv.cli.progress import CountBar, DownloadBar

if TYPE_CHECKING:
    import pytest

UI = Ui(lang="en", has_color=False)


def test_where_there_is_no_terminal_each_thing_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with CountBar(UI, 2) as tell:
        tell("one [x]")
        tell("two")
    assert capsys.readouterr() == ("", "[1/2] one [x]\n[2/2] two\n")
    with CountBar(Ui(lang="en", is_quiet=True), 1) as tell:
        tell("one")
    assert capsys.readouterr() == ("", "")


def test_a_transfer_says_each_file_that_came_and_how_much_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    with DownloadBar(UI, 200, 2) as tell:
        for done, name in ((50, ""), (100, "a.whl"), (200, "b.whl")):
            tell(DownloadProgress(done, 200, name))
    assert capsys.readouterr().err == "[1/2]  50 %  a.whl\n[2/2] 100 %  b.whl\n"


def test_on_a_terminal_the_bar_ends_where_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for gauge in (CountBar(UI, 2), DownloadBar(UI, 200, 2)):
        gauge._console._force_terminal = True
        with gauge:
            assert gauge._bar is not None
            task = gauge._bar.tasks[0]
            if isinstance(gauge, CountBar):
                gauge("one")
                assert (task.completed, task.description) == (1, "one")
            else:
                gauge(DownloadProgress(50, 200, "a.whl"))
                gauge(DownloadProgress(60, 200, ""))
                assert (task.completed, task.total, task.description) == (60, 200, "a.whl")
