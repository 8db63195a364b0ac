"""Starts engines: that of a rank, in its own process or as a client of generators, and that of a generator's process.

Generators are processes that Ray has started. `Server` answers the requests of ranks; `trainer.placement.rank` carries
them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer import models
from trainer.config import BadSetting
from trainer.engines.generator_client import EngineSpec, Generated, ReferenceLogProbs
from trainer.weights import Loading, NotWhole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.engines.engine import Engine, Sampling, Tokens
    from trainer.engines.generator_client import Generator
    from trainer.engines.reference import Reference
    from trainer.tasks.base import Task
    from trainer.types import Batch
    from trainer.weights import Bucket


# Between the sampling seeds of neighbouring ranks: further apart than the seeds of neighbouring runs.
_RANK_APART = 1_000_003


@dataclass(frozen=True, slots=True)
class AssignedGenerators:
    """Generators that `trainer.placement` gives to a rank: how many, and how each is started, also anew."""

    count: int
    start: Callable[[int, EngineSpec], Generator]
    sharers: int = 1  # at most so many ranks of the run have one in common
    sends: bool = True  # whether this rank sends weights, for itself and for those that share


_assigned: list[AssignedGenerators] = []


def assign_generators(generators: AssignedGenerators | None) -> None:
    """Gives them to this process, in place of those that it had; None takes them away."""
    _assigned[:] = [generators] if generators is not None else []


def build_engine(config: Config, task: Task, device: torch.device, *, seed: int, world: World) -> Engine:
    """The engine of a rank, with the weights that the policy starts with; its draws have their own seed.

    Raises BadSetting for generators that nobody has started.
    """
    sampling_seed, assigned = seed + world.rank * _RANK_APART, next(iter(_assigned), None)
    order = EngineSpec.of(config, task, seed=seed)
    if assigned is None:
        if config.has_generators:
            given = f"generators={config.rollout.generators}" if config.rollout.generators else "infer_cards"
            raise BadSetting(
                f"{given}: no generator was started for this process. `python -m trainer` starts them; "
                "an engine in this process takes generators=0 and no infer_cards"
            )
        if config.rollout.engine == "scripted":
            from trainer.engines import scripted

            return scripted.start(config, task)
        return build_local_engine(order, device, sampling_seed=sampling_seed)
    from trainer.engines import remote, shared_generator

    start = assigned.start
    pool = remote.Pool(
        lambda slot: start(slot, order),
        assigned.count,
        timeout_s=config.rollout.generator_timeout_s,
        sharers=assigned.sharers,
        sends=assigned.sends,
    )
    kind = shared_generator.SharedRemote if pool.sharers > 1 else remote.Remote
    return remote.over(pool, order, seed=sampling_seed, kind=kind)


def build_local_engine(order: EngineSpec, device: torch.device, *, sampling_seed: int) -> Engine:
    """The configured engine in this process, with the weights that the policy starts with. Raises BadSetting."""
    config = order.config
    if config.rollout.engine == "builtin":
        from trainer.engines.engine import BuiltinEngine
        from trainer.models.decoder import Decoder

        size = order.tokenizer.vocabulary_size
        decoder = models.build(config, size, seed=order.seed, device=device, is_adapted=False)
        if not isinstance(decoder, Decoder):
            raise BadSetting(f"engine=builtin cannot sample from {config.model.path}: engine=transformers can")
        return BuiltinEngine(decoder, end=order.tokenizer.end, seed=sampling_seed)
    if config.rollout.engine == "transformers":
        from trainer.engines import transformers

        return transformers.start(order, device, seed=sampling_seed)
    from trainer.engines import vllm

    return vllm.start(order, seed=sampling_seed)


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
    server: Server = faults.server(start_server(order, device), config.run.fault, vocabulary_size=size)
    return server


def start_server(order: EngineSpec, device: torch.device) -> Server:
    """The engine of an order, and its reference policy if it is to keep one. Raises BadSetting."""
    from trainer.engines import reference

    config = order.config
    engine = build_local_engine(order, device, sampling_seed=order.seed)
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
