"""Estimators, policy losses and aggregations by the names that settings give them.

A row is `MODULE:FUNCTION` in `trainer.algorithms`, which is imported when a run chooses it. Imports no torch: the
settings take their accepted names from here, and the first row of each table is the default.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ESTIMATORS: Mapping[str, str] = {
    "grpo": "advantages:grpo",
    "rloo": "estimators:rloo",
    "reinforce": "estimators:reinforce",
    "reinforce_plus_plus": "estimators:reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "estimators:reinforce_plus_plus_baseline",
    "opo": "estimators:opo",
    "gae": "estimators:gae",
    "maxrl": "estimators:maxrl",
    "grpo_passk": "estimators:grpo_passk",
    "gpg": "estimators:gpg",
    "remax": "estimators:remax",
    "gdpo": "estimators:gdpo",
    "optimal_token_baseline": "estimators:optimal_token_baseline",
}
LOSSES: Mapping[str, str] = {
    "clip": "losses:clip",
    "gspo": "policy_losses:gspo",
    "cispo": "policy_losses:cispo",
    "plain": "policy_losses:plain",
    "gpg": "policy_losses:plain",
    "gmpo": "policy_losses:gmpo",
    "sapo": "policy_losses:sapo",
    "clip_cov": "policy_losses:clip_cov",
    "kl_cov": "policy_losses:kl_cov",
    "dppo_tv": "policy_losses:dppo_tv",
    "dppo_kl": "policy_losses:dppo_kl",
}
# Losses that are averaged in one way whatever the setting; gspo's is in the conventions.
AGGREGATIONS: Mapping[str, str] = {"gmpo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}


def find(table: Mapping[str, str], name: str) -> Callable[..., Any]:
    """The function of a row of `ESTIMATORS` or `LOSSES`."""
    module, _, function = table[name].partition(":")
    found: Callable[..., Any] = getattr(import_module(f"trainer.algorithms.{module}"), function)
    return found
