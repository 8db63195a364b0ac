"""An environment to be broken, and the doctor as a process that looks at it. Start from `Bench` and `diagnose`."""

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

if TYPE_CHECKING:
    from tests.doctor.broken.wheels import Distribution

ROOT = Path(__file__).resolve().parents[3]
# The first entry of the path is the folder of the doctor, never the working folder: as in an installed program.
_START = f"import sys; sys.path[0] = {str(ROOT)!r}; from npuenv.cli import main; sys.exit(main())"
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


def diagnose(bench: Bench, *words: str) -> Seen:
    """Runs the doctor on an environment, in a session of its own."""
    home = bench.work.parent / "home"
    home.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not _is_left_out(name)}
    argv = [sys.executable, "-c", _START, "doctor", "--python", str(bench.python), *bench.options, *words]
    if bench.is_bound_by_modes and os.geteuid() == 0:
        argv = [*_bound(), *argv]
    argv = [*bench.wrapper, *argv]
    started = time.monotonic()
    ran = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_GIVE_UP_S,
        cwd=bench.work,
        env={**variables, "HOME": str(home), "LANG": "C.UTF-8", **bench.variables},
        check=False,
    )
    return Seen(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - started)


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
