"""Checks of the target Python and its packages, in the order in which a person would check."""

from __future__ import annotations

from npuenv.checks.python.damage import CHECKS as DAMAGE
from npuenv.checks.python.files import CHECKS as FILES
from npuenv.checks.python.imports import CHECKS as IMPORTS
from npuenv.checks.python.interpreter import CHECKS as INTERPRETER
from npuenv.checks.python.limits import CHECKS as LIMITS
from npuenv.checks.python.ray_token import CHECKS as RAY_TOKEN
from npuenv.checks.python.torch_family import CHECKS as TRITON
from npuenv.checks.python.torch_family import TORCH
from npuenv.checks.python.vllm import CHECKS as VLLM

CHECKS = (*INTERPRETER, *DAMAGE, *TORCH, *IMPORTS, *LIMITS, *TRITON, *FILES, *VLLM, *RAY_TOKEN)
