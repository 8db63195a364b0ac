"""What the sentence for a failed program names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.core.plan import Run
from npuenv.install.executor import deciding_line, failure_reason, short, tail

if TYPE_CHECKING:
    from pathlib import Path


def test_the_program_is_named_and_not_what_it_was_given() -> None:
    uv = Run(("/opt/bin/uv", "pip", "install", "-r", "/t/rest.txt"))
    assert failure_reason("boom", uv, 3).args == {"program": "uv", "code": 3, "line": "boom"}
    assert failure_reason("", uv, -9).args == {"program": "uv", "signal": 9}
    assert failure_reason("error: Connection refused", uv, 2).args["program"] == "uv"


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("$ one\n" + "x" * 100_000 + "\nlast words\n")
    assert tail(log).endswith("x\nlast words\n") and len(tail(log)) == 1 << 16
    log.write_text("$ one\nfirst\n$ two\nsecond\n")
    assert tail(log) == "two\nsecond\n"


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("error: first", "problem: it is torn", "problem: and this too"), "problem: it is torn"),
        (("error: outer", "Because a needs b", "Caused by: c"), "Because a needs b"),
        (("error: outer", "  Caused by: inner", "  Caused by: innermost"), "Caused by: inner"),
        (("fatal: one", "ERROR: two", "done"), "fatal: one"),
        (("$ uv pip install error: x", "some", "last"), "last"),
        (("get https://me:word@host/simple failed",), "get https://***@host/simple failed"),
        ((), ""),
    ],
)
def test_of_what_a_program_printed_the_line_that_says_why_decides(lines: tuple[str, ...], wanted: str) -> None:
    assert deciding_line("\n".join(lines)) == wanted


def test_a_long_line_is_cut_to_four_hundred_letters_and_shows_it() -> None:
    assert short("x" * 400) == "x" * 400
    assert short("x" * 401) == "x" * 397 + "..."
