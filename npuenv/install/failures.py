"""The reason why a step failed, as a sentence: from a program's output or an OSError."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.facts.pip import without_secrets

if TYPE_CHECKING:
    from npuenv.core.plan import Run

_TAIL_BYTES = 1 << 16


def reason(text: str, action: Run, code: int) -> Message:
    """The sentence for a program's output; the deciding line of the output if no sentence is known."""
    last = deciding_line(text)
    for marks, key in _KNOWN:
        hit = next((line.strip() for line in text.splitlines() if any(mark in line for mark in marks)), None)
        if hit is not None:
            return Message(key, {"line": short(without_secrets(hit)), "program": Path(action.argv[0]).name})
    if code < 0:
        return Message("execute.program-killed", {"program": Path(action.argv[0]).name, "signal": -code})
    return Message("execute.program-failed", {"program": Path(action.argv[0]).name, "code": code, "line": short(last)})


_NO_NETWORK = ("dns error", "Connection refused", "Network is unreachable", "Could not resolve host", "timed out",
               "client error (Connect)", "error sending request")  # fmt: skip
# Messages of uv and git about a proxy that rejects the request, and about an unreachable one.
_PROXY = ("proxy authorization required", "tunnel error: unsuccessful", "CONNECT tunnel failed",
          "tunnel error: failed to create underlying connection", "Proxy Authentication Required")  # fmt: skip
_NO_WHEEL = ("was not found in the provided package locations", "was not found in the package registry",
             "Because there is no version of", "Failed to read `--find-links` directory",
             "has no usable wheels", "has no wheels with a matching")  # fmt: skip
_BROKEN_REMOTE = ("does not appear to be a git repository", "Could not read from remote repository",
                  "fatal: repository '", "couldn't find remote ref", "fatal: unable to access", "fatal: early EOF",
                  "fatal: git checkout: --detach does not take a path argument", "fatal: unable to read tree",
                  "did not match any file(s) known to git", "fatal: reference is not a tree",
                  "fatal: invalid reference", "fatal: the remote end hung up")  # fmt: skip
_COMPILERS = ("'gcc'", "'g++'", "'cc'", "'c++'", "'clang'", "'cmake'", "'ninja'", "'make'", "'rustc'", "'cargo'")
_NO_COMPILER = (*(f"No such file or directory: {name}" for name in _COMPILERS), "gcc: command not found",
                "No CMAKE_CXX_COMPILER could be found", "No CMAKE_C_COMPILER could be found",
                "can't find Rust compiler", "unable to execute 'gcc'", "unable to execute 'g++'")  # fmt: skip
# In this order: a full disk also breaks downloads, a refused connection also causes "no solution found", and a proxy's
# refusal comes before the connection error that it causes.
_KNOWN: tuple[tuple[tuple[str, ...], str], ...] = (
    (("No space left on device", "os error 28", "Disk quota exceeded"), "execute.disk-full"),
    (("Read-only file system", "Permission denied", "os error 13", "os error 30"), "execute.not-writable"),
    (("Hash mismatch", "hash mismatch"), "execute.hash-mismatch"),
    (_PROXY, "execute.proxy-refuses"),
    (_NO_NETWORK, "execute.no-network"),
    (_NO_COMPILER, "execute.no-compiler"),
    (_BROKEN_REMOTE, "execute.broken-remote"),
    (_NO_WHEEL, "execute.no-wheel"),
)


def deciding_line(text: str) -> str:
    """The line of a program's output that gives the reason: a problem, a cause, an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("$ ")]
    for marks in (("problem: ",), ("Because ",), ("cause: ", "Caused by: "), ("error: ", "fatal: ", "ERROR: ")):
        hits = [line for line in lines if any(mark in line for mark in marks)]
        if hits:
            return without_secrets(hits[0])
    return without_secrets(lines[-1]) if lines else ""


def system_error(error: OSError, path: str) -> Message:
    args = {"line": f"{path}: {error.strerror}", "program": "npuenv"}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Message("execute.disk-full", args)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Message("execute.not-writable", args)
    return Message("execute.system-error", args)


def tail(log: Path) -> str:
    """The end of a log, from the last command on."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text.rpartition("\n$ ")[2] if "\n$ " in text else text


def short(text: str) -> str:
    return text if len(text) <= 400 else text[:397] + "..."
