"""Pasted reports of npuenv's own doctor: their words show no trouble, the evidence of their problems does."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.checks import Finding, Status
from npuenv.core.fact import Evidence
from npuenv.core.messages import Message
from npuenv.diagnose import Verdict
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste
from npuenv.report.diagnosis import lines
from npuenv.report.doctor import document
from npuenv.report.doctor_forms import render_html, render_junit, sarif_document
from npuenv.report.terminal import Manner, Page, render_report
from tests.support.changes import examined
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.diagnose import Diagnosis
    from npuenv.facts.collect import Facts

HOSTS = Path(__file__).parent.parent / "support" / "hosts"
FAULT = "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead."
OTHER = "ImportError: libtorch_npu.so: undefined symbol: _ZN3c1012IValue"
FORMS = (
    *("plain", "verbose", "quiet", "tree", "narrow tree", "coloured tree", "ascii tree"),
    *("json", "one-line json", "ascii json", "sarif", "html", "junit"),
)


def looked_at(name: str) -> tuple[tuple[Finding, ...], Facts]:
    facts, findings = examined(name)
    return findings, facts


def written(form: str, findings: Sequence[Finding], facts: Facts, lang: str) -> str:
    """A report as one of the forms of the doctor."""
    pages = {
        "narrow tree": Page(44, is_terminal=True),
        "coloured tree": Page(100, is_terminal=True, has_color=True),
        "ascii tree": Page(72, is_terminal=True, is_unicode=False),
        "tree": Page(100, is_terminal=True),
    }
    if form.endswith("json"):
        content = document(findings, facts, lang=lang)
        return json.dumps(content, ensure_ascii=form == "ascii json", indent=None if "one" in form else 2)
    if form == "sarif":
        return json.dumps(sarif_document(findings, lang=lang), ensure_ascii=False, indent=2)
    if form == "html":
        return render_html(findings, facts, lang=lang)
    if form == "junit":
        return render_junit(findings, lang=lang)
    is_verbose = form not in ("plain", "quiet", "narrow tree")
    manner = Manner(lang, is_verbose=is_verbose, is_quiet=form == "quiet")
    return render_report(findings, facts, pages.get(form, Page()), manner)


def with_fault(findings: Sequence[Finding]) -> list[Finding]:
    """Some findings, the first two replaced: one failed, one is well though its evidence looks like a failure."""
    says = Message("doctor.source", {"source": OTHER})
    bad, good = (Evidence("python -c 'import numpy'", FAULT),), (Evidence("python -c 'import torch'", OTHER),)
    failed = Finding(findings[0].check, Status.FAIL, says, bad, OTHER, None)
    well = Finding(findings[1].check, Status.OK, says, good, OTHER, None)
    return [failed, well, *findings[2::4]]


@functools.cache
def report(name: str, form: str, lang: str) -> str:
    """A recorded host's report in one of the forms."""
    return written(form, *looked_at(name), lang)


# Every form of one host and language; of the others the forms that differ most.
_FEW_FORMS = ("plain", "tree", "json", "html")
_REPORTS = [(name, form, lang) for name in ("no_card", "a2_healthy") for lang in ("en", "zh") for form in FORMS]


@pytest.mark.parametrize(
    ("name", "form", "lang"),
    [
        each
        if each[::2] == ("no_card", "en") or (each[::2] == ("a2_healthy", "zh") and each[1] in _FEW_FORMS)
        else pytest.param(*each, marks=pytest.mark.slow)
        for each in _REPORTS
    ],
)
@pytest.mark.one_in(4)
def test_a_report_without_a_fault_has_no_cause(
    name: str, form: str, lang: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    found = diagnosed(report(name, form, lang))
    assert (found.verdict, found.causes) == (Verdict.CANNOT_TELL, ())
    if not (form == "quiet" and name == "a2_healthy"):  # which is empty
        assert [seen.id for seen in found.observations] == ["own-report"]
        assert found.missing == ("error",)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("sarif", "html", "junit")])
def test_the_evidence_of_a_failure_is_read_in_text_and_json(
    form: str, lang: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    findings, facts = looked_at("a2_healthy")
    found = diagnosed(written(form, with_fault(findings), facts, lang))
    assert found.verdict is Verdict.CAUSE
    assert [cause.id for cause in found.causes] == ["numpy2"]
    assert found.causes[0].line.shown == FAULT


@pytest.mark.parametrize("form", ["plain", "verbose", "json"])
def test_the_number_of_the_quoted_line_is_that_of_the_report(form: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    findings, facts = looked_at("a2_healthy")
    text = "It fails:\n" + written(form, with_fault(findings), facts, "en")
    number = diagnosed(text).causes[0].line.number
    assert "np.float_" in text.split("\n")[number - 1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.one_in(3)
def test_what_stands_around_a_report_is_read_as_ever(form: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    whole = report("no_card", form, "en").rstrip("\n")
    for text in (f"$ python run.py\n{OTHER}\n\n{whole}\n", f"The report:\n{whole}\n```\n{OTHER}\n"):
        found = diagnosed(text)
        assert (found.verdict, found.causes[0].line.shown) == (Verdict.CAUSE, OTHER)


@pytest.mark.parametrize("form", ["plain", "verbose", "json", "sarif"])
def test_a_quoted_report_has_no_cause(form: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    whole = report("no_card", form, "en")
    assert diagnosed("\n".join(f"> {line}" for line in whole.split("\n"))).causes == ()


@pytest.mark.parametrize("form", ["verbose", "json"])
def test_a_report_that_is_cut_off_has_no_cause(form: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    whole = report("a2_healthy", form, "en")
    assert diagnosed(whole[: len(whole) * 2 // 3]).causes == ()


@pytest.mark.parametrize("head", ["npuenv doctor", "FAIL    a line of another program", "ok      x: y"])
def test_a_line_like_one_of_the_doctor_hides_nothing(head: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(f"{head}\n{OTHER}\n").causes[0].line.shown == OTHER


def test_a_redacted_value_in_a_document_stays_redacted(diagnosed: Callable[[str], Diagnosis]) -> None:
    findings, facts = looked_at("a2_healthy")
    token = "hf_" + "Ab3" * 12
    failed = with_fault(findings)[0]
    evidence = (Evidence("python", f"{FAULT} HF_TOKEN={token}"),)
    changed = Finding(failed.check, failed.status, failed.says, evidence, "a document", None)
    found = diagnosed(written("json", [changed], facts, "en"))
    assert found.causes[0].id == "numpy2"
    assert token not in found.causes[0].line.shown


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_cause_that_is_only_possible_is_not_called_found(lang: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    text = f"{FAULT}\n"
    found, paste = diagnosed(text), read_paste(text.encode(), Redactor().text)
    less = replace(found, causes=(replace(found.causes[0], confidence=0.6),))
    assert found.verdict is less.verdict is Verdict.CAUSE
    heads = [lines(each, paste, lang=lang)[0].text for each in (found, less)]
    assert says(heads[1], "diagnose.verdict-possible", lang)
    assert heads[0] == sentence("diagnose.verdict-cause", lang)
