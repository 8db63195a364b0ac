"""The components of a run on one rank: the task, the engine, the learner, and their connections.

`build_trainer` makes a `Trainer` from a configuration, `trainer.loop` calls it step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from trainer import distributed, faults, models, noise, tasks
from trainer.algorithms.advantages import has_signal
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.packing import make_batch
from trainer.config import OFFLOAD_ON_CPU, BadSetting
from trainer.distributed import World, gathered
from trainer.engines.engine import Sampling
from trainer.generator import build_engine
from trainer.learner import Learner
from trainer.metrics.records import Progress
from trainer.off_policy import Prefetch, StaleWeights
from trainer.rollouts import GeneratedGroups, PromptSampler, RolloutBatch, collect, compute_rewards
from trainer.saving.checkpoint import save, save_shards
from trainer.tasks.base import RewardBroken
from trainer.weights import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.engine import Engine
    from trainer.engines.generator_client import GeneratorStats
    from trainer.engines.remote import Remote
    from trainer.models.critic import Critic
    from trainer.models.decoder import Model
    from trainer.noise import Injection
    from trainer.rollouts import RewardedGroups
    from trainer.saving import Saved, State
    from trainer.tasks.base import Task
    from trainer.types import Batch, Group, Prompt, Rollout


@dataclass
class Trainer:
    """The parts of a run and the calls that a step makes of them. `trainer.faults` wraps such calls from outside."""

    config: Config
    task: Task
    engine: Engine
    learner: Learner
    prompts: PromptSampler
    world: World
    device: torch.device
    injection: Injection | None = None  # of noise into the engine's weights
    progress: Progress = field(default_factory=Progress)
    prefetch: Prefetch | None = None  # of the next step's rollouts; None: they are generated in their own step
    reward_errors: list[str] = field(default_factory=list)  # this rank's, where they do not end the run
    synced_step: int = 0  # the step after which the engine last got the learner's weights

    # Rollouts.

    @property
    def num_prompts(self) -> int:
        """Of this rank in a step."""
        return self.config.rollout.prompts_per_step // self.world.size

    def next_prompts(self) -> list[Prompt]:
        """This rank's prompts of the next step."""
        return self.world.shard(self.prompts.next_prompts())

    def generate(self, prompts: Sequence[Prompt], progress: Progress | None = None) -> GeneratedGroups:
        """Groups sampled with the engine's present weights, with the log-probabilities of a reference in the
        generators.

        The latter are missing with dynamic sampling, which may drop groups.
        """
        progress = progress or self.progress
        with progress.phase("gen"):
            groups = collect(self.engine, prompts, self.task, self.sampling())
            if self.config.algorithm.estimator == "remax":
                greedy = collect(self.engine, prompts, self.task, self.sampling(is_greedy=True))
                baselines = self.compute_rewards(greedy).nan_to_num(nan=0.0).flatten().tolist()
                groups = [replace(group, baseline=each) for group, each in zip(groups, baselines, strict=True)]
        if self.config.algorithm.dynamic_sampling:
            return GeneratedGroups(groups)
        return GeneratedGroups(groups, self.reference_logprobs(groups, progress))

    def sampling(self, *, is_greedy: bool = False) -> Sampling:
        """How answers are drawn in training, or one greedy answer each for validation."""
        rollout = self.config.rollout
        count = 1 if is_greedy else rollout.rollouts_per_prompt
        return Sampling(
            count,
            self.task.max_new_tokens,
            rollout.temperature,
            is_greedy=is_greedy,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )

    def compute_rewards(self, groups: Sequence[Group]) -> Tensor:
        """Rewards [P, G]. Raises RewardBroken where one that cannot be had ends the run."""
        return compute_rewards(
            groups, task=self.task, config=self.config, device=self.device, errors=self.reward_errors
        )

    def with_reward_parts(self, groups: list[Group]) -> list[Group]:
        """Groups with rewards, with the components of their rewards where the estimator reads them."""
        parts = self.task.parts
        if parts is None or self.config.algorithm.estimator != "gdpo":
            return groups
        return [replace(group, parts=tuple(map(parts, group.rollouts))) for group in groups]

    def has_rewards(self, rewards_PG: Tensor) -> Tensor:
        """Whether all rewards of a group could be had, [P]; where others count 0 or end the run, they could."""
        if self.config.task.on_reward_error == "drop":
            return ~rewards_PG.isnan().any(dim=1)
        return torch.ones_like(rewards_PG[:, 0], dtype=torch.bool)

    def is_useful(self, rewards_PG: Tensor) -> Tensor:
        """Whether a group is learnt from, [P]: it has rewards and, with dynamic sampling, they differ."""
        is_useful_P = self.has_rewards(rewards_PG)
        if self.config.algorithm.dynamic_sampling:
            is_useful_P = is_useful_P & has_signal(rewards_PG, CONVENTIONS[self.config.algorithm.convention])
        return is_useful_P

    def is_right(self, prompt: Prompt, rollout: Rollout) -> bool:
        """Whether an answer counts as right; one that could not be judged does not, or raises RewardBroken."""
        try:
            return self.task.is_right(prompt, rollout)
        except RewardBroken as error:
            if self.config.task.on_reward_error == "stop":
                raise
            self.reward_errors.append(str(error))
            return False

    def count_reward_errors(self, *, since: int) -> int | None:
        """Rewards that could not be had since there were so many; None where one of them ends the run."""
        return None if self.config.task.on_reward_error == "stop" else len(self.reward_errors) - since

    def sampling_state(self) -> tuple[dict[str, Any], Tensor]:
        """What the next prompts and answers depend on."""
        return self.prompts.state(), self.engine.random_state().clone()

    def agree_on_rollouts(
        self, rewarded: RewardedGroups, error: RewardBroken | None, before: tuple[dict[str, Any], Tensor]
    ) -> RolloutBatch:
        """The rollouts of this rank, when all ranks have theirs. A collective.

        Raises RewardBroken where a rank could not score its own; what is drawn next is then what came after `before`.
        """
        others = self.world.gather((error, rewarded.num_batches, rewarded.is_partial))
        if any(broken is not None for broken, _, _ in others):
            self.prompts.restore(before[0])
            self.engine.restore_random_state(before[1])
            raise error or next(broken for broken, _, _ in others if broken is not None)
        # All ranks draw from one stream of prompts: those that had enough earlier draw on, and use nothing of it.
        for _ in range(max(num_batches for _, num_batches, _ in others) - rewarded.num_batches):
            self.next_prompts()
        reference_BT = rewarded.reference_BT
        if any(is_partial for _, _, is_partial in others):
            reference_BT = self.reference_logprobs(rewarded.groups)
        num_generated = rewarded.num_batches * self.num_prompts
        return RolloutBatch(rewarded.groups, rewarded.rewards_PG, num_generated, self.synced_step, reference_BT)

    def check_staleness(self, rollouts: RolloutBatch) -> None:
        """Raises StaleWeights where rollouts were drawn with weights older than the run allows."""
        done, limit = self.learner.global_step, self.config.rollout.max_staleness
        if self.remote is not None and done - rollouts.step > limit:
            raise StaleWeights(
                f"the answers of step {done + 1} were drawn with the weights of step {rollouts.step}, "
                f"{done - rollouts.step} steps behind: max_staleness={limit}"
            )

    def make_batch(self, groups: Sequence[Group], rewards_PG: Tensor) -> Batch:
        """Rollouts as tensors."""
        is_masked = self.config.algorithm.mask_truncated
        return make_batch(groups, rewards_PG, pad=self.task.tokenizer.pad, mask_truncated=is_masked)

    def reference_logprobs(self, groups: Sequence[Group], progress: Progress | None = None) -> Tensor | None:
        """The log-probabilities of the generators' reference, on the CPU; None if the learner has the reference, or
        nobody.
        """
        if self.reference_engine is None:
            return None
        with (progress or self.progress).phase("ref"):
            dtype = torch.promote_types(getattr(torch, self.config.run.dtype), torch.float32)
            no_rewards_B = torch.zeros(sum(len(group.rollouts) for group in groups), dtype=dtype)
            batch = self.make_batch(groups, no_rewards_B)
            return self.reference_engine.reference_logprobs(batch, rows_at_once=self.config.optim.micro_batch_rows)

    # Weights.

    def sync_weights(self, step: int) -> None:
        """Sends the learner's weights, with the step's noise if there is any, to the engine. A collective.

        Ranks may share a generator: it keeps its weights until all have their answers, and nobody sends requests before
        all have sent the new weights.
        """
        weights = self.learner.full_weights()
        if self.injection is not None:
            weights = self.injection.apply_each(weights, step)
        if self.remote is None:
            self.engine.load_weights(dict(weights))
        else:  # one tensor after the other: a sharded learner gathers each by itself
            self.world.barrier()
            self.remote.load_weights_each(weights)
            self.remote.barrier(self.world)
        self.synced_step = step

    def needs_new_reference(self, step: int) -> bool:
        """Whether the reference becomes the present policy after this step."""
        every = self.config.algorithm.reference_every
        return every > 0 and step % every == 0

    # Generators in other processes.

    @cached_property
    def remote(self) -> Remote | None:
        """The engine, if generators in other processes are behind it."""
        if not self.config.has_generators:
            return None  # and what is for such engines need not be imported
        from trainer.engines.remote import Remote

        return self.engine if isinstance(self.engine, Remote) else None

    @cached_property
    def reference_engine(self) -> Remote | None:
        """The engine, if its generators keep the reference policy."""
        return self.remote if self.config.reference_at == "generators" else None

    def generator_stats(self) -> GeneratorStats | None:
        """The statistics of generators in other processes since the last call; None if there are none."""
        return None if self.remote is None else self.remote.take_stats()

    def close(self) -> None:
        """Ends generators in other processes. May be called again."""
        if self.remote is not None:
            self.remote.end()

    # The state that a checkpoint holds; `trainer.run_state` makes it.

    def save(self, state: State, folder: Path) -> Saved:
        """This rank's part of a checkpoint, or the complete one."""
        return save_shards(state, folder, world=self.world) if self.learner.is_sharded else save(state, folder)


# How it is made.


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
    distributed.shard(model, config.run, device, num_ranks=world.size)
    return model


def build_critic(config: Config, vocabulary_size: int, device: torch.device, *, seed: int) -> Critic | None:
    """The critic, if the advantages need one; else None."""
    if config.algorithm.estimator != "gae":
        return None
    from trainer.models import critic

    return critic.build(config, vocabulary_size, seed=seed, device=device)


def begin_reference(trainer: Trainer) -> None:
    """Gives generators that hold the reference policy its fingerprint; a collective if it is sharded.

    An engine that has one already keeps it.
    """
    remote = trainer.reference_engine
    if remote is not None and remote.origin is None:
        remote.expect_reference(fingerprint(plain_weights(trainer.learner.model, trainer.learner.dtype)))


def plain_weights(model: Model, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model without adapters, one after the other, in a dtype; of a sharded one a collective."""
    return ((name, gathered(each, dtype)) for name, each in model.named_parameters() if ".lora_" not in name)
