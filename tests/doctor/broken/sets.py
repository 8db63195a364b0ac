"""Packages that do not go together, each sound by itself. Small distributions with the metadata of the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.doctor.broken.wheels import (
    Distribution,
    library,
    module,
    numpy,
    plain,
    torch,
    torch_npu,
    triton,
    triton_ascend,
)

if TYPE_CHECKING:
    from tests.doctor.broken.bench import Bench


def torch_of_another_release(bench: Bench) -> None:
    """torch was upgraded, torch_npu was not."""
    bench.install(torch("2.9.0+cpu"))


def torch_removed(bench: Bench) -> None:
    """torch was uninstalled, torch_npu stays."""
    bench.uninstall("torch")


def torch_for_cuda(bench: Bench) -> None:
    """A requirement without +cpu brought the build for CUDA."""
    bench.install(torch("2.8.0+cu126", cuda="12.6"), plain("nvidia-cublas-cu12", "12.6.4.1"))


def torch_for_cuda_without_a_label(bench: Bench) -> None:
    """The same from an index whose wheels carry no label: only torch/version.py tells."""
    bench.install(torch("2.8.0", cuda="12.8"), plain("nvidia-cudnn-cu12", "9.10.2.21"))


def triton_over_triton_ascend(bench: Bench) -> None:
    """A requirement brought triton, whose files now lie over those of triton-ascend."""
    bench.install(triton())


def triton_ascend_over_triton(bench: Bench) -> None:
    """triton-ascend was installed last; files of triton that it does not have are still there."""
    bench.uninstall("triton-ascend")
    bench.install(triton())
    bench.install(triton_ascend())


def triton_uninstalled_after(bench: Bench) -> None:
    """triton was installed over triton-ascend and removed again: the shared files went with it."""
    bench.install(triton())
    bench.uninstall("triton")


def triton_alone(bench: Bench) -> None:
    """Only the triton for GPUs."""
    bench.uninstall("triton-ascend")
    bench.install(triton())


def numpy_2_under_an_old_stack(bench: Bench) -> None:
    """A stack whose torch_npu asks for numpy 1, with numpy 2."""
    bench.install(torch("2.1.0+cpu"), torch_npu("2.1.0.post13", "numpy<2.0.0"), numpy("2.2.6"))


def pyarrow_that_refuses_numpy_1(bench: Bench) -> None:
    """pyarrow 26 declares nothing about numpy and refuses numpy 1 at import."""
    first = "import numpy\nraise ImportError('pyarrow requires NumPy 2.0 or newer, found ' + numpy.__version__)\n"
    bench.install(Distribution("pyarrow", "26.0.1", module("pyarrow", "26.0.1", first=first)))


def vllm_of_another_release(bench: Bench) -> None:
    """vllm 0.11.0 under a vllm-ascend for 0.13.0."""
    bench.install(plain("vllm", "0.11.0+empty"))


def vllm_without_its_tags(bench: Bench) -> None:
    """vllm built from a checkout without tags."""
    bench.install(plain("vllm", "0.1.dev1+g1234567.empty"))


def vllm_for_cuda(bench: Bench) -> None:
    """The published vllm, with its kernels for CUDA."""
    files = {**module("vllm", "0.13.0", "platforms"), "vllm/_C.abi3.so": library()}
    bench.install(Distribution("vllm", "0.13.0", files))


def vllm_ascend_wants_another_torch_npu(bench: Bench) -> None:
    """A newer vllm-ascend and vllm over a torch that stayed."""
    bench.install(plain("vllm-ascend", "0.11.0"), plain("vllm", "0.11.0+empty"))


def transformers_too_new(bench: Bench) -> None:
    """transformers 5 under a vllm-ascend that takes 4."""
    bench.install(plain("transformers", "5.1.0"))


def ray_with_tokens(bench: Bench) -> None:
    """A ray that writes an authentication token on its first local start, in a session of two nodes."""
    bench.install(plain("ray", "2.59.0"))
    bench.variables["NNODES"] = "2"


def torchvision_of_another_torch(bench: Bench) -> None:
    """torchvision followed a newer torch."""
    bench.install(plain("torchvision", "0.24.0"))


def flash_attn_installed(bench: Bench) -> None:
    """flash-attn, which no NPU can use."""
    bench.install(plain("flash-attn", "2.8.3"))


def requirement_not_met(bench: Bench) -> None:
    """accelerate asks for a newer torch than is here."""
    bench.install(plain("accelerate", "1.20.0", "torch>=2.10", "numpy<3"))


def dependency_not_installed(bench: Bench) -> None:
    """torch imports sympy, which `--no-deps` left out."""
    made = torch()
    files = {**made.files, "torch/__init__.py": "import sympy\n"}
    bench.install(Distribution("torch", made.version, files, ("sympy>=1.13.3",)))


def package_that_refuses_this_python(bench: Bench) -> None:
    """Requires-Python of a package leaves this Python out: installed by force."""
    bench.install(plain("peft", "0.19.0"))
    path = bench.info("peft") / "METADATA"
    bench.put(path, path.read_text() + "Requires-Python: >=3.99\n")
