"""The files for activation: what they hold, the settings that go into them, and the stand-ins that the tests use."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.install.cann import cann_scripts
from npuenv.matrix import load_matrix
from npuenv.render.variables import render_activations, settings_of
from tests.render.activation_cases import (
    OLD_TOOLKIT,
    STARTING_PATH,
    install,
    install_cann,
    stack_of,
)

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack

SHARED = Path(__file__).parents[3] / "shared/transcripts/files"
VERL = "verl-0.7.0-cann8.3.RC1"
ROLL = "roll-deepspeed-cann8.5.1"
HAS_TORCH = "lib/python{}/site-packages/torch/share/cmake/Torch/TorchConfig.cmake"


@pytest.fixture
def new_cann(tmp_path: Path) -> Path:
    return install_cann(tmp_path / "Ascend", "new")


@pytest.mark.parametrize("said", ["0", "1", None])
def test_nnal_gets_the_abi_of_the_environments_torch_and_no_torch_is_imported(
    said: str | None, tmp_path: Path, new_cann: Path
) -> None:
    root = install(stack_of(VERL, cann_root=str(new_cann)), tmp_path / "env")
    version = subprocess.run(
        [root / "bin/python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    config = root / HAS_TORCH.format(version)
    config.parent.mkdir(parents=True)
    config.write_text(f'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI={said}")' if said else "if(TORCH_CXX_FLAGS)")
    (root / "bin/python3").write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\n")
    (root / "bin/python3").chmod(0o755)
    script = f". '{root}/activate.sh' && echo $ATB_HOME_PATH"
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={"PATH": STARTING_PATH}, check=True)
    assert ran.stdout.strip().endswith(f"/cxx_abi_{said or '1'}")
    assert not (tmp_path / "asked").exists()


def test_the_stand_in_sets_what_cann_was_recorded_to_set(tmp_path: Path) -> None:
    """CANN 8.0.0, as its environment was written down after sourcing."""
    recorded = SHARED / "env_after_source_cann8.0.0.txt"
    if not recorded.is_file():
        pytest.skip("the recorded environment is not here")
    script = tmp_path / "set_env.sh"
    ascend = "/usr/local/Ascend"
    script.write_text(OLD_TOOLKIT.replace("@HOME@", f"{ascend}/ascend-toolkit/latest").replace("@ASCEND@", ascend))
    start = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    ran = subprocess.run(
        ["bash", "-c", f". {script}; /usr/bin/env"], env=start, capture_output=True, text=True, check=True
    )
    found = dict(line.split("=", 1) for line in ran.stdout.splitlines())
    wanted = dict(line.split("=", 1) for line in recorded.read_text().splitlines() if line)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.skipif(not shutil.which("dash"), reason="there is no dash here")
def test_dash_cannot_source_nnals_script_itself(tmp_path: Path, new_cann: Path) -> None:
    """Why it runs in a bash of its own. When this fails, the stand-in is no longer like NNAL's script."""
    script = f"cd '{tmp_path}/Ascend/nnal/atb'; . ./set_env.sh; echo still here"
    ran = subprocess.run(["dash", "-c", script], capture_output=True, text=True, env={"PATH": STARTING_PATH})
    assert ran.returncode == 2
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("root", "toolkit", "compiler"),
    [
        ("/usr/local/Ascend/ascend-toolkit/8.3.RC1", "/usr/local/Ascend/ascend-toolkit/set_env.sh", []),
        (
            "/usr/local/Ascend/cann-8.5.0",
            "/usr/local/Ascend/cann-8.5.0/set_env.sh",
            ["/usr/local/Ascend/cann-8.5.0/share/info/ascendnpu-ir/bin/set_env.sh"],
        ),
    ],
)
def test_both_layouts_of_cann_keep_nnal_in_the_same_place_and_the_newer_has_a_script_of_its_compiler(
    root: str, toolkit: str, compiler: list[str]
) -> None:
    stack = stack_of("verl-0.7.1-cann8.5.0", cann_root=root)
    assert cann_scripts(stack) == (toolkit, "/usr/local/Ascend/nnal/atb/set_env.sh")
    data = json.loads(render_activations(stack, "/x")[".npuenv/activation.json"])
    assert data["scripts"] == [toolkit, *compiler, "/usr/local/Ascend/nnal/atb/set_env.sh"]
    assert data["may_lack"] == compiler


@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_compiler_of_triton_is_on_path_where_cann_brings_it_and_is_not_missed_where_not(
    has_compiler: bool, tmp_path: Path, new_cann: Path
) -> None:
    program = new_cann / "tools/bishengir/bin/bishengir-compile"
    if has_compiler:
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        script = new_cann / "share/info/ascendnpu-ir/bin/set_env.sh"
        script.parent.mkdir(parents=True)
        script.write_text('export PATH="$(dirname "${BASH_SOURCE[0]}")/../../../../tools/bishengir/bin:$PATH"\n')
    root = install(stack_of(VERL, cann_root=str(new_cann)), tmp_path / "env")
    enter = f". '{root}/activate.sh' && cd / && {{ command -v bishengir-compile || echo none; }}"
    ran = subprocess.run(["bash", "-c", enter], capture_output=True, text=True, env={"PATH": STARTING_PATH}, check=True)
    found = ran.stdout.strip()
    assert ran.stderr == ""
    assert Path(found).samefile(program) if has_compiler else found == "none"


def test_the_files_are_the_same_whoever_renders_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(ROLL)
    first = render_activations(stack, "/t/env")
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.setenv("https_proxy", "http://me:word@proxy.example:3128")
    assert render_activations(stack, "/t/env") == first
    assert sorted(first) == [
        ".npuenv/activation.json", ".npuenv/entering.py", "activate.csh", "activate.fish", "activate.sh",
    ]  # fmt: skip


@pytest.mark.parametrize("root", ["/t/env", "/t/two 'words' !x"])
@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (("shellcheck", "-s", "sh"), "activate.sh"),
        (("shellcheck", "-s", "bash"), "activate.sh"),
        (("dash", "-n"), "activate.sh"),
        (("zsh", "-n"), "activate.sh"),
        (("fish", "-n"), "activate.fish"),
        (("tcsh", "-fn"), "activate.csh"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_the_scripts_are_clean(argv: tuple[str, ...], file: str, root: str, tmp_path: Path) -> None:
    if not shutil.which(argv[0]):
        pytest.skip(f"there is no {argv[0]} here")
    (tmp_path / file).write_text(render_activations(stack_of(ROLL), root)[file])
    ran = subprocess.run([*argv, str(tmp_path / file)], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def everything_chosen(stack: Stack) -> dict[str, str]:
    found = dict(stack.env)
    for role in ("run", "multi-node", "train", "rollout"):
        found.update(settings_of(stack, role))
    return found


def test_settings_keep_to_what_their_readers_take() -> None:
    matrix = load_matrix()
    known = {row.name: row for row in matrix.variables}
    seen = 0
    for row in matrix.settings:
        variable = known.get(row.name)
        if variable and variable.kind == "choice":
            assert row.value in variable.values, row.id
            seen += 1
        if variable and variable.kind == "number" and row.value.isdigit():
            assert variable.least <= int(row.value) <= variable.most, row.id
            seen += 1
    assert seen >= 8


def test_what_a_vllm_ascend_does_not_read_is_not_set_for_it() -> None:
    chosen = {name: everything_chosen(stack_of(name)) for name in ("roll-guide-cann8.3.RC1", ROLL, "roll-cann9.1.0")}
    switches = ("VLLM_ASCEND_ENABLE_DENSE_OPTIMIZE", "VLLM_ASCEND_ENABLE_PREFETCH_MLP", "VLLM_ASCEND_ENABLE_FLASHCOMM")
    assert {name: [switch in found for switch in switches] for name, found in chosen.items()} == {
        "roll-guide-cann8.3.RC1": [True, True, False],
        ROLL: [False, True, False],
        "roll-cann9.1.0": [False, False, False],
    }
    assert all("NPU_MEMORY_FRACTION" not in found for found in chosen.values())
