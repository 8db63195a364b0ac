"""Questions about the account, folders and processes answered without a process agree with the real programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.host.builtin import answer, is_answered

if TYPE_CHECKING:
    from pathlib import Path

PS = ("ps", "-eo", "pid,ppid,stat,comm")


def real(argv: tuple[str, ...]) -> tuple[int, str]:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"there is no {argv[0]} here to compare with")
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    return done.returncode, done.stdout


def ours(argv: tuple[str, ...]) -> tuple[int | None, str]:
    ran = answer(argv)
    assert ran is not None and is_answered(argv)
    return ran.code, ran.out


def test_the_account_is_named_as_id_names_it() -> None:
    code, out = ours(("id",))
    assert code == 0
    got, want = out.split(), real(("id",))[1].split()
    assert got[:2] == want[:2]
    assert sorted(got[2].partition("=")[2].split(",")) == sorted(want[2].partition("=")[2].split(","))


def test_a_number_without_an_entry_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(os, "getegid", lambda: 54322)
    monkeypatch.setattr(os, "getgroups", lambda: [54322, 0])
    assert ours(("id",)) == (0, "uid=54321 gid=54322 groups=54322,0(root)\n")


@pytest.mark.parametrize("name", ["there", "nowhere"])
def test_writing_is_tried_as_test_does(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    argv = ("test", "-w", str(tmp_path / name))
    assert ours(argv)[0] == real(argv)[0] == (0 if name == "there" else 1)


def test_the_head_of_a_file_is_what_head_prints(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_text("".join(f"line {number}\n" for number in range(100)), encoding="utf-8")
    argv = ("head", "-n", "32", str(path))
    assert ours(argv) == real(argv)
    missing = answer(("head", "-n", "32", str(tmp_path / "gone")))
    assert missing is not None and missing.code == 1 and "No such file" in missing.err


def test_this_process_stands_in_the_table_as_ps_has_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mine = {line.split()[0]: line.split() for line in ours(PS)[1].splitlines()[1:]}
        theirs = {line.split()[0]: line.split() for line in real(PS)[1].splitlines()[1:]}
    finally:
        child.communicate(b"\n")
    assert ours(PS)[1].splitlines()[0].split() == ["PID", "PPID", "STAT", "COMMAND"]
    row, other = mine[str(child.pid)], theirs[str(child.pid)]
    assert row[1] == other[1] == str(os.getpid())
    assert row[3] == other[3]
    assert row[2].lstrip("RSD") == other[2].lstrip("RSD")  # running or sleeping: that changes from look to look


def test_a_dead_child_is_shown_as_defunct() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has taken notice
        row = next(line for line in ours(PS)[1].splitlines() if line.split()[0] == str(child.pid))
    finally:
        child.wait()
    assert row.split()[2].startswith("Z") and row.endswith("<defunct>")


def test_the_foreground_of_a_terminal_is_marked_as_ps_marks_it() -> None:
    program = "import pty; pty.spawn([__import__('sys').executable, '-c', 'print(1, flush=True); input()'])"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        mine, theirs = (
            [line.split() for line in text.splitlines() if line.split()[1] == str(child.pid)]
            for text in (ours(PS)[1], real(PS)[1])
        )
    finally:
        child.communicate(b"\n")
    assert len(mine) == 1 and mine[0][2].endswith("+") and mine[0][2].lstrip("RSD") == theirs[0][2].lstrip("RSD")


def test_the_c_library_is_the_one_that_getconf_names() -> None:
    argv = ("getconf", "GNU_LIBC_VERSION")
    assert ours(argv) == real(argv)


def test_links_are_followed_as_readlink_does(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path)
    for words in ((str(tmp_path / "one"),), ("-f", str(tmp_path / "one"))):
        assert ours(("readlink", *words)) == real(("readlink", *words))


def test_other_words_need_the_real_program() -> None:
    for argv in (("test", "-x", "/tmp"), ("head", "/etc/passwd"), ("ps", "aux"), ("id", "-un")):
        assert answer(argv) is None
    for argv in (("readlink", "/a", "/b"), ("readlink", "-m", "/a"), ("readlink", "-f"), ("df", "-hP", "/")):
        assert answer(argv) is None
    assert answer(("getconf", "PAGE_SIZE")) is None


def test_level_0_knows_which_questions_need_a_process() -> None:
    assert not is_answered(("getent", "ahosts", "node1")) and is_answered(("getent", "group", "HwHiAiUser"))
    assert not is_answered(("ps", "-ef")) and is_answered(PS)
    assert not is_answered(()) and not is_answered(("npu-smi", "info"))


@pytest.mark.parametrize(("name", "code"), [("root", 0), ("no-such-group-here", 2)])
def test_a_group_is_looked_up_as_getent_does(name: str, code: int) -> None:
    argv = ("getent", "group", name)
    assert ours(argv)[0] == real(argv)[0] == code
    assert ours(argv)[1].split(":")[::2][:2] == real(argv)[1].split(":")[::2][:2]
