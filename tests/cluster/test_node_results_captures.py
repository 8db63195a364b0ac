"""Captures from nodes: what is sent runs there, comes back, and leaves nothing behind. The node is this machine."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from npuenv.bundle import zipapp
from npuenv.cluster.inventory import Node
from npuenv.cluster.node_results import NodeCapture, collect_captures
from npuenv.cluster.parallel_ssh import Transport
from npuenv.cluster.ssh import NodeFailure
from npuenv.host import NotRecorded
from tests.support.own_signals import as_from_a_terminal
from tests.support.waiting import PATIENCE_S, is_gone, until

CAPTURE = {"schema": "npuenv.capture/1", "npuenv": "1", "host": "host1", "environ": {}, "commands": [], "paths": {}}
# A doctor that says where it is, and gives a capture with the words that it got.
GIVES = f"""
import json, os, sys
open(os.environ["SEEN"], "a").write(sys.argv[0] + " " + str(os.getpid()) + "\\n")
at = sys.argv.index("--save")
capture = {CAPTURE!r}
capture["environ"]["WORDS"] = " ".join(sys.argv[1:at])
open(sys.argv[at + 1], "w").write(json.dumps(capture))
sys.exit(3)
"""
# One that takes for ever, and so does what it started: the doctor's programs have sessions of their own.
HANGS = """
import os, subprocess, sys, time
near = subprocess.Popen(["sleep", "600"])
tool = subprocess.Popen(["sh", "-c", "sleep 600 & echo tool $! >> $SEEN; wait"], start_new_session=True)
open(os.environ["SEEN"], "a").write(f"{sys.argv[0]} {os.getpid()}\\nchild {near.pid}\\ntool {tool.pid}\\n")
time.sleep(600)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANGS
HANGING_TOOL = '#!/bin/sh\necho tool $$ >> "$SEEN"\nexec sleep 600\n'


class Here:
    """This machine as every node, with a folder of its own for temporary files."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.temporary, self.seen, client = folder / "tmp", folder / "seen", folder / "client"
        self.temporary.mkdir()
        # As with a real node, ending the client does not end what it started.
        client.write_text('#!/bin/sh\nfor last; do :; done\nexec 3<&0\nsetsid sh -c "$last" <&3 3<&- &\nwait $!\n')
        client.chmod(0o755)
        self.client = (str(client),)
        patch.setenv("TMPDIR", str(self.temporary))
        patch.setenv("SEEN", str(self.seen))

    def ask(self, program: str, *, limit_s: float = 60.0, python: str = sys.executable) -> NodeCapture:
        """What the one node gives."""
        node = Node("here", "here", python=python)
        words = ["--level", "1"]
        (got,) = collect_captures(
            [node], program.encode(), words, limit_s=limit_s, transport=Transport(client=self.client)
        )
        return got

    def processes(self) -> list[int]:
        """The doctors that were started, and what they started, by what they wrote."""
        return [int(line.split()[1]) for line in self.seen.read_text().splitlines()] if self.seen.exists() else []

    def is_clean(self) -> bool:
        """Whether neither a file nor a doctor is left."""
        return not list(self.temporary.iterdir()) and all(map(is_gone, self.processes()))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(tmp_path, monkeypatch)


def test_a_capture_comes_back_and_nothing_stays(here: Here) -> None:
    got = here.ask(GIVES)
    assert got.failure is None and got.host is not None
    assert got.host.environ() == {"WORDS": "--level 1"}
    assert json.loads(got.text)["host"] == "host1"
    with pytest.raises(NotRecorded):
        got.host.look("/etc/os-release")
    path = here.seen.read_text().split()[0]
    assert path.startswith(f"{here.temporary}/npuenv-") and path.endswith("/npuenv-doctor.pyz")
    assert here.is_clean()


@pytest.mark.parametrize("program", [HANGS, STUBBORN], ids=["orderly", "stubborn"])
@pytest.mark.slow
def test_a_doctor_that_takes_too_long_is_ended_there_with_all_it_started(here: Here, program: str) -> None:
    for limit_s in (4.0, PATIENCE_S):  # more where this machine is too busy to start all of it in time
        here.seen.unlink(missing_ok=True)
        got = here.ask(program, limit_s=limit_s)
        assert got.failure is NodeFailure.TIMED_OUT and got.host is None
        assert got.seconds < limit_s + PATIENCE_S
        assert until(here.is_clean)
        if len(here.processes()) == 4:
            break
    assert re.fullmatch(r"sh -c sleep 600 & .*; wait \(\d+ s\)", got.line), "what was under way is named"
    assert len(here.processes()) == 4 and until(here.is_clean)


def test_a_doctor_that_dies_is_named_with_its_last_words(here: Here) -> None:
    got = here.ask("raise RuntimeError('broken', 7)")
    assert got.failure is NodeFailure.BROKEN and got.line == "RuntimeError: ('broken', 7)"
    assert here.ask("import os\nos.kill(os.getpid(), 9)").line == "exit code -9"
    refused = here.ask("import sys\nprint('error: /x is wrong\\nhint: give one', file=sys.stderr)\nsys.exit(2)")
    assert refused.line == "error: /x is wrong"
    assert here.is_clean()


def test_what_is_no_capture_is_said(here: Here) -> None:
    got = here.ask("import sys\nopen(sys.argv[sys.argv.index('--save') + 1], 'w').write('{}')")
    assert got.failure is NodeFailure.BROKEN and "capture" in got.line.lower()


def test_the_node_stops_when_nobody_waits_any_more(here: Here) -> None:
    node = Node("here", "here", python=sys.executable)
    quick = Node("quick", "quick", python="/bin/false")
    answers = collect_captures([node, quick], HANGS.encode(), [], limit_s=600, transport=Transport(client=here.client))
    assert next(answers).node.name == "quick"
    assert until(lambda: bool(here.processes()))
    answers.close()
    assert all(until(partial(is_gone, pid)) for pid in here.processes())


@pytest.mark.slow
def test_ctrl_c_here_leaves_no_tool_behind_there(here: Here, tmp_path: Path) -> None:
    place, inventory = tmp_path / "bin", tmp_path / "hosts"
    place.mkdir()
    (place / "npu-smi").write_text(HANGING_TOOL)
    (place / "npu-smi").chmod(0o755)
    (place / "ssh").symlink_to(here.client[0])
    inventory.write_text(f"here python={sys.executable}\n")
    argv = [sys.executable, "-m", "npuenv", "doctor", "--hosts", str(inventory), "--for", "verl", "--quiet"]
    process = subprocess.Popen(
        argv,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=as_from_a_terminal,
    )
    try:
        assert until(lambda: bool(here.processes()))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
    assert until(here.is_clean)


def test_a_python_that_is_absent_or_too_old_is_said(here: Here, tmp_path: Path) -> None:
    absent = here.ask(GIVES, python=str(tmp_path / "python3"))
    assert absent.failure is NodeFailure.NO_PYTHON and "not found" in absent.line
    old = tmp_path / "python3.6"
    set_back = "import sys; sys.version_info = (3, 6, 8); sys.version = '3.6.8 (default)'; exec(sys.argv[2])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{set_back}" "$@"\n')
    old.chmod(0o755)
    too_old = here.ask(GIVES, python=str(old))
    assert (too_old.failure, too_old.line, too_old.can_probe) == (NodeFailure.TOO_OLD, "Python 3.6.8", True)
    assert here.processes() == []


@pytest.mark.parametrize(
    ("failure", "line", "can_meet"),
    [
        (NodeFailure.TOO_OLD, "Python 3.8.20", True),
        (NodeFailure.TOO_OLD, "Python 3.6.8", True),
        (NodeFailure.TOO_OLD, "Python 3.5.10", False),
        (NodeFailure.TOO_OLD, "Python 2.7.18", False),
        (NodeFailure.NO_PYTHON, "bash: python3: command not found", False),
        (NodeFailure.DENIED, "Python 3.6.8", False),
    ],
)
def test_who_can_try_the_others_without_a_capture(failure: NodeFailure, line: str, can_meet: bool) -> None:
    assert NodeCapture(Node("a", "a"), 1.0, failure=failure, line=line).can_probe is can_meet


def test_a_client_that_keeps_no_keys_is_told_from_a_key_that_is_not_known(tmp_path: Path) -> None:
    said = "No ED25519 host key is known for here and you have requested strict checking."
    troubles = []
    for files in ("/dev/null", "/root/.ssh/known_hosts /dev/null"):
        client = tmp_path / "client"
        client.write_text(
            f'#!/bin/sh\ncase "$*" in *" -G "*) echo "userknownhostsfile {files}"; exit 0;; esac\n'
            f'echo "{said}" >&2\necho "Host key verification failed." >&2\nexit 255\n'
        )
        client.chmod(0o755)
        (got,) = collect_captures(
            [Node("here", "here")], b"", [], limit_s=60, transport=Transport(client=(str(client),))
        )
        assert got.line == said
        troubles.append(got.failure)
    assert troubles == [NodeFailure.NO_KEYS, NodeFailure.HOST_KEY]


def test_a_full_disk_there_is_said(here: Here) -> None:
    fails = "lambda prefix: open('/dev/full', 'wb', 0).write(b'x')"
    words = os.strerror(errno.ENOSPC)
    script = f"import sys, tempfile; tempfile.mkdtemp = {fails}; exec(sys.argv[2])"
    full = here.temporary.parent / "python-full"
    full.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{script}" "$@"\n')
    full.chmod(0o755)
    got = here.ask(GIVES, python=str(full))
    assert got.failure is NodeFailure.BROKEN and words in got.line


def test_a_shell_that_greets_does_not_disturb(here: Here, tmp_path: Path) -> None:
    greeting = tmp_path / "greeting"
    greeting.write_text('#!/bin/sh\necho "Welcome!"\nfor last; do :; done\nexec sh -c "$last"\n')
    greeting.chmod(0o755)
    node = Node("here", "here", python=sys.executable)
    (got,) = collect_captures([node], GIVES.encode(), [], limit_s=60, transport=Transport(client=(str(greeting),)))
    assert got.failure is None and got.host is not None


@pytest.mark.slow
def test_the_real_doctor_gives_a_real_capture(here: Here) -> None:
    node = Node("here", "here", python=sys.executable)
    (got,) = collect_captures(
        [node],
        zipapp.content(),
        ["--level", "0", "--quiet", "--json"],
        limit_s=120,
        transport=Transport(client=here.client),
    )
    assert (got.failure, got.line) == (None, "")
    assert got.host is not None and "/dev" in json.loads(got.text)["paths"]
    assert not list(here.temporary.iterdir())
