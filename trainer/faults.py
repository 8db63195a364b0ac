"""Ways to break a run on purpose, so that a verdict can be seen to fail.

Each wraps one function of an otherwise unchanged run from outside: of the task (`task`), of the finished trainer
(`install`), of the arithmetic (`arithmetic`), of a generator in another process (`server`).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainer.distributed import is_sharded, local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trainer.engines.engine import Sampling, Tokens
    from trainer.engines.generator_client import Generated
    from trainer.saving import Saved, State
    from trainer.tasks.base import Task
    from trainer.types import Batch, Group, Prompt, Rollout

    ComputeRewards = Callable[[Sequence[Group]], Tensor]
    MakeBatch = Callable[[Sequence[Group], Tensor], Batch]
    Save = Callable[[State, Path], Saved]
    Sync = Callable[[int], None]  # the step after which weights are synced


def task(made: Task, fault: str) -> Task:
    """The task with its reward or its tokenizer broken."""
    wrap: dict[str, Callable[[], Task]] = {
        "constant-reward": lambda: replace(made, reward=half),
        "no-signal": lambda: replace(made, reward=by_prompt),
        "reward-raises": lambda: replace(made, reward=raises),
        "reward-hangs": lambda: replace(made, reward=hangs),
        "no-end-token": lambda: replace(made, tokenizer=TokenizerWithoutEnd(made.tokenizer)),
    }
    return wrap[fault]() if fault in wrap else made


def install(trainer: Any) -> None:
    """Wraps one call of a trainer (`trainer.trainer.Trainer`, whose module is above this one) to inject the fault."""
    fault, learner, rank = trainer.config.run.fault, trainer.learner, trainer.world.rank
    wrap: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
        "lr-zero": (learner, "lr", lambda lr: lambda: 0.0),
        "shuffled-reward": (trainer, "compute_rewards", partial(shuffled, seed=trainer.config.run.seed)),
        "mask-off-by-one": (trainer, "make_batch", off_by_one),
        "zero-advantage": (trainer, "make_batch", unrewarded),
        "stale-sampler": (trainer, "sync_weights", once),
        "stale-weights": (trainer, "sync_weights", once),
        "rank-dies": (trainer, "sync_weights", partial(deadly, rank=rank)),
        "rank-differs": (trainer, "sync_weights", partial(drifting, trainer=trainer)),
        "corrupt-checkpoint": (trainer, "save", partial(corrupted, rank=rank)),
        "full-disk": (trainer, "save", lambda save: full),
    }
    if fault in wrap:
        owner, name, wrapper = wrap[fault]
        setattr(owner, name, wrapper(getattr(owner, name)))
    elif fault == "nan-gradient":
        poison(learner.model.named_parameters())


def deadly(sync_weights: Sync, rank: int) -> Sync:
    """Kills rank 1 before it syncs the weights of the third step, as the kernel does when memory runs out."""

    def sync_or_die(step: int) -> None:
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        sync_weights(step)

    return sync_or_die


def drifting(sync_weights: Sync, trainer: Any) -> Sync:
    """Changes one weight of rank 1 slightly after the second step.

    If the ranks share one copy of the weights, it is one of those that rank 1 samples with.
    """
    learner, rank = trainer.learner, trainer.world.rank

    @torch.no_grad()
    def sync_moved(step: int) -> None:
        if step == 2 and not learner.is_sharded and rank == 1:
            next(iter(learner.model.parameters())).reshape(-1)[0] += 0.001
        sync_weights(step)
        if step == 2 and learner.is_sharded:
            weights = dict(learner.weights())  # of all ranks: it is a collective
            if rank == 1:
                next(iter(weights.values())).reshape(-1)[0] += 0.001
                trainer.engine.load_weights(weights)

    return sync_moved


def server(made: Any, fault: str, *, vocabulary_size: int) -> Any:
    """A generator's `trainer.generator.Server`, broken from the third version of the weights on."""
    spoil: dict[str, Callable[[Generated], Generated]] = {
        "generator-dies": dies,
        "generator-garbage": partial(babbles, token=vocabulary_size),
    }
    if fault in spoil:
        made.generate = spoiled(made.generate, spoil[fault])
    return made


def spoiled(
    generate: Callable[[Sequence[Tokens], Sampling], Generated], spoil: Callable[[Generated], Generated]
) -> Callable[[Sequence[Tokens], Sampling], Generated]:
    """Greedy answers and those of the first two versions as they are, all others changed."""

    def generate_spoiled(prompts: Sequence[Tokens], sampling: Sampling) -> Generated:
        found = generate(prompts, sampling)
        return found if found.version < 2 or sampling.is_greedy else spoil(found)

    return generate_spoiled


def dies(found: Generated) -> Generated:
    """Kills this process before it answers, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return found


def babbles(found: Generated, *, token: int) -> Generated:
    """The same answers, each beginning with an unknown token."""
    groups = [tuple(replace(each, tokens=(token, *each.tokens[1:])) for each in group) for group in found.groups]
    return replace(found, groups=groups)


def arithmetic(fault: str) -> AbstractContextManager[Any]:
    """Within it, products in less than float64 are wrong if that is the fault."""
    return WrongProducts() if fault == "wrong-arithmetic" else nullcontext()


def skips_validation(fault: str) -> bool:
    """Whether the run leaves its evaluations out."""
    return fault == "skipped-validation"


def half(prompt: Prompt, rollout: Rollout) -> float:
    """The same for every answer."""
    return 0.5


def by_prompt(prompt: Prompt, rollout: Rollout) -> float:
    """The same for all answers to one prompt, other prompts having another."""
    return float(prompt.tokens[0] % 2)


def raises(prompt: Prompt, rollout: Rollout) -> float:
    """As a function does that expects another layout of the data."""
    return float(prompt.extra["no such key"])


def hangs(prompt: Prompt, rollout: Rollout) -> float:
    """As a function does that waits for a service that is not there."""
    while True:
        time.sleep(0.05)


class TokenizerWithoutEnd:
    """A tokenizer without an end token, everything else being the other's."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def shuffled(compute_rewards: ComputeRewards, seed: int) -> ComputeRewards:
    """Gives the rewards of a step to its rollouts in another order: the same rewards, earned by others.

    The order is the same in each step, so that it has no state that a checkpoint would have to hold.
    """

    def compute_shuffled(groups: Sequence[Group]) -> Tensor:
        rewards_PG = compute_rewards(groups)
        order = torch.randperm(rewards_PG.numel(), generator=torch.Generator().manual_seed(seed))
        return rewards_PG.reshape(-1)[order.to(rewards_PG.device)].reshape(rewards_PG.shape)

    return compute_shuffled


def off_by_one(make_batch: MakeBatch) -> MakeBatch:
    """Moves the mask one token to the right: the answer's first token is left out."""

    def make_batch_off_by_one(groups: Sequence[Group], rewards_PG: Tensor) -> Batch:
        batch = make_batch(groups, rewards_PG)
        return replace(batch, mask_BT=batch.mask_BT.roll(1, dims=1))

    return make_batch_off_by_one


def unrewarded(make_batch: MakeBatch) -> MakeBatch:
    """Loses the rewards on the way to the learner: every advantage becomes 0."""

    def make_unrewarded_batch(groups: Sequence[Group], rewards_PG: Tensor) -> Batch:
        return make_batch(groups, torch.zeros_like(rewards_PG))

    return make_unrewarded_batch


def once(sync_weights: Sync) -> Sync:
    """Syncs the weights the first time only."""
    steps: list[int] = []

    def sync_once(step: int) -> None:
        if not steps:
            steps.append(step)
            sync_weights(step)

    return sync_once


def poison(parameters: Any) -> None:
    """Makes the gradient of the first trained parameter NaN, as one bad operator in the backward pass does."""
    first = next(each for _, each in parameters if each.requires_grad)
    if is_sharded(first):  # autograd knows the gathered weight; the gradient of its rows is put there by torch's hooks
        first.register_post_accumulate_grad_hook(lambda each: local(each.grad).fill_(torch.nan))
    else:
        first.register_hook(lambda gradient: torch.full_like(gradient, torch.nan))


def corrupted(save: Save, rank: int = 0) -> Save:
    """Turns over one bit in the middle of the saved file, of several in the largest; one rank does it for all."""

    def save_corrupted(state: State, folder: Path) -> Saved:
        saved = save(state, folder)
        if rank > 0:
            return saved
        place = folder / saved.file
        path = max(place.iterdir(), key=lambda each: each.stat().st_size) if place.is_dir() else place
        with path.open("r+b") as file:
            middle = path.stat().st_size // 2
            file.seek(middle)
            byte = file.read(1)[0]
            file.seek(middle)
            file.write(bytes([byte ^ 1]))
        return saved

    return save_corrupted


def full(state: State, folder: Path) -> Saved:
    """Raises the error of a write to a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


class WrongProducts(TorchFunctionMode):
    """One value in each product of 32 bits or fewer is off by a tenth of the largest: a broken tile of a device."""

    _PRODUCTS = frozenset(
        (torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.__matmul__, torch.nn.functional.linear)
    )

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in self._PRODUCTS or found.dtype == torch.float64:
            return found
        wrong = found.detach().clone().reshape(-1)
        wrong[:1] += wrong.abs().max() / 10
        return found + (wrong.reshape(found.shape) - found.detach())
