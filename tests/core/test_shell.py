"""Commands as they are shown to be typed."""

from __future__ import annotations

import pytest

from npuenv.core.shell import shell_line


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("rm", "a b", "中文"), "rm 'a b' '中文'"),
        (("export", "A=/x:$LD_LIBRARY_PATH"), 'export A=/x:"$LD_LIBRARY_PATH"'),
        (("echo", "\x1b[31m\x9b\u202e\n\x7f"), r"echo '\x1b[31m\x9b\u202e\x0a\x7f'"),
        (("export", "A=\x1b]0;t\x07"), r"export A='\x1b]0;t\x07'"),
    ],
)
def test_a_command_is_one_line_that_paints_nothing(argv: tuple[str, ...], line: str) -> None:
    assert shell_line(argv) == line
