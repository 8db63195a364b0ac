"""Supervised steps on a task's right answers before the first rollout, for tasks that chance alone never solves.

The answers are those that the task knows: a shortest solution of a map, a sum. The policy after it is where the run
starts: the reference policy is a copy of it, and the optimizer's moments begin at 0.

`warm_start_until` says how good the policy shall be then, which a number of steps does not: after 150 steps seeds were
anywhere from 11 to 64 %. Far below, the rewards are too rare to learn from; far above, little is left to gain.

Example, FrozenLake on 3 x 3: `task=frozen_lake layers=2 hidden=128 intermediate=256 prompts_per_step=16
rollouts_per_prompt=8 steps=150 warm_start_steps=400 warm_start_lr=3e-4 warm_start_until=0.35 lr=1e-3 warmup_steps=100
mini_batches=4 entropy_coef=0.01 kl_coef=0`. Success on the 64 held-out maps after the warm start and at the end, with
CPU seconds of one thread, stages of a smoke test left out. The work is the same for all: the seconds tell how busy a
shared machine was. No setting was chosen by the seeds from 20 on.

    seed        0    1    2    3    4    5    6    7    8    9   20   21   22   23   24
    before    .44  .38  .25  .36  .36  .38  .47  .44  .42  .39  .56  .36  .48  .44  .33
    after     .77  .75  .75  .75  .77  .72  .75  .77  .77  .77  .77  .77  .75  .75  .77
    seconds    41   46   49   52   48   48   48   41   56   49   51   56   65   63   72

To walk up or down first, then sideways, without a look at the holes, solves 49 of the 64 (.77), where most seeds end:
the holes are not learnt in that time. `warmup_steps` keeps the first steps, whose moments are fresh, from undoing what
was just learnt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.distributed import put
from trainer.rollouts import collect, demonstrate, sample_prompts
from trainer.run_state import set_reference
from trainer.supervised import SFTLearner
from trainer.types import Group

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.metrics.records import Progress, Records
    from trainer.tasks.base import Task
    from trainer.trainer import Trainer
    from trainer.types import Prompt

# Steps between two records, and between two looks at how many answers are right.
_EVERY = 10
# Not the run's own seed: its first prompts would be those that were just learnt.
_APART = 7_919
# Prompts of training that are answered in such a look: the same ones each time, and in every run.
_NUM_CHECKED = 256
_CHECK_SEED = 0


def run(trainer: Trainer, config: Config, records: Records, progress: Progress) -> None:
    """Runs up to the configured steps, `prompts_per_step` right answers each, and gives the weights to the engine.

    With `warm_start_until` it ends at the first evaluation with this accuracy; the last record's `ended` says why:
    "reached" or "steps". Raises BadSetting for a task without right answers, or whose own reward rejects them.
    """
    optim, task = config.optim, trainer.task
    learner = SFTLearner(
        trainer.learner.model, optim, pad=task.tokenizer.pad, device=trainer.device, world=trainer.world
    )
    generator = torch.Generator().manual_seed(config.run.seed + _APART)
    losses: list[float] = []
    ended = None
    # Each step and each evaluation is a part of its own: ended parts show that a run makes progress.
    for step in range(1, optim.warm_start_steps + 1):
        with progress.phase("warm_start"):
            prompts = trainer.world.shard(sample_prompts(task.train, config.rollout.prompts_per_step, generator))
            sft_step = learner.step([demonstration(prompt, task) for prompt in prompts], lr=optim.warm_start_lr)
        losses.append(sft_step.loss)
        if step % _EVERY and step < optim.warm_start_steps:
            continue
        accuracy = None
        if optim.warm_start_until:
            with progress.phase("warm_start"):
                accuracy = share_right(trainer)
        if accuracy is not None and accuracy >= optim.warm_start_until:
            ended = "reached"
        elif step == optim.warm_start_steps:
            ended = "steps"
        loss, losses = sum(losses) / len(losses), []
        metrics: dict[str, Any] = {"loss": loss, "lr": optim.warm_start_lr, "grad_norm": sft_step.grad_norm}
        metrics |= {"accuracy": accuracy, "ended": ended, "wall_s": progress.elapsed_s()}
        records.write("warm-start", step=step, of=optim.warm_start_steps, **metrics)
        if ended:
            break
    with progress.phase("warm_start"):
        policy = dict(trainer.learner.model.named_parameters())
        for name, wide in trainer.learner.optimizer.adamw.master.items():
            put(wide, policy[name])  # the optimizer's float32 copy of a weight that another optimizer has moved
        set_reference(trainer)
        trainer.sync_weights(0)


def share_right(trainer: Trainer) -> float:
    """The share of right greedy answers to up to 256 training prompts, from the learner's weights; a collective.

    None of them is held out, so that the starting point does not depend on the validation prompts.
    """
    generator = torch.Generator().manual_seed(_CHECK_SEED)
    prompts = sample_prompts(trainer.task.train, min(_NUM_CHECKED, len(trainer.task.train)), generator)
    trainer.engine.load_weights(trainer.learner.weights())
    groups = collect(trainer.engine, trainer.world.shard(prompts), trainer.task, trainer.sampling(is_greedy=True))
    right = sum(bool(trainer.is_right(group.prompt, group.rollouts[0])) for group in groups)
    return int(trainer.world.all_reduce_sum(torch.tensor(right, device=trainer.device))) / len(prompts)


def demonstration(prompt: Prompt, task: Task) -> Group:
    """A prompt with its right answer. Raises BadSetting if the task has none that its own reward accepts."""
    try:
        rollout = demonstrate(prompt, task)
    except ValueError as error:
        raise BadSetting(f"warm_start_steps: {task.name} has no right answer to {prompt.text!r}: {error}") from error
    if not task.is_right(prompt, rollout):
        raise BadSetting(f"warm_start_steps: {task.name} does not take {prompt.expected!r} for right itself")
    return Group(prompt, (rollout,))
