"""An engine over other processes: distributes prompts over generators and sends the weights to all of them.

Its `Pool` holds the generators, one a slot, and replaces a lost one. Prompts are always cut into as many portions as
there are slots, and a portion that was lost with its generator is generated again completely: the answers are those of
a run without losses, and none counts twice. Another number of generators uses the same seeds; only rounding may differ,
because a row's neighbours differ. Where the generators hold the run's reference policy, `Remote.reference_logprobs`
distributes answers over them in the same way.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from trainer.config import BadSetting
from trainer.engines import reference
from trainer.engines.engine import new_seeds
from trainer.engines.generator_client import GeneratorLost, GeneratorStats
from trainer.engines.reference import ROUNDING
from trainer.models import pretrained
from trainer.weights import AT_START, Bucket, Packer, fingerprint, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from trainer.distributed import World
    from trainer.engines.engine import Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec, Generated, Generator, Pending, ReferenceLogProbs
    from trainer.types import Batch, Rollout

# Attempts for a portion, and lost generators of a slot before one of them has responded.
MOST_TRIES = 3
# The time for a process to start and to create its engine, in addition to the time for its first response.
_START_S = 600.0

T = TypeVar("T")


@dataclass(slots=True)
class Slot:
    """A place for a generator. `generator` is None when the last allowed one was lost."""

    number: int
    generator: Generator | None
    version: int = AT_START  # of the weights that it was sent
    # the mark of the origin that it was sent; None: its reference is the one it has built itself
    reference: int | None = None
    num_lost: int = 0  # in a row
    is_new: bool = True  # it has answered nothing yet

    @property
    def name(self) -> str:
        return f"slot {self.number}" if self.generator is None else self.generator.name


class Pool:
    """The generators of a rank: `start(n)` starts one for slot n, at the beginning and wherever one was lost."""

    def __init__(
        self,
        start: Callable[[int], Generator],
        size: int,
        *,
        timeout_s: float,
        sharers: int = 1,  # at most so many ranks of the run have a generator in common; above 1 each has one slot
        sends: bool = True,  # whether this rank sends weights, for itself and for those that share
    ) -> None:
        self._start = start
        # A generator handles one request at a time: a client may wait for the turns of all that share it.
        self.timeout_s = timeout_s * sharers
        self.sharers, self.sends = sharers, sends
        self.slots = [Slot(number, start(number)) for number in range(size)]
        self.losses: list[str] = []  # over the run, as messages
        self._versions = 0
        self._is_ended = False

    def deadline(self, slot: Slot) -> float:
        """The deadline of a request that is sent now, on `time.monotonic`'s clock."""
        return time.monotonic() + self.timeout_s + (_START_S if slot.is_new else 0.0)

    def new_version(self) -> int:
        """A version number that no other weights had, whichever rank publishes them."""
        self._versions += 1
        return self._versions - 1

    def running(self) -> list[Slot]:
        """The slots that have a generator; those that lost none in a row come first."""
        return sorted((slot for slot in self.slots if slot.generator is not None), key=lambda slot: slot.num_lost > 0)

    def lose(self, slot: Slot, lost: GeneratorLost) -> None:
        """Ends a lost generator and starts another, unless too many were lost in its slot."""
        self.losses.append(str(lost))
        if slot.generator is not None:
            slot.generator.end()
        slot.num_lost += 1
        slot.is_new = True
        slot.version, slot.reference = AT_START, None
        is_replaced = slot.num_lost < MOST_TRIES and not self._is_ended
        slot.generator = self._start(slot.number) if is_replaced else None

    def end(self) -> None:
        """Ends all generators. What another thread waits for from them is lost, and none is started in their place."""
        self._is_ended = True
        for slot in self.slots:
            if slot.generator is not None:
                slot.generator.end()


@dataclass(frozen=True, slots=True)
class Origin:
    """The weights that the run's reference policy has."""

    mark: int  # their fingerprint
    # To be sent to every generator; empty: what each makes from the run's settings is the same.
    buckets: tuple[Bucket, ...] = ()


@dataclass(slots=True)
class Portion(Generic[T]):
    """The request to one generator, with its number of attempts."""

    prepare: Callable[[Slot], list[Pending[None]]]  # sends weights that it needs first
    ask: Callable[[Generator], Pending[T]]
    wrong: Callable[[T, str], str | None]  # what cannot be right about an answer of the generator of that name
    num_tries: int = 0


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """The present request of a generator."""

    slot: Slot
    loaded: list[Pending[None]]  # of weights that it needs first
    answer: Pending[T]
    deadline: float


@dataclass(slots=True)
class Remote:
    """The engine. Holds a copy of the weights that it was last given, for generators that are started later."""

    pool: Pool
    vocabulary_size: int
    random: torch.Generator
    packer: Packer
    can_sleep: bool = False  # whether generators give up memory while the learner works
    version: int = AT_START
    origin: Origin | None = None  # of the reference policy that the generators keep; None: they keep none
    stats: GeneratorStats = field(default_factory=GeneratorStats)
    _buckets: list[Bucket] = field(default_factory=list)

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        """As `Engine.generate`. Raises GeneratorLost when a portion was lost too often or no generator is left."""
        seeds = sampling.seeds or (() if sampling.is_greedy else new_seeds(len(prompts), self.random))
        made = self._gather([self._portion(prompts, sampling, seeds, at) for at in range(len(self.pool.slots))])
        if not sampling.is_greedy:
            self._note(found.seconds for found in made.values())
        return [rollouts for at in sorted(made) for rollouts in made[at].groups]

    def reference_logprobs(self, batch: Batch, *, rows_at_once: int) -> Tensor:
        """Log-probabilities of the answers [B, T] under the generators' reference policies, 0 where the mask is off.

        Each generator gets as many prompts as for sampling, in micro batches of `rows_at_once`, 0: all at once. Raises
        like `generate`; BadSetting if a generator's reference is not that of the run.
        """
        shares = reference.cut(batch, len(self.pool.slots), rows_at_once)
        made = self._gather(
            [self._reference_portion([reference.asked(batch, rows) for rows in share]) for share in shares]
        )
        logprobs_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        for at, found in made.items():
            for rows, some in zip(shares[at], found.logprobs, strict=True):
                logprobs_BT[rows, : some.shape[1]] = some.to(logprobs_BT)
        self._note(found.seconds for found in made.values())
        return logprobs_BT

    def expect_reference(self, mark: int) -> None:
        """Sets the fingerprint of the reference policies that the generators build from the settings."""
        self.origin = Origin(mark)

    def set_reference(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sets the weights of the reference policies, if they are not those of the settings.

        A copy of them is stored for generators that are started later.
        """
        buckets = tuple(Packer(self.packer.bucket_bytes).pack(weights, self.pool.new_version()))
        self.origin = Origin(fingerprint(unpack(buckets).items()), buckets)

    def _note(self, seconds: Iterable[float]) -> None:
        self.stats.busy_s += sum(seconds) / len(self.pool.slots)

    def _portion(
        self, prompts: Sequence[Tokens], sampling: Sampling, seeds: tuple[int, ...], at: int
    ) -> Portion[Generated] | None:
        """The share of one slot: as many as the others', or one more or less; None for no prompt."""
        size = len(self.pool.slots)
        part = slice(len(prompts) * at // size, len(prompts) * (at + 1) // size)
        own, how = prompts[part], replace(sampling, seeds=seeds[part])
        if not own:
            return None
        return Portion(self._send, lambda made: made.generate(own, how), lambda found, _: self._wrong(found, own, how))

    def _reference_portion(self, parts: list[Batch]) -> Portion[ReferenceLogProbs] | None:
        if not parts:
            return None
        return Portion(
            self._send_reference,
            lambda made: made.reference_logprobs(parts),
            lambda found, name: self._wrong_reference(found, parts, name),
        )

    def _wrong_reference(self, found: ReferenceLogProbs, parts: Sequence[Batch], name: str) -> str | None:
        """Like `reference.wrong`. Raises BadSetting if it is not the run's reference: a retry would not help."""
        if self.origin is not None and found.mark != self.origin.mark:
            raise BadSetting(
                f"{name} makes another reference policy from the settings than the one that this run began with: "
                "path must name the same model on all nodes; reference_place=learner keeps the reference in one place"
            )
        return reference.wrong(found, parts)

    def _gather(self, portions: Sequence[Portion[T] | None]) -> dict[int, T]:
        """The responses to all portions, by slot; a lost portion is requested again, up to a limit."""
        waiting = deque(at for at, portion in enumerate(portions) if portion is not None)
        made: dict[int, T] = {}
        while waiting:
            for at, portion, request in self._ask(portions, waiting):
                found = self._collect(portion, request)
                if found is None:
                    waiting.append(at)
                else:
                    made[at] = found
        return made

    def _ask(
        self, portions: Sequence[Portion[T] | None], waiting: deque[int]
    ) -> list[tuple[int, Portion[T], Request[T]]]:
        """Hands a portion to every generator there is, in its own slot if that is fine; those left stay waiting."""
        running = self.pool.running()
        if not running:
            raise GeneratorLost("the last generator", f"is gone: {'; '.join(self.pool.losses[-MOST_TRIES:])}")
        requests = []
        while waiting and running:
            at = waiting.popleft()
            slot = next((slot for slot in running if slot.number == at and not slot.num_lost), running[0])
            running.remove(slot)
            portion = portions[at]
            assert portion is not None and slot.generator is not None
            portion.num_tries += 1
            loaded = portion.prepare(slot)
            answer = portion.ask(slot.generator)
            requests.append((at, portion, Request(slot, loaded, answer, self.pool.deadline(slot))))
        return requests

    def _send(self, slot: Slot) -> list[Pending[None]]:
        """This engine's weights to a generator that has others."""
        if slot.version == self.version or slot.generator is None:
            return []
        slot.version = self.version
        return [slot.generator.load(bucket) for bucket in self._buckets]

    def _send_reference(self, slot: Slot) -> list[Pending[None]]:
        """The run's reference to a generator that has made another one."""
        origin = self.origin
        if origin is None or not origin.buckets or slot.reference == origin.mark or slot.generator is None:
            return []
        slot.reference = origin.mark
        return [slot.generator.load_reference(bucket) for bucket in origin.buckets]

    def _collect(self, portion: Portion[T], request: Request[T]) -> T | None:
        """The response to a portion; None if it has to be requested again. Raises GeneratorLost after too many
        attempts.
        """
        slot = request.slot
        try:
            for each in request.loaded:
                self._wait(slot, each, request.deadline)
            found = self._wait(slot, request.answer, request.deadline)
            if (wrong := portion.wrong(found, slot.name)) is not None:
                raise GeneratorLost(slot.name, wrong)
        except GeneratorLost as lost:
            self._lose(slot, lost)
            if portion.num_tries >= MOST_TRIES:
                why = f"{lost.why}, and so did others: its share was asked for {portion.num_tries} times"
                raise GeneratorLost(lost.name, why) from lost
            return None
        slot.num_lost, slot.is_new = 0, False
        return found

    def _wait(self, slot: Slot, pending: Pending[T], deadline: float) -> T:
        try:
            return pending.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            raise GeneratorLost(slot.name, f"did not answer within {self.pool.timeout_s:g} s") from None

    def _settle(self, slot: Slot, pending: Iterable[Pending[None]], deadline: float) -> None:
        """Waits for a generator to finish its request, or replaces it."""
        try:
            for each in pending:
                self._wait(slot, each, deadline)
        except GeneratorLost as lost:
            self._lose(slot, lost)

    def _lose(self, slot: Slot, lost: GeneratorLost) -> None:
        self.stats.num_lost += 1
        self.pool.lose(slot, lost)

    def _wrong(self, found: Generated, prompts: Sequence[Tokens], sampling: Sampling) -> str | None:
        """What cannot be right about answers; None when nothing is."""
        if found.version != self.version:
            return f"answered with version {found.version} of the weights, not {self.version}"
        expected = sampling.rollouts_per_prompt
        counts = [len(group) for group in found.groups]
        if counts != [expected] * len(prompts):
            return f"gave {counts} answers to {len(prompts)} prompts, not {expected} to each"
        rollouts = (rollout for group in found.groups for rollout in group)
        return next(filter(None, (self._wrong_rollout(each, sampling) for each in rollouts)), None)

    def _wrong_rollout(self, rollout: Rollout, sampling: Sampling) -> str | None:
        tokens, logprobs = rollout.tokens, rollout.logprobs
        if len(tokens) > sampling.max_new_tokens or len(logprobs) != len(tokens):
            limit = sampling.max_new_tokens
            return f"gave {len(tokens)} tokens with {len(logprobs)} log-probabilities, of at most {limit}"
        if not tokens:
            return None
        if min(tokens) < 0 or max(tokens) >= self.vocabulary_size:
            worst = min(tokens) if min(tokens) < 0 else max(tokens)
            return f"said token {worst}, which is not among the {self.vocabulary_size} of the vocabulary"
        if not math.isfinite(sum(logprobs)) or max(logprobs) > ROUNDING:
            worst_of = next((each for each in logprobs if not math.isfinite(each)), max(logprobs))
            return f"gave {worst_of} as a log-probability"
        return None

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        Remote.load_weights_each(self, weights.items())

    def load_weights_each(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As `load_weights`, one tensor after the other: earlier ones are on their way while later ones are made."""
        began, version = time.perf_counter(), self.pool.new_version()
        slots = self.pool.running()
        loading: list[list[Pending[None]]] = [[] for _ in slots]
        self._buckets = []
        for bucket in self.packer.pack(weights, version):
            self._buckets.append(bucket)
            for slot, loaded in zip(slots, loading, strict=True):
                assert slot.generator is not None
                slot.version = version
                loaded.append(slot.generator.load(bucket))
        self.version = version
        # The replacement of a lost generator gets the weights with its next request.
        deadlines = [self.pool.deadline(slot) for slot in slots]
        for slot, loaded, deadline in zip(slots, loading, deadlines, strict=True):
            self._settle(slot, loaded, deadline)
        self.stats.weights_s += time.perf_counter() - began
        self.stats.weights_bytes += len(slots) * sum(len(bucket.flat) for bucket in self._buckets)

    def barrier(self, world: World) -> None:
        """Waits until all ranks have sent their weights, before any requests samples. A collective."""
        world.barrier()

    def weights(self) -> Mapping[str, Tensor]:
        """Those last received; each generator has compared its engine's with them, and names their version."""
        return unpack(self._buckets)

    def twin(self) -> Remote:
        """Another engine over the same generators; each sends them its own weights when they have the other's."""
        packer = Packer(self.packer.bucket_bytes)
        random = torch.Generator()
        kind = type(self)
        return kind(self.pool, self.vocabulary_size, random, packer, can_sleep=self.can_sleep, origin=self.origin)

    def sleep(self) -> None:
        self._tell_all("sleep")

    def wake(self) -> None:
        self._tell_all("wake")

    def _tell_all(self, word: str) -> None:
        if not self.can_sleep:
            return
        requests = [(slot, getattr(slot.generator, word)(), self.pool.deadline(slot)) for slot in self.pool.running()]
        for slot, pending, deadline in requests:
            self._settle(slot, [pending], deadline)

    def random_state(self) -> Tensor:
        return self.random.get_state()

    def restore_random_state(self, state: Tensor) -> None:
        self.random.set_state(state)

    def take_stats(self) -> GeneratorStats:
        """The statistics since the last call."""
        stats, self.stats = self.stats, GeneratorStats()
        return stats

    def end(self) -> None:
        """Ends all generators. May be called again."""
        self.pool.end()


def over(pool: Pool, order: EngineSpec, *, seed: int, kind: type[Remote] = Remote) -> Remote:
    """An engine over generators that were started with this order; its draws have their own seed."""
    config = order.config
    packer = Packer(config.rollout.bucket_mib << 20)
    size = order.tokenizer.vocabulary_size
    if config.model.path:  # a model may know more tokens than its tokenizer, and say them
        size = max(size, int(pretrained.read_config(Path(config.model.path)).get("vocab_size", 0)))
    return kind(pool, size, torch.Generator().manual_seed(seed), packer, can_sleep=config.rollout.sleep)
