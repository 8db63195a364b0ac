"""Plans what `doctor --fix` runs, writes for the user's shell, and only shows.

Pure: runs and reads nothing. A fix runs only if its check declares it automatic, and never if it touches security,
other users' processes or the cards' state.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.core.plan import Condition, Plan, Run, Step, WriteFile, chained
from npuenv.core.shell import can_be_written_down, is_for_own_shell, shell_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npuenv.core.finding import Finding, Fix


Argv = tuple[str, ...]

SESSION_STEP = "session"
# Order of the steps, from the lowest layer of the machine up; triton-ascend is last because it owns files of triton.
_LAYERS = ("machine", "container", "devices", "driver", "cards", "cann", "nnal", "network", "python", "ray")
_LAST = "triton-ascend"
# Programs that end processes, restart the machine, or change who can access it.
_NEVER = frozenset(
    {"kill", "killall", "killall5", "pkill", "skill", "fuser", "reboot", "shutdown", "poweroff", "halt", "init"}
    | {"telinit", "iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "setenforce", "mkfs", "dd", "rm", "rmmod"}
    | {"modprobe", "insmod", "sh", "bash", "dash", "zsh"}  # a shell would run a text that cannot be inspected
)
# program -> the argument that changes the state
_CHANGES_STATE = {"npu-smi": "set", "hccn_tool": "-s", "systemctl": "stop"}
_INTERACTIVE = ("sudo", "su", "doas")  # these ask for a password
_GONE = "-"
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .-]*>|…|\.\.\.|\*\*\*")


@dataclass(frozen=True, slots=True)
class ManualFix:
    """A fix that is only shown, and the reason."""

    check: str
    says: Message
    commands: tuple[Argv, ...]
    why: Message
    needs_root: bool = False


@dataclass(frozen=True, slots=True)
class FixPlan:
    """The fixes of some findings. `checks` and `undo` are by step id."""

    plan: Plan
    checks: Mapping[str, tuple[str, ...]]  # ids of the checks that the step fixes
    undo: Mapping[str, tuple[Argv, ...]]  # (): it cannot be undone
    manual: tuple[ManualFix, ...] = ()
    session: tuple[Argv, ...] = ()  # commands for the user's shell


@dataclass(frozen=True, slots=True)
class FixContext:
    """Where fixes run: whether as root, and the file for the user's shell with its present text."""

    session_file: str
    session_text: str = ""
    backup: str = ""  # path of a copy of the unchanged file, for the undo
    is_root: bool = False


def plan_fixes(findings: Iterable[Finding], context: FixContext, restore: Callable[[str], str] = str) -> FixPlan:
    """The fixes of findings, worst first as given, in an order in which they can run; each command once.

    `restore` replaces stand-ins for names by this machine's own names.
    """
    draft = _Draft()
    for finding in findings:
        if finding.fix is None:
            continue
        commands = _real(finding.fix.commands, restore)
        why = _why_manual(finding.fix, commands, context) or _contradiction(commands, draft)
        if why is None:
            draft.add(finding.check, finding.fix, commands, restore)
        else:
            draft.manual.append(ManualFix(finding.check, finding.fix.says, commands, why, finding.fix.needs_root))
    return draft.build(context)


def undo_script(fixes: FixPlan, begun: Sequence[str], *, head: str, never: str) -> str:
    """A POSIX script that undoes the started steps, the last one first; `never` marks steps that cannot be undone."""
    lines = ["#!/bin/sh", f"# {head}"]
    for step_id in reversed(begun):
        lines += ["", f"# {step_id}", *map(shlex.join, fixes.undo[step_id])]
        lines += [] if fixes.undo[step_id] else [f"# {never}"]
    return "\n".join(lines) + "\n"


def session_text(old: str, lines: Mapping[str, Sequence[Argv]], path: str) -> str:
    """The file for the user's shell: the old lines, except those that are replaced, then the new lines with their
    checks.
    """
    # `source` is not POSIX.
    portable = [(check, (".", *argv[1:]) if argv[0] == "source" else argv) for check in lines for argv in lines[check]]
    fresh = [(check, shell_line(argv)) for check, argv in portable]
    subjects = {subject for _, line in fresh for subject in _subjects(line)}
    unchanged = [entry for entry in _entries(old) if not subjects & _subjects(entry[1])]
    written = [f"# npuenv doctor --fix; in your shell:  . {shlex.quote(path)}"]
    for check, line in dict.fromkeys([*unchanged, *fresh]):
        written.append(f"{line}  # {check}")
    return "\n".join(written) + "\n"


def _why_manual(fix: Fix, commands: tuple[Argv, ...], context: FixContext) -> Message | None:
    """The reason why a fix is only shown, or None if it can run."""
    never = [argv for argv in commands if _is_never(argv)]
    if never and not fix.is_dangerous and all(map(_removes_packages, never)):
        return Message("fix.removes")
    if never or fix.is_dangerous:
        return Message("fix.dangerous")
    if not commands:
        return Message("fix.by-hand")
    if any(_PLACEHOLDER.search(token) for argv in commands for token in argv):
        return Message("fix.placeholder")
    if not fix.is_automatic and not all(map(can_be_written_down, commands)):
        return Message("fix.by-hand")
    needs_root = fix.needs_root or any(argv[0] in _INTERACTIVE for argv in commands)
    return Message("fix.needs-root") if needs_root and not context.is_root else None


@dataclass(slots=True)
class _Draft:
    """A plan under construction."""

    steps: list[Step] = field(default_factory=list)
    checks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    undo: dict[str, tuple[Argv, ...]] = field(default_factory=dict)
    manual: list[ManualFix] = field(default_factory=list)
    session: dict[str, list[Argv]] = field(default_factory=dict)

    def add(self, check: str, fix: Fix, commands: tuple[Argv, ...], restore: Callable[[str], str]) -> None:
        """Adds a fix. If another step already runs its programs, that step is extended to its check."""
        for_shell = [argv for argv in commands if is_for_own_shell(argv)]
        if for_shell:
            self.session[check] = for_shell
        programs = tuple(argv for argv in commands if not is_for_own_shell(argv))
        same = next((step.id for step in self.steps if _includes(step, programs)), None)
        if programs and same is not None:
            self.checks[same] = (*self.checks[same], check)
        elif programs:
            step = _step(check, fix, programs)
            self.steps.append(step)
            self.checks[step.id] = (check,)
            self.undo[step.id] = _real(fix.undo, restore)

    def build(self, context: FixContext) -> FixPlan:
        """The complete plan, in order; the file for the user's shell comes last."""
        # Package managers must not run at the same time.
        ordered = [*chained(sorted(self.steps, key=_rank))]
        if self.session:
            ordered.append(_session_step(context, self.session))
            self.checks[SESSION_STEP] = tuple(self.session)
            path = context.session_file
            restore = ("cp", context.backup, path) if context.session_text else ("rm", "-f", path)
            self.undo[SESSION_STEP] = (restore,)
        lines = tuple(dict.fromkeys(argv for argvs in self.session.values() for argv in argvs))
        return FixPlan(Plan(tuple(ordered)), self.checks, self.undo, tuple(self.manual), lines)


def _contradiction(commands: tuple[Argv, ...], draft: _Draft) -> Message | None:
    """The conflict of a fix with those that are planned already, or None. The more severe problem keeps its fix."""
    wanted = _outcome(commands)
    for step in draft.steps:
        for name, spec in _outcome(run.argv for run in _runs(step)).items():
            if wanted.get(name, spec) != spec:
                return Message("fix.contradicts", {"what": name, "other": step.id})
    own = [(argv, _subjects(shell_line(argv))) for argv in commands if is_for_own_shell(argv)]
    for check, argvs in draft.session.items():
        for planned in argvs:
            used = _subjects(shell_line(planned))
            for argv, subjects in own:
                if argv != planned and subjects & used:
                    return Message("fix.contradicts", {"what": min(subjects & used), "other": check})
    return None


def _is_never(argv: Argv) -> bool:
    command = argv[1:] if argv[0] in _INTERACTIVE and len(argv) > 1 else argv
    program = posixpath.basename(command[0])
    return program in _NEVER or _CHANGES_STATE.get(program) in command


def _removes_packages(argv: Argv) -> bool:
    """Whether a command removes nothing outside of package folders."""
    targets = [token for token in argv[1:] if not token.startswith("-")]
    are_packages = all(re.search(r"/(site|dist)-packages/[^/]", target) for target in targets)
    return argv[0] == "rm" and bool(targets) and are_packages


def _includes(step: Step, programs: tuple[Argv, ...]) -> bool:
    """Whether a step runs these programs too, or reinstalls every package that they install."""
    argvs = [run.argv for run in _runs(step)]
    if set(programs) <= set(argvs):
        return True
    removed = {name for argv in argvs for name, spec in _packages(argv).items() if spec == _GONE}
    wanted = _outcome(programs)
    is_anew = all(_packages(argv) for argv in programs) and set(wanted) <= removed
    return is_anew and wanted.items() <= _outcome(argvs).items()


def _outcome(argvs: Iterable[Argv]) -> dict[str, str]:
    """The final state of each package that pip commands name; later commands win."""
    return {name: spec for argv in argvs for name, spec in _packages(argv).items()}


def _packages(argv: Argv) -> dict[str, str]:
    """Distribution -> the version specifier or removal of a pip command; empty for other commands.

    Example: ("python", "-m", "pip", "install", "numpy<2") -> {"numpy": "<2"}
    """
    verb = next((token for token in argv if token in ("install", "uninstall")), None)
    if verb is None or not any(token in ("pip", "uv") or token.endswith("/uv") for token in argv):
        return {}
    found = {}
    for token in argv[argv.index(verb) + 1 :]:
        match = re.match(r"([A-Za-z0-9][\w.-]*)(\[[^\]]*\])?\s*([=<>!~].*)?$", token)
        if match and not token.startswith("-"):
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            found[name] = _GONE if verb == "uninstall" else match[3] or ""
    return found


def _real(argvs: Iterable[Argv], restore: Callable[[str], str]) -> tuple[Argv, ...]:
    return tuple(tuple(restore(token) for token in argv) for argv in argvs)


def _step(check: str, fix: Fix, programs: tuple[Argv, ...]) -> Step:
    actions = tuple(map(Run, (*_rehearsal(programs), *programs)))
    return Step(check.replace(".", "-"), fix.says, actions, needs_root=fix.needs_root)


def _rehearsal(programs: tuple[Argv, ...]) -> tuple[Argv, ...]:
    """The installations of a fix that removes packages first, as dry runs before anything is removed.

    If an index is unreachable, the step then fails with the environment unchanged.
    """
    verbs = [next((token for token in argv if token in ("install", "uninstall")), "") for argv in programs]
    if "uninstall" not in verbs or "install" not in verbs[verbs.index("uninstall") :]:
        return ()
    tried = []
    for argv, verb in zip(programs, verbs, strict=True):
        if verb == "install" and _packages(argv):
            at = argv.index("install") + 1
            more = ("--dry-run",) if "--force-reinstall" in argv else ("--dry-run", "--force-reinstall")
            tried.append((*argv[:at], *more, *argv[at:]))
    return tuple(tried)


def _session_step(context: FixContext, session: Mapping[str, Sequence[Argv]]) -> Step:
    text = session_text(context.session_text, session, context.session_file)
    want = Condition("file.text", (context.session_file,), text)
    why = Message("fix.session", {"path": context.session_file})
    return Step(SESSION_STEP, why, (WriteFile(context.session_file, text),), (want,))


def _runs(step: Step) -> list[Run]:
    return [action for action in step.do if isinstance(action, Run)]


def _rank(step: Step) -> tuple[int, int]:
    area = step.id.partition("-")[0]
    layer = _LAYERS.index(area) if area in _LAYERS else len(_LAYERS)
    is_last = any(_LAST in _packages(run.argv) for run in _runs(step))
    return (len(_LAYERS) + 1, layer) if is_last else (layer, 0)


def _subjects(line: str) -> frozenset[str]:
    """What a line of the session file sets: the variables, the limit, or the file."""
    tokens = shlex.split(line)
    if tokens[0] in ("export", "unset"):
        return frozenset(token.partition("=")[0] for token in tokens[1:])
    return frozenset([" ".join(tokens[:2]) if tokens[0] == "ulimit" else tokens[-1]])


def _entries(text: str) -> list[tuple[str, str]]:
    """(check, line) of a session file that npuenv wrote; other lines are left out."""
    found = []
    for row in text.splitlines():
        line, mark, check = row.rpartition("  # ")
        if mark and line and not row.startswith("#"):
            found.append((check, line))
    return found
