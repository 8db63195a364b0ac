"""Findings as a Python program has them fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuenv.app import DoctorOptions, FixOptions, Progress, fix
from npuenv.app.fixes import FixResult, fix_findings
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.host.local import LocalHost
from tests.cli.test_doctor_fix import World, data

pytestmark = pytest.mark.usefixtures("home")
CAPTURE = Path(__file__).parents[1] / "support" / "hosts" / "a3_healthy.json"


class Fixing(World):
    def fix(self, progress: Progress | None = None) -> FixResult:
        host = LocalHost()
        return fix_findings(self.look(host), self.look, FixOptions(), progress or Progress(), host)


def test_a_capture_is_only_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    result = fix(DoctorOptions(capture=CAPTURE, framework="verl"))
    assert result.is_dry_run and result.exit_code is result.before.exit_code
    assert set(result.outcome.states.values()) <= {"planned"} and result.outcome.undo is None
    assert not data().exists() and capsys.readouterr() == ("", "")


def test_what_was_fixed_is_in_the_result(tmp_path: Path) -> None:
    mark, world = tmp_path / "mark", Fixing()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    world.add("cards.healthy", lambda host: False, ("false",))
    result = world.fix()
    outcome = result.outcome
    assert (result.exit_code, outcome.mended, outcome.left) == (
        ExitCode.PROBLEMS, ("machine.disk",), ("cards.healthy",)
    )  # fmt: skip
    assert outcome.states == {"machine-disk": "done", "cards-healthy": "failed"}
    assert list(outcome.reasons) == ["cards-healthy"] and outcome.undo == str(data() / "fixes" / "1" / "undo.sh")


def test_a_plan_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    class Refusing(Progress):
        def planned(self, plan: FixResult) -> None:
            assert plan.outcome.states == {"machine-disk": "planned"}

        def confirm(self, *warnings: Message) -> None:
            raise BadInput(Message("cli.cannot-ask"))

    world = Fixing()
    world.add("machine.disk", lambda host: False, ("touch", str(tmp_path / "mark")))
    with pytest.raises(BadInput):
        world.fix(Refusing())
    assert not (tmp_path / "mark").exists() and not data().exists() and world.num_looks == 1


def test_a_step_that_is_done_already_is_not_run() -> None:
    world = Fixing()
    world.add("session.hccl", lambda host: False, ("export", "A_B=1"), is_automatic=False)
    assert world.fix().outcome.states == {"session": "done"}
    result = world.fix()
    assert (result.exit_code, result.outcome.states) == (ExitCode.PROBLEMS, {"session": "already"})
    assert [path.name for path in (data() / "fixes").iterdir()] == ["1"]


def test_the_undo_names_a_step_before_it_begins(tmp_path: Path) -> None:
    """So that an interruption in the middle of a step leaves a true undo."""
    seen, undo, world = tmp_path / "seen", data() / "fixes" / "1" / "undo.sh", Fixing()
    world.add("machine.disk", lambda host: seen.exists(), ("cp", str(undo), str(seen)), undo=(("rm", str(seen)),))
    assert world.fix().exit_code is ExitCode.FINE
    assert f"rm {seen}" in seen.read_text(encoding="utf-8")
