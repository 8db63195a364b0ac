"""The road of somebody with an Atlas A2, command by command as README shows it, on a machine that looks like one.

A mount namespace holds the driver's files, device nodes and CANN of a simulated machine; its tools are programs that
print what they print there. The packages are small wheels of the stack's own names and versions; nothing is built.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.lock.uv import write_wheel
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from tests.support.machines import composed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
STACK, CANN = "verl-0.7.1-cann8.5.0", "8.5.0"
MARKS = ("<!-- road-a2 -->", "<!-- a2 -->")
ROAD = f"""
npuenv doctor
npuenv resolve --for verl
npuenv lock {STACK}
npuenv install --for verl
. ~/.local/share/npuenv/envs/{STACK}/current/activate.sh
npuenv smoke-train
npuenv render-launch --for verl -o launch
npuenv preflight launch/run.sh
"""
# npuenv itself, with the stack reduced to small wheels, of which the doctor would say that they are none of the real.
NPUENV = """
import sys
from dataclasses import replace
from npuenv.app import installation, resolution
from npuenv.cli import main
from npuenv.lock.make import make_lock
whole = resolution.resolve
def reduced(request):
    stack = whole(request)
    order = tuple(step for step in stack.order if step.does not in ("git", "uninstall"))
    return replace(stack, requirements=(), overrides=(), git_sources=(), order=order, system_packages=(), date="")
resolution.resolve = reduced
resolution.lock = lambda stack, resolver, **more: make_lock(stack, resolver)
installation.failed_checks = lambda host, stack, python: ()
sys.exit(main())
"""
# The host's own files are laid over this machine's; what a mount hides stays visible to the rest of the machine.
ENTER = """
set -e
cd {place}
mount -t tmpfs tmpfs cover
for top in usr/local etc; do
  mkdir -p cover/laid/$top cover/own/$top
  [ ! -d files/$top ] || cp -a files/$top/. cover/laid/$top/
  mount -t overlay overlay -o lowerdir=/$top,upperdir=cover/laid/$top,workdir=cover/own/$top /$top
done
mkdir cover/dev
for name in null zero full random urandom tty; do touch cover/dev/$name; mount --bind /dev/$name cover/dev/$name; done
mkdir cover/dev/shm cover/dev/pts
ln -s /proc/self/fd cover/dev/fd
for name in {devices}; do mknod cover/dev/$name c 1 3; done
mount --rbind cover/dev /dev
cd work
exec "$@"
"""


def commands() -> list[str]:
    """What README shows after one of the marks, or else what it would."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [text.partition(mark)[2].partition("```sh\n")[2].partition("```")[0] for mark in MARKS]
    lines = (next(filter(None, shown), "") or ROAD).splitlines()
    own = [line.partition(" #")[0].strip() for line in lines]
    return [line for line in own if line.startswith(("npuenv ", ". ~/"))]


@dataclass(frozen=True)
class A2:
    """The host; `run` types a command there."""

    place: Path
    devices: tuple[str, ...]
    env: dict[str, str]

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        script = ENTER.format(place=shlex.quote(str(self.place)), devices=" ".join(self.devices))
        argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", "bash", "-c", line]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=240)

    def json(self, line: str) -> tuple[int, dict[str, Any], str]:
        ran = self.run(f"{line} --json")
        assert ran.stdout, (line, ran.returncode, ran.stderr)
        found: dict[str, Any] = json.loads(ran.stdout)
        return ran.returncode, found, ran.stderr


def program(path: Path, answers: dict[str, Any], said: Path) -> None:
    """A program that prints what was recorded for its words."""
    lines = ["#!/bin/sh", 'case "$*" in']
    for number, (words, answer) in enumerate(answers.items()):
        told = answer if isinstance(answer, dict) else {"out": answer}
        (said / f"{path.name}{number}").write_text(str(told.get("out", "")))
        code = told.get("code", 0)
        lines.append(f"{shlex.quote(words)}) cat {shlex.quote(str(said / f'{path.name}{number}'))}; exit {code};;")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "*) echo Command or option is not found.; exit 211;;", "esac", ""]))
    path.chmod(0o755)


@pytest.fixture(scope="module")
def a2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[A2]:
    place = tmp_path_factory.mktemp("a2")
    for name in ("files", "cover", "work", "home", "said", "wheels", "bin"):
        (place / name).mkdir()
    told = json.loads(json.dumps(composed.machine("a2-b2c-host-x86")).replace("9.1.0", CANN))
    tops = ("/usr/local/", "/etc/ascend_install.info", "/etc/Ascend", "/etc/os-release", "/etc/hccn.conf")
    for path, text in told["files"].items():
        if path.startswith(tops):
            (place / "files" / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (place / "files" / path[1:]).write_text(text)
    for path, to in told["links"].items():
        if path.startswith(tops):
            (place / "files" / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (place / "files" / path[1:]).symlink_to(to)
    home = f"/usr/local/Ascend/cann-{CANN}"
    script = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in told["environ"].items() if k.startswith("ASCEND"))
    (place / f"files{home}/set_env.sh").write_text(script)
    for name, folder in (("npu-smi", "/usr/local/bin"), ("hccn_tool", "/usr/local/Ascend/driver/tools")):
        answers = {w[len(name) + 1 :]: text for w, text in told["commands"].items() if w.startswith(name + " ")}
        program(place / f"files{folder}/{name}", answers, place / "said")
    stack = resolve(Request(stack=STACK, arch="x86_64", hardware="a2"), load_matrix())
    assert isinstance(stack, Stack)
    for pin in stack.pins:
        module = pin.name.replace("-", "_")
        write_wheel(place / "wheels", pin.name, pin.version, files={f"{module}.py": f"__version__ = '{pin.version}'\n"})
    (place / "reduced.py").write_text(NPUENV)
    (place / "bin/npuenv").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{place}/reduced.py" "$@"\n')
    (place / "bin/npuenv").chmod(0o755)
    env = {
        "PATH": f"{place}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(place / "home"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(place / "wheels"),
        "PIP_NO_INDEX": "1",
        "UV_CACHE_DIR": str(place / "cache"),
    }
    made = A2(place, tuple(path.rpartition("/")[2] for path in told["devices"]), env)
    ran = made.run("npu-smi info")
    if ran.returncode:
        pytest.skip(f"no such machine can be made here: {ran.stderr.strip() or ran.stdout.strip()}")
    yield made


@pytest.mark.slow
@pytest.mark.skipif(
    platform.python_version_tuple()[:2] != ("3", "11") or platform.machine() != "x86_64",
    reason="the stack is for Python 3.11, the simulated machine is an x86_64 one",
)
def test_every_command_of_the_road_is_about_this_machine_and_says_so(a2: A2) -> None:
    lines, seen = commands(), set()
    for line in lines:
        verb = shlex.split(line)[1] if line.startswith("npuenv ") else "activate"
        seen.add(verb)
        assert verb in STEPS, f"README shows a step that nothing here looks at: {line}"
        STEPS[verb](a2, line)
    assert seen >= set(STEPS) - {"lock", "resolve"}


def require_told(err: str, **values: str) -> None:
    """What was taken from this machine is said before anything else."""
    first = (err.splitlines() or [""])[0]
    assert all(f"{name} {value}" in first for name, value in values.items()), err


def doctor(a2: A2, line: str) -> None:
    code, found, _ = a2.json(line)
    by = {item["check"]: item for item in found["findings"]}
    assert code == 1 and found["schema"].startswith("npuenv.doctor/")
    assert by["cann.sourced"]["status"] == "fail" and CANN in json.dumps(found)
    assert "set_env.sh" in json.dumps(by["cann.sourced"]["fix"]["commands"])
    of_cards = {by[check]["status"] for check in by if check.startswith(("cards.", "driver.", "devices."))}
    assert {"ok"} <= of_cards <= {"ok", "skip"}


def resolved(a2: A2, line: str) -> None:
    code, found, _ = a2.json(line)
    assert (code, found["name"], found["platform"]["hardware"]) == (0, STACK, "a2")
    require_told(a2.run(line).stderr, hardware="a2", cann=CANN, arch="x86_64", driver="25.2.1")


def lock(a2: A2, line: str) -> None:
    """Three packages are on an index that nobody reaches from here: that is said, and is no success."""
    ran = a2.run(line)
    assert ran.returncode == 3 and f'stack = "{STACK}"' in ran.stdout
    require_told(ran.stderr, hardware="a2")
    assert all(name in ran.stderr for name in ("torch 2.8.0+cpu", "torchvision", "torchaudio"))


def install(a2: A2, line: str) -> None:
    code, found, err = a2.json(f"{line} --yes")
    assert (code, found["stack"], found["is_proven"]) == (0, STACK, True), err
    assert found["target"].startswith(f"{a2.env['HOME']}/.local/share/npuenv/envs/{STACK}/")
    manifest = json.loads(Path(found["target"], ".npuenv/manifest.json").read_text())
    assert (manifest["stack"], manifest["platform"].partition("-")[0]) == (STACK, "x86_64")
    if "--for" in line:
        require_told(a2.run(f"{line} --dry-run").stderr, hardware="a2", cann=CANN)


def activate(a2: A2, line: str) -> None:
    """CANN's own variables are there, and the Python is that of the environment."""
    ran = a2.run(f'{line} && printf "%s\\n" "$ASCEND_HOME_PATH" "$VIRTUAL_ENV" && command -v python')
    home, environment, python = ran.stdout.splitlines()[-3:]
    assert ran.returncode == 0 and home == f"/usr/local/Ascend/cann-{CANN}", ran.stderr
    assert f"/envs/{STACK}/" in environment and python == f"{environment}/bin/python"


def smoke_train(a2: A2, line: str) -> None:
    """The torch here computes nothing, and there are no cards behind the nodes: never a pass, never another device."""
    ran = a2.run(line)
    assert ran.returncode == 1 and STACK in ran.stdout + ran.stderr
    assert "FAIL" in ran.stdout.splitlines()[-2] and "PASS" not in ran.stdout


def render_launch(a2: A2, line: str) -> None:
    ran = a2.run(line)
    assert ran.returncode == 0, ran.stderr
    require_told(ran.stderr, hardware="a2", cann=CANN, arch="x86_64")
    assert STACK in ran.stdout.splitlines()[0]
    assert (a2.place / "work/launch/run.sh").is_file()


def preflight(a2: A2, line: str) -> None:
    code, found, _ = a2.json(line)
    assert code == 0
    assert not [item for item in found["problems"] if item["severity"] in ("error", "warning")]


STEPS: dict[str, Callable[[A2, str], None]] = {
    "doctor": doctor,
    "resolve": resolved,
    "lock": lock,
    "install": install,
    "activate": activate,
    "smoke-train": smoke_train,
    "render-launch": render_launch,
    "preflight": preflight,
}
