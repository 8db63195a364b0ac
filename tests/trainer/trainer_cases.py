"""Small runs and hand-made rollouts for the trainer's tests."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import Config
from trainer.loop import train, train_step
from trainer.metrics.records import FILE, Records
from trainer.metrics.step import StepRecords
from trainer.models import build
from trainer.models.decoder import Decoder
from trainer.stages.second_look import SecondLook
from trainer.stages.watch import Watch
from trainer.tasks.digits import prompt
from trainer.tasks.tokenizers import Characters
from trainer.trainer import build_trainer
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.engines.engine import Sampling, Tokens
    from trainer.launch import Interrupt
    from trainer.trainer import Trainer

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TEXT = Characters()
PAD, END = TEXT.pad, TEXT.end


def changed(config: Config, **values: object) -> Config:
    """The configuration with some settings at other values; sections are found by the names."""
    for section in fields(config):
        part = getattr(config, section.name)
        own = {each.name: values[each.name] for each in fields(part) if each.name in values}
        config = replace(config, **{section.name: replace(part, **own)})
    unknown = set(values) - set(config.flat())
    assert not unknown, unknown
    return config


TINY = changed(
    Config(),
    layers=2,
    hidden=16,
    heads=4,
    kv_heads=2,
    intermediate=24,
    prompts_per_step=3,
    rollouts_per_prompt=4,
    mini_batches=1,
)


def of_a_child() -> dict[str, str]:
    """The environment of a process that imports the trainer: torch may be lent to this one by the path alone."""
    path = os.pathsep.join([str(ROOT), str(Path(torch.__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def decoder(config: Config = TINY, *, seed: int = 0) -> Decoder:
    """A decoder whose biases and norms are random too, so that leaving one out would show."""
    made = build(config, TEXT.vocabulary_size, seed=seed, device=CPU)
    assert isinstance(made, Decoder)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.3)
    return made


def rollout(tokens: Sequence[int], logprob: float = -1.0) -> Rollout:
    return Rollout(tuple(tokens), (logprob,) * len(tokens), Stop.END)


def group(text: str, *answers: Sequence[int]) -> Group:
    return Group(prompt(text, "1", TEXT), tuple(rollout(answer) for answer in answers))


def run(out: Path, config: Config, trainer: Trainer | None = None) -> list[dict[str, Any]]:
    """The records of a whole run in this process, without header and end."""
    with Records(out) as records:
        watched(trainer or build_trainer(config, CPU, seed=config.run.seed), config, out, records)
    return read(out)


def watched(
    trainer: Trainer,
    config: Config,
    out: Path,
    records: Records,
    *,
    interrupt: Interrupt | None = None,
    num_validated: int | None = None,
) -> None:
    """The steps of a run with everything that follows them."""
    look = SecondLook(trainer, config, records)
    watch = Watch(trainer, config, out, records, look, train_step=train_step, num_validated=num_validated)
    with watch.saves_before_leaving():
        steps = StepRecords(config, records, trainer.progress, trainer.world)
        train(trainer, [look, steps, watch], interrupt=interrupt)


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / FILE).read_text(encoding="utf-8").splitlines()]


def only(records: Sequence[Mapping[str, Any]], **having: object) -> Mapping[str, Any]:
    """The one record with these values."""
    (found,) = [record for record in records if all(record.get(key) == value for key, value in having.items())]
    return found


class Scripted:
    """An engine that gives prepared answers and remembers the weights it was given."""

    def __init__(self, answers: Mapping[str, Sequence[Rollout]]) -> None:
        self.answers = answers
        self.received: dict[str, Tensor] = {}

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        count = sampling.rollouts_per_prompt
        return [tuple(self.answers[TEXT.decode(each)][:count]) for each in prompts]

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self.received = {name: weight.detach().clone() for name, weight in weights.items()}

    def weights(self) -> Mapping[str, Tensor]:
        return self.received

    def sleep(self) -> None:
        """Nothing to give up."""

    def wake(self) -> None:
        """Nothing to take back."""

    def random_state(self) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def restore_random_state(self, state: Tensor) -> None:
        """There is nothing random to restore."""


def scripted(config: Config, answers: Mapping[str, Sequence[Rollout]]) -> tuple[Trainer, Scripted]:
    """A trainer whose engine is scripted."""
    trainer, engine = build_trainer(config, CPU, seed=config.run.seed), Scripted(answers)
    weights = trainer.learner.weights
    trainer.engine = engine
    trainer.sync_weights = lambda step: engine.load_weights(weights())  # type: ignore[method-assign]
    return trainer, engine
