"""The other end of a generator: an engine behind the calls that `elsewhere.Generator` sends, in whatever process.

`Order` carries there what an engine is made from; `start` makes it, with a reference policy beside it where the run
keeps that in its generators; `Server` answers. `trainer.generator` is the program around them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.engines.elsewhere import Generated, Referred
from trainer.tasks.base import Task
from trainer.weights.loading import Loading, NotWhole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from trainer.config import Config
    from trainer.engines.base import Engine, Sampling, Tokens
    from trainer.engines.reference import Reference
    from trainer.tasks.base import Said
    from trainer.types import Batch, Prompt, Rollout
    from trainer.weights.buckets import Bucket


@dataclass(frozen=True, slots=True)
class Marks:
    """What an engine needs to know of a tokenizer: no text is read or written where it generates."""

    vocabulary_size: int
    pad: int
    end: int | None

    def encode(self, text: str) -> tuple[int, ...]:
        raise ValueError("a generator reads no text")

    def decode(self, tokens: Sequence[int]) -> str:
        raise ValueError("a generator writes no text")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        raise ValueError("a generator reads no text")


@dataclass(frozen=True, slots=True)
class Order:
    """What a generator's engine is made from; it can be sent."""

    config: Config
    marks: Marks
    max_new_tokens: int
    has_environment: bool
    seed: int  # of the weights before any were sent

    @classmethod
    def of(cls, config: Config, task: Task, *, seed: int) -> Order:
        words = task.tokenizer
        marks = Marks(words.vocabulary_size, words.pad, words.end)
        return cls(config, marks, task.max_new_tokens, task.environment is not None, seed)

    def task(self) -> Task:
        """A task without questions, for the makers of engines."""
        environment = _Unasked if self.has_environment else None
        return Task("", self.marks, (), (), self.max_new_tokens, _unjudged, _unjudged, environment)


def _unjudged(prompt: Prompt, rollout: Rollout) -> bool:
    raise ValueError("a generator judges nothing")


class _Unasked:
    """Says that the task has an environment; it lives where rollouts are put together."""

    def __init__(self, prompt: Prompt) -> None:
        raise ValueError("a generator has no environment")

    def step(self, answer: str) -> Said:
        raise ValueError("a generator has no environment")


def start(order: Order, device: torch.device) -> Server:
    """The engine of an order, and its reference policy if it is to keep one. Raises BadSetting."""
    from trainer.engines import making, reference

    config = order.config
    engine = making.make(config, order.task(), device, seed=order.seed, sampling_seed=order.seed)
    if config.reference_at != "generators":
        return Server(engine)
    return Server(engine, reference.start(config, order.marks.vocabulary_size, device, seed=order.seed))


class Server:
    """An engine and which version of the weights it holds; a reference policy, whose weights are others."""

    def __init__(self, engine: Engine, reference: Reference | None = None) -> None:
        self._engine, self._reference = engine, reference
        self._loading = Loading(engine.receive, engine.weights)
        self._replacing = None if reference is None else Loading(reference.receive, reference.weights)
        self._left: dict[str, Sequence[Any]] = {}

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> Generated:
        """Raises NotWhole while the weights are not those of one version."""
        version = self._loading.version
        if version is None:
            raise NotWhole("the engine's weights are not those of one version")
        began = time.perf_counter()
        groups = self._engine.generate(prompts, sampling)
        return Generated(groups, version, time.perf_counter() - began)

    def load(self, bucket: Bucket) -> None:
        """Takes one bucket, and a whole version over when it is the last one missing. Raises NotWhole."""
        self._loading.add(bucket)

    def refer(self, parts: Sequence[Batch]) -> Referred:
        """What the reference policy says. Raises NotWhole while its weights are not those of one version."""
        if self._reference is None or self._replacing is None:
            raise ValueError("this generator was started without a reference policy")
        if self._replacing.version is None:
            raise NotWhole("the reference policy's weights are not those of one version")
        return self._reference.refer(parts)

    def load_reference(self, bucket: Bucket) -> None:
        """As `load`, for the reference policy. Raises NotWhole."""
        if self._replacing is None:
            raise ValueError("this generator was started without a reference policy")
        self._replacing.add(bucket)

    def leave(self, kind: str, parcels: Sequence[Any]) -> None:
        """Keeps what tells others where weights lie, in the place of what it kept of that kind."""
        self._left[kind] = parcels

    def left(self, kind: str) -> Sequence[Any]:
        """What was left last of a kind; empty: nothing."""
        return self._left.get(kind, ())

    def sleep(self) -> None:
        """As the engine's."""
        self._engine.sleep()

    def wake(self) -> None:
        """As the engine's."""
        self._engine.wake()
