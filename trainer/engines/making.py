"""The engine that a configuration asks for, in the process that calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer import models
from trainer.config import BadSetting

if TYPE_CHECKING:
    import torch

    from trainer.config import Config
    from trainer.engines.base import Engine
    from trainer.tasks.base import Task


def make(config: Config, task: Task, device: torch.device, *, seed: int, sampling_seed: int) -> Engine:
    """With the weights that the policy starts with; its draws have their own seed. Raises BadSetting."""
    end, rollout = task.tokenizer.end, config.rollout
    if rollout.engine == "builtin":
        from trainer.engines.builtin import Sampler
        from trainer.models.decoder import Decoder

        decoder = models.build(config, task.tokenizer.vocabulary_size, seed=seed, device=device, is_adapted=False)
        if not isinstance(decoder, Decoder):
            raise BadSetting(f"engine=builtin cannot sample from {config.model.path}: engine=transformers can")
        return Sampler(decoder, end=end, seed=sampling_seed)
    if rollout.engine == "scripted":
        from trainer.engines import scripted

        return scripted.start(config, task)
    if rollout.engine == "transformers":
        from trainer.engines import transformers

        return transformers.start(config, task, device, seed=sampling_seed)
    from trainer.engines import vllm

    return vllm.start(config, task, seed=sampling_seed)
