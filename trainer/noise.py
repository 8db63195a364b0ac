"""Adaptive noise on the weights that the engine draws with (AQN), never on those that are trained.

`Injection.apply_each` gives the weights for `Engine.load_weights`. Validation loads the learner's own weights instead,
bit for bit the same as before.

Source: QeRL, trl_trainer/noise_scheduler.py and grpo_trainer.py; layer choice as in verl's AQN branch,
verl/utils/noise_injection.py. Both report gains in some settings and losses in others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.config import BadSetting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from trainer.config import Config
    from trainer.sections import Noise

# Targets that select layers by class; all others are parts of names.
CLASSES = ("rmsnorm", "linear")
# In a mixture of experts the norm before the attention also feeds, through the residual, every router.
_MOE_TARGETS = ("post_attention_layernorm",)
_MOE_EXCLUDES = ("input_layernorm",)


class NoMatch(BadSetting):
    """No parameter answers to the patterns: the run would train without noise and not say so."""


def deviations(noise: Noise) -> list[float]:
    """The noise's deviation over a run: a staircase of `noise_stages` equal parts, the first of them silent.

    Part j >= 1 has value j-1 of `noise_stages - 1` values from `noise_start` to `noise_end`, with equal ratios, or of
    the shape `linear` with equal differences. Two stages: silence, then `noise_start`. One stage: `noise_start` from
    the first step to the last (QeRL's code gives silence there, and its division fails at two).
    Example, 0.05 to 0.0005 in 10: 0, 0.05, 0.0281, 0.0158, 0.00889, 0.005, 0.00281, 0.00158, 0.000889, 0.0005.
    """
    if noise.noise_stages <= 1:
        return [noise.noise_start] * noise.noise_stages
    steps = max(1, noise.noise_stages - 2)
    return [0.0, *(_between(noise, index / steps) for index in range(noise.noise_stages - 1))]


def _between(noise: Noise, share: float) -> float:
    start, end = noise.noise_start, noise.noise_end
    if noise.noise_shape == "linear":
        return start + (end - start) * share
    return start * (end / start) ** share if start else 0.0


def deviation(noise: Noise, step: int, total: int) -> float:
    """The deviation after `step` of `total` steps; from `total` on the last one. A run of no steps is its first."""
    if not noise.noise_stages:
        return 0.0
    part = step * noise.noise_stages // total if total > 0 else 0
    return deviations(noise)[min(part, noise.noise_stages - 1)]


@dataclass(frozen=True, slots=True)
class Injection:
    """Which parameters get noise, how much when, and from which seed. Changes no tensor that it is given."""

    noise: Noise
    names: tuple[str, ...]  # as the learner calls them
    total: int  # steps of the run
    seed: int

    def sigma(self, step: int) -> float:
        return deviation(self.noise, step, self.total)

    def apply_each(self, weights: Iterable[tuple[str, Tensor]], step: int) -> Iterator[tuple[str, Tensor]]:
        """The weights for the engine after `step` steps, one tensor after the other; see `noisy`. Missing names are
        reported at the end.
        """
        sigma, missing = self.sigma(step), set(self.names)
        for name, weight in weights:
            names = [name] if name in missing else []
            yield from noisy({name: weight}, names, sigma, seed=self.seed, step=step).items()
            missing.discard(name)
        noisy({}, sorted(missing), sigma, seed=self.seed, step=step)


def start(config: Config, model: nn.Module) -> Injection | None:
    """The injection of a configuration; None for 0 stages. Raises NoMatch."""
    setting = config.noise
    if setting.noise_stages == 0:
        return None
    names = touched(model, targets=_words(setting.noise_targets), excludes=_words(setting.noise_excludes))
    return Injection(setting, names, config.run.steps, config.run.seed)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def touched(model: nn.Module, *, targets: Sequence[str] = (), excludes: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the `weight` parameters that the patterns select, in the model's order.

    A module is selected if its class name contains `rmsnorm` in any case, or those of `CLASSES` that are among the
    targets; if its name contains no exclude; and, if some targets are parts of names, if it contains one of them. With
    neither targets nor excludes: every RMSNorm of a dense model, and of a mixture of experts only the one after the
    attention. Raises NoMatch with the available names.
    """
    if not targets and not excludes and has_experts(model):
        targets, excludes = _MOE_TARGETS, _MOE_EXCLUDES
    classes = [word.lower() for word in targets if word.lower() in CLASSES] or ["rmsnorm"]
    parts = [word for word in targets if word.lower() not in CLASSES]
    of_class = [
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if any(word in type(module).__name__.lower() for word in classes)
        and "weight" in dict(module.named_parameters(recurse=False))
    ]
    names = [name for name in of_class if not _holds(name, excludes) and (not parts or _holds(name, parts))]
    if not names:
        raise NoMatch(
            f"no {' or '.join(classes)} parameter matches the noise targets [{', '.join(parts)}] without the excludes "
            f"[{', '.join(excludes)}]. There are: {', '.join(of_class) or 'none of that class'}"
        )
    return tuple(names)


def _holds(name: str, words: Iterable[str]) -> bool:
    return any(word in name for word in words)


def has_experts(model: nn.Module) -> bool:
    """Whether the model is a mixture of experts, by the names of its modules."""
    return any("experts" in name.split(".") for name, _ in model.named_modules())


def noisy(
    weights: Mapping[str, Tensor], names: Sequence[str], sigma: float, *, seed: int, step: int
) -> dict[str, Tensor]:
    """The same mapping with new tensors under `names`: the weight plus N(0, sigma), drawn in float32 on the CPU.

    Absolute, not relative to the weight's size, and cast to its dtype before it is added (QeRL). A draw depends on
    seed, step and name alone: every rank and device gets the same. All other tensors, and all of them at sigma 0,
    are the given ones. Raises NoMatch for a name that is not among the weights.
    """
    missing = [name for name in names if name not in weights]
    if missing:
        raise NoMatch(f"the weights for the sampler lack {', '.join(missing)}, which should get noise")
    if sigma == 0:
        return dict(weights)
    return {**weights, **{name: _noisy(weights[name], sigma, f"{seed}/{step}/{name}") for name in names}}


def _noisy(weight: Tensor, sigma: float, key: str) -> Tensor:
    # 63 bits of a digest: neighbouring seeds and steps must not give shifted copies of one stream.
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
    drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float32)
    return weight.detach() + (drawn * sigma).to(weight.dtype).to(weight.device)
