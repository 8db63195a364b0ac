"""Checks the device's arithmetic: products and a small decoder, against float64 on the CPU.

A device whose operators do nothing, or round wrongly, returns tensors of the right shape: only their values show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer import models
from trainer.algorithms.packing import pack
from trainer.config import Config
from trainer.sections import Model, Run
from trainer.stages.stage import Stage
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from trainer.types import Batch

# Rows, inner size, columns: one row (decoding), odd sizes (tails of tiles), a square of several tiles.
SHAPES = ((1, 64, 64), (33, 127, 65), (128, 256, 192))
# Largest error of a product of normal numbers, in units of its own deviation (the root of the inner size). Rounding
# gives 1e-6 in float32, 4e-3 in bfloat16 for its results and 1e-2 where its inputs are rounded too; nonsense gives 1.
TOLERANCES: Mapping[tuple[str, str], float] = {
    ("float64", "highest"): 1e-12,
    ("float32", "highest"): 2e-5,
    ("float32", "high"): 2e-2,
    ("float32", "medium"): 6e-2,
    ("float16", "highest"): 1e-2,
    ("bfloat16", "highest"): 4e-2,
}
# Of the decoder: log-probabilities in nats, and the gradient's distance over its length.
_DECODER_TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.15}
_DECODER = Config(model=Model(layers=1, hidden=32, heads=4, kv_heads=2, intermediate=48), run=Run(dtype="float64"))
_VOCABULARY = 19


def tolerance(dtype: str, precision: str) -> float:
    """The tolerance for a product of this dtype, at the precision that is allowed for float32 products."""
    return TOLERANCES[dtype, precision if dtype == "float32" else "highest"]


def matmul(device: torch.device, dtype: str) -> Stage:
    """Products of several shapes in float32, in bfloat16 and in the run's dtype."""
    precision = torch.get_float32_matmul_precision()
    errors: dict[str, float] = {}
    wrong = ""
    for kind in dict.fromkeys(("float32", "bfloat16", dtype)):
        errors[kind] = max((product_error(device, kind, shape) for shape in SHAPES), key=_badness)
        if not errors[kind] <= tolerance(kind, precision):
            wrong = (
                wrong or f"products in {kind} are off by {errors[kind]:.1e}, allowed are {tolerance(kind, precision):g}"
            )
    measured = {"device": str(device), "precision": precision, "errors": errors, "shapes": [list(s) for s in SHAPES]}
    return Stage(not wrong, wrong or None, measured)


def product_error(device: torch.device, dtype: str, shape: tuple[int, int, int]) -> float:
    """The largest error of one product on the device, over the root of its inner size; NaN for a NaN in it."""
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(rows)
    # Inputs are rounded first, so that the comparison excludes their rounding.
    left, right = (
        torch.randn(size, generator=generator).to(getattr(torch, dtype)) for size in ((rows, inner), (inner, columns))
    )
    found = torch.matmul(left.to(device), right.to(device)).cpu().double()
    return float((found - torch.matmul(left.double(), right.double())).abs().max() / inner**0.5)


def decoder(device: torch.device, dtype: str) -> Stage:
    """Log-probabilities and gradient of a tiny decoder, in the run's dtype there and in float64 on the CPU."""
    expected, gradient = _score(torch.device("cpu"), "float64")
    found, found_gradient = _score(device, dtype)
    far = float((found - expected).abs().max())
    apart = float((found_gradient - gradient).norm() / gradient.norm())
    limit = _DECODER_TOLERANCES[dtype]
    if dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
        limit = _DECODER_TOLERANCES["bfloat16"]
    measured = {"logprob_error": far, "gradient_error": apart, "limit": limit}
    if far <= limit and apart <= limit:
        return Stage(True, None, measured)
    return Stage(False, f"a tiny decoder errs by {far:.1e} nats and by {apart:.1e} of its gradient", measured)


def _score(device: torch.device, dtype: str) -> tuple[Tensor, Tensor]:
    """Log-probabilities and the flat gradient of their mean, both as float64 on the CPU."""
    made = models.build(_DECODER, _VOCABULARY, seed=0, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():  # larger than the start of training: small weights hide errors
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.2)
    made = made.to(getattr(torch, dtype)).to(device)
    batch = _questions(device, torch.promote_types(getattr(torch, dtype), torch.float32))
    logprobs_BT = made.score(batch, temperature=1.0).logprobs_BT
    logprobs_BT.mean().backward()  # type: ignore[no-untyped-call]
    flat = [each.grad.reshape(-1).cpu().double() for each in made.parameters() if each.grad is not None]
    return logprobs_BT.detach().cpu().double(), torch.cat(flat)


def _questions(device: torch.device, dtype: torch.dtype) -> Batch:
    """Two prompts with two answers each, all of different lengths."""
    answers = (((1, 2, 18), (3, 18)), ((4, 5, 6, 18), (7,)))
    prompts = ((0, 11, 5), (9, 2, 4, 11, 8))
    groups = [
        Group(Prompt("", tokens, ""), tuple(Rollout(each, (0.0,) * len(each), Stop.END) for each in said))
        for tokens, said in zip(prompts, answers, strict=True)
    ]
    return pack(groups, torch.zeros(2, 2, dtype=dtype, device=device), pad=17)


def _badness(error: float) -> float:
    """Orders errors with NaN as the worst."""
    return error if error == error else float("inf")
