"""The loop on one page: draw, generate, score, look, judge, update, publish, record.

`trainer.assembly` puts the parts together as a configuration says; `train` is the run; `advance` is one turn of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trainer.interrupt import Interrupt, Left
from trainer.metrics.step import StepResult, describe_step, over_ranks
from trainer.stages.watch import Watch

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.assembly import Parts
    from trainer.config import Config
    from trainer.metrics.progress import Progress
    from trainer.metrics.records import Records


def advance(parts: Parts, step: int, progress: Progress) -> StepResult:
    """One turn: new rollouts, one update from them, the new weights to the sampler.

    One step off policy the rollouts lay ready, and those of the next turn are made while this one's are learnt from.
    """
    num_errors = len(parts.reward_errors)
    made = parts.rollouts(progress)
    lag = parts.learner.steps_done - made.step
    parts.engine.sleep()
    with progress.part("old_log_prob"):
        batch = parts.pack(made.groups, made.rewards_PG)
        logprobs = parts.learner.forward_only(batch, made.reference_BT)
    with progress.part("adv"):
        advantages = parts.learner.compute_advantages(batch, logprobs)
    with progress.part("update_actor"):
        update = parts.learner.update(batch, logprobs, advantages)
    parts.settle(progress)
    with progress.part("update_weights"):
        parts.engine.wake()
        parts.publish(step)
    return StepResult(
        made.groups,
        made.rewards_PG,
        batch,
        logprobs,
        advantages,
        update,
        made.num_drawn,
        parts.generator_stats(),
        None if parts.config.task.on_reward_error == "stop" else len(parts.reward_errors) - num_errors,
        lag,
    )


def train(
    parts: Parts,
    config: Config,
    *,
    out: Path,
    records: Records,
    progress: Progress,
    interrupt: Interrupt | None = None,
    num_validated: int | None = None,
) -> None:
    """The whole run from the step that the parts stand at; every record but the first and the last is written here.

    An interrupt leaves after the step at hand, whose state is saved. `num_validated` is for a run that goes on: the
    prompts of its evaluation before the first step. Raises Left, and RewardBroken when the state is saved.
    """
    interrupt = interrupt or Interrupt()
    watch = Watch(parts, config, out, records, progress, advance=advance, num_validated=num_validated)
    with watch.saves_first():
        if num_validated is None:
            watch.validate("before", parts.learner.steps_done)
        with interrupt.held():
            for step in range(parts.learner.steps_done + 1, config.run.steps + 1):
                twin = watch.split_off(step)
                began = time.perf_counter()
                result = advance(parts, step, progress)
                seconds = time.perf_counter() - began
                watch.compare(twin, step)
                watch.look_at(result, step)
                described = parts.world.gather(describe_step(result, config, seconds, progress))
                records.write("step", step=step, **over_ranks(described))
                progress.steps_done = step
                watch.between_steps(step)
                if (name := interrupt.asked(parts.world)) is not None:
                    watch.save(step)
                    raise Left(name, step)
            watch.validate("after", config.run.steps)
            watch.finish()
