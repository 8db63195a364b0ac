"""What is started here ends with us: whichever signal ends us, and whatever becomes of the program."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import npuenv
from npuenv.host import local
from npuenv.host.local import Guard, LocalHost
from tests.support.own_signals import as_from_a_terminal, interruptible
from tests.support.waiting import PATIENCE_S, is_gone, until

# A tool that hangs, and so does what it has started.
HANGS = '#!/bin/sh\necho $$ >> "$SEEN"\nsleep 600 &\necho $! >> "$SEEN"\nwait\n'
# Traced by a process that takes no notice, it stays in the kernel after SIGKILL as under a driver that hangs.
STUCK = """
import ctypes, os, sys, time
SEIZE, released, me = 0x4206, sys.argv[1], os.getpid()
inner, outer = os.pipe()
if os.fork() == 0:
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    has_seized = libc.ptrace(SEIZE, me, None, None) == 0
    os.write(outer, b"held" if has_seized else b"free")
    for number in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    deadline = time.monotonic() + 240
    while has_seized and not os.path.exists(released) and time.monotonic() < deadline:
        time.sleep(0.02)
    os._exit(0)
print(os.read(inner, 4).decode(), flush=True)
time.sleep(600)
"""


def numbers(seen: Path) -> list[int]:
    return [int(line) for line in seen.read_text().split()] if seen.exists() else []


def has_settled(seen: Path) -> bool:
    """Whether no tool was started a moment ago: one that has just begun to run is not yet held."""
    return time.time() - seen.stat().st_mtime > 1.0


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 130, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_doctor_that_is_ended_leaves_no_tool_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    tool, seen = tmp_path / "bin" / "npu-smi", tmp_path / "seen"
    tool.parent.mkdir()
    tool.write_text(HANGS)
    tool.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "SEEN": str(seen), "HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "npuenv", "doctor", "--for", "verl", "--quiet"]
    source = Path(npuenv.__file__).parents[1]
    process = subprocess.Popen(
        argv,
        cwd=source,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=as_from_a_terminal,
    )
    try:
        assert until(lambda: len(numbers(seen)) >= 2 and has_settled(seen))
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
    finally:
        process.kill()
        process.wait()
    assert all(until(partial(is_gone, pid)) for pid in numbers(seen))


def test_an_interrupt_while_a_program_starts_does_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = subprocess.Popen, []

    def interrupted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **options))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    try:
        with interruptible(), pytest.raises(KeyboardInterrupt):
            LocalHost().run(["sleep", "600"])
        assert started[0].wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        started[0].kill()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_program_that_killing_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_KERNEL_S", 0.2)
    released = tmp_path / "released"
    answers = []
    # In a thread: where it is waited for all the same, that is seen and not suffered.
    asking = threading.Thread(
        target=lambda: answers.append(LocalHost().run([sys.executable, "-c", STUCK, str(released)], timeout_s=3.0))
    )
    asking.start()
    try:
        asking.join(PATIENCE_S)
        was_answered = not asking.is_alive()
    finally:
        released.touch()
        asking.join(PATIENCE_S)
    if answers[0].out != "held\n":
        pytest.skip("no process may trace another here")
    assert was_answered and answers[0].timed_out and answers[0].code is None


def test_the_guard_ends_only_what_is_held_when_its_owner_dies(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\nfrom npuenv.host.local import Guard\nguard = Guard()\n"
        "alone = {'start_new_session': True, 'stdout': subprocess.DEVNULL}\n"
        "three = [subprocess.Popen(['sleep', '600'], **alone).pid for _ in range(3)]\n"
        "for pid in three: guard.hold(pid)\n"
        "guard.release(three[1])\nprint(*three, flush=True)\nos.kill(os.getpid(), 9)"
    )
    source = Path(npuenv.__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", code], cwd=source, stdout=subprocess.PIPE, text=True, check=False)
    first, second, third = map(int, ran.stdout.split())
    try:
        assert ran.returncode == -signal.SIGKILL
        assert until(lambda: is_gone(first)) and until(lambda: is_gone(third))
        assert not is_gone(second)
    finally:
        os.kill(second, signal.SIGKILL)


def test_the_guard_goes_with_its_host_and_takes_no_descriptor_along() -> None:
    gc.collect()  # what other tests have left would close its files meanwhile
    own = psutil.Process()
    before, opened = {child.pid for child in own.children()}, own.num_fds()
    host = LocalHost()
    assert [host.run(["sh", "-c", "exit 3"]).code for _ in range(3)] == [3, 3, 3]
    (guard,) = [child for child in own.children() if child.pid not in before]
    assert own.num_fds() == opened + 1
    del host
    assert is_gone(guard.pid) and own.num_fds() == opened


def test_without_a_shell_programs_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_SHELL", "/no/such/sh")
    gc.collect()
    opened = psutil.Process().num_fds()
    host = LocalHost()
    assert [host.run(["sh", "-c", "echo ran"]).out for _ in range(2)] == ["ran\n", "ran\n"]
    del host
    assert psutil.Process().num_fds() == opened


@pytest.mark.parametrize("shell", ["bash", "busybox", "dash", "ksh"])
def test_the_guard_is_understood_by_each_shell(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    held = subprocess.Popen(["sleep", "600"], start_new_session=True)
    monkeypatch.setattr(local, "_SHELL", found)
    guard = Guard()
    guard.hold(held.pid)
    try:
        # As where we are gone: nobody holds the other end of its pipe any more.
        os.close(guard._pipe)
        assert held.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        guard._pipe = -1
        held.kill()
        held.wait()
