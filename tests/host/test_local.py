"""This machine as a host: what a program did, what a path is, and that nothing is left running."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import npuenv
from npuenv.host import PathState
from npuenv.host.local import MAX_BYTES, LocalHost, is_on_path
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.host import Ran


def test_a_program_gives_code_and_both_streams() -> None:
    ran = LocalHost().run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ran.code, ran.out, ran.err, ran.timed_out, ran.is_absent) == (3, "out\n", "err\n", False, False)


def test_a_missing_program_is_absent_and_one_without_permission_is_not(tmp_path: Path) -> None:
    plain = tmp_path / "tool"
    plain.write_text("x")
    assert LocalHost().run(["no-such-program-here"]).is_absent
    refused = LocalHost().run([str(plain)])
    assert refused.code == 126 and not refused.is_absent


def test_a_folder_that_cannot_be_entered_is_no_sign_of_a_program(tmp_path: Path) -> None:
    shut, folder = tmp_path / "shut" / "bin", tmp_path / "bin"
    folder.mkdir()
    (folder / "tool").write_text("x")
    (folder / "called-tool").mkdir()
    # A path below a file cannot be entered by root either.
    (tmp_path / "shut").write_text("")
    assert is_on_path("tool", [str(shut), str(folder)])
    assert not is_on_path("npu-smi", [str(shut), str(folder)])
    assert not is_on_path("called-tool", [str(folder)])
    assert is_on_path(str(folder / "absent"), [])
    assert LocalHost().run(["tool"], env={"PATH": str(folder)}).code == 126
    assert LocalHost().run(["called-tool"], env={"PATH": str(folder)}).is_absent


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root to become somebody else")
def test_a_user_with_the_path_of_root_has_no_npu_smi(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    (shut / "npu-smi").write_text("x")
    source = Path(npuenv.__file__).parents[1]
    program = "from npuenv.host.local import LocalHost; print(LocalHost().run(['npu-smi']).is_absent)"
    argv = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", program]
    env = {"PATH": f"{shut}:/usr/bin:/bin"}
    can_start = subprocess.run(
        [*argv[:-1], "import npuenv.host.local"], cwd=source, env=env, capture_output=True, check=False
    )
    if can_start.returncode != 0:
        pytest.skip("another user may not read the checkout or the interpreter")
    ran = subprocess.run(argv, cwd=source, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def ended_at_its_limit(argv: list[str], has_spoken: Callable[[Ran], bool]) -> Ran:
    """A program that does not end; it gets more time where this machine is too busy to let it speak."""
    ran = LocalHost().run(argv, timeout_s=0.3)
    for timeout_s in (3.0, PATIENCE_S):
        if not has_spoken(ran):
            ran = LocalHost().run(argv, timeout_s=timeout_s)
    return ran


def test_a_timeout_ends_the_program_and_its_children() -> None:
    started = time.monotonic()
    script = "sleep 600 & echo $!; sleep 600"
    ran = ended_at_its_limit(["sh", "-c", script], lambda ran: ran.out.endswith("\n"))
    assert ran.timed_out and ran.code is None and not ran.is_absent
    assert time.monotonic() - started < 600
    assert until(partial(is_gone, int(ran.out)))


def test_a_child_that_keeps_the_pipe_open_does_not_hold_the_answer() -> None:
    started = time.monotonic()
    assert LocalHost().run(["sh", "-c", "sleep 600 & echo done"], timeout_s=600).out == "done\n"
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.parametrize(
    ("script", "code"), [("echo out; echo err >&2; exit 3", 3), ("echo err >&2; echo out; exec sleep 600", None)]
)
def test_what_was_said_in_time_counts_where_we_were_stopped_until_after_the_limit(
    script: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-Z, or on a machine that is too busy."""
    start = subprocess.Popen

    def looked_at_late(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = start(*args, **options)
        assert process.stdout is not None
        if code is None:
            assert select.select([process.stdout], [], [], PATIENCE_S)[0]
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process

    monkeypatch.setattr(subprocess, "Popen", looked_at_late)
    ran = LocalHost().run(["sh", "-c", script], timeout_s=0.0)
    assert (ran.code, ran.out, ran.err, ran.timed_out) == (code, "out\n", "err\n", code is None)


def test_endless_output_is_cut_and_not_kept_in_memory() -> None:
    ran = ended_at_its_limit(["yes"], lambda ran: len(ran.out) >= MAX_BYTES)
    assert ran.timed_out and len(ran.out) == MAX_BYTES


def test_a_program_has_no_input_and_speaks_english_with_the_added_variables() -> None:
    ran = LocalHost().run(["sh", "-c", 'cat; echo "$LC_ALL $ADDED"'], env={"ADDED": "yes"})
    assert ran.out == "C yes\n"


def test_a_program_that_ends_by_a_signal_says_so() -> None:
    assert LocalHost().run([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]).code == -11


def test_paths_are_told_apart(tmp_path: Path) -> None:
    host = LocalHost()
    (tmp_path / "file").write_bytes(b"text \xff")
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    looked = host.look(str(tmp_path / "file"))
    assert (looked.state, looked.text, looked.is_writable) == (PathState.FILE, "text �", True)
    assert host.look(str(tmp_path)).names == ("b", "broken", "file", "pipe")
    assert host.look(str(tmp_path / "pipe")).state is PathState.OTHER
    assert host.look(str(tmp_path / "broken")).state is PathState.ABSENT
    assert host.look(str(tmp_path / "file" / "below")).state is PathState.ABSENT
    assert host.look("/dev/null").state is PathState.DEVICE


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_permission_is_unreadable(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o000)
    assert LocalHost().look(str(shut)).state is PathState.UNREADABLE


def test_a_name_that_no_system_takes_is_unreadable() -> None:
    assert LocalHost().look("a\0b").state is PathState.UNREADABLE
