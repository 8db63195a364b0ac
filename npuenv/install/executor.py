"""Runs a plan on this machine, step by step, so that it can be stopped anywhere and run again.

A step's conditions are asked before it (all hold: nothing to do) and after it (not all hold: it failed, whatever the
exit code said). A journal and one log per step lie below the environment, in `.npuenv/`.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core import json_input as _json
from npuenv.core.errors import BadInput, ExitCode, NpuenvError, StepFailed
from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Plan, Run, Step, WriteFile
from npuenv.facts.environment import INSPECTOR, ask_environment
from npuenv.facts.manifest import MARKER, describe
from npuenv.facts.pip import UvSettings, without_secrets
from npuenv.host.background import Running
from npuenv.host.base import PathState
from npuenv.host.writing import append_line, claim, holders, write_whole
from npuenv.install.failures import reason, short, system_error, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

_POLL_S = 0.05
_GRACE_S = 1.0
_WAITING_S = 1.0
_NOT_DONE = "execute.not-done-after"
# Something in the way of the folder that no second attempt can mend.
_NO_PLACE = (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
# What only the step that makes an environment is asked for.
_MAKING = ("venv.python", "prefix.python")
# Settings of the caller's shell that would leak into what the steps run.
_NEVER_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONSTARTUP")


class LeftRunning(NpuenvError):
    """Interrupted while a program was at work that nobody but another user may end: it goes on by itself."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class State(enum.Enum):
    """What has just happened to a step."""

    START = "start"
    LINE = "line"
    WAITING = "waiting"  # a program of it is at work; told about once a second
    DONE = "done"
    SKIPPED = "skipped"  # its conditions held already
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Event:
    """Progress, in order. `text` is a line of output with LINE, else empty; `seconds` is how long the step took
    so far."""

    state: State
    step: Step
    number: int  # from 1
    total: int
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a whole run did."""

    done: tuple[str, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """What every step of one execution shares. `settings` may hold secrets: they reach processes, never a file."""

    host: Host
    root: str
    settings: UvSettings = field(default_factory=UvSettings)
    tell: Callable[[Event], None] = lambda event: None
    again: tuple[str, ...] = ("npuenv", "install")  # the command that continues, for hints
    # Another execution is at work here and is waited for; the numbers of its processes, as far as they can be seen.
    wait: Callable[[tuple[int, ...]], None] = lambda pids: None
    # Step id -> what must pass before it acts, for what the plan's own conditions cannot say; raises NpuenvError.
    proofs: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        return Path(self.root) / ".npuenv"

    def log(self, step: Step) -> Path:
        return self.own / "logs" / f"{step.id}.log"


def execute(plan: Plan, session: Session, *, only: str | None = None, start_at: str | None = None) -> Outcome:
    """Runs the steps whose conditions do not hold yet. `only`: that step alone; `start_at`: it and those after it.

    Another execution that is at work there is waited for. Raises BadInput (unknown step, a part of what was never
    begun, another lock put in while we waited), StepFailed (what was done stays; run again to continue), and what a
    proof of the session raises.
    KeyboardInterrupt passes through after the running program and its children have ended; LeftRunning stands for it
    where they could not be ended.
    """
    steps = chosen(plan, only, start_at)
    _require_begun(plan.steps[: plan.steps.index(steps[0])] if steps else (), session)
    done: dict[str, None] = {}
    with _claim(session, plan) as held:
        try:
            _perform_all(steps, session, held, done)
        except StepFailed as error:
            if not _is_worth_another_try(steps, session, error):
                raise
            _perform_all(steps, session, held, done)
    return Outcome(tuple(done), tuple(step.id for step in steps if step.id not in done))


def _perform_all(steps: Sequence[Step], session: Session, held: int, done: dict[str, None]) -> None:
    """Every step in order; the ids of those that had something to do go into `done`."""
    for number, step in enumerate(steps, 1):
        if _perform(step, session, held, number, len(steps)):
            done[step.id] = None


def _is_worth_another_try(steps: Sequence[Step], session: Session, error: StepFailed) -> bool:
    """True when no program complained and yet there is damage that a step mends: it came along from a cache."""
    failed = next((step for step in steps if step.id == error.message.args.get("step")), None)
    if failed is None:  # what a proof objects to is no damage
        return False
    is_verifying = any(want.fact == "env.verified" for want in failed.done_when)
    why = error.message.args["why"]
    if not is_verifying and not (isinstance(why, Message) and why.key == _NOT_DONE):
        return False
    wants = [want for step in steps for want in step.done_when if want.fact == "env.intact"]
    found = [ask_environment(session.host, want).value for want in wants]
    return any(value not in (None, want.value) for want, value in zip(wants, found))


def unmet(step: Step, host: Host) -> tuple[tuple[Condition, Fact[str]], ...]:
    """The conditions of a step that do not hold now, with what was found."""
    asked = ((want, ask_environment(host, want)) for want in step.done_when)
    return tuple((want, fact) for want, fact in asked if fact.value != want.value)


def is_done(step: Step, host: Host) -> bool:
    """True when there is nothing to do for a step now."""
    return bool(step.done_when) and not unmet(step, host)


def changes_more_than_its_own(steps: Sequence[Step], host: Host) -> bool:
    """True when what is not done yet changes more than what npuenv itself put into an environment that was complete.

    To put it in force in place of another is more. What is asked here hashes nothing.
    """
    for step in steps:
        if not (step.is_upkeep or is_done(step, host)):
            return True
        links = (want for want in step.done_when if want.fact == "path.link")
        if any(ask_environment(host, want).value != want.value for want in links):
            return True
    return False


def chosen(plan: Plan, only: str | None, start_at: str | None) -> tuple[Step, ...]:
    """All steps of a plan, `only` that one, or `start_at` and those after it. Raises BadInput for an unknown one."""
    ids = [step.id for step in plan.steps]
    wanted = only or start_at
    if wanted is None:
        return plan.steps
    if wanted not in ids:
        raise BadInput(Message("execute.no-such-step", {"step": wanted, "steps": tuple(ids)}))
    start = ids.index(wanted)
    return plan.steps[start : start + 1] if only else plan.steps[start:]


def _require_begun(before: Sequence[Step], session: Session) -> None:
    """Raises BadInput where a step that is left out makes the environment, and has not: the others stand on it.

    Of the inspector only presence counts: that of an older npuenv can be asked too.
    """
    made = [step for step in before if any(want.fact in _MAKING for want in step.done_when)]
    placed = [action.path for step in before for action in step.do if isinstance(action, WriteFile)]
    inspectors = [path for path in placed if path.endswith(f"/{INSPECTOR}")]
    is_begun = all(session.host.look(path).state is PathState.FILE for path in inspectors)
    if not is_begun or any(unmet(step, session.host) for step in made):
        said = {"path": session.root}
        raise BadInput(Message("execute.not-begun", said), Message("execute.not-begun-hint"))


class _claim:
    """Keeps a second execution away from the same environment; gives the descriptor that holds the lock.

    What the steps start inherits it: a program of another user, which nobody here may end, still keeps others away.
    """

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._plan = plan

    def __enter__(self) -> int:
        try:
            (self._session.own / "logs").mkdir(parents=True, exist_ok=True)
            self._held = self._wait()
        except OSError as error:
            said = system_error(error, self._session.root)
            if error.errno in _NO_PLACE:
                raise BadInput(said, Message("plan.choose-target")) from error
            raise StepFailed(said, _run_again(self._session)) from error
        return self._held

    def _wait(self) -> int:
        """The lock. Only who waits for more than a moment is told so: what was just killed takes one to go."""
        path = str(self._session.own / "running")
        tells_at, is_told = time.monotonic() + _GRACE_S, False
        while (held := claim(path)) is None:
            if not is_told and time.monotonic() >= tells_at:
                is_told = True
                self._session.wait(holders(path))
            time.sleep(_POLL_S)
        if is_told:
            try:
                self._require_same_lock()
            except BaseException:
                os.close(held)
                raise
        return held

    def _require_same_lock(self) -> None:
        """What was planned is for what lay here before; with another lock in its place it has to be planned anew."""
        texts = [(each.path, each.text) for step in self._plan.steps for each in step.do if isinstance(each, WriteFile)]
        wanted = {_json.loads(text)["lock"] for path, text in texts if path.endswith(f"/{MARKER}")}
        found = describe(self._session.host, self._session.root)
        if found is not None and wanted and found.lock not in wanted:
            said = {"path": self._session.root, "stack": found.stack, "lock": found.lock}
            raise BadInput(Message("execute.taken-meanwhile", said), _run_again(self._session))

    def __exit__(self, *error: object) -> None:
        os.close(self._held)


def _perform(step: Step, session: Session, held: int, number: int, total: int) -> bool:
    """True when the step was run, False when there was nothing to do."""

    def tell(state: State, text: str = "", seconds: float = 0.0) -> None:
        session.tell(Event(state, step, number, total, text, seconds))

    if is_done(step, session.host):
        tell(State.SKIPPED)
        return False
    began = time.monotonic()

    def tell_more(line: str | None) -> None:
        if line is None:
            tell(State.WAITING, seconds=time.monotonic() - began)
        else:
            tell(State.LINE, line, time.monotonic() - began)

    tell(State.START)
    _note(session, step, "start")
    try:
        if step.id in session.proofs:
            session.proofs[step.id]()
        for action in step.do:
            _act(action, step, session, held, tell_more)
        _check_after(step, session)
        _note(session, step, "done")
    except (NpuenvError, KeyboardInterrupt) as error:
        ended = State.INTERRUPTED if isinstance(error, (LeftRunning, KeyboardInterrupt)) else State.FAILED
        _note(session, step, ended.value, is_best_effort=True)
        tell(ended, seconds=time.monotonic() - began)
        raise
    tell(State.DONE, seconds=time.monotonic() - began)
    return True


def _act(action: Action, step: Step, session: Session, held: int, on_line: Callable[[str | None], None]) -> None:
    try:
        if isinstance(action, WriteFile):
            write_whole(action.path, action.text, action.mode)
            return
        code = _run(action, step, session, held, on_line)
    except OSError as error:
        raise _failed(step, session, system_error(error, error.filename or session.root)) from error
    if code != 0:
        raise _failed(step, session, reason(tail(session.log(step)), action, code))


def _run(action: Run, step: Step, session: Session, held: int, on_line: Callable[[str | None], None]) -> int:
    """Runs a program and passes its lines on as they come, None about once a second.

    Its children end with it, also on Ctrl-C.
    """
    log = session.log(step)
    environ = session.host.environ()
    unset = [name for name in environ if name.startswith(("UV_", "PIP_")) and name != "UV_CACHE_DIR"]
    unset += [*_NEVER_INHERITED, *action.unset]
    settings = {name: value for name, value in session.settings.environ.items() if name not in action.unset}
    env = {**settings, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "GIT_TERMINAL_PROMPT": "0", **action.env}
    if cert := settings.get("SSL_CERT_FILE"):  # git reads no variable but its own
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
                said = {"command": without_secrets(shlex.join(action.argv)), "pid": running.pid}
                raise LeftRunning(Message("execute.left-running", said), _wait_for_it(session)) from stopped
            raise


def _watch(running: Running, log: Path, start: int, on_line: Callable[[str | None], None]) -> int:
    told_at = time.monotonic()
    with log.open("rb") as file:
        file.seek(start)
        rest = b""
        while True:
            code = running.wait(_POLL_S)
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                on_line(without_secrets(line.decode("utf-8", "replace")).rstrip("\r"))
            if time.monotonic() - told_at >= _WAITING_S:
                told_at = time.monotonic()
                on_line(None)
            if code is not None:
                if rest:
                    on_line(without_secrets(rest.decode("utf-8", "replace")))
                return code


def _check_after(step: Step, session: Session) -> None:
    left = unmet(step, session.host)
    if left:
        want, fact = left[0]
        found = fact.value if fact.value is not None else next((item.line for item in fact.evidence), "")
        said = {"fact": want.fact, "of": want.of[0], "found": short(found)}
        raise _failed(step, session, Message(_NOT_DONE, said))


def _failed(step: Step, session: Session, why: Message) -> StepFailed:
    said = {"step": step.id, "why": why, "log": str(session.log(step))}
    return StepFailed(Message("execute.step-failed", said), _run_again(session))


def _wait_for_it(session: Session) -> Message:
    return Message("execute.wait-for-it", {"command": shlex.join(session.again)})


def _run_again(session: Session) -> Message:
    return Message("execute.run-again", {"command": shlex.join(session.again)})


def _note(session: Session, step: Step, state: str, *, is_best_effort: bool = False) -> None:
    """One line of the journal. If it cannot be written the step fails, except while another failure is told."""
    line = json.dumps({"step": step.id, "state": state, "at": round(time.time(), 1)})
    try:
        append_line(str(session.own / "journal.jsonl"), line)
    except OSError as error:
        if not is_best_effort:
            raise _failed(step, session, system_error(error, session.root)) from error
