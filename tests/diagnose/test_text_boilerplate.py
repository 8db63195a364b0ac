"""Fixed text of messages is no evidence; what a program fills in is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Verdict
from npuenv.diagnose.text import drop_boilerplate
from npuenv.host.report import read_paste
from npuenv.matrix.error_patterns import load_error_patterns

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis

ROWS = load_error_patterns().boilerplate
FAILURE = "RuntimeError: ACL stream synchronize failed\n"
LINK_REASONS = next(row for row in ROWS if row.id == "fixed.hccl.link-reasons").texts


def remains(text: str) -> str:
    (line,) = drop_boilerplate(read_paste(text.encode()).lines, ROWS)
    return " ".join(line.text.split())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_fixed_text_alone_shows_no_cause(row: object, diagnosed: Callable[[str], Diagnosis]) -> None:
    texts = [text.replace("**", " x").replace("*", "1800") for text in getattr(row, "texts", ())]
    found = diagnosed(FAILURE + "\n".join(f"        {at}. {text}" for at, text in enumerate(texts, 1)))
    assert found.verdict is not Verdict.CAUSE
    assert found.causes == ()


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("5. The TLS switch is inconsistent, or the TLS certificate expires. ", "5."),
        ("the tls  switch is inconsistent, or the TLS certificate expires.", ""),
        ("Check python-core-worker-0a1b.log files for more information.", "-0a1b"),
        ("(The default timeout interval is 1800s. You can set the interval)", None),
        ("rank 3: Possible Cause: 1. Something that is guessed", "rank 3:"),
        ("interval (120s by default)", None),
    ],
)
def test_what_remains_of_a_line(text: str, rest: str | None) -> None:
    if rest is None:
        assert remains(text) == text
    else:
        assert remains(text).lstrip("-") == rest.lstrip("-")


def test_a_filled_in_limit_remains() -> None:
    text = (
        "If this error is reported for all ranks, check whether the error reporting time is consistent "
        "(the maximum difference must not exceed 600s)."
    )
    assert remains(text) == "600"


def test_the_line_is_shown_as_it_stands() -> None:
    (line,) = drop_boilerplate(read_paste(LINK_REASONS[5].encode()).lines, ROWS)
    assert line.shown == LINK_REASONS[5]
    assert line.text == ""


def test_a_link_that_fails_with_all_printed_reasons_does_not_blame_tls_first(
    diagnosed: Callable[[str], Diagnosis],
) -> None:
    reasons = "\n".join(f"[ERROR] HCCL(77,python): {at}. {text}" for at, text in enumerate(LINK_REASONS))
    found = diagnosed(f"EI0006: [PID: 77] Getting socket times out. Reason: x\n{reasons}\n")
    assert found.causes[0].id == "hccl-connect-timeout"
    assert {cause.id: cause.confidence for cause in found.causes}["hccl-tls-mismatch"] < 0.5
