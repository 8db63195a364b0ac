"""This machine with the environment of a shell that has sourced a file."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from npuenv.host.base import Ran
from npuenv.host.builtin import is_answered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.host.base import Host, Looked

_SOURCE = '. "$1" >/dev/null 2>&1; env -0'
_TIMEOUT_S = 20.0


def sourced(host: Host, file: str) -> SourcedHost | None:
    """The host with the environment of a shell after it has sourced `file`; None if no shell could report it."""
    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        return None
    ran = host.run(
        (shell, "-c", _SOURCE, shell, file), timeout_s=_TIMEOUT_S, env={"LC_ALL": os.environ.get("LC_ALL", "")}
    )
    pairs = [entry.partition("=") for entry in ran.out.split("\0") if "=" in entry]
    return SourcedHost(host, {name: value for name, _, value in pairs}) if ran.code == 0 and pairs else None


class SourcedHost:
    """A host whose session has other variables; programs are started with exactly these."""

    def __init__(self, host: Host, environ: Mapping[str, str]) -> None:
        self._host = host
        self._environ = dict(environ)

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """Runs a program through `env -i`, because a variable may also have to be unset."""
        if is_answered(argv):
            return self._host.run(argv, timeout_s=timeout_s, env=env)
        path = shutil.which(argv[0], path=self._environ.get("PATH", os.defpath))
        if path is None:
            return Ran(tuple(argv), None, "", "No such file or directory")
        variables = {**self._environ, "LC_ALL": "C", **(env or {})}
        pairs = [f"{name}={value}" for name, value in variables.items()]
        ran = self._host.run(("env", "-i", *pairs, path, *argv[1:]), timeout_s=timeout_s)
        return Ran(tuple(argv), ran.code, ran.out, ran.err, ran.timed_out)

    def look(self, path: str) -> Looked:
        return self._host.look(path)

    def environ(self) -> Mapping[str, str]:
        return dict(self._environ)
