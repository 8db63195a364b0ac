"""One process that has imported a program, and a child of it for each run: a run costs no start and no import.

A run has a fresh copy of everything in the program's memory, its own arguments, folder, variables and output. What
happens at the start of an interpreter (its options, `PYTHON...` variables) is that of the first process, so a test of
the start itself runs a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# Runs on each Python that the program runs on, from 3.9 on. After a run it imports what that one had to import.
# A run that takes too long is ended by the signal of its alarm.
_SERVER = """\
import importlib, json, os, signal, sys, tempfile, traceback

def entered(job, out, err, seen):
    os.setsid()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    for number, file in enumerate((job["stdin"], out, err)):
        os.dup2(file.fileno(), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(job["limit_s"])
    sys.argv[:] = [job["name"], *job["words"]]
    code = 1
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    seen.write("\\n".join(sorted(sys.modules)))
    seen.close()
    os._exit(code if isinstance(code, int) else int(code is not None))

def ran(job):
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, \\
            tempfile.TemporaryFile("w+") as seen:
        stdin.write(job["stdin"].encode())
        stdin.seek(0)
        job["stdin"] = stdin
        pid = os.fork()
        if not pid:
            entered(job, out, err, seen)
        status = os.waitpid(pid, 0)[1]
        for file in (out, err, seen):
            file.seek(0)
        for name in seen.read().split():
            if name != "__main__" and name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:
                    pass
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        said = {name: file.read().decode("utf-8", "replace") for name, file in (("out", out), ("err", err))}
        return {"code": code, **said}

answers = os.fdopen(os.dup(1), "w")
jobs = os.fdopen(os.dup(0), "r")
nowhere = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(nowhere, number)
sys.argv[:] = json.loads(jobs.readline())
try:
    main()
except SystemExit:
    pass
sys.stdout.flush()
sys.stderr.flush()
for line in jobs:
    answers.write(json.dumps(ran(json.loads(line))) + "\\n")
    answers.flush()
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run gave, named as `subprocess.CompletedProcess` names it."""

    returncode: int  # below 0: the signal that ended it
    stdout: str
    stderr: str


class Program:
    """A program that waits to be run."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name

    def run(
        self, words: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], stdin: str = "", limit_s: int = 300
    ) -> Ended:
        """One run with these words, in a session of its own."""
        job = {"name": self._name, "words": words, "cwd": str(cwd), "env": dict(env), "stdin": stdin}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({**job, "limit_s": limit_s}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process of the program has ended"
        answer = json.loads(line)
        return Ended(answer["code"], answer["out"], answer["err"])


@contextlib.contextmanager
def program(
    argv: Sequence[str], start: str, name: str, first: Sequence[str], env: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """The program whose `main` the code `start` imports. `argv`: an interpreter with its options; `name`: argv[0].

    With the words `first` it is run once in the first process, so that every run after it finds its tables read.
    """
    with subprocess.Popen(
        [*argv, "-c", f"{start}\n{_SERVER}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**(os.environ if env is None else env), "LANG": "C.UTF-8"},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps([name, *first]) + "\n")
        try:
            yield Program(process, name)
        finally:
            process.stdin.close()
            process.wait(60)
