"""A learner whose parts can be looked at one by one, and ranks that are threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.trainer.trainer_cases import END, PAD, TINY, changed, decoder, group
from trainer.algorithms.advantages import Advantages
from trainer.algorithms.packing import make_batch
from trainer.distributed import World
from trainer.learner import ForwardOutputs, Learner
from trainer.loop import update_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainer.algorithms.update_metrics import UpdateMetrics
    from trainer.models.critic import Critic
    from trainer.types import Batch

# The policy's loss alone: what is left out here is put in by the tests that are about it.
BARE = changed(TINY, dtype="float64", kl_coef=0.0, entropy_coef=0.0, steps=10, grad_clip=1e9, lr=0.0)
GROUPS = [
    group("14=", (5, END), (5, 5, 5), (END,)),
    group("2=", (0, END), (1, END), (END,)),
    group("33=", (4, END), (4, END), (2, END)),
]
REWARDS = torch.tensor([[1.2, -0.7, -0.5], [0.9, -0.4, -0.5], [-1.0, 1.1, -0.1]], dtype=torch.float64)
NUM_TOKENS = 17

SMALL = changed(TINY, steps=2, distractors=0, layers=1)
ADAPTIVE: dict[str, Any] = {
    "kl_coef": 0.1, "kl_in": "reward", "kl": "k1", "kl_controller": "adaptive", "kl_horizon": 100,
    "estimator": "reinforce",
}  # fmt: skip


def batch(*numbers: int) -> Batch:
    chosen = list(numbers or range(3))
    return make_batch([GROUPS[number] for number in chosen], REWARDS[chosen], pad=PAD)


def learner(
    world: World | None = None, critic: Critic | None = None, longest_answer: int | None = None, **changes: object
) -> Learner:
    config = changed(BARE, **changes)
    reference = decoder(config, seed=2) if config.algorithm.kl_coef else None
    parts: dict[str, Any] = {"critic": critic, "world": world, "longest_answer": longest_answer}
    return Learner(decoder(config, seed=1), reference, config, seed=0, **parts)


def by_row(of: Batch) -> Advantages:
    """The rewards as advantages."""
    return Advantages(torch.where(of.mask_BT, of.rewards_B.unsqueeze(1), 0.0), None)


def update(made: Learner, of: Batch, logprobs: ForwardOutputs | None = None) -> UpdateMetrics:
    return update_policy(made, of, logprobs or made.compute_logprobs(of), by_row(of))


def said(made: Learner, of: Batch, temperature: float = 1.0) -> Tensor:
    """The learner's log-probabilities."""
    return made.model.token_logprobs(of, temperature=temperature).logprobs_BT.detach()


def off_policy(made: Learner, of: Batch, log_ratio: float, reference_BT: Tensor | None = None) -> ForwardOutputs:
    """As if the old policy had given every token a probability that is lower by this ratio."""
    return ForwardOutputs(said(made, of) - log_ratio, reference_BT, None)


def by_policy(made: Learner, of: Batch, log_ratio: float = 0.0) -> Batch:
    """The batch as a sampler would have made it that is the learner, but for this ratio."""
    return replace(of, rollout_logprobs_BT=said(made, of) - log_ratio)


def total(of: Batch, positive: float = 1.0, negative: float = 1.0) -> float:
    """The policy loss if each token's advantage counts so many times."""
    rewards = [(float(reward), int(n)) for reward, n in zip(of.rewards_B, of.mask_BT.sum(dim=1), strict=True)]
    return -sum(n * reward * (positive if reward > 0 else negative) for reward, n in rewards) / NUM_TOKENS


# Several ranks: threads, so that no process has to import torch.


class Meeting:
    """Where the ranks put what they give, and take what all have given.

    One of them computes at a time, as a process of its own does: what the trainer keeps in a module is not for threads.
    """

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=240)
        self.computes = threading.Lock()
        self.given: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.computes.release()
        try:
            self.barrier.wait()
            found = list(self.given)
            self.barrier.wait()
        finally:
            self.computes.acquire()
        return found


@dataclass(frozen=True)
class Thread(World):
    """A rank that is a thread of this process."""

    meeting: Meeting

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self.gather(tensor.clone())).sum(dim=0))

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self.gather(tensor.clone())).amax(dim=0))

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self.all_reduce_sum(parameter.grad)

    def gather(self, value: Any) -> list[Any]:
        return self.meeting.exchange(self.rank, value)

    def barrier(self) -> None:
        self.gather(None)


def on_ranks(job: Callable[[World], Any], size: int = 2) -> list[Any]:
    """What each rank's job gave back."""
    meeting, found = Meeting(size), [None] * size

    def work(rank: int) -> None:
        with meeting.computes:
            try:
                found[rank] = job(Thread(rank, size, meeting))
            except BaseException:
                meeting.barrier.abort()
                raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found
