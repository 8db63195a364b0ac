"""The optimizer: AdamW over named parameters, the gradients' norm and sums, the learning rate over a run.

torch's own optimizers import the compiler
(`torch._dynamo`, sympy) when the first one is built: 2.7 s measured on two cores with torch 2.13, half of a short run,
for nothing that is used here.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer.distributed import home, is_sharded, like, local, put, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

_MOMENTS = ("first", "second", "master")


@dataclass(slots=True)
class Optimizer:
    """The parameters that learn, by name, and how often they were moved.

    Of sharded parameters each rank moves its own rows; the bound on the gradients' norm is over all of them.
    """

    parameters: dict[str, nn.Parameter]
    adamw: AdamW  # of this rank's rows
    add: Callable[[Tensor], Tensor] | None = None  # over the ranks that share the rows; None: nothing is sharded
    # Steps left out for a gradient that is not finite count too, also for the bias correction (torch: not for that).
    optimizer_steps: int = 0

    @classmethod
    def start(
        cls,
        named: Iterable[tuple[str, nn.Parameter]],
        *,
        weight_decay: float,
        add: Callable[[Tensor], Tensor] | None = None,
    ) -> Optimizer:
        """A new optimizer of the parameters that require a gradient. `add` is used if they are sharded."""
        parameters = {name: each for name, each in named if each.requires_grad}
        own = {name: local(each) for name, each in parameters.items()}
        adamw = AdamW.start(own, weight_decay=weight_decay)
        shared = next((each for each in parameters.values() if is_sharded(each)), None)
        if add is None or shared is None:
            return cls(parameters, adamw)
        place, over_ranks = home(shared), add
        return cls(parameters, adamw, lambda own: over_ranks(own.to(place)))

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @contextmanager
    def accumulating(self, num_passes: int) -> Iterator[None]:
        """Accumulates gradients of fewer than 32 bits in float32 during the block, if several passes contribute.

        Each contribution is added as soon as it is computed, so between two passes only the sums are stored, 4 bytes
        per number; at the end they are rounded once. Accumulated in bfloat16 the gradients of 512 rows were 7 % off.
        """
        sums: dict[str, Tensor] = {}

        def take(name: str, parameter: Tensor) -> None:
            share = parameter.grad
            assert share is not None
            sums[name] = sums[name].add_(share) if name in sums else share.float()
            parameter.grad = None

        narrow = {name: self.parameters[name] for name in self.adamw.master} if num_passes > 1 else {}
        hooks = [
            each.register_post_accumulate_grad_hook(partial(take, name))  # type: ignore[no-untyped-call]
            for name, each in narrow.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        for name, each in narrow.items():
            if name in sums:
                each.grad = sums.pop(name).to(each.dtype)

    def step(self, *, lr: float, grad_clip: float) -> float:
        """Moves the parameters by their gradients; gives back the gradients' common norm before it was bounded."""
        leaves = self.parameters if self.add is None else self._leaves()
        norm = clip_grad_norm([each.grad for each in leaves.values()], grad_clip, add=self.add)
        self.optimizer_steps += 1
        # A gradient that is not finite would make every weight NaN: the step is skipped, and the norm shows it.
        if math.isfinite(norm):
            self.adamw.step(leaves, lr=lr, number=self.optimizer_steps)
        return norm

    def _leaves(self) -> dict[str, Tensor]:
        """This rank's rows with those of their gradients, in the memory of both."""
        leaves = {}
        for name, parameter in self.parameters.items():
            leaves[name] = local(parameter).detach()
            leaves[name].grad = None if parameter.grad is None else local(parameter.grad)
        return leaves

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, by reference."""
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {"weights": weights, **self.moments()}

    def moments(self) -> dict[str, Any]:
        """The state without the parameters themselves, by reference; sharded like those."""
        moments = {part: getattr(self.adamw, part) for part in _MOMENTS}
        named = {
            part: {name: like(self.parameters[name], each) for name, each in own.items()}
            for part, own in moments.items()
        }
        return {**named, "updates": self.optimizer_steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `state` gave; copies the values."""
        copy_into({name: parameter.detach() for name, parameter in self.parameters.items()}, state["weights"])
        self.restore_moments(state)

    def restore_moments(self, state: Mapping[str, Any]) -> None:
        """Continues from what `moments` gave; copies the values."""
        for part in _MOMENTS:
            own = getattr(self.adamw, part)
            copy_into(own, {name: rows(self.parameters[name], state[part][name]) for name in own})
        self.optimizer_steps = state["updates"]


@torch.no_grad()
def copy_into(own: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """The given values into the tensors of the same names. Raises KeyError for a name that is not given."""
    for name, tensor in own.items():
        put(tensor, values[name])


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
        weights = [self.master.get(name, parameters[name]) for name in names]
        first, second = [self.first[name] for name in names], [self.second[name] for name in names]
        gradients = [parameters[name].grad.to(self.first[name].dtype) for name in names]  # type: ignore[union-attr]
        correction = (1 - self.beta2**number) ** 0.5
        # All tensors in one call each: a small model spends its step on calls, not on arithmetic.
        if self.weight_decay:
            torch._foreach_mul_(weights, 1 - lr * self.weight_decay)
        torch._foreach_lerp_(first, gradients, 1 - self.beta1)
        torch._foreach_mul_(second, self.beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - self.beta2)
        # The second moment's correction is taken out of the fraction: one pass less.
        widths = torch._foreach_sqrt(second)
        torch._foreach_add_(widths, self.epsilon * correction)
        torch._foreach_addcdiv_(weights, first, widths, value=-lr * correction / (1 - self.beta1**number))
        for name in self.master:
            parameters[name].copy_(self.master[name])


@torch.no_grad()
def clip_grad_norm(
    gradients: Sequence[Tensor | None], largest: float, *, add: Callable[[Tensor], Tensor] | None = None
) -> float:
    """Scales the gradients, in place, to a common norm of at most `largest`; returns the norm before that.

    As torch.nn.utils.clip_grad_norm_ does it, with fewer calls; if the norm is not finite they are left unchanged.
    `add` sums over ranks that hold other rows of the gradients; None: all rows are local.
    """
    present = [each for each in gradients if each is not None]
    norm = 0.0
    if present:
        whole = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(present)))
        norm = float(whole if add is None else add(whole.square()).sqrt())
    if math.isfinite(norm) and norm > largest:
        torch._foreach_mul_(present, largest / (norm + 1e-6))
    return norm


def learning_rate(shape: str, done: int, total: int, *, warmup: int = 0) -> float:
    """The share of the highest rate for the optimizer step after `done` of `total` steps.

    It rises linearly over the first `warmup` steps, then stays (`constant`) or falls to 0 at `total` (`linear`,
    `cosine`). Example: linear, 50 of 100, no warm-up -> 0.5.
    """
    if done < warmup:
        return (done + 1) / warmup
    if shape == "constant":
        return 1.0
    share = min(1.0, (done - warmup) / max(1, total - warmup))
    return 0.5 * (1 + math.cos(math.pi * share)) if shape == "cosine" else 1.0 - share
