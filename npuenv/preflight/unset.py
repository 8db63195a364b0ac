"""Variables that a script uses and nothing in it sets. Start from `unset_variables`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.core.shellscript import source_of, tokens
from npuenv.preflight.types import Place, Problem, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_MANUAL = "GNU Bash manual: Shell Parameter Expansion; The Set Builtin, -u"


def unset_variables(text: str, path: str, known: Mapping[str, str]) -> Iterator[Problem]:
    """A problem for each name; nothing where another file that the script reads may set it.

    With a name like it that is set, the name is a slip; without one it may come from the environment.
    """
    from npuenv.preflight.rules.base import nearest

    if re.search(r"^\s*(?:source|\.|eval)\s", text, re.MULTILINE):
        return
    names = {name for found in _SET.findall(text) for group in found for name in re.findall(r"[A-Za-z_]\w*", group)}
    ends = bool(re.search(r"^\s*set\s+(?:-\w+\s+)*-\w*u|^\s*set\s.*nounset|^#!.*\s-\w*u", text, re.MULTILINE))
    told = set[str]()
    for token in tokens(source_of(text)):
        is_quoted = token.text.startswith('"') and "$(" not in token.text  # where a single quote is a sign like others
        text_of_shell = token.text if is_quoted else re.sub(r"'[^']*'", "", token.text)
        for name in (one or other for one, other in _USED.findall(text_of_shell)):
            if name in names or name in known or name in told or _OUTSIDE.fullmatch(name):
                continue
            told.add(name)
            near = nearest(name, names, 0.88)
            setting = Setting(name, None, token.text, Place(path, token.line))
            key = "unset-near" if near else "unset-ends" if ends else "unset-empty"
            says = Message(f"preflight_rules.{key}", {"name": name, "near": near or "-"})
            yield Problem("preflight.unset", "error" if near else "warning", says, (setting,), _MANUAL)
