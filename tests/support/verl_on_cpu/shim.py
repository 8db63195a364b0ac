"""Lets verl 0.5.0 train on a CPU. Imported at the start of each Python of its environment; standard library only here.

verl has no communication backend for a CPU, asks its device for an index and for memory, and counts on a card's pinned
memory; FSDP refuses to broadcast weights on a CPU. Generation with transformers returns n answers to each of the n
copies of a prompt that the trainer makes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def adapt_device(module: Any) -> None:
    """verl.utils.device: gloo, and torch.cpu with what a card's namespace has."""
    import torch.distributed
    from torch.distributed.fsdp import _init_utils

    begin = torch.distributed.init_process_group

    def with_gloo(backend: str, *args: Any, **kwargs: Any) -> None:
        # `cpu:gloo,cpu:gloo`, as verl would have it, names a device twice.
        begin("gloo", *args, **kwargs)

    changed: Any = torch
    changed.distributed.init_process_group = with_gloo
    changed.Tensor.pin_memory = lambda tensor, *args: tensor
    checks: Any = _init_utils
    checks._check_module_states_for_sync_module_states = lambda states: None
    module.get_nccl_backend = lambda: "gloo"
    module.get_device_id = lambda: torch.device("cpu")
    changed.cpu.empty_cache = lambda: None
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cpu, name, lambda: 0)
    changed.cpu.mem_get_info = lambda: (0, 0)
    changed.cpu.get_device_name = lambda: "CPU"
    changed.cpu.get_rng_state = torch.get_rng_state
    changed.cpu.set_rng_state = torch.set_rng_state
    changed.cpu.manual_seed = torch.manual_seed


def adapt_rollout(rollout: Any) -> None:
    """verl.workers.rollout.hf_rollout: one answer to each copy of a prompt."""
    begin = rollout.HFRollout.__init__

    def with_one_answer(self: Any, module: Any, config: Any) -> None:
        from omegaconf import OmegaConf

        own = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
        own.n = 1
        begin(self, module, own)

    rollout.HFRollout.__init__ = with_one_answer


_ADAPT = {"verl.utils.device": adapt_device, "verl.workers.rollout.hf_rollout": adapt_rollout}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules to adapt, and adapts them once they have run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec with a loader that adapts; None for other modules."""
        if name not in _ADAPT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def adapted(module: ModuleType) -> None:
            run(module)
            _ADAPT[name](module)

        loader.exec_module = adapted
        return spec


sys.meta_path.insert(0, Finder())
