"""The decoder's building blocks. Norm, MLP and output layer have their gradients written out, to keep less memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Logits held at once, as numbers: rows of the output layer are taken in parts of about this size.
LOGITS_AT_ONCE = 1 << 22


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scales(x_NH: Tensor, epsilon: float) -> Tensor:
    """[N, 1]: one over the root of each row's mean square, in float32 at least; one pass over the rows."""
    kind = torch.promote_types(x_NH.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(x_NH, dim=-1, keepdim=True, dtype=kind)
    return lengths.square_().div_(x_NH.shape[-1]).add_(epsilon).rsqrt_()


def _normed(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x * scale).to(x.dtype).mul_(weight)


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = _scales(x, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return _normed(x, weight, scale)

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
    """RMSNorm over the last axis; the mean square in float32 at least."""
    if not torch.is_grad_enabled():
        return _normed(x, weight, _scales(x, epsilon))
    return _Norm.apply(x, weight, epsilon)  # type: ignore[no-any-return, no-untyped-call]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The vectors turned by their position's angles; the two halves of the last axis are each plane's coordinates."""
    half = x.shape[-1] // 2
    rotated = torch.mul(x, cos, out=out)
    rotated[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return rotated


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `apply_rotary`, also on the way to a gradient."""
    if not torch.is_grad_enabled():
        return apply_rotary(x, cos, sin)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class _Mlp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
        gate, up = functional.linear(x, gate_weight), functional.linear(x, up_weight)
        ctx.save_for_backward(x, gate, up, gate_weight, up_weight, down_weight)
        return functional.linear(functional.silu(gate).mul_(up), down_weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, gate, up, gate_weight, up_weight, down_weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        activated, to_middle = functional.silu(gate), gradient @ down_weight
        to_up = to_middle * activated
        to_down = gradient.t() @ activated.mul_(up) if ctx.needs_input_grad[3] else None
        to_gate = torch.ops.aten.silu_backward(to_middle.mul_(up), gate)
        to_x = (to_gate @ gate_weight).addmm_(to_up, up_weight)
        if not ctx.needs_input_grad[1]:
            return to_x, None, None, to_down
        return to_x, to_gate.t() @ x, to_up.t() @ x, to_down


def mlp(x_NH: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x)), which keeps two tensors for the way back where autograd would keep four."""
    if not torch.is_grad_enabled():
        opened = functional.silu(functional.linear(x_NH, gate_weight))
        return functional.linear(opened.mul_(functional.linear(x_NH, up_weight)), down_weight)
    return _Mlp.apply(x_NH, gate_weight, up_weight, down_weight)  # type: ignore[no-any-return, no-untyped-call]


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


class _TokenLogprobs(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        source: Tensor,
        target: Tensor,
        drawn: Drawn,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = _each_chance(hidden, weight, source, target, drawn, with_entropy)
        ctx.save_for_backward(hidden, weight, source, target, entropies)
        ctx.drawn, ctx.with_entropy = drawn, with_entropy
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
        to_hidden, to_weight = None, None
        for rows, picks in _parts(hidden, weight, source):
            logs = _log_chances(hidden[rows], weight, source[picks] - rows.start, target[picks], ctx.drawn)
            factor = -sums[rows, None]
            if ctx.with_entropy:
                factor = torch.addcmul(factor, logs, to_entropies[rows, None], value=-1)
            to_logits = logs.exp_().mul_(factor)
            to_logits.index_put_((source[picks] - rows.start, target[picks]), to_own[picks], accumulate=True)
            narrow = (to_logits if ctx.drawn[0] == 1.0 else to_logits.div_(ctx.drawn[0])).to(weight.dtype)
            if len(narrow) == len(hidden):
                to_hidden = narrow @ weight
            else:
                to_hidden = torch.empty_like(hidden) if to_hidden is None else to_hidden
                to_hidden[rows] = narrow @ weight
            if ctx.needs_input_grad[1]:
                share = narrow.t() @ hidden[rows]
                to_weight = wide(share) if to_weight is None else to_weight.add_(share)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None, None


def _each_chance(
    hidden: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    drawn: Drawn,
    with_entropy: bool,
    with_sum_pi_squared: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [C], and the rows' entropies or sums of squared probabilities [M]; without either zeros [C]."""
    own, statistics = [], []
    for rows, picks in _parts(hidden, weight, source):
        logs = _log_chances(hidden[rows], weight, source[picks] - rows.start, target[picks], drawn)
        own.append(logs[source[picks] - rows.start, target[picks]])
        if with_sum_pi_squared:
            statistics.append(logs.mul_(2).exp_().sum(-1))
        elif with_entropy:
            statistics.append(torch.exp(logs).mul_(logs).sum(-1).neg_())
    logprobs = own[0] if len(own) == 1 else torch.cat(own)
    return logprobs, torch.cat(statistics) if statistics else torch.zeros_like(logprobs)


Drawn = tuple[float, float, int]  # temperature, top_p, top_k
# In the place of the logit of a token that is not drawn: finite, so that 0 times it is 0.
_NEVER = -1e30


def _log_chances(hidden: Tensor, weight: Tensor, rows: Tensor, targets: Tensor, drawn: Drawn) -> Tensor:
    """Log-probabilities of all tokens, in float32 at least; the targets of the rows always count as drawn.

    Answers to one prompt share the row of their first token: there the first tokens of all of them count as drawn.
    """
    temperature, top_p, top_k = drawn
    logits = wide(hidden @ weight.t())
    logits = logits if temperature == 1.0 else logits.div_(temperature)
    if top_p < 1 or top_k:
        is_drawn = among_likeliest(logits, top_p, top_k)
        is_drawn[rows, targets] = True
        logits.masked_fill_(~is_drawn, _NEVER)
    return torch.log_softmax(logits, dim=-1)


def among_likeliest(logits_RV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Which tokens are among the `top_k` likeliest (0: all), and of these among the fewest with a share of `top_p`.

    Source: vllm v1/sample/ops/topk_topp_sampler.py, transformers' TopKLogitsWarper and TopPLogitsWarper.
    Example: probabilities 0.5, 0.3, 0.2 with top_p 0.6 -> the first two
    """
    is_drawn = torch.ones_like(logits_RV, dtype=torch.bool)
    if 0 < top_k < logits_RV.shape[1]:
        is_drawn = logits_RV >= logits_RV.topk(top_k, dim=1).values[:, -1:]
    if top_p < 1:
        rising, places = logits_RV.masked_fill(~is_drawn, -torch.inf).sort(dim=1)
        is_left_out = rising.softmax(dim=1).cumsum(dim=1) <= 1 - top_p
        is_left_out[:, -1] = False
        is_drawn &= ~is_left_out.scatter(1, places, is_left_out)
    return is_drawn


def drawn_logprobs(logits_RV: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """The log-probability of each token of being drawn."""
    logits_RV = logits_RV if temperature == 1.0 else logits_RV / temperature
    if top_p < 1 or top_k:
        logits_RV = logits_RV.masked_fill(~among_likeliest(logits_RV, top_p, top_k), _NEVER)
    return torch.log_softmax(logits_RV, dim=-1)


def _parts(hidden: Tensor, weight: Tensor, source: Tensor) -> list[tuple[slice, slice]]:
    """Rows of the hidden states, and the targets that they predict."""
    size = max(1, LOGITS_AT_ONCE // len(weight))
    bounds = [*range(0, len(hidden), size), len(hidden)]
    if len(bounds) <= 2:
        return [(slice(0, len(hidden)), slice(0, len(source)))]
    places = torch.searchsorted(source, torch.tensor(bounds, device=source.device)).tolist()
    return [(slice(bounds[at], bounds[at + 1]), slice(places[at], places[at + 1])) for at in range(len(bounds) - 1)]


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
    """Log-probability of each target under the output layer's row `source_C` (rising), and a statistic of that row [C].

    The statistic is the entropy or, with `with_sum_pi_squared` and without gradient, the sum of squared probabilities;
    0 without either. With `top_p` or `top_k` of the distribution over the tokens that may be drawn, which the target
    belongs to in any case.

    Never holds more logits than a few million: they are made again on the way back.
    The weight's gradient is summed over those parts in float32 at least, which takes V x H x 4 bytes once: in bfloat16
    a sum of 1213 parts was 5 to 63 % wrong, and this one 0.3 to 0.4 % (against float64).
    """
    drawn = temperature, top_p, top_k
    if not torch.is_grad_enabled():
        logprobs_C, statistics = _each_chance(
            hidden_MH, weight_VH, source_C, target_C, drawn, with_entropy, with_sum_pi_squared
        )
        return logprobs_C, statistics[source_C] if with_entropy or with_sum_pi_squared else statistics
    return _TokenLogprobs.apply(  # type: ignore[no-any-return, no-untyped-call]
        hidden_MH, weight_VH, source_C, target_C, drawn, with_entropy
    )
