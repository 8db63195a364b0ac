"""AdamW, with its state in plain sight.

torch's own optimizers import the compiler (`torch._dynamo`, sympy) when the first one is built: 2.7 s measured on two
cores with torch 2.13, half of a short run, for nothing that is used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam's first and second moment for each named parameter, and how often they were moved; changed in place."""

    first: dict[str, Tensor]
    second: dict[str, Tensor]
    weight_decay: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @classmethod
    def start(cls, parameters: Mapping[str, Tensor], *, weight_decay: float) -> AdamW:
        """Both moments at 0."""
        first = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        second = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        return cls(first, second, weight_decay)

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], *, lr: float, number: int) -> None:
        """Moves each parameter against its gradient; `number` counts from 1 and corrects the start at 0.

        Source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2; the order of operations
        is that of torch.optim.AdamW.
        """
        size = lr / (1 - self.beta1**number)
        correction = (1 - self.beta2**number) ** 0.5
        for name, parameter in parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if self.weight_decay:
                parameter.mul_(1 - lr * self.weight_decay)
            first = self.first[name].lerp_(gradient, 1 - self.beta1)
            second = self.second[name].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
            parameter.addcdiv_(first, second.sqrt().div_(correction).add_(self.epsilon), value=-size)
