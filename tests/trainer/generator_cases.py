"""Generators without processes: a server in this one, whose answers a test can delay, lose or spoil."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.trainer.trainer_cases import CPU, END, TINY, changed
from trainer import generator
from trainer.engines import remote
from trainer.engines.generator_client import EngineSpec, Generated, GeneratorLost, ReferenceLogProbs
from trainer.tasks import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.engine import Sampling, Tokens
    from trainer.generator import Server
    from trainer.types import Batch
    from trainer.weights import Bucket

T = TypeVar("T")
FLAT = changed(TINY, layers=1, generators=2, generator_timeout_s=5.0)
PROMPTS: list[Tokens] = [(1, 11), (2, 11), (3, 4, 11), (5, 11), (7, 8, 9, 11)]


@dataclass
class Local(Generic[T]):
    """An answer that is made when it is asked for."""

    make: Callable[[], T]

    def result(self, timeout_s: float) -> T:
        return self.make()


@dataclass
class InProcess:
    """A generator over a server of this process. `spoil` may change an answer, or raise instead of one.

    `spoil_reference` does so with what its reference policy says.
    """

    name: str
    server: Server
    spoil: Callable[[Generated], Generated] = lambda found: found
    spoil_reference: Callable[[ReferenceLogProbs], ReferenceLogProbs] = lambda found: found
    asked: list[Sequence[Tokens]] = field(default_factory=list)
    referred: list[Sequence[Batch]] = field(default_factory=list)
    loaded: list[Bucket] = field(default_factory=list)
    replaced: list[Bucket] = field(default_factory=list)  # of the reference's weights
    told: list[str] = field(default_factory=list)
    is_ended: bool = False

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> Local[Generated]:
        self.asked.append(prompts)
        return Local(lambda: self.spoil(self._alive().generate(prompts, sampling)))

    def load(self, bucket: Bucket) -> Local[None]:
        self.loaded.append(bucket)
        answer = self._attempt(lambda: self._alive().load(bucket))
        return Local(lambda: _raised(answer))

    def reference_logprobs(self, parts: Sequence[Batch]) -> Local[ReferenceLogProbs]:
        self.referred.append(parts)
        return Local(lambda: self.spoil_reference(self._alive().reference_logprobs(parts)))

    def load_reference(self, bucket: Bucket) -> Local[None]:
        self.replaced.append(bucket)
        answer = self._attempt(lambda: self._alive().load_reference(bucket))
        return Local(lambda: _raised(answer))

    def leave(self, kind: str, buckets: Sequence[Bucket]) -> Local[None]:
        answer = self._attempt(lambda: self._alive().leave(kind, list(buckets)))
        return Local(lambda: _raised(answer))

    def left(self, kind: str) -> Local[Sequence[Bucket]]:
        return Local(lambda: self._alive().left(kind))

    def sleep(self) -> Local[None]:
        return Local(lambda: self.told.append("sleep"))

    def wake(self) -> Local[None]:
        return Local(lambda: self.told.append("wake"))

    def end(self) -> None:
        self.is_ended = True

    def _alive(self) -> Server:
        if self.is_ended:
            raise GeneratorLost(self.name, "was ended")
        return self.server

    def _attempt(self, call: Callable[[], None]) -> GeneratorLost | None:
        try:
            call()
        except GeneratorLost as lost:
            return lost
        except Exception as error:
            return GeneratorLost(self.name, f"failed: {type(error).__name__}: {error}")
        return None


def _raised(error: Exception | None) -> None:
    if error is not None:
        raise error


@dataclass
class Crew:
    """What starts generators, and all that it has started; `spoils` are for those of a slot in their order."""

    config: Config = FLAT
    spoils: dict[int, list[Callable[[Generated], Generated]]] = field(default_factory=dict)
    spoils_of_reference: dict[int, list[Callable[[ReferenceLogProbs], ReferenceLogProbs]]] = field(default_factory=dict)
    started: list[InProcess] = field(default_factory=list)

    def start(self, slot: int) -> InProcess:
        order = EngineSpec.of(self.config, choose(self.config), seed=0)
        made = InProcess(f"generator {slot}", generator.start_server(order, CPU))
        if self.spoils.get(slot):
            made.spoil = self.spoils[slot].pop(0)
        if self.spoils_of_reference.get(slot):
            made.spoil_reference = self.spoils_of_reference[slot].pop(0)
        self.started.append(made)
        return made

    def engine(self, size: int, *, seed: int = 3, **values: Any) -> remote.Remote:
        config = changed(self.config, **values)
        pool = remote.Pool(self.start, size, timeout_s=config.rollout.generator_timeout_s)
        return remote.over(pool, EngineSpec.of(config, choose(config), seed=0), seed=seed)


def dead(found: Generated) -> Generated:
    raise GeneratorLost("generator ?", "was killed by SIGKILL")


def silent(found: Generated) -> Generated:
    raise TimeoutError


def weights(value: int) -> dict[str, Tensor]:
    """Other weights for an engine of `FLAT`, by a seed."""
    from trainer.models import build

    return dict(build(FLAT, END + 1, seed=value, device=CPU).named_parameters())
