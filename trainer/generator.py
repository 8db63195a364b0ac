"""`python -m trainer.generator`: an engine in its own process, as a child of the process that started it.

It reads requests from its standard input and writes responses to its standard output, both framed (`read`, `write`);
output of an engine goes to standard error. It ends when its input ends, whatever it is doing: so it never outlives its
parent. Ctrl-C, which a terminal sends to both, is left to the parent.

`serve` alone is for other transports.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from trainer.engines.generator_client import Generated, ReferenceLogProbs
from trainer.interrupt import SIGNALS
from trainer.weights import Loading, NotWhole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from trainer.engines.base import Engine, Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec
    from trainer.engines.process import MemoryRange
    from trainer.engines.reference import Reference
    from trainer.types import Batch
    from trainer.weights import Bucket, Entry

HEADER = struct.Struct(">Q")


def serve(order: EngineSpec) -> Server:
    """The engine of an order, on this process's device. Raises BadSetting and NoDevice."""
    import torch

    from trainer import device as devices
    from trainer import faults

    config = order.config
    torch.set_num_threads(config.run.num_threads)
    torch.set_float32_matmul_precision(config.run.matmul_precision)
    device = devices.choose(config.run.device, role="rollout")
    size = order.tokenizer.vocabulary_size
    server: Server = faults.server(start(order, device), config.run.fault, vocabulary_size=size)
    return server


def main() -> int:
    """Serves until the input ends; returns 1 if the engine cannot be created, which the first response reports."""
    for name in SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked so far by the parent
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]] = queue.SimpleQueue()
    # A separate thread reads, so that the end of the input is noticed, and the parent can write, while the engine
    # works.
    threading.Thread(target=_listen, args=(os.fdopen(os.dup(0), "rb"), inbox), daemon=True).start()
    number, _, (order, shared) = inbox.get()
    pieces: dict[MemoryRange, Tensor] = {}
    try:
        server = serve(order)
    except Exception as error:  # the parent decides what it means
        _answer(outbox, number, error)
        return 1
    _answer(outbox, number, None)
    while True:
        number, word, arguments = inbox.get()
        try:
            if word in ("load", "load_reference"):
                arguments = (_bucket(shared, pieces, *arguments),)
            found = getattr(server, word)(*arguments)
        except Exception as error:
            found = error
        _answer(outbox, number, found)


def _listen(file: BinaryIO, inbox: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]) -> None:
    while (request := read(file)) is not None:
        inbox.put(request)
    os._exit(0)


def _answer(file: BinaryIO, number: int, found: Any) -> None:
    """Sends a result; of an error its kind and its text, since the parent may not know its class."""
    if isinstance(found, Exception):
        found = (type(found).__name__, " ".join(str(found).split()))
        file.write(framed((number, False, found)))
    else:
        file.write(framed((number, True, found)))
    file.flush()


def _bucket(
    shared: int,
    pieces: dict[MemoryRange, Tensor],
    about: tuple[int, int, bool, tuple[Entry, ...]],
    checksum: int,
    place: MemoryRange | None,
    sent: bytes,
) -> Bucket:
    """The bucket with its memory: mapped and cached if it is shared, else as it was sent."""
    import torch

    from trainer.engines.process import look
    from trainer.weights import Bucket

    if place is not None:
        flat = pieces[place] = pieces[place] if place in pieces else look(shared, place)
    else:
        flat = torch.frombuffer(bytearray(sent), dtype=torch.uint8) if sent else torch.empty(0, dtype=torch.uint8)
    return Bucket(*about, flat, checksum)


def framed(value: Any) -> bytes:
    """A value with its length before it."""
    text = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(text)) + text


def read(file: BinaryIO) -> Any:
    """The next value; None at the end of the file, also in the middle of a value."""
    head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    (length,) = HEADER.unpack(head)
    text = file.read(length)
    return pickle.loads(text) if len(text) == length else None


def start(order: EngineSpec, device: torch.device) -> Server:
    """The engine of an order, and its reference policy if it is to keep one. Raises BadSetting."""
    from trainer.engines import factory, reference

    config = order.config
    engine = factory.build_local_engine(order, device, sampling_seed=order.seed)
    if config.reference_at != "generators":
        return Server(engine)
    return Server(engine, reference.start(config, order.tokenizer.vocabulary_size, device, seed=order.seed))


class Server:
    """An engine and which version of the weights it holds; a reference policy, whose weights are others."""

    def __init__(self, engine: Engine, reference: Reference | None = None) -> None:
        self._engine, self._reference = engine, reference
        self._loading = Loading(engine.load_weights, engine.weights)
        self._replacing = None if reference is None else Loading(reference.load_weights, reference.weights)
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
        """Stores one bucket, and loads the version when the last missing one has arrived. Raises NotWhole."""
        self._loading.add(bucket)

    def reference_logprobs(self, parts: Sequence[Batch]) -> ReferenceLogProbs:
        """The log-probabilities of the reference policy. Raises NotWhole while its weights are not those of one
        version.
        """
        if self._reference is None or self._replacing is None:
            raise ValueError("this generator was started without a reference policy")
        if self._replacing.version is None:
            raise NotWhole("the reference policy's weights are not those of one version")
        return self._reference.reference_logprobs(parts)

    def load_reference(self, bucket: Bucket) -> None:
        """As `load`, for the reference policy. Raises NotWhole."""
        if self._replacing is None:
            raise ValueError("this generator was started without a reference policy")
        self._replacing.add(bucket)

    def leave(self, kind: str, parcels: Sequence[Any]) -> None:
        """Stores references to the buckets, replacing the previous ones of this kind."""
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


if __name__ == "__main__":
    sys.exit(main())
