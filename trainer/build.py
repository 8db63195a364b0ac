"""Builds a trainer from a configuration: its policy, reference, critic, engine and task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer import faults, models, noise, sharding, tasks
from trainer.config import OFFLOAD_ON_CPU, BadSetting
from trainer.distributed import World
from trainer.engines.factory import build_engine
from trainer.learner import Learner
from trainer.metrics.progress import Progress
from trainer.off_policy import Prefetch
from trainer.rollouts import PromptSampler
from trainer.run_state import begin_reference
from trainer.trainer import Trainer

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.engines.engine import Engine
    from trainer.models.critic import Critic
    from trainer.models.decoder import Model


def build_trainer(
    config: Config,
    device: torch.device,
    *,
    seed: int,
    world: World | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Trainer:
    """The trainer of one rank from a seed, which is the same for all ranks.

    The engine and the reference policy start as copies of the learner's policy; `engine` is used if it is given.
    Raises BadSetting for a task, a model or an engine that cannot be had.
    """
    world = world or World.single()
    task = faults.task(tasks.choose(config), config.run.fault)
    if config.algorithm.overlong_buffer > task.max_new_tokens:  # as in verl's DAPO reward manager
        raise BadSetting(
            f"overlong_buffer={config.algorithm.overlong_buffer} is more than the {task.max_new_tokens} tokens of an "
            "answer (max_new_tokens): every length would cost reward"
        )
    if config.algorithm.estimator == "gdpo" and task.environment is not None:
        raise BadSetting(f"estimator=gdpo: the rewards of task={config.task.task} have no components")
    size = task.tokenizer.vocabulary_size
    policy = build_policy(config, size, device, seed=seed, world=world)
    reference = None
    if config.reference_at == "learner":
        reference = build_policy(config, size, device, seed=seed, world=world, is_adapted=False)
    engine = engine or build_engine(config, task, device, seed=seed, world=world)
    critic = build_critic(config, size, device, seed=seed)
    longest = task.max_new_tokens * task.max_turns
    learner = Learner(policy, reference, config, seed=seed, critic=critic, world=world, longest_answer=longest)
    injection = noise.start(config, policy)
    per_step, generator = config.rollout.prompts_per_step, torch.Generator().manual_seed(seed)
    by_epoch = bool(config.run.epochs) and per_step <= len(task.train)
    prompts = PromptSampler(task.train, per_step, generator, by_epoch=by_epoch)
    prefetch = Prefetch() if config.rollout.off_policy else None
    progress = progress or Progress()
    trainer = Trainer(config, task, engine, learner, prompts, world, device, injection, progress, prefetch)
    begin_reference(trainer)
    faults.install(trainer)
    return trainer


def build_policy(
    config: Config, vocabulary_size: int, device: torch.device, *, seed: int, world: World, is_adapted: bool = True
) -> Model:
    """The configured policy on the device, sharded over the ranks if configured.

    A model to be sharded is built on the CPU: unsharded, it may not fit on a card. Raises BadSetting.
    """
    if config.run.offload and device.type == "cpu":
        raise BadSetting(OFFLOAD_ON_CPU)
    if config.run.sharding == "none" or world.size == 1:  # one rank would hold every row anyway
        return models.build(config, vocabulary_size, seed=seed, device=device, is_adapted=is_adapted)
    model = models.build(config, vocabulary_size, seed=seed, device=torch.device("cpu"), is_adapted=is_adapted)
    sharding.shard(model, config.run, device, num_ranks=world.size)
    return model


def build_critic(config: Config, vocabulary_size: int, device: torch.device, *, seed: int) -> Critic | None:
    """The critic, if the advantages need one; else None."""
    if config.algorithm.estimator != "gae":
        return None
    from trainer.models import critic

    return critic.build(config, vocabulary_size, seed=seed, device=device)
