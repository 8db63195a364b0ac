"""A run of the packaged trainer in a target environment: starts it, follows its records, makes a record to publish.

The published record (`run_record`) names no host, user, folder or address: all fields but `failed` come from fixed
places, and that one is redacted.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, parse_json
from npuenv.core.errors import BadInput, CannotTell, StepFailed
from npuenv.core.finding import Status
from npuenv.core.messages import Message, say
from npuenv.host.background import Running
from npuenv.host.redact import redact_text
from npuenv.host.writing import claimed
from npuenv.install.environments import state_folder
from npuenv.matrix.rows.packages import RUN_PACKAGES, RUN_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.checks import Finding
    from npuenv.facts.collect import Facts


Record = Mapping[str, Any]
METRICS = "metrics.jsonl"
LOG = "trainer.log"
_TAIL_BYTES = 65_536  # of a log, far longer than any last line
# Without a record for this long the run counts as hung, unless a note announced a longer phase.
SILENCE_LIMIT_S = 600.0
# The upper bound for such notes.
LONGEST_SILENCE_S = 7200.0
# Byte code is cached on purpose: compiling torch's modules again costs 1.2 s at every start.
NEVER_INHERITED = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True, slots=True)
class TrainerTarget:
    """Where the trainer runs: a Python executable, and a folder for the records."""

    python: Path
    out: Path


def start(target: TrainerTarget, settings: Mapping[str, str]) -> Running:
    """Starts `python -m trainer` in the target with a folder on its path that holds only the trainer.

    The working folder is empty, so that no module is imported by accident. Raises: BadInput if the target has no such
    Python or the output folder cannot be used.
    """
    if not target.python.is_file():
        raise BadInput(Message("smoke.no-python", {"path": str(target.python)}), Message("smoke.no-python-hint"))
    scene = make_scene(target.out, keeps_records=_may_go_on(settings))
    # -P (from 3.11) keeps the working folder off the path; before that the folder is just empty.
    argv = [str(target.python), "-m", "trainer", "--out", str(target.out.resolve()), "--cwd", os.getcwd()]
    argv += [f"{key}={value}" for key, value in settings.items()]
    env = {"PYTHONPATH": str(scene / "path"), "PYTHONSAFEPATH": "1"}
    try:
        return Running(argv, cwd=scene / "work", env=env, log=target.out / LOG, unset=NEVER_INHERITED)
    except OSError as error:
        args = {"path": str(target.python), "reason": error.strerror or str(error)}
        raise BadInput(Message("smoke.bad-python", args), Message("smoke.no-python-hint")) from error


def _may_go_on(settings: Mapping[str, str]) -> bool:
    """Whether the trainer may resume from an earlier run's checkpoint, and needs its records: under any name."""
    return any(
        key.lstrip("+").rpartition(".")[2] in ("resume", "resume_mode") and value.lower() in ("true", "auto")
        for key, value in settings.items()
    )


def make_scene(out: Path, *, keeps_records: bool = False) -> Path:
    """Creates the output folder with its `scene`: `path` with a link to the trainer alone, and an empty `work`.

    Records of an earlier run are removed, so that they are not mistaken for this one's, unless this one may resume from
    them.
    """
    scene = out / "scene"
    try:
        _refuse_foreign(out)
        for folder in (scene / "path", scene / "work"):
            folder.mkdir(parents=True, exist_ok=True)
        for old in (LOG,) if keeps_records else (METRICS, LOG):
            (out / old).unlink(missing_ok=True)
        link = scene / "path" / "trainer"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(__file__).resolve().parents[2] / "trainer", target_is_directory=True)
    except OSError as error:
        raise _bad_out(out, error) from error
    return scene


def _refuse_foreign(out: Path) -> None:
    # A run that was stopped before its first record leaves only the scene and the log.
    if out.is_dir() and any(out.iterdir()) and not ((out / METRICS).exists() or (out / "scene").is_dir()):
        raise BadInput(Message("smoke.foreign-out", {"path": str(out)}), Message("smoke.foreign-out-hint"))


def _bad_out(out: Path, error: OSError) -> BadInput:
    args = {"path": str(out), "reason": error.strerror or str(error)}
    return BadInput(Message("smoke.bad-out", args), Message("smoke.bad-out-hint"))


@contextlib.contextmanager
def sole_use(out: Path) -> Iterator[None]:
    """Locks the folder while the block runs, because the records of two smoke tests would mix.

    Raises: BadInput if another one is running there, or the folder cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            _refuse_foreign(out)
            is_mine = stack.enter_context(claimed(str(out / "scene" / "running")))
        except OSError as error:
            raise _bad_out(out, error) from error
        if not is_mine:
            raise BadInput(Message("smoke.busy", {"path": str(out)}), Message("smoke.foreign-out-hint"))
        yield


def head_elsewhere(settings: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str | None:
    """The first node's address if this is another node of a run over several; None if the run is this process's.

    Example: {"train_cards": "0-7"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"} -> "10.0.0.1"
    """
    environ = os.environ if environ is None else environ
    number, count = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1")
    is_other = number.isdigit() and int(number) > 0 and count.isdigit() and int(count) > 1
    return environ.get("MASTER_ADDR") if is_other and settings.get("train_cards") else None


@contextlib.contextmanager
def worker_run(python: Path, settings: Mapping[str, str]) -> Iterator[tuple[Running, Path]]:
    """Runs the trainer as a worker of the first node, with a temporary folder for its log, for the duration of the
    block.

    Only the first node writes into the folder of the run, which all nodes may share.
    """
    # there is no checkpoint to resume from here
    own = {name: value for name, value in settings.items() if name != "resume"}
    with tempfile.TemporaryDirectory(prefix="npuenv-node-") as folder:
        location = TrainerTarget(python, Path(folder) / "out")
        with start(location, own) as running:
            yield running, location.out


def follow(running: Running, out: Path, *, silence_limit_s: float = SILENCE_LIMIT_S) -> Iterator[Record]:
    """Each record as the trainer writes it, until it has ended.

    A note announces a long phase, above all the first use of a card; until the next record its `may_take_s` is the
    limit, if it is larger. Raises: StepFailed if nothing was written for longer; the caller stops the process.
    """
    path, rest, offset, which = out / METRICS, b"", 0, 0
    last, limit_s = time.monotonic(), silence_limit_s
    while True:
        has_ended = running.wait(0.05) is not None
        if (now := number_of(path)) != which:
            # A run that resumes after a loss replaces the file by a shorter one, whose content was read already.
            rest, offset, which = b"", path.stat().st_size if which else 0, now
        fresh = read_from(path, offset)
        offset += len(fresh)
        *lines, rest = (rest + fresh).split(b"\n")
        for line in lines:
            record = parse_record(line.decode("utf-8", "replace"))
            last, limit_s = time.monotonic(), max(silence_limit_s, _announced_s(record))
            yield record
        if has_ended and not fresh:
            return
        if time.monotonic() - last > limit_s:
            args = {"seconds": round(limit_s), "log": str(out / LOG)}
            raise StepFailed(Message("smoke.silent", args), Message("smoke.silent-hint"))


def _announced_s(record: Record) -> float:
    """How long the silence after a record may last if it is such a note; else 0."""
    value = record.get("may_take_s") if record.get("kind") == "note" else None
    return min(float(value), LONGEST_SILENCE_S) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def read_from(path: Path, offset: int) -> bytes:
    """The content of a file from an offset on; empty without a file."""
    try:
        with path.open("rb") as records:
            records.seek(offset)
            return records.read()
    except FileNotFoundError:
        return b""  # nothing was written yet


def number_of(path: Path) -> int:
    """The inode of a file, which changes when the file is replaced; 0 without a file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def records_of(out: Path) -> list[Record]:
    """All records of a run that has ended; only here are those of a resumed run continuous."""
    return [parse_record(line.decode("utf-8", "replace")) for line in read_from(out / METRICS, 0).splitlines()]


def tail_of_log(out: Path) -> str:
    """The last line of the trainer's log, or ""."""
    size = (out / LOG).stat().st_size if (out / LOG).exists() else 0
    lines = read_from(out / LOG, max(size - _TAIL_BYTES, 0)).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def parse_record(line: str) -> Record:
    """One line of metrics.jsonl. A line that is not a JSON object becomes a record of kind `unreadable`."""
    try:
        record = parse_json(line, has_nan=True)
    except JsonError:
        return {"kind": "unreadable", "line": line}
    return record if isinstance(record, dict) else {"kind": "unreadable", "line": line}


def default_out() -> Path:
    """The default folder for a run's records, in the user's state folder."""
    return Path(state_folder(os.environ), "smoke-train")


def run_record(
    facts: Facts, records: Sequence[Record], findings: Sequence[Finding], cause: Finding | None, day: str
) -> dict[str, Any]:
    """The record of a run as JSON values. `day`: YYYY-MM-DD.

    Raises CannotTell where the run used no card, or where chip or CANN are not known: others could not use it.
    """
    header = next((record for record in records if record.get("kind") == "header"), {})
    cards = _used_cards(header)
    if not cards:
        raise CannotTell(Message("smoke.record-without-card"))
    table, cann = facts.npu.smi.value, facts.cann.toolkit.value
    names = {card.name for card in table.cards} if table else set()
    chip = next(iter(names)) if len(names) == 1 else None
    if chip is None or cann is None:
        raise CannotTell(Message("smoke.record-unknown", {"what": "chip" if chip is None else "CANN"}))
    python, driver = facts.python.interpreter.value, facts.npu.driver.value
    installed: Mapping[str, str] = python.distributions if python else {}
    versions = {name: installed[name] for name in RUN_PACKAGES if name in installed}
    if python is not None:
        versions["python"] = ".".join(python.version.split(".")[:2])
    failed = next((each for each in (cause, *findings) if each is not None and each.status is Status.FAIL), None)
    document = {
        "schema": RUN_SCHEMA,
        "chip": chip,
        "cards": cards,
        "cann": cann.version,
        "driver": driver.version if driver else "",
        "packages": versions,
        "what": f"npuenv smoke-train: GRPO of {header.get('backend') or 'a tiny decoder'}",
        "failed": redact_text(say(failed.says, "en")) if failed else "",
        "date": day,
    }
    return document


def _used_cards(header: Record) -> int:
    """How many cards a run used; 0 on the CPU, and where its header does not say."""
    settings = header.get("settings") or {}
    if "backend" in header:
        return int(settings.get("cards") or 0)
    device = str(header.get("device") or "cpu").partition(":")[0]
    return 0 if device == "cpu" else max(1, int(header.get("ranks") or 1))
