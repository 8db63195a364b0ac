"""Commands with the versions of this report: what the tables of the matrix say belongs together."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.diagnose.compatibility import plugin_row

if TYPE_CHECKING:
    from npuenv.diagnose.types import ReportFacts
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import TorchNpu

_OF_TORCH = ("torch-torch_npu-mismatch", "torch_npu-wrong-release", "install-order")
_PIP = ("pip", "install")
_INDEXES = ("pytorch-cpu", "huawei-ascend")  # together they hold what the default index lacks


def fix_commands(cause: str, facts: ReportFacts, matrix: Matrix) -> tuple[tuple[str, ...], ...]:
    """What to type, as argv; empty where the tables do not know the versions of the report."""
    if cause in _OF_TORCH:
        row = _torch_npu(facts, matrix)
        return (_torch_pair(row, matrix),) if row else ()
    if cause == "vllm-vllm_ascend-mismatch":
        plugin = plugin_row(facts, matrix)
        # Not `pip install vllm`: its wheels are for GPUs. The plan names the build and the order.
        return (("npuenv", "install", f"vllm-ascend-{plugin.version}", "--dry-run"),) if plugin else ()
    if cause == "torchvision-mismatch":
        return _companions(facts, matrix)
    if cause == "pip-index":
        urls = [index.url for label in _INDEXES if (index := matrix.index_row(label)) is not None]
        return (("export", f"PIP_EXTRA_INDEX_URL={shlex.quote(' '.join(urls))}"),)
    return ()


def _torch_pair(row: TorchNpu, matrix: Matrix) -> tuple[str, ...]:
    """torch as its build without CUDA, from its own index: a plain name fetches gigabytes of CUDA on most machines."""
    index = matrix.index_row("pytorch-cpu")
    more = ("--extra-index-url", index.url) if index is not None else ()
    return (*_PIP, *more, f"torch=={row.torch}+cpu", f"torch_npu=={row.version}")


def _companions(facts: ReportFacts, matrix: Matrix) -> tuple[tuple[str, ...], ...]:
    torch = facts.packages.get("torch")
    row = matrix.companion_row(torch.value) if torch else None
    return ((*_PIP, "--no-deps", f"torchvision=={row.torchvision}", f"torchaudio=={row.torchaudio}"),) if row else ()


def _torch_npu(facts: ReportFacts, matrix: Matrix) -> TorchNpu | None:
    """The release for the installed vllm-ascend; without one the newest for the torch that is there."""
    plugin = plugin_row(facts, matrix)
    if plugin is not None and plugin.torch_npu:
        return matrix.torch_npu_row(plugin.torch_npu)
    seen = facts.packages.get("torch") or facts.packages.get("torch-npu")
    try:
        minor = Version(seen.value).release[:2] if seen else ()
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return None
    rows = [row for row in matrix.torch_npu if row.status in ("released", "patch")]
    fitting = [row for row in rows if Version(row.torch).release[:2] == minor and _has_wheel(row, facts)]
    return max(fitting, key=lambda row: Version(row.version), default=None)


def _has_wheel(row: TorchNpu, facts: ReportFacts) -> bool:
    """Whether the release has a wheel for the Python of the report; true where either is not known."""
    known = row.python_x86_64 if facts.arch and facts.arch.value == "x86_64" else row.python_aarch64
    return facts.python is None or not known or facts.python.value in known
