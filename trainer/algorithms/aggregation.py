"""Aggregates one number per token to one per optimizer step, so that the parts of a batch add up to the total.

The denominators are counted once, over everything one optimizer step sees on all ranks, and passed in as `Totals`. Each
micro batch returns its share, and the sum of the shares (and of their gradients) does not depend on how the rows were
split, ordered or padded. A mean of means would depend on it, because rows differ in length.

Values where the mask is off are replaced, never multiplied by 0: they may be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.algorithms.conventions import Convention

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


@dataclass(frozen=True, slots=True)
class Totals:
    """The denominators of one optimizer step: counted over all its micro batches and all ranks."""

    num_tokens: Tensor | float  # where the mask is on
    num_rows: Tensor | float  # rows in the mean over rows; whether one without tokens counts is the convention's
    width: int  # tokens of the padded rows
    # What seq-mean-token-sum-norm divides a row by: the tokens that an answer may have. None: the width, which is that
    # only where rows are padded to it.
    scale: float | None = None
    norm_by_rows: bool = True  # seq-mean-token-sum-norm divides by num_rows too


def count(mask_BT: Tensor, convention: Convention, *, scale: float | None = None) -> Totals:
    """The totals of a step whose rows are all in this mask; on several ranks add up num_tokens and num_rows."""
    num_rows: Tensor | float = mask_BT.shape[0] if convention.counts_empty_rows else mask_BT.any(dim=1).sum()
    return Totals(mask_BT.sum(), num_rows, mask_BT.shape[1], scale, convention.norm_by_rows)


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sum where the mask is on; other values have no effect, and no gradient."""
    return torch.where(mask_BT, values_BT, 0.0).sum()


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean where the mask is on; 0 where it is on nowhere."""
    return masked_sum(values_BT, mask_BT) / mask_BT.sum().clamp(min=1)


def aggregate(losses_BT: Tensor, mask_BT: Tensor, mode: str, totals: Totals) -> Tensor:
    """This part's share of the step's loss, a scalar; the shares of all parts add up to the loss.

    token-mean: sum of all tokens over num_tokens (DAPO). seq-mean-token-sum: a row's sum, averaged over rows.
    seq-mean-token-sum-norm: that over `scale` (Dr. GRPO). seq-mean-token-mean: a row's mean, averaged (GRPO).
    Raises ValueError for any other mode. Source: verl core_algos.agg_loss; TRL names them dapo, -, dr_grpo, grpo.
    Example: rows [1, 3] and [5, -] -> token-mean 3, seq-mean-token-sum 4.5, over width 2.25, seq-mean-token-mean 3.5
    """
    kept_BT = torch.where(mask_BT, losses_BT, 0.0)
    if mode == "token-mean":
        return kept_BT.sum() / totals.num_tokens
    if mode == "seq-mean-token-sum":
        return kept_BT.sum() / totals.num_rows
    if mode == "seq-mean-token-sum-norm":
        share = kept_BT.sum() / (totals.width if totals.scale is None else totals.scale)
        return share / totals.num_rows if totals.norm_by_rows else share
    if mode == "seq-mean-token-mean":
        return (kept_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)).sum() / totals.num_rows
    raise ValueError(f"There is no aggregation {mode!r}. Accepted: {', '.join(MODES)}")
