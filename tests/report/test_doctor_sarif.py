"""The doctor's findings as SARIF 2.1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from npuenv.checks import CHECKS
from npuenv.core.finding import Fix, Status
from npuenv.core.messages import Message
from npuenv.report.doctor_forms import sarif_document
from tests.support.changes import examined

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.finding import Finding

HOSTS = Path(__file__).parent.parent / "support" / "hosts"


def obj(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object of the standard: it names all of its properties and knows no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def rows(of: dict[str, Any], **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, **limits}


TEXT = {"type": "string"}
BAG = {"type": "object", "properties": {"tags": rows(TEXT, uniqueItems=True)}}
MESSAGE = obj("text", text=TEXT)
LANGUAGE = {"type": "string", "pattern": "^[a-zA-Z]{2}(-[a-zA-Z]{4})?(-[a-zA-Z]{2})?$"}
RULE = obj("id", id=TEXT, shortDescription=MESSAGE, help=MESSAGE, properties=BAG)
PLACE = obj(
    physicalLocation=obj(artifactLocation=obj(uri={"type": "string", "pattern": r"^file:///[!-~]*$"})),
    logicalLocations=rows(obj(fullyQualifiedName=TEXT, kind=TEXT)),
)
RESULT = obj(
    "message",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level={"enum": ["none", "note", "warning", "error"]},
    message=MESSAGE,
    locations=rows(PLACE),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    properties=BAG,
)
RUN = obj(
    "tool",
    tool=obj(
        "driver", driver=obj("name", name=TEXT, version=TEXT, language=LANGUAGE, rules=rows(RULE, uniqueItems=True))
    ),
    language=LANGUAGE,
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations=rows(obj("executionSuccessful", executionSuccessful={"type": "boolean"}, exitCode={"type": "integer"})),
    results=rows(RESULT),
)
# The part of the standard's schema that is used, from its sections 3.13 (log), 3.14 (run), 3.27 (result), 3.49 (rule).
SARIF = obj("version runs", **{"$schema": TEXT, "version": {"enum": ["2.1.0"]}, "runs": rows(RUN)})


@pytest.mark.slow
def test_every_recorded_host_gives_a_valid_log() -> None:
    for path in sorted(HOSTS.glob("*.json")):
        _, findings = examined(path.stem)
        log = json.loads(json.dumps(sarif_document(findings, lang="zh")))
        jsonschema.Draft202012Validator(SARIF).validate(log)
        run = log["runs"][0]
        rules = run["tool"]["driver"]["rules"]
        assert [rule["id"] for rule in rules] == [check.id for check in CHECKS]
        for result in run["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_levels_follow_the_status_and_what_is_well_is_no_result(found: Callable[..., Finding]) -> None:
    statuses = (Status.WARN, Status.OK, Status.FAIL, Status.SKIP, Status.UNKNOWN)
    names = ("cards.healthy", "cards.free", "cann.found", "cann.arch", "cann.driver")
    log = sarif_document([found(name, status) for name, status in zip(names, statuses, strict=True)])
    results = log["runs"][0]["results"]
    assert [(result["ruleId"], result["level"]) for result in results] == [
        ("cann.found", "error"),
        ("cann.driver", "note"),
        ("cards.healthy", "warning"),
    ]
    assert log["runs"][0]["invocations"] == [{"executionSuccessful": True, "exitCode": 1}]


def test_a_result_names_the_deciding_file_and_the_commands(found: Callable[..., Finding]) -> None:
    from dataclasses import replace

    from npuenv.core.fact import Evidence

    cure = Fix(Message("doctor.title"), (("source", "/opt/my cann/set_env.sh"),))
    finding = replace(found("cann.found", fix=cure), evidence=(Evidence("/etc/ä b", "x"), Evidence("/etc/ä#b", "y")))
    result = sarif_document([finding], host="host7")["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///etc/%C3%A4%23b"
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "host7/cann.found"
    assert result["message"]["text"].endswith("$ source '/opt/my cann/set_env.sh'")
    assert result["properties"]["commands"] == [["source", "/opt/my cann/set_env.sh"]]
