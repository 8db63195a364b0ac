"""Guides, manuals, source files and requests quote errors that nobody had: none of them is a failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.documents import load_toml
from npuenv.diagnose import Diagnosis, Verdict
from tests.diagnose.test_diagnosed_cases import in_fence, windows

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
DOCUMENTS = sorted((HERE / "documents").glob("*.toml"))
REPORTS = sorted((HERE / "cases").glob("m5-*.toml"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_a_document_names_no_cause(path: Path, diagnosed: Callable[[str], Diagnosis]) -> None:
    case = load_toml(path)
    for text in (case["report"], windows(case["report"])):
        found = diagnosed(text)
        assert found.verdict is Verdict.NOT_ENVIRONMENT
        assert not {cause.id for cause in found.causes} & {*case["must_not_claim"]}


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_prose_around_a_log_makes_no_document(path: Path, diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(in_fence(load_toml(path)["report"]))
    assert found.because is None
    assert found.verdict is Verdict.CAUSE
