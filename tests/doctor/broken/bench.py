"""An environment to be broken, and the doctor as a process that looks at it."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uv

from tests.doctor.broken.wheels import build
from tests.support.forked import program

if TYPE_CHECKING:
    import contextlib

    from tests.doctor.broken.wheels import Distribution
    from tests.support.forked import Ended, Program

ROOT = Path(__file__).resolve().parents[3]
# The first entry of the path is the folder of the doctor, never the working folder: as in an installed program.
_IMPORT = f"import sys; sys.path[0] = {str(ROOT)!r}; from npuenv.cli import main"
_START = f"{_IMPORT}; sys.exit(main())"
_LEFT_OUT = ("PYTHON", "PIP_", "UV_", "VIRTUAL_ENV", "CONDA", "ASCEND", "LD_", "TORCH", "HCCL", "RAY_", "VLLM", "ATB")
_GIVE_UP_S = 300.0
# Root reads everything whatever the modes say; without these two it is bound by them as a user is.
_BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


@dataclass(slots=True)
class Bench:
    """A copy of a base environment. A break changes it and may change how the doctor is called on it."""

    prefix: Path
    work: Path  # the folder in which the doctor is started
    variables: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    is_bound_by_modes: bool = False  # run without root's right to read everything
    wrapper: tuple[str, ...] = ()  # a program that starts the doctor
    asked: Path | None = None  # the interpreter that the doctor is given; None: that of the environment
    is_alone: bool = False  # the doctor has to be a whole process, from the start of its interpreter on

    @property
    def can_share(self) -> bool:
        """Whether nothing of the break reaches the start of the doctor's own interpreter, or what it leaves behind."""
        return not (
            self.is_alone or self.variables or self.is_bound_by_modes or self.wrapper or any(self.work.iterdir())
        )

    @property
    def python(self) -> Path:
        return self.asked or self.prefix / "bin" / "python"

    @property
    def site(self) -> Path:
        """site-packages."""
        return next((self.prefix / "lib").glob("python3.*")) / "site-packages"

    def info(self, name: str) -> Path:
        """The dist-info folder of a distribution."""
        return next(self.site.glob(f"{name}-*.dist-info"))

    def install(self, *wanted: Distribution) -> None:
        """Builds wheels and installs them over whatever is there, asking no index."""
        folder = self.prefix.parent / "wheels"
        wheels = [str(build(each, folder)) for each in wanted]
        self.uv("install", "--no-deps", "--no-index", "--offline", *wheels)

    def uninstall(self, *names: str) -> None:
        self.uv("uninstall", *names)

    def uv(self, verb: str, *words: str) -> None:
        run_uv("pip", verb, "--python", str(self.prefix / "bin" / "python"), *words)

    def put(self, path: str | Path, content: str | bytes) -> Path:
        """Writes a file of site-packages anew: other copies of the base may share the old one."""
        place = self.site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def change(self, path: str | Path, old: bytes, new: bytes) -> None:
        """Replaces bytes of a file of site-packages by as many others."""
        data = (self.site / path).read_bytes()
        assert old in data, (path, old)
        assert len(old) == len(new), (old, new)
        self.put(path, data.replace(old, new))

    def unpack_over(self, folder: Path) -> None:
        """Copies a folder over site-packages, and removes nothing."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(path.relative_to(folder), path.read_bytes())

    def shut(self, path: Path) -> None:
        """Takes all permissions away."""
        self.is_bound_by_modes = True
        if path.is_file():
            self.put(path, path.read_bytes())
        path.chmod(0)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the doctor's process gave."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def troubles(self) -> dict[str, str]:
        """The findings about the target Python that are neither fine nor left out: check -> status."""
        found = {each["check"]: str(each["status"]) for each in self.report["findings"]}
        return {
            check: status
            for check, status in found.items()
            if check.startswith("python.") and status in ("fail", "warn", "unknown")
        }


def run_uv(*words: str) -> None:
    """Runs uv with no settings but its own; fails the test with what it said."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("UV_", "PIP_", "VIRTUAL_ENV", "PYTHON"))
    }
    ran = subprocess.run(
        [uv.find_uv_bin(), "--quiet", *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=variables,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def diagnose(bench: Bench, *words: str, doctor: Program | None = None) -> Seen:
    """Runs the doctor on an environment, in a session of its own.

    With `doctor` it is a child of that process, which has imported npuenv, where the break has nothing to do with how
    the doctor itself starts.
    """
    home = bench.work.parent / "home"
    home.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not _is_left_out(name)}
    variables |= {"HOME": str(home), "LANG": "C.UTF-8", **bench.variables}
    words = ("doctor", "--python", str(bench.python), *bench.options, *words)
    started = time.monotonic()
    if doctor is not None and bench.can_share:
        ran: Ended | subprocess.CompletedProcess[str]
        ran = doctor.run(words, cwd=bench.work, env=variables, limit_s=int(_GIVE_UP_S))
    else:
        argv = [sys.executable, "-c", _START, *words]
        if bench.is_bound_by_modes and os.geteuid() == 0:
            argv = [*_bound(), *argv]
        ran = subprocess.run(
            [*bench.wrapper, *argv],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIVE_UP_S,
            cwd=bench.work,
            env=variables,
            check=False,
        )
    return Seen(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - started)


def waiting_doctor() -> contextlib.AbstractContextManager[Program]:
    """The doctor as a process that has imported what it needs."""
    variables = {name: value for name, value in os.environ.items() if not _is_left_out(name)}
    first = ("doctor", "--from", str(ROOT / "tests/support/hosts/a2_healthy.json"), "--level", "2", "--json")
    return program([sys.executable], _IMPORT, "-c", first, variables)


def _is_left_out(name: str) -> bool:
    return name.startswith(_LEFT_OUT) or name.lower().endswith("_proxy") or name in ("NO_COLOR", "COLUMNS")


@functools.cache
def _bound() -> tuple[str, ...]:
    if shutil.which("setpriv") is None:
        pytest.skip("root reads everything, and setpriv is not here to take that right away")
    return _BOUND


@functools.cache
def other_python(short: str) -> Path:
    """An interpreter of another version that works on this machine; skips where there is none."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [str(path) for path in sorted(root.glob(f"{short}.*/bin/python"))]
    for each in (*found, shutil.which(f"python{short}")):
        if each is not None and subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(each)
    pytest.skip(f"no Python {short} on this machine")
