"""One rank of a placed run, within the process that Ray has started for it, and the generators that it starts.

A rank starts its own generators, each in a Ray actor in the reserved resources, and replaces those that are lost. With
fewer generators than ranks several ranks share one: the first of them starts it, and it answers in the order of the
requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from trainer.config import BadSetting
from trainer.engines.generator_client import GeneratorLost
from trainer.launch import Interrupt
from trainer.metrics.records import Progress
from trainer.placement import CPU, workers
from trainer.placement.ray_nodes import how_lost, ray_error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from trainer.engines.engine import Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec, Generated, ReferenceLogProbs
    from trainer.placement import Placement, WorkerSlot
    from trainer.types import Batch
    from trainer.weights import Bucket

T = TypeVar("T")

# The phases in which a rank waits for the others.
_WAITING = ("trainer/distributed.py", "torch/distributed/")
_OWN_ROWS = ("local", "put", "rows", "like")  # functions there that wait for nobody
_LAST = 4000  # characters of its output that are saved

# Ray's errors if its object store, and the disk it uses then, are full.
_FULL = ("ObjectStoreFullError", "OutOfDiskError")
# Errors of making an engine that another try would meet again.
_SETTINGS = ("BadSetting", "NoDevice")


class StoreFull(RuntimeError):
    """Ray's object store is full; another generator would have as little room. The text names the object."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()} into Ray's object store, which is full, as is the disk beyond it: `ray memory` says "
            "what is in it; start Ray with a larger --object-store-memory, or make room on that disk"
        )


class Rank:
    """Runs `python -m trainer` with some arguments in this process, and reports its progress meanwhile."""

    def __init__(
        self, words: Sequence[str], generators: Sequence[Place], common: Mapping[str, Any] | None = None
    ) -> None:
        from trainer import generator  # with torch, which the process that leads the run does without

        self._words = list(words)
        if generators:
            places = generator.AssignedGenerators(
                len(generators), lambda at, order: RayGenerator(generators[at], order)
            )
            generator.assign_generators(replace(places, **(common or {})))
        self._progress, self._interrupt = Progress(), Interrupt()
        self._thread: int | None = None

    def run(self) -> tuple[int, str]:
        """The exit code, and the end of its stderr."""
        # By name, because the program itself imports this module when it uses cards.
        program = importlib.import_module("trainer.__main__")
        self._thread = threading.get_ident()
        errors = TailOfOutput(sys.stderr)
        try:
            with contextlib.redirect_stderr(errors):
                code = program.main(self._words, progress=self._progress, interrupt=self._interrupt)
        finally:
            self._thread = None
        return code, errors.last

    def beat(self) -> dict[str, Any]:
        """How far it is: a `mark` that changes while it gets on, and `at`, the call it is in.

        `has_learnt`: an update was made in this process, for which everything had to be there. `waits`: that call waits
        for other ranks; `awaits`: the generators that it waits for.
        """
        frames = _frames(self._thread)
        # A copy in one go: the other thread adds parts meanwhile.
        seconds = dict(self._progress.seconds)
        mark = (self._progress.steps_done, sum(seconds.values()))
        own = next((each for each in frames if f"{os.sep}trainer{os.sep}" in each.f_code.co_filename), None)
        at = f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno} {own.f_code.co_name}" if own else "nowhere"
        calls = [each.f_code.co_filename for each in frames[:8] if each.f_code.co_name not in _OWN_ROWS]
        waits = any(part in file for file in calls for part in _WAITING)
        begun = {"mark": mark, "has_learnt": "update_actor" in seconds}
        return {**begun, "at": at, "waits": waits, "awaits": awaited()}

    def leave(self, number: int) -> bool:
        """Acts like a signal to this process: whether the run will end after the present step.

        Outside of the steps it will not, and the caller ends the process.
        """
        try:
            self._interrupt.on_signal(number)
        except KeyboardInterrupt:
            return False
        return True

    def quit(self) -> None:
        """Ends this rank's generators, which Ray's head would end if it were there."""
        quit_all()


class TailOfOutput(io.TextIOBase):
    """A text file whose last part is saved."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.last = file, ""

    def write(self, text: str) -> int:
        self._file.write(text)
        self.last = (self.last + text)[-_LAST:]
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        """The file's: output of child programs goes there too, and is not saved."""
        return self._file.fileno()


def _frames(thread: int | None) -> list[FrameType]:
    """The calls that a thread is in, innermost first."""
    top = sys._current_frames().get(thread) if thread is not None else None
    return [frame for frame, _ in traceback.walk_stack(top)] if top is not None else []


# Its generators.


@dataclass(frozen=True, slots=True)
class Place:
    """A location for a rank's generator; it can be sent."""

    slot: WorkerSlot
    placement: Placement
    group: Any  # Ray's placement group
    label: str  # under which the ranks of one attempt find it
    log: Path  # what its process writes to its standard error, where that node has this folder


def share(places: Sequence[Place], number: int, count: int) -> list[Place]:
    """The places of one rank of some: every `count`-th from its own number on, or one that it has in common."""
    return list(places[number::count]) or [places[number % len(places)]] if places else []


def sharing(num_places: int, number: int, count: int) -> dict[str, Any]:
    """Fields of `generator.AssignedGenerators` for one rank: how many share a generator, who sends weights."""
    return {"sharers": max(1, -(-count // max(1, num_places))), "sends": number < num_places or num_places == 0}


@dataclass(slots=True)
class Reply(Generic[T]):
    """The pending response of an actor."""

    name: str
    asked: Any
    found: list[T] = field(default_factory=list)

    def result(self, timeout_s: float) -> T:
        if not self.found:
            _awaited.append(self.name)
            try:
                self.found.append(_get(self.name, self.asked, timeout_s))
            finally:
                _awaited.remove(self.name)
        return self.found[0]


class StoredBuckets(Reply["Sequence[Bucket]"]):
    """References that an actor holds, and their objects."""

    def result(self, timeout_s: float) -> Sequence[Bucket]:
        deadline = time.monotonic() + timeout_s
        references = Reply.result(self, timeout_s)
        return _get(self.name, list(references), max(deadline - time.monotonic(), 0.0)) if references else ()


# The names of those that are waited for in this process.
_awaited: list[str] = []


def awaited() -> list[str]:
    """The generators that this process waits for now."""
    return sorted({*_awaited})


class RayGenerator:
    """An actor that was started, or is being started, with an engine in it."""

    def __init__(self, place: Place, order: EngineSpec) -> None:
        self._place, self._node = place, place.placement.nodes[place.slot.node]
        self.name = f"{place.slot.name} on {self._node.address}"
        self._handle = workers.actor(place.slot, place.placement.resource, place.group, label=place.label)
        # Later requests fail with the same errors.
        workers.settle(self._handle, place.slot, place.placement)
        _running.append(self._handle)
        self._ask("log_to", str(place.log))
        if place.placement.resource == CPU:  # without cards of its own it uses the rank's
            self._ask("set_env", {"LOCAL_RANK": os.environ.get("LOCAL_RANK", "0")}, {})
        self._ask("prepare", "trainer.generator:serve", _from_here(order))

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> Reply[Generated]:
        return self._ask("call", "generate", list(prompts), sampling)

    def load(self, bucket: Bucket) -> Reply[None]:
        return self._send(lambda: self._ask("call", "load", _put(bucket)))

    def reference_logprobs(self, parts: Sequence[Batch]) -> Reply[ReferenceLogProbs]:
        return self._ask("call", "reference_logprobs", list(parts))

    def load_reference(self, bucket: Bucket) -> Reply[None]:
        return self._send(lambda: self._ask("call", "load_reference", _put(bucket)))

    def leave(self, kind: str, buckets: Sequence[Bucket]) -> Reply[None]:
        # Within a list they stay references: the actor holds them and looks into none.
        return self._send(lambda: self._ask("call", "leave", kind, [_put(each) for each in buckets]))

    def _send(self, put_and_ask: Callable[[], Reply[None]]) -> Reply[None]:
        try:
            return put_and_ask()
        except StoreFull:
            raise
        except Exception as error:  # a lost connection
            return Reply(self.name, GeneratorLost(self.name, f"cannot be sent weights: {ray_error_line(error)}"))

    def left(self, kind: str) -> Reply[Sequence[Bucket]]:
        """What another rank has put into Ray's store, to be read there; on another node a copy for all ranks there."""
        return StoredBuckets(self.name, self._ask("watch", "left", kind, group="watch").asked)

    def sleep(self) -> Reply[None]:
        return self._ask("call", "sleep")

    def wake(self) -> Reply[None]:
        return self._ask("call", "wake")

    def end(self) -> None:
        """Kills the actor; its place is free then."""
        workers.kill(self._handle)
        if self._handle in _running:
            _running.remove(self._handle)

    def _ask(self, method: str, *arguments: Any, group: str = "work") -> Reply[Any]:
        try:
            asked = getattr(self._handle, method).options(concurrency_group=group).remote(*arguments)
        except Exception as error:
            if type(error).__name__ in _FULL:
                raise StoreFull(f"what {self.name} is asked does not fit") from error
            # A lost connection: reported when the response is needed.
            return Reply(self.name, GeneratorLost(self.name, f"cannot be asked: {ray_error_line(error)}"))
        return Reply(self.name, asked)


def _from_here(order: EngineSpec) -> EngineSpec:
    """The order with the model's folder as this process would find it: the working folder of an actor is Ray's."""
    model = order.config.model
    if not model.path:
        return order
    model = replace(model, path=os.path.abspath(model.path))
    return replace(order, config=replace(order.config, model=model))


# The actors that this process has started and not ended.
_running: list[Any] = []


def quit_all() -> None:
    """Has this process's generators end themselves, for want of Ray's head, which ends them otherwise."""
    workers.stop(_running)


class Packed:
    """A serialized bucket: its memory is sent beside the pickle, and mapped in Ray's store on arrival."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        flat = self._bucket.flat
        memory = (ctypes.c_char * flat.numel()).from_address(flat.data_ptr()) if flat.numel() else b""
        # As plain bytes, because Ray 2.60 crashes when it unpacks a buffer with a ctypes format.
        plain_bytes = memoryview(memory).cast("B")
        plain = {each.name: getattr(self._bucket, each.name) for each in fields(self._bucket) if each.name != "flat"}
        return _unpacked, (type(self._bucket), plain, pickle.PickleBuffer(plain_bytes))


def _unpacked(kind: type[Bucket], plain: dict[str, Any], memory: Any) -> Bucket:
    import torch

    view = memoryview(memory)
    if not view.nbytes:
        return kind(**plain, flat=torch.empty(0, dtype=torch.uint8))
    with warnings.catch_warnings():  # that it cannot be written to is as it should be: it is only read
        warnings.simplefilter("ignore", UserWarning)
        return kind(**plain, flat=torch.frombuffer(view, dtype=torch.uint8))


def _put(bucket: Bucket) -> Any:
    """Ray's reference to a bucket, which is put into its store once for all generators."""
    import ray

    key = (bucket.version, bucket.index, bucket.checksum)
    if key not in _sent:
        if any(version != bucket.version for version, _, _ in _sent):
            _sent.clear()
        try:
            _sent[key] = ray.put(Packed(bucket))
        except Exception as error:
            if type(error).__name__ not in _FULL:
                raise
            raise StoreFull(f"{len(bucket.flat) / 2**20:.0f} MiB of weights do not fit") from error
    return _sent[key]


# The objects of the present version in Ray's store.
_sent: dict[tuple[int, int, int], Any] = {}


def _get(name: str, asked: Any, timeout_s: float) -> Any:
    """The response. Raises TimeoutError, GeneratorLost, and BadSetting for an engine that cannot be created."""
    import ray

    if isinstance(asked, GeneratorLost):
        raise asked
    try:
        return ray.get(asked, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise TimeoutError(f"{name} has not answered within {timeout_s:g} s") from None
    except ray.exceptions.RayActorError as error:
        raise GeneratorLost(name, how_lost(error)) from None
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if type(cause).__name__ in _SETTINGS:
            raise BadSetting(str(cause)) from None
        raise GeneratorLost(name, f"failed: {ray_error_line(cause)}") from None
    except ray.exceptions.RayError as error:  # the response is lost: a full store, a lost node
        raise GeneratorLost(name, f"has not answered: {ray_error_line(error)}") from None
