"""Breaks of environments made of real wheels: torch, torch_npu, numpy, triton-ascend and what is put over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.doctor.broken.bench import other_python, run_uv
from tests.doctor.broken.wheels import Distribution, module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.doctor.broken.bench import Bench

_CPU = "torch/lib/libtorch_cpu.so"


def torch_npu_without_cann(bench: Bench) -> None:
    """The pair as it is published, on a machine without CANN: nothing is broken but what it stands on."""
    assert (bench.site / "torch_npu/lib/libtorch_npu.so").exists()


def torch_npu_of_another_release(bench: Bench) -> None:
    """torch_npu for torch 2.9 beside torch 2.13; the import says only that CANN is missing."""
    bench.uv("install", "--no-deps", "torch-npu==2.9.0")


def torch_uninstalled(bench: Bench) -> None:
    """torch is gone, torch_npu stays."""
    bench.uninstall("torch")


def torch_libraries_removed(bench: Bench) -> None:
    """Every library of torch is gone."""
    for path in (bench.site / "torch/lib").glob("*.so*"):
        path.unlink()


def libc10_removed(bench: Bench) -> None:
    """The one library of torch that all others need."""
    bench.uninstall("torch-npu")
    (bench.site / "torch/lib/libc10.so").unlink()


def libtorch_cpu_cut_in_half(bench: Bench) -> None:
    """The largest file of torch, of which half arrived."""
    bench.uninstall("torch-npu")
    with (bench.site / _CPU).open("rb") as file:
        half = file.read((bench.site / _CPU).stat().st_size // 2)
    bench.put(_CPU, half)


def torch_extension_of_another_machine(bench: Bench) -> None:
    """torch._C with the machine of the other architecture in its header."""
    bench.uninstall("torch-npu")
    path = next((bench.site / "torch").glob("_C.*.so"))
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    bench.put(path, bytes(data))


def tensordict_of_another_torch(bench: Bench) -> None:
    """tensordict 0.10 has code compiled for torch 2.8."""
    bench.uninstall("torch-npu")
    bench.uv("install", "--no-deps", "tensordict==0.10.0", "packaging", "cloudpickle", "orjson", "importlib-metadata")


def torch_npu_of_another_machine(bench: Bench) -> None:
    """torch_npu's wheel for aarch64 copied into an environment of x86_64."""
    bench.uninstall("torch-npu")
    _into(bench.site, "torch-npu==2.13.0", "--python-platform", "aarch64-manylinux_2_28")


def numpy_half_removed(bench: Bench) -> None:
    """Every second module of numpy is gone."""
    for path in sorted((bench.site / "numpy").rglob("*.py"))[1::2]:
        path.unlink()


def numpy_of_another_python(bench: Bench) -> None:
    """numpy's wheel for Python 3.10 under Python 3.11."""
    bench.uninstall("numpy")
    _into(bench.site, "numpy==1.26.4", "--python-version", "3.10")


def numpy_for_musl(bench: Bench) -> None:
    """numpy's wheel for Alpine."""
    bench.uninstall("numpy")
    _into(bench.site, "numpy==1.26.4", "--python-platform", "x86_64-unknown-linux-musl")


def numpy_upgraded_halfway(bench: Bench) -> None:
    """numpy 2 unpacked over numpy 1, whose metadata and left files are still there."""
    new = bench.prefix.parent / "new"
    _into(new, "numpy==2.2.6")
    bench.unpack_over(new)


def numpy_altered(bench: Bench) -> None:
    """One constant of a compiled module of numpy is another; size and date tell nothing."""
    path = next((bench.site / "numpy/core").glob("_multiarray_umath.*.so"))
    bench.change(path, b"multiarray", b"multiarrax")


def pyarrow_that_refuses_numpy_1(bench: Bench) -> None:
    """pyarrow 26 beside numpy 1.26: a resolver and `pip check` are content."""
    bench.uv("install", "--no-deps", "pyarrow==26.0.1")


def pandas_compiled_for_numpy_1(bench: Bench) -> None:
    """pandas 2.1 with numpy 2."""
    bench.uv("install", "--no-deps", "pandas==2.1.4", "numpy==2.2.6", "python-dateutil", "pytz", "tzdata", "six")


def triton_over_triton_ascend(bench: Bench) -> None:
    """A requirement brought triton, whose files now lie over those of triton-ascend."""
    bench.uv("install", "--no-deps", "triton==3.5.0")


def triton_ascend_over_triton(bench: Bench) -> None:
    """triton-ascend was installed last, over a triton that is still registered."""
    bench.uv("install", "--no-deps", "triton==3.5.0")
    bench.uv("install", "--no-deps", "--reinstall-package", "triton-ascend", "triton-ascend==3.2.0")


def triton_uninstalled_after(bench: Bench) -> None:
    """triton was installed over triton-ascend and removed again: the shared files went with it."""
    bench.uv("install", "--no-deps", "triton==3.5.0")
    bench.uninstall("triton")


def numpy_2_under_an_old_stack(bench: Bench) -> None:
    """torch_npu 2.1 with the newest numpy for its Python; torch 2.1 for the CPU, in no index, is its metadata only."""
    run_uv("venv", "--clear", "--python", str(other_python("3.9")), str(bench.prefix))
    torch = Distribution("torch", "2.1.0+cpu", module("torch", "2.1.0+cpu"), tag="py3-none-any")
    bench.install(torch)
    bench.uv("install", "--no-deps", "torch-npu==2.1.0.post13", "numpy==2.0.2")


def _into(site: Path, requirement: str, *words: str) -> None:
    """Installs what does not fit here, or over what is there, as copying site-packages does."""
    run_uv("pip", "install", "--no-deps", "--target", str(site), *words, requirement)
