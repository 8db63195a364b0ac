"""Which cards train, which generate, and whether a run fits into their memory. Start from `estimate` and `plan`.

Everything is computed from the model's shape and the job's sizes; nothing is measured, and no card is looked at.
`find_model` gives the shape, `propose` a job that fits.
"""

from __future__ import annotations

from npuenv.preflight.memory.advice import accumulation
from npuenv.preflight.memory.models import find_model, model_from
from npuenv.preflight.memory.planning import estimate, plan, propose

__all__ = ["accumulation", "estimate", "find_model", "model_from", "plan", "propose"]
