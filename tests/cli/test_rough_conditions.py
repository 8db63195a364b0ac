"""The commands under bad conditions: signals, full and read-only disks, closed streams, damaged environments."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from npuenv.cli import main
from npuenv.host.background import Running
from npuenv.terminal.run import report_interrupt
from tests.support.own_signals import as_from_a_terminal, interruptible
from tests.support.sentences import part, says, sentence
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("home")
ROOT = Path(__file__).parents[2]
FULL = os.strerror(errno.ENOSPC)


def npuenv(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A finished run of the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "npuenv", *words],
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def started(*argv: str) -> subprocess.Popen[str]:
    """A Python that begins to run, whose output is caught."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *argv], cwd=ROOT, text=True, stdout=pipe, stderr=pipe, preexec_fn=as_from_a_terminal
    )


def in_shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The same under a shell line that does something to its streams; `"$@"` in it stands for npuenv and `words`."""
    argv = ["sh", "-c", line, "sh", sys.executable, "-m", "npuenv", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is refused here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def fake_environment(tmp_path: Path) -> Path:
    """An environment whose Python is a script that starts a child and sleeps; the child's number goes to `child`."""
    python = tmp_path / "fake" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nsleep 600 &\necho $! > "{tmp_path}/child"\nwait\n')
    python.chmod(0o755)
    return tmp_path / "fake"


def error(key: str, **args: Any) -> str:
    """The line of an error on stderr."""
    return sentence("cli.error", message=sentence(key, **args)) + "\n"


def wait_for(path: Path) -> str:
    """The text of a file once it has any."""
    assert until(lambda: path.exists() and path.read_text() != ""), f"{path} never came"
    return path.read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_ends_the_trainer_and_its_children_with_one_line(
    number: signal.Signals, fake_environment: Path, tmp_path: Path
) -> None:
    words = ["smoke-train", "--target", str(fake_environment), "-o", str(tmp_path / "out")]
    with started("-m", "npuenv", *words) as run:
        child = int(wait_for(tmp_path / "child"))
        run.send_signal(number)
        _, said = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    # click ends the line of the terminal's ^C first
    assert said.strip() == sentence("smoke.interrupted")
    assert until(partial(is_gone, child))


@pytest.mark.slow
def test_ctrl_c_at_many_moments_gives_one_line_and_no_traceback(bare_python: str) -> None:
    """Moments from the first imports to the end. One that comes after the last word changes nothing."""
    # It tells us at its first import, so that `main` has begun: from there on a signal is ours.
    program = (
        "import sys, builtins\n"
        "real = builtins.__import__\n"
        "def first(*asked):\n"
        "    builtins.__import__ = real\n"
        "    print('up', flush=True)\n"
        "    return real(*asked)\n"
        f"sys.argv = ['npuenv', 'doctor', '--for', 'cpu', '--python', {bare_python!r}]\n"
        "from npuenv.cli import main\n"
        "builtins.__import__ = first\n"
        "main()\n"
    )
    with started("-c", program) as run:
        run.communicate(timeout=300)
    whole = run.returncode
    for moment in (0.0, 0.1, 0.4):
        with started("-c", program) as run:
            assert run.stdout is not None
            run.stdout.readline()
            time.sleep(moment)
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in said and "ignored" not in said, (moment, said)
        assert run.returncode in (130, whole, -signal.SIGINT), (moment, said)
        assert len(said.strip().splitlines()) <= 1, (moment, said)


def test_ctrl_c_during_the_imports_is_one_line() -> None:
    """The module that holds the commands raises it itself, as a signal at that moment would."""
    program = (
        "import sys, builtins\n"
        "real, hits = builtins.__import__, []\n"
        "def once(name, *rest):\n"
        "    if name == 'click' and not hits:\n"
        "        hits.append(name)\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "from npuenv.cli import main\n"
        "builtins.__import__ = once\n"
        "sys.argv = ['npuenv', 'resolve', 'cpu']\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == f"{sentence('cli.interrupted')}\n"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["doctor", "--level", "2"], "interrupted"),
        (["doctor", "--fix"], "interrupted-kept"),
        (["resolve", "cpu"], "interrupted"),
        (["install", "cpu"], "interrupted-kept"),
        ([], "interrupted"),
    ],
)
def test_only_a_command_that_keeps_something_says_so(
    words: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_interrupt(words) == 130
    assert capsys.readouterr().err == f"{sentence(f'cli.{key}')}\n"


# Two places in which Python prints what is raised, and goes on: where an imported module's lock goes, and in __del__.
IN_IMPORT = """
def meet(frame, event, _):
    if event == 'call' and frame.f_code.co_name == 'cb' and 'importlib' in frame.f_code.co_filename and is_ready():
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(meet)
"""
IN_DEL = """
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
def first(*asked):
    if is_ready():
        builtins.__import__ = real
        Dying()
    return real(*asked)
real, builtins.__import__ = builtins.__import__, first
"""


@pytest.mark.parametrize("comes", [IN_IMPORT, IN_DEL], ids=["import", "del"])
def test_ctrl_c_where_it_would_be_lost_is_heeded_a_moment_later(comes: str) -> None:
    begin = (
        "import builtins, os, signal, sys\nfrom npuenv.cli import main\n"
        "def is_ready(): return signal.getsignal(signal.SIGINT) is not signal.default_int_handler\n"
    )
    with started("-c", f"{begin}sys.argv = ['npuenv', 'resolve', 'cpu']\n{comes}\nmain()") as run:
        out, said = run.communicate(timeout=300)
    assert (run.returncode, out) == (130, "")
    # Where click is at work already, it ends the terminal's line with ^C first.
    assert said.removeprefix("\n") == f"{sentence('cli.interrupted')}\n"


def test_interrupts_during_start_and_stop_leave_no_process(tmp_path: Path) -> None:
    """The child tells of its start by a signal to us, which comes while `Running` is at work, be it still starting."""
    program = f"import os, signal, time\nos.kill({os.getpid()}, signal.SIGINT)\ntime.sleep(600)"
    with interruptible(), pytest.raises(KeyboardInterrupt):
        running = Running([sys.executable, "-c", program], cwd=tmp_path, env={}, log=tmp_path / "log")
        with running:
            running.wait(PATIENCE_S)
    assert [child for child in psutil.Process().children(recursive=True) if runs(child, program)] == []


def runs(process: psutil.Process, program: str) -> bool:
    """Whether it is at work on this; what has ended meanwhile is not."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return program in " ".join(process.cmdline())
    return False


def test_a_run_that_was_forgotten_before_its_block_is_stopped(tmp_path: Path) -> None:
    running = Running(["sleep", "600"], cwd=tmp_path, env={}, log=tmp_path / "log")
    pid = running._process.pid
    del running
    assert is_gone(pid)


@pytest.mark.parametrize(
    "words",
    [
        ["resolve", "cpu", "--json"],
        *(pytest.param(each, marks=pytest.mark.slow) for each in (["resolve", "cpu"], ["--help"])),
    ],
)
def test_a_full_disk_under_stdout_is_said_on_stderr(words: list[str]) -> None:
    ran = in_shell('"$@" > /dev/full', *words)
    assert ran.returncode == 1
    assert ran.stderr.startswith(error("cli.os-error-nameless", reason=FULL))
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr


@pytest.mark.slow
def test_closed_streams_change_neither_the_exit_code_nor_the_files(tmp_path: Path) -> None:
    assert in_shell('"$@" <&- >&- 2>&-', "resolve", "cpu").returncode == 0
    assert in_shell('"$@" 2>&-', "bogus").returncode == 2
    ran = in_shell('"$@" <&- >&- 2>&-', "doctor", "--for", "cpu", "--level", "0", "--save", str(tmp_path / "saved"))
    assert ran.returncode in (0, 3)
    assert json.loads((tmp_path / "saved").read_text())["schema"] == "npuenv.capture/1"


def test_a_capture_that_does_not_fit_on_the_disk_leaves_the_old_one(
    tiny_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny_disk / "saved").write_text("before")
    with pytest.raises(OSError, match=FULL):
        (tiny_disk / "filling").write_bytes(bytes(1 << 20))
    assert main(["doctor", "--for", "cpu", "--level", "0", "--quiet", "--save", str(tiny_disk / "saved")]) == 2
    assert capsys.readouterr().err.startswith(error("cli.cannot-save", path=tiny_disk / "saved", reason=FULL))
    assert (tiny_disk / "saved").read_text() == "before"


def test_a_stopped_smoke_test_leaves_a_folder_that_the_next_one_takes(
    tmp_path: Path, bare_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped before its first record, as by Ctrl-C while torch is imported, or on a full disk."""
    (tmp_path / "out" / "scene" / "work").mkdir(parents=True)
    (tmp_path / "out" / "trainer.log").write_text("")
    bare = Path(bare_python).parent.parent
    assert main(["smoke-train", "--target", str(bare), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "No module named 'torch'" in said and "FAIL" in said


@pytest.mark.slow
def test_two_smoke_tests_do_not_share_a_folder(
    fake_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["smoke-train", "--target", str(fake_environment), "-o", str(tmp_path / "out")]
    with started("-m", "npuenv", *words, "--quiet") as run:
        wait_for(tmp_path / "child")
        second = main(words)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE_S)
    assert second == 2
    assert capsys.readouterr().err.startswith(f"{error('smoke.busy', path=tmp_path / 'out')}  try: ")


@pytest.mark.parametrize(
    ("script", "key", "args"),
    [
        ("kill -9 $$", "killed", {"signal": 9}),
        ("exit 3", "ended-in-silence", {"code": 3}),
        ("exit 0", "cut-off", {}),
        ("echo 'broken torch' >&2; exit 1", "not-completed", {"code": 1, "reason": part("broken torch")}),
    ],
)
def test_a_trainer_that_dies_fails_with_a_reason(
    script: str,
    key: str,
    args: dict[str, Any],
    fake_environment: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (fake_environment / "bin" / "python").write_text(f"#!/bin/sh\n{script}\n")
    assert main(["smoke-train", "--target", str(fake_environment), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert says(said, f"smoke.{key}", **args) and "FAIL, " in said and says(said, "smoke.fail-follows")


def test_a_python_that_is_none_is_bad_input(fake_environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fake_environment / "bin" / "python").write_text("no program")
    assert main(["smoke-train", "--target", str(fake_environment)]) == 2
    assert says(
        capsys.readouterr().err,
        "smoke.bad-python",
        path=fake_environment / "bin" / "python",
        reason="Exec format error",
    )


def test_a_relative_target_means_the_folder_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["install", "cpu", "--dry-run", "--target", "env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == str(tmp_path / "env")


def test_a_relative_path_in_a_removed_folder_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    shutil.rmtree(gone)
    assert main(["install", "cpu", "--dry-run", "--target", "env"]) == 2
    assert capsys.readouterr().err.startswith(error("cli.no-cwd", path="env"))
    for words in (["preflight", "run.sh"], ["render-docker", "--for", "cpu", "-o", "image"]):
        assert main(words) == 2
        assert says(capsys.readouterr().err, "cli.lost-folder")


@pytest.mark.parametrize(
    ("words", "key", "args"),
    [
        (["smoke-train", "-o", ""], "empty-argument", {}),
        (["install", "cpu", "--target", ""], "empty-value", {"option": "--target"}),
        (["doctor", "--save", ""], "empty-value", {"option": "--save"}),
    ],
)
def test_an_empty_argument_is_never_the_working_folder(
    words: list[str], key: str, args: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(error(f"cli.{key}", **args))


def test_chinese_reaches_a_terminal_of_an_unknown_locale() -> None:
    ran = npuenv("bogus", "--lang", "zh", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="")
    assert ran.returncode == 2
    assert ran.stderr.startswith("错误：")


def test_json_stays_json_where_the_output_cannot_take_every_character() -> None:
    ran = npuenv("bogus", "--lang", "zh", "--json", PYTHONIOENCODING="latin-1")
    assert json.loads(ran.stdout)["error"]["message"].startswith("没有")
    assert ran.stdout.isascii()


def test_a_name_that_is_not_text_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke-train", "-o", "/tmp/\udcff"]) == 2
    assert capsys.readouterr().err.startswith(error("cli.not-text", word="'/tmp/\\udcff'"))


def test_a_target_below_a_file_is_bad_input(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "file").write_text("")
    assert main(["smoke-train", "--target", str(home), "-o", str(home / "file" / "out")]) == 2
    assert "  try: " in capsys.readouterr().err


def test_without_a_command_the_help_comes_plain() -> None:
    ran = npuenv()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Usage: npuenv ")
