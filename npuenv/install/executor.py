"""Runs a plan on this machine step by step, and says why a step failed. It can be interrupted anywhere and run again.

A step's conditions are checked before it (all hold: nothing to do) and after it (not all hold: it failed, whatever the
exit code). A journal and one log per step are in `.npuenv/` below the environment.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from npuenv.core.documents import parse_json
from npuenv.core.errors import BadInput, ExitCode, NpuenvError, StepFailed
from npuenv.core.messages import Message
from npuenv.core.plan import Action, Plan, Run, Step, WriteFile
from npuenv.facts.conditions import INSPECTOR, ask, is_done, unmet
from npuenv.facts.manifest import MARKER, describe
from npuenv.facts.pip import UvSettings, without_secrets
from npuenv.host import PathState
from npuenv.host.background import Running
from npuenv.host.writing import append_line, claim, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.host import Host


_POLL_S = 0.05
_GRACE_S = 1.0
_WAITING_S = 1.0
_TAIL_BYTES = 1 << 16
_NOT_DONE = "execute.not-done-after"
# Errors about the target folder that a second attempt cannot fix.
_NO_PLACE = (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
# Facts that only the step that creates the environment checks.
_MAKING = ("venv.python", "prefix.python")
# Settings of the caller's shell that would affect the programs of the steps.
_NEVER_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONSTARTUP")


class LeftRunning(NpuenvError):
    """Interrupted while a program was running that only another user can end; it continues by itself."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class StepEvent(enum.Enum):
    """An event of a step."""

    START = "start"
    LINE = "line"
    WAITING = "waiting"  # one of its programs is running; reported about once a second
    DONE = "done"
    SKIPPED = "skipped"  # its conditions already held
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Event:
    """Progress, in order. `text` is a line of output with LINE, else empty; `seconds` is the step's duration so far."""

    state: StepEvent
    step: Step
    number: int  # from 1
    total: int
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    done: tuple[str, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """Shared by all steps of one execution. `settings` may hold secrets: they are passed to processes, never written to
    a file.
    """

    host: Host
    root: str
    settings: UvSettings = field(default_factory=UvSettings)
    tell: Callable[[Event], None] = lambda event: None
    again: tuple[str, ...] = ("npuenv", "install")  # the command that continues, for hints
    # Called while waiting for another execution in this environment, with its process ids as far as they are visible.
    wait: Callable[[tuple[int, ...]], None] = lambda pids: None
    # Step id -> a check that must pass before it runs, for what the plan's conditions cannot express; raises
    # NpuenvError.
    proofs: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        return Path(self.root) / ".npuenv"

    def log(self, step: Step) -> Path:
        return self.own / "logs" / f"{step.id}.log"


def execute(plan: Plan, session: ExecutionContext, *, only: str | None = None, start_at: str | None = None) -> Outcome:
    """Runs the steps whose conditions do not hold yet. `only`: that step alone; `start_at`: it and those after it.

    Waits for another execution in the same environment. Raises: BadInput (unknown step, part of an installation that
    never began, another lock installed meanwhile), StepFailed (completed steps stay; run again to continue), and what a
    proof of the session raises. KeyboardInterrupt passes through after the running program and its children have ended;
    LeftRunning replaces it if they could not be ended.
    """
    steps = chosen(plan, only, start_at)
    _require_begun(plan.steps[: plan.steps.index(steps[0])] if steps else (), session)
    done: dict[str, None] = {}
    with _exclusive_use(plan, session) as held:
        try:
            _perform_all(steps, session, held, done)
        except StepFailed as error:
            if not _is_retryable(steps, session, error):
                raise
            _perform_all(steps, session, held, done)
    return Outcome(tuple(done), tuple(step.id for step in steps if step.id not in done))


def _perform_all(steps: Sequence[Step], session: ExecutionContext, held: int, done: dict[str, None]) -> None:
    """Runs every step in order; adds the ids of those that did something to `done`."""
    for number, step in enumerate(steps, 1):
        if _perform(step, session, held, number, len(steps)):
            done[step.id] = None


def _is_retryable(steps: Sequence[Step], session: ExecutionContext, error: StepFailed) -> bool:
    """Whether no program failed, but a step that repairs still finds damage: it came from a cache."""
    failed = next((step for step in steps if step.id == error.message.args.get("step")), None)
    if failed is None:  # the failure of a proof is not damage
        return False
    is_verifying = any(want.fact == "env.verified" for want in failed.done_when)
    why = error.message.args["why"]
    if not is_verifying and not (isinstance(why, Message) and why.key == _NOT_DONE):
        return False
    wants = [want for step in steps for want in step.done_when if want.fact == "env.intact"]
    found = [ask(session.host, want).value for want in wants]
    return any(value not in (None, want.value) for want, value in zip(wants, found))


def chosen(plan: Plan, only: str | None, start_at: str | None) -> tuple[Step, ...]:
    """All steps of a plan, `only` that one, or `start_at` and those after it. Raises: BadInput for an unknown one."""
    ids = [step.id for step in plan.steps]
    step_id = only or start_at
    if step_id is None:
        return plan.steps
    if step_id not in ids:
        raise BadInput(Message("execute.no-such-step", {"step": step_id, "steps": tuple(ids)}))
    start = ids.index(step_id)
    return plan.steps[start : start + 1] if only else plan.steps[start:]


def _require_begun(before: Sequence[Step], session: ExecutionContext) -> None:
    """Raises BadInput if a skipped step creates the environment and has not run: the others depend on it.

    Only the presence of the verifier counts, so that one of an older npuenv passes.
    """
    made = [step for step in before if any(want.fact in _MAKING for want in step.done_when)]
    placed = [action.path for step in before for action in step.do if isinstance(action, WriteFile)]
    inspectors = [path for path in placed if path.endswith(f"/{INSPECTOR}")]
    is_begun = all(session.host.look(path).state is PathState.FILE for path in inspectors)
    if not is_begun or any(unmet(step, session.host) for step in made):
        args = {"path": session.root}
        raise BadInput(Message("execute.not-begun", args), Message("execute.not-begun-hint"))


@contextlib.contextmanager
def _exclusive_use(plan: Plan, session: ExecutionContext) -> Iterator[int]:
    """Locks the environment against a second execution; gives the descriptor that holds the lock.

    The programs of the steps inherit it: a program of another user, which cannot be ended from here, still holds the
    lock.
    """
    try:
        (session.own / "logs").mkdir(parents=True, exist_ok=True)
        held, has_waited = _wait(session)
    except OSError as error:
        why = system_error(error, session.root)
        if error.errno in _NO_PLACE:
            raise BadInput(why, Message("plan.choose-target")) from error
        raise StepFailed(why, _run_again(session)) from error
    try:
        if has_waited:
            _require_same_lock(plan, session)
        yield held
    finally:
        os.close(held)


def _wait(session: ExecutionContext) -> tuple[int, bool]:
    """Waits for the lock; its descriptor, and whether the wait was reported.

    That is done only after a moment, because a process that was just killed takes a moment to end.
    """
    path = str(session.own / "running")
    tells_at, is_reported = time.monotonic() + _GRACE_S, False
    while (held := claim(path)) is None:
        if not is_reported and time.monotonic() >= tells_at:
            is_reported = True
            session.wait(_holders(path))
        time.sleep(_POLL_S)
    return held, is_reported


def _require_same_lock(plan: Plan, session: ExecutionContext) -> None:
    """Raises BadInput if the environment has another lock than before the wait: the plan no longer applies."""
    texts = [(each.path, each.text) for step in plan.steps for each in step.do if isinstance(each, WriteFile)]
    planned = {parse_json(text)["lock"] for path, text in texts if path.endswith(f"/{MARKER}")}
    found = describe(session.host, session.root)
    if found is not None and planned and found.lock not in planned:
        args = {"path": session.root, "stack": found.stack, "lock": found.lock}
        raise BadInput(Message("execute.taken-meanwhile", args), _run_again(session))


def _holders(path: str) -> tuple[int, ...]:
    """The other processes that have a file open, as far as they are visible; they hold the lock."""
    wanted, found = os.path.realpath(path), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.pid != os.getpid() and any(each.path == wanted for each in process.open_files()):
                found.append(process.pid)
    return tuple(found)


def _perform(step: Step, session: ExecutionContext, held: int, number: int, total: int) -> bool:
    """True if the step ran, False if there was nothing to do."""

    def tell(state: StepEvent, text: str = "", seconds: float = 0.0) -> None:
        session.tell(Event(state, step, number, total, text, seconds))

    if is_done(step, session.host):
        tell(StepEvent.SKIPPED)
        return False
    began = time.monotonic()

    def tell_more(line: str | None) -> None:
        if line is None:
            tell(StepEvent.WAITING, seconds=time.monotonic() - began)
        else:
            tell(StepEvent.LINE, line, time.monotonic() - began)

    tell(StepEvent.START)
    _note(session, step, "start")
    try:
        if step.id in session.proofs:
            session.proofs[step.id]()
        for action in step.do:
            _act(action, step, session, held, tell_more)
        _check_after(step, session)
        _note(session, step, "done")
    except (NpuenvError, KeyboardInterrupt) as error:
        ended = StepEvent.INTERRUPTED if isinstance(error, (LeftRunning, KeyboardInterrupt)) else StepEvent.FAILED
        _note(session, step, ended.value, is_best_effort=True)
        tell(ended, seconds=time.monotonic() - began)
        raise
    tell(StepEvent.DONE, seconds=time.monotonic() - began)
    return True


def _act(
    action: Action, step: Step, session: ExecutionContext, held: int, on_line: Callable[[str | None], None]
) -> None:
    try:
        if isinstance(action, WriteFile):
            write_whole(action.path, action.text, action.mode)
            return
        code = _run(action, step, session, held, on_line)
    except OSError as error:
        raise _failed(step, session, system_error(error, error.filename or session.root)) from error
    if code != 0:
        raise _failed(step, session, failure_reason(tail(session.log(step)), action, code))


def _run(action: Run, step: Step, session: ExecutionContext, held: int, on_line: Callable[[str | None], None]) -> int:
    """Runs a program and yields its lines as they come, None about once a second.

    Its children end with it, also on Ctrl-C.
    """
    log = session.log(step)
    environ = session.host.environ()
    unset = [name for name in environ if name.startswith(("UV_", "PIP_")) and name != "UV_CACHE_DIR"]
    unset += [*_NEVER_INHERITED, *action.unset]
    settings = {name: value for name, value in session.settings.environ.items() if name not in action.unset}
    env = {**settings, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "GIT_TERMINAL_PROMPT": "0", **action.env}
    if cert := settings.get("SSL_CERT_FILE"):  # git reads only its own variable
        env.setdefault("GIT_SSL_CAINFO", environ.get("GIT_SSL_CAINFO") or cert)
    folder = Path(action.cwd or session.root)
    folder.mkdir(parents=True, exist_ok=True)
    append_line(str(log), f"$ {without_secrets(' '.join(action.argv))}")
    start = log.stat().st_size
    with Running(action.argv, cwd=folder, env=env, log=log, unset=unset, keep=(held,)) as running:
        try:
            return _watch(running, log, start, on_line)
        except KeyboardInterrupt as stopped:
            running.interrupt()
            if running.poll() is None:
                args = {"command": without_secrets(shlex.join(action.argv)), "pid": running.pid}
                raise LeftRunning(
                    Message("execute.left-running", args), _run_again(session, "wait-for-it")
                ) from stopped
            raise


def _watch(running: Running, log: Path, start: int, on_line: Callable[[str | None], None]) -> int:
    reported_at = time.monotonic()
    with log.open("rb") as file:
        file.seek(start)
        rest = b""
        while True:
            code = running.wait(_POLL_S)
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                on_line(without_secrets(line.decode("utf-8", "replace")).rstrip("\r"))
            if time.monotonic() - reported_at >= _WAITING_S:
                reported_at = time.monotonic()
                on_line(None)
            if code is not None:
                if rest:
                    on_line(without_secrets(rest.decode("utf-8", "replace")))
                return code


def _check_after(step: Step, session: ExecutionContext) -> None:
    left = unmet(step, session.host)
    if left:
        want, fact = left[0]
        found = fact.value if fact.value is not None else next((item.line for item in fact.evidence), "")
        args = {"fact": want.fact, "of": want.of[0], "found": short(found)}
        raise _failed(step, session, Message(_NOT_DONE, args))


def _failed(step: Step, session: ExecutionContext, why: Message) -> StepFailed:
    args = {"step": step.id, "why": why, "log": str(session.log(step))}
    return StepFailed(Message("execute.step-failed", args), _run_again(session))


def _run_again(session: ExecutionContext, key: str = "run-again") -> Message:
    return Message(f"execute.{key}", {"command": shlex.join(session.again)})


def _note(session: ExecutionContext, step: Step, state: str, *, is_best_effort: bool = False) -> None:
    """Writes one line of the journal. If that fails the step fails, except while another failure is being reported."""
    line = json.dumps({"step": step.id, "state": state, "at": round(time.time(), 1)})
    try:
        append_line(str(session.own / "journal.jsonl"), line)
    except OSError as error:
        if not is_best_effort:
            raise _failed(step, session, system_error(error, session.root)) from error


def failure_reason(text: str, action: Run, code: int) -> Message:
    """The sentence for a program's output; the deciding line of the output if no sentence is known."""
    last = deciding_line(text)
    for marks, key in _KNOWN_FAILURES:
        hit = next((line.strip() for line in text.splitlines() if any(mark in line for mark in marks)), None)
        if hit is not None:
            return Message(key, {"line": short(without_secrets(hit)), "program": Path(action.argv[0]).name})
    if code < 0:
        return Message("execute.program-killed", {"program": Path(action.argv[0]).name, "signal": -code})
    return Message("execute.program-failed", {"program": Path(action.argv[0]).name, "code": code, "line": short(last)})


_NO_NETWORK = ("dns error", "Connection refused", "Network is unreachable", "Could not resolve host", "timed out",
               "client error (Connect)", "error sending request")  # fmt: skip
# Messages of uv and git about a proxy that rejects the request, and about an unreachable one.
_PROXY = ("proxy authorization required", "tunnel error: unsuccessful", "CONNECT tunnel failed",
          "tunnel error: failed to create underlying connection", "Proxy Authentication Required")  # fmt: skip
_NO_WHEEL = ("was not found in the provided package locations", "was not found in the package registry",
             "Because there is no version of", "Failed to read `--find-links` directory",
             "has no usable wheels", "has no wheels with a matching")  # fmt: skip
_BROKEN_REMOTE = ("does not appear to be a git repository", "Could not read from remote repository",
                  "fatal: repository '", "couldn't find remote ref", "fatal: unable to access", "fatal: early EOF",
                  "fatal: git checkout: --detach does not take a path argument", "fatal: unable to read tree",
                  "did not match any file(s) known to git", "fatal: reference is not a tree",
                  "fatal: invalid reference", "fatal: the remote end hung up")  # fmt: skip
_COMPILERS = ("'gcc'", "'g++'", "'cc'", "'c++'", "'clang'", "'cmake'", "'ninja'", "'make'", "'rustc'", "'cargo'")
_NO_COMPILER = (*(f"No such file or directory: {name}" for name in _COMPILERS), "gcc: command not found",
                "No CMAKE_CXX_COMPILER could be found", "No CMAKE_C_COMPILER could be found",
                "can't find Rust compiler", "unable to execute 'gcc'", "unable to execute 'g++'")  # fmt: skip
# In this order: a full disk also breaks downloads, a refused connection also causes "no solution found", and a proxy's
# refusal comes before the connection error that it causes.
_KNOWN_FAILURES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("No space left on device", "os error 28", "Disk quota exceeded"), "execute.disk-full"),
    (("Read-only file system", "Permission denied", "os error 13", "os error 30"), "execute.not-writable"),
    (("Hash mismatch", "hash mismatch"), "execute.hash-mismatch"),
    (_PROXY, "execute.proxy-refuses"),
    (_NO_NETWORK, "execute.no-network"),
    (_NO_COMPILER, "execute.no-compiler"),
    (_BROKEN_REMOTE, "execute.broken-remote"),
    (_NO_WHEEL, "execute.no-wheel"),
)


def deciding_line(text: str) -> str:
    """The line of a program's output that gives the reason: a problem, a cause, an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("$ ")]
    for marks in (("problem: ",), ("Because ",), ("cause: ", "Caused by: "), ("error: ", "fatal: ", "ERROR: ")):
        hits = [line for line in lines if any(mark in line for mark in marks)]
        if hits:
            return without_secrets(hits[0])
    return without_secrets(lines[-1]) if lines else ""


def system_error(error: OSError, path: str) -> Message:
    args = {"line": f"{path}: {error.strerror}", "program": "npuenv"}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Message("execute.disk-full", args)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Message("execute.not-writable", args)
    return Message("execute.system-error", args)


def tail(log: Path) -> str:
    """The end of a log, from the last command on."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text.rpartition("\n$ ")[2] if "\n$ " in text else text


def short(text: str) -> str:
    return text if len(text) <= 400 else text[:397] + "..."
