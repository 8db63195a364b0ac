"""The parts of a run, put together as a configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer import faults, models, noise, tasks
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.packing import pack
from trainer.algorithms.shaping import has_signal, overlong_penalty
from trainer.config import BadSetting
from trainer.distributed import World
from trainer.engines.base import Sampling
from trainer.learner import Learner
from trainer.rollouts import collect
from trainer.saving.checkpoint import Saved, State, save
from trainer.tasks import limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.base import Engine
    from trainer.metrics.progress import Progress
    from trainer.models.critic import Critic
    from trainer.tasks.base import Task
    from trainer.types import Batch, Group, Prompt


# Between the sampling seeds of neighbouring ranks: further apart than the seeds of neighbouring runs.
_RANK_APART = 1_000_003


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a turn of the loop uses. The functions are fields, so that a fault can take the place of one."""

    config: Config
    task: Task
    engine: Engine
    learner: Learner
    draw: Callable[[], list[Prompt]]
    score: Callable[[Sequence[Group]], Tensor]  # [P, G]
    pack: Callable[[Sequence[Group], Tensor], Batch]
    publish: Callable[[int], None]  # the learner's weights, with the step's noise if there is any, to the engine
    save: Callable[[State, Path], Saved]
    injection: noise.Injection | None
    prompts_random: torch.Generator
    device: torch.device
    world: World

    def rollouts(self, progress: Progress) -> tuple[list[Group], Tensor, int]:
        """Groups with their rewards [P, G], and how many groups were drawn for them.

        With dynamic sampling (DAPO) groups whose rewards are all equal are drawn again, up to `max_generations`
        batches. What is there then is used: if no group has a signal, the last batch as it is.
        """
        algorithm, convention = self.config.algorithm, CONVENTIONS[self.config.algorithm.convention]
        wanted = self.config.rollout.prompts_per_step // self.world.size
        kept: list[tuple[Group, Tensor]] = []
        drawn = 0
        for _ in range(algorithm.max_generations):
            with progress.part("gen"):
                groups = collect(self.engine, self.draw(), self.task, self.sampling())
            with progress.part("reward"):
                rewards_PG = self.score(groups)
            drawn += wanted
            if not algorithm.dynamic_sampling:
                return groups, rewards_PG, drawn
            useful_P = has_signal(rewards_PG, convention).tolist()
            kept += [
                pair
                for pair, is_useful in zip(zip(groups, rewards_PG, strict=True), useful_P, strict=True)
                if is_useful
            ]
            if len(kept) >= wanted:
                break
        if not kept:
            return groups, rewards_PG, drawn
        return [group for group, _ in kept[:wanted]], torch.stack([row for _, row in kept[:wanted]]), drawn

    def sampling(self, *, is_greedy: bool = False) -> Sampling:
        """How answers are drawn in training, or one greedy answer each for validation."""
        rollout = self.config.rollout
        count = 1 if is_greedy else rollout.rollouts_per_prompt
        return Sampling(count, self.task.max_new_tokens, rollout.temperature, is_greedy=is_greedy)

    def state(self, step: int) -> State:
        """All that the turn after `step` depends on, on every rank; a collective."""
        samplers = self.world.gather(self.engine.random_state().cpu())
        return {
            "step": step,
            "settings": self.config.lasting(),
            "learner": self.learner.state(),
            "sampler_random": {str(rank): state for rank, state in enumerate(samplers)},
            "prompts_random": self.prompts_random.get_state(),
        }

    def keep(self, state: State, folder: Path) -> Saved:
        """Rank 0 saves the state; what was saved. A collective."""
        saved = self.save(state, folder) if self.world.is_first else None
        kept: Saved = self.world.gather(saved)[0]
        return kept

    def restore(self, state: Mapping[str, Any]) -> int:
        """Goes on from a state that `state` gave; gives back its step."""
        self.learner.restore(state["learner"])
        self.engine.restore_random_state(state["sampler_random"][str(self.world.rank)].cpu())
        self.prompts_random.set_state(state["prompts_random"].cpu())
        step = int(state["step"])
        self.publish(step)
        return step


def assemble(
    config: Config, device: torch.device, *, seed: int, world: World | None = None, engine: Engine | None = None
) -> Parts:
    """All parts of one rank from a seed, which is the same for all ranks.

    The sampler and the reference policy start as copies of the learner's policy; `engine` is used if it is given.
    Raises BadSetting for a task, a model or an engine that cannot be had.
    """
    world = world or World.alone()
    task = faults.task(tasks.choose(config), config.run.fault)
    size = task.tokenizer.vocabulary_size
    policy = models.build(config, size, seed=seed, device=device)
    reference = None
    if config.algorithm.kl_coef > 0:
        reference = models.build(config, size, seed=seed, device=device, is_adapted=False)
    engine = engine or make_engine(config, task, device, seed=seed, sampling_seed=seed + world.rank * _RANK_APART)
    critic = make_critic(config, size, device, seed=seed)
    learner = Learner(policy, reference, faults.settings(config), seed=seed, critic=critic, world=world)
    injection = noise.start(config, policy)
    generator = torch.Generator().manual_seed(seed)

    def publish(step: int) -> None:
        weights = learner.weights()
        engine.receive(injection.apply(weights, step) if injection is not None else weights)

    parts = Parts(
        config=config,
        task=task,
        engine=engine,
        learner=learner,
        draw=lambda: world.share(draw(task.train, config.rollout.prompts_per_step, generator)),
        score=partial(score, task=task, config=config, device=device),
        pack=partial(pack, pad=task.tokenizer.pad),
        publish=publish,
        save=save,
        injection=injection,
        prompts_random=generator,
        device=device,
        world=world,
    )
    made: Parts = faults.broken(parts, config.run.fault, seed=config.run.seed)
    return made


def make_critic(config: Config, vocabulary_size: int, device: torch.device, *, seed: int) -> Critic | None:
    """The critic, where the advantages need one."""
    if config.algorithm.estimator != "gae":
        return None
    from trainer.models import critic

    return critic.build(config, vocabulary_size, seed=seed, device=device)


def make_engine(config: Config, task: Task, device: torch.device, *, seed: int, sampling_seed: int) -> Engine:
    """The engine of a configuration, with the weights that the policy starts with; its draws have their own seed."""
    end, rollout = task.tokenizer.end, config.rollout
    if rollout.engine == "builtin":
        from trainer.engines.builtin import Sampler
        from trainer.models.decoder import Decoder

        decoder = models.build(config, task.tokenizer.vocabulary_size, seed=seed, device=device, is_adapted=False)
        if not isinstance(decoder, Decoder):
            raise BadSetting(f"engine=builtin cannot sample from {config.model.path}: engine=transformers can")
        return Sampler(decoder, end=end, seed=sampling_seed)
    if rollout.engine == "scripted":
        from trainer.engines import scripted

        return scripted.start(config, task)
    if rollout.engine == "transformers":
        from trainer.engines import transformers

        return transformers.start(config, task, device, seed=sampling_seed)
    from trainer.engines import vllm

    return vllm.start(config, task, seed=sampling_seed)


def draw(prompts: Sequence[Prompt], count: int, generator: torch.Generator) -> list[Prompt]:
    """Prompts at random; none twice before each was drawn once."""
    order: list[int] = []
    while len(order) < count:
        order += torch.randperm(len(prompts), generator=generator).tolist()
    return [prompts[index] for index in order[:count]]


def score(groups: Sequence[Group], *, task: Task, config: Config, device: torch.device) -> Tensor:
    """Rewards [P, G]: what the environment paid, else the task's; less the penalty for answers near the limit."""
    algorithm = config.algorithm
    rewards = limit.score(groups, task, limit_s=reward_limit_s(config))
    dtype = torch.promote_types(getattr(torch, config.run.dtype), torch.float32)
    rewards_PG = torch.tensor(rewards, dtype=dtype, device=device)
    if algorithm.overlong_buffer == 0:
        return rewards_PG
    lengths_PG = torch.tensor([[len(each.tokens) for each in group.rollouts] for group in groups], device=device)
    return rewards_PG + overlong_penalty(
        lengths_PG, limit=task.max_new_tokens, buffer=algorithm.overlong_buffer, factor=algorithm.overlong_factor
    )


def reward_limit_s(config: Config) -> float | None:
    """Seconds for all rewards of a step; None where each answer is judged in a process with a limit of its own."""
    task = config.task
    return None if task.reward_function or task.task in ("code", "math") else task.reward_timeout_s
