"""`npuenv resolve`: one screen, the reasons on demand, and whose word a value is."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from npuenv.cli import main
from npuenv.core.errors import ExitCode
from tests.support.sentences import part, says, sentence

HOSTS = Path(__file__).parents[1] / "support" / "hosts"
pytestmark = pytest.mark.usefixtures("home")
VERL = ["verl-0.7.1-cann8.5.0", "--arch", "aarch64", "--hardware", "a3"]


def resolved(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["resolve", *words]) == 0
    return capsys.readouterr().out


def test_the_screen_ends_with_the_lock_and_the_command_that_installs(capsys: pytest.CaptureFixture[str]) -> None:
    text = resolved(capsys, *VERL)
    assert says(text, "stack.lock-complete")
    assert says(text, "stack.next-install", command=shlex.join(("npuenv", "install", *VERL[:1], *VERL[3:], *VERL[1:3])))
    assert sentence("stack.why-not-newer") not in text


def test_the_reasons_of_one_package_are_about_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = resolved(capsys, *VERL, "--why", "Torch_NPU")
    assert says(text, "resolve.because-recommended-pair", version="2.8.0.post2", cann="8.5.0")
    assert "transformers" not in text


@pytest.mark.parametrize("option", ["--why", "-v"])
def test_all_reasons_are_given_on_demand(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = resolved(capsys, *VERL, option)
    assert says(text, "resolve.because-recommended-pair", version="2.8.0.post2", cann="8.5.0")
    assert sentence("stack.head-overrides") in text


def test_a_package_that_the_stack_does_not_choose_has_no_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", *VERL, "--why", "numpi"]) == ExitCode.INPUT
    assert says(capsys.readouterr().err, "stack.why-nothing", package="numpi", stack=VERL[0])


@pytest.mark.parametrize("option", ["--why", "-v"])
def test_the_document_is_the_same_whatever_is_shown(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(capsys, *VERL, "--json") == resolved(capsys, *VERL, "--json", option)


def test_what_a_host_says_nobody_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--for", "verl", "--host", str(HOSTS / "a2_healthy.json"), "--json"]
    pins = {pin["name"]: pin for pin in json.loads(resolved(capsys, *words))["pins"]}
    assert says(pins["cann"]["because"]["says"], "resolve.because-read", line=part("8.5.0"))
