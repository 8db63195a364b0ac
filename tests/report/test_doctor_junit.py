"""The doctor's findings as JUnit XML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from npuenv.core.finding import Fix, Status
from npuenv.core.messages import Message
from npuenv.report.doctor_forms import render_junit
from tests.support.changes import examined

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.finding import Finding

HOSTS = Path(__file__).parent.parent / "support" / "hosts"


def test_each_status_has_its_element(found: Callable[..., Finding]) -> None:
    cure = Fix(Message("doctor.title"), (("npu-smi", "info"),))
    findings = [
        found("cards.healthy", Status.FAIL, "ret <1>", fix=cure),
        found("cards.free", Status.UNKNOWN),
        found("cann.found", Status.WARN),
        found("cann.arch", Status.OK),
        found("cann.driver", Status.SKIP, ""),
    ]
    root = ElementTree.fromstring(render_junit(findings))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert [case.get("classname") for case in cases.values()] == ["npuenv.cards"] * 2 + ["npuenv.cann"] * 3
    assert [[child.tag for child in case] for case in cases.values()] == [
        ["failure"],
        ["error"],
        ["system-out"],
        [],
        ["skipped"],
    ]
    failure = cases["cards.healthy"].find("failure")
    assert failure is not None and failure.text is not None
    assert "a command -> ret <1>" in failure.text and "$ npu-smi info" in failure.text
    assert (failure.get("type"), failure.get("message")) == ("fail", "card health: source: {has}")


def test_the_numbers_add_up_on_a_recorded_host() -> None:
    _, findings = examined("container_8020")
    root = ElementTree.fromstring(render_junit(findings, lang="zh"))
    assert root.tag == "testsuites"
    assert [root.get(name) for name in ("tests", "failures", "errors")] == [
        str(len(findings)),
        str(sum(finding.status is Status.FAIL for finding in findings)),
        str(sum(finding.status is Status.UNKNOWN for finding in findings)),
    ]
    for suite in root:
        assert {"name", "tests", "failures", "errors", "skipped"} == set(suite.attrib)
        assert suite.get("tests") == str(len(suite.findall("testcase")))
        assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
        assert suite.get("errors") == str(len(suite.findall("testcase/error")))
        assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))


def test_what_xml_cannot_hold_is_replaced(found: Callable[..., Finding]) -> None:
    evil = ']]>&<failure/>\x00\x1b[31m\ud800\uffff"'
    text = render_junit([found("cards.healthy", Status.FAIL, evil, says=evil)])
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert len(root.findall(".//failure")) == 1
    body = root.findall(".//failure")[0].text
    assert body is not None and "]]>&<failure/>" in body
