"""Measures a run's device: operations against its peak, used against total memory.

`start` is called once, before the first step; `Progress.meter` holds it from then on. Without one a step's record has
no MFU and no fraction of memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainer import device as devices
from trainer.metrics import flops
from trainer.metrics.progress import peak_rss_mib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

    from trainer.config import Config
    from trainer.models.base import Model
    from trainer.types import Group

_GIB = 1 << 30
# verl's names if it has one: `actor` is the update, `actor_infer` the pass before it.
_MFU = {
    "gen": "perf/mfu/gen",
    "old_log_prob": "perf/mfu/actor_infer",
    "ref": "perf/mfu/ref",
    "update_actor": "perf/mfu/actor",
}


@dataclass(frozen=True, slots=True)
class Meter:
    """Does not change during a run."""

    model: flops.Sizes | None  # None: the model's products cannot be counted, and there is no MFU
    peak: flops.Peak
    device: torch.device
    memory_bytes: int | None  # of the device, or of the machine for a CPU; None: the system does not say

    def header(self) -> dict[str, Any]:
        """The values for the run's header that are needed to interpret MFU."""
        return {
            "peak": asdict(self.peak),
            "flops": None if self.model is None else asdict(self.model),
            "memory_gib": None if self.memory_bytes is None else self.memory_bytes / _GIB,
        }

    def mfu(
        self, groups: Sequence[Group], num_drawn: int, config: Config, parts: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """Fractions of the peak: of each phase over its own time, and of the step over its total time."""
        if self.model is None or not groups:
            return {}
        ratio = num_drawn / len(groups)
        counted = flops.of_phases(self.model, flops.work(groups), config, drawn_over_used=ratio)
        able = self.peak.tflops * 1e12
        found = {_MFU[name]: each / (parts[name] * able) for name, each in counted.items() if parts.get(name, 0.0) > 0}
        return {**found, "perf/mfu/step": sum(counted.values()) / (seconds * able)}

    def memory(self) -> dict[str, float]:
        """The peak so far in GiB (verl calls it gb), and its fraction of the total memory.

        On a card the fraction is the larger of this process's peak and what all processes use now, because an engine
        may run in another process. On a CPU it is this process's.
        """
        resident = peak_rss_mib() * (1 << 20)
        found = {"perf/cpu_memory_used_gb": resident / _GIB}
        used, allocated = resident, devices.peak_mib(self.device)
        if allocated is not None:
            used = allocated * (1 << 20)
            found["perf/max_memory_allocated_gb"] = used / _GIB
            now = devices.memory(self.device)
            used = used if now is None else max(used, now.total - now.free)
        if self.memory_bytes:
            found["perf/memory_used_share"] = used / self.memory_bytes
        return found


def start(model: nn.Module | Model, config: Config, device: torch.device) -> Meter:
    """A meter for a policy; measures the device's peak FLOPS unless the configuration gives it."""
    now = devices.memory(device)
    return Meter(flops.sizes(model), flops.peak(config, device), device, None if now is None else now.total)
