"""The places of a batch's tokens in a model: packed for the linear layers, in rectangles for attention.

Packed, the N inputs are the prompts' tokens, each prompt once, then the answers' tokens without each answer's last,
which predicts nothing; padding is left out. For attention they are padded to [P, S] for the prompts and [P, G, T] for
the answers (G the most rows of one prompt, T here one less than the longest answer), unless they already fill them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.types import Batch


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A padded home [*shape] for packed tokens."""

    shape: tuple[int, ...]
    place_N: Tensor | None  # the index of each packed token in the flattened rectangle; None: they fill it in order

    def pad(self, x_NH: Tensor) -> Tensor:
        """[N, ...] -> [*shape, ...], 0 where there is no token."""
        tail = x_NH.shape[1:]
        if self.place_N is None:
            return x_NH.reshape(*self.shape, *tail)  # a view: only the first axis is cut
        empty = x_NH.new_zeros(math.prod(self.shape), *tail)
        return empty.index_copy(0, self.place_N, x_NH).view(*self.shape, *tail)

    def unpad(self, x: Tensor) -> Tensor:
        """[*shape, ...] -> [N, ...]"""
        flat = x.flatten(0, len(self.shape) - 1)
        return flat if self.place_N is None else flat[self.place_N]


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about a batch that is the same in each layer.

    After the last layer only P + A places are left: each prompt's last token, then the answers' tokens.
    """

    tokens_N: Tensor
    positions_N: Tensor
    num_positions: int  # all of them are below
    num_prompt_tokens: int  # the first of the N
    prompts: Rectangle  # [P, S]
    answers: Rectangle  # [P, G, T]; without any element where every answer is a single token
    is_pad_PS: Tensor | None  # true beyond the end of a prompt; None: nowhere
    last_P: Tensor  # packed place of each prompt's last token
    output_M: Tensor  # packed places of the P + A that are left after the last layer
    source_M: Tensor | None  # which of the P + A predict a masked token; None: all
    source_C: Tensor  # per masked token of the answers, which of the M predicts it; rising
    target_C: Tensor  # the token itself
    place_C: Tensor  # its index in the flattened [B, T] of the answers


# The last batch that was laid out: the policy, its reference and a critic look at the same one in turn.
_last: tuple[Batch, Layout] | None = None


def lay_out(batch: Batch) -> Layout:
    """The places of a batch's tokens."""
    global _last
    cached = _last  # read once: another thread may put its own in place
    if cached is None or cached[0] is not batch:
        _last = cached = batch, _lay_out(batch)
    return cached[1]


def _lay_out(batch: Batch) -> Layout:
    num_prompts, length = batch.prompts_PS.shape
    width = batch.tokens_BT.shape[1] - 1
    in_prompt_PS = _until(batch.prompt_lengths_P, length)
    place_S = in_prompt_PS.flatten().nonzero()[:, 0]
    has_pads = len(place_S) < in_prompt_PS.numel()
    row_A, step_A = _until(batch.lengths_B - 1, width).nonzero().unbind(1)
    place_A, shape = _slots(batch.prompt_of_B, num_prompts, width, row_A, step_A)
    starts_B = batch.prompt_lengths_P[batch.prompt_of_B]
    source_M, source_C, place_C = _sources(batch, row_A, step_A)
    last_P = batch.prompt_lengths_P.cumsum(0) - 1
    answers_A = torch.arange(len(place_S), len(place_S) + len(row_A), device=last_P.device)
    return Layout(
        tokens_N=torch.cat((batch.prompts_PS.flatten()[place_S], batch.tokens_BT[row_A, step_A])),
        positions_N=torch.cat((place_S % length, starts_B[row_A] + step_A)),
        num_positions=length + max(width, 0),
        num_prompt_tokens=len(place_S),
        prompts=Rectangle((num_prompts, length), place_S if has_pads else None),
        answers=Rectangle(shape, None if len(place_A) == math.prod(shape) else place_A),
        is_pad_PS=~in_prompt_PS if has_pads else None,
        last_P=last_P,
        output_M=torch.cat((last_P, answers_A)),
        source_M=source_M,
        source_C=source_C,
        target_C=batch.tokens_BT.flatten()[place_C],
        place_C=place_C,
    )


def _until(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def _slots(
    prompt_of_B: Tensor, num_prompts: int, width: int, row_A: Tensor, step_A: Tensor
) -> tuple[Tensor, tuple[int, int, int]]:
    """Each answer token's place in [P, G, T], rows of a prompt next to each other; and that shape."""
    counts_P = torch.bincount(prompt_of_B, minlength=num_prompts)
    size = int(counts_P.max())
    starts_P = counts_P.cumsum(0) - counts_P
    within_B = torch.arange(len(prompt_of_B), device=prompt_of_B.device) - starts_P[prompt_of_B]
    slots_B = prompt_of_B * size + within_B
    return slots_B[row_A] * width + step_A, (num_prompts, size, width)


def _sources(batch: Batch, row_A: Tensor, step_A: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """`source_M`, `source_C` and `place_C` of the layout: first tokens of all rows, then the others row by row."""
    num_prompts, width = len(batch.prompts_PS), batch.tokens_BT.shape[1]
    first_B = batch.mask_BT[:, 0].nonzero()[:, 0]
    later_A = batch.mask_BT[row_A, step_A + 1].nonzero()[:, 0]
    places_A = row_A * width + step_A + 1
    is_all = len(later_A) == len(row_A)
    prompts = torch.arange(num_prompts, device=row_A.device)
    later = torch.arange(num_prompts, num_prompts + len(later_A), device=row_A.device)
    return (
        None if is_all else torch.cat((prompts, later_A + num_prompts)),
        torch.cat((batch.prompt_of_B[first_B], later)),
        torch.cat((first_B * width, places_A if is_all else places_A[later_A])),
    )
