"""Plans at the edge: cures that are the same, steps that write files, what needs a network, what is half written."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pytest

from npuenv.core.plan import Run, WriteFile
from npuenv.install.env_verifier.inspection import remove_if_torn
from npuenv.install.env_verifier.program import altered_in_cache
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.fix_plan import plan_fixes
from npuenv.install.prerequisites import as_lines
from tests.install.planning.plan_cases import planned
from tests.install.planning.test_planning_fix import PLACE, ill

if TYPE_CHECKING:
    from pathlib import Path


def test_two_checks_with_the_same_cure_share_one_step() -> None:
    cures = plan_fixes([ill("machine.disk", ("disk-cure",)), ill("machine.tmp", ("disk-cure",))], PLACE, str)
    assert [step.id for step in cures.plan.steps] == ["machine-disk"]
    assert cures.checks == {"machine-disk": ("machine.disk", "machine.tmp")}


def test_of_a_step_that_also_writes_a_file_the_commands_are_shown() -> None:
    actions = (WriteFile("/etc/some.conf", "text"), Run(("one", "two words"), env={"A": "b c"}), Run(("three",)))
    assert as_lines(actions) == "env A='b c' one 'two words' && three"


@pytest.mark.parametrize(
    ("kind", "wheels", "needs"), [("conda", None, True), ("conda", "/wheels", False), ("venv", None, False)]
)
def test_only_a_conda_environment_without_a_bundle_needs_a_network_to_be_made(
    kind: str, wheels: str | None, needs: bool
) -> None:
    _, _, plan = planned("cpu", "x86_64", target=EnvironmentPlace("/t", kind=kind), conda="/c/conda", wheels=wheels)
    made = next(step for step in plan.steps if step.id == kind)
    assert made.needs_network is needs


def test_only_what_a_killed_uv_leaves_is_removed(tmp_path: Path) -> None:
    for name in (".tmpab12cd", ".tmpab12cd.keep", "x.tmpab12cd"):
        (tmp_path / name).write_text("")
    (tmp_path / ".tmpfolder").mkdir()
    (tmp_path / ".tmpfolders").mkdir()
    removed = [path.name for path in sorted(tmp_path.iterdir()) if remove_if_torn(str(path))]
    assert removed == [".tmpab12cd", ".tmpfolder"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmpab12cd.keep", ".tmpfolders", "x.tmpab12cd"]


def unpacked(bucket: Path, name: str, written: bytes, recorded: bytes) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded).digest()).decode().rstrip("=")
    folder = bucket / f"id-of-{name}"
    (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{name}.py").write_bytes(written)
    rows = f"{name}.py,sha256={digest},{len(written)}\n{name}-1.0.dist-info/RECORD,,\n"
    (folder / f"{name}-1.0.dist-info" / "RECORD").write_text(rows)


def test_an_altered_wheel_of_uvs_cache_is_named_if_its_package_is_asked_for(tmp_path: Path) -> None:
    unpacked(tmp_path / "archive-v0", "one", b"A = 2\n", b"A = 1\n")
    unpacked(tmp_path / "archive-v0", "two", b"A = 1\n", b"A = 1\n")
    unpacked(tmp_path / "other-v0", "three", b"A = 2\n", b"A = 1\n")
    found = "one.py has another content"
    assert altered_in_cache(str(tmp_path), ["one", "two", "three"]) == {"one": found}
    assert altered_in_cache(str(tmp_path), ["two", "three"]) == {}
