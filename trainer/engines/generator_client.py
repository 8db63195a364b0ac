"""The interface between the learner's process and engines in other processes, on this machine or another.

`trainer.engines.remote.Remote` is the engine that distributes prompts over generators, each a
`trainer.placement.rank.RayGenerator`. In each engine's process a `trainer.generator.Server` runs: a generator's
methods call those of the same names of the server. `EngineSpec` carries the inputs of the engine. A generator has no
random state of its own: `Sampling.seeds` decides the samples of each prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.engine import Sampling, Tokens
    from trainer.tasks.base import Task
    from trainer.types import Batch, Rollout
    from trainer.weights import Bucket

T_co = TypeVar("T_co", covariant=True)


class GeneratorLost(RuntimeError):
    """A generator that can no longer be used: it died, hangs, or returned an invalid response.

    Example: `generator 1 was killed by SIGKILL`.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.name, self.why = name, why

    def __reduce__(self) -> tuple[type[GeneratorLost], tuple[str, str]]:
        return type(self), (self.name, self.why)


@dataclass(frozen=True, slots=True)
class Generated:
    """What one call of `generate` made."""

    groups: list[tuple[Rollout, ...]]  # of each prompt, in order
    version: int  # of the weights that they were drawn with; -1: those that the engine started with
    seconds: float  # that the engine computed


@dataclass(frozen=True, slots=True)
class ReferenceLogProbs:
    """Log-probabilities of some micro batches under a generator's reference policy."""

    logprobs: tuple[Tensor, ...]  # [B, T] of each, on the CPU; 0 where its mask is off
    mark: int  # of the weights that say so: their `trainer.weights.fingerprint`
    seconds: float  # that it computed


@dataclass(slots=True)
class GeneratorStats:
    """What generators did in a step."""

    # Seconds of computing samples, except greedy ones, and of the reference's log-probabilities; mean over the
    # generators.
    busy_s: float = 0.0
    weights_s: float = 0.0  # until all of them had new weights
    weights_bytes: int = 0  # sent to them, added up
    num_lost: int = 0


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What an engine needs of a tokenizer: it neither reads nor writes text."""

    vocabulary_size: int
    pad: int
    end: int | None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The inputs of an engine; they can be sent to another process."""

    config: Config
    tokenizer: TokenizerInfo
    max_new_tokens: int
    has_environment: bool
    seed: int  # of the weights before any were sent

    @classmethod
    def of(cls, config: Config, task: Task, *, seed: int) -> EngineSpec:
        words = task.tokenizer
        tokenizer = TokenizerInfo(words.vocabulary_size, words.pad, words.end)
        return cls(config, tokenizer, task.max_new_tokens, task.environment is not None, seed)


class Pending(Protocol[T_co]):
    """A response that has not arrived yet."""

    def result(self, timeout_s: float) -> T_co:
        """The response, as soon as it has arrived; later calls return it again.

        Raises TimeoutError if it has not arrived, and may then be called again; GeneratorLost if it will not arrive.
        """


class Generator(Protocol):
    """One engine in another process. Responses come in the order of the requests.

    Every method returns at once; only `Pending.result` raises GeneratorLost.
    """

    @property
    def name(self) -> str:
        """For messages: the name and location. Example: `generator 1`, `generator 3 on node02`."""

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> Pending[Generated]:
        """As `Engine.generate`; `sampling.seeds` has one number for each prompt."""

    def load(self, bucket: Bucket) -> Pending[None]:
        """Sends one bucket. The engine loads a version when its last bucket has arrived, in any order.

        `bucket.flat` must not change before its result has arrived.
        """

    def reference_logprobs(self, parts: Sequence[Batch]) -> Pending[ReferenceLogProbs]:
        """Log-probabilities of micro batches under its reference policy; the micro batches are on the CPU."""

    def load_reference(self, bucket: Bucket) -> Pending[None]:
        """As `load`, of the reference policy's weights."""

    def leave(self, kind: str, buckets: Sequence[Bucket]) -> Pending[None]:
        """Stores references to the buckets, for ranks that share it; replaces the previous ones of this kind."""

    def left(self, kind: str) -> Pending[Sequence[Bucket]]:
        """The buckets that another rank has stored; empty: none. Answered in parallel to computations."""

    def sleep(self) -> Pending[None]:
        """As `Engine.sleep`."""

    def wake(self) -> Pending[None]:
        """As `Engine.wake`."""

    def end(self) -> None:
        """Stops the generator within seconds; safe to call twice. Never raises."""
