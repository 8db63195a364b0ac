"""A run in one picture: reward, accuracy, KL, entropy, lengths, and where the time of each step went."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message, say
from npuenv.report.smoke import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Steps = Sequence[Mapping[str, Any]]

# The phases of a step in their order; other times of a step are not part of it (validation, saving).
PHASES = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")
# Of more steps than this the time shares are averaged over neighbours: a bar of less than a pixel is noise.
_MOST_BARS = 100


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Writes the picture as an SVG; False when matplotlib is not installed. The same records give the same bytes.

    Labels are English in every language: fonts with Chinese glyphs are rare on servers and boxes help nobody. A panel
    whose numbers the run has not measured stays, and says so. Raises OSError where `path` cannot be written.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    steps = [record for record in records if record.get("kind") == "step"]
    figure = Figure(figsize=(10, 9))
    # Fixed, not computed: an automatic layout draws everything twice and takes as long again.
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.06, top=0.96, hspace=0.35, wspace=0.15)
    FigureCanvasSVG(figure)
    axes = figure.subplots(3, 2).flat
    for axis, (name, fill) in zip(axes, _PANELS.items(), strict=True):
        if not fill(axis, records, steps):
            axis.text(0.5, 0.5, _label("nothing"), ha="center", va="center", transform=axis.transAxes)
        axis.set_title(_label(name), fontsize="medium")
        axis.set_xlabel(_label("step"))
        axis.grid(alpha=0.3)
    # No date and no random ids, and text as text: the same bytes on every machine with the same matplotlib.
    with matplotlib.rc_context({"svg.hashsalt": "npuenv", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def _label(name: str) -> str:
    return say(Message(f"plots.{name}"), "en")


def _curve(axis: Any, steps: Sequence[Mapping[str, Any]], name: str, label: str | None = None) -> bool:
    points = [(record["step"], value) for record in steps if math.isfinite(value := number(record.get(name)))]
    if points:
        axis.plot(*zip(*points, strict=True), linewidth=1.2, label=label)
    return bool(points)


def _reward(axis: Any, records: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> bool:
    del records
    spread = [
        (record["step"], low, high)
        for record in steps
        if math.isfinite(low := number(record.get("critic/score/mean")) - number(record.get("critic/score/std")))
        and math.isfinite(high := 2 * number(record.get("critic/score/mean")) - low)
    ]
    if spread:
        axis.fill_between(*zip(*spread, strict=True), alpha=0.2, linewidth=0, label=_label("deviation"))
    is_drawn = _curve(axis, steps, "critic/score/mean", _label("mean"))
    if is_drawn:
        axis.legend(fontsize="small")
    return is_drawn


def _accuracy(axis: Any, records: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> bool:
    last = max((record["step"] for record in steps), default=0)
    points = [
        (last if record.get("when") == "after" else record.get("step", 0), value)
        for record in records
        if record.get("kind") == "eval" and math.isfinite(value := number(record.get("accuracy")))
    ]
    if points:
        axis.plot(*zip(*points, strict=True), marker="o", linewidth=1.2)
        axis.set_ylim(-0.02, 1.02)
    return bool(points)


def _curves(*names: str, labels: Sequence[str] = ()) -> Callable[[Any, Steps, Steps], bool]:
    """A panel with the curves of some numbers of the steps."""

    def fill(axis: Any, _: Steps, steps: Steps) -> bool:
        drawn = [_curve(axis, steps, name, label and _label(label)) for name, label in zip_longest(names, labels)]
        if labels and any(drawn):
            axis.legend(fontsize="small")
        return any(drawn)

    return fill


def _time_shares(axis: Any, records: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> bool:
    del records
    points = time_shares(steps)
    if not points:
        return False
    numbers = [step for step, _ in points]
    axis.stackplot(numbers, *([shares[name] for _, shares in points] for name in PHASES), labels=PHASES)
    axis.set_ylim(0, 1)
    axis.legend(fontsize="x-small", loc="lower right")
    return True


def time_shares(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, dict[str, float]]]:
    """Each phase's share of its step, or of neighbouring steps together where there are many; (middle step, shares)."""
    timed = [record for record in steps if number(record.get("timing_s/step")) > 0]
    size = max(-(-len(timed) // _MOST_BARS), 1)
    found = []
    for start in range(0, len(timed), size):
        part = timed[start : start + size]
        whole = sum(number(record["timing_s/step"]) for record in part)
        spent = {name: sum(_seconds(record, name) for record in part) for name in PHASES}
        middle = sum(record["step"] for record in part) / len(part)
        found.append((middle, {name: seconds / whole for name, seconds in spent.items()}))
    return found


def _seconds(record: Mapping[str, Any], phase: str) -> float:
    # Generation beside the learning takes no time of the step's but what the learner waits for it.
    name = "timing_s/gen_wait" if phase == "gen" and "timing_s/gen_wait" in record else f"timing_s/{phase}"
    value = number(record.get(name))
    return value if math.isfinite(value) else 0.0


_LENGTHS = ("mean", "max", "min")
_PANELS: Mapping[str, Callable[[Any, Steps, Steps], bool]] = {
    "reward": _reward,
    "accuracy": _accuracy,
    "kl": _curves("actor/kl_loss"),
    "entropy": _curves("actor/entropy"),
    "lengths": _curves(*(f"response_length/{name}" for name in _LENGTHS), labels=_LENGTHS),
    "time-shares": _time_shares,
}
