"""An installation as a Python program sees it before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app import InstallOptions, install, preview
from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.core.plan import WriteFile
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")


def test_a_preview_prints_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = preview(Request(stack="cpu"), InstallOptions(target=str(tmp_path / "env")))
    assert found.job.plan.steps and found.job.needs_consent()
    assert found.job.target.root == str(tmp_path / "env") and not (tmp_path / "env").exists()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("hardware", "is_wheel"), [("a2", True), ("a3", False)])
def test_vllm_ascend_comes_from_its_wheel_where_one_fits_the_cards(hardware: str, is_wheel: bool) -> None:
    plan = preview(Request(stack="vllm-ascend-0.18.0", hardware=hardware, arch="aarch64")).job.plan
    steps = {step.id: step for step in plan.steps}
    texts = [action.text for action in steps["vllm-ascend"].do if isinstance(action, WriteFile)]
    hashed = [text for text in texts if text.startswith("vllm-ascend==0.18.0 --hash=sha256:")]
    assert ("vllm-ascend-source" not in steps, bool(hashed)) == (is_wheel, is_wheel)
    assert "vllm-source" in steps


def test_a_supplied_source_is_built_although_a_wheel_fits(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    options = InstallOptions(given={"vllm-ascend": str(tmp_path)})
    plan = preview(Request(stack="vllm-ascend-0.18.0", hardware="a2", arch="aarch64"), options).job.plan
    assert "vllm-ascend-source" in {step.id for step in plan.steps}


def test_a_stack_of_another_architecture_is_not_installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    request = Request(stack="verl-0.7.1-cann8.5.0", arch="aarch64", hardware="a3")
    with pytest.raises(BadInput, match=r"install\.other-arch") as caught:
        install(request)
    assert caught.value.message.args["own"] == "x86_64" and caught.value.hint is not None
    command = "npuenv bundle verl-0.7.1-cann8.5.0 --hardware a3 --arch aarch64"
    assert say(caught.value.hint).endswith(command)
    assert preview(request).job.plan.steps
