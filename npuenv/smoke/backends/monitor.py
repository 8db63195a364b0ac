"""Follows the log of a framework that runs: `follow` gives its records, and ends a run that waits or says nothing."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from npuenv.smoke.backends.reading import Roll, Verl, bare, pending
from npuenv.smoke.backends.starting import DRIVER_LOGS
from npuenv.smoke.run import LOG, METRICS, read_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from npuenv.host.background import Running
    from npuenv.smoke.backends.starting import RunOptions
    from npuenv.smoke.backends.target import Found

SCHEMA = "npuenv.backend-metrics/1"
_POLL_S = 0.1


class Reader(Protocol):
    """Reads one framework's console, line by line."""

    def read(self, line: str) -> Iterator[dict[str, Any]]: ...


def reader(framework: str) -> Reader:
    """The reader of a framework's console."""
    return Verl() if framework == "verl" else Roll()


@dataclass
class _Patience:
    """When something was last heard, and since when Ray waits for resources. Changes as lines come."""

    silence_limit_s: float
    pending_limit_s: float
    heard: float
    waits_since: float | None = None
    demand: str = ""

    def hear(self, record: dict[str, Any] | None) -> None:
        """Takes note of a line: a demand of Ray's starts the waiting, a step ends it, and other lines end neither."""
        now = time.monotonic()
        if record is not None and record["kind"] == "pending":
            self.waits_since = self.waits_since or now
            self.demand = str(record["demand"])
            return
        self.heard = now
        if record is not None:
            self.waits_since = None

    def over(self) -> dict[str, Any] | None:
        """Why it is time to end the run; None while it is not."""
        now = time.monotonic()
        if self.waits_since is not None and now - self.waits_since > self.pending_limit_s:
            return {"kind": "stopped", "why": "pending", "demand": self.demand, "seconds": round(self.pending_limit_s)}
        if now - self.heard > self.silence_limit_s:
            return {"kind": "stopped", "why": "silent", "seconds": round(self.silence_limit_s)}
        return None


def header(found: Found, asked: RunOptions, *, cards: int) -> dict[str, Any]:
    """The first record of a run."""
    return {
        "kind": "header",
        "schema": SCHEMA,
        "backend": found.framework,
        "release": found.release,
        "settings": {"steps": asked.steps, "cards": cards, "model": asked.model, **asked.overrides},
    }


def follow(running: Running, out: Path, first: dict[str, Any], asked: RunOptions) -> Iterator[dict[str, Any]]:
    """Each record as the log gives it, kept in the records' file too, until the run has ended or was ended.

    The last record is `end` with the exit code and the wall time; before it `stopped`, where the run was ended from
    here, says why.
    """
    began = time.monotonic()
    with (out / METRICS).open("w", encoding="utf-8") as kept:
        yield _keep(first, kept)
        for record in _records(running, out, str(first["backend"]), asked):
            yield _keep(record, kept)
        wall_s = round(time.monotonic() - began, 3)
        yield _keep({"kind": "end", "code": running.poll(), "wall_s": wall_s}, kept)


def _keep(record: dict[str, Any], kept: Any) -> dict[str, Any]:
    kept.write(json.dumps(record) + "\n")
    kept.flush()
    return record


def _records(running: Running, out: Path, framework: str, asked: RunOptions) -> Iterator[dict[str, Any]]:
    patience = _Patience(asked.silence_limit_s, asked.pending_limit_s, time.monotonic())
    tails: dict[Path, _Tail] = {}
    seen: set[tuple[object, object]] = set()
    while True:
        has_ended = running.wait(_POLL_S) is not None
        for path in _logs(out):
            tail = tails.setdefault(path, _Tail(path, reader(framework)))
            for record in _told(tail.fresh(is_last=has_ended), tail.reader, patience):
                if record["kind"] == "pending" or (record["kind"], record["step"]) not in seen:
                    seen.add((record["kind"], record.get("step")))
                    yield record
        if has_ended:
            return
        over = patience.over()
        if over is not None:
            running.stop()
            yield over
            return


def _logs(out: Path) -> list[Path]:
    """The console's log, and the file in which ROLL's driver keeps its own: a step may stand in either, or in both."""
    return [out / LOG, *sorted((out / "scene" / "data" / DRIVER_LOGS).glob("log_rank_DRIVER*.log"))]


@dataclass
class _Tail:
    """A log that grows: where reading stopped, and the line that has no end yet."""

    path: Path
    reader: Reader
    offset: int = 0
    rest: bytes = b""

    def fresh(self, *, is_last: bool) -> list[bytes]:
        """The lines that came since the last call; at the end of the run also one without an end."""
        text = read_from(self.path, self.offset)
        self.offset += len(text)
        *lines, self.rest = (self.rest + text).split(b"\n")
        if is_last and self.rest:
            lines, self.rest = [*lines, self.rest], b""
        return lines


def _told(lines: Iterable[bytes], read: Reader, patience: _Patience) -> Iterator[dict[str, Any]]:
    for raw in lines:
        line = bare(raw.decode("utf-8", "replace"))
        demand = pending(line)
        records = [demand] if demand is not None else list(read.read(line))
        if not records:
            patience.hear(None)
        for record in records:
            patience.hear(record)
            yield record
