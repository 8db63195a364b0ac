"""A run from its first prompt to its last record: prompts, generate, score, advantages, pack, update, publish, log.

`assemble` puts the parts together as a configuration says; `train` is the loop; `advance` is one turn of it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer import faults, tasks
from trainer.algorithms.advantages import CONVENTIONS, group_advantages
from trainer.algorithms.packing import pack
from trainer.checkpoint import CorruptCheckpoint, Saved, State, difference, load, save
from trainer.engines.base import Engine, Sampling
from trainer.engines.builtin import Sampler
from trainer.learner import Learner, Update
from trainer.metrics.checks import LogprobsCheck, MaskCheck, WeightsCheck
from trainer.metrics.progress import Progress
from trainer.model import build
from trainer.tasks.base import END, PAD, VOCABULARY_SIZE, Task, decode
from trainer.tasks.rewards import REWARDS, exact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.metrics.records import Records
    from trainer.types import Batch, Group, Prompt

_NUM_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a turn of the loop uses."""

    task: Task
    engine: Engine
    learner: Learner
    draw: Callable[[], list[Prompt]]
    score: Callable[[Sequence[Group]], Tensor]  # [P, G]
    advantages: Callable[[Tensor], Tensor]  # [P, G] -> [P, G]
    pack: Callable[[Sequence[Group], Tensor], Batch]
    publish: Callable[[], None]  # the learner's weights to the engine
    save: Callable[[State, Path], Saved]
    prompts_random: torch.Generator
    device: torch.device


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the loop made."""

    groups: list[Group]
    rewards_PG: Tensor
    batch: Batch
    update: Update


def assemble(config: Config, device: torch.device, *, seed: int) -> Parts:
    """All parts from a seed. The sampler and the reference policy start as copies of the learner's policy."""
    task = tasks.choose(config)
    dtype = getattr(torch, config.dtype)
    policy, reference, sampled = (build(config, VOCABULARY_SIZE, seed=seed, device=device) for _ in range(3))
    engine = Sampler(sampled, end=END, seed=seed)
    learner = Learner(policy, reference, config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    reward = REWARDS[config.reward]
    parts = Parts(
        task=task,
        engine=engine,
        learner=learner,
        draw=partial(draw, task.train, config.prompts_per_step, generator),
        score=lambda groups: torch.tensor(
            [[reward(group.prompt, rollout) for rollout in group.rollouts] for group in groups],
            dtype=dtype,
            device=device,
        ),
        advantages=partial(
            group_advantages, convention=CONVENTIONS[config.convention], scale_by_std=config.scale_by_std
        ),
        pack=partial(pack, pad=PAD),
        publish=lambda: engine.receive(learner.weights()),
        save=save,
        prompts_random=generator,
        device=device,
    )
    return broken(parts, config.fault, seed=config.seed)


def broken(parts: Parts, fault: str, *, seed: int) -> Parts:
    """The parts with one of them wrapped as `fault` says."""
    wrap: dict[str, Callable[[], Parts]] = {
        "none": lambda: parts,
        "shuffled-reward": lambda: replace(parts, score=faults.shuffled(parts.score, seed)),
        "mask-off-by-one": lambda: replace(parts, pack=faults.off_by_one(parts.pack)),
        "stale-sampler": lambda: replace(parts, publish=faults.Once(parts.publish)),
        "zero-advantage": lambda: replace(parts, advantages=faults.zeros(parts.advantages)),
        "corrupt-checkpoint": lambda: replace(parts, save=faults.corrupted(parts.save)),
    }
    return wrap[fault]()


def draw(prompts: Sequence[Prompt], count: int, generator: torch.Generator) -> list[Prompt]:
    """Prompts at random; none twice before each was drawn once."""
    order: list[int] = []
    while len(order) < count:
        order += torch.randperm(len(prompts), generator=generator).tolist()
    return [prompts[index] for index in order[:count]]


def train(parts: Parts, config: Config, *, out: Path, records: Records, progress: Progress) -> None:
    """The whole run; every record but the first and the last is written here."""
    mask, weights, logprobs = MaskCheck(), WeightsCheck(), LogprobsCheck()
    checkpoint: dict[str, Any] = {}
    with progress.part("eval"):
        records.write("eval", when="before", **evaluate(parts, config))
    for step in range(1, config.steps + 1):
        twin = None
        if step == config.steps // 2 + 1:
            with progress.part("checkpoint"):
                twin, checkpoint = round_trip(parts, config, out / "checkpoint", step=step - 1)
        began = time.perf_counter()
        turn = advance(parts, config, progress)
        seconds = time.perf_counter() - began
        if twin is not None:
            with progress.part("checkpoint"):
                checkpoint |= compare_next_step(parts, twin, config, step=step)
                checkpoint["passed"] = checkpoint["restored_equal"] and checkpoint["next_step_equal"]
        mask.add(turn.groups, turn.batch)
        weights.add(step, parts.learner.weights(), parts.engine.weights())
        logprobs.add(turn.update.sampler_learner_logprob_diff_max)
        records.write("step", step=step, **describe(turn, seconds), kl_coef=config.kl_coef, wall_s=progress.elapsed_s())
        progress.steps_done = step
    with progress.part("eval"):
        records.write("eval", when="after", **evaluate(parts, config))
    with progress.part("checkpoint"):
        parts.save(state_of(parts, config.steps), out / "checkpoint")
    records.write("check", name="mask", **mask.result())
    records.write("check", name="sampler-weights", **weights.result())
    records.write("check", name="logprobs", **logprobs.result())
    records.write("check", name="checkpoint", **checkpoint)


def advance(parts: Parts, config: Config, progress: Progress) -> Turn:
    """One turn: new rollouts, one update from them, the new weights to the sampler."""
    sampling = Sampling(config.rollouts_per_prompt, parts.task.max_new_tokens, config.temperature)
    with progress.part("generate"):
        prompts = parts.draw()
        groups = parts.engine.generate(prompts, sampling)
    with progress.part("train"):
        rewards_PG = parts.score(groups)
        advantages_PG = parts.advantages(rewards_PG)
        batch = parts.pack(groups, advantages_PG)
        update = parts.learner.update(batch)
        parts.publish()
    return Turn(groups, rewards_PG, batch, update)


def describe(turn: Turn, seconds: float) -> dict[str, Any]:
    """The values of a `step` record."""
    lengths = [len(rollout.tokens) for group in turn.groups for rollout in group.rollouts]
    right = [exact(group.prompt, rollout) for group in turn.groups for rollout in group.rollouts]
    rewards_PG = turn.rewards_PG.double()
    return {
        "reward_mean": float(rewards_PG.mean()),
        "reward_std": float(rewards_PG.std(correction=0)),
        "accuracy": sum(right) / len(right),
        **asdict(turn.update),
        "response_length_mean": sum(lengths) / len(lengths),
        "groups_with_signal": int((rewards_PG.amax(dim=1) > rewards_PG.amin(dim=1)).sum()),
        "tokens": sum(lengths),
        "tokens_per_s": sum(lengths) / seconds,
    }


def evaluate(parts: Parts, config: Config) -> dict[str, Any]:
    """Greedy answers to every held-out prompt, in the task's order, from the engine's present weights."""
    sampling = Sampling(1, parts.task.max_new_tokens, config.temperature, is_greedy=True)
    groups = parts.engine.generate(parts.task.heldout, sampling)
    correct = [int(exact(group.prompt, group.rollouts[0])) for group in groups]
    samples = [
        {"prompt": group.prompt.text, "answer": decode(group.rollouts[0].tokens), "expected": group.prompt.expected}
        for group in groups[:: -(-len(groups) // _NUM_SAMPLES)]
    ]
    return {
        "split": "heldout" if parts.task.is_disjoint else "train",
        "num_prompts": len(correct),
        "num_correct": sum(correct),
        "accuracy": sum(correct) / len(correct),
        "correct": correct,
        "samples": samples,
    }


def state_of(parts: Parts, step: int) -> State:
    """All that the next turn depends on."""
    return {
        "step": step,
        "learner": parts.learner.state(),
        "sampler_random": parts.engine.random_state(),
        "prompts_random": parts.prompts_random.get_state(),
    }


def round_trip(parts: Parts, config: Config, folder: Path, *, step: int) -> tuple[Parts | None, dict[str, Any]]:
    """Saves the state and restores it into fresh parts of another seed; None when it cannot be restored."""
    live = state_of(parts, step)
    saved = parts.save(live, folder)
    result = {"passed": False, "step": step, "tensors": saved.tensors, "bytes": saved.bytes, "sha256": saved.sha256}
    twin = assemble(config, parts.device, seed=config.seed + 1)
    try:
        restored = load(folder, parts.device)
    except CorruptCheckpoint as error:
        return None, {**result, "restored_equal": False, "next_step_equal": None, "reason": str(error)}
    twin.learner.restore(restored["learner"])
    twin.engine.restore_random_state(restored["sampler_random"].cpu())
    twin.prompts_random.set_state(restored["prompts_random"].cpu())
    twin.publish()
    name = difference(live, state_of(twin, step))
    return twin, {**result, "restored_equal": name is None, "first_different": name}


def compare_next_step(parts: Parts, twin: Parts, config: Config, *, step: int) -> dict[str, Any]:
    """Lets the restored parts take the turn that the live ones have just taken, and compares every bit."""
    advance(twin, config, Progress())
    name = difference(state_of(parts, step), state_of(twin, step))
    return {"next_step_equal": name is None, "next_step_first_different": name}
