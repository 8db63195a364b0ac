"""Locks for many stacks: every one locks, or is proved impossible.

What is done stays done: a lock in the folder that answers the same inputs is kept without starting uv, and so is the
proof that a set is impossible (in `impossible.json` beside the locks). Stacks with the same Python layer are solved
once.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import load_json
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.lock.file import IMPOSSIBLE, Lock, Proof, read_lock
from npuenv.lock.inputs import Inputs, inputs_of
from npuenv.lock.make import Known, Solved, as_lock, made_with, solve
from npuenv.lock.store import put_lock, put_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Stack

RECORD = "impossible.json"
_AT_ONCE = 2  # uv processes
_GIVE_UP_AFTER = 3  # questions in a row that no index answered


@dataclass(frozen=True, slots=True)
class GridRow:
    """What became of one stack."""

    stack: str
    platform: str  # Platform.tag
    hardware: str | None
    status: str  # complete | partial | impossible
    packages: int
    missing: tuple[str, ...]  # names of the packages without a hash
    proof: tuple[Proof, ...]  # for an impossible one the smallest clashing set
    seconds: float  # what solving it took; 0 where another stack or an earlier run had done it
    reused: bool  # kept from an earlier run
    detail: str = ""  # for an impossible one the resolver's own words
    is_from_indexes: bool = True  # False: a hash is missing, or rests on public lock files


@dataclass(frozen=True, slots=True)
class _Cell:
    stack: Stack
    inputs: Inputs

    @property
    def file_name(self) -> str:
        return f"{self.stack.name}.{self.stack.platform.tag}.toml"


@dataclass
class _LockRun:
    """One call of `lock_all`: what it works with and what it has learnt."""

    resolver: Resolver
    folder: Path
    on_done: Callable[[GridRow], None]
    rows: dict[int, GridRow]
    known: Known
    tools: str = ""
    silent: list[CannotTell] = field(default_factory=list)  # the last questions in a row without an answer

    def finish(self, number: int, row: GridRow) -> None:
        self.rows[number] = row
        self.on_done(row)


def lock_all(
    stacks: Sequence[Stack],
    resolver: Resolver,
    folder: Path,
    *,
    on_done: Callable[[GridRow], None],
    renew: bool = False,
    fill: bool = False,
    offline: bool = False,
) -> tuple[GridRow, ...]:
    """One row a stack, in their order; `on_done` gets each as soon as it is known.

    Complete and partial locks are written to `folder`; an impossible one leaves no lock there. `renew` asks uv anew for
    all, `fill` for those that are partial, `offline` answers from what lies in the folder and in uv's cache. Raises
    CannotTell at the end where some stacks could not be asked, BadInput where two stacks would share a file with
    different packages.
    """
    cells = [_Cell(stack, inputs_of(stack)) for stack in stacks]
    _require_own_files(cells)
    run = _LockRun(replace(resolver, is_offline=resolver.is_offline or offline), folder, on_done, {}, {})
    waiting: dict[str, list[int]] = {}
    proofs = {} if renew else _read_impossible(folder)
    for number, cell in enumerate(cells):
        row = None if renew else _kept(cell, folder, proofs)
        if row is not None and not (fill and not row.is_from_indexes):
            run.finish(number, row)
        else:
            waiting.setdefault(cell.inputs.digest, []).append(number)
    unanswered = _solve_all(cells, waiting, run)
    if unanswered:
        args = {"count": len(unanswered), "all": len(cells), "why": unanswered[0].message}
        raise CannotTell(Message("locking.unanswered", args), Message("locking.run-again"))
    return tuple(run.rows[number] for number in range(len(cells)))


def _solve_all(cells: Sequence[_Cell], waiting: dict[str, list[int]], run: _LockRun) -> list[CannotTell]:
    """Solves each group of equal inputs, two at a time. One error for each stack that no index answered for."""
    unanswered: list[CannotTell] = []
    run.tools = made_with(run.resolver) if waiting else ""
    pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)
    try:
        futures = {pool.submit(_solved, cells[group[0]], run): group for group in waiting.values()}
        for future in concurrent.futures.as_completed(futures):
            group = futures[future]
            try:
                solved, seconds = future.result()
            except CannotTell as error:
                unanswered += [error] * len(group)
            else:
                _record(cells, group, solved, seconds, run)
    finally:
        # After Ctrl-C the two that run end with their uv; nothing new starts, and what is recorded stays.
        pool.shutdown(wait=True, cancel_futures=True)
    return unanswered


def _solved(cell: _Cell, run: _LockRun) -> tuple[Solved, float]:
    """The answer for one group and the seconds it took. Once several in a row got none, the rest is not asked."""
    if len(run.silent) >= _GIVE_UP_AFTER:
        raise run.silent[-1]
    begin = time.monotonic()
    try:
        solved = solve(cell.stack, cell.inputs, run.resolver, run.known)
    except CannotTell as error:
        run.silent.append(error)
        raise
    run.silent.clear()
    return solved, time.monotonic() - begin


def _record(cells: Sequence[_Cell], group: Sequence[int], solved: Solved, seconds: float, run: _LockRun) -> None:
    """Writes the lock of every stack of a group, or its proof, and gives their rows."""
    first = cells[group[0]]
    for number in group:
        cell = cells[number]
        lock = as_lock(cell.stack, cell.inputs, _said_for(cell, first, solved), run.tools)
        row = _row(cell, lock, seconds=seconds if cell is first else 0.0, reused=False)
        if row.status == IMPOSSIBLE:
            _note_impossible(run.folder, cell, row)
        else:
            put_lock(lock, run.folder)
            _forget_impossible(run.folder, cell)
        run.finish(number, row)


def _said_for(cell: _Cell, first: _Cell, solved: Solved) -> Solved:
    """What came out for one stack in the words of another that asks the same: its own name and its own sources."""
    if cell is first:
        return solved
    own = {line.text: line.source for line in cell.inputs.lines}
    theirs = {line.proof: line.text for line in first.inputs.lines}
    proof = tuple(replace(each, source=own.get(theirs.get(each, ""), each.source)) for each in solved.proof)
    details = ((each, each.detail.replace(first.stack.name, cell.stack.name)) for each in solved.missing)
    return Solved(solved.packages, tuple(replace(each, detail=detail) for each, detail in details), proof)


def _kept(cell: _Cell, folder: Path, proofs: dict[str, Any]) -> GridRow | None:
    """The row of a lock or a proof from an earlier run that answers the same inputs."""
    known = proofs.get(cell.file_name)
    if known and known["inputs"] == cell.inputs.digest:
        proof = tuple(Proof(**each) for each in known["proof"])
        of = (cell.stack.name, cell.stack.platform.tag, cell.stack.platform.hardware)
        return GridRow(*of, IMPOSSIBLE, 0, (), proof, 0.0, True, known["detail"])
    path = folder / cell.file_name
    try:
        lock = read_lock(path) if path.is_file() else None
    except BadInput:
        return None  # a damaged file is written anew
    if lock is None or lock.inputs != cell.inputs.digest:
        return None
    same = as_lock(cell.stack, cell.inputs, Solved(lock.packages, lock.missing), lock.made_with)
    if same != lock:
        put_lock(same, folder)  # another tag of a component that asks for the same
    return _row(cell, same, seconds=0.0, reused=True)


def _row(cell: _Cell, lock: Lock, *, seconds: float, reused: bool) -> GridRow:
    is_impossible = lock.status == IMPOSSIBLE
    return GridRow(
        stack=cell.stack.name,
        platform=cell.stack.platform.tag,
        hardware=cell.stack.platform.hardware,
        status=lock.status,
        packages=len(lock.packages),
        missing=tuple(each.name for each in lock.missing if each.name != "*"),
        proof=lock.proof,
        seconds=seconds,
        reused=reused,
        detail=lock.missing[0].detail if is_impossible else "",
        is_from_indexes=is_impossible or lock.is_from_indexes,
    )


def _require_own_files(cells: Sequence[_Cell]) -> None:
    """Raises BadInput where two stacks with different inputs have the same name and platform."""
    owners: dict[str, _Cell] = {}
    for cell in cells:
        owner = owners.setdefault(cell.file_name, cell)
        if owner.inputs.digest != cell.inputs.digest:
            one, other = (f"{each.stack.name} ({each.stack.platform.hardware})" for each in (owner, cell))
            args = {"one": one, "other": other, "file": cell.file_name}
            raise BadInput(Message("locking.same-file", args), Message("locking.rename"))


def _read_impossible(folder: Path) -> dict[str, Any]:
    """File name of the lock that is not there -> inputs, detail and proof. Empty where none was recorded."""
    path = folder / RECORD
    try:
        return dict(load_json(path)) if path.is_file() else {}
    except (TypeError, ValueError):
        return {}  # a damaged record costs solving anew, nothing else


def _note_impossible(folder: Path, cell: _Cell, row: GridRow) -> None:
    """Records a proof, and takes away a lock of earlier inputs: it would claim what cannot be had."""
    proof = [{"requirement": each.requirement, "source": each.source} for each in row.proof]
    known = {"inputs": cell.inputs.digest, "detail": row.detail, "proof": proof}
    _write_impossible(folder, {**_read_impossible(folder), cell.file_name: known})
    (folder / cell.file_name).unlink(missing_ok=True)


def _forget_impossible(folder: Path, cell: _Cell) -> None:
    known = _read_impossible(folder)
    if known.pop(cell.file_name, None) is not None:
        _write_impossible(folder, known)


def _write_impossible(folder: Path, known: dict[str, Any]) -> None:
    put_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n", folder / RECORD)
