"""From cures to a plan: what `doctor --fix` runs, what it writes down for the user's shell, and what it only shows.

Pure: nothing is run or read here. A cure is run only when its check declares it automatic, and never when it touches
security, other users' processes or the cards' state, whatever the check says.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from npuenv.core.messages import Message
from npuenv.core.plan import Condition, Plan, Run, Step, WriteFile
from npuenv.core.shell import can_be_written_down, is_for_own_shell, shell_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Argv = tuple[str, ...]

SESSION_STEP = "session"
# From the ground up, as the layers of the machine; triton-ascend goes in last because it owns files of triton's.
_LAYERS = ("machine", "container", "devices", "driver", "cards", "cann", "nnal", "network", "python", "ray")
_LAST = "triton-ascend"
# Programs that end processes, restart the machine, or open and close it to others.
_NEVER = frozenset(
    {"kill", "killall", "killall5", "pkill", "skill", "fuser", "reboot", "shutdown", "poweroff", "halt", "init"}
    | {"telinit", "iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "setenforce", "mkfs", "dd", "rm", "rmmod"}
    | {"modprobe", "insmod", "sh", "bash", "dash", "zsh"}  # a shell would run a text, which nobody can look through
)
_CHANGES_STATE = {"npu-smi": "set", "hccn_tool": "-s", "systemctl": "stop"}  # program -> the word that does it
_NEEDS_A_PERSON = ("sudo", "su", "doas")  # they ask for a password
_GONE = "-"
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .-]*>|…|\.\.\.|\*\*\*")


class Cure(Protocol):
    """The part of a check's `Fix` that a plan is made from. Checks lie above plans, hence this protocol."""

    @property
    def says(self) -> Message: ...
    @property
    def commands(self) -> tuple[Argv, ...]: ...
    @property
    def is_dangerous(self) -> bool: ...
    @property
    def is_automatic(self) -> bool: ...
    @property
    def needs_root(self) -> bool: ...
    @property
    def undo(self) -> tuple[Argv, ...]: ...
    @property
    def done_when(self) -> tuple[Condition, ...]: ...


class Ill(Protocol):
    """A finding that wants a cure."""

    @property
    def check(self) -> str: ...
    @property
    def fix(self) -> Cure | None: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A cure that is shown and not run, and why."""

    check: str
    says: Message
    commands: tuple[Argv, ...]
    why: Message
    needs_root: bool = False


@dataclass(frozen=True, slots=True)
class Cures:
    """What is done about some findings. `mends` and `undo` are by step id."""

    plan: Plan
    mends: Mapping[str, tuple[str, ...]]  # ids of the checks that the step is for
    undo: Mapping[str, tuple[Argv, ...]]  # () : it cannot be taken back
    shown: tuple[Shown, ...] = ()
    session: tuple[Argv, ...] = ()  # what is written down for the user's shell


@dataclass(frozen=True, slots=True)
class Place:
    """Where cures work: whether they may do what needs root, and the file for the user's shell with its text so far."""

    session_file: str
    session_text: str = ""
    backup: str = ""  # where a copy of the file as it was is kept, for the undo
    is_root: bool = False


def plan_cures(ills: Iterable[Ill], place: Place, restore: Callable[[str], str] = str) -> Cures:
    """The cures of findings, the worst first as given, in an order in which they can be done; each command once.

    `restore` turns stand-ins for names into this machine's own.
    """
    draft = _Draft()
    for ill in ills:
        if ill.fix is None:
            continue
        commands = _real(ill.fix.commands, restore)
        why = _why_not(ill.fix, commands, place) or _contradiction(commands, draft)
        if why is None:
            draft.add(ill.check, ill.fix, commands, restore)
        else:
            draft.shown.append(Shown(ill.check, ill.fix.says, commands, why, ill.fix.needs_root))
    return draft.finished(place)


def undo_script(cures: Cures, begun: Sequence[str], *, head: str, never: str) -> str:
    """A POSIX script that takes the begun steps back, the last one first; `never` stands where that cannot be done."""
    lines = ["#!/bin/sh", f"# {head}"]
    for step_id in reversed(begun):
        lines += ["", f"# {step_id}", *map(shlex.join, cures.undo[step_id])]
        lines += [] if cures.undo[step_id] else [f"# {never}"]
    return "\n".join(lines) + "\n"


def session_text(old: str, lines: Mapping[str, Sequence[Argv]], path: str) -> str:
    """The file for the user's shell: what stood in it, less what is set anew, then the new lines with their checks."""
    fresh = [(check, shell_line(_portable(argv))) for check, argvs in lines.items() for argv in argvs]
    subjects = {subject for _, line in fresh for subject in _subjects(line)}
    kept = [entry for entry in _entries(old) if not subjects & _subjects(entry[1])]
    written = [f"# npuenv doctor --fix; in your shell:  . {shlex.quote(path)}"]
    for check, line in dict.fromkeys([*kept, *fresh]):
        written.append(f"{line}  # {check}")
    return "\n".join(written) + "\n"


def _why_not(cure: Cure, commands: tuple[Argv, ...], place: Place) -> Message | None:
    """Why a cure is not run, or None when it is."""
    never = [argv for argv in commands if _is_never(argv)]
    if never and not cure.is_dangerous and all(map(_removes_packages, never)):
        return Message("fix.removes")
    if never or cure.is_dangerous:
        return Message("fix.dangerous")
    if not commands:
        return Message("fix.by-hand")
    if any(_PLACEHOLDER.search(word) for argv in commands for word in argv):
        return Message("fix.placeholder")
    if not cure.is_automatic and not all(map(can_be_written_down, commands)):
        return Message("fix.by-hand")
    needs_root = cure.needs_root or any(argv[0] in _NEEDS_A_PERSON for argv in commands)
    return Message("fix.needs-root") if needs_root and not place.is_root else None


@dataclass(slots=True)
class _Draft:
    """What a plan grows from, one cure at a time."""

    steps: list[Step] = field(default_factory=list)
    mends: dict[str, tuple[str, ...]] = field(default_factory=dict)
    undo: dict[str, tuple[Argv, ...]] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)
    session: dict[str, list[Argv]] = field(default_factory=dict)

    def add(self, check: str, cure: Cure, commands: tuple[Argv, ...], restore: Callable[[str], str]) -> None:
        """Takes a cure in. One whose programs another step runs already is for that step's account."""
        for_shell = [argv for argv in commands if is_for_own_shell(argv)]
        if for_shell:
            self.session[check] = for_shell
        programs = tuple(argv for argv in commands if not is_for_own_shell(argv))
        same = next((step.id for step in self.steps if _does_too(step, programs)), None)
        if programs and same is not None:
            self.mends[same] = (*self.mends[same], check)
        elif programs:
            step = _step(check, cure, programs, restore)
            self.steps.append(step)
            self.mends[step.id] = (check,)
            self.undo[step.id] = _real(cure.undo, restore)

    def finished(self, place: Place) -> Cures:
        """The whole, in order; the file for the user's shell comes last."""
        ordered = _linked(sorted(self.steps, key=_rank))
        if self.session:
            ordered.append(_session_step(place, self.session))
            self.mends[SESSION_STEP] = tuple(self.session)
            back = ("cp", place.backup, place.session_file) if place.session_text else ("rm", "-f", place.session_file)
            self.undo[SESSION_STEP] = (back,)
        lines = tuple(dict.fromkeys(argv for argvs in self.session.values() for argv in argvs))
        return Cures(Plan(tuple(ordered)), self.mends, self.undo, tuple(self.shown), lines)


def _contradiction(commands: tuple[Argv, ...], draft: _Draft) -> Message | None:
    """Why a cure cannot be done beside those that are planned already: the worse problem keeps its cure."""
    wanted = _outcome(commands)
    for step in draft.steps:
        for name, spec in _outcome(run.argv for run in _runs(step)).items():
            if wanted.get(name, spec) != spec:
                return Message("fix.contradicts", {"what": name, "other": step.id})
    own = [(argv, _subjects(shell_line(argv))) for argv in commands if is_for_own_shell(argv)]
    for check, argvs in draft.session.items():
        for planned in argvs:
            taken = _subjects(shell_line(planned))
            for argv, subjects in own:
                if argv != planned and subjects & taken:
                    return Message("fix.contradicts", {"what": min(subjects & taken), "other": check})
    return None


def _is_never(argv: Argv) -> bool:
    words = argv[1:] if argv[0] in _NEEDS_A_PERSON and len(argv) > 1 else argv
    program = posixpath.basename(words[0])
    return program in _NEVER or _CHANGES_STATE.get(program) in words


def _removes_packages(argv: Argv) -> bool:
    """Whether it removes nothing but what lies in a folder of packages: nobody's security or work."""
    targets = [word for word in argv[1:] if not word.startswith("-")]
    return argv[0] == "rm" and bool(targets) and all(re.search(r"/(site|dist)-packages/[^/]", word) for word in targets)


def _does_too(step: Step, programs: tuple[Argv, ...]) -> bool:
    """Whether a step runs these programs too, or puts in anew every package that they put in."""
    argvs = [run.argv for run in _runs(step)]
    if set(programs) <= set(argvs):
        return True
    removed = {name for argv in argvs for name, spec in _packages(argv).items() if spec == _GONE}
    wanted = _outcome(programs)
    is_anew = all(_packages(argv) for argv in programs) and set(wanted) <= removed
    return is_anew and wanted.items() <= _outcome(argvs).items()


def _outcome(argvs: Iterable[Argv]) -> dict[str, str]:
    """What becomes of each package that pip commands name, the last one deciding."""
    return {name: spec for argv in argvs for name, spec in _packages(argv).items()}


def _packages(argv: Argv) -> dict[str, str]:
    """Distribution -> what a pip command does with it; empty for other commands.

    Example: ("python", "-m", "pip", "install", "numpy<2") -> {"numpy": "<2"}
    """
    verb = next((word for word in argv if word in ("install", "uninstall")), None)
    if verb is None or not any(word in ("pip", "uv") or word.endswith("/uv") for word in argv):
        return {}
    found = {}
    for word in argv[argv.index(verb) + 1 :]:
        match = re.match(r"([A-Za-z0-9][\w.-]*)(\[[^\]]*\])?\s*([=<>!~].*)?$", word)
        if match and not word.startswith("-"):
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            found[name] = _GONE if verb == "uninstall" else match[3] or ""
    return found


def _real(argvs: Iterable[Argv], restore: Callable[[str], str]) -> tuple[Argv, ...]:
    return tuple(tuple(restore(word) for word in argv) for argv in argvs)


def _step(check: str, cure: Cure, programs: tuple[Argv, ...], restore: Callable[[str], str]) -> Step:
    wants = tuple(replace(want, of=tuple(map(restore, want.of)), value=restore(want.value)) for want in cure.done_when)
    actions = tuple(map(Run, (*_rehearsal(programs), *programs)))
    return Step(check.replace(".", "-"), cure.says, actions, wants, needs_root=cure.needs_root)


def _rehearsal(programs: tuple[Argv, ...]) -> tuple[Argv, ...]:
    """The installations of a cure that removes packages first, tried before anything is removed.

    Where an index is out of reach the step then fails with the environment as it was.
    """
    verbs = [next((word for word in argv if word in ("install", "uninstall")), "") for argv in programs]
    if "uninstall" not in verbs or "install" not in verbs[verbs.index("uninstall") :]:
        return ()
    tried = []
    for argv, verb in zip(programs, verbs, strict=True):
        if verb == "install" and _packages(argv):
            at = argv.index("install") + 1
            more = ("--dry-run",) if "--force-reinstall" in argv else ("--dry-run", "--force-reinstall")
            tried.append((*argv[:at], *more, *argv[at:]))
    return tuple(tried)


def _session_step(place: Place, session: Mapping[str, Sequence[Argv]]) -> Step:
    text = session_text(place.session_text, session, place.session_file)
    want = Condition("file.text", (place.session_file,), text)
    why = Message("fix.session", {"path": place.session_file})
    return Step(SESSION_STEP, why, (WriteFile(place.session_file, text),), (want,))


def _runs(step: Step) -> list[Run]:
    return [action for action in step.do if isinstance(action, Run)]


def _rank(step: Step) -> tuple[int, int]:
    area = step.id.partition("-")[0]
    layer = _LAYERS.index(area) if area in _LAYERS else len(_LAYERS)
    is_last = any(_LAST in _packages(run.argv) for run in _runs(step))
    return (len(_LAYERS) + 1, layer) if is_last else (layer, 0)


def _linked(steps: Sequence[Step]) -> list[Step]:
    """Each step after the one before it: package managers must not meet."""
    linked: list[Step] = []
    for step in steps:
        linked.append(replace(step, after=(linked[-1].id,) if linked else ()))
    return linked


def _portable(argv: Argv) -> Argv:
    return (".", *argv[1:]) if argv[0] == "source" else argv


def _subjects(line: str) -> frozenset[str]:
    """What a line of the session file is about: the variables, the limit, or the file."""
    words = shlex.split(line)
    if words[0] in ("export", "unset"):
        return frozenset(word.partition("=")[0] for word in words[1:])
    return frozenset([" ".join(words[:2]) if words[0] == "ulimit" else words[-1]])


def _entries(text: str) -> list[tuple[str, str]]:
    """(check, line) of a session file that was written here; anything else in it is left out."""
    found = []
    for row in text.splitlines():
        line, mark, check = row.rpartition("  # ")
        if mark and line and not row.startswith("#"):
            found.append((check, line))
    return found
