"""GRPO on one page: prompts, generate, rewards, filter, batch, log-probabilities, advantages, update, weight sync.

`train` is the run and `train_step` one step of it. Observers follow the steps: they check, record, validate and save,
and the loop knows none of that. Variation hides behind the calls: `trainer.trainer` for what concerns rollouts,
`trainer.learner` for what concerns the policy. Shapes: P prompts, G rollouts per prompt, B = P*G rows, T tokens.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer.algorithms.update_metrics import UpdateMetrics
from trainer.launch import Interrupt, Interrupted
from trainer.metrics.step import StepResult
from trainer.rollouts import RewardedGroups
from trainer.run_state import set_reference
from trainer.tasks.base import RewardBroken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.algorithms.advantages import Advantages
    from trainer.learner import ForwardOutputs, Learner
    from trainer.metrics.step import Observer
    from trainer.rollouts import GeneratedGroups, RolloutBatch
    from trainer.trainer import Trainer
    from trainer.types import Batch


def train(trainer: Trainer, observers: Sequence[Observer] = (), *, interrupt: Interrupt | None = None) -> None:
    """Runs the remaining steps. Raises Interrupted after the step in which a signal came."""
    interrupt = interrupt or Interrupt()
    for observer in observers:
        observer.on_start()
    with interrupt.deferred():
        for step in range(trainer.learner.global_step + 1, trainer.config.run.steps + 1):
            for observer in observers:
                observer.on_step_start(step)
            result = train_step(trainer, step)
            for observer in observers:
                observer.on_step(step, result)
            if (signal := interrupt.requested(trainer.world)) is not None:
                raise Interrupted(signal, step)
    for observer in observers:
        observer.on_end()


def train_step(trainer: Trainer, step: int) -> StepResult:
    """New rollouts, one update from them, the new weights to the engine."""
    began, num_errors = time.perf_counter(), len(trainer.reward_errors)
    learner, progress = trainer.learner, trainer.progress
    rollouts = next_rollouts(trainer)
    staleness = learner.global_step - rollouts.step
    trainer.engine.sleep()
    # verl's name for it; here also the batch, the learner's reference, the critic's values and rejection
    with progress.phase("old_log_prob"):
        batch = trainer.make_batch(rollouts.groups, rollouts.rewards_PG)
        logprobs = learner.compute_logprobs(batch, rollouts.reference_BT)
        batch = learner.reject(batch, logprobs)
    with progress.phase("adv"):
        advantages = learner.compute_advantages(batch, logprobs)
    with progress.phase("update_actor"):
        update = update_policy(learner, batch, logprobs, advantages)
    finish_prefetch(trainer)
    with progress.phase("update_weights"):
        trainer.engine.wake()
        trainer.sync_weights(step)
        if trainer.needs_new_reference(step):
            set_reference(trainer)
    return StepResult(
        groups=rollouts.groups,
        rewards_PG=rollouts.rewards_PG,
        batch=batch,
        logprobs=logprobs,
        advantages=advantages,
        update=update,
        num_generated=rollouts.num_generated,
        stats=trainer.generator_stats(),
        reward_errors=trainer.count_reward_errors(since=num_errors),
        staleness=staleness,
        seconds=time.perf_counter() - began,
    )


def next_rollouts(trainer: Trainer) -> RolloutBatch:
    """The rollouts of the next step: prefetched, else generated now. Off policy, starts to generate those of the step
    after.

    Raises StaleWeights if they were sampled with weights older than the run allows, and RewardBroken.
    """
    prefetch = trainer.prefetch
    rollouts = (prefetch.take() if prefetch is not None else None) or make_rollouts(trainer)
    trainer.check_staleness(rollouts)
    if rollouts.reference_BT is None and (reference_BT := trainer.reference_logprobs(rollouts.groups)) is not None:
        rollouts = replace(rollouts, reference_BT=reference_BT)
    if prefetch is not None and trainer.learner.global_step + 1 < trainer.config.run.steps:
        prompts = trainer.next_prompts()
        prefetch.start(lambda progress: trainer.generate(prompts, progress))
    return rollouts


def finish_prefetch(trainer: Trainer) -> None:
    """Waits for the groups that are being generated, before the engine gets other weights, and scores them."""
    prefetch = trainer.prefetch
    if prefetch is not None and (generated := prefetch.wait(trainer.progress)) is not None:
        try:
            prefetch.ready = make_rollouts(trainer, generated)
        except RewardBroken as error:  # the step at hand is done, and recorded first
            prefetch.error = error


def make_rollouts(trainer: Trainer, generated: GeneratedGroups | None = None) -> RolloutBatch:
    """Groups with their rewards, from the engine's present weights; `generated` are those of the first batch.

    A collective. Raises RewardBroken, on all ranks, if a reward of any of them ends the run; the next call then samples
    the same prompts again.
    """
    before, rewarded, error = trainer.sampling_state(), RewardedGroups(), None
    try:
        rewarded = sample_groups(trainer, generated)
    except RewardBroken as broken:
        error = broken
    return trainer.agree_on_rollouts(rewarded, error, before)


def sample_groups(trainer: Trainer, generated: GeneratedGroups | None = None) -> RewardedGroups:
    """This rank's groups: prompts are sampled, answers generated, rewarded and filtered.

    With dynamic sampling (DAPO) groups without a signal are dropped and others sampled, up to `max_generations`
    batches. The groups found until then are used: if none has a signal, the last batch as it is. Raises RewardBroken.
    """
    algorithm, num_prompts = trainer.config.algorithm, trainer.num_prompts
    useful = RewardedGroups()
    for num_batches in range(1, (algorithm.max_generations if algorithm.dynamic_sampling else 1) + 1):
        if generated is None or num_batches > 1:
            generated = trainer.generate(trainer.next_prompts())
        with trainer.progress.phase("reward"):
            rewards_PG = trainer.compute_rewards(generated.groups)
            groups = trainer.with_reward_parts(generated.groups)
        rewarded = RewardedGroups(groups, rewards_PG, num_batches, generated.reference_BT)
        useful = useful.extended(rewarded.where(trainer.is_useful(rewards_PG)))
        if len(useful.groups) >= num_prompts:
            break
    useful = useful.first(num_prompts) if useful.groups else rewarded.where(trainer.has_rewards(rewards_PG))
    if not useful.groups:
        raise RewardBroken(f"no group of the step has all its rewards: {trainer.reward_errors[-1]}")
    if len(useful.groups) == len(rewarded.groups) and not algorithm.dynamic_sampling:
        return rewarded
    return useful


def update_policy(learner: Learner, batch: Batch, logprobs: ForwardOutputs, advantages: Advantages) -> UpdateMetrics:
    """One optimizer step for each mini batch of each epoch; the old policy is the one before the first of them."""
    value_loss = learner.update_critic(batch, logprobs, advantages)
    steps = []
    for rows in learner.split_mini_batches(batch):
        micro_batches, totals = learner.split_micro_batches(batch, rows)
        metrics = []
        learner.optimizer.zero_grad()
        with learner.optimizer.accumulating(len(micro_batches)):
            for micro_rows in micro_batches:
                loss, metrics_of_loss = learner.loss(batch, micro_rows, logprobs, advantages, totals)
                loss.backward()  # type: ignore[no-untyped-call]
                metrics.append(metrics_of_loss)
        learner.reduce_gradients()
        step_metrics, lr = learner.reduce_metrics(metrics), learner.lr()
        grad_norm = learner.optimizer.step(lr=lr, grad_clip=learner.grad_clip)
        steps.append({**step_metrics, "grad_norm": grad_norm, "lr": lr})
    return UpdateMetrics.mean(steps, value_loss=value_loss)
