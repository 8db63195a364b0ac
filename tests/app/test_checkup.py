"""The doctor as a Python program uses it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from npuenv import app
from npuenv.app import DoctorOptions, doctor
from npuenv.app.examine import TracingHost
from npuenv.cli import main
from npuenv.core.errors import BadInput
from npuenv.host.local import LocalHost
from npuenv.resolve.types import ConflictError, Request

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests/support/hosts/container_8020.json"


def test_the_example_of_the_documentation_says_what_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests/support/hosts/a2_healthy.json", "machine.json")
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs/PYTHON.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    exec(compile(found[1], "PYTHON.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    code = main(["doctor", "--from", "machine.json", "--for", "verl", "--level", "2", "--json"])
    document = json.loads(capsys.readouterr().out)
    problems = [each["check"] for each in document["findings"] if each["status"] in ("fail", "warn")]
    assert lines[0] == "0 910B2 OK" and lines[-1] == str(code)
    assert [line.split()[0] for line in lines if "." in line.split()[0]] == problems


def test_each_command_is_reported_before_it_runs() -> None:
    commands: list[str] = []
    TracingHost(LocalHost(), commands.append).run(("echo", "a\nb", "c"))
    assert commands == ["echo c"]


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(BadInput, match=r"doctor\.hash-level"):
        doctor(DoctorOptions(level=0, hashes=True, capture=CAPTURE))


def test_an_unknown_stack_is_refused() -> None:
    with pytest.raises(BadInput):
        doctor(DoctorOptions(stack="verl-cann9.1.1", capture=CAPTURE))


def test_a_conflict_carries_its_demands_and_ways_out() -> None:
    with pytest.raises(ConflictError) as caught:
        app.resolve(Request(stack="verl-0.7.1-cann8.5.0", pins={"torch": "2.9.0"}))
    assert len(caught.value.conflict.clashes) >= 2 and caught.value.conflict.ways_out


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        getattr(app, "nothing")  # noqa: B009
    assert {name for name in app.__all__ if not hasattr(app, name)} == set()
