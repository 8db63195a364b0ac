"""Stable stand-ins for what must not leave a machine: user names, the host's name, passwords, tokens, keys.

A `Redactor` belongs to one session. The same name always gets the same stand-in, and stand-ins for names can be turned
back, so that a path seen with a stand-in can still be asked for. Secrets become `***` and cannot be turned back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SECRET = "***"

# Variables a diagnosis can need; all others stay on the machine.
_KEPT_VARIABLE = re.compile(
    r"(ASCEND|HCCL|ACL|ATB|ASDOPS|NPU|CANN|LCCL|TORCH|PYTORCH|VLLM|VERL|ROLL|RAY|HF|PIP|UV|CONDA|PYTHON|GLOO|NCCL|OMP|TOOLCHAIN|"
    r"LD|LC|TASK_QUEUE|COMBINED|CPU_AFFINITY|MULTI_STREAM|USE_MODELSCOPE|KUBERNETES_SERVICE|MASTER|CUDA_VISIBLE|WANDB)(_\w*)?"
    r"|PATH|HOME|LANG|VIRTUAL_ENV|CONTAINER|RANK|LOCAL_RANK|WORLD_SIZE|TMPDIR|SOC_VERSION|\w*PROXY",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|COOKIE", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^\s/@'\"]+@")
_SECRET_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9+/._~=-]{12,}")
_ASSIGNED = re.compile(
    r"""(?i)(\b[\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key)["']?\s*[=:]\s*["']?)([^\s"',;]{4,})"""
)
# Only at the start of a path: in /data/home/Ascend, `Ascend` is nobody.
_HOMES = r"(?<![A-Za-z0-9_.~-])/(?:home|Users)/"
_HOME_OF = re.compile(_HOMES + r"([^/\s:'\",;]+)")
_STAND_IN = re.compile(r"user[0-9]+|host[0-9]+")
# Names that say nothing about a person and would be replaced all over the place.
_COMMON = frozenset({
    "root", "admin", "user", "users", "test", "ubuntu", "debian", "centos", "openeuler", "docker", "ascend", "npu",
    "hwhiaiuser", "hiai", "python", "torch", "conda", "data", "work", "home", "local", "localhost", "localdomain",
    "none", "any", "all", "default", "system", "node", "worker", "master", "main", "dev", "build", "runner", "ci",
    "jenkins",
})  # fmt: skip


class Redactor:
    """Replaces names and secrets in texts. Only `learn` and `see_environ` add to what it knows."""

    def __init__(self) -> None:
        self._stand_ins: dict[str, str] = {}  # real name -> stand-in
        self._anywhere: set[str] = set()  # names that are replaced wherever they stand as a word
        self._secrets: set[str] = set()

    def see_environ(self, environ: Mapping[str, str]) -> None:
        """Learns the session's user names and the values of secret variables."""
        for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME"):
            self.learn_user(environ.get(name, ""))
        home = environ.get("HOME", "").rstrip("/")
        if home.count("/") > 1:
            self.learn_user(home.rpartition("/")[2])
        for name, value in environ.items():
            if _SECRET_VARIABLE.search(name) and len(value) >= 8:
                self._secrets.add(value)

    def learn_user(self, name: str) -> None:
        """Replaces this user name from now on."""
        self._learn(name, "user", anywhere=len(name) > 2 and name.lower() not in _COMMON)

    def learn_host(self, name: str) -> None:
        """Replaces this host name, with and without its domain, from now on."""
        short = name.partition(".")[0]
        for form in dict.fromkeys((name, short)):
            if len(form) > 2 and form.lower() not in _COMMON:
                self._learn(form, "host", anywhere=True, stand_in=self._stand_ins.get(short))

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that a diagnosis can need, sorted by name, without secrets."""
        kept = {name: value for name, value in environ.items() if _KEPT_VARIABLE.fullmatch(name)}
        return {
            name: SECRET if _SECRET_VARIABLE.search(name) and value else self.text(value)
            for name, value in sorted(kept.items())
        }

    def text(self, text: str) -> str:
        """The text with stand-ins."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, SECRET)
        text = _URL_LOGIN.sub(f"{SECRET}@", text)
        text = _SECRET_SHAPES.sub(SECRET, text)
        text = _BEARER.sub(rf"\1\2{SECRET}", text)
        text = _ASSIGNED.sub(rf"\g<1>{SECRET}", text)
        for found in _HOME_OF.findall(text):
            self._learn(found, "user", anywhere=False)
        return self._replace_names(text)

    def restore(self, text: str) -> str:
        """The text with stand-ins for names turned back."""
        for real, stand_in in self._by_length():
            text = _word(stand_in).sub(lambda _, real=real: real, text)  # type: ignore[misc]
        return text

    def _learn(self, name: str, kind: str, *, anywhere: bool, stand_in: str | None = None) -> None:
        if not name or (name == "root"):
            return
        if name not in self._stand_ins:
            keeps = _STAND_IN.fullmatch(name) is not None  # a text that was redacted before
            self._stand_ins[name] = name if keeps else stand_in or self._free(kind)
        if anywhere:
            self._anywhere.add(name)

    def _free(self, kind: str) -> str:
        taken = set(self._stand_ins.values())
        number = 1
        while f"{kind}{number}" in taken:
            number += 1
        return f"{kind}{number}"

    def _replace_names(self, text: str) -> str:
        for real, stand_in in self._by_length():
            if real in text:
                text = re.sub(rf"({_HOMES}){re.escape(real)}(?![^/\s:'\",;])", rf"\g<1>{stand_in}", text)
                if real in self._anywhere:
                    text = _word(real).sub(stand_in, text)
        return text

    def _by_length(self) -> Iterable[tuple[str, str]]:
        return sorted(self._stand_ins.items(), key=lambda item: (-len(item[0]), item[0]))


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])")
