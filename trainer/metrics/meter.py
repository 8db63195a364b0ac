"""Measures a run's device: operations against its peak, used against total memory.

`start` is called once, before the first step; `Progress.meter` holds it from then on. Without one a step's record has
no MFU and no fraction of memory.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainer import device as devices
from trainer.device import peak_rss_mib
from trainer.models import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer.config import Config
    from trainer.models.decoder import Model
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

    model: Sizes | None  # None: the model's products cannot be counted, and there is no MFU
    peak: Peak
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
        self, groups: Sequence[Group], num_generated: int, config: Config, parts: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """Fractions of the peak: of each phase over its own time, and of the step over its total time."""
        if self.model is None or not groups:
            return {}
        ratio = num_generated / len(groups)
        counted = of_phases(self.model, work(groups), config, drawn_over_used=ratio)
        flops_per_s = self.peak.tflops * 1e12
        found = {
            _MFU[name]: each / (parts[name] * flops_per_s) for name, each in counted.items() if parts.get(name, 0.0) > 0
        }
        return {**found, "perf/mfu/step": sum(counted.values()) / (seconds * flops_per_s)}

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
    return Meter(sizes(model), peak(config, device), device, None if now is None else now.total)


# Seconds that measuring the peak may take; a card's first product compiles, which is not measured.
_BUDGET_S = {"cpu": 0.15}
_CARD_BUDGET_S = 1.0
# Sides of the products tried, the next one only while the last took so little that eight times of it fits the budget.
_SIDES = (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What of a model decides the cost of its products; weights are numbers of weights."""

    body: int  # of linear layers below the output
    adapters: int  # of those, LoRA's, which an engine has merged
    learning: int  # of those, what gets a gradient
    output: int  # of the output layer
    output_learns: bool
    spared: int  # of the body, what only a prompt's last token and the answers pass
    layers: int
    width: int  # heads * head size


@dataclass(frozen=True, slots=True)
class Work:
    """What groups of answers give a model to do once."""

    tokens: int
    passing: int  # prompt tokens but each prompt's last
    outputs: int  # places that predict
    pairs: int  # of a token and one it may see
    last_pairs: int  # the same if only a prompt's last token attends


def sizes(model: nn.Module | Model) -> Sizes | None:
    """The sizes of the built-in decoder or a model of transformers; None where its products cannot be counted."""
    policy: Any = model
    if is_builtin := hasattr(model, "shape"):
        layers, width, output = policy.shape.layers, policy.shape.heads * policy.shape.head_size, policy.output_weight
    else:
        inner: Any = getattr(model, "inner", model)
        shape = getattr(inner, "config", None)
        head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
        layers, heads = getattr(shape, "num_hidden_layers", None), getattr(shape, "num_attention_heads", None)
        if shape is None or head is None or layers is None or heads is None:
            return None
        width, output = heads * (getattr(shape, "head_dim", None) or shape.hidden_size // heads), head.weight
    apart = {id(each.weight) for each in policy.modules() if isinstance(each, nn.Embedding)} | {id(output)}
    linear = {name: each for name, each in model.named_parameters() if each.ndim > 1 and id(each) not in apart}
    if any(each.ndim > 2 or "experts" in name for name, each in linear.items()):
        return None
    # In the last layer of the built-in decoder what comes after the attention.
    last, after = f"model.layers.{layers - 1}.", (".mlp.", ".o_proj.")
    spared = [name for name in linear if is_builtin and last in name and any(part in name for part in after)]
    return Sizes(
        body=_count(linear.values()),
        adapters=_count(each for name, each in linear.items() if ".lora_" in name),
        learning=_count(each for each in linear.values() if each.requires_grad),
        output=output.numel(),
        output_learns=bool(output.requires_grad),
        spared=_count(linear[name] for name in spared),
        layers=layers,
        width=width,
    )


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(each.numel() for each in parameters)


def work(groups: Sequence[Group]) -> Work:
    """The operations for the groups with a model that computes each prompt once."""
    tokens = passing = outputs = pairs = last_pairs = 0
    for group in groups:
        prompt = len(group.prompt.tokens)
        tokens += prompt
        passing += prompt - 1
        outputs += 1
        pairs += prompt * (prompt + 1) // 2
        last_pairs += prompt
        for each in group.rollouts:
            own = max(len(each.tokens) - 1, 0)
            tokens += own
            outputs += sum(each.response_mask[1:]) if each.response_mask else own
            seen = own * prompt + own * (own + 1) // 2
            pairs += seen
            last_pairs += seen
    return Work(tokens, passing, outputs, pairs, last_pairs)


def forward(model: Sizes, done: Work) -> int:
    """Operations of one forward."""
    linear, attention, output = _parts(model, done)
    return linear + attention + output


def backward(model: Sizes, done: Work) -> int:
    """Operations of the gradients after one forward."""
    linear, attention, output = _parts(model, done)
    of_weights = linear * model.learning // model.body if model.body else 0
    return linear + of_weights + 2 * attention + output * (2 if model.output_learns else 1)


def _parts(model: Sizes, done: Work) -> tuple[int, int, int]:
    last = done.last_pairs if model.spared else done.pairs
    return (
        2 * (model.body * done.tokens - model.spared * done.passing),
        4 * model.width * ((model.layers - 1) * done.pairs + last),
        2 * model.output * done.outputs,
    )


def of_phases(model: Sizes, done: Work, config: Config, *, drawn_over_used: float = 1.0) -> dict[str, float]:
    """Operations of a step by phase; a phase in which nothing is computed is left out.

    `drawn_over_used`: groups generated for each one that is learnt from (dynamic sampling).
    """
    algorithm = config.algorithm
    plain = replace(model, body=model.body - model.adapters)
    critic = replace(plain, learning=plain.body, output=0) if algorithm.estimator == "gae" else None
    place = config.reference_at
    needs_old = config.optim.optimizer_steps_per_batch > 1 or algorithm.kl_in == "reward" or bool(algorithm.rejection)
    looks = int(needs_old) + int(place == "learner")
    looking = looks * forward(model, done)
    updating = config.optim.ppo_epochs * (forward(model, done) + backward(model, done))
    if critic is not None:
        looking += forward(critic, done)
        updating += forward(critic, done) + backward(critic, done)
    phases = {"gen": forward(plain, done) * drawn_over_used, "old_log_prob": looking, "update_actor": updating}
    if place == "generators":
        phases["ref"] = forward(plain, done)
    return {name: float(each) for name, each in phases.items() if each}


@dataclass(frozen=True, slots=True)
class Peak:
    """The most operations a second that MFU is measured against."""

    tflops: float
    source: str  # setting, measured
    side: int | None  # of the square product that reached it; None: nothing was measured
    seconds: float  # what finding it took


def peak(config: Config, device: torch.device) -> Peak:
    """The peak of one device: `peak_tflops` if it is set, else the best of a few square products.

    In the dtype that the run multiplies in, with its threads and matmul precision, so that an MFU of 1 is what this
    device was measured to reach, not its data sheet. Takes up to 0.2 s on a CPU and about 1 s on a card.
    """
    if config.output.peak_tflops > 0:
        return Peak(config.output.peak_tflops, "setting", None, 0.0)
    began, best, best_side = time.perf_counter(), 0.0, _SIDES[0]
    budget_s = _BUDGET_S.get(device.type, _CARD_BUDGET_S)
    for side in _SIDES:
        (factor,) = ops.factors(torch.ones(side, side, dtype=getattr(torch, config.run.dtype), device=device))
        _product_s(factor, device)  # the first one of a size allocates, and compiles on an NPU
        taken_s = _product_s(factor, device)
        for _ in range(3):
            if time.perf_counter() - began + taken_s < budget_s:
                taken_s = min(taken_s, _product_s(factor, device))
        if (rate := 2 * side**3 / taken_s) > best:
            best, best_side = rate, side
        # A product of twice the side takes eight times as long, and is needed twice.
        if time.perf_counter() - began + 16 * taken_s > budget_s:
            break
    return Peak(best / 1e12, "measured", best_side, time.perf_counter() - began)


def _product_s(factor: torch.Tensor, device: torch.device) -> float:
    began = time.perf_counter()
    torch.mm(factor, factor)
    devices.synchronize(device)
    return max(time.perf_counter() - began, 1e-9)
