"""The program that runs commands of hccn_tool on a node: in order, one at a time, and never without an end."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from npuenv.cluster.mesh import remote
from tests.support.waiting import PATIENCE_S, is_gone, until


@dataclass(frozen=True, slots=True)
class Asked:
    """The program at work, and what it said first."""

    process: subprocess.Popen[bytes]
    first: dict[str, Any]


def ask(
    folder: Path,
    tool: str,
    /,
    *,
    prelude: str = "",
    python: str = sys.executable,
    **more: Any,
) -> Asked:
    """Starts the program with a tool of this text, and leaves its input open."""
    path = folder / "hccn_tool"
    if not path.exists():  # what runs cannot be written
        path.write_text(f"#!/bin/sh\ncd {folder}\n{tool}\n", encoding="utf-8")
        path.chmod(0o755)
    asked = {
        "tools": [str(path)],
        "limit_s": 20,
        "kill_s": 5,
        "budget_s": 60,
        "again": ["is busy"],
        "stop": ["permission denied"],
        "words": ["{card}", "{ip}"],
        "jobs": [[0, "a"], [1, "b"], [2, "c"]],
        **more,
    }
    pipe = subprocess.PIPE
    program = ["-c", prelude + Path(remote.__file__).read_text()] if prelude else [remote.__file__]
    process = subprocess.Popen([python, "-IS", *program], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    assert process.stdout.readline() == b"\n"
    first = json.loads(process.stdout.readline())
    return Asked(process, first)


def answers(asked: Asked) -> list[dict[str, Any]]:
    """All that it says until it ends by itself."""
    running = asked.process
    assert running.stdout and running.stdin and running.stderr
    lines = [asked.first, *(json.loads(line) for line in running.stdout.read().splitlines())]
    assert running.wait(PATIENCE_S) == 0, running.stderr.read()
    for stream in (running.stdin, running.stdout, running.stderr):
        stream.close()
    return lines


def test_the_program_asks_in_order_and_gives_every_answer(tmp_path: Path) -> None:
    lines = answers(ask(tmp_path, 'echo "$1 $2"; echo wrong >&2; exit 7'))
    assert lines[0] == {"tool": str(tmp_path / "hccn_tool")} and lines[-1] == {"end": True}
    said = [(line["job"], line["code"], line["out"], line["err"], line["late"]) for line in lines[1:-1]]
    assert said == [(at, 7, f"{at} {ip}\n", "wrong\n", False) for at, ip in enumerate("abc")]


def test_a_busy_tool_is_asked_again(tmp_path: Path) -> None:
    busy = "echo hccn_tool is busy, please try again.; exit 11"
    tool = f"echo x >> asked; [ $(wc -l < asked) -lt 3 ] && {{ {busy}; }}; echo ok"
    lines = answers(ask(tmp_path, tool, jobs=[[0, "a"]]))
    assert [line["out"] for line in lines[1:-1]] == ["ok\n"]
    assert (tmp_path / "asked").read_text() == "x\nx\nx\n"


def test_a_tool_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    tool = "sh -c 'echo $$ > child; exec sleep 300' & while [ ! -s child ]; do :; done; echo said; exec sleep 300"
    for limit_s in (1, PATIENCE_S):  # more where this machine is too busy to start all of it in time
        lines = answers(ask(tmp_path, tool, limit_s=limit_s, jobs=[[0, "a"]]))
        if lines[1]["out"]:
            break
    assert [(line["code"], line["out"], line["late"]) for line in lines[1:-1]] == [(None, "said\n", True)]
    child = int((tmp_path / "child").read_text())
    assert until(lambda: is_gone(child))


def test_nothing_more_is_asked_after_an_answer_that_holds_for_all(tmp_path: Path) -> None:
    lines = answers(ask(tmp_path, "echo x >> asked; echo permission denied: pls check >&2; exit 1"))
    assert [line["job"] for line in lines[1:-1]] == [0]
    assert (tmp_path / "asked").read_text() == "x\n"


def test_nothing_more_is_begun_when_its_time_is_over(tmp_path: Path) -> None:
    lines = answers(ask(tmp_path, "echo ok", budget_s=0))
    assert lines[1:] == [{"end": True}]


def test_a_tool_that_no_signal_ends_is_said_in_time_and_no_other_one_is_started(tmp_path: Path) -> None:
    # As in the driver's sleep: the kill is sent and has no effect.
    unkillable = "import os; os.killpg = lambda *words: None\n"
    tool = "echo $$ >> asked; exec sleep 300"
    lines = answers(ask(tmp_path, tool, prelude=unkillable, limit_s=0.5, kill_s=0.2))
    assert [(line["job"], line["late"], line["stuck"]) for line in lines[1:-1]] == [(0, True, True)]
    assert lines[-1] == {"refused": "stuck"}
    assert until(lambda: (tmp_path / "asked").exists() and (tmp_path / "asked").read_text().endswith("\n"))
    (pid,) = map(int, (tmp_path / "asked").read_text().split())
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: is_gone(pid))
    (tmp_path / "hccn_tool").write_text("#!/bin/sh\necho ok\n", encoding="utf-8")
    assert answers(ask(tmp_path, "", jobs=[[0, "a"]]))[1]["out"] == "ok\n"


def test_a_tool_that_this_user_may_not_run_is_there_and_not_allowed(tmp_path: Path) -> None:
    tool = tmp_path / "hccn_tool"
    tool.write_text("#!/bin/sh\n", encoding="utf-8")
    tool.chmod(0o600)
    assert answers(ask(tmp_path, "")) == [{"refused": "not-allowed"}]


def test_the_program_is_written_for_python_3_6() -> None:
    tree = ast.parse(Path(remote.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    hints = [each.annotation for function in functions for each in function.args.args]
    # What is not in quotes is evaluated there, where neither `dict[str, int]` nor a way around it exists.
    assert not any(isinstance(hint, ast.Subscript) for hint in (*hints, *(function.returns for function in functions)))
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in ast.walk(tree))


OLD = sorted((Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob("3.6.*/bin/python"))


@pytest.mark.skipif(not OLD, reason="needs Python 3.6 below pyenv")
def test_python_3_6_runs_it(tmp_path: Path) -> None:
    lines = answers(ask(tmp_path, 'echo "$1 $2"', python=str(OLD[0])))
    assert [(line["job"], line["out"]) for line in lines[1:-1]] == [(0, "0 a\n"), (1, "1 b\n"), (2, "2 c\n")]
    assert lines[-1] == {"end": True}
