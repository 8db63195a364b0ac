"""Untrusted code: what it may do, and what the walls refuse."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer.config import BadSetting
from trainer.tasks import code
from trainer.tasks.code import Bounds, End, run_calls, run_program

try:
    code.require_sandbox()
    WHY_NOT = ""
except BadSetting as error:
    WHY_NOT = str(error)

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "there is a sandbox")
ROOMY = Bounds(time_s=30.0)
# Each snippet prints `did` if what it tries was not refused.
REFUSED = {
    "fork": "import os\nos.fork()\nprint('did')",
    "fork by ctypes": "import ctypes\nif ctypes.CDLL(None).fork() >= 0: print('did')",
    "another program": "import subprocess\nsubprocess.run(['/bin/true'])\nprint('did')",
    "exec": "import os\nos.execv('/bin/echo', ['echo', 'did'])",
    "write": "open('x', 'w').write('a' * 10**9)\nprint('did')",
    "write to tmp": "open('/tmp/of-an-answer', 'w')\nprint('did')",
    "write to shared memory": "open('/dev/shm/of-an-answer', 'w')\nprint('did')",
    "memory file": "import os\nos.memfd_create('x')\nprint('did')",
    "folder": "import os\nos.mkdir('x')\nprint('did')",
    "mode": "import os\nos.chmod('.', 0o777)\nprint('did')",
    "link": "import os\nos.symlink('/', 'x')\nprint('did')",
    "password file": "open('/etc/passwd')\nprint('did')",
    "list root": "import os\nos.listdir('/')\nprint('did')",
    "parent's environment": "import os\nopen(f'/proc/{os.getppid()}/environ')\nprint('did')",
    "inet socket": "import socket\nsocket.socket()\nprint('did')",
    "local socket": "import socket\nsocket.socket(socket.AF_UNIX)\nprint('did')",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\nprint('did')",
    "kill the group": "import os\nos.killpg(0, 9)\nprint('did')",
    "limits of the parent": "import os, resource\nresource.prlimit(os.getppid(), 0, (1, 1))\nprint('did')",
    "higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\nprint('did')",
    "signals of a descriptor": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 8, os.getppid())\nprint('did')",
    "attributes of a file": "import fcntl\nfcntl.ioctl(open('/dev/null'), 0x40086602, b'0' * 8)\nprint('did')",
    "new user": "import os\nos.setuid(1)\nprint('did')",
    "namespace": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('did')",
    "memory": "x = bytearray(10**10)\nprint('did')",
}


def test_what_reaches_out_of_the_sandbox_is_refused() -> None:
    """One after the other in one process: had one of them worked, it would say so or be the last."""
    source = f"""
for name, source in {REFUSED!r}.items():
    print(name, flush=True)
    try:
        exec(source, {{}})
    except BaseException:
        pass
"""
    ended = run_program(source, "", ROOMY)
    assert (ended.end, ended.output.splitlines()) == (End.DONE, list(REFUSED))


@pytest.mark.slow
@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_each_that_reaches_out_of_the_sandbox_is_refused_by_itself(source: str) -> None:
    ended = run_program(source, "", ROOMY)
    assert "did" not in ended.output
    assert ended.end is not End.TIME


def test_a_program_reads_its_input_and_prints() -> None:
    ended = run_program("n = int(input())\nprint(n * 2)", "21\n", ROOMY)
    assert (ended.end, ended.output, ended.code) == (End.DONE, "42\n", 0)


def test_a_long_input_arrives_whole() -> None:
    assert run_program("import sys\nprint(len(sys.stdin.read()))", "x" * 300_000, ROOMY).output == "300000\n"


def test_the_standard_library_and_a_thread_for_deep_recursion_work() -> None:
    source = """
import sys, threading, math, re, json, collections, heapq, decimal, fractions, datetime, random, bisect, hashlib
threading.stack_size(1 << 26)
sys.setrecursionlimit(10**6)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
thread = threading.Thread(target=lambda: print(depth(20000), random.random() < 1, datetime.datetime.now().year > 2000))
thread.start()
thread.join()
"""
    assert run_program(source, "", ROOMY).output == "20000 True True\n"


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "sum(iter(int, 1))",
        "import os, time\nos.close(1)\ntime.sleep(600)",
        "import threading, time\nfor _ in range(10**5): threading.Thread(target=time.sleep, args=(600,)).start()",
    ],
    ids=["loop", "loop in C", "closed output", "threads"],
)
@pytest.mark.one_in(4)
def test_what_does_not_end_is_ended(source: str) -> None:
    started_s = time.monotonic()
    ended = run_program(source, "", Bounds(time_s=0.5))
    assert (ended.end, ended.code) == (End.TIME, -9)
    assert time.monotonic() - started_s < 120


def test_endless_output_is_cut_off() -> None:
    ended = run_program("while True: print('x' * 1000)", "", ROOMY)
    assert ended.end is End.FAILED
    assert len(ended.output) < 2 << 20


def test_secrets_of_the_environment_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_TRAINER", "hunter2")
    assert run_program("import os\nprint(dict(os.environ))", "", ROOMY).output == "{'LANG': 'C.UTF-8'}\n"


def test_a_file_of_the_user_can_neither_be_read_nor_removed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0o600)
    assert run_program(f"print(open({str(secret)!r}).read())", "", ROOMY).output == ""
    run_program(f"import os\nos.unlink({str(secret)!r})", "", ROOMY)
    run_program(f"open({str(secret)!r}, 'r+').write('x')", "", ROOMY)
    assert secret.read_text() == "hunter2"


def test_a_server_beside_it_hears_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        heard: list[object] = []

        def listen() -> None:
            try:
                heard.append(server.accept())
            except TimeoutError:
                return

        thread = threading.Thread(target=listen)
        thread.start()
        port = server.getsockname()[1]
        ended = run_program(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))", "", ROOMY)
        thread.join()
    assert (ended.end, heard) == (End.FAILED, [])


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_program("print(1)", "", ROOMY)
    run_program("while True: pass", "", Bounds(time_s=0.5))
    assert list(tmp_path.iterdir()) == []


def test_values_come_back_and_failures_are_missing() -> None:
    source = "import collections\ndef f(x): return x * 2\nclass Sly(int):\n    def __eq__(self, other): return True\n"
    calls = ["f(2)", "f('a')", "1 / 0", "{1: (2, 3)}", "f", "collections.Counter('aab')", "Sly(4)", "frozenset([1])"]
    assert run_calls(source, calls, ROOMY) == {0: 4, 1: "aa", 3: {1: (2, 3)}, 5: {"a": 2, "b": 1}, 6: 4, 7: {1}}
    assert type(run_calls(source, calls, ROOMY)[6]) is int


@pytest.mark.parametrize(
    "source",
    [
        "import os\nprint('passed', flush=True)\nos._exit(0)",
        "import sys\nprint('[0, \"4\"]')\nsys.exit(0)",
        "raise SystemExit(0)",
        "def f(x): raise KeyboardInterrupt",
    ],
)
def test_leaving_early_yields_no_value(source: str) -> None:
    assert run_calls(source, ["f(2)"], ROOMY) == {}


@pytest.mark.parametrize("written", ["[" * 100_000, "9" * 100_000, "[1e400, 1]", '["x", "1"]', "null", "[0, 5]"])
def test_garbage_on_the_way_back_is_no_value(written: str) -> None:
    source = f"import os\nfor place in range(3, 10):\n    try: os.write(place, {written!r}.encode() + b'\\n')\n"
    source += "    except OSError: pass\nos._exit(0)"
    assert run_calls(source, ["1"], ROOMY) == {}


def test_without_walls_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child with its filter taken out: it must leave before the source, and `require` must refuse."""
    child = tmp_path / "child.py"
    text = Path(code.__file__).with_name("sandbox_child.py").read_text()
    child.write_text(text.replace("def wall_of_calls() -> bool:", "def wall_of_calls() -> bool:\n    return False\n"))
    monkeypatch.setattr(code, "_CHILD", child)
    ended = run_program("print('ran')", "", ROOMY)
    assert (ended.end, ended.output, ended.code) == (End.FAILED, "", 97)
    with pytest.raises(BadSetting, match="kernel refuses"):
        code.require_sandbox()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.slow
def test_without_landlock_root_runs_it_as_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    text = Path(code.__file__).with_name("sandbox_child.py").read_text()
    child.write_text(text.replace("def _landlock() -> bool:", "def _landlock() -> bool:\n    return False\n"))
    monkeypatch.setattr(code, "_CHILD", child)
    assert run_program("import os\nprint(os.getuid(), os.getgid())", "", ROOMY).output == "65534 65534\n"
    for name in ("parent's environment", "write to tmp", "write to shared memory", "write", "kill the parent"):
        assert run_program(REFUSED[name], "", ROOMY).output == ""


def test_other_systems_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BadSetting, match="darwin"):
        code.require_sandbox()
