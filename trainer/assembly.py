"""The parts of a run, put together as a configuration says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer import faults, models, noise, tasks
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.packing import pack
from trainer.algorithms.shaping import has_signal, overlong_penalty
from trainer.config import OFFLOAD_ON_CPU, BadSetting
from trainer.distributed import World
from trainer.engines.base import Sampling
from trainer.engines.factory import build_engine
from trainer.learner import Learner
from trainer.overlap import Ahead, Drawn, Made, StaleWeights, packed, unpacked
from trainer.rollouts import collect
from trainer.saving import origin
from trainer.saving.checkpoint import STORED, Saved, State, flatten, save, save_shards
from trainer.tasks import limit
from trainer.tasks.rewards import RewardBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.base import Engine
    from trainer.engines.generator_client import GeneratorStats
    from trainer.engines.remote import Remote
    from trainer.metrics.progress import Progress
    from trainer.models.base import Model
    from trainer.models.critic import Critic
    from trainer.tasks.base import Task
    from trainer.types import Batch, Group, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class _Judged:
    """One rank's groups of a step with their rewards, and how many batches were drawn for them."""

    groups: list[Group] = field(default_factory=list)
    rewards_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    num_draws: int = 0
    reference_BT: Tensor | None = None
    is_partial: bool = False  # not the groups that the reference was asked about


def _chosen(groups: Sequence[Group], rewards_PG: Tensor, is_chosen_P: Tensor) -> list[tuple[Group, Tensor]]:
    rows = zip(groups, rewards_PG, is_chosen_P.tolist(), strict=True)
    return [(group, row) for group, row, is_chosen in rows if is_chosen]


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
    published: Callable[[], int]  # the step after which that was last done
    save: Callable[[State, Path], Saved]
    injection: noise.Injection | None
    prompts_random: torch.Generator
    device: torch.device
    world: World
    epoch: Epoch | None = None  # what is drawn from where the run is counted in epochs
    ahead: Ahead = field(default_factory=Ahead)
    reward_errors: list[str] = field(default_factory=list)  # this rank's, where they do not end the run

    def rollouts(self, progress: Progress) -> Made:
        """Those of the next step: what lies ready, else made now. One step off policy, the ones after it are begun.

        Raises StaleWeights where they were drawn with weights older than the run allows, and RewardBroken.
        """
        if self.ahead.broken is not None:
            raise self.ahead.broken
        made = self.ahead.take() or self.make(progress)
        done, limit = self.learner.steps_done, self.config.rollout.max_staleness
        if self.config.has_generators and done - made.step > limit:
            raise StaleWeights(
                f"the answers of step {done + 1} were drawn with the weights of step {made.step}, "
                f"{done - made.step} steps behind: max_staleness={limit}"
            )
        if made.reference_BT is None and self._reference_engine() is not None:  # it lay ready when the learner had it
            made = replace(made, reference_BT=self.reference_logprobs(made.groups, progress))
        if self.config.rollout.off_policy and done + 1 < self.config.run.steps:
            prompts = self.draw()
            self.ahead.launch(lambda own: self.generate(prompts, own))
        return made

    def settle(self, progress: Progress) -> None:
        """Waits for the rollouts that were begun, before the engine gets other weights."""
        drawn = self.ahead.arrive(progress)
        if drawn is None:
            return
        try:
            self.ahead.ready = self.make(progress, drawn)
        except RewardBroken as error:  # the step at hand is done, and recorded first
            self.ahead.broken = error

    def generate(self, prompts: Sequence[Prompt], progress: Progress) -> Drawn:
        """Groups from the engine's present weights, with what a reference in the generators says of them.

        Not yet with dynamic sampling, which may drop them.
        """
        with progress.part("gen"):
            groups = collect(self.engine, prompts, self.task, self.sampling())
        return Drawn(
            groups, None if self.config.algorithm.dynamic_sampling else self.reference_logprobs(groups, progress)
        )

    def reference_logprobs(self, groups: Sequence[Group], progress: Progress) -> Tensor | None:
        """What the generators' reference says of answers, on the CPU; None where the learner has it, or nobody."""
        if (remote := self._reference_engine()) is None:
            return None
        with progress.part("ref"):
            dtype = torch.promote_types(getattr(torch, self.config.run.dtype), torch.float32)
            unjudged_B = torch.zeros(sum(len(group.rollouts) for group in groups), dtype=dtype)
            batch = self.pack(groups, unjudged_B)
            return remote.reference_logprobs(batch, rows_at_once=self.config.optim.micro_batch_rows)

    def start_here(self) -> None:
        """Takes the learner's present weights for those that the run starts from; a collective where it is sharded."""
        self.learner.start_here()
        if (remote := self._reference_engine()) is not None:
            remote.set_reference(self.learner.full_weights())
            remote.barrier(self.world)

    def make(self, progress: Progress, first: Drawn | None = None) -> Made:
        """Groups with their rewards, from the engine's present weights; `first` are those of the first batch.

        With dynamic sampling (DAPO) groups whose rewards are all equal are drawn again, up to `max_generations`
        batches. What is there then is used: if no group has a signal, the last batch as it is. With
        on_reward_error=drop groups with a reward that could not be had are left out. A collective.
        Raises RewardBroken, on all ranks, where a reward of any of them ends the run; what is drawn next is then what
        was drawn here.
        """
        before = self._drawn(), self.engine.random_state().clone()
        wanted, judged, error = self.config.rollout.prompts_per_step // self.world.size, _Judged(), None
        try:
            judged = self._judged(progress, first)
        except RewardBroken as found:
            error = found
        others = self.world.gather((error, judged.num_draws, judged.is_partial))
        if any(found is not None for found, _, _ in others):
            self._draw_from(before[0])
            self.engine.restore_random_state(before[1])
            raise error or next(found for found, _, _ in others if found is not None)
        # All ranks draw from one stream of prompts: those that had enough earlier draw on, and use nothing of it.
        for _ in range(max(num_draws for _, num_draws, _ in others) - judged.num_draws):
            self.draw()
        reference_BT = judged.reference_BT
        if any(is_partial for _, _, is_partial in others):
            reference_BT = self.reference_logprobs(judged.groups, progress)
        return Made(judged.groups, judged.rewards_PG, judged.num_draws * wanted, self.published(), reference_BT)

    def _judged(self, progress: Progress, first: Drawn | None) -> _Judged:
        """This rank's groups with their rewards. Raises RewardBroken."""
        algorithm, convention = self.config.algorithm, CONVENTIONS[self.config.algorithm.convention]
        wanted = self.config.rollout.prompts_per_step // self.world.size
        kept: list[tuple[Group, Tensor]] = []
        num_draws = 0
        for _ in range(algorithm.max_generations if algorithm.dynamic_sampling else 1):
            drawn, first = first or self.generate(self.draw(), progress), None
            with progress.part("reward"):
                rewards_PG = self.score(drawn.groups)
            num_draws += 1
            has_rewards_P = torch.ones_like(rewards_PG[:, 0], dtype=torch.bool)
            if self.config.task.on_reward_error == "drop":
                has_rewards_P = ~rewards_PG.isnan().any(dim=1)
            is_useful_P = has_rewards_P
            if algorithm.dynamic_sampling:
                is_useful_P = is_useful_P & has_signal(rewards_PG, convention)
            kept += _chosen(drawn.groups, rewards_PG, is_useful_P)
            if len(kept) >= wanted:
                break
        kept = kept[:wanted] or _chosen(drawn.groups, rewards_PG, has_rewards_P)
        if not kept:
            raise RewardBroken(f"no group of the step has all its rewards: {self.reward_errors[-1]}")
        if len(kept) == len(drawn.groups) and not algorithm.dynamic_sampling:
            return _Judged(drawn.groups, rewards_PG, num_draws, drawn.reference_BT)
        groups, rows = [group for group, _ in kept], [row for _, row in kept]
        return _Judged(groups, torch.stack(rows), num_draws, is_partial=True)

    def is_right(self, prompt: Prompt, rollout: Rollout) -> bool:
        """Whether an answer counts as right; one that could not be judged does not, or raises RewardBroken."""
        try:
            return self.task.is_right(prompt, rollout)
        except RewardBroken as error:
            if self.config.task.on_reward_error == "stop":
                raise
            self.reward_errors.append(str(error))
            return False

    def sampling(self, *, is_greedy: bool = False) -> Sampling:
        """How answers are drawn in training, or one greedy answer each for validation."""
        rollout = self.config.rollout
        count = 1 if is_greedy else rollout.rollouts_per_prompt
        return Sampling(count, self.task.max_new_tokens, rollout.temperature, is_greedy=is_greedy)

    def generator_stats(self) -> GeneratorStats | None:
        """What generators in other processes did since this was last asked; None where there are none."""
        remote = self._remote()
        return None if remote is None else remote.take_stats()

    def lost_generators(self) -> list[str] | None:
        """Those that were lost so far, in words; None where there are none in other processes."""
        remote = self._remote()
        return None if remote is None else remote.pool.losses

    def twin_engine(self) -> Engine | None:
        """An engine with weights of its own over the same generators; None where there are none."""
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

    def state(self, step: int) -> State:
        """All that the turn after `step` depends on, on every rank; a collective."""
        samplers = self.world.gather(self.engine.random_state().cpu())
        state = {
            "step": step,
            "settings": self.config.lasting(),
            "learner": self.learner.state(),
            "sampler_random": {str(rank): state for rank, state in enumerate(samplers)},
            **self._drawn(),
            **self._lying_ready(),
        }
        return origin.added(state, self._reference_engine())

    def _drawn(self) -> dict[str, Any]:
        """What the prompts that come next depend on."""
        if self.epoch is None:
            return {"prompts_random": self.prompts_random.get_state()}
        return {"prompts_random": self.epoch.before, "prompts_taken": self.epoch.num_taken}

    def _draw_from(self, state: Mapping[str, Any]) -> None:
        """Draws next what came after `_drawn` gave that."""
        self.prompts_random.set_state(state["prompts_random"].cpu())
        if self.epoch is not None:
            self.epoch.go_on(int(state.get("prompts_taken", 0)))

    def _lying_ready(self) -> dict[str, Any]:
        """The rollouts of every rank's next step, where they are made one step ahead."""
        if not self.config.rollout.off_policy:
            return {}
        ready = self.world.gather(packed(self.ahead.ready, self.task.train))
        return {"ready": {str(rank): each for rank, each in enumerate(ready)}}

    def keep(self, state: State, folder: Path) -> Saved:
        """Rank 0 saves the state, or all ranks their rows of it; what was saved. A collective."""
        saved = self.save(state, folder) if self.world.is_first or self.learner.is_sharded else None
        kept: Saved = self.world.gather(saved)[0]
        return kept

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
        self._draw_from(state)
        if self.config.rollout.off_policy:
            # A state of shards holds no empty parts: of a run that was at its end nothing lay ready.
            ready = state.get("ready", {}).get(own, {}) if len(samplers) == self.world.size else {}
            self.ahead.ready = unpacked(ready, self.task.train, self.device)
        step = int(state["step"])
        self.publish(step)
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


def assemble(
    config: Config,
    device: torch.device,
    *,
    seed: int,
    world: World | None = None,
    engine: Engine | None = None,
    logs: Path | None = None,
) -> Parts:
    """All parts of one rank from a seed, which is the same for all ranks.

    The sampler and the reference policy start as copies of the learner's policy; `engine` is used if it is given.
    Generators in other processes write what they have to say to files in `logs`.
    Raises BadSetting for a task, a model or an engine that cannot be had.
    """
    world = world or World.single()
    task = faults.task(tasks.choose(config), config.run.fault)
    if config.algorithm.overlong_buffer > task.max_new_tokens:  # as in verl's DAPO reward manager
        raise BadSetting(
            f"overlong_buffer={config.algorithm.overlong_buffer} is more than the {task.max_new_tokens} tokens of an "
            "answer (max_new_tokens): every length would cost reward"
        )
    size = task.tokenizer.vocabulary_size
    policy = build(config, size, device, seed=seed, world=world)
    reference = None
    if config.reference_at == "learner":
        reference = build(config, size, device, seed=seed, world=world, is_adapted=False)
    engine = engine or build_engine(config, task, device, seed=seed, world=world, logs=logs)
    critic = make_critic(config, size, device, seed=seed)
    longest = task.max_new_tokens * task.max_turns
    settings = faults.settings(config)
    learner = Learner(policy, reference, settings, seed=seed, critic=critic, world=world, longest_answer=longest)
    injection = noise.start(config, policy)
    generator = torch.Generator().manual_seed(seed)
    per_step, epoch = config.rollout.prompts_per_step, None
    if config.run.epochs and per_step <= len(task.train):
        epoch = Epoch(task.train, per_step, generator)

    published, errors = [0], list[str]()

    def publish(step: int) -> None:
        # Ranks may have a generator in common: it keeps its weights until all have their answers, and nobody asks it
        # for more before all have sent the new ones.
        if config.has_generators:
            world.barrier()
        weights = learner.full_weights()
        if injection is not None:
            weights = injection.apply_each(weights, step)
        # One tensor after the other where the engine can take them so: a sharded learner gathers each by itself.
        load_weights_each: Callable[[Iterator[tuple[str, Tensor]]], None] | None = getattr(
            engine, "load_weights_each", None
        )
        if load_weights_each is not None:
            load_weights_each(weights)
        else:
            engine.load_weights(dict(weights))
        barrier: Callable[[World], None] | None = getattr(engine, "barrier", None)
        if barrier is not None:
            barrier(world)
        elif config.has_generators:
            world.barrier()
        published[0] = step

    parts = Parts(
        config=config,
        task=task,
        engine=engine,
        learner=learner,
        draw=lambda: world.shard(epoch.take() if epoch is not None else draw(task.train, per_step, generator)),
        score=partial(score, task=task, config=config, device=device, errors=errors),
        pack=partial(pack, pad=task.tokenizer.pad),
        publish=publish,
        published=lambda: published[0],
        save=partial(save_shards, world=world) if learner.is_sharded else save,
        injection=injection,
        prompts_random=generator,
        device=device,
        world=world,
        epoch=epoch,
        reward_errors=errors,
    )
    if (remote := parts._reference_engine()) is not None:
        origin.begin(learner, remote)
    made: Parts = faults.broken(parts, config.run.fault, seed=config.run.seed)
    return made


def build(
    config: Config, vocabulary_size: int, device: torch.device, *, seed: int, world: World, is_adapted: bool = True
) -> Model:
    """The configured policy on the device, sharded over the ranks where that is asked for.

    What will be sharded is built on the CPU: whole, it may be more than a card holds. Raises BadSetting.
    """
    if config.run.offload and device.type == "cpu":
        raise BadSetting(OFFLOAD_ON_CPU)
    if config.run.sharding == "none" or world.size == 1:  # one rank would hold every row anyway
        return models.build(config, vocabulary_size, seed=seed, device=device, is_adapted=is_adapted)
    from trainer import sharding

    model = models.build(config, vocabulary_size, seed=seed, device=torch.device("cpu"), is_adapted=is_adapted)
    sharding.shard(model, config, device, world=world)
    return model


def make_critic(config: Config, vocabulary_size: int, device: torch.device, *, seed: int) -> Critic | None:
    """The critic, where the advantages need one."""
    if config.algorithm.estimator != "gae":
        return None
    from trainer.models import critic

    return critic.build(config, vocabulary_size, seed=seed, device=device)


def draw(prompts: Sequence[Prompt], count: int, generator: torch.Generator) -> list[Prompt]:
    """Prompts at random; none twice before each was drawn once."""
    order: list[int] = []
    while len(order) < count:
        order += torch.randperm(len(prompts), generator=generator).tolist()
    return [prompts[index] for index in order[:count]]


class Epoch:
    """All prompts in a random order, from which each draw takes the next ones; without enough left, in a new order.

    So an epoch asks each prompt once, and leaves out what is less than a draw at its end, as verl's loader does.
    """

    def __init__(self, prompts: Sequence[Prompt], count: int, generator: torch.Generator) -> None:
        self._prompts, self._count, self._generator = prompts, count, generator
        self._order: list[int] = []
        self.before: Tensor = generator.get_state()  # the random numbers that this epoch's order was made from
        self.num_taken = 0

    def take(self) -> list[Prompt]:
        if len(self._order) - self.num_taken < self._count:
            self._begin()
        first, self.num_taken = self.num_taken, self.num_taken + self._count
        return [self._prompts[index] for index in self._order[first : self.num_taken]]

    def go_on(self, num_taken: int) -> None:
        """Takes up an epoch where so many prompts were taken; the generator stands as in `before`."""
        self._begin()
        self.num_taken = num_taken

    def _begin(self) -> None:
        self.before, self.num_taken = self._generator.get_state(), 0
        self._order = torch.randperm(len(self._prompts), generator=self._generator).tolist()


def score(
    groups: Sequence[Group], *, task: Task, config: Config, device: torch.device, errors: list[str] | None = None
) -> Tensor:
    """Rewards [P, G]: what the environment paid, else the task's; less the penalty for answers near the limit.

    A reward that cannot be had raises RewardBroken, is 0 or NaN, as `on_reward_error` says; `errors` gets its reason.
    """
    algorithm, on_error = config.algorithm, config.task.on_reward_error
    if on_error == "stop":
        errors = None
    elif errors is None:
        errors = []
    rewards = limit.score(groups, task, limit_s=reward_limit_s(config), errors=errors)
    dtype = torch.promote_types(getattr(torch, config.run.dtype), torch.float32)
    rewards_PG = torch.tensor(rewards, dtype=dtype, device=device)
    if on_error == "zero":
        rewards_PG = rewards_PG.nan_to_num(nan=0.0)
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
