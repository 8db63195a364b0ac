"""The environments that breaks start from: made once, copied for each break."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.doctor.broken.bench import Bench, run_uv
from tests.doctor.broken.wheels import Distribution, module, numpy, plain, torch, torch_npu, triton_ascend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TORCH, TORCH_NPU = "2.13.0+cpu", "2.13.0"


def _small() -> tuple[Distribution, ...]:
    return numpy(), torch(), torch_npu()


def _stack() -> tuple[Distribution, ...]:
    """What the published stack for CANN 8.5.0 has, as far as it is probed."""
    vllm = Distribution("vllm", "0.13.0+empty", module("vllm", "0.13.0+empty", "platforms"))
    return (
        *_small(),
        triton_ascend(),
        vllm,
        plain("vllm-ascend", "0.13.0"),
        plain("torchvision", "0.23.0"),
        plain("transformers", "4.57.6"),
        plain("ray", "2.48.0"),
        plain("pyarrow", "24.0.0"),
        plain("tensordict", "0.10.0"),
    )


def _find_links() -> list[str]:
    """Where pip is told to look besides its index; uv does not read pip's settings."""
    ran = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    lines = [line.partition("=")[2].strip("'\" ") for line in ran.stdout.splitlines() if ".find-links=" in line]
    places = [*" ".join(lines).replace("\\n", " ").split(), *os.environ.get("PIP_FIND_LINKS", "").split()]
    return [word for place in dict.fromkeys(places) for word in ("--find-links", place)]


def _make(folder: Path, *wanted: Distribution) -> None:
    bench = _venv(folder)
    if wanted:
        bench.install(*wanted)


def _venv(folder: Path, python: str = sys.executable) -> Bench:
    run_uv("venv", "--python", python, str(folder / "env"))
    return Bench(folder / "env", folder)


def _real_torch(folder: Path) -> None:
    """torch for the CPU with the torch_npu made for it; only wheels for one Python exist."""
    bench = _venv(folder, "3.11")
    bench.uv("install", *_find_links(), f"torch=={TORCH}", "numpy==2.2.6", "pyyaml")
    bench.uv("install", "--no-deps", f"torch-npu=={TORCH_NPU}")


def _real_numpy(folder: Path) -> None:
    _venv(folder, "3.11").uv("install", "numpy==1.26.4")


def _real_triton(folder: Path) -> None:
    _venv(folder, "3.11").uv("install", "--no-deps", "triton-ascend==3.2.0")


def _relocated(folder: Path) -> None:
    """A Python in a prefix of its own, as conda makes them: its standard library is linked, site-packages is real."""
    prefix = folder / "env"
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = os.path.realpath(sys.base_prefix)
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / name / "site-packages").mkdir(parents=True)
    shutil.copy2(os.path.realpath(os.path.join(base, "bin", name)), prefix / "bin" / name)
    (prefix / "bin" / "python").symlink_to(name)
    _link_all(os.path.join(base, "lib"), prefix / "lib", name)
    _link_all(os.path.dirname(os.__file__), prefix / "lib" / name, "site-packages")
    Bench(prefix, folder).install(numpy(), torch(), torch_npu())


def _link_all(folder: str, into: Path, but: str) -> None:
    for each in os.listdir(folder):
        if each != but:
            (into / each).symlink_to(os.path.join(folder, each))


_MAKERS: dict[str, Callable[[Path], None]] = {
    "bare": lambda folder: _make(folder),
    "small": lambda folder: _make(folder, *_small()),
    "stack": lambda folder: _make(folder, *_stack()),
    "relocated": _relocated,
    "real-torch": _real_torch,
    "real-numpy": _real_numpy,
    "real-triton": _real_triton,
}


class Bases:
    """Each base is made when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, base: str, folder: Path) -> Bench:
        """An environment like the base. Large ones share its files: a break writes a file anew, never into it."""
        source = self._folder / base
        if not source.exists():
            source.mkdir(parents=True)
            _MAKERS[base](source)
        work = folder / "work"
        work.mkdir(parents=True)
        how = "-al" if base.startswith("real-") else "-a"
        subprocess.run(["cp", how, str(source / "env"), str(folder / "env")], check=True)
        return Bench(folder / "env", work)
