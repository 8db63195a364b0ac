"""Seconds of a step with one generator and two, on policy and one step off: `python -m tests.benchmarks.generators`.

All runs take turns, step by step, so that what else the machine does meets each of them. Every process has one thread:
with two generators and a learner that works at the same time, three cores are wanted. A row tells the median step, what
it was spent on, and how long each side waited for the other. Needs Ray.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tests.trainer.placement.ray_cases import places_of
from trainer.config import Config
from trainer.generator import AssignedGenerators, assign_generators
from trainer.loop import train_step
from trainer.metrics.records import Progress
from trainer.metrics.step import of_generators
from trainer.placement.rank import RayGenerator
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.placement.rank import Place
    from trainer.trainer import Trainer

DEVICE = torch.device("cpu")


@dataclass
class Row:
    """One run, and what its steps were like."""

    name: str
    trainer: Trainer
    steps: int = 0
    seconds: list[float] = field(default_factory=list)
    learner_idle: list[float] = field(default_factory=list)
    generator_idle: list[float] = field(default_factory=list)

    def step(self) -> None:
        self.steps += 1
        self.trainer.progress = progress = Progress()
        result = train_step(self.trainer, self.steps)
        found = of_generators(result, progress.seconds, result.seconds)
        self.seconds.append(result.seconds)
        self.learner_idle.append(found.get("learner/idle_s", progress.seconds.get("gen", 0.0)))
        self.generator_idle.append(found.get("generators/idle_s", 0.0))


def config(generators: int, off_policy: int, words: argparse.Namespace) -> Config:
    plain = Config()
    return replace(
        plain,
        run=replace(plain.run, steps=10_000, dtype=words.dtype),
        task=replace(plain.task, max_new_tokens=words.tokens, task="addition"),
        model=replace(
            plain.model, layers=words.layers, hidden=words.hidden, heads=6, kv_heads=2, intermediate=words.intermediate
        ),
        rollout=replace(plain.rollout, generators=generators, off_policy=off_policy),
        algorithm=replace(plain.algorithm, kl_coef=0.0, correction="token" if off_policy else "none"),
        optim=replace(plain.optim, mini_batches=1, lr=1e-5),
    )


def trainer_of(made: Config, places: Sequence[Place]) -> Trainer:
    """A run whose generators are at these places; without any the learner's process generates."""
    generators = AssignedGenerators(len(places), lambda slot, order: RayGenerator(places[slot], order))
    assign_generators(generators if places else None)
    return build_trainer(made, DEVICE, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("steps", 8), ("layers", 6), ("hidden", 384), ("intermediate", 1024), ("tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32")
    words = parser.parse_args()
    torch.set_num_threads(1)
    kinds = (
        ("in the learner", 0, 0),
        ("1 generator", 1, 0),
        ("2 generators", 2, 0),
        ("1 generator, one step off", 1, 1),
        ("2 generators, one step off", 2, 1),
    )
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = stack.enter_context(places_of(config(6, 0, words), folder))
        for name, generators, off_policy in kinds:
            own, places = places[:generators], places[generators:]
            rows.append(Row(name, trainer_of(config(generators, off_policy, words), own)))
            stack.callback(rows[-1].trainer.close)
        for _ in range(words.steps + 2):
            for row in rows:
                row.step()
    print("run                           step s   learner idle   generators idle   1 generator over it")
    base = statistics.median(rows[1].seconds[2:])
    for row in rows:
        step, learner, generator = (
            statistics.median(values[2:]) for values in (row.seconds, row.learner_idle, row.generator_idle)
        )
        print(f"{row.name:<28}{step:>8.3f}{learner:>15.3f}{generator:>18.3f}{base / step:>22.2f}")


if __name__ == "__main__":
    main()
