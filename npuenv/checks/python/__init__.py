"""Checks of the target Python and its packages, in the order in which a person would check."""

from __future__ import annotations

from npuenv.checks.python import environment, imports, limits, torch_family, vllm

CHECKS = (
    *environment.CHECKS,
    *environment.FILES,
    *torch_family.TORCH,
    *imports.CHECKS,
    *limits.CHECKS,
    *torch_family.CHECKS,
    *imports.LOADER,
    *vllm.CHECKS,
    *limits.RAY_TOKEN,
)
