"""The head of a plan's script: what it takes from the caller's shell, and the folder that it may work in."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import Message, say
from npuenv.core.plan import Condition, Plan, Run, Step, WriteFile
from npuenv.facts.manifest import MANIFEST, MARKER
from npuenv.facts.pip import UvSettings
from npuenv.host.writing import claim
from npuenv.render.script import render_script
from tests.support.sentences import sentence
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WHY = Message("plan.why-rest")
NO_SETTINGS = UvSettings()
FOREIGN = "holds something other than this environment"


def made(lock: str = "0123", kind: str = "venv") -> str:
    return json.dumps({"stack": "tiny", "lock": lock, "kind": kind}, indent=1, sort_keys=True) + "\n"


def marker(status: str, lock: str = "0123", **more: str) -> str:
    return json.dumps({"stack": "tiny", "lock": lock, "status": status, **more}, sort_keys=True) + "\n"


def run(
    *steps: Step,
    settings: UvSettings = NO_SETTINGS,
    only: tuple[Step, ...] | None = None,
    is_replacing: bool = False,
    environ: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """The exit code, the output and the complaints of the script of these steps, in dash where /bin/sh is one."""
    script = render_script(Plan(steps), settings, title="tiny", steps=only, is_replacing=is_replacing)
    ran = subprocess.run(["sh"], input=script, capture_output=True, text=True, env={**os.environ, **(environ or {})})
    return ran.returncode, ran.stdout, ran.stderr


def making(root: Path, kind: str = "venv") -> tuple[Step, Step]:
    """The two steps that count here: one that clears the folder, and the one that writes what the environment is."""
    clear = Run(("rm", "-rf", f"{root}/src", f"{root}/lib"))
    return Step("make", WHY, (clear,)), Step("finish", WHY, (WriteFile(f"{root}/{MANIFEST}", made(kind=kind)),))


def put(root: Path, **files: str) -> Path:
    """A folder with sources of somebody in it, and these files."""
    for name, text in {"src": "mine\n", **files}.items():
        path = root / {"marker": MARKER, "manifest": MANIFEST, "src": "src/thesis.py"}[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "src/thesis.py"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"marker": marker("complete", "4567")},
        {"marker": marker("complete"), "manifest": made(kind="conda")},
        {"marker": marker("building", kind="existing")},
        {"marker": marker("complete"), "manifest": made(kind="existing")},
        {"marker": "garbled"},
    ],
    ids=["foreign", "another-lock", "another-kind", "the-users", "once-the-users", "damaged"],
)
def test_a_folder_that_install_would_not_touch_is_left_alone(tmp_path: Path, files: dict[str, str]) -> None:
    thesis = put(tmp_path / "my work", **files)
    code, out, err = run(*making(tmp_path / "my work"))
    assert (code, out, FOREIGN in err, thesis.exists()) == (2, "", True, True)


@pytest.mark.parametrize(
    "files",
    [
        {"marker": marker("complete"), "manifest": made()},
        {"marker": marker("building", "4567")},
        {"marker": marker("building"), "manifest": made(kind="conda")},
    ],
    ids=["complete", "another-begun", "begun-over-another-kind"],
)
def test_an_environment_of_this_lock_or_one_that_was_only_begun_is_worked_on(
    tmp_path: Path, files: dict[str, str]
) -> None:
    thesis = put(tmp_path / "env", **files)
    code, _, err = run(*making(tmp_path / "env"))
    assert (code, err, thesis.exists()) == (0, "", False)


@pytest.mark.parametrize("names", [None, [], [".npuenv"], [".npuenv", f"{MARKER}.new"]])
def test_a_new_folder_is_worked_on(tmp_path: Path, names: list[str] | None) -> None:
    root = tmp_path / "env"
    for name in names or ():
        (root / name).mkdir(parents=True)
    if names is not None:
        root.mkdir(exist_ok=True)
    code, _, err = run(*making(root))
    assert (code, err, (root / MANIFEST).read_text()) == (0, "", made())


def test_another_environment_is_given_up_only_where_that_was_asked_for(tmp_path: Path) -> None:
    thesis = put(tmp_path / "env", marker=marker("complete", "4567"))
    assert run(*making(tmp_path / "env"), is_replacing=True)[0] == 0 and not thesis.exists()
    thesis = put(tmp_path / "other")
    assert run(*making(tmp_path / "other"), is_replacing=True)[0] == 2 and thesis.exists()
    thesis = put(tmp_path / "users", marker=marker("complete", kind="existing"))
    assert run(*making(tmp_path / "users"), is_replacing=True)[0] == 2 and thesis.exists()


def test_a_part_of_a_plan_is_as_careful_as_the_whole(tmp_path: Path) -> None:
    thesis, steps = put(tmp_path / "env"), making(tmp_path / "env")
    assert run(*steps, only=steps[:1])[0] == 2 and thesis.exists()
    thesis.unlink()
    thesis.parent.rmdir()
    code, out, _ = run(*steps, only=steps[1:])
    assert (code, out.splitlines()) == (0, [f"[1/1] finish: {say(WHY)}"])


def test_an_environment_that_the_user_had_already_takes_its_script(tmp_path: Path) -> None:
    put(tmp_path / "env")
    assert run(*making(tmp_path / "env", kind="existing"))[0] == 0


@pytest.mark.parametrize(("left", "code"), [("building", 0), ("foreign", 2)])
def test_an_environment_that_is_being_worked_on_is_waited_for_and_judged_again(
    tmp_path: Path, left: str, code: int
) -> None:
    running = tmp_path / "env/.npuenv/running"
    held = claim(str(running))
    assert held is not None
    thesis = put(tmp_path / "env", marker=marker("building"))
    script, complaints = tmp_path / "script.sh", tmp_path / "complaints"
    script.write_text(render_script(Plan(making(tmp_path / "env")), NO_SETTINGS, title="tiny"))
    said = sentence("execute.waiting", path=f"{tmp_path}/env") + "\n"
    with complaints.open("w") as stream, subprocess.Popen(["sh", str(script)], stderr=stream) as waiting:
        try:
            assert until(lambda: complaints.read_text() == said) and waiting.poll() is None and thesis.exists()
            if left == "foreign":
                (tmp_path / "env" / MARKER).unlink()
        finally:
            os.close(held)
    assert (waiting.returncode, thesis.exists()) == (code, left == "foreign")


def test_what_the_callers_shell_sets_for_uv_and_pip_does_not_reach_the_steps() -> None:
    settings = UvSettings({"UV_OFFLINE": "1"}, {"UV_INDEX_A_PASSWORD": "never shown"})
    shown = Step("show", WHY, (Run(("env",)),))
    environ = {"UV_CONSTRAINT": "no-such-file", "PIP_NO_BINARY": "a\nUV_b=c", "UV_OFFLINE": "0"}
    environ |= {"UV_CACHE_DIR": "/c", "UV_INDEX_A_PASSWORD": "word"}
    code, out, err = run(shown, settings=settings, environ=environ)
    of_tools = sorted(line for line in out.splitlines() if line.startswith(("UV_", "PIP_")))
    assert (code, err) == (0, "")
    assert of_tools == ["UV_CACHE_DIR=/c", "UV_INDEX_A_PASSWORD=word", "UV_OFFLINE=1"]


def test_git_gets_the_certificates_that_pip_is_set_up_with_unless_it_has_its_own() -> None:
    settings = UvSettings({"SSL_CERT_FILE": "/etc/my ca.pem"})
    shown = Step("show", WHY, (Run(("printenv", "GIT_SSL_CAINFO")),))
    assert run(shown, settings=settings, environ={"GIT_SSL_CAINFO": ""})[1].splitlines()[-1] == "/etc/my ca.pem"
    assert run(shown, settings=settings, environ={"GIT_SSL_CAINFO": "/own.pem"})[1].splitlines()[-1] == "/own.pem"


def test_a_file_that_is_not_there_yet_is_no_complaint(tmp_path: Path) -> None:
    want = Condition("file.text", (str(tmp_path / "a"),), "text\n")
    step = Step("write", WHY, (WriteFile(str(tmp_path / "a"), "text\n"),), (want,))
    assert run(step)[::2] == (0, "")
    assert run(step) == (0, f"[1/1] write: {say(WHY)} - {sentence('plan.script-skipped')}\n", "")
