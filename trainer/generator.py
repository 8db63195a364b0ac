"""An engine in a process of its own, which answers requests of ranks; `trainer.placement.rank` carries them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trainer.engines.generator_client import Generated, ReferenceLogProbs
from trainer.weights import Loading, NotWhole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trainer.engines.engine import Engine, Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec
    from trainer.engines.reference import Reference
    from trainer.types import Batch
    from trainer.weights import Bucket


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
