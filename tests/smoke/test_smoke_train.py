"""`npuenv smoke-train` on the installed CPU stack: it passes, and each way of breaking the run makes it fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def smoke(target: Path, out: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[int, dict[str, str]]:
    """The exit code and the status of each finding."""
    code = main(["smoke-train", "--target", str(target), "-o", str(out), "--json", *settings])
    document = json.loads(capsys.readouterr().out)
    assert document["exit"] == code
    return code, {finding["check"]: finding["status"] for finding in document["findings"]}


def test_the_default_run_passes_every_question(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = smoke(cpu_environment, tmp_path / "out", capsys)
    assert (code, set(found.values())) == (0, {"ok"})
    assert (tmp_path / "out" / "metrics.jsonl").stat().st_size > 0


@pytest.mark.parametrize(
    ("settings", "failed"),
    [
        (("lr=0",), {"training.accuracy-rises"}),
        (("fault=shuffled-reward",), {"training.accuracy-rises"}),
        (("fault=zero-advantage",), {"training.accuracy-rises"}),
        (("fault=mask-off-by-one",), {"training.mask-exact", "training.logprobs-agree"}),
        (("fault=stale-sampler",), {"training.weights-published"}),
        (("fault=corrupt-checkpoint", "steps=20"), {"training.checkpoint-exact", "training.accuracy-rises"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_run_that_does_not_learn_or_is_broken_fails(
    settings: tuple[str, ...],
    failed: set[str],
    cpu_environment: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = smoke(cpu_environment, tmp_path / "out", capsys, *settings)
    assert code == 1
    assert failed <= {check for check, status in found.items() if status == "fail"}


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
    import subprocess
    import sys

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=120)
    code, found = smoke(tmp_path / "env", tmp_path / "out", capsys)
    assert code == 1
    assert found["training.completed"] == "fail"
    assert found["training.accuracy-rises"] == "unknown"


def test_the_verdict_is_said_in_chinese_when_asked(
    cpu_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["smoke-train", "--target", str(cpu_environment), "-o", str(tmp_path / "out"), "steps=5", "--lang", "zh"]
    assert main(words) == 1
    assert "失败：这里不能正常训练" in capsys.readouterr().out
