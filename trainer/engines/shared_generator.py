"""The engine of a rank that shares its generator with others: one of them sends weights, all use the same ones.

With fewer generators than ranks, each rank would otherwise send every version to the generator, and each would hold a
copy. Here the others map the buckets that one has sent, so any of them can send them to the replacement of a lost
generator.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainer.engines.generator_client import GeneratorLost
from trainer.engines.remote import MOST_TRIES, Origin, Remote
from trainer.weights import Packer, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from trainer.distributed import World
    from trainer.engines.generator_client import Pending
    from trainer.engines.remote import Slot

_WEIGHTS, _REFERENCE = "weights", "reference"


@dataclass(slots=True)
class SharedRemote(Remote):
    """As `Remote`, over one generator. All ranks call `load_weights_each` or `set_reference`, and then `barrier`."""

    _awaited: dict[str, int] = field(default_factory=dict)  # by its kind, the version that is still to be taken

    def load_weights_each(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Like `Remote.load_weights_each` if this rank sends; else the weights are only iterated."""
        self._buckets = []
        if not self.pool.sends:
            # Without the packed buckets of its own in `load_weights`.
            self.packer = Packer(self.packer.bucket_bytes)
            deque(weights, maxlen=0)  # to make them may be a collective
            self.version = self._awaited[_WEIGHTS] = self.pool.new_version()
            return
        (slot,) = self.pool.slots
        if slot.generator is not None:  # else two versions would be stored at once
            self._settle(slot, [slot.generator.leave(_WEIGHTS, ())], self.pool.deadline(slot))
        Remote.load_weights_each(self, weights)
        self._leave(_WEIGHTS)

    def set_reference(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As `Remote.set_reference`; the copy is one for all."""
        if not self.pool.sends:
            self._awaited[_REFERENCE] = self.pool.new_version()
            self.origin = Origin(fingerprint(weights))
            return
        Remote.set_reference(self, weights)
        self._leave(_REFERENCE)

    def barrier(self, world: World) -> None:
        """Waits for all ranks; then each holds the buckets that one of the ranks with its generator has sent. A
        collective.

        Raises GeneratorLost if that fails.
        """
        for _ in range(MOST_TRIES):
            world.barrier()
            if all(world.gather(self._take())):
                return
            if self.pool.sends:  # a generator was lost with what had been left there
                self._leave(_WEIGHTS, _REFERENCE)
        raise GeneratorLost(self.pool.slots[0].name, "is lost again and again before all had its weights")

    def _leave(self, *kinds: str) -> None:
        """Makes the generator, or its replacement, hold weights and give the other ranks references to them.

        Raises GeneratorLost.
        """
        (slot,) = self.pool.slots
        for _ in range(MOST_TRIES):
            if slot.generator is None:
                break
            num_lost = len(self.pool.losses)
            self._settle(slot, self._sent(slot, kinds), self.pool.deadline(slot))
            if len(self.pool.losses) == num_lost:
                return
        raise GeneratorLost(slot.name, f"cannot be sent weights: {'; '.join(self.pool.losses[-MOST_TRIES:])}")

    def _sent(self, slot: Slot, kinds: tuple[str, ...]) -> list[Pending[None]]:
        origin = self.origin
        assert slot.generator is not None
        pending = []
        if _WEIGHTS in kinds and self._buckets:
            pending += [*self._send(slot), slot.generator.leave(_WEIGHTS, self._buckets)]
        if _REFERENCE in kinds and origin is not None and origin.buckets:
            pending += [*self._send_reference(slot), slot.generator.leave(_REFERENCE, origin.buckets)]
        return pending

    def _take(self) -> bool:
        """Looks for what another rank has left; whether all is there."""
        (slot,) = self.pool.slots
        for kind, version in [*self._awaited.items()]:
            if slot.generator is None:
                return False
            try:
                found = tuple(self._wait(slot, slot.generator.left(kind), self.pool.deadline(slot)))
            except GeneratorLost as lost:
                self._lose(slot, lost)
                return False
            if not found or found[0].version != version:
                return False
            if kind == _WEIGHTS:
                self._buckets, slot.version = list(found), version
            elif self.origin is not None:
                self.origin, slot.reference = replace(self.origin, buckets=found), self.origin.mark
            del self._awaited[kind]
        return True
