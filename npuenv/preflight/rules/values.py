"""Rules about what single settings hold: values, files and rewards; and notes about what was not judged.

Values are judged by rows of the matrix; not judged are releases and open values. The frameworks accept most wrong
values without a word and stop, or train something else, later. Files are looked at only where the launch is to run on
this machine, and nothing of them is run.
"""

from __future__ import annotations

import functools
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import read_bytes
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import known_releases, nearest_release, releases_beside
from npuenv.preflight.launch import MOST_BYTES, Change
from npuenv.preflight.rules.base import (
    BOTH,
    KEEP,
    as_number,
    is_at_least,
    is_true,
    matching,
    nearest,
    problem,
    rule,
    value,
)
from npuenv.preflight.rules.keys import TABLE, has_own_keys, not_in_table
from npuenv.preflight.yaml_text import scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.core.finding import Severity
    from npuenv.matrix.rows import Bound, Choice, RefusedValue
    from npuenv.preflight.launch import Launch, LaunchSetting
    from npuenv.preflight.rules.base import Problem


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
_SANDBOXES = {  # manager -> address
    "reward_model.reward_manager": "sandbox_fusion.url",
    "reward.reward_manager.name": "reward.sandbox_fusion.url",
}
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
        tree = ast.parse(read_bytes(path, MOST_BYTES))
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
    for base, sandbox in _SANDBOXES.items():
        is_local = not launch.is_open(sandbox) and not value(launch, sandbox)
        if value(launch, base) == "prime" and base in launch.settings and is_local:
            yield problem(base, reward=base)


_MOST_NAMED = 8
_ANYTHING = re.compile(r"(?:^data\.(?:train|val)_files|_name|_dir|_path)$")  # names and places: no rule is about them


@rule("release", severity="note")
def _release(launch: Launch) -> Iterator[Problem]:
    """Says aloud that no release's keys, or those of another one, speak for this one."""
    framework, known = launch.framework, nearest_release(launch.framework, launch.release)
    source = f"npuenv/matrix/keys/{framework}.toml"
    if known is None:
        yield problem(framework=framework, known=known_releases(framework), source=source)
    if launch.checkout is not None:
        path = launch.checkout.checkout
        yield problem(says="release-checkout", source=path, path=path)
    elif known is not None and (launch.release_name or known != launch.release):
        beside, release = releases_beside(framework, launch.release), launch.release_name or launch.release
        yield problem(says="release-near", source=source, framework=framework, release=release, known=beside)


@rule("key-unknown", "verl", source=TABLE, severity="note")
def _keys_unjudged(launch: Launch) -> Iterator[Problem]:
    """Says aloud which keys were left to a program that may have them."""
    unknown = not_in_table(launch) if has_own_keys(launch) else ()
    keys = [each.setting.key for each in unknown if each.setting.is_sure]
    if keys:
        yield problem(says="keys-unjudged", program=launch.program, names=_named(keys))


@rule("undecided", source="the script itself, which is read and not run", severity="note")
def _undecided(launch: Launch) -> Iterator[Problem]:
    """Says aloud what was not judged, because only the running script decides it."""
    written = (*launch.settings.values(), *launch.environ.values())
    undecided = [setting.key for setting in written if setting.is_shells or not setting.is_sure]
    open_keys = [key for key in undecided if not _ANYTHING.search(key)]
    for says, is_so in (("undecided", bool(open_keys)), ("undecided-keys", launch.is_partial)):
        if is_so:
            yield problem(says=says, count=len(open_keys), names=_named(open_keys))


def _named(keys: list[str]) -> tuple[str, ...]:
    return (*keys[:_MOST_NAMED], *(["…"] if len(keys) > _MOST_NAMED else []))


def _refused(rows: Sequence[RefusedValue], launch: Launch) -> Iterator[Problem]:
    """The values that the rows of one rule refuse. The first row that holds speaks of a key."""
    found: dict[str, Problem] = {}
    for row in rows:
        if launch.framework not in row.frameworks or launch.machine.hardware in row.not_on or not _holds(row, launch):
            continue
        for key, text in _written(launch, row):
            if _is_refused(row, text):
                found.setdefault(key, _refusal(launch, row, key, text))
    return iter(found.values())


def _refusal(launch: Launch, row: RefusedValue, key: str, text: str) -> Problem:
    to = KEEP
    if row.removes:
        to = None
    elif row.fix:
        to = row.fix if row.variables else scalar(row.fix)
    args: dict[str, Any] = {"name": text, "value": text, "role": key.partition(".")[0]}
    args |= {"rule": row.rule, "says": row.says, "severity": row.severity, "source": row.source}
    return problem(key, to=to, release=launch.release or "-", **args)


def _written(launch: Launch, row: RefusedValue) -> Iterator[tuple[str, str]]:
    """The keys and variables that a row is about, with what they hold."""
    for name in row.variables:
        if name in launch.environ and not launch.environ[name].is_open:
            yield name, str(launch.environ[name].value).strip()
    for key in row.keys:
        if "*" in key:
            yield from ((each.key, str(each.value)) for each in matching(launch, key))
        elif (found := value(launch, key)) is not None:
            yield key, str(found)


def _is_refused(row: RefusedValue, text: str) -> bool:
    if row.pattern:
        return re.fullmatch(row.pattern, text, re.DOTALL) is not None
    return text in row.values or not row.values


@rule("choice", is_trainers=True)
def _choices(launch: Launch) -> Iterator[Problem]:
    for row in load_matrix().choices:
        if row.framework != launch.framework or not _holds(row, launch):
            continue
        for setting in matching(launch, row.key):
            if setting.value is not None and setting.value not in row.values:
                yield _no_choice(launch, row, setting)


def _holds(row: Choice | RefusedValue, launch: Launch) -> bool:
    """Whether the row is about the launch's release; of an unknown release only rows that hold for all."""
    if launch.release is None:
        return not (row.since or row.until)
    is_from = not row.since or is_at_least(launch, row.since)
    return bool(is_from) and (not row.until or is_at_least(launch, row.until) is False)


def _no_choice(launch: Launch, row: Choice, setting: LaunchSetting) -> Problem:
    near = _meant(str(setting.value), row)
    to = near or (row.values[0] if len(row.values) == 1 else KEEP)
    severity: Severity = "warning" if row.is_open and not near else "error"
    return problem(setting.key, to=to, severity=severity, values=row.values, source=row.source)


def _meant(word: str, row: Choice) -> str | None:
    """The value that a word stands for: another spelling of it, or nearly it."""
    same = {"flash_attention_2": "fa2", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "FSDP": "fsdp"}
    if same.get(word) in row.values:
        return same[word]
    folded = {choice.casefold().replace("-", "_"): choice for choice in row.values}
    return folded.get(word.casefold().replace("-", "_")) or nearest(word, row.values, 0.75)


@rule("number")
def _bounds(launch: Launch) -> Iterator[Problem]:
    for row in load_matrix().bounds:
        keys = (each.partition("=")[0] for each in row.unless)
        if row.framework != launch.framework or any(f"{key}={value(launch, key)}" in row.unless for key in keys):
            continue
        for setting in matching(launch, row.key):
            if setting.value is not None and not (_is_within(row, setting.value) or _is_none(launch, setting)):
                yield problem(setting.key, takes=_takes(row), source=row.source)


def _is_none(launch: Launch, setting: LaunchSetting) -> bool:
    """The fully asynchronous trainer takes samples as they come, and asks for a batch of 0.

    Source: verl wheels 0.7.1, 0.9.1: verl/experimental/fully_async_policy: "train_batch_size must be zero".
    """
    return setting.key == "data.train_batch_size" and setting.value == 0 and "fully_async" in launch.program


@rule("number", "verl", source="npuenv/matrix/keys/verl.toml: the release's own value", is_trainers=True)
def _types(launch: Launch) -> Iterator[Problem]:
    """Words in the place of a number or a switch, by what the release's own value is."""
    bound = {row.key for row in load_matrix().bounds}
    for key, default in launch.defaults.items():
        setting = launch.settings.get(key)
        if key in bound or setting is None or setting.is_open or not isinstance(setting.value, str):
            continue
        if isinstance(default, bool) and setting.value:
            yield problem(key, rule="choice", says="not-a-switch", default=default)
        elif isinstance(default, (int, float)) and setting.value and not _is_number(setting.value):
            yield problem(key, says="not-a-number", default=default)


def _is_number(text: str) -> bool:
    return as_number(text) is not None or re.fullmatch(r"[\d.]+_[\d.]+", text) is not None  # 0.5_4.0: a range


def _is_within(row: Bound, written: object) -> bool:
    if isinstance(written, (list, dict)):
        return True
    found = as_number(written)
    if found is None or (row.kind == "whole" and found != int(found)):
        return False
    return found in row.also or (found > row.above and row.least <= found <= row.most)


def _takes(row: Bound) -> str:
    """The range in signs: 0 < x <= 1."""
    low = f"{row.above:g} < " if row.above > -math.inf else f"{row.least:g} <= " if row.least > -math.inf else ""
    return f"{low}x" + (f" <= {row.most:g}" if row.most < math.inf else "")


def _add_rules_of_rows() -> None:
    """A rule for each id in matrix/keys/refused.toml."""
    rows = load_matrix().refused_values
    for id in dict.fromkeys(row.rule for row in rows):
        own = tuple(row for row in rows if row.rule == id)
        frameworks = tuple(name for name in BOTH if any(name in row.frameworks for row in own))
        rule(id, *frameworks)(functools.partial(_refused, own))


_add_rules_of_rows()
