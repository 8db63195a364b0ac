"""Functions of `ops` with their backward written out. Without a gradient each is the plain function.

They keep less memory for the way back than autograd would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from trainer.models import ops
from trainer.models.ops import wide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = ops.scales(x, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return ops.normed(x, weight, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        size = x.shape[-1]
        x_wide, gradient, weight_wide = wide(x).reshape(-1, size), wide(gradients[0]).reshape(-1, size), wide(weight)
        scale_N = scale.view(-1)
        inner = gradient * x_wide
        to_weight = torch.mv(inner.t(), scale_N).to(weight.dtype) if ctx.needs_input_grad[1] else None
        share_N1 = torch.mv(inner, weight_wide).mul_(scale_N.pow(3)).div_(size).unsqueeze(1)
        to_x = (
            torch.mul(gradient, weight_wide, out=inner).mul_(scale_N.unsqueeze(1)).addcmul_(x_wide, share_N1, value=-1)
        )
        return to_x.to(x.dtype).view(x.shape), to_weight, None


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`ops.norm`, which keeps one number a row for the way back."""
    if not torch.is_grad_enabled():
        return ops.norm(x, weight, epsilon)
    return _Norm.apply(x, weight, epsilon)  # type: ignore[no-any-return, no-untyped-call]


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return ops.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        # autograd rounds to the dtypes of x, weight and bias
        gradient, x, weight = ops.factors(gradients[0], *ctx.saved_tensors)
        rows = gradient.flatten(0, -2)
        to_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return gradient @ weight, to_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`ops.linear`, which keeps no float32 copies for the way back."""
    if not torch.is_grad_enabled() or not ops.is_widened(x):
        return ops.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _Mlp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
        gate, up = ops.linear(x, gate_weight), ops.linear(x, up_weight)
        ctx.save_for_backward(x, gate, up, gate_weight, up_weight, down_weight)
        return ops.linear(functional.silu(gate).mul_(up), down_weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        gradient, x, gate, up, gate_weight, up_weight, down_weight = ops.factors(
            gradients[0].contiguous(), *ctx.saved_tensors
        )
        activated, to_middle = functional.silu(gate), gradient @ down_weight
        to_up = to_middle * activated
        to_down = gradient.t() @ activated.mul_(up) if ctx.needs_input_grad[3] else None
        to_gate = torch.ops.aten.silu_backward(to_middle.mul_(up), gate)
        to_x = to_gate @ gate_weight
        torch.addmm(to_x, to_up, up_weight, out=to_x)
        if not ctx.needs_input_grad[1]:
            return to_x, None, None, to_down
        return to_x, to_gate.t() @ x, to_up.t() @ x, to_down


def mlp(x_NH: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
    """`ops.mlp`, which keeps two tensors for the way back where autograd would keep four."""
    if not torch.is_grad_enabled():
        return ops.mlp(x_NH, gate_weight, up_weight, down_weight)
    return _Mlp.apply(x_NH, gate_weight, up_weight, down_weight)  # type: ignore[no-any-return, no-untyped-call]


class _TokenLogprobs(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        source: Tensor,
        target: Tensor,
        params: ops.SamplingParams,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = ops.token_logprobs(hidden, weight, source, target, params, with_entropy)
        ctx.save_for_backward(hidden, weight, source, target, entropies)
        ctx.params, ctx.with_entropy = params, with_entropy
        return logprobs, entropies[source] if with_entropy else entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, source, target, entropy = ctx.saved_tensors
        to_own, to_entropy = gradients
        sums = to_own.new_zeros(len(hidden)).index_add_(0, source, to_own)
        if ctx.with_entropy:
            to_entropies = torch.zeros_like(sums).index_add_(0, source, to_entropy)
            # -p (sum + bend (log p + H)), as one factor per row and one per log p
            sums.addcmul_(to_entropies, entropy)
        (wide_weight,), to_hidden, to_weight = ops.factors(weight), None, None
        for rows, picks in ops.logit_parts(hidden, weight, source):
            inner = source[picks] - rows.start
            logs = ops.truncated_log_softmax(hidden[rows], wide_weight, inner, target[picks], ctx.params)
            factor = -sums[rows, None]
            if ctx.with_entropy:
                factor = torch.addcmul(factor, logs, to_entropies[rows, None], value=-1)
            to_logits = logs.exp_().mul_(factor)
            to_logits.index_put_((inner, target[picks]), to_own[picks], accumulate=True)
            narrow = (to_logits if ctx.params[0] == 1.0 else to_logits.div_(ctx.params[0])).to(weight.dtype)
            if len(narrow) == len(hidden):
                to_hidden = ops.product(narrow, wide_weight)
            else:
                to_hidden = torch.empty_like(hidden) if to_hidden is None else to_hidden
                to_hidden[rows] = ops.product(narrow, wide_weight)
            if ctx.needs_input_grad[1]:
                share = ops.product(narrow.t(), hidden[rows])
                to_weight = wide(share) if to_weight is None else to_weight.add_(share)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None, None


def token_logprobs(
    hidden_MH: Tensor,
    weight_VH: Tensor,
    *,
    source_C: Tensor,
    target_C: Tensor,
    temperature: float,
    with_entropy: bool,
    with_sum_pi_squared: bool = False,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[Tensor, Tensor]:
    """`ops.token_logprobs`, with the statistic of each target's row [C]; the logits are made again on the way back.

    `with_sum_pi_squared` is without a gradient.
    The weight's gradient is summed over those parts in float32 at least, which takes V x H x 4 bytes once: in bfloat16
    a sum of 1213 parts was 5 to 63 % wrong, and this one 0.3 to 0.4 % (against float64).
    """
    if top_p < 1 or top_k:
        # A token that was sampled is in its own distribution, and not in those of other answers with the same prompt.
        hidden_MH, source_C = hidden_MH.index_select(0, source_C), torch.arange(len(source_C), device=source_C.device)
    params = temperature, top_p, top_k
    if not torch.is_grad_enabled():
        logprobs_C, statistics = ops.token_logprobs(
            hidden_MH, weight_VH, source_C, target_C, params, with_entropy, with_sum_pi_squared
        )
        return logprobs_C, statistics[source_C] if with_entropy or with_sum_pi_squared else statistics
    return _TokenLogprobs.apply(  # type: ignore[no-any-return, no-untyped-call]
        hidden_MH, weight_VH, source_C, target_C, params, with_entropy
    )


class _Again(Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        return run(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            start = x.detach().requires_grad_(ctx.needs_input_grad[1])
            output = ctx.run(start)
            # Handing the gradient over as `grad_outputs` would import sympy (torch 2.13); this sum has the same effect.
            share = (output * gradients[0]).sum()
        inputs = [each for each in (start, *parameters) if each.requires_grad]
        grads = iter(torch.autograd.grad(share, inputs, allow_unused=True))
        return (None, *(next(grads) if each.requires_grad else None for each in (start, *parameters)))


def checkpoint(run: Callable[[Tensor], Tensor], x: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """`run(x)`, saving only x: it is recomputed in backward.

    `parameters` are all the weights that `run` uses. torch's own checkpointing imports its compiler (2.7 s).
    """
    return _Again.apply(run, x, *parameters)  # type: ignore[no-any-return, no-untyped-call]
