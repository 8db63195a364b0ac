"""Parameters together with the optimizer that moves them: one step, and the state that the next one depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.adamw import AdamW, clip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn

_MOMENTS = ("first", "second", "master")


@dataclass(slots=True)
class Descent:
    """The parameters that learn, by name, and how often they were moved."""

    parameters: dict[str, nn.Parameter]
    optimizer: AdamW
    updates: int = 0  # steps left out for a gradient that is not finite count too

    @classmethod
    def start(cls, named: Iterable[tuple[str, nn.Parameter]], *, weight_decay: float) -> Descent:
        """Of those parameters that want a gradient; nothing done yet."""
        parameters = {name: each for name, each in named if each.requires_grad}
        return cls(parameters, AdamW.start(parameters, weight_decay=weight_decay))

    def clear(self) -> None:
        """Forgets the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def step(self, *, lr: float, grad_clip: float) -> float:
        """Moves the parameters by their gradients; gives back the gradients' common norm before it was bounded."""
        norm = clip([each.grad for each in self.parameters.values()], grad_clip)
        self.updates += 1
        # A gradient that is not finite would make every weight NaN: the step is left out, and the norm tells.
        if math.isfinite(norm):
            self.optimizer.step(self.parameters, lr=lr, number=self.updates)
        return norm

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, by reference."""
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {"weights": weights, **self.moments()}

    def moments(self) -> dict[str, Any]:
        """The state without the parameters themselves, by reference."""
        return {**{part: dict(getattr(self.optimizer, part)) for part in _MOMENTS}, "updates": self.updates}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `state` gave; copies the values."""
        copy_into({name: parameter.detach() for name, parameter in self.parameters.items()}, state["weights"])
        self.restore_moments(state)

    def restore_moments(self, state: Mapping[str, Any]) -> None:
        """Continues from what `moments` gave; copies the values."""
        for part in _MOMENTS:
            copy_into(getattr(self.optimizer, part), state[part])
        self.updates = state["updates"]


@torch.no_grad()
def copy_into(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """The given values into the tensors of the same names. Raises KeyError for a name that is not given."""
    for name, tensor in own.items():
        tensor.copy_(given[name])
