"""Rules about what a launch would run that nobody has read: code that the model wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.preflight.rules.base import is_true, matching, problem, rule, value
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.types import Launch, Problem

_MANAGERS = {
    "reward_model.reward_manager": "sandbox_fusion.url",
    "reward.reward_manager.name": "reward.sandbox_fusion.url",
}


@rule("code-reward", "roll", source="alibaba/ROLL roll/pipeline/rlvr/rlvr_config.py: use_local; ROLL samples, sample 3")
def _roll_code(launch: Launch) -> Iterator[Problem]:
    """`use_local` is true unless it is written."""
    for setting in matching(launch, "rewards.*.worker_cls"):
        base = setting.key.removesuffix(".worker_cls")
        if "codesandbox" in str(setting.value).casefold() and is_true(launch, f"{base}.use_local", default=True):
            changes = (Change(f"{base}.use_local", False),) if value(launch, f"{base}.code_url") else ()
            yield problem(launch, (f"{base}.use_local", setting.key), severity="warning", changes=changes, reward=base)


@rule("code-reward", "verl", source="verl wheels: verl/utils/reward_score/prime_code runs answers in local processes")
def _verl_code(launch: Launch) -> Iterator[Problem]:
    for base, sandbox in (
        ("reward_model.reward_manager", "sandbox_fusion.url"),
        ("reward.reward_manager.name", "reward.sandbox_fusion.url"),
    ):
        is_local = not launch.is_open(sandbox) and not value(launch, sandbox)
        if value(launch, base) == "prime" and base in launch.settings and is_local:
            yield problem(launch, (base,), severity="warning", reward=base)
