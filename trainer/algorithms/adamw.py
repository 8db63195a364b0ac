"""AdamW, with its state in plain sight.

torch's own optimizers import the compiler (`torch._dynamo`, sympy) when the first one is built: 2.7 s measured on two
cores with torch 2.13, half of a short run, for nothing that is used here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam's first and second moment for each named parameter; changed in place.

    Parameters of fewer than 32 bits have a `master` copy in float32 that is moved in their place: most steps of a
    late learning rate are smaller than half a bfloat16 step, and would be lost.
    """

    first: dict[str, Tensor]
    second: dict[str, Tensor]
    master: dict[str, Tensor]
    weight_decay: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @classmethod
    def start(cls, parameters: Mapping[str, Tensor], *, weight_decay: float) -> AdamW:
        """Both moments at 0."""
        wide = {name: torch.promote_types(each.dtype, torch.float32) for name, each in parameters.items()}
        first = {name: torch.zeros_like(each, dtype=wide[name]).detach() for name, each in parameters.items()}
        second = {name: torch.zeros_like(each) for name, each in first.items()}
        master = {
            name: each.detach().to(wide[name], copy=True)
            for name, each in parameters.items()
            if each.dtype != wide[name]
        }
        return cls(first, second, master, weight_decay)

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], *, lr: float, number: int) -> None:
        """Moves each parameter against its gradient; `number` counts from 1 and corrects the start at 0.

        Source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2, and torch.optim.AdamW.
        """
        names = [name for name, parameter in parameters.items() if parameter.grad is not None]
        if not names:
            return
        moved = [self.master.get(name, parameters[name]) for name in names]
        first, second = [self.first[name] for name in names], [self.second[name] for name in names]
        gradients = [parameters[name].grad.to(self.first[name].dtype) for name in names]  # type: ignore[union-attr]
        correction = (1 - self.beta2**number) ** 0.5
        # All tensors in one call each: a small model spends its step on calls, not on arithmetic.
        if self.weight_decay:
            torch._foreach_mul_(moved, 1 - lr * self.weight_decay)
        torch._foreach_lerp_(first, gradients, 1 - self.beta1)
        torch._foreach_mul_(second, self.beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - self.beta2)
        # The second moment's correction is taken out of the fraction: one pass less.
        widths = torch._foreach_sqrt(second)
        torch._foreach_add_(widths, self.epsilon * correction)
        torch._foreach_addcdiv_(moved, first, widths, value=-lr * correction / (1 - self.beta1**number))
        for name in self.master:
            parameters[name].copy_(self.master[name])


@torch.no_grad()
def clip(gradients: Sequence[Tensor | None], largest: float, *, add: Callable[[Tensor], Tensor] | None = None) -> float:
    """Scales the gradients, in place, to a common norm of at most `largest`; gives back the norm before that.

    As torch.nn.utils.clip_grad_norm_ does it, with fewer calls; where the norm is not finite they stay as they are.
    `add` sums over ranks that hold other rows of the gradients each; None: they are all here.
    """
    present = [each for each in gradients if each is not None]
    norm = 0.0
    if present:
        whole = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(present)))
        norm = float(whole if add is None else add(whole.square()).sqrt())
    if math.isfinite(norm) and norm > largest:
        torch._foreach_mul_(present, largest / (norm + 1e-6))
    return norm
