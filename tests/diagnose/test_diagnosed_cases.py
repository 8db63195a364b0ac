"""Reports as people paste them: the cause is right, healthy ones raise no alarm, wrapping changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.documents import load_toml
from npuenv.diagnose import Diagnosis, Verdict, diagnose
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste
from tests.diagnose.exam import accepted, score_files, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.toml"))
SHARED = HERE.parents[1].parent / "shared" / "cases"
LAST_MEASURED = 201


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
@pytest.mark.one_in(2)
def test_a_case_is_diagnosed_and_quotes_the_line_where_it_says(
    path: Path, diagnosed: Callable[[str], Diagnosis]
) -> None:
    case = load_toml(path)
    found = diagnosed(case["report"])
    named = {cause.id for cause in found.causes}
    if case["kind"] == "healthy":
        assert found.verdict is not Verdict.CAUSE
        assert not named & {*case.get("must_not_claim", ())}
    else:
        assert found.verdict is Verdict.CAUSE
        assert found.causes[0].id in accepted(case)
    lines = Redactor().text(case["report"]).split("\n")
    for cause in found.causes:
        assert cause.line.shown == lines[cause.line.number - 1].strip()


def quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def windows(text: str) -> str:
    return text.replace("\n", "\r\n")


def in_fence(text: str) -> str:
    return f"### Environment and log\n\n```text\n{text}\n```\n\nThanks!\n"


def of_a_ray_worker(text: str) -> str:
    return "\n".join(f"\x1b[36m(WorkerDict pid=4711)\x1b[0m {line}" for line in text.split("\n"))


def of_compose(text: str) -> str:
    return "\n".join(f"trainer-1  | {line}" for line in text.split("\n"))


WRAPS = (quoted, windows, in_fence, of_a_ray_worker, of_compose)


def wrongly_diagnosed(
    paths: Sequence[Path], wrap: Callable[[str], str], diagnosed: Callable[[str], Diagnosis]
) -> list[str]:
    wrong = []
    for path in paths:
        case = load_toml(path)
        found = diagnosed(wrap(case["report"]))
        right = (
            found.verdict is not Verdict.CAUSE
            if case["kind"] == "healthy"
            else found.verdict is Verdict.CAUSE and found.causes[0].id in accepted(case)
        )
        if not right:
            wrong.append(path.stem)
    return wrong


@pytest.mark.parametrize("wrap", [quoted, *(pytest.param(each, marks=pytest.mark.slow) for each in WRAPS[1:])])
def test_wrapping_changes_no_verdict(wrap: Callable[[str], str], diagnosed: Callable[[str], Diagnosis]) -> None:
    assert wrongly_diagnosed(CASES[WRAPS.index(wrap) :: len(WRAPS)], wrap, diagnosed) == []


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [WRAPS[0], *(pytest.param(each, marks=pytest.mark.long) for each in WRAPS[1:])])
def test_wrapping_changes_no_verdict_of_any_case(
    wrap: Callable[[str], str], diagnosed: Callable[[str], Diagnosis]
) -> None:
    assert wrongly_diagnosed(CASES, wrap, diagnosed) == []


def test_a_long_log_around_a_case_hides_nothing() -> None:
    path = HERE / "cases" / "asdops-abi.toml"
    case = load_toml(path)
    noise = "\n".join(
        f"INFO 11-21 10:00:{at % 60:02d} [loggers.py:1] Engine 000: {at} tokens/s" for at in range(20_000)
    )
    paste = read_paste(f"{noise}\n{case['report']}\n{noise}".encode(), Redactor().text)
    assert paste.dropped > 30_000
    found = diagnose(paste)
    assert case["cause"] in {cause.id for cause in found.causes}
    assert found.causes[0].line.number > 20_000


@pytest.mark.skipif(not SHARED.is_dir(), reason="the labelled cases lie beside this repository, not in it")
@pytest.mark.slow
def test_labelled_cases_stay_where_they_were_measured() -> None:
    """Floors well below what was measured, so that a new table row may cost a case and a broken rule may not.

    Later cases are no part of it: they are there to show what the tables do with reports that nobody wrote a row for.
    """
    scores = score_files(path for path in SHARED.glob("*.toml") if int(path.stem) <= LAST_MEASURED)
    failures = [each for each in scores if each.case["kind"] == "failure" and each.case["grade"] in "AB"]
    healthy = [each for each in scores if each.case["kind"] == "healthy"]
    right = sum(each.outcome == "right" for each in failures)
    assert right >= 0.9 * len(failures)
    assert all(each.outcome == "right" for each in healthy)


def test_the_exam_counts_our_own_cases() -> None:
    scores = score_files(CASES[::10])
    assert len(scores) > 30
    assert {each.outcome for each in scores} == {"right"}
    assert "alarms 0  forbidden claims 0" in table(scores)
