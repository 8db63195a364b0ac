"""`npuenv smoke-train` on the installed CPU stack: it passes, and each way of breaking the run makes it fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from npuenv.cli import main
from npuenv.core.errors import ExitCode
from npuenv.smoke.run import TrainerTarget, start
from tests.support.own_signals import as_from_a_terminal
from tests.support.sentences import says, sentence

ROOT = Path(__file__).parents[2]
# What a run of one process on a CPU has no answer to.
LEFT_OUT = {"training.packages", "training.collective", "training.first-use", "training.ranks-agree"}


def smoke(target: Path, out: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[int, dict[str, str]]:
    """The exit code and the status of each finding."""
    code = main(["smoke-train", "--target", str(target), "-o", str(out), "--json", *settings])
    document = json.loads(capsys.readouterr().out)
    assert document["exit"] == code
    return code, {finding["check"]: finding["status"] for finding in document["findings"]}


@pytest.mark.slow
def test_the_default_run_passes_every_question(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = smoke(cpu_environment, tmp_path / "out", capsys)
    assert (code, set(found.values())) == (0, {"ok", "skip"})
    assert {check for check, status in found.items() if status == "skip"} == LEFT_OUT
    assert (tmp_path / "out" / "metrics.jsonl").stat().st_size > 0


@pytest.mark.slow
def test_a_run_that_is_broken_fails_and_says_why_in_the_language_asked_for(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", str(cpu_environment), "-o", str(tmp_path / "out"), "--json", "--lang", "zh"]
    assert main(["smoke-train", *words, "fault=wrong-arithmetic"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["cause"]) == ("fail", "arithmetic-wrong")
    assert says(document["says"], "smoke.arithmetic-wrong", "zh", device="cpu")
    assert document["says"].startswith(sentence("smoke.fail", "zh", environment="cpu", device="CPU", cause=""))
    assert {stage["name"] for stage in document["run"]["stage"]} >= {"packages", "import", "device", "matmul"}


@pytest.mark.slow
def test_a_run_too_short_to_learn_is_unknown_and_passes_every_other_question(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", str(cpu_environment), "-o", str(tmp_path / "out"), "--json", "--lang", "zh", "steps=3"]
    assert main(["smoke-train", *words]) == ExitCode.UNKNOWN
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["cause"]) == ("unknown", "too-little")
    assert says(document["says"], "smoke.too-little", "zh", steps=3)
    found = {finding["check"]: finding["status"] for finding in document["findings"]}
    assert found.pop("training.accuracy-rises") == "unknown" and set(found.values()) == {"ok", "skip"}
    assert {check for check, status in found.items() if status == "skip"} == LEFT_OUT
    assert (tmp_path / "out" / "metrics.jsonl").stat().st_size > 0


def test_a_folder_that_holds_something_else_is_left_alone(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    assert main(["smoke-train", "--target", str(cpu_environment), "-o", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_misspelt_setting_is_answered_with_the_nearest(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smoke-train", "--target", str(cpu_environment), "-o", str(tmp_path / "out"), "step=3"]) == 2
    assert "steps" in capsys.readouterr().err


def test_an_environment_without_torch_fails_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A virtual environment of this interpreter with nothing in it."""
    venv.create(tmp_path / "env", symlinks=True)
    code, found = smoke(tmp_path / "env", tmp_path / "out", capsys)
    assert code == 1
    assert found["training.completed"] == "fail"
    assert found["training.accuracy-rises"] == "unknown"


@pytest.mark.slow
@pytest.mark.long
def test_an_interrupted_run_goes_on_with_the_records_of_its_first_steps(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    # Far more steps than pass until the interrupt is there, also where a step takes milliseconds.
    words = ["smoke-train", "--target", str(cpu_environment), "-o", str(out), "steps=80", "probe_packages=false"]
    with subprocess.Popen(
        [sys.executable, "-m", "npuenv", *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    ) as run:
        wait_for_step(out / "metrics.jsonl", 2)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=240)
    assert run.returncode == 130
    assert said.strip().splitlines()[-1] == sentence("smoke.interrupted")
    assert main([*words, "resume=auto", "--json"]) in (0, ExitCode.UNKNOWN)
    capsys.readouterr()
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in records if each["kind"] == "step"] == list(range(1, 81))
    assert [each["step"] for each in records if each["kind"] == "eval"] == [0, 80]
    assert [each["ended"]["status"] for each in records if each["kind"] == "resumed"] == ["interrupted"]


def wait_for_step(records: Path, number: int) -> None:
    deadline = time.monotonic() + 240
    while not records.is_file() or records.read_text().count('"kind": "step"') < number:
        assert time.monotonic() < deadline, "the run has not begun"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("settings", "is_kept"),
    [
        ({}, False),
        ({"resume": "false"}, False),
        ({"trainer.resume_mode": "disable"}, False),
        ({"resume": "True"}, True),
        ({"run.resume": "auto"}, True),
        ({"++trainer.resume_mode": "auto"}, True),
    ],
)
def test_records_of_an_earlier_run_stay_only_where_this_one_may_go_on_with_them(
    tmp_path: Path, settings: dict[str, str], is_kept: bool
) -> None:
    (tmp_path / "scene").mkdir()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with start(TrainerTarget(Path("/bin/true"), tmp_path), settings) as running:
        running.wait(10)
    assert (tmp_path / "metrics.jsonl").exists() is is_kept
