"""Shells to activate in, what they say of their own state, and stand-ins for CANN with the scripts that it installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from npuenv.matrix import load_matrix
from npuenv.render.variables import render_activations
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STARTING_PATH = "/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Shell:
    """One shell: how it is started, and how it says what the tests need."""

    name: str
    argv: tuple[str, ...]
    file: str  # the activation script it sources
    source: str
    export: str  # {name} and {value}, a word that is quoted already
    keep: str  # a variable that is not exported; "" where those are variables of another kind
    unset: str
    status: str
    state: str  # commands that print everything the shell remembers beside its environment
    volatile: str  # names in it that change with every command
    own: str  # a function, an alias and a prompt that the user has


_SH_STATE = "set; export -p; alias; trap; set -o"
_SH = {
    "argv": (),
    "file": "activate.sh",
    "source": ". {path}",
    "export": "{name}={value}; export {name}",
    "keep": "{name}={value}",
    "unset": "unset {name}",
    "status": "$?",
    "own": "mine() { echo mine; }\nalias ll='ls -l'\nPS1='me> '",
}
ALL = (
    Shell(
        name="bash",
        state="declare -p; declare -f; shopt; set -o; alias; trap",
        volatile="BASH_ARG[CV]|BASH_LINENO|PIPESTATUS|_|RANDOM|SRANDOM|SECONDS|EPOCH\\w+|BASH_COMMAND|LINENO|BASHPID|FUNCNAME",
        **{**_SH, "argv": ("bash", "--norc")},  # type: ignore[arg-type]
    ),
    Shell(name="dash", state=_SH_STATE, volatile="_|LINENO", **{**_SH, "argv": ("dash",)}),  # type: ignore[arg-type]
    Shell(
        name="zsh",
        state="typeset -p; functions; setopt; alias; trap",
        volatile="RANDOM|SECONDS|EPOCH\\w+|LINENO|pipestatus|status|_|TTYIDLE|epochtime|[?!]|sysparams|funcfiletrace",
        **{**_SH, "argv": ("zsh", "-f")},  # type: ignore[arg-type]
    ),
    Shell(
        name="fish",
        argv=("fish", "--no-config"),
        file="activate.fish",
        source="source {path}",
        export="set -gx {name} {value}",
        keep="set -gu {name} {value}",
        unset="set -e {name}",
        status="$status",
        state="set --show; functions --all --names; functions mine; functions fish_prompt; abbr",
        volatile="status|pipestatus|status_generation|_|history|CMD_DURATION|fish_kill_signal|fish_pid|last_pid",
        own="function mine; echo mine; end\nfunction fish_prompt; echo 'me> '; end",
    ),
    Shell(
        name="tcsh",
        argv=("tcsh", "-f"),
        file="activate.csh",
        source="source {path}",
        export="setenv {name} {value}",
        keep="",
        unset="unsetenv {name}",
        status="$status",
        state="set; alias; onintr",
        volatile="_|status",
        own="alias ll 'ls -l'\nset prompt = 'me> '\nset mine = 1",
    ),
)
SHELLS = [
    pytest.param(
        shell,
        id=shell.name,
        marks=[
            pytest.mark.skipif(not shutil.which(shell.argv[0]), reason=f"there is no {shell.argv[0]} here"),
            # The same grammar as bash's, and the same as nobody's: they have to be tried, but not before each commit.
            *([pytest.mark.slow] if shell.name in ("dash", "tcsh") else []),
        ],
    )
    for shell in ALL
]
POSIX_SHELLS = SHELLS[:3]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a shell's children see, and what the shell remembers."""

    env: Mapping[bytes, bytes]
    state: str

    def __getitem__(self, name: str) -> str | None:
        value = self.env.get(name.encode())
        return None if value is None else value.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Told:
    """What a session gave: snapshots by name, and the texts it printed."""

    snapshots: Mapping[str, Snapshot]
    out: str
    err: str

    def __getitem__(self, name: str) -> Snapshot:
        return self.snapshots[name]


@dataclass(frozen=True, slots=True)
class Session:
    """Runs commands of one shell, each on a line of its own, as a person types them."""

    shell: Shell
    folder: Path

    def quote(self, text: str) -> str:
        """A word of this shell's, simple texts only: the tests do not lean on the code they test."""
        assert not re.search(r"['\\!\n]", text), text
        return f"'{text}'"

    def enter(self, root: Path | str) -> str:
        return self.shell.source.format(path=self.quote(f"{root}/{self.shell.file}"))

    def export(self, name: str, value: str) -> str:
        return self.shell.export.format(name=name, value=self.quote(value))

    def keep(self, name: str, value: str) -> str:
        return self.shell.keep.format(name=name, value=self.quote(value))

    def unset(self, name: str) -> str:
        return self.shell.unset.format(name=name)

    def status(self) -> str:
        return f"echo status {self.shell.status}"

    def look(self, name: str) -> str:
        """Writes the environment and the state down, by programs that need no PATH."""
        place = self.folder / f"seen-{name}"
        state = "\n".join(f"{line} >> {place}.state" for line in self.shell.state.split("; "))
        return f"/usr/bin/env -0 > {place}.env\n{state}"

    def run(self, lines: Sequence[str], env: Mapping[str, str | bytes] | None = None) -> Told:
        script = self.folder / f"session.{self.shell.name}"
        script.write_text("\n".join(lines) + "\n")
        for old in self.folder.glob("seen-*"):
            old.unlink()
        start = {"PATH": STARTING_PATH, "HOME": str(self.folder), "LANG": "C.UTF-8", "TERM": "dumb", **(env or {})}
        ran = subprocess.run(
            [*self.shell.argv, str(script)],
            env=start, cwd=self.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240,
        )  # fmt: skip
        names = [path.name[5:-4] for path in self.folder.glob("seen-*.env")]
        return Told({name: self._seen(name) for name in names}, ran.stdout, ran.stderr)

    def _seen(self, name: str) -> Snapshot:
        entries = (self.folder / f"seen-{name}.env").read_bytes().split(b"\0")
        env = dict(entry.split(b"=", 1) for entry in entries if entry)
        env.pop(b"_", None)  # the name of the program that was asked
        text = (self.folder / f"seen-{name}.state").read_text(errors="surrogateescape")
        names = self.shell.volatile
        kinds = r"(declare \S+ |typeset (-\S+ )*|export |\$)?"
        kept = [line for line in text.splitlines() if not re.match(rf"{kinds}({names})(=|\b[:\[\t ]|$|\t)", line)]
        return Snapshot(env, "\n".join(kept))


def stack_of(name: str, **changes: object) -> Stack:
    stack = resolve(Request(stack=name, arch="aarch64"), load_matrix())
    assert isinstance(stack, Stack)
    return replace(stack, **changes)  # type: ignore[arg-type]


def install(stack: Stack, root: Path) -> Path:
    """An environment with nothing but an interpreter and the files for activation."""
    for name, text in render_activations(stack, str(root)).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    (root / "bin").mkdir(exist_ok=True)
    (root / "bin/python").symlink_to(sys.executable)
    return root


# The variables and their order as CANN 8.0.0 was recorded to set them: plain assignments that expand what may be unset.
OLD_TOOLKIT = """\
export LD_LIBRARY_PATH="@ASCEND@"/driver/lib64:"@ASCEND@"/driver/lib64/common:\
"@ASCEND@"/driver/lib64/driver:$LD_LIBRARY_PATH
export ASCEND_TOOLKIT_HOME="@HOME@"
export LD_LIBRARY_PATH=${ASCEND_TOOLKIT_HOME}/lib64:${ASCEND_TOOLKIT_HOME}/lib64/plugin/opskernel:\
${ASCEND_TOOLKIT_HOME}/lib64/plugin/nnengine:\
${ASCEND_TOOLKIT_HOME}/opp/built-in/op_impl/ai_core/tbe/op_tiling/lib/linux/aarch64:$LD_LIBRARY_PATH
export LD_LIBRARY_PATH=${ASCEND_TOOLKIT_HOME}/tools/aml/lib64:\
${ASCEND_TOOLKIT_HOME}/tools/aml/lib64/plugin:$LD_LIBRARY_PATH
export PYTHONPATH=${ASCEND_TOOLKIT_HOME}/python/site-packages:\
${ASCEND_TOOLKIT_HOME}/opp/built-in/op_impl/ai_core/tbe:$PYTHONPATH
export PATH=${ASCEND_TOOLKIT_HOME}/bin:${ASCEND_TOOLKIT_HOME}/compiler/ccec_compiler/bin:\
${ASCEND_TOOLKIT_HOME}/tools/ccec_compiler/bin:$PATH
export ASCEND_AICPU_PATH=${ASCEND_TOOLKIT_HOME}
export ASCEND_OPP_PATH=${ASCEND_TOOLKIT_HOME}/opp
export TOOLCHAIN_HOME=${ASCEND_TOOLKIT_HOME}/toolkit
export ASCEND_HOME_PATH=${ASCEND_TOOLKIT_HOME}
"""
# From 8.5 on there is one more home and a path for CMake, and what an older CANN left in the paths is taken out.
NEW_TOOLKIT = """\
without_cann() {
    local rest="" part
    local IFS=:
    for part in $1; do
        case "$part" in */Ascend/cann-*|*/ascend-toolkit/*) ;; *) rest="${rest:+$rest:}$part" ;; esac
    done
    echo "$rest"
}
export LD_LIBRARY_PATH=$(without_cann "$LD_LIBRARY_PATH")
export ASCEND_TOOLKIT_LATEST_HOME="@ASCEND@/ascend-toolkit/latest"
cmake="@HOME@/toolkit/tools/tikicpulib/lib/cmake:@HOME@/lib64/cmake"
export CMAKE_PREFIX_PATH="$cmake${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
unset ASCEND_OLD_SWITCH
echo toolkit chatter
"""
# NNAL's script is bash through and through: dash stops at its first line. It looks for its own folder with an unquoted
# name, asks python3 for torch unless it is told the ABI, and leaves a function and four variables behind.
NNAL = """\
function get_cxx_abi_option()
{
    cxx_abi=""
    for word in "$@"; do
        if [[ "$word" == "--cxx_abi=1" ]]; then cxx_abi=1; elif [[ "$word" == "--cxx_abi=0" ]]; then cxx_abi=0; fi
    done
    if [[ "$cxx_abi" == "" ]]; then
        res=$(python3 -c "import torch" &> /dev/null || echo "torch_not_exist")
        cxx_abi=1
    fi
}
set_env_path="${BASH_SOURCE[0]}"
if [[ -n "$ZSH_VERSION" ]]; then
    set_env_path="$0"
fi
if [[ -f "$set_env_path" ]] && [[ "$set_env_path" =~ (^|/)set_env\\.sh$ ]]; then
    atb_path=$(cd $(dirname $set_env_path); pwd)/latest/atb
    get_cxx_abi_option "$@"
    export ATB_HOME_PATH="${atb_path}/cxx_abi_${cxx_abi}"
    export LD_LIBRARY_PATH=$ATB_HOME_PATH/lib:$ATB_HOME_PATH/examples:$ATB_HOME_PATH/tests/atbopstest:$LD_LIBRARY_PATH
    export PATH=$ATB_HOME_PATH/bin:$PATH
    export ATB_STREAM_SYNC_EVERY_KERNEL_ENABLE=0
    export ATB_SHARE_MEMORY_NAME_SUFFIX=""
    export LCCL_DETERMINISTIC=0
else
    echo "There is no 'set_env.sh' to import"
fi
"""


def install_cann(ascend: Path, layout: str) -> Path:
    """CANN below `ascend` in the layout up to 8.3 (`old`) or from 8.5 on (`new`); the root that a stack names."""
    old = layout == "old"
    root = ascend / ("ascend-toolkit/8.3.RC1" if old else "cann-8.5.0")
    home = ascend / "ascend-toolkit/latest" if old else root
    text = OLD_TOOLKIT + ("" if old else NEW_TOOLKIT)
    for place, script in ((root.parent if old else root, text), (ascend / "nnal/atb", NNAL)):
        place.mkdir(parents=True, exist_ok=True)
        (place / "set_env.sh").write_text(script.replace("@HOME@", str(home)).replace("@ASCEND@", str(ascend)))
    return root
