"""`python -m trainer compare A B`: how far the numbers of two runs are apart, step by step.

A is what is compared with, a run on a GPU say, B the other. Exit codes: 0 within the limits; 1 beyond one; 2 a run
cannot be read, or the two have no step in common. Imports no torch.

The difference of a number is the mean over the common steps of |b - a| / |a|. Limits: 2 % for the loss and 4 % for the
reward between an NPU and a GPU with the same settings (verl, docs/ascend_tutorial/ascend_quick_start, "accuracy
comparison", which names the loss for supervised runs and the reward for GRPO). The loss of a policy gradient passes
through 0, where a share of it means little: the ratio of the sums, sum|b - a| / sum|a|, stands beside it.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import Arguments, BadSetting
from trainer.launch import complain
from trainer.metrics.records import FILE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

SCHEMA = "npuenv.compare/1"
WITHIN, BEYOND, UNUSABLE = 0, 1, 2
LOSS_LIMIT, REWARD_LIMIT = 0.02, 0.04
# Of each the first that both runs have.
_LOSSES = ("actor/loss", "train/loss", "loss")
_REWARDS = ("critic/rewards/mean", "critic/score/mean")
# Clocks and counts of the environment of a run, which say nothing about the computed values.
_NOT_COMPUTED = ("timing_s/", "timing_per_token_ms/", "perf/", "generators/", "learner/idle_s", "wall_s", "step")
_ROWS = 12  # so that the text fits a screen


class UnreadableRun(ValueError):
    """A run that cannot be compared; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one number is apart over the common steps; shares, not percent."""

    name: str
    relative: float  # mean of |b - a| / |a|; infinite if one of the two is not finite, or only a is 0
    of_sums: float  # sum of |b - a| over sum of |a|
    largest: float  # of |b - a|
    steps: int
    mean_a: float
    mean_b: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit and whether the value is within it."""

    name: str
    relative: float
    limit: float
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Run:
    """The compared values of a run."""

    settings: Mapping[str, Any]
    where: Mapping[str, Any]  # device, torch, ...
    steps: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that `compare` found."""

    common_steps: int
    only_a: int  # steps
    only_b: int
    rules: tuple[Rule, ...]
    settings: Mapping[str, tuple[Any, Any]]  # what differs, (a, b)
    where: Mapping[str, tuple[Any, Any]]
    differences: tuple[Difference, ...]  # the largest first

    @property
    def is_within(self) -> bool:
        return all(rule.is_kept for rule in self.rules)


def main(argv: Sequence[str]) -> int:
    """Compares two runs, prints the result, gives back the exit code."""
    try:
        values = _arguments(argv)
        found = compare(read(values.a), read(values.b), loss_limit=values.loss_limit, reward_limit=values.reward_limit)
    except (BadSetting, UnreadableRun) as error:
        return complain(str(error), UNUSABLE)
    code = WITHIN if found.is_within else BEYOND
    if values.json:
        sys.stdout.write(json.dumps(document(found, exit_code=code), indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write("\n".join(lines(found, values.a, values.b)) + "\n")
    return code


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    about = "How far the numbers of run B are from those of run A. Exit 0: within the limits, 1: beyond, 2: unusable."
    parser = Arguments(prog="python -m trainer compare", description=about, allow_abbrev=False)
    parser.add_argument("a", type=Path, metavar="A", help=f"folder of a run, or its {FILE}; what is compared with")
    parser.add_argument("b", type=Path, metavar="B", help="the other one")
    parser.add_argument("--json", action="store_true", help="the whole result as JSON")
    for name, limit in (("loss", LOSS_LIMIT), ("reward", REWARD_LIMIT)):
        about = f"largest mean relative difference of the {name}, a share; default {limit}"
        parser.add_argument(f"--{name}-limit", type=share, default=limit, metavar="SHARE", help=about)
    return parser.parse_args(argv)


def share(text: str) -> float:
    """A finite number from 0 on; its name is part of the error message."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def read(path: Path) -> Run:
    """A run from its folder or record file. Raises UnreadableRun; a last line that was cut off is left out."""
    file = path / FILE if path.is_dir() else path
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRun(f"{file} cannot be read: {error}") from error
    header: Mapping[str, Any] = {}
    end: Mapping[str, Any] = {}
    steps: dict[int, Mapping[str, Any]] = {}
    for number, text in enumerate(texts, start=1):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == len(texts):
                continue
            raise UnreadableRun(f"{file} line {number} is no record: {error}") from error
        if not isinstance(record, dict):
            raise UnreadableRun(f"{file} line {number} is no record: it is a {type(record).__name__}")
        if record.get("kind") == "header":
            header = record
        elif record.get("kind") == "end":
            end = record
        elif record.get("kind") == "step" and isinstance(record.get("step"), int):
            steps[record["step"]] = record
    if not steps:
        raise UnreadableRun(f"{file} holds no step of a run")
    where = {name: header.get(name) for name in ("device", "dtype", "torch", "num_threads", "ranks", "num_parameters")}
    where["status"] = end.get("status", "not ended")
    return Run(header.get("settings") or {}, where, steps)


def compare(a: Run, b: Run, *, loss_limit: float = LOSS_LIMIT, reward_limit: float = REWARD_LIMIT) -> Comparison:
    """The differences of the metrics that both runs have in their common steps.

    Raises UnreadableRun if there are none.
    """
    common = sorted(a.steps.keys() & b.steps.keys())
    if not common:
        raise UnreadableRun("the runs have no step in common")
    pairs = [(a.steps[step], b.steps[step]) for step in common]
    names = [name for name in pairs[0][0] if name in pairs[0][1] and _is_computed(name)]
    found = {name: each for name in names if (each := difference(name, pairs)) is not None}
    rules = [*_rules(found, _LOSSES, loss_limit), *_rules(found, _REWARDS, reward_limit)]
    if not rules:
        raise UnreadableRun("the runs have neither a loss nor a reward in common")
    return Comparison(
        common_steps=len(common),
        only_a=len(a.steps) - len(common),
        only_b=len(b.steps) - len(common),
        rules=tuple(rules),
        differences=tuple(sorted(found.values(), key=lambda each: -each.relative)),
        settings=_unequal(a.settings, b.settings),
        where=_unequal(a.where, b.where),
    )


def _is_computed(name: str) -> bool:
    return not name.startswith(_NOT_COMPUTED) and name != "kind"


def _rules(found: Mapping[str, Difference], names: Sequence[str], limit: float) -> list[Rule]:
    name = next((each for each in names if each in found), None)
    if name is None:
        return []
    relative = found[name].relative
    return [Rule(name, relative, limit, relative <= limit)]


def difference(name: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Difference | None:
    """The difference of one metric; None if a step of either run lacks it.

    Example: a 2 and 4, b 2.2 and 3 -> relative (0.1 + 0.25) / 2, of sums 1.2 / 6.
    """
    values = [(_number(left.get(name)), _number(right.get(name))) for left, right in pairs]
    numbers = [(left, right) for left, right in values if left is not None and right is not None]
    if len(numbers) < len(values):
        return None
    apart = [abs(right - left) for left, right in numbers]
    apart = [each if math.isfinite(each) else math.inf for each in apart]  # two NaN agree on nothing
    shares = [_over(each, abs(left)) for each, (left, _) in zip(apart, numbers, strict=True)]
    count = len(numbers)
    return Difference(
        name=name,
        relative=sum(shares) / count,
        of_sums=_over(sum(apart), sum(abs(left) for left, _ in numbers)),
        largest=max(apart),
        steps=count,
        mean_a=sum(left for left, _ in numbers) / count,
        mean_b=sum(right for _, right in numbers) / count,
    )


def _over(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if 0 < whole < math.inf and part < math.inf else math.inf


def _number(value: object) -> float | None:
    """A number of a record, also from a text for a value that JSON cannot represent."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else None


def _unequal(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*a, *b])
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def lines(found: Comparison, a: Path, b: Path) -> list[str]:
    """The result on one screen."""
    apart = [f"{kind} {name}: {_shown(left)} / {_shown(right)}" for kind, name, left, right in _all_unequal(found)]
    shown = [each for each in found.differences if each.relative > 0]
    width = max((len(each.name) for each in shown[:_ROWS]), default=0)
    table = [
        f"  {each.name:{width}}  {_percent(each.relative):>9}  {_percent(each.of_sums):>9}  "
        f"{each.mean_a:>11.5g}  {each.mean_b:>11.5g}"
        for each in shown[:_ROWS]
    ]
    only = [f", {count} only in {name}" for count, name in ((found.only_a, "A"), (found.only_b, "B")) if count]
    return [
        f"A {a}",
        f"B {b}",
        f"{found.common_steps} steps in common{''.join(only)}",
        *(["the same settings on the same device"] if not apart else ["different, A / B:"]),
        *(f"  {line}" for line in apart[:_ROWS]),
        *([f"  and {len(apart) - _ROWS} more (--json)"] if len(apart) > _ROWS else []),
        *([f"  {'':{width}}  {'relative':>9}  {'of sums':>9}  {'mean of A':>11}  {'mean of B':>11}"] if table else []),
        *table,
        *([f"  and {len(shown) - _ROWS} more (--json)"] if len(shown) > _ROWS else []),
        f"{len(found.differences) - len(shown)} of {len(found.differences)} numbers are equal in every step",
        *(_verdict(rule) for rule in found.rules),
    ]


def _all_unequal(found: Comparison) -> list[tuple[str, str, Any, Any]]:
    groups = (("setting", found.settings), ("run", found.where))
    return [(kind, name, left, right) for kind, group in groups for name, (left, right) in group.items()]


def _shown(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 10 else ">1000 %" if share < math.inf else "no number"


def _verdict(rule: Rule) -> str:
    word = "within" if rule.is_kept else "BEYOND"
    return f"{word} the limit: {rule.name} differs by {_percent(rule.relative)} in the mean, limit {rule.limit:.2%}"


def document(found: Comparison, *, exit_code: int) -> dict[str, Any]:
    """The result as JSON values; what JSON cannot hold as text."""
    from trainer.metrics.records import plain

    head = {"schema": SCHEMA, "exit": exit_code, "is_within": found.is_within}
    result: dict[str, Any] = plain({**head, **asdict(found)})
    return result
