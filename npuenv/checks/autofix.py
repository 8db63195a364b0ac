"""Decides which fixes `doctor --fix` may run: those that only change packages of an environment.

One rule for all checks instead of a flag in each: a fix is automatic if each of its commands is a pip or uv command
that installs or removes named packages in the inspected environment, and none of them could fetch gigabytes of CUDA or
start a build. The distribution's own Python is never changed: its packages belong to the system's tools.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.checks.base import Context
    from npuenv.core.finding import Fix
    from npuenv.facts.python.interpreter import Python

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[\w,.-]+\])?((?:[=<>!~]=?=?[\w.*+!-]+,?)*)"
)
_OF_THE_SYSTEM = ("/usr", "/")  # a Python built into /usr/local, as in the CANN images, is the user's own
_SWITCHES = frozenset({"-y", "--force-reinstall", "--no-deps", "--upgrade", "-U"})
_WITH_VALUE = frozenset({"--extra-index-url"})
# Built for the machine from source, with settings that a plain command lacks.
_BUILT = frozenset({"vllm", "vllm-ascend", "sgl-kernel-npu", "apex", "megatron-core", "mindspeed"})
# Their fixes are proposals: they may help one package and break another.
_JUDGED_BY_A_PERSON = frozenset({"python.requirements", "python.unsupported"})
_BESIDE_TORCH = frozenset({"torchvision", "torchaudio"})  # these install a torch of their own unless prevented


def mark_automatic(fix: Fix | None, context: Context, check: str = "") -> Fix | None:
    """The fix, marked as automatic with its undo if the rule allows it; else unchanged.

    The undo restores the present versions of the named packages; other packages that an installation added stay.
    """
    python = context.facts.python.interpreter.value
    if fix is None or python is None or python.prefix in _OF_THE_SYSTEM or fix.is_automatic or not fix.commands:
        return fix
    if fix.is_dangerous or fix.needs_root or check in _JUDGED_BY_A_PERSON:
        return fix
    touched: dict[str, None] = {}
    for argv in fix.commands:
        names = _packages(argv, python)
        if names is None:
            return fix
        touched.update(dict.fromkeys(names))
    return replace(fix, is_automatic=True, undo=_undo(fix.commands[0], touched, python))


def _packages(argv: Sequence[str], python: Python) -> tuple[str, ...] | None:
    """The packages that a command installs or removes; None for any other command."""
    head = _head(argv, python)
    if head is None:
        return None
    verb, words = argv[3] if head[0] != "uv" else argv[2], list(argv[len(head) :])
    names = []
    while words:
        word = words.pop(0)
        if word in _WITH_VALUE and words:
            words.pop(0)
        elif word not in _SWITCHES:
            match = _REQUIREMENT.fullmatch(word)
            name = re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""
            if match is None or (verb == "install" and not _is_harmless(name, match[2], argv)):
                return None
            names.append(name)
    return tuple(names) or None


def _head(argv: Sequence[str], python: Python) -> tuple[str, ...] | None:
    """The arguments before the options of a pip command for the inspected environment."""
    for verb in ("install", "uninstall"):
        for head in ((python.executable, "-m", "pip", verb), ("uv", "pip", verb, "--python", python.executable)):
            if tuple(argv[: len(head)]) == head:
                return head
    return None


def _is_harmless(name: str, spec: str, argv: Sequence[str]) -> bool:
    if name in _BUILT or "None" in spec:  # a version that could not be read
        return False
    if name == "torch":  # without a label it is a CUDA build
        return re.fullmatch(r"==[\w.]+\+cpu", spec) is not None
    return name not in _BESIDE_TORCH or "--no-deps" in argv


def _undo(like: Sequence[str], touched: Mapping[str, None], python: Python) -> tuple[tuple[str, ...], ...]:
    """The commands that restore the packages, with the same program as `like`."""
    here = {name: python.distributions[name] for name in touched if name in python.distributions}
    new = [name for name in touched if name not in here]
    commands = []
    for verb, words in (("uninstall", new), ("install", [f"{name}=={version}" for name, version in here.items()])):
        if not words:
            continue
        head: tuple[str, ...] = (python.executable, "-m", "pip", verb)
        if like[0] == "uv":
            head = ("uv", "pip", verb, "--python", python.executable)
        options = ("--no-deps", "--force-reinstall") if verb == "install" else ("-y",) if like[0] != "uv" else ()
        commands.append((*head, *options, *words))
    return tuple(commands)
