"""Follows the log of a running framework: `follow` yields its records, and ends a run that hangs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from npuenv.smoke.backends.reading import Roll, Verl, pending, without_colours
from npuenv.smoke.backends.starting import DRIVER_LOGS
from npuenv.smoke.run import LOG, METRICS, read_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from npuenv.host.background import Running
    from npuenv.smoke.backends.starting import RunOptions
    from npuenv.smoke.backends.target import InstalledFramework

SCHEMA = "npuenv.backend-metrics/1"
_POLL_S = 0.1


class ConsoleReader(Protocol):
    """Reads one framework's console, line by line."""

    def read(self, line: str) -> Iterator[dict[str, Any]]: ...


def reader(framework: str) -> ConsoleReader:
    """The reader of a framework's console."""
    return Verl() if framework == "verl" else Roll()


@dataclass
class _Timeouts:
    """The time of the last output, and since when Ray waits for resources. Updated with each line."""

    silence_limit_s: float
    pending_limit_s: float
    heard: float
    waits_since: float | None = None
    demand: str = ""

    def note(self, record: dict[str, Any] | None) -> None:
        """Updates the times: a demand of Ray's starts the waiting, a step ends it, and other lines change neither."""
        now = time.monotonic()
        if record is not None and record["kind"] == "pending":
            self.waits_since = self.waits_since or now
            self.demand = str(record["demand"])
            return
        self.heard = now
        if record is not None:
            self.waits_since = None

    def over(self) -> dict[str, Any] | None:
        """The reason to end the run now; None while there is none."""
        now = time.monotonic()
        if self.waits_since is not None and now - self.waits_since > self.pending_limit_s:
            return {"kind": "stopped", "why": "pending", "demand": self.demand, "seconds": round(self.pending_limit_s)}
        if now - self.heard > self.silence_limit_s:
            return {"kind": "stopped", "why": "silent", "seconds": round(self.silence_limit_s)}
        return None


def header(found: InstalledFramework, requested: RunOptions, *, cards: int) -> dict[str, Any]:
    """The first record of a run."""
    return {
        "kind": "header",
        "schema": SCHEMA,
        "backend": found.framework,
        "release": found.release,
        "settings": {"steps": requested.steps, "cards": cards, "model": requested.model, **requested.overrides},
    }


def follow(running: Running, out: Path, first: dict[str, Any], requested: RunOptions) -> Iterator[dict[str, Any]]:
    """Each record as the log shows it, also written to the records' file, until the run has ended.

    The last record is `end` with the exit code and the wall time. If this process ended the run, a `stopped` record
    before it gives the reason.
    """
    began = time.monotonic()
    with (out / METRICS).open("w", encoding="utf-8") as saved:
        yield _keep(first, saved)
        for record in _records(running, out, str(first["backend"]), requested):
            yield _keep(record, saved)
        wall_s = round(time.monotonic() - began, 3)
        yield _keep({"kind": "end", "code": running.poll(), "wall_s": wall_s}, saved)


def _keep(record: dict[str, Any], saved: Any) -> dict[str, Any]:
    saved.write(json.dumps(record) + "\n")
    saved.flush()
    return record


def _records(running: Running, out: Path, framework: str, requested: RunOptions) -> Iterator[dict[str, Any]]:
    timeouts = _Timeouts(requested.silence_limit_s, requested.pending_limit_s, time.monotonic())
    tails: dict[Path, _Tail] = {}
    seen: set[tuple[object, object]] = set()
    while True:
        has_ended = running.wait(_POLL_S) is not None
        for path in _logs(out):
            tail = tails.setdefault(path, _Tail(path, reader(framework)))
            for record in _parsed(tail.fresh(is_last=has_ended), tail.reader, timeouts):
                if record["kind"] == "pending" or (record["kind"], record["step"]) not in seen:
                    seen.add((record["kind"], record.get("step")))
                    yield record
        if has_ended:
            return
        over = timeouts.over()
        if over is not None:
            running.stop()
            yield over
            return


def _logs(out: Path) -> list[Path]:
    """The console's log, and the log file of ROLL's driver: a step may be in either, or in both."""
    return [out / LOG, *sorted((out / "scene" / "data" / DRIVER_LOGS).glob("log_rank_DRIVER*.log"))]


@dataclass
class _Tail:
    """A growing log: the read offset, and the last incomplete line."""

    path: Path
    reader: ConsoleReader
    offset: int = 0
    rest: bytes = b""

    def fresh(self, *, is_last: bool) -> list[bytes]:
        """The lines added since the last call; at the end of the run also an incomplete one."""
        text = read_from(self.path, self.offset)
        self.offset += len(text)
        *lines, self.rest = (self.rest + text).split(b"\n")
        if is_last and self.rest:
            lines, self.rest = [*lines, self.rest], b""
        return lines


def _parsed(lines: Iterable[bytes], read: ConsoleReader, timeouts: _Timeouts) -> Iterator[dict[str, Any]]:
    for raw in lines:
        line = without_colours(raw.decode("utf-8", "replace"))
        demand = pending(line)
        records = [demand] if demand is not None else list(read.read(line))
        if not records:
            timeouts.note(None)
        for record in records:
            timeouts.note(record)
            yield record
