"""Launches as a Python program has them judged: where release and packages come from, and the corrected copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app import PreflightOptions, preflight
from npuenv.core.errors import BadInput, ExitCode
from tests.cli.test_preflight import BAD, GOOD

if TYPE_CHECKING:
    from pathlib import Path

AT = {"framework": "verl==0.7.1", "hardware": "a2", "card_memory_gib": 64.0, "cards_per_node": 8, "nodes": 1}


def script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return path


def fixing(out: Path | None = None, **more: bool) -> PreflightOptions:
    return PreflightOptions(**AT, is_fixing=True, out=out, **more)  # type: ignore[arg-type]


def test_without_a_release_most_could_not_be_told(tmp_path: Path) -> None:
    found = preflight((str(script(tmp_path, GOOD)),))
    assert (found.launch.release, found.exit_code, found.fixed) == (None, ExitCode.UNKNOWN, None)


def test_the_release_comes_from_a_published_stack(tmp_path: Path) -> None:
    path = script(tmp_path, GOOD)
    found = preflight((str(path),), PreflightOptions(stack="verl-0.7.1-cann8.5.0"))
    assert found.launch.release == "0.7.1" and found.launch.machine.hardware in ("a2", "a3")
    unknown = preflight((str(path),), PreflightOptions(stack="verl-qwen3.5-cann8.5.2"))
    assert unknown.exit_code is ExitCode.UNKNOWN
    assert "preflight_rules.release" in {problem.says.key for problem in unknown.problems}


@pytest.mark.parametrize(("commit", "version"), [("8eb27cc2", "0.3.0"), ("5d1e3c3d", "0.2.0")])
def test_a_commit_of_roll_is_judged_as_its_version(commit: str, version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("pretrain: Qwen/X\n", encoding="utf-8")
    found = preflight((str(path),), PreflightOptions(framework=f"roll=={commit}"))
    assert found.launch.release == version
    near = next(each.says for each in found.problems if each.says.key == "preflight_rules.release-near")
    assert (near.args["release"], near.args["known"]) == (commit, (version,))


def test_a_copy_that_bash_refuses_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bash = tmp_path / "bin" / "bash"
    bash.parent.mkdir()
    bash.write_text("#!/bin/sh\nexit 2\n", encoding="utf-8")
    bash.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bash.parent}:/usr/bin:/bin")
    path = script(tmp_path, BAD)
    found = preflight((str(path),), fixing())
    assert (found.exit_code, found.written) == (ExitCode.PROBLEMS, "")
    assert not path.with_name("run.fixed.sh").exists()


def test_a_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    path, out = script(tmp_path, BAD), tmp_path / "out.sh"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(BadInput, match=r"preflight\.exists"):
        preflight((str(path),), fixing(out))
    assert out.read_text(encoding="utf-8") == "mine"
    found = preflight((str(path),), fixing(out, is_forced=True))
    assert (found.exit_code, found.written) == (ExitCode.FINE, str(out))
    assert "ASCEND_RT_VISIBLE_DEVICES" in out.read_text(encoding="utf-8")
