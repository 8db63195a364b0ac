"""The activation script, sourced by real shells beside stand-ins for CANN's own scripts."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.matrix import load_matrix
from npuenv.plan.cann import cann_scripts
from npuenv.render.activate import render_activation
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]
# As CANN's scripts do: variables that may be unset, a colon at the end of PYTHONPATH, chatter.
SET_ENV = """\
export ASCEND_TOOLKIT_HOME={root}
export PYTHONPATH={root}/python/site-packages:$PYTHONPATH
export LD_LIBRARY_PATH={root}/lib64:$LD_LIBRARY_PATH
echo toolkit chatter
"""


def stack_of(name: str, **changes: object) -> Stack:
    stack = resolve(Request(stack=name, arch="aarch64"), load_matrix())
    assert isinstance(stack, Stack)
    return replace(stack, **changes)  # type: ignore[arg-type]


@pytest.fixture
def cann(tmp_path: Path) -> Path:
    root = tmp_path / "Ascend/cann-8.5.0"
    nnal = tmp_path / "Ascend/nnal/atb"
    for folder in (root, nnal):
        folder.mkdir(parents=True)
    (root / "set_env.sh").write_text(SET_ENV.format(root=root))
    (nnal / "set_env.sh").write_text(f'export ATB_HOME_PATH="{nnal}"\nif [ -n "$ZSH_VERSION" ]; then :; fi\n')
    return root


def sourced(shell: str, text: str, script: str, tmp_path: Path, env: dict[str, str] | None = None) -> list[str]:
    file = tmp_path / "activate.sh"
    file.write_text(text)
    ran = subprocess.run(
        [shell, "-c", script.replace("ACTIVATE", f". '{file}'")],
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **(env or {})},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("options", ["", "set -eu; "])
def test_it_sets_what_is_needed_and_is_silent(shell: str, options: str, tmp_path: Path, cann: Path) -> None:
    stack = stack_of("verl-0.7.0-cann8.3.RC1", cann_root=str(cann))
    script = options + "ACTIVATE; echo $VIRTUAL_ENV; echo $PATH; echo $PYTHONPATH; echo $ATB_HOME_PATH; echo $-"
    lines = sourced(shell, render_activation(stack, "/t/my env"), script, tmp_path)
    assert lines[0] == "/t/my env"
    assert lines[1].startswith("/t/my env/bin:")
    assert lines[2] == f"/t/my env/src/megatron-lm:{cann}/python/site-packages"
    assert lines[3] == f"{cann.parent}/nnal/atb"
    assert ("e" in lines[4] and "u" in lines[4]) is bool(options)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": "/mine", "VIRTUAL_ENV": "/old", "LD_LIBRARY_PATH": "/l"}])
def test_deactivation_puts_everything_back(shell: str, before: dict[str, str], tmp_path: Path, cann: Path) -> None:
    text = render_activation(stack_of("verl-0.7.0-cann8.3.RC1", cann_root=str(cann)), "/t/env")
    show = "env | grep -v -E '^(_|SHLVL|PWD|OLDPWD)=' | sort"
    lines = sourced(shell, text, f"{show}; echo --; ACTIVATE; npuenv_deactivate; {show}", tmp_path, before)
    at = lines.index("--")
    assert lines[:at] == lines[at + 1 :]


@pytest.mark.parametrize("shell", SHELLS)
def test_twice_is_like_once(shell: str, tmp_path: Path, cann: Path) -> None:
    text = render_activation(stack_of("verl-0.7.0-cann8.3.RC1", cann_root=str(cann)), "/t/env")
    once, twice = sourced(shell, text, "ACTIVATE; echo $PATH:$PYTHONPATH; ACTIVATE; echo $PATH:$PYTHONPATH", tmp_path)
    assert once == twice


@pytest.mark.parametrize("shell", SHELLS)
def test_settings_of_the_stack_are_exported_as_they_are(shell: str, tmp_path: Path) -> None:
    stack = stack_of("cpu", env={"A_SETTING": "two words; $(not run) 'quoted'"})
    lines = sourced(shell, render_activation(stack, "/t/env"), "ACTIVATE; printenv A_SETTING", tmp_path)
    assert lines == ["two words; $(not run) 'quoted'"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_missing_cann_is_no_error(shell: str, tmp_path: Path) -> None:
    stack = stack_of("verl-0.7.1-cann8.5.0", cann_root="/no/such/cann")
    assert sourced(shell, render_activation(stack, "/t/env"), "set -eu; ACTIVATE; echo $VIRTUAL_ENV", tmp_path) == [
        "/t/env"
    ]


def test_it_says_nothing_about_proxies() -> None:
    assert "proxy" not in render_activation(stack_of("verl-0.7.1-cann8.5.0"), "/t/env").lower()


@pytest.mark.parametrize(
    ("root", "toolkit"),
    [
        ("/usr/local/Ascend/ascend-toolkit/8.3.RC1", "/usr/local/Ascend/ascend-toolkit/set_env.sh"),
        ("/usr/local/Ascend/cann-8.5.0", "/usr/local/Ascend/cann-8.5.0/set_env.sh"),
    ],
)
def test_both_layouts_of_cann_keep_nnal_in_the_same_place(root: str, toolkit: str) -> None:
    stack = stack_of("verl-0.7.1-cann8.5.0", cann_root=root)
    assert cann_scripts(stack) == (toolkit, "/usr/local/Ascend/nnal/atb/set_env.sh")
    assert f"for NPUENV_FILE in {toolkit} /usr/local/Ascend/nnal/atb/set_env.sh; do" in render_activation(stack, "/x")
