"""What the words of a script show by themselves: how Ray is started, packages for GPUs, unset variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.core.shellwords import UNKNOWN, source_of, tokens
from npuenv.matrix import load_matrix
from npuenv.preflight.launch import LaunchFinding, LaunchSetting, is_driver, is_launcher, launch_finding
from npuenv.preflight.rules.base import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.preflight.launch import Call
    from npuenv.preflight.script import Script, StartedCommands, Word

_RAY = "runs of ray 2.48.0, 2.49.2, 2.50.1, 2.60.0: what `ray start --num-gpus=8` registers beside 8 NPUs"
_DRIVER = "verl wheels: verl/trainer/main_ppo.py, and alibaba/ROLL start_*_pipeline.py: one process that starts Ray"
_CONTINUED = "GNU Bash manual, Escape Character: a backslash and a newline right behind it continue a line"
_MANUAL = "GNU Bash manual: Shell Parameter Expansion; The Set Builtin, -u"
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")  # nothing that says what else to take: ${X:-1}
_SET = re.compile(
    r"(?<![\w$.])([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=|\$\{([A-Za-z_]\w*):?[-=?+]|\bfor\s+([A-Za-z_]\w*)\s"
    r"|\b(?:read|mapfile|readarray|getopts|printf\s+-v|declare|local|export|unset)\s([^\n;|&<]*)|-[znv]\s+\"?\$?\{?([A-Za-z_]\w*)"
)
# What a shell, a scheduler, a container or the vendor's environment scripts set.
_OUTSIDE = re.compile(
    r"HOME|USER|LOGNAME|PWD|OLDPWD|PATH|SHELL|LANG|LC_\w+|TERM|HOSTNAME|TMPDIR|E?UID|RANDOM|SECONDS|LINENO|PPID|IFS"
    r"|BASH\w*|FUNCNAME|OPTARG|OPTIND|PIPESTATUS|\w*PATH|\w*_HOME|LD_PRELOAD|\w*_?(?:RANK|WORLD_SIZE)|MASTER_\w+"
    r"|(?:SLURM|PBS|RAY|ASCEND|HCCL|CANN|CONDA|VIRTUAL|VC|MA|K8S|KUBERNETES|POD|NODE|JOB|WANDB|HF|CUDA|MLP|GITHUB)_?\w*"
    r"|NNODES|N_?GPUS\w*|NPROC\w*|\w*(?:PROXY|proxy|TOKEN|KEY|IP|ADDR|PORT|HOSTFILE)"
)


def started_often(words: Sequence[Word], call: Call, path: str) -> tuple[LaunchFinding, ...]:
    """A driver that a launcher would start once for each card: it is one process, which starts the others by Ray."""
    if not is_driver(call.program):
        return ()
    values = [word.value for word in words]
    launcher = next((word for word in words[: values.index(call.program)] if is_launcher(word.value)), None)
    if launcher is None:
        return ()
    args = {"launcher": launcher.value, "program": call.program}
    says = Message("preflight_rules.launcher", {name: each.replace(UNKNOWN, "…") for name, each in args.items()})
    return (launch_finding("preflight.launcher", "error", says, (_setting("start", launcher, path),), _DRIVER),)


def problems_of_script(
    found: StartedCommands, framework: str, text: str, path: str, known: Mapping[str, str]
) -> Iterator[LaunchFinding]:
    """What is about the script as a whole: GPUs for Ray, packages for GPUs, unset variables."""
    for word in found.gpus:
        says = Message("preflight_rules.ray-gpus", {"word": word.value})
        yield launch_finding("preflight.ray-gpus", "error", says, (_setting("ray start", word, path),), _RAY)
    yield from _gpu_packages(found, framework, path)
    yield from _unset_variables(text, path, known)


def _setting(key: str, word: Word, path: str) -> LaunchSetting:
    return LaunchSetting(key, word.value, word.raw, Location(path, word.line if path else 1))


def _gpu_packages(found: StartedCommands, framework: str, path: str) -> Iterator[LaunchFinding]:
    """Packages for GPUs that a script installs before it starts the run."""
    rows = (row for row in load_matrix().unsupported if row.kind == "package" and framework in row.frameworks)
    known = {row.package: row for row in rows if row.believe and not row.until and row.package}
    for word in found.installs:
        name = re.split(r"[=<>!~\[;@ ]", word.value)[0].casefold().replace("_", "-")
        if name in known:
            says, setting = Message("preflight_rules.gpu-package", {"name": name}), _setting("install", word, path)
            yield launch_finding("preflight.gpu-package", "warning", says, (setting,), known[name].source)


def cut_off(script: Script, path: str) -> Iterator[LaunchFinding]:
    """Places where the shell ends the command, though its words go on."""
    of_windows = [cut for cut in script.cuts if cut.why == "carriage-return"]
    for cut in (each for each in script.cuts if each not in of_windows[1:]):
        key, sign, text = cut.lost.partition("=")
        setting = LaunchSetting(key or "\\", text if sign else None, text, Location(path, cut.line))
        says = Message(f"preflight_rules.cut-{cut.why}", {"line": cut.line})
        yield launch_finding("preflight.cut-off", "error", says, (setting,), _CONTINUED)


def _unset_variables(text: str, path: str, known: Mapping[str, str]) -> Iterator[LaunchFinding]:
    """A problem for each name; nothing where another file that the script reads may set it.

    With a name like it that is set, the name is a slip; without one it may come from the environment.
    """
    if re.search(r"^\s*(?:source|\.|eval)\s", text, re.MULTILINE):
        return
    names = {name for found in _SET.findall(text) for group in found for name in re.findall(r"[A-Za-z_]\w*", group)}
    ends = bool(re.search(r"^\s*set\s+(?:-\w+\s+)*-\w*u|^\s*set\s.*nounset|^#!.*\s-\w*u", text, re.MULTILINE))
    found_names = set[str]()
    for token in tokens(source_of(text)):
        is_quoted = token.text.startswith('"') and "$(" not in token.text  # where a single quote is a sign like others
        text_of_shell = token.text if is_quoted else re.sub(r"'[^']*'", "", token.text)
        for name in (one or other for one, other in _USED.findall(text_of_shell)):
            if name in names or name in known or name in found_names or _OUTSIDE.fullmatch(name):
                continue
            found_names.add(name)
            near = nearest(name, names, 0.88)
            setting = LaunchSetting(name, None, token.text, Location(path, token.line))
            key = "unset-near" if near else "unset-ends" if ends else "unset-empty"
            says = Message(f"preflight_rules.{key}", {"name": name, "near": near or "-"})
            yield launch_finding("preflight.unset", "error" if near else "warning", says, (setting,), _MANUAL)
