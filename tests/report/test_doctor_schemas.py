"""What npuenv prints for programs holds to the schemas that it publishes."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

import npuenv.report
from npuenv.core.finding import Fix, Status
from npuenv.core.messages import Message
from npuenv.facts.collect import collect
from npuenv.host.recorded import RecordingHost, load_capture
from npuenv.report.doctor import document
from tests.support.changes import examined

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.finding import Finding
    from npuenv.facts.collect import Facts

SCHEMAS = Path(npuenv.report.__file__).parent / "schemas"
HOSTS = sorted((Path(__file__).parent.parent / "support" / "hosts").glob("*.json"))


@functools.cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(name: str, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(value)]


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.one_in(3)
def test_the_document_of_every_recorded_host_is_valid(path: Path, lang: str) -> None:
    facts, findings = examined(path.stem)
    made = json.loads(json.dumps(document(findings, facts, lang=lang, level=2)))
    assert problems("doctor-1", made) == []
    assert len(made["findings"]) > 40 and made["asked"] == {"for": None, "stack": None, "level": 2}


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_every_capture_is_valid_and_so_is_one_made_of_it(path: Path) -> None:
    assert problems("capture-1", json.loads(path.read_text(encoding="utf-8"))) == []
    recording = RecordingHost(load_capture(path))
    collect(recording, level=0)
    assert problems("capture-1", json.loads(recording.capture_text())) == []


def test_a_document_that_differs_from_the_schema_is_found_out(blank: Facts, found: Callable[..., Finding]) -> None:
    cure = Fix(Message("doctor.title"), (("pip", "install", "x"),), is_automatic=True)
    made = json.loads(json.dumps(document([found("cann.found", Status.FAIL, fix=cure)], blank)))
    assert problems("doctor-1", made) == []
    assert made["findings"][0]["fix"] == {
        "says": "npuenv doctor",
        "commands": [["pip", "install", "x"]],
        "dangerous": False,
        "automatic": True,
        "needs_root": False,
    }
    change: dict[str, Any]
    for change in (
        {"exit": 2},
        {"summary": {}},
        {"extra": 1},
        {"findings": [{**made["findings"][0], "status": "bad"}]},
        {"facts": {"machine": {"arch": {"state": "unknown", "value": "x86_64", "evidence": []}}}},
    ):
        assert problems("doctor-1", {**made, **change}) != []


def test_every_error_document_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    from npuenv.cli import main

    assert main(["doctor", "--json", "--save", "a", "--from", "b"]) == 2
    assert problems("error-1", json.loads(capsys.readouterr().out)) == []
    assert main(["doctor", "--format", "json", "--stack", "no-such"]) == 2
    made = json.loads(capsys.readouterr().out)
    assert problems("error-1", made) == [] and made["error"]["hint"]
    assert problems("error-1", {**made, "exit": 0}) != []


@pytest.mark.parametrize(
    "paste",
    [
        "dcmi module initialize failed. ret is -8005\n",
        "ImportError: libhccl.so: cannot open shared object file: No such file or directory\n",
        "everything is fine\n",
        "```\n| NPU   Name |\nERR02200 DIST call hccl api failed. EI0006\n```\n" * 3,
        ".",
    ],
)
def test_every_diagnosis_is_valid(paste: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from npuenv.cli import main

    report = tmp_path / "report.txt"
    report.write_text(paste, encoding="utf-8")
    code = main(["doctor", "--from-report", str(report), "--json"])
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "npuenv.diagnosis/1" and made["exit"] == code
    assert problems("diagnosis-1", made) == []
    assert problems("diagnosis-1", {**made, "verdict": "perhaps"}) != []


def test_the_schemas_are_valid_themselves_and_name_what_they_describe() -> None:
    names = sorted(path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.json"))
    assert names == ["capture-1", "cluster-1", "diagnosis-1", "doctor-1", "error-1", "fix-1", "mesh-1"]
    for name in names:
        schema: Any = validator(name).schema
        assert schema["properties"]["schema"]["const"] == f"npuenv.{name.replace('-', '/')}"
