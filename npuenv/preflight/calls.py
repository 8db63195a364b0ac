"""Which words of a command start a training run of verl or ROLL, and which of them are settings."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERL_MODULE = re.compile(r"(?:verl|recipe)\.(?:\w+\.)*main_(?!eval|generation)\w+")
_VERL_FILE = re.compile(r"(?:.*/)?main_(?!eval|generation)\w+\.py")
_ROLL_FILE = re.compile(r"(?:.*/)?start_\w+_pipeline\.py")
_UNJUDGED_MODULE = re.compile(r"verl\.(?:\w+\.)*(?:\w*sft_trainer\w*|main_eval\w*|main_generation\w*|model_merger)")
_UNJUDGED_FILE = re.compile(r"(?:.*/)?(?:\w*sft_trainer\w*|main_eval\w*|main_generation\w*)\.py")
_STARTER = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)")
_LAUNCHER = re.compile(r"(?:.*/)?(?:torchrun|accelerate|deepspeed|mpirun|mpiexec)|torch\.distributed\.(?:run|launch)")
_FRONT = re.compile(r"[A-Za-z_]\w*=.*|env|exec|nohup|time", re.DOTALL)
_SHELLS = ("bash", "sh", "zsh", "dash")
_VERL_KEY = re.compile(r"(?:\+\+|\+|~)?actor_rollout_ref[.@]")
_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?[A-Za-z_]\w*(?:[.@/][\w@/-]+)+=.*", re.DOTALL)
# Options of Hydra's own command line that take a value.
_VALUED = {
    "--config-dir": "dir",
    "-cd": "dir",
    "--config-name": "name",
    "-cn": "name",
    "--config-path": "path",
    "-cp": "path",
    "--package": "package",
    "-p": "package",
    "--cfg": "cfg",
    "-c": "cfg",
    "--config_path": "path",
    "--config_name": "name",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A command that starts a run."""

    framework: Literal["verl", "roll"]
    overrides: tuple[int, ...]  # positions in the words of `key=value`, from 0
    program: str  # the module or the script
    options: Mapping[str, str] = field(default_factory=dict)  # dir, name, path: how the configuration is found


def find_call(words: Sequence[str]) -> Call | None:
    """The run that some words start; None where they start something else."""
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words) and _VERL_MODULE.fullmatch(words[at + 1]):
            return _call("verl", words, at + 1)
        if at and _ROLL_FILE.fullmatch(word):
            return _call("roll", words, at)
        if at and _VERL_FILE.fullmatch(word) and any(map(_VERL_KEY.match, words[at:])):
            return _call("verl", words, at)
    first = next((at for at, word in enumerate(words) if _VERL_KEY.match(word)), None)
    if not first or posixpath.basename(words[0]) in ("echo", "printf") or unjudged(words) or script_of(words[:first]):
        return None
    if "-m" in words[: first - 1]:
        return _call("verl", words, words.index("-m") + 1)
    while first > 1 and ("=" in words[first - 1] or words[first - 2] in _VALUED):
        first -= 1
    return _call("verl", words, first - 1)


def _call(framework: Literal["verl", "roll"], words: Sequence[str], program: int) -> Call:
    overrides: list[int] = []
    options: dict[str, str] = {}
    at = program + 1
    while at < len(words):
        name, sign, value = words[at].partition("=")
        if name in _VALUED:
            at += 0 if sign else 1
            options[_VALUED[name]] = value if sign else words[at] if at < len(words) else ""
        elif words[at] and not words[at].startswith("-"):
            overrides.append(at)
        at += 1
    return Call(framework, tuple(overrides), words[program], options)


def is_override(word: str) -> bool:
    """Whether a word is a setting of a command that stands somewhere else: no program is called `a.b=1`."""
    return bool(_OVERRIDE.fullmatch(word))


def is_driver(program: str) -> bool:
    """Whether a module or a file is a driver that starts its processes itself, through Ray."""
    return any(known.fullmatch(program) for known in (_VERL_MODULE, _VERL_FILE, _ROLL_FILE))


def module_of(program: str) -> str:
    """The module that a program is, as far as its name says: /src/verl/trainer/main_ppo.py is verl.trainer.main_ppo."""
    if not program.endswith(".py"):
        return program
    parts = program.removesuffix(".py").split("/")
    first = next((at for at in range(len(parts) - 1, -1, -1) if parts[at] in ("verl", "recipe")), len(parts) - 1)
    return ".".join(parts[first:])


def is_launcher(word: str) -> bool:
    """Whether a word starts a program once for each card."""
    return bool(_LAUNCHER.fullmatch(word))


def unjudged(words: Sequence[str]) -> str | None:
    """The program of verl that some words start and that no rule is about: supervised training, evaluation, merging."""
    starter = next((at for at, word in enumerate(words) if _STARTER.fullmatch(word)), len(words))
    for at, word in enumerate(words[starter + 1 :], starter + 1):
        if (words[at - 1] == "-m" and _UNJUDGED_MODULE.fullmatch(word)) or _UNJUDGED_FILE.fullmatch(word):
            return word
    return None


def shell_text(words: Sequence[str]) -> int | None:
    """The position of the text that a shell among some words is to run: `docker exec c bash -lc "..."` gives 5."""
    for at, word in enumerate(words[:-2]):
        if posixpath.basename(word) in _SHELLS and re.fullmatch(r"-[a-z]*c", words[at + 1]):
            return at + 2
    return None


def front(words: Sequence[str]) -> int:
    """How many words stand before the program: variables set for it, and `env`, `exec`, `nohup`, `time`."""
    return next((at for at, word in enumerate(words) if not _FRONT.fullmatch(word)), len(words))


def script_of(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The shell script that a command runs and its arguments: `bash -x run.sh a` gives ("run.sh", ("a",))."""
    rest = list(words[front(words) :])
    if rest and posixpath.basename(rest[0]) in (*_SHELLS, "source", "."):
        rest.pop(0)
        while rest and rest[0].startswith("-") and rest[0] != "-c":
            rest.pop(0)
        return (rest[0], tuple(rest[1:])) if rest and rest[0] != "-c" else None
    return (rest[0], tuple(rest[1:])) if rest and rest[0].endswith(".sh") else None
