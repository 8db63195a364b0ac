"""A program that has imported torch and forks a process for each piece of work: importing it takes each 2 s of its own.

`python -m tests.trainer.fork_server FILE` puts the address of its socket into FILE and goes on in the background.
A line of JSON asks it to `start` a process or how one it `asked` for has ended; it answers with one. It ends with the
last of those that are connected, and so do the processes that one of them has left behind.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

FIRST_S = 60.0  # so long for the first to connect


class _Client:
    """Who is connected, and the processes that were started for it: how they ended, None where they run."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = connection.makefile("rwb", buffering=0)
        self.codes: dict[int, int | None] = {}

    def code(self, pid: int) -> int | None:
        if self.codes[pid] is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.codes[pid] = os.waitstatus_to_exitcode(status)
        return self.codes[pid]

    def end(self) -> None:
        for pid in self.codes:
            if self.code(pid) is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.connection.close()


def _serve(listening: socket.socket) -> dict[str, Any] | None:
    """Answers; what a new process has to do, in that process, and None in the end."""
    clients: dict[int, _Client] = {}
    while True:
        ready, _, _ = select.select([listening.fileno(), *clients], [], [], None if clients else FIRST_S)
        for each in ready:
            if each == listening.fileno():
                made = _Client(listening.accept()[0])
                clients[made.connection.fileno()] = made
                continue
            client = clients[each]
            line = client.lines.readline()
            if not line:
                clients.pop(each).end()
                continue
            asked = json.loads(line)
            if "code_of" in asked:
                answer = client.code(asked["code_of"])
            else:
                for name in asked["imports"]:
                    __import__(name)
                answer = os.fork()
                if answer == 0:
                    for other in clients.values():
                        other.connection.close()
                    return dict(asked)
                client.codes[answer] = None
            client.lines.write(json.dumps(answer).encode() + b"\n")
        if not clients:
            return None


def _become(asked: dict[str, Any]) -> None:
    """What `python -c TEXT WORDS` would be in this folder, with this environment and these outputs."""
    for number, name in (1, "stdout"), (2, "stderr"):
        file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.argv = ["-c", *asked["words"]]
    own: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(asked["text"], "<string>", "exec"), own)


def main(file: str) -> None:
    folder = tempfile.mkdtemp(prefix="forks-", dir="/tmp")  # a path of pytest's would be too long for a socket
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{folder}/socket")
    listening.listen()
    if os.fork():
        written = Path(file).with_suffix(".new")
        written.write_text(f"{folder}/socket")
        written.rename(file)
        os._exit(0)
    server = os.getpid()
    try:
        asked = _serve(listening)
    finally:
        if os.getpid() == server:
            with suppress(OSError):
                Path(file).unlink()
            shutil.rmtree(folder, ignore_errors=True)
    listening.close()
    if asked is not None:
        _become(asked)


if __name__ == "__main__":
    main(sys.argv[1])
