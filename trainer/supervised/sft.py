"""Supervised fine-tuning as a separate run: transcripts, tool calls included, with the loss on the assistant's tokens
only.

Reads `train_files` and `val_files` (jsonl, see `trainer.tasks.transcripts`), `prompts_per_step` transcripts a step.
Writes records, checkpoints, and at the end the model: `OUT/model`, with LoRA `OUT/adapter` too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer import models
from trainer.algorithms.optimizer import learning_rate
from trainer.config import BadSetting
from trainer.interrupt import Interrupted
from trainer.metrics.progress import peak_rss_mib
from trainer.saving.checkpoint import save
from trainer.saving.publish import publish_run
from trainer.saving.resume import FOLDER
from trainer.supervised.sft_learner import SFTLearner
from trainer.tasks import tokenizers, transcripts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.interrupt import Interrupt
    from trainer.metrics.progress import Progress
    from trainer.metrics.records import Records
    from trainer.tasks.base import Tokenizer
    from trainer.types import Group

COMMAND = "sft"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The parts of a run."""

    config: Config
    learner: SFTLearner
    train: Sequence[Group]
    val: Sequence[Group]
    world: World
    device: torch.device

    def batch(self, step: int) -> list[Group]:
        """This rank's transcripts of a step, counted from 1: all of them in an order of each epoch's own, on and on."""
        count, size = len(self.train), self.config.rollout.prompts_per_step
        places = range((step - 1) * size, step * size)
        return [self.train[self._order(place // count)[place % count]] for place in self.world.shard(places)]

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed((self.config.run.seed * 1_000_003 + epoch) % 2**63)
        order: list[int] = torch.randperm(len(self.train), generator=generator).tolist()
        return order

    def lr(self, step: int) -> float:
        """The learning rate of a step."""
        optim = self.config.optim
        return optim.lr * learning_rate(optim.lr_schedule, step - 1, self.config.run.steps, warmup=optim.warmup_steps)

    def state(self, step: int) -> dict[str, Any]:
        """All that the step after this one depends on."""
        settings = {**self.config.lasting(), "command": COMMAND}
        return {"step": step, "settings": settings, "tuned": self.learner.state()}

    def val_loss(self) -> tuple[float, int]:
        """The mean over the assistant's tokens of all held-out transcripts, and their number; a collective."""
        own, size = self.world.shard(self.val), self.config.rollout.prompts_per_step
        found = [self.learner.nll(own[at : at + size]) for at in range(0, len(own), size)]
        sums = [sum(each) for each in zip(*found, strict=True)] or [0.0, 0]
        total = self.world.all_reduce_sum(torch.tensor(sums, dtype=torch.float64, device=self.device)).tolist()
        return total[0] / max(total[1], 1.0), int(total[1])


def assemble(config: Config, device: torch.device, world: World) -> Tuning:
    """The components of a configuration. Raises BadSetting."""
    if config.run.sharding != "none" and world.size > 1:
        raise BadSetting(f"sharding={config.run.sharding} is for learning from rewards: sft takes sharding=none")
    tokenizer = tokenizers.choose(config.model.path)
    train = _groups("train_files", config.task.train_files, tokenizer, config)
    val = _groups("val_files", config.task.val_files, tokenizer, config) if config.task.val_files else []
    if config.run.epochs:
        steps = min(config.run.steps, max(1, config.run.epochs * len(train) // config.rollout.prompts_per_step))
        config = replace(config, run=replace(config.run, steps=steps))
    model = models.build(config, tokenizer.vocabulary_size, seed=config.run.seed, device=device)
    learner = SFTLearner(model, config.optim, pad=tokenizer.pad, device=device, world=world)
    return Tuning(config, learner, train, val, world, device)


def _groups(name: str, listed: str, tokenizer: Tokenizer, config: Config) -> list[Group]:
    paths = [Path(each.strip()) for each in listed.split(",") if each.strip()]
    if not paths:
        raise BadSetting(f"{name} is needed: a jsonl file of transcripts, {{'messages': [...]}} a line")
    found = []
    for path in paths:
        made = transcripts.read(path, tokenizer, max_tokens=config.task.max_prompt_tokens)
        found += [each.group() for each in made]
    if any(not group.prompt.tokens for group in found):
        raise BadSetting(f"{name}={listed}: a transcript begins with the assistant, who has nothing to answer")
    return found


def run(
    tuning: Tuning,
    out: Path,
    records: Records,
    progress: Progress,
    *,
    interrupt: Interrupt,
    state: Mapping[str, Any] | None = None,
) -> None:
    """The complete run, or the rest from a saved state on. Raises Interrupted."""
    config, learner, first = tuning.config, tuning.learner, 1
    if state is not None:
        learner.restore(state["tuned"])
        first = int(state["step"]) + 1
    else:
        _validate(tuning, "before", 0, records, progress)
    with interrupt.held():
        for step in range(first, config.run.steps + 1):
            records.write("step", step=step, **_step(tuning, step, progress))
            progress.steps_done = step
            is_last = step == config.run.steps
            if config.run.validate_every and step % config.run.validate_every == 0 and not is_last:
                _validate(tuning, "during", step, records, progress)
            name = interrupt.asked(tuning.world)
            if name is not None or is_last or (config.run.save_every and step % config.run.save_every == 0):
                _save(tuning, step, out, progress)
            if name is not None and not is_last:
                raise Interrupted(name, step)
        _validate(tuning, "after", config.run.steps, records, progress)
        model: Any = learner.model
        publish_run(model, out, config, records, progress, world=tuning.world)


def _step(tuning: Tuning, step: int, progress: Progress) -> dict[str, Any]:
    began, lr = time.perf_counter(), tuning.lr(step)
    with progress.part("update_actor"):
        sft_step = tuning.learner.step(tuning.batch(step), lr=lr)
    seconds = time.perf_counter() - began
    return {
        "train/loss": sft_step.loss,
        "train/grad_norm": sft_step.grad_norm,
        "train/lr": lr,
        "train/tokens": sft_step.num_tokens,
        "timing_s/step": seconds,
        "perf/throughput": sft_step.num_tokens / seconds,
        "perf/cpu_memory_used_mib": peak_rss_mib(),
        "wall_s": progress.elapsed_s(),
    }


def _validate(tuning: Tuning, when: str, step: int, records: Records, progress: Progress) -> None:
    if not tuning.val:
        return
    with progress.part("testing"):
        loss, num_tokens = tuning.val_loss()
    metrics = {"val/loss": loss, "num_prompts": len(tuning.val), "num_tokens": num_tokens}
    records.write("eval", when=when, step=step, split="heldout", **metrics)


def _save(tuning: Tuning, step: int, out: Path, progress: Progress) -> None:
    with progress.part("save_checkpoint"):
        if tuning.world.is_first:
            save(tuning.state(step), out / FOLDER)
        tuning.world.barrier()
