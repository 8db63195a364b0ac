"""An installation as a Python program sees it before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app import InstallOptions, preview
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")


def test_a_preview_prints_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = preview(Request(stack="cpu"), InstallOptions(target=str(tmp_path / "env")))
    assert found.job.plan.steps and found.job.needs_consent()
    assert found.job.target.root == str(tmp_path / "env") and not (tmp_path / "env").exists()
    assert capsys.readouterr() == ("", "")
