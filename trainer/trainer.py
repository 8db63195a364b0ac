"""The components of a run on one rank: the task, the engine, the learner, and their connections.

`trainer.build` makes a `Trainer` from a configuration, `trainer.loop` calls it step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.packing import pack
from trainer.engines.base import Sampling
from trainer.metrics.progress import Progress
from trainer.prefetch import Prefetch, StaleWeights, packed, unpacked
from trainer.rollouts import GeneratedGroups, RolloutBatch, collect, has_signal, score
from trainer.saving import origin
from trainer.saving.checkpoint import STORED, Saved, State, flatten, save, save_shards
from trainer.tasks.rewards import RewardBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.engines.base import Engine
    from trainer.engines.generator_client import GeneratorStats
    from trainer.engines.remote import Remote
    from trainer.learner import Learner
    from trainer.noise import Injection
    from trainer.rollouts import PromptSampler, ScoredGroups
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
    prefetch: Prefetch = field(default_factory=Prefetch)
    reward_errors: list[str] = field(default_factory=list)  # this rank's, where they do not end the run
    synced_step: int = 0  # the step after which the engine last got the learner's weights

    # Rollouts.

    @property
    def num_prompts(self) -> int:
        """Of this rank in a step."""
        return self.config.rollout.prompts_per_step // self.world.size

    def draw(self) -> list[Prompt]:
        """This rank's prompts of the next step."""
        return self.world.shard(self.prompts.draw())

    def generate(self, prompts: Sequence[Prompt], progress: Progress | None = None) -> GeneratedGroups:
        """Groups sampled with the engine's present weights, with the log-probabilities of a reference in the
        generators.

        The latter are missing with dynamic sampling, which may drop groups.
        """
        progress = progress or self.progress
        with progress.part("gen"):
            groups = collect(self.engine, prompts, self.task, self.sampling())
        if self.config.algorithm.dynamic_sampling:
            return GeneratedGroups(groups)
        return GeneratedGroups(groups, self.reference_logprobs(groups, progress))

    def sampling(self, *, is_greedy: bool = False) -> Sampling:
        """How answers are drawn in training, or one greedy answer each for validation."""
        rollout = self.config.rollout
        count = 1 if is_greedy else rollout.rollouts_per_prompt
        return Sampling(count, self.task.max_new_tokens, rollout.temperature, is_greedy=is_greedy)

    def score(self, groups: Sequence[Group]) -> Tensor:
        """Rewards [P, G]. Raises RewardBroken where one that cannot be had ends the run."""
        return score(groups, task=self.task, config=self.config, device=self.device, errors=self.reward_errors)

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
        self, scored: ScoredGroups, error: RewardBroken | None, before: tuple[dict[str, Any], Tensor]
    ) -> RolloutBatch:
        """The rollouts of this rank, when all ranks have theirs. A collective.

        Raises RewardBroken where a rank could not score its own; what is drawn next is then what came after `before`.
        """
        others = self.world.gather((error, scored.num_draws, scored.is_partial))
        if any(broken is not None for broken, _, _ in others):
            self.prompts.restore(before[0])
            self.engine.restore_random_state(before[1])
            raise error or next(broken for broken, _, _ in others if broken is not None)
        # All ranks draw from one stream of prompts: those that had enough earlier draw on, and use nothing of it.
        for _ in range(max(num_draws for _, num_draws, _ in others) - scored.num_draws):
            self.draw()
        reference_BT = scored.reference_BT
        if any(is_partial for _, _, is_partial in others):
            reference_BT = self.reference_logprobs(scored.groups)
        num_drawn = scored.num_draws * self.num_prompts
        return RolloutBatch(scored.groups, scored.rewards_PG, num_drawn, self.synced_step, reference_BT)

    def check_staleness(self, rollouts: RolloutBatch) -> None:
        """Raises StaleWeights where rollouts were drawn with weights older than the run allows."""
        done, limit = self.learner.steps_done, self.config.rollout.max_staleness
        if self.config.has_generators and done - rollouts.step > limit:
            raise StaleWeights(
                f"the answers of step {done + 1} were drawn with the weights of step {rollouts.step}, "
                f"{done - rollouts.step} steps behind: max_staleness={limit}"
            )

    def pack(self, groups: Sequence[Group], rewards_PG: Tensor) -> Batch:
        """Rollouts as tensors."""
        return pack(groups, rewards_PG, pad=self.task.tokenizer.pad)

    def reference_logprobs(self, groups: Sequence[Group], progress: Progress | None = None) -> Tensor | None:
        """The log-probabilities of the generators' reference, on the CPU; None if the learner has the reference, or
        nobody.
        """
        if (remote := self._reference_engine()) is None:
            return None
        with (progress or self.progress).part("ref"):
            dtype = torch.promote_types(getattr(torch, self.config.run.dtype), torch.float32)
            no_rewards_B = torch.zeros(sum(len(group.rollouts) for group in groups), dtype=dtype)
            batch = self.pack(groups, no_rewards_B)
            return remote.reference_logprobs(batch, rows_at_once=self.config.optim.micro_batch_rows)

    # Weights.

    def sync_weights(self, step: int) -> None:
        """Sends the learner's weights, with the step's noise if there is any, to the engine. A collective.

        Ranks may share a generator: it keeps its weights until all have their answers, and nobody sends requests before
        all have sent the new weights.
        """
        if self.config.has_generators:
            self.world.barrier()
        weights = self.learner.full_weights()
        if self.injection is not None:
            weights = self.injection.apply_each(weights, step)
        # One tensor after the other where the engine can take them so: a sharded learner gathers each by itself.
        load_each: Callable[[Iterator[tuple[str, Tensor]]], None] | None
        load_each = getattr(self.engine, "load_weights_each", None)
        if load_each is not None:
            load_each(weights)
        else:
            self.engine.load_weights(dict(weights))
        barrier: Callable[[World], None] | None = getattr(self.engine, "barrier", None)
        if barrier is not None:
            barrier(self.world)
        elif self.config.has_generators:
            self.world.barrier()
        self.synced_step = step

    def begin_reference(self) -> None:
        """Gives generators that hold the reference policy its fingerprint; a collective if it is sharded."""
        if (remote := self._reference_engine()) is not None:
            origin.begin(self.learner, remote)

    def set_reference(self) -> None:
        """Takes the learner's present weights for those that the run starts from; a collective where it is sharded."""
        self.learner.set_reference()
        if (remote := self._reference_engine()) is not None:
            remote.set_reference(self.learner.full_weights())
            remote.barrier(self.world)

    # Generators in other processes.

    def generator_stats(self) -> GeneratorStats | None:
        """The statistics of generators in other processes since the last call; None if there are none."""
        remote = self._remote()
        return None if remote is None else remote.take_stats()

    def lost_generators(self) -> list[str] | None:
        """The losses of generators so far, as messages; None if there are none in other processes."""
        remote = self._remote()
        return None if remote is None else remote.pool.losses

    def twin_engine(self) -> Engine | None:
        """An engine with separate weights over the same generators; None if there are none."""
        remote = self._remote()
        return None if remote is None else remote.twin()

    def close(self) -> None:
        """Ends generators in other processes. May be called again."""
        if (remote := self._remote()) is not None:
            remote.end()

    def _reference_engine(self) -> Remote | None:
        """The engine, if its generators keep the reference policy."""
        return self._remote() if self.config.reference_at == "generators" else None

    def _remote(self) -> Remote | None:
        if not self.config.has_generators:
            return None  # and what is for such engines need not be imported
        from trainer.engines.remote import Remote

        return self.engine if isinstance(self.engine, Remote) else None

    # The state that a checkpoint holds.

    def state(self, step: int) -> State:
        """All that the step after `step` depends on, on every rank; a collective."""
        samplers = self.world.gather(self.engine.random_state().cpu())
        state = {
            "step": step,
            "settings": self.config.lasting(),
            "learner": self.learner.state(),
            "sampler_random": {str(rank): state for rank, state in enumerate(samplers)},
            **self.prompts.state(),
            **self._prefetched(),
        }
        return origin.added(state, self._reference_engine())

    def _prefetched(self) -> dict[str, Any]:
        """The rollouts of every rank's next step, where they are made one step ahead."""
        if not self.config.rollout.off_policy:
            return {}
        ready = self.world.gather(packed(self.prefetch.ready, self.task.train))
        return {"ready": {str(rank): each for rank, each in enumerate(ready)}}

    def save(self, state: State, folder: Path) -> Saved:
        """This rank's part of a checkpoint, or the complete one."""
        return save_shards(state, folder, world=self.world) if self.learner.is_sharded else save(state, folder)

    def save_checkpoint(self, state: State, folder: Path) -> Saved:
        """Rank 0 saves the state, or all ranks their rows of it; what was saved. A collective."""
        saved = self.save(state, folder) if self.world.is_first or self.learner.is_sharded else None
        first: Saved = self.world.gather(saved)[0]
        return first

    def restore(self, state: Mapping[str, Any]) -> int:
        """Goes on from a state that `state` gave, on as many ranks or on others; gives back its step.

        On as many, every bit of what follows is the same. Prompts and the order of groups do not depend on the ranks.
        A rank that was there before goes on with its sampler's random numbers. One that was not, or whose engine is
        of another kind than the one before, begins at its own seed; rollouts that lay ready in other shares are made
        anew.
        """
        self.learner.restore(self._learner_state(state))
        origin.restore(self.learner, self._reference_engine(), state)
        samplers, own = state["sampler_random"], str(self.world.rank)
        if own in samplers and samplers[own].shape == self.engine.random_state().shape:
            self.engine.restore_random_state(samplers[own].cpu())
        self.prompts.restore(state)
        if self.config.rollout.off_policy:
            # A state of shards holds no empty parts: of a run that was at its end nothing lay ready.
            ready = state.get("ready", {}).get(own, {}) if len(samplers) == self.world.size else {}
            self.prefetch.ready = unpacked(ready, self.task.train, self.device)
        step = int(state["step"])
        self.sync_weights(step)
        return step

    def _learner_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The learner's part of a saved state; of a sharded one the tensors are read into the live ones."""
        stored = state.get(STORED)
        if stored is None:
            return state["learner"]  # type: ignore[no-any-return]
        own = self.learner.state()
        if not origin.is_stored(state):
            own.pop("reference", None)
        tensors = {name: each for name, each in flatten({"learner": own}).items() if isinstance(each, torch.Tensor)}
        stored.into({name: each for name, each in tensors.items() if each.is_floating_point()})
        return {**own, **state["learner"]}
