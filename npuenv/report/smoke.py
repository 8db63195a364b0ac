"""A smoke test as it runs (live view), and afterwards: summary, verdict, JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.finding import Finding, Status
from npuenv.core.messages import Message, say
from npuenv.report.doctor import finding_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

# A trainer of another version may know more; what has no sentence here is left out.
IDS = ("memory-full", "micro-batch", "memory-fraction", "length-clipped", "length-unused", "generation-slow")


def advice(records: Sequence[Mapping[str, Any]]) -> list[Message]:
    """One message for each advice record that has a sentence, in the order of the records."""
    found = [record for record in records if record.get("kind") == "advice" and record.get("id") in IDS]
    return [Message(f"advice.{record['id']}", dict(record.get("args") or {})) for record in found]


Record = Mapping[str, Any]

_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {
    Status.OK: ("✔", "green"),
    Status.WARN: ("!", "yellow"),
    Status.FAIL: ("✘", "bold red"),
    Status.UNKNOWN: ("?", "magenta"),
    Status.SKIP: ("-", "dim"),
}


def watch(console: Console, records: Iterable[Record], lang: str) -> Iterator[Record]:
    """Hands each record on while drawing the run: a bar on a terminal, about ten plain lines elsewhere."""
    if not console.is_terminal:
        yield from _watch_plainly(console, records, lang)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    rewards: list[float] = []
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(say(Message("smoke.title"), lang), total=None)
        for record in records:
            if record.get("kind") == "header":
                progress.update(task, total=_num_steps(record))
            elif record.get("kind") == "step":
                rewards.append(number(record.get("critic/score/mean")))
                shown = f"{sparkline(rewards, 24)}  {say(_running(record, None), lang)}"
                progress.update(task, completed=int(record["step"]), description=shown)
            elif (message := _aside(record)) is not None:
                progress.update(task, description=say(message, lang))
            yield record


def _watch_plainly(console: Console, records: Iterable[Record], lang: str) -> Iterator[Record]:
    total: int | None = None
    spoke = time.monotonic()
    for record in records:
        if record.get("kind") == "header":
            total = _num_steps(record)
        elif record.get("kind") == "step":
            # About ten lines a run, and one at least every ten seconds.
            is_due = total and int(record["step"]) % max(total // 10, 1) == 0
            if is_due or time.monotonic() - spoke > 10:
                console.print(say(_running(record, total), lang), markup=False)
                spoke = time.monotonic()
        elif (message := _aside(record)) is not None:
            console.print(say(message, lang), markup=False)
            spoke = time.monotonic()
        yield record


def _aside(record: Record) -> Message | None:
    """What a note announces, or a stage that took long; None for what passes unnoticed."""
    if record.get("kind") == "note":
        name = str(record.get("what"))
        if name in _NOTES:
            return Message(f"smoke.note-{name}")
        if name == "logger":
            return Message("smoke.note-logger", {"name": record.get("logger"), "reason": record.get("reason")})
        return Message("smoke.note-other", {"what": name, "seconds": record.get("may_take_s", "-")})
    if record.get("kind") == "pending":
        return Message("smoke.backend-waits", {"demand": record.get("demand")})
    if record.get("kind") == "stage" and record.get("name") in _BEFORE and number(record.get("seconds")) >= _LONG_S:
        return Message("smoke.stage-running", {"name": record.get("name"), "seconds": f"{record['seconds']:.1f}"})
    return None


_NOTES = ("packages", "compiling", "warm-up")
# Stages before the first step; the others are measured while the steps run.
_BEFORE = ("packages", "import", "device", "matmul", "decoder", "memory", "collective", "warm-up")
_LONG_S = 2.0


def _running(record: Record, total: int | None) -> Message:
    args = {name: _running_number(record.get(key)) for name, key in _SHOWN.items()}
    return Message("smoke.running", {"step": record.get("step"), "steps": total or "…", **args})


def _running_number(value: object) -> str:
    """With three decimals; a dash where the run does not measure it, as the divergence without a reference policy."""
    return "-" if value is None else f"{number(value):.3f}"


_SHOWN = {"reward": "critic/score/mean", "loss": "actor/loss", "kl": "actor/kl_loss"}


def _num_steps(header: Record) -> int | None:
    steps = (header.get("settings") or {}).get("steps")
    return int(steps) if isinstance(steps, int) else None


def number(value: object) -> float:
    """A number of a record; NaN for any other value."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a row of at most `width` block characters, each the mean of its share; a gap: not finite."""
    share = max(len(values) / width, 1.0)
    means = []
    for index in range(min(width, len(values))):
        part = list(values[int(index * share) : max(int((index + 1) * share), int(index * share) + 1)])
        finite = [v for v in part if math.isfinite(v)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    finite_means = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite_means, default=0.0), max(finite_means, default=0.0)
    span = (high - low) or 1.0
    return "".join(
        _BARS[round((mean - low) / span * (len(_BARS) - 1))] if math.isfinite(mean) else " " for mean in means
    )


def verdict(findings: Sequence[Finding]) -> str:
    """`pass`, `fail` or `unknown`: a failure outweighs an unknown, an unknown outweighs all that is fine."""
    states = {finding.status for finding in findings}
    return "fail" if Status.FAIL in states else "unknown" if Status.UNKNOWN in states or not states else "pass"


@dataclass(frozen=True, slots=True)
class Where:
    """What a verdict is about."""

    environment: str
    device: str | Message
    has_other_cards: bool = False  # the machine has NPUs, and the run was on the CPU


def where_of(environment: str, records: Sequence[Record], *, has_cards: bool) -> Where:
    """The environment, and the device that the run's header names."""
    header = next((record for record in records if record.get("kind") == "header"), {})
    if "backend" in header:
        return Where(environment, Message("smoke.on-cards", {"cards": (header.get("settings") or {}).get("cards")}))
    device = header.get("device")
    if not isinstance(device, str):
        return Where(environment, Message("smoke.on-unknown"))
    is_cpu = device.partition(":")[0] == "cpu"
    return Where(environment, Message("smoke.on-cpu") if is_cpu else device, has_cards and is_cpu)


def headline(findings: Sequence[Finding], cause: Finding | None, where: Where) -> Message:
    """The verdict in one sentence: environment, device, and the finding that explains the others, if there is one."""
    args = {"environment": where.environment, "device": where.device}
    return Message(f"smoke.{verdict(findings)}", args if cause is None else {**args, "cause": cause.says})


def print_summary(
    console: Console,
    records: Sequence[Record],
    findings: Sequence[Finding],
    *,
    cause: Finding | None,
    where: Where,
    lang: str,
    files: Mapping[str, Path],
    is_quiet: bool = False,
) -> None:
    """One screen: what ran, how the reward went, each finding, where the files are, and the verdict last.

    Quiet: the findings that failed or are unknown, and the verdict.
    """
    if is_quiet:
        _print_findings(console, [each for each in findings if each.status in (Status.FAIL, Status.UNKNOWN)], lang)
        _print_verdict(console, findings, cause, where, lang)
        return
    _print_run(console, records, lang)
    _print_findings(console, findings, lang)
    _print_advice(console, records, lang)
    for kind, path in files.items():
        console.print(say(Message(f"smoke.{kind}", {"path": str(path)}), lang), markup=False, soft_wrap=True)
    result = _print_verdict(console, findings, cause, where, lang)
    if result != "pass":
        console.print(say(Message(f"smoke.{result}-follows"), lang), markup=False)


def _print_run(console: Console, records: Sequence[Record], lang: str) -> None:
    from rich.cells import cell_len, set_cell_size
    from rich.table import Table

    rows = [(say(Message(f"smoke.row-{label}"), lang), value) for label, value in _rows(records, lang)]
    if console.is_terminal:
        table = Table.grid(padding=(0, 2))
        for label, value in rows:
            table.add_row(label, value)
        console.print(table)
    else:  # a table fills its cells with blanks, in which nobody can search
        width = max((cell_len(label) for label, _ in rows), default=0)
        for label, value in rows:
            line = f"{set_cell_size(label, width)}  {value}"
            console.print(line.rstrip(), markup=False, soft_wrap=True)
    console.print()


def _print_findings(console: Console, findings: Sequence[Finding], lang: str) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    marked = Table.grid(padding=(0, 1))  # a grid, so that a long sentence goes on below its own beginning
    for finding in sorted(findings, key=lambda found: list(_MARKS).index(found.status)):
        mark, style = _MARKS[finding.status]
        says, cure = say(finding.says, lang), f"→ {say(finding.fix.says, lang)}" if finding.fix else ""
        if not console.is_terminal:
            console.print("\n    ".join(filter(None, (f"{mark} {says}", cure))), markup=False, soft_wrap=True)
            continue
        marked.add_row(Text(mark, style=style), Text(says))
        if cure:
            marked.add_row("", Padding(Text(cure), (0, 0, 0, 2)))
    if marked.row_count:
        console.print(marked)


def _print_verdict(
    console: Console, findings: Sequence[Finding], cause: Finding | None, where: Where, lang: str
) -> str:
    """Says the verdict in one sentence, before it what it leaves open; which it is."""
    if where.has_other_cards:
        console.print(say(Message("smoke.cards-untested"), lang), style="yellow", markup=False, soft_wrap=True)
    result = verdict(findings)
    style = {"pass": "bold green", "fail": "bold red", "unknown": "bold magenta"}[result]
    console.print(say(headline(findings, cause, where), lang), style=style, markup=False)
    return result


def _print_advice(console: Console, records: Sequence[Record], lang: str) -> None:
    found = advice(records)
    if found:
        console.print(say(Message("advice.title"), lang), markup=False)
    for message in found:
        console.print(f"→ {say(message, lang)}", markup=False)


def _rows(records: Sequence[Record], lang: str) -> Iterator[tuple[str, str]]:
    header = next((record for record in records if record.get("kind") == "header"), {})
    end = next((record for record in records if record.get("kind") == "end"), {})
    rewards = [number(record.get("critic/score/mean")) for record in records if record.get("kind") == "step"]
    if "backend" in header:
        yield "backend", f"{header['backend']} {header.get('release', '-')}"
        yield "cards", str((header.get("settings") or {}).get("cards", "-"))
    elif header:
        yield "task", str((header.get("settings") or {}).get("task", "-"))
        model = {"parameters": f"{header.get('num_parameters', 0):,}", "dtype": header.get("dtype", "-")}
        yield "model", say(Message("smoke.model-value", model), lang)
        device = {key: header.get(name, "-") for key, name in _DEVICE.items()}
        yield "device", say(Message("smoke.device-value", device), lang)
        if ray := (header.get("placement") or {}).get("ray"):
            kind = "own" if ray.get("is_own") else "shared" if ray.get("others") else "joined"
            args = {"address": ray.get("address", "-"), "others": ray.get("others") or "-"}
            yield "ray", say(Message(f"smoke.ray-{kind}", args), lang)
        for warning in header.get("warnings") or ():
            yield "warning", str(warning)
        if assumed := header.get("assumed"):
            yield "assumed", ", ".join(f"{name}={value}" for name, value in assumed.items())
    if rewards:
        tenth = max(len(rewards) // 10, 1)
        first, last = (sum(part) / len(part) for part in (rewards[:tenth], rewards[-tenth:]))
        yield "reward", f"{sparkline(rewards, 32)}  {first:.2f} → {last:.2f}"
    stages = [record for record in records if record.get("kind") == "stage" and record.get("name") in _BEFORE]
    timed = [f"{each['name']} {number(each['seconds']):.2f}" for each in stages if number(each.get("seconds")) >= 0.005]
    if timed:
        yield "stages", say(Message("smoke.stages-value", {"parts": ", ".join(timed)}), lang)
    if end and "backend" not in header:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in (end.get("seconds") or {}).items())
        total = f"{number(end.get('wall_s')):.1f}"
        yield "time", say(Message("smoke.time-value", {"total": total, "parts": parts}), lang)
        yield "memory", f"{number(end.get('peak_rss_mib')):.0f} MiB"


_DEVICE = {"device": "device", "torch": "torch", "python": "python"}


def summary_json(
    records: Sequence[Record],
    findings: Sequence[Finding],
    *,
    cause: Finding | None,
    where: Where,
    lang: str,
    files: Mapping[str, Path],
    exit_code: int,
) -> dict[str, object]:
    """The `npuenv.smoke/1` document: verdict, findings, the header, the evaluations and the end of the run."""
    return {
        "schema": "npuenv.smoke/1",
        "exit": exit_code,
        "verdict": verdict(findings),
        "says": say(headline(findings, cause, where), lang),
        "environment": where.environment,
        "cards_untested": where.has_other_cards,
        "cause": None if cause is None else cause.says.key.partition(".")[2],
        "findings": [finding_json(finding, lang) for finding in findings],
        "advice": [say(message, lang) for message in advice(records)],
        "run": {
            kind: [record for record in records if record.get("kind") == kind]
            for kind in ("header", "stage", "eval", "end")
        },
        "files": {kind: str(path) for kind, path in files.items()},
    }
