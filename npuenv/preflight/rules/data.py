"""Rules about data and rewards: files and columns that are not there, rewards that cannot be called or run any code.

Files are looked at only where the launch is to run on this machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.files import read_bytes
from npuenv.preflight import limits
from npuenv.preflight.rules.base import KEEP, is_true, matching, problem, rule, value
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.rules.base import Problem
    from npuenv.preflight.types import Launch

_FILES = ("data.train_files", "data.val_files")
_PATHS = (
    "custom_reward_function.path",
    "reward.custom_reward_function.path",
    "actor_rollout_ref.model.path",
    "critic.model.path",
)
_ROLL_FILES = ("actor_train.data_args.file_name", "validation.data_args.file_name")
_REWARDS = ("custom_reward_function", "reward.custom_reward_function")
_MOST_FOOTER = 1 << 24  # bytes; a footer above this is no footer
_COLUMNS = ("prompt", "data_source", "reward_model")
_DATASET = "verl wheels 0.5.0 to 0.9.1: verl/utils/dataset/rl_dataset.py"
_MANAGERS = "verl wheels 0.7.1, 0.9.1: reward managers pass data_source and extra_info"
_SANDBOX = "alibaba/ROLL roll/pipeline/rlvr/rlvr_config.py: use_local; ROLL samples, sample 3"
_PRIME = "verl wheels: verl/utils/reward_score/prime_code runs answers in local processes"
_OWN_SCORES = re.compile(r"verl/utils/reward_score/(?!__init__)\w+\.py$")


def _written_paths(launch: Launch) -> Iterator[tuple[str, str]]:
    """The keys with paths of this machine, rather than a model's name or an address."""
    for key in (*_FILES, *_PATHS, *_ROLL_FILES, "pretrain", "reward_pretrain"):
        setting = launch.settings.get(key)
        if setting is not None and not setting.is_open:
            for path in setting.value if isinstance(setting.value, (list, tuple)) else (setting.value,):
                if isinstance(path, str) and path.startswith(("/", "~", "./", "../")) and "${" not in path:
                    yield key, path


@rule("path", source="looked at on this machine")
def _missing(launch: Launch) -> Iterator[Problem]:
    for key, path in _written_paths(launch) if launch.machine.is_here else ():
        if not os.path.exists(os.path.expanduser(path)):
            yield problem(key, path=path)


@rule("columns", "verl", source=f"{_DATASET}; the reward reads them later")
def _columns(launch: Launch) -> Iterator[Problem]:
    for key, path in _written_paths(launch) if launch.machine.is_here else ():
        if key not in _FILES or not path.endswith(".parquet"):
            continue
        footer = _footer(Path(path).expanduser())
        missing = tuple(name for name in _COLUMNS if footer and name.encode() not in footer)
        if missing:
            yield problem(key, path=path, missing=missing)


def _footer(path: Path) -> bytes:
    """The part of a parquet file that names its columns; empty where there is none.

    Source: Apache Parquet file format: the last 8 bytes are the footer's length and PAR1.
    """
    try:
        with path.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            tail = file.read(8)
            length = int.from_bytes(tail[:4], "little")
            if tail[4:] != b"PAR1" or not 0 < length < _MOST_FOOTER:
                return b""
            file.seek(-8 - length, os.SEEK_END)
            return file.read(length)
    except OSError:
        return b""


@rule("reward-function", "verl", source=_MANAGERS)
def _reward_function(launch: Launch) -> Iterator[Problem]:
    """A function of verl's own takes (solution, truth); reward managers call with data_source and extra_info."""
    for base in _REWARDS:
        key = f"{base}.path"
        path = value(launch, key)
        if isinstance(path, str) and key in launch.settings and _OWN_SCORES.search(path):
            changes = [Change(each, None) for each in (key, f"{base}.name") if each in launch.settings]
            yield problem(key, f"{base}.name", changes=changes, path=path)


@rule("reward-signature", "verl", source=_MANAGERS)
def _reward_signature(launch: Launch) -> Iterator[Problem]:
    """The user's own function, read and never run."""
    for base in _REWARDS if launch.machine.is_here else ():
        path, name = value(launch, f"{base}.path"), value(launch, f"{base}.name", "compute_score") or "compute_score"
        if not isinstance(path, str) or f"{base}.path" not in launch.settings or _OWN_SCORES.search(path):
            continue
        lacks = _lacking(Path(path).expanduser(), str(name))
        if lacks:
            yield problem(f"{base}.path", f"{base}.name", name=name, missing=lacks)


def _lacking(path: Path, name: str) -> tuple[str, ...]:
    """The arguments that a function in a file does not take; the function's name where it is not there."""
    import ast

    try:
        tree = ast.parse(read_bytes(path, limits.BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # of whatever file the launch names
        return ()
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if name not in functions:
        imports = (node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
        bound = {alias.asname or alias.name for node in imports for alias in node.names}
        targets = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
        bound |= {target.id for target in targets if isinstance(target, ast.Name)}
        return () if {name, "*"} & bound else (name,)
    arguments = functions[name].args
    takes = {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
    passed = ("data_source", "solution_str", "ground_truth", "extra_info")
    return () if arguments.kwarg else tuple(each for each in passed if each not in takes)


@rule("code-reward", "roll", source=_SANDBOX, severity="warning")
def _roll_code(launch: Launch) -> Iterator[Problem]:
    """`use_local` is true unless it is written."""
    for setting in matching(launch, "rewards.*.worker_cls"):
        base = setting.key.removesuffix(".worker_cls")
        key = f"{base}.use_local"
        if "codesandbox" in str(setting.value).casefold() and is_true(launch, key, default=True):
            to = False if value(launch, f"{base}.code_url") else KEEP
            yield problem(key, setting.key, to=to, reward=base)


@rule("code-reward", "verl", source=_PRIME, severity="warning")
def _verl_code(launch: Launch) -> Iterator[Problem]:
    for base, sandbox in (
        ("reward_model.reward_manager", "sandbox_fusion.url"),
        ("reward.reward_manager.name", "reward.sandbox_fusion.url"),
    ):
        is_local = not launch.is_open(sandbox) and not value(launch, sandbox)
        if value(launch, base) == "prime" and base in launch.settings and is_local:
            yield problem(base, reward=base)
