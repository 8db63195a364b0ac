"""Advice for the next run from the numbers of this one: micro batch, memory fraction, length of answers, engine.

An advice is data: an id, and arguments for a message of the caller's. The thresholds are experience, not measurements
of this machine; rules about memory need the run's peak, so a short run may advise more than fits a long one. Source of
the order and the values: the memory tuning of verl's NPU guides for Qwen2.5 on 8 cards of 64 GiB, where 45 % of the
memory used became 84 % with larger micro batches and a memory fraction of 0.8 instead of 0.4, and tokens a second rose
by 43 %. The 60 and 92 % are this project's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LOW_USE, FULL_USE = 0.60, 0.92  # shares of a device's memory
MOST_FRACTION = 0.8  # beside a learner and a reference on the same card
CLIPPED = 0.10  # share of answers cut off at their limit
UNUSED = 0.5  # of the limit, the longest answer
SLOW_GENERATION = 0.7  # share of the steps' time
# In these the limit is the length of a right answer, or the environment ends the episode: a longer one is useless.
_OWN_LENGTH = ("successor", "addition", "copy", "frozen_lake", "sokoban")
_LEVERS = ("micro_batch_rows", "memory_fraction", "max_new_tokens")


Advice = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Advisor:
    """A run in a few numbers, collected as a follower of its records; writes its advice at the end."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    memory_share: float | None = None  # the largest; None: never measured
    gen_s: float = 0.0
    step_s: float = 0.0
    longest: int = 0
    clip_ratios: list[float] = field(default_factory=list)

    def read(self, record: Mapping[str, Any]) -> tuple[()]:
        """Never has anything to say in between."""
        if record.get("kind") == "header":
            self.settings, self.device = record.get("settings") or {}, str(record.get("device", "cpu"))
        elif record.get("kind") == "step":
            share = record.get("perf/memory_used_share")
            if isinstance(share, (int, float)):
                self.memory_share = max(self.memory_share or 0.0, share)
            self.gen_s += _number(record.get("timing_s/gen"))
            self.step_s += _number(record.get("timing_s/step"))
            self.longest = max(self.longest, int(_number(record.get("response_length/max"))))
            self.clip_ratios.append(_number(record.get("response_length/clip_ratio")))
        return ()

    def finish(self) -> Iterator[dict[str, Any]]:
        """One record for each advice; none of a run without steps."""
        for name, args in advise(self):
            yield {"kind": "advice", "id": name, "args": args}

    @property
    def late_clip_ratio(self) -> float:
        """The mean over the last quarter of the steps: early answers are long because nothing is learnt yet."""
        late = self.clip_ratios[-max(len(self.clip_ratios) // 4, 1) :]
        return sum(late) / max(len(late), 1)

    @property
    def mini_batch_rows(self) -> int:
        """Rows of one optimizer step on one rank; 0 if the settings do not say."""
        rows = int(_number(self.settings.get("prompts_per_step")) * _number(self.settings.get("rollouts_per_prompt")))
        parts = _number(self.settings.get("mini_batches")) * max(_number(self.settings.get("ranks")), 1)
        return int(rows / parts) if parts else 0


def advise(run: Advisor) -> list[Advice]:
    """All that the rules have to say, in their order."""
    if not run.clip_ratios:
        return []
    return [found for rule in RULES if (found := rule(run)) is not None]


def _full(run: Advisor) -> Advice | None:
    """Close to running out: the levers in the order that costs least."""
    if run.memory_share is None or run.memory_share <= FULL_USE:
        return None
    is_vllm = run.settings.get("engine") == "vllm"
    levers = [name for name in _LEVERS if name != "memory_fraction" or is_vllm]
    return "memory-full", {"used": _percent(run.memory_share), "device": run.device, "settings": ", ".join(levers)}


def _low(run: Advisor) -> Advice | None:
    """Room on a card: first larger micro batches, doubled; then more of it for the engine."""
    if run.memory_share is None or run.memory_share >= LOW_USE or run.device == "cpu":
        return None
    used = {"used": _percent(run.memory_share), "device": run.device}
    now, whole = int(_number(run.settings.get("micro_batch_rows"))), run.mini_batch_rows
    if 0 < now < whole:
        return "micro-batch", {**used, "now": now, "value": min(now * 2, whole)}
    fraction = _number(run.settings.get("memory_fraction"))
    if run.settings.get("engine") == "vllm" and 0 < fraction < MOST_FRACTION:
        return "memory-fraction", {**used, "now": fraction, "value": round(min(fraction + 0.1, MOST_FRACTION), 2)}
    return None


def _cut_off(run: Advisor) -> Advice | None:
    """Many answers end at the limit and are judged unfinished."""
    if run.late_clip_ratio <= CLIPPED or run.settings.get("task") in _OWN_LENGTH:
        return None
    return "length-clipped", {"share": _percent(run.late_clip_ratio), "limit": run.longest, "value": run.longest * 2}


def _too_long(run: Advisor) -> Advice | None:
    """The limit is far above every answer: it sizes caches and, on an NPU, shapes."""
    limit = int(_number(run.settings.get("max_new_tokens")))
    if run.settings.get("task") in _OWN_LENGTH or not 0 < run.longest <= limit * UNUSED:
        return None
    return "length-unused", {"longest": run.longest, "limit": limit, "value": -(-run.longest * 5 // 4)}


def _slow_generation(run: Advisor) -> Advice | None:
    """Generation takes most of the time on a card, with an engine made for small models."""
    share, engine = (run.gen_s / run.step_s if run.step_s else 0.0), run.settings.get("engine")
    if share <= SLOW_GENERATION or run.device == "cpu" or engine not in ("builtin", "transformers"):
        return None
    return "generation-slow", {"share": _percent(share), "engine": engine}


RULES: tuple[Callable[[Advisor], Advice | None], ...] = (_full, _low, _cut_off, _too_long, _slow_generation)


def _percent(share: float) -> int:
    return round(share * 100)


def _number(value: object) -> float:
    """A number; 0 for any other value, including a text for one that JSON cannot represent."""
    return float(value) if isinstance(value, (int, float)) else 0.0
