"""Which cards train, which generate, and whether a run fits into their memory.

Everything is computed from the model's shape and the job's sizes; nothing is measured, and no card is looked at.
"""

from __future__ import annotations

from npuenv.preflight.memory.planning import estimate, plan
from npuenv.preflight.memory.types import find_model, model_from

__all__ = ["estimate", "find_model", "model_from", "plan"]
