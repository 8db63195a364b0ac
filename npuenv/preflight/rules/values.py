"""Rules about single values, from rows of the matrix, and notes about what was not judged: releases, open values.

The frameworks accept most of these without a word and stop, or train something else, later.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

from npuenv.matrix import load_matrix
from npuenv.matrix.keys import known_releases, nearest_release, releases_beside
from npuenv.preflight.rules.base import BOTH, KEEP, as_number, is_at_least, matching, nearest, problem, rule, value
from npuenv.preflight.rules.keys import TABLE, has_own_keys, not_in_table
from npuenv.preflight.yaml_text import scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.core.finding import Severity
    from npuenv.matrix.rows import Bound, Choice, RefusedValue
    from npuenv.preflight.rules.base import Problem
    from npuenv.preflight.types import Launch, LaunchSetting


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
        elif isinstance(default, (int, float)) and setting.value[:1].isalpha():  # 0.5_4.0 is a range to one key
            yield problem(key, says="not-a-number", default=default)


def _is_within(row: Bound, written: object) -> bool:
    if isinstance(written, (list, dict)):
        return True
    found = as_number(written)
    if found is None or (row.kind == "whole" and found != int(found)):
        return False
    if found in row.also:
        return True
    return found > row.above and row.least <= found <= row.most


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
