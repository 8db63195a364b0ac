"""The engine of a rank: in its own process, or a client of generators in processes that Ray has started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer import models
from trainer.config import BadSetting
from trainer.engines.generator_client import EngineSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.engines.engine import Engine
    from trainer.engines.generator_client import Generator
    from trainer.tasks.base import Task

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
